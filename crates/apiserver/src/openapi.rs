//! OpenAPI v3, made from the table of types: schemas with names, types, merge keys, required fields, defaults and enum values, with our
//! own descriptions of some; and the paths as far as kubectl reads them (which operations know `fieldValidation` and `dryRun`).

mod descriptions;
mod document_cache;
mod protobuf;
mod v2;

use bytes::Bytes;
use http::{HeaderMap, Request, header};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::custom_resource::openapi as custom_openapi;
use crate::schema::{
    ApplyStrategy, Field, Kind, Kinds, PatchStrategy, Schema, Shape, TypeId, schema,
};
use crate::server::ApiResponse;
use crate::status::ApiError;

/// The response to a path below `/openapi`; none for other paths.
///
/// # Errors
///
/// When version 2 is requested in an unsupported media type.
pub fn openapi_response(
    kinds: &Kinds,
    request: &Request<Bytes>,
    now: Timestamp,
) -> Result<Option<ApiResponse>, ApiError> {
    let path = request.uri().path();
    match path {
        "/openapi/v3" => return Ok(Some(ApiResponse::json(&index(kinds)))),
        "/openapi/v2" => return version_2(kinds, request.headers()).map(Some),
        _ => {}
    }
    let Some(rest) = path.strip_prefix("/openapi/v3/") else { return Ok(None) };
    let (group, version) = match rest.strip_prefix("api/") {
        Some(version) => ("", version),
        None => match rest.strip_prefix("apis/").and_then(|it| it.split_once('/')) {
            Some(named) => named,
            None => return Ok(None),
        },
    };
    let own = kinds_of(kinds, group, version);
    Ok((!own.is_empty()).then(|| document_cache::document_response(&own, request, now)))
}

fn kinds_of<'a>(kinds: &'a Kinds, group: &str, version: &str) -> Vec<&'a Kind> {
    kinds.iter().filter(|it| it.group == group && it.version == version).collect()
}

/// All of it at once, in the first form of `Accept` that there is.
fn version_2(kinds: &Kinds, headers: &HeaderMap) -> Result<ApiResponse, ApiError> {
    let accept = headers.get(header::ACCEPT).and_then(|it| it.to_str().ok()).unwrap_or("*/*");
    let is_json = |clause: &str| match clause.split(';').next().unwrap_or_default().trim() {
        "application/json" | "application/*" | "*/*" => Some(true),
        protobuf::OPENAPI_V2_REQUEST_MEDIA_TYPE | protobuf::OPENAPI_V2_MEDIA_TYPE => Some(false),
        _ => None,
    };
    let is_json = accept.split(',').find_map(is_json).ok_or_else(|| {
        ApiError::not_acceptable(&format!(
            "application/json, {}",
            protobuf::OPENAPI_V2_REQUEST_MEDIA_TYPE
        ))
    })?;
    let mut parts = Vec::new();
    for (group, versions) in kinds.groups() {
        for version in versions {
            parts.push(document(&kinds_of(kinds, group, version)));
        }
    }
    let document = v2::convert_to_openapi_v2(&parts);
    Ok(if is_json {
        ApiResponse::json(&document)
    } else {
        ApiResponse::from_bytes(
            200,
            protobuf::OPENAPI_V2_MEDIA_TYPE,
            protobuf::encode_openapi_document(&document),
        )
    })
}

fn index(kinds: &Kinds) -> Value {
    let mut paths = Map::new();
    for (group, versions) in kinds.groups() {
        for version in versions {
            let path = match group {
                "" => format!("api/{version}"),
                _ => format!("apis/{group}/{version}"),
            };
            let hash = document_cache::document_hash(&kinds_of(kinds, group, version));
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

fn document(kinds: &[&Kind]) -> Value {
    let mut schemas = Schemas { schema: schema(), kinds, out: Map::new() };
    let mut paths = Map::new();
    for kind in kinds {
        add_paths(kind, &mut paths);
        if let Some(custom) = kind.custom() {
            for name in ["meta/v1.ObjectMeta", "meta/v1.ListMeta"] {
                schema().find(name).into_iter().for_each(|id| schemas.add(id));
            }
            custom_openapi::add_custom_resource_schemas(kind, &custom, &mut schemas.out);
            continue;
        }
        schemas.add(kind.type_id);
        let list = schema().find_kind(kind.group, kind.version, &format!("{}List", kind.kind));
        if let (Some(list), true) = (list, kind.table.is_some()) {
            schemas.add(list);
        }
    }
    if let Some(id) = schema().find("meta/v1.DeleteOptions") {
        schemas.add(id);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.3"},
        "paths": paths,
        "components": {"schemas": schemas.out},
    })
}

fn add_paths(kind: &Kind, paths: &mut Map<String, Value>) {
    let root = match kind.group {
        "" => format!("/api/{}", kind.version),
        group => format!("/apis/{group}/{}", kind.version),
    };
    let namespace = if kind.is_namespaced { "/namespaces/{namespace}" } else { "" };
    let gvk = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let of_body = match kind.custom {
        Some(_) => custom_openapi::schema_reference(&custom_openapi::openapi_schema_name(kind)),
        None => json!({"$ref": reference(schema().get(kind.type_id).name)}),
    };
    let body = json!({"content": {"application/json": {"schema": of_body}}});
    let operation = |action: &str, parameters: &[&str]| {
        let parameter =
            |name: &&str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
        let parameters: Vec<Value> = parameters.iter().map(parameter).collect();
        json!({"x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk,
            "parameters": parameters, "responses": {"200": {"description": "OK"}}})
    };
    const WRITES: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
    let with_body = |mut operation: Value| {
        operation["requestBody"] = body.clone();
        operation
    };
    let mut collection = json!({"post": with_body(operation("post", WRITES))});
    if kind.table.is_some() {
        collection["get"] =
            operation("list", &["labelSelector", "fieldSelector", "limit", "continue", "watch"]);
        let one = json!({
            "get": operation("get", &[]),
            "put": with_body(operation("put", WRITES)),
            "patch": operation("patch", WRITES),
            "delete": operation("delete", &["dryRun", "gracePeriodSeconds", "propagationPolicy"]),
        });
        paths.insert(format!("{root}{namespace}/{}/{{name}}", kind.resource), one);
    }
    paths.insert(format!("{root}{namespace}/{}", kind.resource), collection);
}

/// `core/v1.Pod` as OpenAPI names it.
fn openapi_name(name: &str) -> String {
    let root = match name.split('/').next().unwrap_or_default() {
        "meta" => "io.k8s.apimachinery.pkg.apis.",
        "apiextensions" => "io.k8s.apiextensions-apiserver.pkg.apis.",
        _ => "io.k8s.api.",
    };
    format!("{root}{}", name.replace('/', "."))
}

fn reference(name: &str) -> String {
    format!("#/components/schemas/{}", openapi_name(name))
}

struct Schemas<'a> {
    schema: &'a Schema,
    kinds: &'a [&'a Kind],
    out: Map<String, Value>,
}

impl Schemas<'_> {
    /// Adds a type and everything it holds.
    fn add(&mut self, id: TypeId) {
        let it = self.schema.get(id);
        let name = openapi_name(it.name);
        if self.out.contains_key(&name) {
            return;
        }
        // The entry stands for itself while its fields are visited: types may hold each other.
        self.out.insert(name.clone(), Value::Null);
        let mut properties = Map::new();
        let mut required = Vec::new();
        let kind = it.name.rsplit('.').next().unwrap_or_default();
        let own = self.kinds.iter().find(|kind| kind.type_id == id);
        let is_list = kind.ends_with("List") && self.schema.field(id, "items").is_some();
        if it.is_kind {
            properties.extend(type_meta_properties());
        }
        self.add_fields(id, &mut properties, &mut required);
        let mut entry = json!({"type": "object", "properties": properties});
        if let Some(text) = descriptions::type_description(it.name) {
            entry["description"] = text.into();
        }
        if !required.is_empty() {
            entry["required"] = json!(required);
        }
        if it.is_atomic {
            entry["x-kubernetes-map-type"] = "atomic".into();
        }
        if let (Some(first), true) = (self.kinds.first(), own.is_some() || is_list) {
            entry["x-kubernetes-group-version-kind"] =
                json!([{"group": first.group, "version": first.version, "kind": kind}]);
        }
        self.out.insert(name, entry);
    }

    fn add_fields(
        &mut self,
        id: TypeId,
        properties: &mut Map<String, Value>,
        required: &mut Vec<&'static str>,
    ) {
        let schema = self.schema;
        let it = schema.get(id);
        for field in &it.fields {
            if let (Shape::Object(inner), true) = (&field.shape, field.is_inline) {
                self.add_fields(*inner, properties, required);
                continue;
            }
            if field.is_required {
                required.push(field.name);
            }
            let mut property = self.property(field);
            if let Some(text) = descriptions::field_description(it.name, field.name) {
                property["description"] = text.into();
            }
            properties.insert(field.name.to_owned(), beside_reference(property));
        }
    }

    fn property(&mut self, field: &Field) -> Value {
        let mut property = self.shape(&field.shape);
        if let Some(default) = field.default_value() {
            property["default"] = default;
        }
        if !field.enum_values.is_empty() {
            property["enum"] = json!(field.enum_values);
        }
        match field.topology {
            ApplyStrategy::Keys(keys) => {
                let keys: Vec<&str> = keys.split(',').collect();
                property["x-kubernetes-list-type"] = "map".into();
                property["x-kubernetes-list-map-keys"] = json!(keys);
            }
            ApplyStrategy::Set => property["x-kubernetes-list-type"] = "set".into(),
            ApplyStrategy::Atomic if matches!(field.shape, Shape::List(_)) => {
                property["x-kubernetes-list-type"] = "atomic".into();
            }
            ApplyStrategy::Atomic => property["x-kubernetes-map-type"] = "atomic".into(),
            ApplyStrategy::Default => {}
        }
        let retain = if field.retains_keys { ",retainKeys" } else { "" };
        match field.patch {
            PatchStrategy::MergeBy(key) => {
                property["x-kubernetes-patch-merge-key"] = key.into();
                property["x-kubernetes-patch-strategy"] = format!("merge{retain}").into();
            }
            PatchStrategy::Merge => property["x-kubernetes-patch-strategy"] = "merge".into(),
            PatchStrategy::Replace => property["x-kubernetes-patch-strategy"] = "replace".into(),
            PatchStrategy::Default if field.retains_keys => {
                property["x-kubernetes-patch-strategy"] = "retainKeys".into();
            }
            PatchStrategy::Default => {}
        }
        property
    }

    fn shape(&mut self, shape: &Shape) -> Value {
        let number = |kind: &str, format: &str| json!({"type": kind, "format": format});
        match shape {
            Shape::String | Shape::Duration => json!({"type": "string"}),
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Int32 => number("integer", "int32"),
            Shape::Int64 => number("integer", "int64"),
            Shape::Double => number("number", "double"),
            Shape::Bytes => number("string", "byte"),
            Shape::Time => self.named("meta/v1.Time", number("string", "date-time")),
            Shape::MicroTime => self.named("meta/v1.MicroTime", number("string", "date-time")),
            Shape::Quantity => self.named(
                "io.k8s.apimachinery.pkg.api.resource.Quantity",
                json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            ),
            Shape::IntOrString => self.named(
                "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
                json!({"format": "int-or-string",
                    "oneOf": [{"type": "integer"}, {"type": "string"}]}),
            ),
            Shape::Raw => self
                .named("io.k8s.apimachinery.pkg.runtime.RawExtension", json!({"type": "object"})),
            Shape::Fields => self.named("meta/v1.FieldsV1", json!({"type": "object"})),
            Shape::Json(name) => self.named(&format!("apiextensions/v1.{name}"), json!({})),
            Shape::Object(id) => {
                self.add(*id);
                json!({"$ref": reference(self.schema.get(*id).name)})
            }
            Shape::List(inner) | Shape::Wrapped(inner) => {
                json!({"type": "array", "items": self.entry(inner)})
            }
            Shape::Map(inner) => {
                json!({"type": "object", "additionalProperties": self.entry(inner)})
            }
        }
    }

    /// What a list or map holds: never absent, thus with what Go has for nothing.
    fn entry(&mut self, shape: &Shape) -> Value {
        let mut entry = self.shape(shape);
        match shape {
            Shape::String => entry["default"] = "".into(),
            Shape::Bool => entry["default"] = false.into(),
            Shape::Int32 | Shape::Int64 | Shape::Double => entry["default"] = 0.into(),
            Shape::Object(_) => entry["default"] = json!({}),
            _ => {}
        }
        beside_reference(entry)
    }

    fn named(&mut self, name: &str, entry: Value) -> Value {
        let full = if name.contains('/') { openapi_name(name) } else { name.to_owned() };
        let reference = format!("#/components/schemas/{full}");
        self.out.entry(full).or_insert(entry);
        json!({"$ref": reference})
    }
}

/// The fields that every kind has, and which the table of types leaves out.
pub fn type_meta_properties() -> [(String, Value); 2] {
    let field = |name: &str, description: &str| {
        (name.to_owned(), json!({"type": "string", "description": description}))
    };
    [
        field("apiVersion", descriptions::API_VERSION_DESCRIPTION),
        field("kind", descriptions::KIND_DESCRIPTION),
    ]
}

/// A `$ref` must be the only member of its schema: with others beside it, it moves into an `allOf`.
fn beside_reference(mut schema: Value) -> Value {
    let members = crate::object::members_mut(&mut schema);
    if members.len() > 1
        && let Some(reference) = members.remove("$ref")
    {
        members.insert("allOf".to_owned(), json!([{"$ref": reference}]));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Store, StoreLimits};

    #[test]
    fn schemas_are_those_of_kube_apiserver_but_for_descriptions() {
        let kinds = Kinds::new(&mut Store::new(StoreLimits::default()), &[]);
        let document = document(&kinds_of(&kinds, "", "v1"));
        let schemas = &document["components"]["schemas"];
        let check = |path: &str, want: Value| {
            assert_eq!(schemas.pointer(path), Some(&want), "{path}");
        };
        let port = "/io.k8s.api.core.v1.ContainerPort/properties";
        check(
            &format!("{port}/protocol"),
            json!({"type": "string", "default": "TCP", "enum": ["SCTP", "TCP", "UDP"]}),
        );
        check(&format!("{port}/name"), json!({"type": "string"}));
        let reference = |name: &str| json!({"$ref": format!("#/components/schemas/io.k8s.{name}")});
        check(
            "/io.k8s.api.core.v1.Container/properties/resources",
            json!({"allOf": [reference("api.core.v1.ResourceRequirements")], "default": {},
                "description": "What the container requests and its limits."}),
        );
        check(
            "/io.k8s.api.core.v1.Container/properties/command",
            json!({"type": "array", "items": {"type": "string", "default": ""},
                "x-kubernetes-list-type": "atomic"}),
        );
        let quantity = reference("apimachinery.pkg.api.resource.Quantity");
        check(
            "/io.k8s.api.core.v1.ResourceRequirements/properties/limits",
            json!({"type": "object", "additionalProperties": quantity,
                "description": "The most that may be used. A resource with a limit and no request requests its limit."}),
        );
        check(
            "/io.k8s.apimachinery.pkg.api.resource.Quantity",
            json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        );
        // The fields of an embedded type are those of the type around it.
        let ephemeral = &schemas["io.k8s.api.core.v1.EphemeralContainer"];
        assert_eq!(ephemeral["required"], json!(["name"]));
        let env = &ephemeral["properties"]["env"];
        assert_eq!(env["x-kubernetes-list-map-keys"], json!(["name"]));
    }

    #[test]
    fn objects_within_others_have_a_kind() {
        let kinds = Kinds::new(&mut Store::new(StoreLimits::default()), &[]);
        let document = document(&kinds_of(&kinds, "apps", "v1"));
        let schemas = &document["components"]["schemas"];
        let names = |name: &str| -> Vec<&str> {
            let properties = schemas[name]["properties"].as_object().expect("properties");
            properties.keys().map(String::as_str).take(3).collect()
        };
        let claim = names("io.k8s.api.core.v1.PersistentVolumeClaim");
        assert_eq!(claim, ["apiVersion", "kind", "metadata"]);
        assert_eq!(names("io.k8s.api.core.v1.PodTemplateSpec"), ["metadata", "spec"]);
    }
}
