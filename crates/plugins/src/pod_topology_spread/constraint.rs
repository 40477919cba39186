//! Constraints, parsed: which pods one counts, on which nodes.

use loadmaster_api::selector::{RequiredNodeAffinity, SetOperator, required_node_affinity};
use loadmaster_api::{Labels, Node, Selector, Str, Toleration, TopologySpreadConstraint};
use loadmaster_framework::cluster::Cluster;
use loadmaster_framework::counter::{Counted, Deltas};
use loadmaster_framework::{Failure, NodeInfo, PodTemplate};

use crate::taint_toleration::Tolerance;

/// Value of `nodeAffinityPolicy` and `nodeTaintsPolicy`.
const HONOR: &str = "Honor";

/// One constraint of one pod.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub(super) max_skew: i64,
    pub(super) key: Str,
    /// With fewer domains than this the least count is taken as 0.
    pub(super) min_domains: i64,
    pub(super) pods: Matching,
    pub(super) nodes: Inclusion,
}

/// The pods that are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Matching {
    pub(super) namespace: Str,
    pub(super) selector: Selector,
}

impl Matching {
    /// Whether a pod on a node counts. Terminating pods make room soon; a selector that selects
    /// everything counts nothing, as in upstream.
    pub(super) fn counts(&self, pod: &PodTemplate, terminating: bool) -> bool {
        !terminating
            && pod.namespace == self.namespace
            && !self.selector.is_empty()
            && self.selector.matches(&pod.labels)
    }

    /// How many pods on a node count.
    pub(super) fn n_on(&self, node: NodeInfo<'_>) -> i64 {
        node.pods().filter(|pod| self.counts(&pod.template, pod.terminating)).count() as i64
    }
}

/// Nodes whose pods count, beside that they carry the constraint's own key. Nothing is kept that
/// leaves no node out, so that constraints of different pods which count the same are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Inclusion {
    /// Keys of the pod's other constraints, sorted.
    keys: Box<[Str]>,
    affinity: Option<RequiredNodeAffinity>,
    tolerations: Option<Box<[Toleration]>>,
    tolerance: Tolerance,
}

impl Inclusion {
    /// Whether there may be nodes that are left out.
    pub(super) fn is_selective(&self) -> bool {
        !self.keys.is_empty() || self.affinity.is_some() || self.tolerations.is_some()
    }

    /// Whether the policies look at taints.
    pub(super) fn honors_taints(&self) -> bool {
        self.tolerations.is_some()
    }

    pub(super) fn includes(&self, node: &Node) -> bool {
        let labels = &node.metadata.labels;
        // Upstream takes an affinity that cannot be evaluated for one that does not match.
        let wanted = |affinity: &RequiredNodeAffinity| {
            affinity.matches(labels, node.name()).unwrap_or(false)
        };
        let tolerated = |own: &[Toleration]| self.tolerance.allows(own, &node.spec.taints);
        self.keys.iter().all(|key| labels.contains_key(key))
            && self.affinity.as_ref().is_none_or(wanted)
            && self.tolerations.as_deref().is_none_or(tolerated)
    }
}

/// Whether a node carries the keys of all constraints.
pub(super) fn has_all_keys(labels: &Labels, constraints: &[Constraint]) -> bool {
    constraints.iter().all(|constraint| labels.contains_key(&constraint.key))
}

/// Reads the constraints of one pod.
pub(super) struct Reader<'a> {
    pod: &'a PodTemplate,
    tolerance: Tolerance,
    /// Gate MatchLabelKeysInPodTopologySpread.
    match_label_keys: bool,
    /// Only nodes with the keys of all constraints count.
    all_keys: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        pod: &'a PodTemplate,
        tolerance: Tolerance,
        match_label_keys: bool,
        all_keys: bool,
    ) -> Self {
        Reader { pod, tolerance, match_label_keys, all_keys }
    }

    /// The pod's own constraints of one action.
    pub(super) fn own(
        &self,
        written: &[TopologySpreadConstraint],
        action: &str,
    ) -> Result<Vec<Constraint>, Failure> {
        let wanted: Vec<_> = written.iter().filter(|c| c.when_unsatisfiable == *action).collect();
        let parsed = wanted.iter().map(|constraint| {
            let selector = self.selector(constraint)?;
            Ok(self.constraint(constraint, selector, &wanted))
        });
        parsed.collect()
    }

    /// The default constraints of one action, for pods that this selector picks.
    pub(super) fn defaults(
        &self,
        written: &[TopologySpreadConstraint],
        action: &str,
        selector: &Selector,
    ) -> Vec<Constraint> {
        let wanted: Vec<_> = written.iter().filter(|c| c.when_unsatisfiable == *action).collect();
        wanted.iter().map(|c| self.constraint(c, selector.clone(), &wanted)).collect()
    }

    /// The constraint's selector, narrowed to pods that have the values this pod has under
    /// `matchLabelKeys`. (By default the API server has merged them already, which does not change
    /// what is selected.)
    fn selector(&self, written: &TopologySpreadConstraint) -> Result<Selector, Failure> {
        let selector = Selector::new(written.label_selector.as_ref());
        let mut selector = selector.map_err(|error| Failure::new(error.to_string()))?;
        if self.match_label_keys {
            for key in &written.match_label_keys {
                if let Some(value) = self.pod.labels.get(key) {
                    let value = [value.clone()];
                    selector = selector.with_requirement(key.clone(), SetOperator::In, value);
                }
            }
        }
        Ok(selector)
    }

    fn constraint(
        &self,
        written: &TopologySpreadConstraint,
        selector: Selector,
        all: &[&TopologySpreadConstraint],
    ) -> Constraint {
        Constraint {
            max_skew: i64::from(written.max_skew),
            key: written.topology_key.clone(),
            min_domains: i64::from(written.min_domains.unwrap_or(1)),
            pods: Matching { namespace: self.pod.namespace.clone(), selector },
            nodes: self.inclusion(written, all),
        }
    }

    fn inclusion(
        &self,
        written: &TopologySpreadConstraint,
        all: &[&TopologySpreadConstraint],
    ) -> Inclusion {
        let spec = &self.pod.spec;
        let mut keys: Vec<Str> = Vec::new();
        if self.all_keys {
            let others = all.iter().map(|other| &other.topology_key);
            keys.extend(others.filter(|key| **key != written.topology_key).cloned());
            keys.sort();
            keys.dedup();
        }
        let required = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let required = required.and_then(|affinity| affinity.required.as_ref());
        let requires = !spec.node_selector.is_empty() || required.is_some();
        let honors_affinity =
            written.node_affinity_policy.as_ref().is_none_or(|policy| *policy == HONOR);
        let honors_taints =
            written.node_taints_policy.as_ref().is_some_and(|policy| *policy == HONOR);
        Inclusion {
            keys: keys.into(),
            affinity: (honors_affinity && requires)
                .then(|| required_node_affinity(&spec.node_selector, required)),
            tolerations: honors_taints.then(|| spec.tolerations.as_slice().into()),
            tolerance: self.tolerance,
        }
    }
}

/// The pods that a constraint counts, by domain: a sum that the world keeps.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Spread {
    key: [Str; 1],
    pods: Matching,
    /// `None` counts on every node.
    nodes: Option<Inclusion>,
    wants_min: bool,
}

impl Spread {
    /// What a hard constraint compares.
    pub(super) fn hard(constraint: &Constraint) -> Spread {
        Spread { wants_min: true, ..Spread::soft(constraint) }
    }

    /// What a soft constraint scores.
    pub(super) fn soft(constraint: &Constraint) -> Spread {
        let nodes = constraint.nodes.is_selective().then(|| constraint.nodes.clone());
        Spread { nodes, ..Spread::anywhere(constraint) }
    }

    /// The same pods, wherever they are.
    pub(super) fn anywhere(constraint: &Constraint) -> Spread {
        let key = [constraint.key.clone()];
        Spread { key, pods: constraint.pods.clone(), nodes: None, wants_min: false }
    }
}

impl Counted for Spread {
    fn delta(&self, pod: &PodTemplate, terminating: bool, _cluster: &Cluster, out: &mut Deltas) {
        if self.pods.counts(pod, terminating) {
            out.add(&self.key[0], 1);
        }
    }

    fn is_selective(&self) -> bool {
        self.nodes.is_some()
    }

    fn counts_on(&self, node: &Node) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.includes(node))
    }

    fn wants_min(&self) -> bool {
        self.wants_min
    }

    fn keys(&self) -> &[Str] {
        &self.key
    }
}
