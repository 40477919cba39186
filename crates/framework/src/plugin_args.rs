//! Plugin arguments: strict decoding, defaults and validation.

use std::marker::PhantomData;

use loadmaster_stdx::{ErasedSeed, decode_with};
use serde::Serialize;
use serde::de::{DeserializeOwned, DeserializeSeed as _, Error as _};
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment, Track};

use self::go_value::GoValue;
use crate::errors::PluginError;
use crate::feature_gates::FeatureGates;

mod go_value;

pub use crate::errors::FieldError;

type PathError = serde_path_to_error::Error<serde_json::Error>;

/// At most this many errors are reported per value; each one costs another pass over it.
const ERRORS_MAX: usize = 50;

/// Decodes a value into a type, as Go does: a known field that is null counts as absent, and a list is no object. Types with
/// `deny_unknown_fields` reject unknown fields, null ones included.
///
/// # Errors
///
/// The path of the field that does not decode, and why.
pub fn decode_json_value<T: DeserializeOwned>(value: &Value) -> Result<T, FieldError> {
    decode_go_value(value).map_err(|error| field_error(&error))
}

/// The path is only followed in values that do not decode.
fn decode_go_value<T: DeserializeOwned>(value: &Value) -> Result<T, PathError> {
    if let Ok(Some(decoded)) = decode_with(PhantomData, |seed| decode_seed(value, seed)) {
        return Ok(decoded);
    }
    let decoded = decode_with(PhantomData, |seed| decode_seed_with_path(value, seed))?;
    decoded.ok_or_else(|| {
        PathError::new(Track::new().path(), serde_json::Error::custom("nothing was decoded"))
    })
}

/// Not generic: the crates of plugins have types, and only this one has decoders.
fn decode_seed<'de>(value: &'de Value, seed: ErasedSeed<'_, 'de>) -> Result<(), serde_json::Error> {
    seed.deserialize(GoValue(value))
}

fn decode_seed_with_path<'de>(
    value: &'de Value,
    seed: ErasedSeed<'_, 'de>,
) -> Result<(), PathError> {
    let mut track = Track::new();
    let tracked = serde_path_to_error::Deserializer::new(GoValue(value), &mut track);
    let decoded = seed.deserialize(tracked);
    decoded.map_err(|error| PathError::new(track.path(), error))
}

fn field_error(error: &PathError) -> FieldError {
    let path = error.path().to_string();
    FieldError {
        path: if path == "." { String::new() } else { path },
        text: error.inner().to_string(),
    }
}

/// Decodes as [`decode_json_value`] does, and returns all errors: the value at an error is removed and decoding starts again. Paths stay
/// those of the value that was given, since elements of lists are replaced by empty objects, not removed. The result lacks the values at
/// errors.
pub fn decode_with_all_errors<T: DeserializeOwned>(
    mut value: Value,
) -> (Option<T>, Vec<FieldError>) {
    let mut errors = Vec::new();
    loop {
        match decode_go_value(&value) {
            Ok(decoded) => return (Some(decoded), errors),
            Err(error) => {
                errors.push(field_error(&error));
                if errors.len() == ERRORS_MAX || !prune(&mut value, error.path()) {
                    return (None, errors);
                }
            }
        }
    }
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

/// Decodes the arguments of a plugin for a [`crate::registry::CompleteArgsFn`].
///
/// # Errors
///
/// All fields that do not decode.
pub fn decode_given_args<T: DeserializeOwned>(given: &Value) -> Result<T, Vec<FieldError>> {
    match decode_with_all_errors(given.clone()) {
        (Some(args), errors) if errors.is_empty() => Ok(args),
        (_, errors) => Err(errors),
    }
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
/// All validation errors, or all fields that do not decode.
pub fn default_and_validate_args<T: PluginArgs>(
    given: &Value,
    _: &FeatureGates,
) -> Result<Value, Vec<FieldError>> {
    let args: T = decode_given_args(given)?;
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
