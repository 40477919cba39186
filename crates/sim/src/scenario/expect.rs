//! The expected result for a pod, and the conversion of an oracle's answer to the same form.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::preempt::ExpectedPreemption;

/// The expected scheduling result. Without `nodes` only the fields that are present are compared. A node's text may end after the
/// plugin's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ExpectedResult {
    /// The rejection by PreEnqueue: `SchedulingGates, UnschedulableAndUnresolvable, waiting for ...`.
    pub pre_enqueue: Option<String>,
    /// The rejection by PreFilter.
    pub pre_filter: Option<String>,
    /// The plugins that rejected nodes, if no node is feasible.
    pub pending: Option<Vec<String>>,
    /// Per node `fits`, or plugin, code and reasons.
    pub nodes: Option<IndexMap<String, String>>,
    /// Weighted scores by plugin and node; an empty map means that the plugin did not score.
    pub scores: Option<IndexMap<String, IndexMap<String, i64>>>,
    /// The nodes with the highest total score, of which one is selected.
    pub best: Option<Vec<String>>,
    /// The message of the PodScheduled condition.
    pub message: Option<String>,
}

/// A recorded result.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordedResult {
    Expect(Box<ExpectedResult>),
    Preempt(Box<ExpectedPreemption>),
    /// `Queue`, `Skip`, `Unregistered` or `Error`.
    Hint(String),
    Signature(Option<Map<String, Value>>),
}

/// Signature fragments of plugins that Loadmaster does not have, or that read volumes differently than upstream.
const UNSUPPORTED_FRAGMENTS: [&str; 2] =
    ["v1.Pod.Spec.Volumes.NonSyntheticSources()", "v1.Pod.Spec.DynamicResources"];

impl ExpectedResult {
    /// Converts an answer in the format of `conformance/README.md`, with the scores of these plugins, or of all.
    pub fn from_answer(answer: &Value, scorers: Option<&[String]>) -> ExpectedResult {
        let nodes = || answer["nodes"].as_array().into_iter().flatten();
        let texts = nodes().map(|node| (text(&node["name"]), status(&node["filter"])));
        let best = answer["best"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
        let message = text(&answer["message"]);
        ExpectedResult {
            pre_enqueue: answer.get("preEnqueue").map(status),
            pre_filter: answer.get("preFilter").map(status),
            pending: best
                .is_empty()
                .then(|| rejecting_plugins(answer))
                .filter(|plugins| !plugins.is_empty()),
            nodes: Some(texts.collect()),
            scores: Some(scores(answer, scorers)).filter(|scores| !scores.is_empty()),
            best: Some(best).filter(|best| !best.is_empty()),
            message: Some(message).filter(|message| !message.is_empty()),
        }
    }

    /// Whether nothing was recorded yet.
    pub fn is_empty(&self) -> bool {
        *self == ExpectedResult::default()
    }

    /// The differences to what was found, one per line.
    pub fn differences(&self, found: &ExpectedResult) -> Vec<String> {
        let mut lines = Vec::new();
        // An expectation with nodes is complete: what is absent must be absent.
        let is_whole = self.nodes.is_some();
        let mut field = |name: &str, want: Option<String>, found: Option<String>| {
            if (want.is_some() || is_whole) && want != found {
                let text = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
                lines.push(format!("{name}: expected {}, found {}", text(want), text(found)));
            }
        };
        let list = |list: &Option<Vec<String>>| list.as_ref().map(|list| list.join(", "));
        field("preEnqueue", self.pre_enqueue.clone(), found.pre_enqueue.clone());
        field("preFilter", self.pre_filter.clone(), found.pre_filter.clone());
        field("pending", list(&self.pending), list(&found.pending));
        field("best", list(&self.best), list(&found.best));
        field("message", self.message.clone(), found.message.clone());
        for (name, want) in self.nodes.iter().flatten() {
            let found = found.nodes.iter().flatten().find(|(known, _)| *known == name);
            let found = found.map_or("nothing", |(_, text)| text);
            if want != found && found.split(',').next() != Some(want) {
                lines.push(format!("node {name}: expected {want:?}, found {found:?}"));
            }
        }
        let none = IndexMap::new();
        let (want, found) = (self.scores.iter().flatten(), found.scores.as_ref());
        for (plugin, want) in want {
            let found = found.and_then(|scores| scores.get(plugin)).unwrap_or(&none);
            if want != found {
                lines.push(format!("scores of {plugin}: expected {want:?}, found {found:?}"));
            }
        }
        let wanted =
            |plugin: &str| self.scores.as_ref().is_some_and(|all| all.contains_key(plugin));
        for (plugin, found) in found.into_iter().flatten().filter(|_| is_whole) {
            if !wanted(plugin) {
                lines.push(format!("scores of {plugin}: expected none, found {found:?}"));
            }
        }
        lines
    }
}

impl RecordedResult {
    /// The differences to what was found.
    pub fn differences(&self, found: &RecordedResult) -> Vec<String> {
        match (self, found) {
            (RecordedResult::Expect(want), RecordedResult::Expect(found)) => {
                want.differences(found)
            }
            (RecordedResult::Preempt(want), RecordedResult::Preempt(found)) => {
                want.differences(found)
            }
            (RecordedResult::Signature(Some(want)), RecordedResult::Signature(Some(found))) => {
                let keys = want.iter().filter(|(key, value)| found.get(*key) != Some(value));
                keys.map(|(key, value)| {
                    format!("{key}: expected {value}, found {:?}", found.get(key))
                })
                .collect()
            }
            _ if self == found => Vec::new(),
            _ => vec![format!("expected {self:?}, found {found:?}")],
        }
    }
}

/// The queueing hint in an answer, as scenario files spell it.
pub(super) fn hint(answer: &Value) -> String {
    match answer["hint"].as_str() {
        Some("QueueSkip") => "Skip".to_owned(),
        Some(other) => other.to_owned(),
        None => text(&answer["error"]),
    }
}

/// The signature in an answer, without fragments of plugins that Loadmaster does not have.
pub(super) fn signature(answer: &Value) -> Option<Map<String, Value>> {
    let signature = match &answer["signature"] {
        Value::String(text) => serde_json::from_str(text).ok()?,
        other => other.clone(),
    };
    let mut parts = signature.as_object()?.clone();
    parts.retain(|key, _| !UNSUPPORTED_FRAGMENTS.contains(&key.as_str()));
    Some(parts)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// `fits`, or plugin, code and reasons.
fn status(status: &Value) -> String {
    if status["code"] == "Success" {
        return "fits".to_owned();
    }
    // Upstream lists scalar resources in random order.
    let mut reasons: Vec<String> =
        status["reasons"].as_array().into_iter().flatten().map(text).collect();
    reasons.sort_unstable();
    let head = [text(&status["plugin"]), text(&status["code"])];
    let parts = head.into_iter().chain([reasons.join("; ")]).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(", ")
}

fn rejecting_plugins(answer: &Value) -> Vec<String> {
    let nodes =
        answer["nodes"].as_array().into_iter().flatten().map(|node| &node["filter"]["plugin"]);
    let all = nodes.chain([&answer["preFilter"]["plugin"], &answer["preEnqueue"]["plugin"]]);
    let all: BTreeSet<String> = all.filter(|plugin| plugin.is_string()).map(text).collect();
    all.into_iter().collect()
}

fn scores(answer: &Value, scorers: Option<&[String]>) -> IndexMap<String, IndexMap<String, i64>> {
    let mut scores: IndexMap<String, IndexMap<String, i64>> = IndexMap::new();
    for node in answer["nodes"].as_array().into_iter().flatten() {
        let name = text(&node["name"]);
        for (plugin, score) in node["scores"].as_object().into_iter().flatten() {
            if scorers.is_none_or(|scorers| scorers.contains(plugin)) {
                let score = score.as_i64().unwrap_or_default();
                scores.entry(plugin.clone()).or_default().insert(name.clone(), score);
            }
        }
    }
    let feasible = answer["best"].as_array().is_some_and(|best| !best.is_empty());
    for plugin in scorers.into_iter().flatten().filter(|_| feasible) {
        scores.entry(plugin.clone()).or_default();
    }
    scores
}
