//! The changes that are tried for a pod.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::{Node, SharedPodSpec, Str, Taint};
use loadmaster_framework::resources::{
    RESOURCE_CPU, RESOURCE_EPHEMERAL_STORAGE, RESOURCE_MEMORY, Resources,
};
use loadmaster_framework::{PodInfo, World};
use loadmaster_stdx::SortCompactly as _;

use super::change::Change;
use crate::world_loader::SchedulingInput;

/// How many taints, kinds of nodes, and other workloads are tried at most.
const N_TAINTS_MAX: usize = 32;
const N_NODE_KINDS_MAX: usize = 32;
const N_WORKLOADS_MAX: usize = 64;

/// The label that every node has of its own.
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";
/// Prefix of the taints for conditions of a node, such as `node.kubernetes.io/not-ready`.
pub(super) const CONDITION_TAINTS: &str = "node.kubernetes.io/";
/// The taint of a cordoned node, which NodeUnschedulable looks for among the tolerations.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// The changes to try, in the order in which they are proposed: requests first.
pub(super) struct Candidates {
    /// Changes of the pod and of the nodes.
    pub own: Vec<Candidate>,
    /// Changes of other workloads.
    pub others: Vec<Candidate>,
    /// Whether some were left out because there are too many.
    pub is_cut: bool,
}

/// A change whose size is open.
pub(super) enum Candidate {
    Request {
        resource: String,
        from: i64,
    },
    Fixed(Change),
    /// The names of all pods of the controller, in the order in which they are removed.
    Workload {
        kind: String,
        namespace: String,
        name: String,
        pods: Vec<String>,
    },
}

impl Candidate {
    pub fn size_max(&self) -> u64 {
        match self {
            Candidate::Request { from, .. } => from.unsigned_abs(),
            Candidate::Fixed(_) => 1,
            Candidate::Workload { pods, .. } => pods.len() as u64,
        }
    }

    /// Whether every size is enough that is larger than one that is enough.
    pub fn is_monotone(&self) -> bool {
        matches!(self, Candidate::Request { .. })
    }

    /// Whether other workloads are changed.
    pub fn is_of_others(&self) -> bool {
        matches!(self, Candidate::Workload { .. })
    }

    /// The change of this size.
    pub fn change(&self, size: u64) -> Change {
        match self {
            Candidate::Request { resource, from } => {
                let to = from.saturating_sub_unsigned(size);
                Change::LowerRequest { resource: resource.clone(), from: *from, to }
            }
            Candidate::Fixed(change) => change.clone(),
            Candidate::Workload { kind, namespace, name, pods } => Change::ScaleDown {
                kind: kind.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                pods: pods
                    .iter()
                    .take(usize::try_from(size).unwrap_or(usize::MAX))
                    .cloned()
                    .collect(),
            },
        }
    }
}

pub(super) fn of(input: &SchedulingInput<'_>) -> Candidates {
    let (pod, world) = (&*input.pod, &input.world);
    let spec = &pod.template.spec;
    let taints = limited(untolerated_taints(world, spec), N_TAINTS_MAX);
    let kinds = limited(node_kinds(world), N_NODE_KINDS_MAX);
    let others = limited(workloads(pod, world), N_WORKLOADS_MAX);
    let is_cut = taints.1 || kinds.1 || others.1;
    // The requests of a pod that is being resized come from its status.
    let requests =
        if pod.resized.is_none() { requests(&pod.template.requests.resources) } else { Vec::new() };
    let fixed = [taints.0, node_selection(spec), constraints_and_terms(spec), kinds.0].concat();
    let own = requests.into_iter().chain(fixed.into_iter().map(Candidate::Fixed)).collect();
    Candidates { own, others: others.0, is_cut }
}

/// At most so many, and whether there were more.
fn limited<T>(mut all: Vec<T>, n_max: usize) -> (Vec<T>, bool) {
    let is_cut = all.len() > n_max;
    all.truncate(n_max);
    (all, is_cut)
}

fn requests(of: &Resources) -> Vec<Candidate> {
    let native = [RESOURCE_CPU, RESOURCE_MEMORY, RESOURCE_EPHEMERAL_STORAGE];
    let scalars = of.scalars.iter().map(|(name, _)| name.as_str());
    let all = native.into_iter().chain(scalars).map(|name| (name, of.amount(name)));
    all.filter(|(_, amount)| *amount > 0)
        .map(|(name, from)| Candidate::Request { resource: name.to_owned(), from })
        .collect()
}

/// The taints of nodes that keep pods away, each once, without those for which the pod has this very toleration.
fn untolerated_taints(world: &World, spec: &SharedPodSpec) -> Vec<Change> {
    let mut all: Vec<Taint> = Vec::new();
    for node in world.node_infos() {
        let cordoned = node.node().spec.unschedulable.then(|| Taint {
            key: Str::new(UNSCHEDULABLE),
            value: Str::default(),
            effect: Str::new(NO_SCHEDULE),
        });
        let hard =
            node.taints().iter().filter(|it| it.effect == NO_SCHEDULE || it.effect == NO_EXECUTE);
        for taint in hard.cloned().chain(cordoned) {
            let is_known = all.contains(&taint);
            let is_tolerated = spec.tolerations.iter().any(|own| {
                own.key == taint.key
                    && own.value == taint.value
                    && own.effect == taint.effect
                    && (own.operator.is_empty() || own.operator == "Equal")
            });
            if !is_known && !is_tolerated {
                all.push(taint);
            }
        }
    }
    let toleration = |Taint { key, value, effect }: Taint| Change::AddToleration {
        key: key.to_string(),
        value: value.to_string(),
        effect: effect.to_string(),
    };
    all.into_iter().map(toleration).collect()
}

fn node_selection(spec: &SharedPodSpec) -> Vec<Change> {
    let labels = spec.node_selector.iter().map(|(key, value)| Change::RemoveNodeSelector {
        key: key.to_string(),
        value: value.to_string(),
    });
    let mut all: Vec<Change> = labels.collect();
    let affinity = spec.affinity.as_deref().and_then(|affinity| affinity.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
        return all;
    };
    for (term, of) in required.node_selector_terms.iter().enumerate() {
        let requirements = of.match_expressions.iter().chain(&of.match_fields);
        // Without its only requirement the term would match no node.
        if requirements.clone().count() > 1 {
            all.extend(requirements.enumerate().map(|(requirement, one)| {
                let key = one.key.to_string();
                Change::RemoveNodeAffinityRequirement { term, requirement, key }
            }));
        }
    }
    all.push(Change::RemoveNodeAffinity {});
    all
}

fn constraints_and_terms(spec: &SharedPodSpec) -> Vec<Change> {
    let constraints = spec.topology_spread_constraints.iter().enumerate();
    let hard = constraints.filter(|(_, it)| it.when_unsatisfiable == "DoNotSchedule");
    let mut all: Vec<Change> = hard
        .map(|(index, it)| Change::RemoveSpreadConstraint {
            index,
            topology_key: it.topology_key.to_string(),
        })
        .collect();
    let Some(affinity) = spec.affinity.as_deref() else { return all };
    let terms = affinity.pod_affinity.iter().flat_map(|it| &it.required).enumerate();
    all.extend(terms.map(|(index, term)| Change::RemovePodAffinityTerm {
        index,
        topology_key: term.topology_key.to_string(),
    }));
    let terms = affinity.pod_anti_affinity.iter().flat_map(|it| &it.required).enumerate();
    all.extend(terms.map(|(index, term)| Change::RemovePodAntiAffinityTerm {
        index,
        topology_key: term.topology_key.to_string(),
    }));
    all
}

/// One node of each kind, the first by row. Nodes of a kind have equal labels, but for the host name, equal taints, but for those of
/// conditions, and equal allocatable amounts.
fn node_kinds(world: &World) -> Vec<Change> {
    let mut kinds: Vec<&Node> = Vec::new();
    for node in world.node_infos() {
        let node: &Node = node.node();
        // More than are tried would not be looked at.
        if kinds.len() <= N_NODE_KINDS_MAX && !kinds.iter().any(|kind| is_same_kind(kind, node)) {
            kinds.push(node);
        }
    }
    kinds.into_iter().map(|node| Change::AddNode { like: node.name().to_owned() }).collect()
}

fn is_same_kind(a: &Node, b: &Node) -> bool {
    let labels = |node: &Node| {
        let labels = node.metadata.labels.iter();
        labels.filter(|(key, _)| **key != HOSTNAME).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let taints = |node: &Node| -> Vec<Taint> {
        let taints = node.spec.taints.iter();
        taints.filter(|taint| !taint.key.starts_with(CONDITION_TAINTS)).cloned().collect()
    };
    let amounts = |node: &Node| Resources::from_resource_list(&node.status.allocatable);
    let labels = [a, b].map(|node| -> Vec<(Str, Str)> { labels(node) });
    labels[0] == labels[1]
        && taints(a) == taints(b)
        && amounts(a) == amounts(b)
        && a.status.declared_features == b.status.declared_features
}

/// The controllers of assigned pods other than the pod's own, without those whose number of pods is that of the nodes.
fn workloads(pod: &PodInfo, world: &World) -> Vec<Candidate> {
    let mut all: BTreeMap<[&Str; 4], Vec<(&Arc<PodInfo>, u32)>> = BTreeMap::new();
    for node in world.node_infos() {
        for other in node.pods().filter(|other| !other.terminating) {
            let (template, own) = (&other.template, &pod.template);
            let Some(owner) = &template.controller else { continue };
            let is_own =
                Some(owner) == own.controller.as_ref() && template.namespace == own.namespace;
            if !is_own && owner.kind != "DaemonSet" && owner.kind != "Node" {
                let key = [&template.namespace, &owner.kind, &owner.name, &owner.api_version];
                all.entry(key).or_default().push((other, node.row().0));
            }
        }
    }
    all.into_iter()
        .map(|([namespace, kind, name, _], pods)| Candidate::Workload {
            kind: kind.to_string(),
            namespace: namespace.to_string(),
            name: name.to_string(),
            pods: in_order_of_removal(kind, pods),
        })
        .collect()
}

/// The names of a controller's pods in the order in which it removes them: the highest ordinal of a StatefulSet first; of others first
/// the pods beside most pods of the same controller, then the newest (what upstream's `ActivePodsWithRanks` compares of running pods).
fn in_order_of_removal(kind: &str, pods: Vec<(&Arc<PodInfo>, u32)>) -> Vec<String> {
    let mut pods: Vec<(&Arc<PodInfo>, u64)> = match kind {
        "StatefulSet" => pods.into_iter().map(|(pod, _)| (pod, ordinal(&pod.name))).collect(),
        _ => {
            let mut n_on_node: BTreeMap<u32, u64> = BTreeMap::new();
            pods.iter().for_each(|(_, row)| *n_on_node.entry(*row).or_default() += 1);
            pods.into_iter().map(|(pod, row)| (pod, n_on_node[&row])).collect()
        }
    };
    pods.sort_compactly_by_key(|(pod, rank)| {
        (Reverse(*rank), Reverse(pod.created.get()), Reverse(pod.name.clone()))
    });
    pods.into_iter().map(|(pod, _)| pod.full_name()).collect()
}

/// The number at the end of a pod's name; 0 without one.
fn ordinal(name: &str) -> u64 {
    let digits = name.rsplit('-').next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}
