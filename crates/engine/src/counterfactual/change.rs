//! A change that may make a pod fit, and how it is written.

use std::fmt;

use loadmaster_framework::resources::shown_amount;
use serde::{Deserialize, Serialize};

/// A change of the pod, of other workloads, or of the nodes. Indexes count from 0, as in paths; the text counts from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Change {
    /// The pod requests less of a resource in total: milli-CPU for `cpu`, else bytes or a count.
    LowerRequest { resource: String, from: i64, to: i64 },
    /// The pod tolerates this taint.
    AddToleration { key: String, value: String, effect: String },
    /// A label of the pod's `nodeSelector` is removed.
    RemoveNodeSelector { key: String, value: String },
    /// A requirement of a term of the required node affinity is removed: one of `matchExpressions`, or, counted after these, of
    /// `matchFields`. The term has others.
    RemoveNodeAffinityRequirement { term: usize, requirement: usize, key: String },
    /// The required node affinity is removed.
    RemoveNodeAffinity {},
    /// A topology spread constraint is removed.
    RemoveSpreadConstraint { index: usize, topology_key: String },
    /// A required pod affinity term is removed.
    RemovePodAffinityTerm { index: usize, topology_key: String },
    /// A required pod anti-affinity term is removed.
    RemovePodAntiAffinityTerm { index: usize, topology_key: String },
    /// Another workload has fewer replicas: these pods are removed, in this order.
    ScaleDown { kind: String, namespace: String, name: String, pods: Vec<String> },
    /// One more node: an empty copy of this one, without the taints that Kubernetes adds for conditions of a node, and not cordoned.
    AddNode { like: String },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::LowerRequest { resource, from, to } => {
                let [from, to] = [*from, *to].map(|amount| shown_amount(resource, amount));
                write!(f, "lower its request of {resource} from {from} to {to}")
            }
            Change::AddToleration { key, value, effect } if value.is_empty() => {
                write!(f, "add a toleration of {key}:{effect}")
            }
            Change::AddToleration { key, value, effect } => {
                write!(f, "add a toleration of {key}={value}:{effect}")
            }
            Change::RemoveNodeSelector { key, value } => {
                write!(f, "remove {key}={value} from its nodeSelector")
            }
            Change::RemoveNodeAffinityRequirement { term, key, .. } => {
                let term = term + 1;
                write!(f, "remove the requirement of {key} from term {term} of its node affinity")
            }
            Change::RemoveNodeAffinity {} => f.write_str("remove its required node affinity"),
            Change::RemoveSpreadConstraint { index, topology_key } => {
                write!(f, "remove its topology spread constraint {} ({topology_key})", index + 1)
            }
            Change::RemovePodAffinityTerm { index, topology_key } => {
                write!(f, "remove term {} ({topology_key}) of its pod affinity", index + 1)
            }
            Change::RemovePodAntiAffinityTerm { index, topology_key } => {
                write!(f, "remove term {} ({topology_key}) of its pod anti-affinity", index + 1)
            }
            Change::ScaleDown { kind, namespace, name, pods } => {
                let n = pods.len();
                write!(f, "scale {kind} {namespace}/{name} down by {n}")
            }
            Change::AddNode { like } => write!(f, "add a node like {like}"),
        }
    }
}
