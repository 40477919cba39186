//! The annotation that client-side `kubectl apply` writes, for objects whose owner changes to server-side apply.

use serde_json::Value;

use super::compare::compare;
use super::field_set::FieldSet;
use super::types::{TypeRef, Types};
use super::validate::{fields_of, validate};
use crate::object::{members_mut, meta_mut};

/// Only the manager of `kubectl apply` is migrated.
pub(super) const MANAGER: &str = "kubectl";

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The most bytes all annotations may take.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;

/// The fields that client-side apply set and no one has changed since; none if unknown.
pub(super) fn unchanged_since(
    types: &Types,
    type_ref: TypeRef,
    live: &Value,
    api_version: &str,
) -> Option<FieldSet> {
    let text = last_applied(live)?;
    let applied: Value = serde_json::from_str(text).ok()?;
    if applied["apiVersion"] != api_version {
        return None;
    }
    validate(types, type_ref, live, false).ok()?;
    validate(types, type_ref, &applied, false).ok()?;
    let changes = compare(types, type_ref, &applied, live).ok()?;
    let fields = fields_of(types, type_ref, &applied);
    Some(fields.difference(&changes.added_or_modified()).difference(&changes.removed))
}

/// Updates the annotation, if present, to the applied configuration.
pub(super) fn follow(object: &mut Value, config: &Value) {
    if last_applied(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = config["metadata"]["annotations"].as_object_mut() {
        annotations.remove(ANNOTATION);
    } else if let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("annotations");
    }
    // Go's encoder ends what it writes with a line break.
    let text = format!("{}\n", super::value::to_go_json(&config));
    let annotations = meta_mut(object).entry("annotations").or_insert(Value::Null);
    let annotations = members_mut(annotations);
    annotations.insert(ANNOTATION.to_owned(), text.into());
    let n_bytes: usize =
        annotations.iter().map(|(name, text)| name.len() + text.as_str().map_or(0, str::len)).sum();
    if n_bytes > ANNOTATION_BYTES_MAX {
        annotations.remove(ANNOTATION);
    }
}

fn last_applied(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][ANNOTATION].as_str().filter(|text| !text.is_empty())
}
