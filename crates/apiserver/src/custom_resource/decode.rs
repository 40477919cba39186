//! Decodes custom objects: typed metadata, pruning of unknown fields and nulls, defaulting.

use serde_json::Value;

use super::structural::{META_FIELDS, StructuralSchema};
use crate::object::members_mut;
use crate::schema::{self, DecodeError, Decoded, schema};

/// Decodes an object that a client sent. `apiVersion` and `kind` are not changed.
///
/// # Errors
///
/// When its metadata, or that of an embedded object, is invalid.
pub fn decode(schema: &StructuralSchema, mut value: Value) -> Result<Decoded, DecodeError> {
    if !value.is_object() {
        let what = "json: cannot unmarshal value into Go value of type map[string]interface {}";
        return Err(DecodeError(what.to_owned()));
    }
    let mut unknown = Vec::new();
    if let Some(metadata) = value.get("metadata").cloned() {
        value["metadata"] = typed_metadata(metadata, "metadata", &mut unknown)?;
    }
    let mut pruned = prune(&mut value, schema);
    prune_nulls(&mut value, Some(schema));
    coerce(&mut value, schema, false, &mut String::new(), &mut pruned)?;
    unknown.extend(pruned.iter().map(|path| format!("unknown field \"{path}\"")));
    fill_defaults(&mut value, schema);
    Ok(Decoded { value, unknown })
}

/// Applies the current schema to a stored object.
pub fn apply_current_schema(value: &mut Value, schema: &StructuralSchema) {
    prune(value, schema);
    prune_nulls(value, Some(schema));
    fill_defaults(value, schema);
}

fn typed_metadata(
    value: Value,
    path: &str,
    unknown: &mut Vec<String>,
) -> Result<Value, DecodeError> {
    let types = schema();
    let Some(id) = types.find("meta/v1.ObjectMeta") else { return Ok(value) };
    let reading = schema::decode(types, id, value)?;
    let prefixed = |text: &String| text.replacen('"', &format!("\"{path}."), 1);
    unknown.extend(reading.unknown.iter().map(prefixed));
    Ok(reading.value)
}

/// Drops the fields of an object that its schema does not know, and returns their paths.
pub fn prune(value: &mut Value, schema: &StructuralSchema) -> Vec<String> {
    let mut pruner = Pruner::default();
    pruner.value(value, Some(schema), true, false);
    pruner.unknown.sort();
    pruner.unknown
}

/// Drops the unknown fields of a part of an object, such as a default.
pub fn prune_part(value: &mut Value, schema: &StructuralSchema) {
    Pruner::default().value(value, Some(schema), schema.is_embedded, false);
}

#[derive(Default)]
struct Pruner {
    path: String,
    unknown: Vec<String>,
}

impl Pruner {
    /// `stays` is true in lists whose own schema keeps what is unknown.
    fn value(
        &mut self,
        value: &mut Value,
        schema: Option<&StructuralSchema>,
        is_object: bool,
        stays: bool,
    ) {
        let stays = stays || schema.is_some_and(StructuralSchema::preserves_unknown_fields);
        match value {
            Value::Object(members) => members.retain(|name, value| {
                let is_meta = META_FIELDS.contains(&name.as_str());
                if is_object && is_meta {
                    return true;
                }
                let is_preserved = self.member(name, value, schema) || stays;
                let is_reported = !self.path.is_empty() || !is_meta;
                if !is_preserved && is_reported {
                    let dot = if self.path.is_empty() { "" } else { "." };
                    self.unknown.push(format!("{}{dot}{name}", self.path));
                }
                is_preserved
            }),
            Value::Array(entries) => {
                let items = schema.and_then(StructuralSchema::items);
                if stays && items.is_none() {
                    return;
                }
                let is_embedded = items.is_some_and(|it| it.is_embedded);
                for (at, entry) in entries.iter_mut().enumerate() {
                    let mark = self.path.len();
                    self.path.push_str(&format!("[{at}]"));
                    self.value(entry, items, is_embedded, stays);
                    self.path.truncate(mark);
                }
            }
            _ => {}
        }
    }

    /// Prunes within a member; false if the schema does not know it.
    fn member(&mut self, name: &str, value: &mut Value, schema: Option<&StructuralSchema>) -> bool {
        let Some(schema) = schema else { return false };
        let own = schema.properties.get(name);
        if own.is_none() && schema.additional_properties.is_none() {
            return false;
        }
        let inner = own.or_else(|| schema.additional());
        let mark = self.path.len();
        if mark > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        self.value(value, inner, inner.is_some_and(|it| it.is_embedded), false);
        self.path.truncate(mark);
        true
    }
}

/// Drops nulls that are neither allowed nor replaced by a default.
fn prune_nulls(value: &mut Value, schema: Option<&StructuralSchema>) {
    match value {
        Value::Object(members) => members.retain(|name, value| {
            let inner = schema.and_then(|it| it.field(name));
            let is_stray =
                value.is_null() && inner.is_some_and(|it| !it.nullable && it.default.is_none());
            if !is_stray {
                prune_nulls(value, inner);
            }
            !is_stray
        }),
        Value::Array(entries) => {
            let items = schema.and_then(StructuralSchema::items);
            entries.iter_mut().for_each(|entry| prune_nulls(entry, items));
        }
        _ => {}
    }
}

/// Fills in the defaults of a schema.
pub fn fill_defaults(value: &mut Value, schema: &StructuralSchema) {
    match value {
        Value::Object(members) => {
            for (name, inner) in &schema.properties {
                let Some(default) = &inner.default else { continue };
                let is_unset = match members.get(name) {
                    None => true,
                    Some(found) => found.is_null() && !inner.nullable,
                };
                if is_unset {
                    members.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in members.iter_mut() {
                let own = schema.properties.get(name);
                if let Some(inner) = own.or_else(|| schema.additional()) {
                    if own.is_none() {
                        replace_null(value, inner);
                    }
                    fill_defaults(value, inner);
                }
            }
        }
        Value::Array(entries) => {
            let Some(items) = schema.items() else { return };
            for entry in entries {
                replace_null(entry, items);
                fill_defaults(entry, items);
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, schema: &StructuralSchema) {
    if let (true, false, Some(default)) = (value.is_null(), schema.nullable, &schema.default) {
        *value = default.clone();
    }
}

/// Types the metadata of embedded objects.
fn coerce(
    value: &mut Value,
    schema: &StructuralSchema,
    is_object: bool,
    path: &mut String,
    unknown: &mut Vec<String>,
) -> Result<(), DecodeError> {
    match value {
        Value::Object(_) => {
            if is_object {
                coerce_object(value, path, unknown)?;
            }
            for (name, value) in members_mut(value) {
                let Some(inner) = schema.field(name) else { continue };
                let mark = path.len();
                if mark > 0 {
                    path.push('.');
                }
                path.push_str(name);
                coerce(value, inner, inner.is_embedded, path, unknown)?;
                path.truncate(mark);
            }
        }
        Value::Array(entries) => {
            let Some(items) = schema.items() else { return Ok(()) };
            for (at, entry) in entries.iter_mut().enumerate() {
                let mark = path.len();
                path.push_str(&format!("[{at}]"));
                coerce(entry, items, items.is_embedded, path, unknown)?;
                path.truncate(mark);
            }
        }
        _ => {}
    }
    Ok(())
}

fn coerce_object(
    value: &mut Value,
    path: &str,
    unknown: &mut Vec<String>,
) -> Result<(), DecodeError> {
    for name in ["apiVersion", "kind"] {
        if value.get(name).is_some_and(|it| !it.is_string()) {
            let found = &value[name];
            return Err(DecodeError(format!(
                "{path}.{name}: Invalid value: {found}: must be a string"
            )));
        }
    }
    let Some(metadata) = value.get("metadata").cloned() else { return Ok(()) };
    let mut messages = Vec::new();
    let typed = typed_metadata(metadata.clone(), &format!("{path}.metadata"), &mut messages);
    let typed = typed.map_err(|problem| {
        DecodeError(format!("{path}.metadata: Invalid value: {metadata}: {}", problem.0))
    })?;
    let bare =
        |text: &String| text.trim_start_matches("unknown field ").trim_matches('"').to_owned();
    unknown.extend(messages.iter().map(bare));
    value["metadata"] = typed;
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: Value, value: Value, want: &Expect) {
        let schema = StructuralSchema::read(&schema).expect("a schema");
        let got = match decode(&schema, value) {
            Ok(reading) => format!("{} {}", reading.value, reading.unknown.join(", ")),
            Err(problem) => problem.to_string(),
        };
        want.assert_eq(got.trim_end());
    }

    fn with_spec(spec: Value) -> Value {
        json!({"type": "object", "properties": {"spec": spec}})
    }

    #[test]
    fn unknown_fields_are_pruned() {
        let spec = json!({"type": "object", "properties": {
            "n": {"type": "integer"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"b": {"type": "string"}}}}}});
        check(
            with_spec(spec),
            json!({"kind": "K", "x": 1, "metadata": {"name": "m", "y": 1}, "spec": {"n": 1, "m": 2,
                "list": [{"a": "1", "c": 2}], "map": {"k": {"b": "1", "d": 2}}}}),
            &expect![[
                r#"{"kind":"K","metadata":{"name":"m"},"spec":{"list":[{"a":"1"}],"map":{"k":{"b":"1"}},"n":1}} unknown field "metadata.y", unknown field "spec.list[0].c", unknown field "spec.m", unknown field "spec.map.k.d", unknown field "x""#
            ]],
        );
    }

    #[test]
    fn unknown_fields_are_preserved_where_a_schema_says_so() {
        let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"known": {"type": "object", "properties": {"a": {"type": "string"}}}}});
        check(
            with_spec(spec),
            json!({"spec": {"other": {"deep": [{"x": 1}]}, "known": {"a": "1", "b": 2}}}),
            &expect![[
                r#"{"spec":{"known":{"a":"1"},"other":{"deep":[{"x":1}]}}} unknown field "spec.known.b""#
            ]],
        );
    }

    #[test]
    fn embedded_objects_keep_their_metadata_typed() {
        let spec = json!({"type": "object", "properties": {"template": {"type": "object",
            "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}});
        check(
            with_spec(spec.clone()),
            json!({"spec": {"template": {"apiVersion": "v1", "kind": "Pod", "spec": {"a": 1},
                "metadata": {"name": "x", "wrong": 1}}}}),
            &expect![[
                r#"{"spec":{"template":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"a":1}}}} unknown field "spec.template.metadata.wrong""#
            ]],
        );
        check(
            with_spec(spec),
            json!({"spec": {"template": {"metadata": {"labels": "x"}}}}),
            &expect![[
                r#"spec.template.metadata: Invalid value: {"labels":"x"}: json: cannot unmarshal string into Go struct field ObjectMeta.labels of type map[string]string"#
            ]],
        );
    }

    #[test]
    fn defaults_and_nulls() {
        let spec = json!({"type": "object", "default": {}, "properties": {
            "a": {"type": "integer", "default": 1},
            "b": {"type": "string", "nullable": true, "default": "x"},
            "c": {"type": "string"},
            "l": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "boolean", "default": true}}}}}});
        check(with_spec(spec.clone()), json!({}), &expect![[r#"{"spec":{"a":1,"b":"x"}}"#]]);
        check(
            with_spec(spec),
            json!({"spec": {"a": null, "b": null, "c": null, "l": [{}, {"d": false}]}}),
            &expect![[r#"{"spec":{"a":1,"b":null,"l":[{"d":true},{"d":false}]}}"#]],
        );
    }
}
