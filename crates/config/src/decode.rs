//! From a value to what was written: the kind of the object, strictness, and every error with its
//! path.

use loadmaster_framework::FieldError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};

use crate::v1::{API_VERSION, KIND};

/// A file with more errors than this is told about these; each costs another pass over the file.
const ERRORS_MAX: usize = 50;

/// Checks `apiVersion` and `kind` and takes them out of the object.
pub(crate) fn header(value: &mut Value) -> Result<(), FieldError> {
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

/// The text of a field that is taken out; empty when absent.
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

/// Takes null for absent, as Go's decoding does: members of objects are dropped, elements of lists
/// become empty objects.
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

/// Decodes, or tells all that is wrong: what an error points at is taken out and decoding starts
/// again. Values are found at the paths they have in the file, since elements of lists are emptied,
/// not removed.
pub(crate) fn strict<T: DeserializeOwned>(mut value: Value) -> (Option<T>, Vec<FieldError>) {
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

/// Takes out what stands at the path; whether there was anything.
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
