//! Strict decoding of a value: `apiVersion` and `kind`, unknown fields, and every error with its path.

use loadmaster_framework::FieldError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};

use crate::v1::{API_VERSION, KIND};

/// At most this many errors are reported per file; each one costs another pass over the file.
const ERRORS_MAX: usize = 50;

/// Checks `apiVersion` and `kind` and removes them from the object.
pub(crate) fn take_type_meta(value: &mut Value) -> Result<(), FieldError> {
    let Value::Object(object) = value else {
        return Err(FieldError {
            path: String::new(),
            text: format!("not an object: a {KIND} is expected"),
        });
    };
    let kind = take_text(object, "kind")?;
    let version = take_text(object, "apiVersion")?;
    match (kind.as_str(), version.as_str()) {
        (KIND, API_VERSION) => Ok(()),
        ("", _) => Err(FieldError::required("kind", format_args!("{KIND:?} is expected"))),
        (_, "") => {
            Err(FieldError::required("apiVersion", format_args!("{API_VERSION:?} is expected")))
        }
        _ => Err(FieldError {
            path: if kind == KIND { "apiVersion" } else { "kind" }.to_owned(),
            text: format!(
                "no kind {kind:?} is registered for version {version:?}: \
                 this scheduler reads {KIND} of {API_VERSION}"
            ),
        }),
    }
}

/// Removes a field and returns its text; empty when absent.
pub(crate) fn take_text(
    object: &mut Map<String, Value>,
    field: &str,
) -> Result<String, FieldError> {
    match object.remove(field) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(FieldError::invalid(field, other, "must be a string")),
    }
}

/// Treats null as absent, as Go's decoding does: null members of objects are removed, null elements of
/// lists become empty objects.
pub(crate) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, member| !member.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(elements) => {
            for element in elements {
                if element.is_null() {
                    *element = Value::Object(Map::new());
                }
                drop_nulls(element);
            }
        }
        _ => {}
    }
}

/// Decodes the value, or returns all errors: the value at an error is removed and decoding starts again.
/// Paths stay those of the file, since elements of lists are replaced by empty objects, not removed.
pub(crate) fn decode_strict<T: DeserializeOwned>(mut value: Value) -> (Option<T>, Vec<FieldError>) {
    let mut errors = Vec::new();
    loop {
        match serde_path_to_error::deserialize(&value) {
            Ok(decoded) => return (Some(decoded), errors),
            Err(error) => {
                errors.push(FieldError {
                    path: text_of(error.path()),
                    text: error.inner().to_string(),
                });
                if errors.len() == ERRORS_MAX || !prune(&mut value, error.path()) {
                    return (None, errors);
                }
            }
        }
    }
}

fn text_of(path: &Path) -> String {
    let text = path.to_string();
    if text == "." { String::new() } else { text }
}

/// Removes the value at the path; returns whether there was one.
fn prune(value: &mut Value, path: &Path) -> bool {
    let segments: Vec<&Segment> = path.iter().collect();
    let Some((last, parents)) = segments.split_last() else { return false };
    let mut at = value;
    for segment in parents {
        let child = match segment {
            Segment::Seq { index } => at.get_mut(index),
            Segment::Map { key } => at.get_mut(key),
            Segment::Enum { .. } | Segment::Unknown => None,
        };
        match child {
            Some(child) => at = child,
            None => return false,
        }
    }
    match (last, at) {
        (Segment::Map { key }, Value::Object(object)) => object.remove(key).is_some(),
        (Segment::Seq { index }, Value::Array(elements)) => match elements.get_mut(*index) {
            Some(element) if !element.as_object().is_some_and(Map::is_empty) => {
                *element = Value::Object(Map::new());
                true
            }
            _ => false,
        },
        _ => false,
    }
}
