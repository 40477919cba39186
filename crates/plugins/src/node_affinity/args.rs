//! The arguments of NodeAffinity: an affinity that a profile adds to all its pods.

use loadmaster_api::meta::nullable;
use loadmaster_api::pod::{NodeAffinity, PreferredSchedulingTerm};
use loadmaster_api::selector::{CompiledNodeTerm, SelectorError};
use loadmaster_api::{NodeSelectorTerm, Str};
use loadmaster_framework::plugin_args::{decode_given_args, decode_json_value};
use loadmaster_framework::{FeatureGates, FieldError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
pub(super) const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Decodes the arguments, fills in defaults and validates them.
pub(super) fn complete(given: &Value, _gates: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let args: Args = decode_given_args(given)?;
    let as_error = |error: serde_json::Error| {
        vec![FieldError { path: String::new(), text: error.to_string() }]
    };
    let complete = serde_json::to_value(args).map_err(as_error)?;
    let errors = match added_affinity(&complete).map_err(|error| vec![error])? {
        Some(affinity) => validate(&affinity),
        None => Vec::new(),
    };
    if errors.is_empty() { Ok(complete) } else { Err(errors) }
}

/// The affinity in arguments that are complete.
pub(super) fn added_affinity(args: &Value) -> Result<Option<NodeAffinity>, FieldError> {
    let added = args.get("addedAffinity").unwrap_or(&Value::Null);
    decode_json_value(added).map_err(|error| error.with_path_prefix("addedAffinity"))
}

/// The arguments as a configuration file has them. The types of the API cannot be used: they accept unknown fields and
/// cannot be encoded.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    added_affinity: Option<AddedAffinityArgs>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct AddedAffinityArgs {
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        skip_serializing_if = "Option::is_none"
    )]
    required: Option<Selector>,
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    preferred: Vec<Preference>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Selector {
    /// Upstream encodes a missing list as `null`.
    node_selector_terms: Option<Vec<Term>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Preference {
    #[serde(deserialize_with = "nullable")]
    weight: i32,
    #[serde(deserialize_with = "nullable")]
    preference: Term,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Term {
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<Requirement>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    match_fields: Vec<Requirement>,
}

/// One requirement, with its fields in the order in which the API encodes them.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Requirement {
    #[serde(deserialize_with = "nullable")]
    pub(super) key: Str,
    #[serde(deserialize_with = "nullable")]
    pub(super) operator: Str,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub(super) values: Vec<Str>,
}

/// The validation errors of the terms.
fn validate(affinity: &NodeAffinity) -> Vec<FieldError> {
    let required = affinity.required.iter().flat_map(|selector| &selector.node_selector_terms);
    let required = required.enumerate().filter_map(|(at, term)| {
        validate_term(term, &format!("addedAffinity.{REQUIRED}.nodeSelectorTerms[{at}]"))
    });
    // Terms with weight 0 are not validated, as upstream.
    let weighs = |(_, term): &(usize, &PreferredSchedulingTerm)| term.weight != 0;
    let preferred =
        affinity.preferred.iter().enumerate().filter(weighs).filter_map(|(at, term)| {
            validate_term(&term.preference, &format!("addedAffinity.{PREFERRED}[{at}]"))
        });
    required.chain(preferred).collect()
}

fn validate_term(term: &NodeSelectorTerm, path: &str) -> Option<FieldError> {
    CompiledNodeTerm::new(term).err().map(|error| error_at(&error, path))
}

/// A single error names its own field. Several errors come as one text in brackets, which is reported at the term.
fn error_at(error: &SelectorError, path: &str) -> FieldError {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((field, validate_term)) if !text.starts_with('[') => {
            FieldError { path: field.to_owned(), text: validate_term.to_owned() }
                .with_path_prefix(path)
        }
        _ => FieldError { path: path.to_owned(), text },
    }
}
