//! Schemas of custom resources in OpenAPI v3.

use serde_json::{Map, Value, json};

use super::Version;
use crate::schema::Kind;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA: &str = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// `com.example.v1.Gang` of `example.com/v1` `Gang`.
pub fn name(kind: &Kind) -> String {
    let parts: Vec<&str> = kind.group.rsplit('.').collect();
    format!("{}.{}.{}", parts.join("."), kind.version, kind.kind)
}

/// A reference to a schema.
pub fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Adds the schemas of a kind and of its lists.
pub fn add(kind: &Kind, custom: &Version, schemas: &mut Map<String, Value>) {
    let mut own = custom.written.clone();
    unfold(&mut own);
    described(&mut own);
    own["x-kubernetes-group-version-kind"] = group_version_kind(kind, kind.kind);
    let name = name(kind);
    let mut items = json!({"type": "array", "items": reference(&name)});
    items["description"] = format!("List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", kind.resource).into();
    let mut metadata = reference(LIST_META);
    metadata["description"] = "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds".into();
    let list = json!({
        "type": "object",
        "description": format!("{} is a list of {}", custom.list_kind, kind.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "metadata": metadata,
            "items": items,
        },
        "x-kubernetes-group-version-kind": group_version_kind(kind, &custom.list_kind),
    });
    schemas.insert(format!("{name}List"), list);
    schemas.insert(name, own);
}

fn group_version_kind(kind: &Kind, name: &str) -> Value {
    json!([{"group": kind.group, "version": kind.version, "kind": name}])
}

fn described(schema: &mut Value) {
    let mut metadata = reference(OBJECT_META);
    metadata["description"] = METADATA.into();
    schema["properties"]["apiVersion"] = json!({"type": "string", "description": API_VERSION});
    schema["properties"]["kind"] = json!({"type": "string", "description": KIND});
    schema["properties"]["metadata"] = metadata;
}

/// Says in plain OpenAPI what `x-kubernetes-int-or-string` means, and gives embedded objects their metadata.
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
        described(schema);
        let mut required = crate::object::entries(&schema["required"]).to_vec();
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
