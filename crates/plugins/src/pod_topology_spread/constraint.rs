//! Parsed constraints: which pods a constraint counts, and on which nodes.

use std::sync::Arc;

use loadmaster_api::selector::{RequiredNodeAffinity, SetOperator, required_node_affinity};
use loadmaster_api::{
    LabelSelector, Labels, Node, Selector, Str, Toleration, TopologySpreadConstraint,
};
use loadmaster_framework::topology_counter::{AssignedPod, TopologyCounterSpec, TopologyDeltas};
use loadmaster_framework::{Failure, NodeInfo, PodInfo, PodTemplate};
use smallvec::{SmallVec, smallvec};

use crate::tolerations::TolerationMatcher;

/// Value of `nodeAffinityPolicy` and `nodeTaintsPolicy`.
const HONOR: &str = "Honor";

/// One constraint of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Constraint {
    pub(super) max_skew: i64,
    pub(super) key: Str,
    /// With fewer domains than this the global minimum is taken as 0.
    pub(super) min_domains: i64,
    pub(super) pods: MatchingPods,
    pub(super) nodes: NodeInclusion,
}

/// The pods that a constraint counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatchingPods {
    pub(super) namespace: Str,
    pub(super) selector: Selector,
}

impl MatchingPods {
    /// Whether an existing pod that is not terminating counts. Terminating pods do not, and an empty selector counts no pod, as in upstream
    /// (`countPodsMatchSelector`).
    fn matches(&self, namespace: &Str, labels: &Labels) -> bool {
        *namespace == self.namespace && !self.selector.is_empty() && self.selector.matches(labels)
    }

    /// The number of pods on a node that count.
    pub(super) fn count_on_node(&self, node: NodeInfo<'_>) -> i64 {
        self.on_node(node).count() as i64
    }

    /// The pods on a node that count.
    pub(super) fn on_node<'a>(
        &'a self,
        node: NodeInfo<'a>,
    ) -> impl Iterator<Item = &'a Arc<PodInfo>> {
        node.pods().filter(|pod| {
            let template = &pod.template;
            !pod.terminating && self.matches(&template.namespace, &template.labels)
        })
    }
}

/// Which of the nodes with the constraint's topology key count (node inclusion policies). A condition
/// that excludes no node is not stored, so that constraints of different pods that count the same
/// pods are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeInclusion {
    /// Keys of the pod's other constraints, sorted.
    keys: Box<[Str]>,
    affinity: Option<RequiredNodeAffinity>,
    tolerations: Option<Box<[Toleration]>>,
    toleration_matcher: TolerationMatcher,
}

impl NodeInclusion {
    /// Whether there may be nodes that do not count.
    pub(super) fn may_exclude_nodes(&self) -> bool {
        !self.keys.is_empty() || self.affinity.is_some() || self.tolerations.is_some()
    }

    /// Whether `nodeTaintsPolicy` is Honor.
    pub(super) fn honors_taints(&self) -> bool {
        self.tolerations.is_some()
    }

    pub(super) fn includes(&self, node: &Node) -> bool {
        let labels = &node.metadata.labels;
        // As upstream, an affinity that cannot be evaluated does not match.
        let wanted = |affinity: &RequiredNodeAffinity| {
            affinity.matches(labels, node.name()).unwrap_or(false)
        };
        let tolerated =
            |own: &[Toleration]| self.toleration_matcher.tolerates_all(own, &node.spec.taints);
        self.keys.iter().all(|key| labels.contains_key(key))
            && self.affinity.as_ref().is_none_or(wanted)
            && self.tolerations.as_deref().is_none_or(tolerated)
    }
}

/// Whether a node has the topology keys of all constraints (upstream's `nodeLabelsMatchSpreadConstraints`).
pub(super) fn has_all_keys(labels: &Labels, constraints: &[Constraint]) -> bool {
    constraints.iter().all(|constraint| labels.contains_key(&constraint.key))
}

/// The keys of the pod's labels that a constraint of its own reads.
pub(super) fn label_keys(written: &TopologySpreadConstraint) -> impl Iterator<Item = &Str> {
    let selector = written.label_selector.iter().flat_map(LabelSelector::label_keys);
    selector.chain(&written.match_label_keys)
}

/// Parses the constraints of one pod.
pub(super) struct ConstraintParser<'a> {
    pod: &'a PodTemplate,
    toleration_matcher: TolerationMatcher,
    /// Gate MatchLabelKeysInPodTopologySpread.
    match_label_keys: bool,
    /// Only nodes with the keys of all constraints count.
    all_keys: bool,
}

impl<'a> ConstraintParser<'a> {
    pub(super) fn new(
        pod: &'a PodTemplate,
        toleration_matcher: TolerationMatcher,
        match_label_keys: bool,
        all_keys: bool,
    ) -> Self {
        ConstraintParser { pod, toleration_matcher, match_label_keys, all_keys }
    }

    /// The pod's own constraints with this `whenUnsatisfiable`.
    pub(super) fn own_constraints(
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

    /// The default constraints with this `whenUnsatisfiable`, for the pods that match this selector.
    pub(super) fn default_constraints(
        &self,
        written: &[TopologySpreadConstraint],
        action: &str,
        selector: &Selector,
    ) -> Vec<Constraint> {
        let wanted: Vec<_> = written.iter().filter(|c| c.when_unsatisfiable == *action).collect();
        wanted.iter().map(|c| self.constraint(c, selector.clone(), &wanted)).collect()
    }

    /// The constraint's selector, restricted to pods with the same values of `matchLabelKeys` as this
    /// pod. (By default the API server has merged them already, which does not change the selected
    /// pods.)
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
            pods: MatchingPods { namespace: self.pod.namespace.clone(), selector },
            nodes: self.inclusion(written, all),
        }
    }

    fn inclusion(
        &self,
        written: &TopologySpreadConstraint,
        all: &[&TopologySpreadConstraint],
    ) -> NodeInclusion {
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
        NodeInclusion {
            keys: keys.into(),
            affinity: (honors_affinity && requires)
                .then(|| required_node_affinity(&spec.node_selector, required)),
            tolerations: honors_taints.then(|| spec.tolerations.as_slice().into()),
            toleration_matcher: self.toleration_matcher,
        }
    }
}

/// Counts the pods that match constraints, by domain; the world maintains the counter.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct MatchCounter {
    keys: SmallVec<[Str; 2]>,
    pods: MatchingPods,
    /// `None`: every node counts.
    nodes: Option<NodeInclusion>,
    wants_min: bool,
}

impl MatchCounter {
    /// The counter of a hard constraint.
    pub(super) fn for_filter(constraint: &Constraint) -> MatchCounter {
        MatchCounter { wants_min: true, ..MatchCounter::for_score(constraint) }
    }

    /// The counter of a soft constraint.
    pub(super) fn for_score(constraint: &Constraint) -> MatchCounter {
        let nodes = constraint.nodes.may_exclude_nodes().then(|| constraint.nodes.clone());
        MatchCounter { nodes, ..MatchCounter::on_all_nodes(constraint) }
    }

    /// The same pods, counted on all nodes.
    pub(super) fn on_all_nodes(constraint: &Constraint) -> MatchCounter {
        let keys = smallvec![constraint.key.clone()];
        MatchCounter { keys, pods: constraint.pods.clone(), nodes: None, wants_min: false }
    }

    /// Adds the counter of a constraint to those of others of the same pod: constraints that count the same pods on the same nodes, as the
    /// default ones do, have one. Returns its position, and that of the topology key in it.
    pub(super) fn add_to(self, counters: &mut SmallVec<[MatchCounter; 2]>) -> (usize, usize) {
        let counts_the_same = |other: &MatchCounter| {
            (&self.pods, &self.nodes, self.wants_min)
                == (&other.pods, &other.nodes, other.wants_min)
        };
        let Some(at) = counters.iter().position(counts_the_same) else {
            counters.push(self);
            return (counters.len() - 1, 0);
        };
        let keys = &mut counters[at].keys;
        let known = keys.iter().position(|key| self.keys.contains(key));
        let nth = known.unwrap_or_else(|| {
            keys.extend(self.keys);
            keys.len() - 1
        });
        (at, nth)
    }
}

impl TopologyCounterSpec for MatchCounter {
    fn delta(&self, pod: &AssignedPod<'_>, out: &mut TopologyDeltas) {
        if self.pods.matches(pod.namespace, pod.labels) {
            self.keys.iter().for_each(|key| out.add(key, 1));
        }
    }

    fn label_keys(&self) -> Vec<Str> {
        self.pods.selector.keys().cloned().collect()
    }

    fn namespace(&self) -> Option<&Str> {
        Some(&self.pods.namespace)
    }

    fn counts_terminating_pods(&self) -> bool {
        false
    }

    fn has_node_filter(&self) -> bool {
        self.nodes.is_some()
    }

    fn counts_node(&self, node: &Node) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.includes(node))
    }

    fn tracks_min(&self) -> bool {
        self.wants_min
    }

    fn topology_keys(&self) -> &[Str] {
        &self.keys
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::{FeatureGates, World};
    use serde_json::{Value, json};

    use super::*;

    /// The places of the counters of a pod's soft constraints.
    fn places(constraints: Value) -> Vec<(usize, usize)> {
        let pod = json!({"metadata": {"name": "pod", "namespace": "a", "labels": {"app": "web"}},
            "spec": {"topologySpreadConstraints": constraints}});
        let pod = World::default().parse_pod(&serde_json::from_value(pod).unwrap()).unwrap();
        let parser = ConstraintParser::new(
            &pod.template,
            TolerationMatcher::new(&FeatureGates::default()),
            true,
            false,
        );
        let written = &pod.template.spec.topology_spread_constraints;
        let constraints = parser.own_constraints(written, "ScheduleAnyway").unwrap();
        let mut counters = SmallVec::new();
        let counter_of = |constraint| MatchCounter::for_score(constraint).add_to(&mut counters);
        constraints.iter().map(counter_of).collect()
    }

    #[test]
    fn constraints_that_count_the_same_pods_on_the_same_nodes_have_one_counter() {
        let with = |key: &str, app: &str, taints: &str| {
            json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": app}}, "nodeTaintsPolicy": taints})
        };
        let of = |key| with(key, "web", "Ignore");
        let check = |constraints: Value, want: &[(usize, usize)]| {
            assert_eq!(places(constraints.clone()), want, "{constraints}");
        };
        check(json!([of("zone")]), &[(0, 0)]);
        check(json!([of("zone"), of("host")]), &[(0, 0), (0, 1)]);
        check(json!([of("zone"), of("host"), of("zone")]), &[(0, 0), (0, 1), (0, 0)]);
        check(json!([of("zone"), with("host", "other", "Ignore")]), &[(0, 0), (1, 0)]);
        let others = json!([of("zone"), with("host", "web", "Honor"), of("rack")]);
        check(others, &[(0, 0), (1, 0), (0, 1)]);
    }
}
