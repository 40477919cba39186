//! Validates the schema of a definition: forbidden keywords, structural schemas, and defaults.

use loadmaster_stdx::SortCompactly as _;
use serde_json::Value;

use super::super::structural::{Additional, META_FIELDS, StructuralSchema};
use super::super::{decode, validate_object};
use super::rules;
use crate::status::Cause;

/// Validates a schema at a path.
pub fn validate_schema(value: &Value, path: &str, has_status: bool, causes: &mut Vec<Cause>) {
    if value.is_null() {
        return;
    }
    let schema = match StructuralSchema::read(value) {
        Ok(schema) => schema,
        Err(error) => {
            causes.push(Cause::invalid(path, &"".into(), &error.to_string()));
            return;
        }
    };
    let mut found = Vec::new();
    if has_status {
        root_with_status(&schema, value, path, &mut found);
    }
    if schema.nullable {
        let field = format!("{path}.nullable");
        found.push(Cause::forbidden(field, "nullable cannot be true at the root"));
    }
    let mut structural = Vec::new();
    node(&schema, Level::Root, path, &mut structural);
    complete(&schema, &schema, path, path, &mut structural);
    structural.sort_compactly_by(|a, b| (&a.field, &a.message).cmp(&(&b.field, &b.message)));
    if structural.is_empty() {
        defaults(&schema, path, &mut structural);
    }
    found.extend(structural);
    let is_structural = found.is_empty();
    let mut walk = Walk { causes: &mut found };
    walk.node(&schema, path, Place { is_root: true, ..Place::default() });
    if is_structural && found.is_empty() {
        rules::validate_rule_expressions(&schema, path, &mut found);
    }
    causes.extend(found);
}

/// Keywords that are not lost when the schema of the status is taken out of the root.
const ROOT_KEYWORDS: [&str; 22] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

fn root_with_status(schema: &StructuralSchema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if !schema.kind.is_empty() && schema.kind != "object" {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        causes.push(Cause::invalid(format!("{path}.type"), &schema.kind.as_str().into(), detail));
    }
    let is_allowed = |name: &String| ROOT_KEYWORDS.contains(&name.as_str());
    if !value.as_object().into_iter().flatten().all(|(name, _)| is_allowed(name)) {
        let detail = "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations] fields are allowed at the root of the schema if the status subresource is enabled";
        causes.push(Cause::invalid(path, value, detail));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// What holds at each node of a structural schema.
fn node(schema: &StructuralSchema, level: Level, path: &str, causes: &mut Vec<Cause>) {
    if schema.kind == "array" && !schema.has_items() {
        causes.push(Cause::required(format!("{path}.items"), "must be specified"));
    }
    if let Some(items) = schema.items() {
        node(items, Level::Item, &format!("{path}.items"), causes);
    }
    for (name, inner) in &schema.properties {
        node(inner, Level::Field, &format!("{path}.properties[{name}]"), causes);
    }
    if schema.additional_properties.is_some() && level == Level::Root {
        let field = format!("{path}.additionalProperties");
        causes.push(Cause::forbidden(field, "must not be used at the root"));
    }
    if let Some(inner) = schema.additional() {
        node(inner, Level::Field, &format!("{path}.additionalProperties"), causes);
    }
    if schema.is_int_or_string {
        let mut excluded = |name: &str, is_set: bool| {
            if is_set {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                causes.push(Cause::invalid(format!("{path}.{name}"), &true.into(), detail));
            }
        };
        excluded("x-kubernetes-preserve-unknown-fields", schema.preserves_unknown_fields());
        excluded("x-kubernetes-embedded-resource", schema.is_embedded);
    }
    junctors(schema, is_int_or_string(&schema.any_of), path, causes);
    node_type(schema, level, path, causes);
    meta_fields(schema, level, path, causes);
}

fn node_type(schema: &StructuralSchema, level: Level, path: &str, causes: &mut Vec<Cause>) {
    let field = format!("{path}.type");
    let kind: Value = schema.kind.as_str().into();
    if schema.is_embedded && schema.kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        causes.push(match schema.kind.is_empty() {
            true => Cause::required(&field, detail),
            false => Cause::invalid(&field, &kind, detail),
        });
    } else if schema.kind.is_empty()
        && !schema.is_int_or_string
        && !schema.preserves_unknown_fields()
    {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        causes.push(Cause::required(&field, detail));
    }
    if schema.is_embedded && schema.additional_properties.is_some() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        causes.push(Cause::forbidden(format!("{path}.additionalProperties"), detail));
    }
    if level == Level::Root && !schema.kind.is_empty() && schema.kind != "object" {
        causes.push(Cause::invalid(field, &kind, "must be object at the root"));
    }
}

fn meta_fields(schema: &StructuralSchema, level: Level, path: &str, causes: &mut Vec<Cause>) {
    let is_object = level == Level::Root || schema.is_embedded;
    for name in ["kind", "apiVersion"] {
        if let Some(inner) = schema.properties.get(name).filter(|_| is_object)
            && inner.kind != "string"
        {
            let field = format!("{path}.properties[{name}].type");
            causes.push(Cause::invalid(field, &inner.kind.as_str().into(), "must be string"));
        }
    }
    if let Some(metadata) = schema.properties.get("metadata") {
        let field = format!("{path}.properties[metadata]");
        if is_object && metadata.kind != "object" {
            let kind = metadata.kind.as_str().into();
            causes.push(Cause::invalid(format!("{field}.type"), &kind, "must be object"));
        }
        let is_plain = metadata.properties.keys().all(|it| it == "name" || it == "generateName")
            && metadata.additional_properties.is_none()
            && metadata.required.is_empty()
            && metadata.rules.is_empty()
            && metadata.description.is_empty()
            && metadata.all_of.is_empty()
            && !metadata.nullable
            && !metadata.preserves_unknown_fields();
        if level == Level::Root && !is_plain {
            let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            causes.push(Cause::forbidden(field, detail));
        }
    }
    if schema.is_embedded && !schema.preserves_unknown_fields() && schema.properties.is_empty() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        causes.push(Cause::required(format!("{path}.properties"), detail));
    }
}

/// The one form of alternatives with types that is allowed.
fn is_int_or_string(any_of: &[StructuralSchema]) -> bool {
    let kinds: Vec<&str> = any_of.iter().map(|it| it.kind.as_str()).collect();
    kinds == ["integer", "string"]
}

fn junctors(schema: &StructuralSchema, skip_any_of: bool, path: &str, causes: &mut Vec<Cause>) {
    if !skip_any_of {
        nested_list(&schema.any_of, &format!("{path}.anyOf"), causes);
    }
    for (at, inner) in schema.all_of.iter().enumerate() {
        let skip = at == 0 && is_int_or_string(&inner.any_of);
        nested(inner, skip, &format!("{path}.allOf[{at}]"), causes);
    }
    nested_list(&schema.one_of, &format!("{path}.oneOf"), causes);
    if let Some(not) = &schema.not {
        nested(not, false, &format!("{path}.not"), causes);
    }
    if !schema.pattern.text.is_empty()
        && let Err(error) = regex::Regex::new(&schema.pattern.text)
    {
        let error = error.to_string();
        let error = error.lines().next_back().unwrap_or_default().trim_start_matches("error: ");
        let detail =
            format!("must be a valid regular expression, but isn't: error parsing regexp: {error}");
        let pattern = schema.pattern.text.as_str().into();
        causes.push(Cause::invalid(format!("{path}.pattern"), &pattern, &detail));
    }
}

fn nested_list(list: &[StructuralSchema], path: &str, causes: &mut Vec<Cause>) {
    for (at, inner) in list.iter().enumerate() {
        nested(inner, false, &format!("{path}[{at}]"), causes);
    }
}

/// A schema below a junctor may only narrow what is allowed.
fn nested(schema: &StructuralSchema, skip_any_of: bool, path: &str, causes: &mut Vec<Cause>) {
    junctors(schema, skip_any_of, path, causes);
    if let Some(items) = schema.items() {
        nested(items, false, &format!("{path}.items"), causes);
    }
    for (name, inner) in &schema.properties {
        nested(inner, false, &format!("{path}.properties[{name}]"), causes);
    }
    let mut forbidden = |name: &str, is_set: bool, must: &str| {
        if is_set {
            let detail = format!("must be {must} to be structural");
            causes.push(Cause::forbidden(format!("{path}.{name}"), &detail));
        }
    };
    forbidden("type", !schema.kind.is_empty(), "empty");
    let has_additional = match &schema.additional_properties {
        None | Some(Additional::Allowed(false)) => false,
        Some(_) => true,
    };
    forbidden("additionalProperties", has_additional, "undefined");
    forbidden("default", schema.default.is_some(), "undefined");
    forbidden("title", !schema.title.is_empty(), "empty");
    forbidden("description", !schema.description.is_empty(), "empty");
    forbidden("nullable", schema.nullable, "false");
    forbidden("x-kubernetes-preserve-unknown-fields", schema.preserves_unknown_fields(), "false");
    forbidden("x-kubernetes-embedded-resource", schema.is_embedded, "false");
    forbidden("x-kubernetes-int-or-string", schema.is_int_or_string, "false");
    forbidden("x-kubernetes-list-map-keys", !schema.list_keys.is_empty(), "empty");
    forbidden("x-kubernetes-list-type", schema.list_type.is_some(), "undefined");
    forbidden("x-kubernetes-map-type", schema.map_type.is_some(), "undefined");
    forbidden("x-kubernetes-validations", !schema.rules.is_empty(), "empty");
    if schema.properties.contains_key("metadata") {
        let field = format!("{path}.properties[metadata]");
        causes.push(Cause::forbidden(field, "must not be specified in a nested context"));
    }
}

/// What a junctor speaks about has to be there outside of it, too.
fn complete(
    checked: &StructuralSchema,
    spine: &StructuralSchema,
    at: &str,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    let lists =
        [("allOf", &checked.all_of), ("anyOf", &checked.any_of), ("oneOf", &checked.one_of)];
    for (name, list) in lists {
        for (index, inner) in list.iter().enumerate() {
            complete_nested(inner, Some(spine), at, &format!("{path}.{name}[{index}]"), causes);
        }
    }
    if let Some(not) = &checked.not {
        complete_nested(not, Some(spine), at, &format!("{path}.not"), causes);
    }
}

fn complete_nested(
    checked: &StructuralSchema,
    spine: Option<&StructuralSchema>,
    at: &str,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    let Some(spine) = spine else {
        causes.push(Cause::required(at, &format!("because it is defined in {path}")));
        return;
    };
    complete(checked, spine, at, path, causes);
    if let Some(items) = checked.items() {
        let (at, path) = (format!("{at}.items"), format!("{path}.items"));
        complete_nested(items, spine.items(), &at, &path, causes);
    }
    for (name, inner) in &checked.properties {
        let (at, path) = (format!("{at}.properties[{name}]"), format!("{path}.properties[{name}]"));
        complete_nested(inner, spine.properties.get(name), &at, &path, causes);
    }
}

/// A default has to be what its own schema allows.
fn defaults(schema: &StructuralSchema, path: &str, causes: &mut Vec<Cause>) {
    if let Some(default) = &schema.default {
        let field = format!("{path}.default");
        let mut pruned = default.clone();
        decode::prune_part(&mut pruned, schema);
        if pruned != *default {
            causes.push(Cause::invalid(&field, default, "must not have unknown fields"));
        }
        causes.extend(validate_object::validate(schema, default, None, &field));
        validate_object::validate_embedded_objects(schema, default, &field, causes);
        validate_object::validate_list_uniqueness(schema, default, &field, causes);
    }
    if let Some(items) = schema.items() {
        defaults(items, &format!("{path}.items"), causes);
    }
    for (name, inner) in &schema.properties {
        defaults(inner, &format!("{path}.properties[{name}]"), causes);
    }
}

/// What a node is allowed because of where it stands.
#[derive(Clone, Copy, Default)]
struct Place {
    is_root: bool,
    in_metadata: bool,
    /// Why there may be no default.
    no_default: Option<&'static str>,
}

struct Walk<'a> {
    causes: &'a mut Vec<Cause>,
}

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

impl Walk<'_> {
    fn forbid(&mut self, is_set: bool, field: String, detail: &str) {
        if is_set {
            self.causes.push(Cause::forbidden(field, detail));
        }
    }

    fn node(&mut self, schema: &StructuralSchema, path: &str, place: Place) {
        self.keywords(schema, path, place);
        let is_root = place.is_root;
        let inner = Place { is_root: false, ..place };
        let children = Place {
            no_default: match place.in_metadata {
                true => Some(" inside additionalProperties applying to object metadata"),
                false => place.no_default,
            },
            ..inner
        };
        if schema.additional_properties.is_some() && !schema.properties.is_empty() {
            let is_plain_true =
                matches!(schema.additional_properties, Some(Additional::Allowed(true)));
            let detail = "additionalProperties and properties are mutual exclusive";
            self.forbid(!is_plain_true, format!("{path}.additionalProperties"), detail);
        }
        if let Some(additional) = schema.additional() {
            self.node(additional, &format!("{path}.additionalProperties"), children);
        }
        for (name, property) in &schema.properties {
            let mut place = inner;
            if (schema.is_embedded || is_root) && META_FIELDS.contains(&name.as_str()) {
                place.in_metadata = true;
                if is_root {
                    place.no_default = Some(match name.as_str() {
                        "metadata" => " in top-level metadata",
                        "kind" => " in top-level kind",
                        _ => " in top-level apiVersion",
                    });
                }
            }
            self.node(property, &format!("{path}.properties[{name}]"), place);
        }
        for (name, list) in
            [("allOf", &schema.all_of), ("oneOf", &schema.one_of), ("anyOf", &schema.any_of)]
        {
            for (at, it) in list.iter().enumerate() {
                self.node(it, &format!("{path}.{name}[{at}]"), inner);
            }
        }
        if let Some(not) = &schema.not {
            self.node(not, &format!("{path}.not"), inner);
        }
        if let Some(items) = schema.items() {
            self.node(items, &format!("{path}.items"), inner);
        }
        self.lists_and_maps(schema, path);
        rules::validate_rule_texts(schema, path, self.causes);
    }

    fn keywords(&mut self, schema: &StructuralSchema, path: &str, place: Place) {
        if !schema.kind.is_empty() && !TYPES.contains(&schema.kind.as_str()) {
            let field = format!("{path}.type");
            let kind = schema.kind.as_str().into();
            self.causes.push(Cause::not_supported(field, &kind, &TYPES));
        }
        if let (Some(_), Some(why)) = (&schema.default, place.no_default) {
            let detail = format!("must not be set{why}");
            self.forbid(true, format!("{path}.default"), &detail);
        }
        self.forbid(!schema.id.is_empty(), format!("{path}.id"), "id is not supported");
        let unsupported = [
            ("additionalItems", schema.additional_items.is_some()),
            ("patternProperties", schema.pattern_properties.is_some()),
            ("definitions", schema.definitions.is_some()),
            ("dependencies", schema.dependencies.is_some()),
            ("$ref", schema.reference.is_some()),
        ];
        for (name, is_set) in unsupported {
            self.forbid(is_set, format!("{path}.{name}"), &format!("{name} is not supported"));
        }
        let detail = "items must be a schema object and not an array";
        self.forbid(schema.has_tuple_items(), format!("{path}.items"), detail);
        let detail = "must not be used inside of resource meta";
        let is_misplaced = place.in_metadata && schema.is_embedded;
        self.forbid(is_misplaced, format!("{path}.x-kubernetes-embedded-resource"), detail);
        let detail =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        self.forbid(schema.unique_items, format!("{path}.uniqueItems"), detail);
        if schema.preserves_unknown == Some(false) {
            let field = format!("{path}.x-kubernetes-preserve-unknown-fields");
            self.causes.push(Cause::invalid(field, &false.into(), "must be true or undefined"));
        }
    }

    /// A keyword that needs a certain type.
    fn needs_type(
        &mut self,
        schema: &StructuralSchema,
        wanted: &str,
        keyword: &str,
        path: &str,
    ) -> bool {
        if schema.kind == wanted {
            return true;
        }
        let (field, detail) =
            (format!("{path}.type"), format!("must be {wanted} if {keyword} is specified"));
        self.causes.push(match schema.kind.is_empty() {
            true => Cause::required(field, &detail),
            false => Cause::invalid(field, &schema.kind.as_str().into(), &detail),
        });
        false
    }

    fn lists_and_maps(&mut self, schema: &StructuralSchema, path: &str) {
        const LIST: &str = "x-kubernetes-list-type";
        const MAP: &str = "x-kubernetes-map-type";
        if let Some(kind) = &schema.map_type {
            self.needs_type(schema, "object", MAP, path);
            if !matches!(kind.as_str(), "atomic" | "granular") {
                let field = format!("{path}.{MAP}");
                let kinds = ["atomic", "granular"];
                self.causes.push(Cause::not_supported(field, &kind.as_str().into(), &kinds));
            }
        }
        if let Some(kind) = &schema.list_type {
            if self.needs_type(schema, "array", LIST, path) && kind == "set" {
                self.atomic_entries(schema, path);
            }
            if !matches!(kind.as_str(), "atomic" | "set" | "map") {
                let field = format!("{path}.{LIST}");
                let kinds = ["atomic", "set", "map"];
                self.causes.push(Cause::not_supported(field, &kind.as_str().into(), &kinds));
            }
        }
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match schema.list_type.as_deref() {
            _ if schema.list_keys.is_empty() => {}
            None => self.causes.push(Cause::required(format!("{path}.{LIST}"), detail)),
            Some("map") => {}
            Some(other) => {
                let field = format!("{path}.{LIST}");
                self.causes.push(Cause::invalid(field, &other.into(), detail));
            }
        }
        if schema.is_map_list() {
            self.map_list(schema, path);
        }
    }

    fn atomic_entries(&mut self, schema: &StructuralSchema, path: &str) {
        let Some(items) = schema.items() else { return };
        let (keyword, given) = match items.kind.as_str() {
            "array" if items.list_type.as_deref().is_some_and(|it| it != "atomic") => {
                ("x-kubernetes-list-type", &items.list_type)
            }
            "object" if items.map_type.as_deref() != Some("atomic") => {
                ("x-kubernetes-map-type", &items.list_type)
            }
            _ => return,
        };
        let field = format!("{path}.items.{keyword}");
        let given = given.as_deref().unwrap_or("null").into();
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        self.causes.push(Cause::invalid(field, &given, detail));
    }

    fn map_list(&mut self, schema: &StructuralSchema, path: &str) {
        let keys_field = format!("{path}.x-kubernetes-list-map-keys");
        if schema.list_keys.is_empty() {
            let detail = "must not be empty if x-kubernetes-list-type is map";
            self.causes.push(Cause::required(&keys_field, detail));
        }
        let Some(items) = schema.items() else {
            let detail = "must have a schema if x-kubernetes-list-type is map";
            self.causes.push(Cause::required(format!("{path}.items"), detail));
            return;
        };
        if items.kind != "object" {
            let detail = "must be object if parent array's x-kubernetes-list-type is map";
            let kind = items.kind.as_str().into();
            self.causes.push(Cause::invalid(format!("{path}.items.type"), &kind, detail));
            return;
        }
        if items.nullable {
            let detail = "cannot be nullable when x-kubernetes-list-type is map";
            self.causes.push(Cause::forbidden(format!("{path}.items.nullable"), detail));
        }
        let all = Value::from(schema.list_keys.clone());
        for (at, key) in schema.list_keys.iter().enumerate() {
            let Some(property) = items.properties.get(key) else {
                let detail = "entries must all be names of item properties";
                self.causes.push(Cause::invalid(&keys_field, &all, detail));
                continue;
            };
            let field = format!("{path}.items.properties[{key}]");
            if matches!(property.kind.as_str(), "array" | "object") {
                let detail =
                    "must be a scalar type if parent array's x-kubernetes-list-type is map";
                let kind = items.kind.as_str().into();
                self.causes.push(Cause::invalid(format!("{field}.type"), &kind, detail));
            }
            if schema.list_keys[..at].contains(key) {
                let detail = "must not contain duplicate entries";
                self.causes.push(Cause::invalid(&keys_field, &all, detail));
            }
            if !items.required.contains(key) && property.default.is_none() {
                let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                self.causes.push(Cause::required(format!("{field}.default"), detail));
            }
            if property.nullable {
                let detail =
                    "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                self.causes.push(Cause::forbidden(format!("{field}.nullable"), detail));
            }
        }
    }
}
