//! Schemas of custom resources in OpenAPI v3.

use serde_json::{Map, Value, json};

use super::CustomResourceVersion;
use crate::openapi::type_meta_properties;
use crate::schema::Kind;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// `com.example.v1.Gang` of `example.com/v1` `Gang`.
pub fn openapi_schema_name(kind: &Kind) -> String {
    let parts: Vec<&str> = kind.group.rsplit('.').collect();
    format!("{}.{}.{}", parts.join("."), kind.version, kind.kind)
}

/// A reference to a schema.
pub fn schema_reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Adds the schemas of a kind and of its lists.
pub fn add_custom_resource_schemas(
    kind: &Kind,
    custom: &CustomResourceVersion,
    schemas: &mut Map<String, Value>,
) {
    let mut own = custom.written.clone();
    unfold(&mut own);
    add_object_fields(&mut own);
    own["x-kubernetes-group-version-kind"] = group_version_kind(kind, kind.kind);
    let name = openapi_schema_name(kind);
    let mut properties = Map::from_iter(type_meta_properties());
    properties.insert("metadata".to_owned(), schema_reference(LIST_META));
    properties
        .insert("items".to_owned(), json!({"type": "array", "items": schema_reference(&name)}));
    let list = json!({
        "type": "object",
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind": group_version_kind(kind, &custom.list_kind),
    });
    schemas.insert(format!("{name}List"), list);
    schemas.insert(name, own);
}

fn group_version_kind(kind: &Kind, name: &str) -> Value {
    json!([{"group": kind.group, "version": kind.version, "kind": name}])
}

/// Adds what every object has: `apiVersion`, `kind` and `metadata`.
fn add_object_fields(schema: &mut Value) {
    for (name, field) in type_meta_properties() {
        schema["properties"][name] = field;
    }
    schema["properties"]["metadata"] = schema_reference(OBJECT_META);
}

/// Expands `x-kubernetes-int-or-string` to `anyOf`, and adds metadata to embedded objects.
fn unfold(schema: &mut Value) {
    if !schema.is_object() {
        return;
    }
    if schema["x-kubernetes-int-or-string"] == true && schema["anyOf"].is_null() {
        schema["anyOf"] = json!([{"type": "integer"}, {"type": "string"}]);
    }
    if schema["anyOf"].is_null() {
        crate::object::members_mut(schema).remove("anyOf");
    }
    if schema["x-kubernetes-embedded-resource"] == true {
        add_object_fields(schema);
        let mut required = crate::object::list_entries(&schema["required"]).to_vec();
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|it| it == name) {
                required.push(name.into());
            }
        }
        schema["required"] = required.into();
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(name) {
            unfold(inner);
        }
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(unfold);
    }
    let members = crate::object::members_mut(schema);
    for name in ["x-kubernetes-int-or-string", "x-kubernetes-embedded-resource"] {
        if members.get(name).is_some_and(Value::is_null) {
            members.remove(name);
        }
    }
}
