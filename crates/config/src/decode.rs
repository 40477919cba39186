//! Parts of strict decoding: `apiVersion` and `kind`, and errors about unknown fields.

use loadmaster_framework::FieldError;
use serde_json::{Map, Value};

use crate::v1::{API_VERSION, KIND};
use crate::version::ConfigVersion;
use loadmaster_stdx::did_you_mean;

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
