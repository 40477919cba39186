//! Errors of plugins: an invalid field of their arguments, and a plugin that could not be built.

use std::fmt;

use crate::plugin_metrics::MetricError;

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

/// A plugin could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// Its arguments are invalid.
    #[error("initializing plugin {plugin:?}: {error}")]
    Args {
        /// The plugin's name.
        plugin: &'static str,
        /// The invalid field.
        error: FieldError,
    },
    /// A metric that it declares is invalid.
    #[error("initializing plugin {plugin:?}")]
    Metric {
        /// The plugin's name.
        plugin: &'static str,
        /// The metric and what is wrong.
        #[source]
        error: MetricError,
    },
    /// A permission that it requires is invalid.
    #[error("initializing plugin {plugin:?}: required permissions: {text}")]
    Permission {
        /// The plugin's name.
        plugin: &'static str,
        /// What is wrong.
        text: String,
    },
    /// Two plugins have the same name.
    #[error(
        "a plugin named {plugin:?} already exists: plugin names must be unique and differ from those of in-tree plugins"
    )]
    Duplicate {
        /// The name.
        plugin: &'static str,
    },
}
