//! Simulated kubelets (kwok-style): nodes that are ready, and simulated pods on them.
//!
//! | controller | what it does |
//! | --- | --- |
//! | [`NodeController`] | creates nodes, keeps them Ready |
//! | [`NodeLeaseController`] | renews their leases |
//! | [`CsiNodeController`] | registers a CSI driver on them |
//! | [`PodController`] | starts the pods bound to them, completes them, and removes them when they are deleted |
//! | [`StageController`] | plays KWOK stages, in place of the built-in lifecycle |
//!
//! All state is derived from the objects and the time, so that a restart changes nothing. Annotations of a pod set its
//! [lifecycle].

pub mod gotemplate;
pub mod ip_pool;
pub mod jq_query;
pub mod lifecycle;
pub mod node_template;
pub mod stage;

mod csi_node;
mod node;
mod node_lease;
mod pod;
mod stage_controller;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

pub use csi_node::CsiNodeController;
pub use node::NodeController;
pub use node_lease::NodeLeaseController;
pub use pod::PodController;
pub use stage_controller::StageController;

use crate::controller::Controller;
use crate::csi::CsiDriver;
use crate::kind::Kind;
use crate::meta;
use stage::Stage;

/// KWOK's annotation on nodes with a simulated kubelet. Nodes that are created here have it, too.
pub const FAKE_NODE_ANNOTATION: (&str, &str) = ("kwok.x-k8s.io/node", "fake");

/// The nodes with a simulated kubelet: those with the annotation [`FAKE_NODE_ANNOTATION`], and those that a selector selects.
#[derive(Clone, Debug, Default)]
pub struct ManagedNodes {
    /// None selects nothing.
    pub selector: Option<LabelSelector>,
}

impl ManagedNodes {
    /// Whether a node has a simulated kubelet.
    pub fn contains(&self, node: &Node) -> bool {
        let metadata = &node.metadata;
        let is_selected =
            |selector: &LabelSelector| meta::selector_matches(selector, metadata.labels.as_ref());
        meta::annotation_value(metadata, FAKE_NODE_ANNOTATION.0) == Some(FAKE_NODE_ANNOTATION.1)
            || self.selector.as_ref().is_some_and(is_selected)
    }
}

/// Options of the simulated kubelets.
#[derive(Clone, Debug)]
pub struct KubeletOptions {
    /// Nodes to create unless nodes of these names exist.
    pub nodes: Vec<Node>,
    /// The nodes that are simulated.
    pub managed: ManagedNodes,
    /// As kubelets' `nodeLeaseDurationSeconds`: duration of a lease, which is renewed every quarter of it. Zero: no leases; then the
    /// node statuses are updated more often.
    pub lease: Duration,
    /// KWOK stages of nodes and pods. A kind without stages has the built-in lifecycle.
    pub stages: Vec<Stage>,
    /// A simulated CSI driver to register on the nodes.
    pub csi_driver: Option<CsiDriver>,
    /// Seed of the random number generator for jitter.
    pub seed: u64,
}

impl Default for KubeletOptions {
    fn default() -> KubeletOptions {
        KubeletOptions {
            nodes: Vec::new(),
            managed: ManagedNodes::default(),
            lease: Duration::from_secs(40),
            stages: Vec::new(),
            csi_driver: None,
            seed: 0,
        }
    }
}

/// The controllers that simulate kubelets.
pub fn kubelet_controllers(options: KubeletOptions) -> Vec<Box<dyn Controller>> {
    let KubeletOptions { nodes, managed, lease, stages, csi_driver, seed } = options;
    let has_stages = |kind: Kind| stages.iter().any(|stage| stage.kind == kind);
    let staged = |kind: Kind| Box::new(StageController::new(kind, &stages, managed.clone(), seed));
    let heartbeat = if lease.is_zero() { node::HEARTBEAT_WITHOUT_LEASES } else { node::HEARTBEAT };
    let heartbeat = (!has_stages(Kind::Node)).then_some(heartbeat);
    let mut all: Vec<Box<dyn Controller>> = Vec::new();
    if !lease.is_zero() {
        all.push(Box::new(NodeLeaseController::new(managed.clone(), lease, seed)));
    }
    all.push(Box::new(NodeController::new(nodes, managed.clone(), heartbeat)));
    if let Some(driver) = csi_driver {
        all.push(Box::new(CsiNodeController::new(driver, managed.clone())));
    }
    if has_stages(Kind::Node) {
        all.push(staged(Kind::Node));
    }
    if has_stages(Kind::Pod) {
        all.push(staged(Kind::Pod));
    } else {
        all.push(Box::new(PodController::new(managed.clone())));
    }
    all
}

/// Parses an equality-based label selector as `kubectl -l` does: `a=b,c!=d,e,!f`.
///
/// # Errors
///
/// When it is invalid, with the reason.
pub fn parse_label_selector(text: &str) -> Result<LabelSelector, String> {
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
        let wrong = loadmaster_api::selector::label_key_errors(key);
        let wrong_value = value.map(loadmaster_api::selector::label_value_errors);
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
