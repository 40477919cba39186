//! Plugin arguments: strict decoding, defaults and validation.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::errors::PluginError;
use crate::feature_gates::FeatureGates;

pub use crate::errors::FieldError;

/// Decodes a value into a type; types with `deny_unknown_fields` reject unknown fields.
///
/// # Errors
///
/// The path of the field that does not decode, and why.
pub fn decode_json_value<T: DeserializeOwned>(value: &Value) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        FieldError {
            path: if path == "." { String::new() } else { path },
            text: error.into_inner().to_string(),
        }
    })
}

/// The type of a plugin's arguments: serde decodes them (use `deny_unknown_fields`) and sets defaults.
pub trait PluginArgs: DeserializeOwned + Serialize {
    /// Validates the values; returns all errors.
    fn validate(&self) -> Vec<FieldError> {
        Vec::new()
    }
}

/// Decodes the arguments, sets defaults and validates: a [`crate::registry::CompleteArgsFn`] for arguments of a [`PluginArgs`] type.
///
/// # Errors
///
/// All validation errors, or the error of the field that does not decode.
pub fn default_and_validate_args<T: PluginArgs>(
    given: &Value,
    _: &FeatureGates,
) -> Result<Value, Vec<FieldError>> {
    let args: T = decode_json_value(given).map_err(|error| vec![error])?;
    let errors = args.validate();
    if !errors.is_empty() {
        return Err(errors);
    }
    serde_json::to_value(args)
        .map_err(|error| vec![FieldError { path: String::new(), text: error.to_string() }])
}

/// Decodes complete arguments when the plugin is built.
///
/// # Errors
///
/// When the arguments do not decode.
pub fn decode_plugin_args<T: PluginArgs>(
    plugin: &'static str,
    args: &Value,
) -> Result<T, PluginError> {
    decode_json_value(args).map_err(|error| PluginError::Args { plugin, error })
}
