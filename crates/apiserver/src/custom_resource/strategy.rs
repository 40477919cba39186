//! The registry strategy of custom resources: preparation for create and update, and validation.

use serde_json::Value;

use super::CustomResourceVersion;
use super::json_path::Path;
use super::validate_object::{validate, validate_embedded_objects, validate_list_uniqueness};
use crate::object::{members_mut, meta_mut};
use crate::status::Cause;
use crate::strategy::preserve_metadata;

/// Prepares a new object.
pub fn prepare_create(custom: &CustomResourceVersion, value: &mut Value) {
    if custom.has_status {
        members_mut(value).remove("status");
    }
    meta_mut(value).insert("generation".to_owned(), 1.into());
}

/// Restores what an update through this (sub)resource cannot change. `old` is a stored object.
pub fn prepare_update(
    custom: &CustomResourceVersion,
    subresource: &str,
    old: &Value,
    new: &mut Value,
) {
    let old = custom.to_request_version(old.clone());
    preserve_metadata(&old, new);
    if subresource == "status" {
        let status = new.get("status").cloned();
        let managed = new["metadata"].get("managedFields").cloned();
        let api_version = new["apiVersion"].clone();
        *new = old;
        new["apiVersion"] = api_version;
        put(new, "status", status);
        put(&mut new["metadata"], "managedFields", managed);
        return;
    }
    if custom.has_status {
        put(new, "status", old.get("status").cloned());
    }
    let wanted = |value: &Value| {
        let mut wanted = value.clone();
        let members = members_mut(&mut wanted);
        members.remove("metadata");
        members.remove("apiVersion");
        wanted
    };
    if wanted(&old) != wanted(new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        meta_mut(new).insert("generation".to_owned(), (generation + 1).into());
    }
}

fn put(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(members_mut(object).insert(field.to_owned(), value)),
        None => drop(members_mut(object).remove(field)),
    }
}

/// Validates a new object.
pub fn check_create(custom: &CustomResourceVersion, value: &Value) -> Vec<Cause> {
    let mut causes = validate(&custom.schema, value, None, "");
    scale_numbers(custom, value, true, &mut causes);
    validate_embedded_objects(&custom.schema, value, "", &mut causes);
    validate_list_uniqueness(&custom.schema, value, "", &mut causes);
    rules(custom, value, None, &mut causes);
    causes
}

/// Validates an update.
pub fn check_update(
    custom: &CustomResourceVersion,
    subresource: &str,
    old: &Value,
    new: &Value,
) -> Vec<Cause> {
    let old = custom.to_request_version(old.clone());
    let mut causes = Vec::new();
    if subresource == "status" {
        if let (Some(schema), Some(status)) =
            (custom.schema.properties.get("status"), new.get("status"))
        {
            causes = validate(schema, status, old.get("status"), "status");
        }
        scale_numbers(custom, new, false, &mut causes);
    } else {
        causes = validate(&custom.schema, new, Some(&old), "");
        scale_numbers(custom, new, true, &mut causes);
    }
    validate_embedded_objects(&custom.schema, new, "", &mut causes);
    let mut before = Vec::new();
    validate_list_uniqueness(&custom.schema, &old, "", &mut before);
    if before.is_empty() {
        validate_list_uniqueness(&custom.schema, new, "", &mut causes);
    }
    rules(custom, new, Some(&old), &mut causes);
    causes
}

/// Rules are evaluated only on objects that match the schema.
fn rules(
    custom: &CustomResourceVersion,
    value: &Value,
    old: Option<&Value>,
    causes: &mut Vec<Cause>,
) {
    const BLOCKING: [&str; 5] = [
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    ];
    if custom.rules.is_empty() {
        return;
    }
    if causes.iter().any(|it| BLOCKING.contains(&it.reason)) {
        let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        causes.push(Cause::invalid("<nil>", &Value::Null, detail));
        return;
    }
    causes.extend(custom.rules.check(&custom.schema, value, old));
}

/// Validates the numbers of the scale subresource.
fn scale_numbers(
    custom: &CustomResourceVersion,
    value: &Value,
    with_spec: bool,
    causes: &mut Vec<Cause>,
) {
    let Some(scale) = &custom.scale else { return };
    let spec = with_spec.then_some(&scale.replicas);
    for path in spec.into_iter().chain([&scale.current]) {
        scale_number(path, value, causes);
    }
}

fn scale_number(path: &Path, value: &Value, causes: &mut Vec<Cause>) {
    let field = path.to_string();
    let misfit = |found: &Value, wanted: &str| {
        let (shown, kind) = as_go(found);
        let detail =
            format!("{field} accessor error: {shown} is of the type {kind}, expected {wanted}");
        Cause::invalid(field.as_str(), &0.into(), &detail)
    };
    let mut found = value;
    for name in field.trim_start_matches('.').split('.') {
        match found {
            Value::Object(members) => match members.get(name) {
                Some(inner) => found = inner,
                None => return,
            },
            other => {
                causes.push(misfit(other, "map[string]interface{}"));
                return;
            }
        }
    }
    let n = match found.as_i64() {
        Some(n) => n,
        None => {
            causes.push(misfit(found, "int64"));
            return;
        }
    };
    if n < 0 {
        causes.push(Cause::invalid(field, found, "should be a non-negative integer"));
    } else if n > i64::from(i32::MAX) {
        let detail = format!("should be less than or equal to {}", i32::MAX);
        causes.push(Cause::invalid(field, found, &detail));
    }
}

/// A value and its type as Go prints them.
fn as_go(value: &Value) -> (String, &'static str) {
    match value {
        Value::Null => ("<nil>".to_owned(), "<nil>"),
        Value::Bool(it) => (it.to_string(), "bool"),
        Value::Number(it) => (it.to_string(), "float64"),
        Value::String(it) => (it.clone(), "string"),
        Value::Array(_) => (value.to_string(), "[]interface {}"),
        Value::Object(_) => (value.to_string(), "map[string]interface {}"),
    }
}
