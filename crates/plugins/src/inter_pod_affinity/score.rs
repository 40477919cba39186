//! Score node by node: the weights of all terms that speak of a pod, summed by topology.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::cluster::Cluster;
use loadmaster_framework::template::{AffinityTerm, WeightedTerm};
use loadmaster_framework::{
    Cx, Failure, MAX_NODE_SCORE, NodeInfo, NodeScore, PodInfo, PodTemplate, PreScore, PreScored,
    Score, SerialCx, World,
};

use super::terms::{Sums, other_speaks_of, own_speaks_of};
use super::{InterPodAffinity, has_preferred_terms};

/// What Score needs of the whole cluster.
#[derive(Clone)]
pub(super) struct Preferred(Sums);

/// What of the pod at hand decides how it is scored.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) namespace: &'a Str,
    pub(super) labels: &'a Labels,
    pub(super) preferred_affinity: &'a [WeightedTerm],
    pub(super) preferred_anti_affinity: &'a [WeightedTerm],
    /// What required affinity terms of other pods are worth.
    pub(super) hard_weight: i64,
}

impl Subject<'_> {
    /// What a pod on a node is worth to this one, and this one to it: term by term, with its
    /// weight.
    pub(super) fn weigh(
        self,
        other: &PodTemplate,
        cluster: &Cluster,
        mut add: impl FnMut(&Str, i64),
    ) {
        for (terms, sign) in [(self.preferred_affinity, 1), (self.preferred_anti_affinity, -1)] {
            for weighted in terms.iter().filter(|w| own_speaks_of(&w.term, other, cluster)) {
                add(&weighted.term.topology_key, sign * weighted.weight);
            }
        }
        let speaks =
            |term: &AffinityTerm| other_speaks_of(term, self.namespace, self.labels, cluster);
        if self.hard_weight > 0 {
            for term in other.required_affinity.iter().filter(|term| speaks(term)) {
                add(&term.topology_key, self.hard_weight);
            }
        }
        for (terms, sign) in [(&other.preferred_affinity, 1), (&other.preferred_anti_affinity, -1)]
        {
            for weighted in terms.iter().filter(|weighted| speaks(&weighted.term)) {
                add(&weighted.term.topology_key, sign * weighted.weight);
            }
        }
    }
}

impl InterPodAffinity {
    pub(super) fn subject<'a>(&self, pod: &'a PodTemplate) -> Subject<'a> {
        Subject {
            namespace: &pod.namespace,
            labels: &pod.labels,
            preferred_affinity: &pod.preferred_affinity,
            preferred_anti_affinity: &pod.preferred_anti_affinity,
            hard_weight: self.hard_weight,
        }
    }

    fn sums(&self, pod: &PodTemplate, world: &World) -> Sums {
        let mut sums = Sums::default();
        let subject = self.subject(pod);
        let every_pod = has_preferred_terms(pod);
        for node in world.node_infos() {
            let mut count = |other: &PodInfo| {
                subject.weigh(&other.template, world.cluster(), |key, weight| {
                    sums.add(node.labels(), key, weight);
                });
            };
            // Without terms of its own only the terms of others matter.
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
    ) -> Result<PreScored, Failure> {
        if !self.scores(&pod.template) {
            return Ok(PreScored::Skip);
        }
        let sums = self.sums(&pod.template, cx.world);
        if sums.is_empty() {
            return Ok(PreScored::Skip);
        }
        cx.cycle.set(self.preferred, Preferred(sums));
        Ok(PreScored::Ready)
    }
}

impl Score for InterPodAffinity {
    fn score(&self, cx: Cx<'_>, _pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let preferred = cx.cycle.get(self.preferred);
        Ok(preferred.map_or(0, |Preferred(sums)| sums.of_node(node.labels()).sum()))
    }

    fn normalize(
        &self,
        _cx: Cx<'_>,
        _pod: &PodInfo,
        scores: &mut [NodeScore],
    ) -> Result<(), Failure> {
        let range = Range::new(scores.iter().map(|node| node.score));
        for node in scores {
            node.score = range.normalize(node.score);
        }
        Ok(())
    }
}

/// The least and the greatest sum of the feasible nodes.
#[derive(Clone, Copy)]
pub(super) struct Range {
    min: i64,
    max: i64,
}

impl Range {
    pub(super) fn new(sums: impl Iterator<Item = i64>) -> Range {
        let all = Range { min: i64::MAX, max: i64::MIN };
        sums.fold(all, |all, sum| Range { min: all.min.min(sum), max: all.max.max(sum) })
    }

    /// Divided first and truncated last, as upstream does; all 0 where all are equal.
    pub(super) fn normalize(self, sum: i64) -> i64 {
        if self.max <= self.min {
            return 0;
        }
        let share = (sum - self.min) as f64 / (self.max - self.min) as f64;
        (MAX_NODE_SCORE as f64 * share) as i64
    }
}
