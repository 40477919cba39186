//! The plugin's arguments: an affinity that a profile adds to all its pods.

use loadmaster_api::meta::nullable;
use loadmaster_api::pod::{NodeAffinity, PreferredSchedulingTerm};
use loadmaster_api::selector::{CompiledNodeTerm, SelectorError};
use loadmaster_api::{NodeSelectorTerm, Str};
use loadmaster_framework::args::decode;
use loadmaster_framework::{FeatureGates, FieldError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
pub(super) const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Complete arguments from given ones.
pub(super) fn complete(given: &Value, _gates: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let args: Args = decode(given).map_err(|error| vec![error])?;
    let as_error = |error: serde_json::Error| {
        vec![FieldError { path: String::new(), text: error.to_string() }]
    };
    let complete = serde_json::to_value(args).map_err(as_error)?;
    let errors = match added_affinity(&complete).map_err(|error| vec![error])? {
        Some(affinity) => faults(&affinity),
        None => Vec::new(),
    };
    if errors.is_empty() { Ok(complete) } else { Err(errors) }
}

/// The affinity in complete arguments.
pub(super) fn added_affinity(args: &Value) -> Result<Option<NodeAffinity>, FieldError> {
    let added = args.get("addedAffinity").unwrap_or(&Value::Null);
    decode(added).map_err(|error| error.under("addedAffinity"))
}

/// The arguments as a configuration writes them. Types of their own, because those of the API accept unknown fields and
/// are never written.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    added_affinity: Option<Added>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Added {
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
    /// Upstream writes `null` when there is no list.
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

/// One condition, with its fields in the order in which the API writes them.
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

/// What is wrong with the terms.
fn faults(affinity: &NodeAffinity) -> Vec<FieldError> {
    let required = affinity.required.iter().flat_map(|selector| &selector.node_selector_terms);
    let required = required.enumerate().filter_map(|(at, term)| {
        fault(term, &format!("addedAffinity.{REQUIRED}.nodeSelectorTerms[{at}]"))
    });
    // Terms without weight are not looked at, as upstream.
    let weighs = |(_, term): &(usize, &PreferredSchedulingTerm)| term.weight != 0;
    let preferred =
        affinity.preferred.iter().enumerate().filter(weighs).filter_map(|(at, term)| {
            fault(&term.preference, &format!("addedAffinity.{PREFERRED}[{at}]"))
        });
    required.chain(preferred).collect()
}

fn fault(term: &NodeSelectorTerm, path: &str) -> Option<FieldError> {
    CompiledNodeTerm::new(term).err().map(|error| located(&error, path))
}

/// A lone fault names its own field. Several come as one bracketed text, which then stands at the term.
fn located(error: &SelectorError, path: &str) -> FieldError {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((field, fault)) if !text.starts_with('[') => {
            FieldError { path: field.to_owned(), text: fault.to_owned() }.under(path)
        }
        _ => FieldError { path: path.to_owned(), text },
    }
}
