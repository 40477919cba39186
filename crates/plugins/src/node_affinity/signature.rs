//! The signature fragments for a pod's node affinity and node selector, in upstream's form: sorted lists of JSON texts, so
//! that the order in the pod spec does not matter.

use loadmaster_api::selector::Requirement;
use loadmaster_api::{NodeSelectorTerm, pod};
use loadmaster_framework::PodTemplate;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use serde::Serialize;
use serde_json::{Value, json};

use super::{affinity_of, args};

pub(super) fn fragments(pod: &PodTemplate) -> Result<Vec<SignFragment>, UnsignablePod> {
    let affinity = match affinity_of(pod) {
        Some(affinity) => affinity_json(affinity)?,
        None => Value::Null,
    };
    let selector = &pod.spec.node_selector;
    let selector = if selector.is_empty() {
        Value::Null
    } else {
        serde_json::to_value(selector).map_err(|_| UnsignablePod)?
    };
    Ok(vec![
        SignFragment { key: "v1.Pod.Spec.Affinity.NodeAffinity", value: affinity },
        SignFragment { key: "v1.Pod.Spec.Affinity.NodeSelector", value: selector },
    ])
}

fn affinity_json(affinity: &pod::NodeAffinity) -> Result<Value, UnsignablePod> {
    let required = affinity.required.iter().flat_map(|selector| &selector.node_selector_terms);
    let required = sorted(required.map(|term| text(&signed_term(term)?)))?;
    let preferred = affinity.preferred.iter().map(|term| {
        text(&SignedPreference { weight: term.weight, preference: signed_term(&term.preference)? })
    });
    Ok(json!({"Required": required, "Preferred": sorted(preferred)?}))
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SignedPreference {
    weight: i32,
    preference: SignedTerm,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SignedTerm {
    match_expressions: Vec<String>,
    match_fields: Vec<String>,
}

fn signed_term(term: &NodeSelectorTerm) -> Result<SignedTerm, UnsignablePod> {
    Ok(SignedTerm {
        match_expressions: sorted(term.match_expressions.iter().map(requirement))?,
        match_fields: sorted(term.match_fields.iter().map(requirement))?,
    })
}

fn requirement(requirement: &Requirement) -> Result<String, UnsignablePod> {
    let Requirement { key, operator, values } = requirement.clone();
    let mut written = args::Requirement { key, operator, values };
    written.values.sort();
    text(&written)
}

fn text(value: &impl Serialize) -> Result<String, UnsignablePod> {
    serde_json::to_string(value).map_err(|_| UnsignablePod)
}

fn sorted(
    texts: impl Iterator<Item = Result<String, UnsignablePod>>,
) -> Result<Vec<String>, UnsignablePod> {
    let mut texts: Vec<String> = texts.collect::<Result<_, _>>()?;
    texts.sort();
    Ok(texts)
}
