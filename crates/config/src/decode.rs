//! Strict decoding of a value: `apiVersion` and `kind`, unknown fields, and every error with its path.

use loadmaster_framework::FieldError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};

use crate::go_value::GoValue;
use crate::suggestion::did_you_mean;
use crate::v1::{API_VERSION, KIND};
use crate::version::ConfigVersion;

/// At most this many errors are reported per file; each one costs another pass over the file.
const ERRORS_MAX: usize = 50;

/// Removes `kind` and `apiVersion` from a value that must be an object of the kind `expected`; returns them.
pub(crate) fn take_kind_and_version(
    value: &mut Value,
    expected: &str,
) -> Result<(String, String), FieldError> {
    let Value::Object(object) = value else {
        let text = format!("not an object: a {expected} is expected");
        return Err(FieldError { path: String::new(), text });
    };
    Ok((take_text(object, "kind")?, take_text(object, "apiVersion")?))
}

/// Checks `apiVersion` and `kind` of a configuration and removes them; returns the version.
pub(crate) fn take_type_meta(value: &mut Value) -> Result<ConfigVersion, FieldError> {
    let (kind, version) = take_kind_and_version(value, KIND)?;
    match (kind.as_str(), version.as_str()) {
        ("", _) => Err(FieldError::required("kind", format_args!("{KIND:?} is expected"))),
        (_, "") => {
            Err(FieldError::required("apiVersion", format_args!("{API_VERSION:?} is expected")))
        }
        (KIND, _) if let Some(version) = ConfigVersion::from_api_version(&version) => Ok(version),
        _ => {
            let known = ConfigVersion::ALL.map(ConfigVersion::api_version);
            let (path, suggestion) = if kind == KIND {
                ("apiVersion", did_you_mean(&version, known))
            } else {
                ("kind", did_you_mean(&kind, [KIND]))
            };
            let text = format!(
                "no kind {kind:?} is registered for version {version:?}: \
                 this scheduler reads {KIND} of {API_VERSION} and older versions{suggestion}"
            );
            Err(FieldError { path: path.to_owned(), text })
        }
    }
}

/// The error of a field that is not among `known`, in serde's words.
pub(crate) fn unknown_field(field: &str, known: &[&str]) -> FieldError {
    let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    let names = match &names[..] {
        [one] => one.clone(),
        [one, other] => format!("{one} or {other}"),
        all => format!("one of {}", all.join(", ")),
    };
    FieldError {
        path: field.to_owned(),
        text: format!("unknown field `{field}`, expected {names}"),
    }
}

/// Adds a suggestion to the text of an error about an unknown field.
pub(crate) fn with_suggestion(mut error: FieldError) -> FieldError {
    let Some(rest) = error.text.strip_prefix("unknown field `") else { return error };
    let Some((field, known)) = rest.split_once("`, expected ") else { return error };
    let known = known.split('`').skip(1).step_by(2);
    let suggestion = did_you_mean(field, known);
    error.text += &suggestion;
    error
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

/// Removes null members of objects and makes null elements of lists empty objects. For values whose field names have been checked, or are
/// not known.
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
        match serde_path_to_error::deserialize(GoValue(&value)) {
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
