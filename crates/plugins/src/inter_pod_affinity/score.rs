//! The per-node form of Score: the weights of all matching terms, summed by topology pair.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_framework::template::{AffinityTerm, WeightedAffinityTerm};
use loadmaster_framework::{
    Cx, Failure, MAX_NODE_SCORE, NodeInfo, NodeScore, PodInfo, PodTemplate, PreScore,
    PreScoreResult, Score, SerialCx, World,
};

use super::terms::{ExistingPod, TopologySums, existing_term_matches, own_term_matches};
use super::{InterPodAffinity, has_preferred_terms};

/// Sums by topology pair, computed in PreScore (upstream's `preScoreState.topologyScore`).
#[derive(Clone)]
pub(super) struct PreScoreState(TopologySums);

/// The properties of the incoming pod that its scores depend on.
#[derive(Clone, Copy)]
pub(super) struct IncomingPod<'a> {
    pub(super) namespace: &'a Str,
    pub(super) labels: &'a Labels,
    pub(super) preferred_affinity: &'a [WeightedAffinityTerm],
    pub(super) preferred_anti_affinity: &'a [WeightedAffinityTerm],
    /// Weight of the required affinity terms of existing pods.
    pub(super) hard_weight: i64,
}

impl IncomingPod<'_> {
    /// Calls `add` with topology key and weight of every matching term between this pod and an existing
    /// one (upstream's `processExistingPod`).
    pub(super) fn process_existing_pod(
        self,
        other: &PodTemplate,
        cluster: &ClusterObjects,
        mut add: impl FnMut(&Str, i64),
    ) {
        let existing = ExistingPod::new(other, cluster);
        for (terms, sign) in [(self.preferred_affinity, 1), (self.preferred_anti_affinity, -1)] {
            for weighted in terms.iter().filter(|w| own_term_matches(&w.term, existing)) {
                add(&weighted.term.topology_key, sign * weighted.weight);
            }
        }
        let matches =
            |term: &AffinityTerm| existing_term_matches(term, self.namespace, self.labels, cluster);
        if self.hard_weight > 0 {
            for term in other.required_affinity.iter().filter(|term| matches(term)) {
                add(&term.topology_key, self.hard_weight);
            }
        }
        for (terms, sign) in [(&other.preferred_affinity, 1), (&other.preferred_anti_affinity, -1)]
        {
            for weighted in terms.iter().filter(|weighted| matches(&weighted.term)) {
                add(&weighted.term.topology_key, sign * weighted.weight);
            }
        }
    }
}

impl InterPodAffinity {
    fn incoming_pod<'a>(&self, pod: &'a PodTemplate) -> IncomingPod<'a> {
        IncomingPod {
            namespace: &pod.namespace,
            labels: &pod.labels,
            preferred_affinity: &pod.preferred_affinity,
            preferred_anti_affinity: &pod.preferred_anti_affinity,
            hard_weight: self.hard_weight,
        }
    }

    fn topology_score(&self, pod: &PodTemplate, world: &World) -> TopologySums {
        let mut sums = TopologySums::default();
        let incoming_pod = self.incoming_pod(pod);
        let every_pod = has_preferred_terms(pod);
        for node in world.node_infos() {
            let mut count = |other: &PodInfo| {
                incoming_pod.process_existing_pod(
                    &other.template,
                    world.cluster_objects(),
                    |key, weight| {
                        sums.add(node.labels(), key, weight);
                    },
                );
            };
            // Without terms of its own, only the terms of existing pods matter.
            if every_pod {
                node.pods().for_each(|other| count(other));
            } else {
                node.pods_with_affinity().for_each(|other| count(other));
            }
        }
        sums
    }
}

impl PreScore for InterPodAffinity {
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        _nodes: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        if !self.scores(&pod.template) {
            return Ok(PreScoreResult::Skip);
        }
        let sums = self.topology_score(&pod.template, cx.world);
        if sums.is_empty() {
            return Ok(PreScoreResult::Skip);
        }
        cx.cycle.set(self.pre_score_state, PreScoreState(sums));
        Ok(PreScoreResult::Ready)
    }
}

impl Score for InterPodAffinity {
    fn score(&self, cx: Cx<'_>, _pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let state = cx.cycle.get(self.pre_score_state);
        Ok(state.map_or(0, |PreScoreState(sums)| sums.of_node(node.labels()).sum()))
    }

    fn normalize(
        &self,
        _cx: Cx<'_>,
        _pod: &PodInfo,
        scores: &mut [NodeScore],
    ) -> Result<(), Failure> {
        let range = ScoreRange::new(scores.iter().map(|node| node.score));
        for node in scores {
            node.score = range.normalize(node.score);
        }
        Ok(())
    }
}

/// The lowest and the highest sum of the feasible nodes.
#[derive(Clone, Copy)]
pub(super) struct ScoreRange {
    min: i64,
    max: i64,
}

impl ScoreRange {
    pub(super) fn new(sums: impl Iterator<Item = i64>) -> ScoreRange {
        let all = ScoreRange { min: i64::MAX, max: i64::MIN };
        sums.fold(all, |all, sum| ScoreRange { min: all.min.min(sum), max: all.max.max(sum) })
    }

    /// Divides first and truncates last, as upstream; 0 where all sums are equal.
    pub(super) fn normalize(self, sum: i64) -> i64 {
        if self.max <= self.min {
            return 0;
        }
        let share = (sum - self.min) as f64 / (self.max - self.min) as f64;
        (MAX_NODE_SCORE as f64 * share) as i64
    }
}
