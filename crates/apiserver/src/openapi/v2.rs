//! OpenAPI v2 as one document, converted from those of version 3, for older clients and tools.

use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Map, Value, json};

/// Converts the documents of version 3 to one of version 2.
pub fn convert_to_openapi_v2(parts: &[Value]) -> Value {
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    for part in parts {
        for (name, schema) in members(&part["components"]["schemas"]) {
            // A type that several groups use has, in each, only the kinds of that group.
            match definitions.get_mut(name) {
                None => drop(definitions.insert(name.clone(), named(name, schema))),
                Some(known) => join_kinds(known, schema),
            }
        }
        for (path, item) in members(&part["paths"]) {
            paths.insert(path.clone(), path_item(path, item));
        }
    }
    let token = json!({"type": "apiKey", "name": "authorization", "in": "header",
        "description": "Bearer Token authentication"});
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36.3"},
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": {"BearerToken": token},
        "security": [{"BearerToken": []}],
    })
}

pub(super) fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

const KINDS: &str = "x-kubernetes-group-version-kind";

fn join_kinds(known: &mut Value, other: &Value) {
    let more = crate::object::list_entries(&other[KINDS]);
    if let Some(Value::Array(kinds)) = known.get_mut(KINDS) {
        for kind in more {
            if !kinds.contains(kind) {
                kinds.push(kind.clone());
            }
        }
    } else if !more.is_empty() {
        known[KINDS] = json!(more);
    }
}

/// A schema with a name. Version 2 has no word for what is a text or a number.
fn named(name: &str, schema: &Value) -> Value {
    let mut out = converted(schema);
    if schema[FREE] == true {
        out["type"] = "object".into();
    }
    if name.ends_with("resource.Quantity") || name.ends_with("intstr.IntOrString") {
        out["type"] = "string".into();
    }
    out
}

const FREE: &str = "x-kubernetes-preserve-unknown-fields";

/// A schema, with references as version 2 has them: alone, and below `definitions`.
fn converted(schema: &Value) -> Value {
    match schema {
        Value::Array(all) => all.iter().map(converted).collect(),
        Value::Object(all) => {
            let mut out = Map::new();
            let says = |name: &str| all.get(name) == Some(&Value::Bool(true));
            // kubectl would refuse fields beside those that are named, and nulls where there is a type.
            let is_free = says(FREE) || says("nullable");
            let is_bare = is_free || !all.contains_key("items");
            for (name, value) in all {
                match (name.as_str(), value) {
                    ("properties" | "items", _) if is_free => {}
                    ("type", Value::String(kind))
                        if says("nullable")
                            || kind == "object" && says(FREE)
                            || kind == "array" && is_bare => {}
                    ("required", Value::Array(names)) => {
                        let nullable = |it: &&Value| {
                            let name = it.as_str().unwrap_or_default();
                            all["properties"][name]["nullable"] == true
                        };
                        let left: Vec<Value> =
                            names.iter().filter(|it| !nullable(it)).cloned().collect();
                        if !left.is_empty() {
                            out.insert(name.clone(), left.into());
                        }
                    }
                    ("$ref", Value::String(path)) => {
                        out.insert(name.clone(), definition(path).into());
                    }
                    ("allOf", Value::Array(parts)) => {
                        if let [Value::Object(one)] = parts.as_slice()
                            && let Some(Value::String(path)) = one.get("$ref")
                        {
                            out.insert("$ref".to_owned(), definition(path).into());
                        } else {
                            out.insert(name.clone(), converted(value));
                        }
                    }
                    ("properties", Value::Object(fields)) => {
                        let fields = fields.iter().map(|(name, it)| (name.clone(), converted(it)));
                        out.insert(name.clone(), fields.collect_by_insertion::<Map<_, _>>().into());
                    }
                    // Version 2 has neither; upstream leaves defaults out of it.
                    ("oneOf" | "anyOf" | "not" | "nullable" | "default", _) => {}
                    ("enum" | "example", _) => {
                        out.insert(name.clone(), value.clone());
                    }
                    _ => drop(out.insert(name.clone(), converted(value))),
                }
            }
            Value::Object(out)
        }
        _ => schema.clone(),
    }
}

fn definition(path: &str) -> String {
    path.replace("#/components/schemas/", "#/definitions/")
}

const PRODUCES: [&str; 3] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const PATCHES: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

fn path_item(path: &str, item: &Value) -> Value {
    let mut out = Map::new();
    for (method, operation) in members(item) {
        if operation["responses"].is_object() {
            out.insert(method.clone(), converted_operation(path, method, operation));
        }
    }
    let named = path.split('/').filter_map(|it| it.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> = named
        .map(|name| {
            json!({"name": name, "in": "path", "type": "string", "required": true,
            "uniqueItems": true})
        })
        .collect();
    if !parameters.is_empty() {
        out.insert("parameters".to_owned(), parameters.into());
    }
    Value::Object(out)
}

fn converted_operation(path: &str, method: &str, operation: &Value) -> Value {
    let mut parameters = Vec::new();
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if body.is_object() {
        parameters.push(json!({"name": "body", "in": "body", "required": true,
            "schema": converted(body)}));
    }
    for parameter in crate::object::list_entries(&operation["parameters"]) {
        let mut flat = parameter.clone();
        if let Some(members) = flat.as_object_mut()
            && let Some(Value::Object(schema)) = members.remove("schema")
        {
            members.extend(schema);
            members.insert("uniqueItems".to_owned(), true.into());
        }
        parameters.push(flat);
    }
    let kind = &operation[KINDS];
    let word = |field: &str| kind[field].as_str().unwrap_or_default();
    let group = match word("group").split('.').next() {
        None | Some("") => "core",
        Some(group) => group,
    };
    let action = operation["x-kubernetes-action"].as_str().unwrap_or(method);
    let consumes = if method == "patch" { json!(PATCHES) } else { json!(["*/*"]) };
    let mut out = json!({
        "operationId": operation_id(path, action, group, word("version"), word("kind")),
        "consumes": consumes,
        "produces": PRODUCES,
        "schemes": ["https"],
        "tags": [format!("{group}_{}", word("version"))],
        "x-kubernetes-action": action,
        "responses": {"200": {"description": "OK"}, "401": {"description": "Unauthorized"}},
    });
    if kind.is_object() {
        out[KINDS] = kind.clone();
    }
    if !parameters.is_empty() {
        out["parameters"] = parameters.into();
    }
    out
}

/// As upstream names operations, such as `readCoreV1NamespacedPod`.
fn operation_id(path: &str, action: &str, group: &str, version: &str, kind: &str) -> String {
    let verb = match action {
        "get" => "read",
        "post" => "create",
        "put" => "replace",
        other => other,
    };
    let scope = if path.contains("{namespace}") { "Namespaced" } else { "" };
    format!("{verb}{}{}{scope}{kind}", capital(group), capital(version))
}

fn capital(word: &str) -> String {
    let mut rest = word.chars();
    let first = rest.next().map(|it| it.to_ascii_uppercase());
    first.into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_no_siblings() {
        let schema = json!({"properties": {
            "a": {"allOf": [{"$ref": "#/components/schemas/x"}], "default": {}},
            "b": {"type": "array", "items": {"$ref": "#/components/schemas/x"}},
            "c": {"type": "string", "enum": ["oneOf"], "default": "y"},
            "default": {"type": "string"},
        }});
        assert_eq!(
            converted(&schema),
            json!({"properties": {
                "a": {"$ref": "#/definitions/x"},
                "b": {"type": "array", "items": {"$ref": "#/definitions/x"}},
                "c": {"type": "string", "enum": ["oneOf"]},
                "default": {"type": "string"},
            }})
        );
    }

    #[test]
    fn open_schemas_have_no_properties() {
        let schema = json!({"type": "object", "required": ["a", "b"], "properties": {
            "a": {"type": "object", "nullable": true, "properties": {"x": {"type": "string"}}},
            "b": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"x": {"type": "string"}}},
        }});
        assert_eq!(
            converted(&schema),
            json!({"type": "object", "required": ["b"], "properties": {
                "a": {},
                "b": {"x-kubernetes-preserve-unknown-fields": true},
            }})
        );
        assert_eq!(
            named("n", &schema["properties"]["b"]),
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
        );
    }

    #[test]
    fn operation_ids_equal_upstreams() {
        let id = |path: &str, action: &str| operation_id(path, action, "core", "v1", "Pod");
        assert_eq!(
            id("/api/v1/namespaces/{namespace}/pods/{name}", "get"),
            "readCoreV1NamespacedPod"
        );
        assert_eq!(id("/api/v1/nodes", "list"), "listCoreV1Pod");
    }
}
