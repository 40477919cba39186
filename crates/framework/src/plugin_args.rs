//! Plugin arguments: strict decoding, defaults, validation, and errors with field paths.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::feature_gates::FeatureGates;
use crate::registry::PluginError;

/// A validation error of one field, in upstream's format: `path: Invalid value: 0: must be positive` (upstream's `field.Error`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path relative to the validated object, such as `scoringStrategy.resources[0].weight`; empty for the object itself.
    pub path: String,
    /// The actual value and what was expected.
    pub text: String,
}

impl FieldError {
    /// `path: Invalid value: <value>: <what was expected>`.
    pub fn invalid(
        path: impl Into<String>,
        value: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        FieldError { path: path.into(), text: format!("Invalid value: {value}: {expected}") }
    }

    /// `path: Required value: <what was expected>`.
    pub fn required(path: impl Into<String>, expected: impl fmt::Display) -> Self {
        FieldError { path: path.into(), text: format!("Required value: {expected}") }
    }

    /// `path: Forbidden: <why>`.
    pub fn forbidden(path: impl Into<String>, why: impl fmt::Display) -> Self {
        FieldError { path: path.into(), text: format!("Forbidden: {why}") }
    }

    /// `path: Duplicate value: "<value>"`.
    pub fn duplicate(path: impl Into<String>, value: impl fmt::Display) -> Self {
        FieldError { path: path.into(), text: format!("Duplicate value: \"{value}\"") }
    }

    /// `path: Unsupported value: "<value>": supported values: "A", "B"`.
    pub fn unsupported(path: impl Into<String>, value: impl fmt::Display, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
        let text =
            format!("Unsupported value: \"{value}\": supported values: {}", known.join(", "));
        FieldError { path: path.into(), text }
    }

    /// The same error with `parent` prepended to its path.
    #[must_use]
    pub fn with_path_prefix(mut self, parent: &str) -> Self {
        self.path = match (parent.is_empty(), self.path.is_empty()) {
            (true, _) => self.path,
            (_, true) => parent.to_owned(),
            _ if self.path.starts_with('[') => format!("{parent}{}", self.path),
            _ => format!("{parent}.{}", self.path),
        };
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.text)
        } else {
            write!(f, "{}: {}", self.path, self.text)
        }
    }
}

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
