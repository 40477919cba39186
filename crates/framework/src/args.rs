//! Arguments of plugins: strict decoding and errors that name the field.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::gates::FeatureGates;
use crate::registry::PluginError;

/// What is wrong with one field, in upstream's words: `path: Invalid value: 0: must be positive`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path from the object at hand, such as `scoringStrategy.resources[0].weight`; empty for the object itself.
    pub path: String,
    /// What was found and what was expected.
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

    /// The same error seen from an object in which this one stands at `parent`.
    #[must_use]
    pub fn under(mut self, parent: &str) -> Self {
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

/// Decodes a value into a type; unknown fields are refused by types that say `deny_unknown_fields`.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        FieldError {
            path: if path == "." { String::new() } else { path },
            text: error.into_inner().to_string(),
        }
    })
}

/// Arguments of a plugin as a type: serde decodes them (say `deny_unknown_fields`) and gives the defaults.
pub trait PluginArgs: DeserializeOwned + Serialize {
    /// What is wrong with them, beyond their types.
    fn validate(&self) -> Vec<FieldError> {
        Vec::new()
    }
}

/// A [`crate::registry::ArgsFn`] for arguments that are a type: decode, default, validate.
pub fn complete<T: PluginArgs>(given: &Value, _: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let args: T = decode(given).map_err(|error| vec![error])?;
    let errors = args.validate();
    if !errors.is_empty() {
        return Err(errors);
    }
    serde_json::to_value(args)
        .map_err(|error| vec![FieldError { path: String::new(), text: error.to_string() }])
}

/// Reads complete arguments when the plugin `plugin` is built.
pub fn read<T: PluginArgs>(plugin: &'static str, args: &Value) -> Result<T, PluginError> {
    decode(args).map_err(|error| PluginError::Args { plugin, error })
}
