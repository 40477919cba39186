//! Fake kubelets: nodes that are ready, and pods that pretend to run on them.
//!
//! | controller | what it does |
//! | --- | --- |
//! | [`Nodes`] | makes nodes, keeps their status Ready and fresh |
//! | [`Leases`] | renews their leases |
//! | [`Pods`] | starts the pods bound to them, ends them, and takes them away when they are deleted |
//! | [`Staged`] | plays KWOK's stages, in place of what the above do of themselves |
//!
//! All is derived from the objects and the time, so that a restart changes nothing. What a node or a pod of its own wants is said by
//! its annotations ([`life`]).

pub mod address;
pub mod gotemplate;
pub mod life;
pub mod query;
pub mod stage;
pub mod template;

mod lease;
mod node;
mod pod;
mod staged;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

pub use lease::Leases;
pub use node::Nodes;
pub use pod::Pods;
pub use staged::Staged;

use crate::controller::Controller;
use crate::kind::Kind;
use crate::meta;
use stage::Stage;

/// KWOK's annotation on nodes that nobody but a fake kubelet serves. Our own nodes carry it, too.
pub const FAKE: (&str, &str) = ("kwok.x-k8s.io/node", "fake");

/// Which nodes are served: those with the annotation [`FAKE`], and what a selector selects.
#[derive(Clone, Debug, Default)]
pub struct Managed {
    /// None selects nothing.
    pub selector: Option<LabelSelector>,
}

impl Managed {
    /// Whether a node is served.
    pub fn has(&self, node: &Node) -> bool {
        let metadata = &node.metadata;
        let is_selected =
            |selector: &LabelSelector| meta::selects(selector, metadata.labels.as_ref());
        meta::annotation(metadata, FAKE.0) == Some(FAKE.1)
            || self.selector.as_ref().is_some_and(is_selected)
    }
}

/// What the kubelets do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes to make unless there are nodes of these names.
    pub nodes: Vec<Node>,
    /// Nodes to serve.
    pub managed: Managed,
    /// As kubelets' `nodeLeaseDurationSeconds`: a lease holds so long, and is renewed in a quarter of it. Zero: no leases; then the
    /// nodes' statuses are told more often.
    pub lease: Duration,
    /// What happens to nodes and pods. Of a kind that has none the kubelets know by themselves what happens.
    pub stages: Vec<Stage>,
    /// For jitter.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            nodes: Vec::new(),
            managed: Managed::default(),
            lease: Duration::from_secs(40),
            stages: Vec::new(),
            seed: 0,
        }
    }
}

/// The controllers that make up fake kubelets.
pub fn controllers(options: Options) -> Vec<Box<dyn Controller>> {
    let Options { nodes, managed, lease, stages, seed } = options;
    let has_stages = |kind: Kind| stages.iter().any(|stage| stage.kind == kind);
    let staged = |kind: Kind| Box::new(Staged::new(kind, &stages, managed.clone(), seed));
    let heartbeat = if lease.is_zero() { node::HEARTBEAT_WITHOUT_LEASES } else { node::HEARTBEAT };
    let heartbeat = (!has_stages(Kind::Node)).then_some(heartbeat);
    let mut all: Vec<Box<dyn Controller>> = Vec::new();
    if !lease.is_zero() {
        all.push(Box::new(Leases::new(managed.clone(), lease, seed)));
    }
    all.push(Box::new(Nodes::new(nodes, managed.clone(), heartbeat)));
    if has_stages(Kind::Node) {
        all.push(staged(Kind::Node));
    }
    if has_stages(Kind::Pod) {
        all.push(staged(Kind::Pod));
    } else {
        all.push(Box::new(Pods::new(managed.clone())));
    }
    all
}

/// Reads a label selector as `kubectl -l` takes it, without sets: `a=b,c!=d,e,!f`.
///
/// # Errors
///
/// What is wrong with it.
pub fn parse_selector(text: &str) -> Result<LabelSelector, String> {
    let mut expressions = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (key, operator, value) = if let Some((key, value)) = part.split_once("!=") {
            (key, "NotIn", Some(value))
        } else if let Some((key, value)) = part.split_once('=') {
            (key, "In", Some(value.strip_prefix('=').unwrap_or(value)))
        } else if let Some(key) = part.strip_prefix('!') {
            (key, "DoesNotExist", None)
        } else {
            (part, "Exists", None)
        };
        let (key, value) = (key.trim(), value.map(str::trim));
        let wrong = loadmaster_api::selector::label_key_complaints(key);
        let wrong_value = value.map(loadmaster_api::selector::label_value_complaints);
        if let Some(complaint) = wrong.into_iter().chain(wrong_value.into_iter().flatten()).next() {
            return Err(format!("{part:?}: {complaint}"));
        }
        expressions.push(serde_json::json!({"key": key, "operator": operator,
            "values": value.into_iter().collect::<Vec<_>>()}));
    }
    let selector = BTreeMap::from([("matchExpressions", expressions)]);
    serde_json::to_value(selector)
        .and_then(serde_json::from_value)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
