//! Score node by node: the fewer counted pods in a node's domains, the better.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::{
    Cx, Failure, MAX_NODE_SCORE, NodeInfo, NodeScore, PodInfo, PreScore, PreScored, Score,
    SerialCx, World,
};
use loadmaster_stdx::Map;
use loadmaster_stdx::float::go_ln;

use super::constraint::{Constraint, has_all_keys};
use super::{HOSTNAME, PodTopologySpread};

/// What Score needs of the whole cluster.
#[derive(Clone)]
pub(super) struct SoftState {
    constraints: Vec<Constraint>,
    /// Nodes that lack a key are not scored.
    all_keys: bool,
    /// In the order of `constraints`.
    domains: Vec<Domains>,
}

/// The domains of one constraint.
#[derive(Clone)]
struct Domains {
    /// By value, where a missing label counts as an empty one; left empty for host names, which are
    /// counted node by node.
    counts: Map<Str, i64>,
    weight: f64,
}

impl SoftState {
    fn is_ignored(&self, labels: &Labels) -> bool {
        self.all_keys && !has_all_keys(labels, &self.constraints)
    }
}

impl Domains {
    /// The domains of the scored nodes, with what all nodes count for them.
    fn new(
        constraint: &Constraint,
        scored: &[NodeInfo<'_>],
        world: &World,
        all_keys: bool,
    ) -> Self {
        if constraint.key == HOSTNAME {
            return Domains { counts: Map::default(), weight: weight(scored.len()) };
        }
        let missing = Str::default();
        let domain_of =
            |node: &NodeInfo<'_>| node.labels().get(&constraint.key).unwrap_or(&missing).clone();
        let mut counts: Map<Str, i64> = scored.iter().map(|node| (domain_of(node), 0)).collect();
        for node in world.node_infos() {
            let has_key = !all_keys || node.labels().contains_key(&constraint.key);
            if has_key
                && constraint.nodes.includes(node.node())
                && let Some(count) = counts.get_mut(&domain_of(&node))
            {
                *count += constraint.pods.n_on(node);
            }
        }
        Domains { weight: weight(counts.len()), counts }
    }
}

impl PreScore for PodTopologySpread {
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        nodes: &[NodeInfo<'_>],
    ) -> Result<PreScored, Failure> {
        if cx.world.nodes().is_empty() {
            return Ok(PreScored::Skip);
        }
        let constraints = self.soft(cx.world.cluster(), &pod.template);
        let constraints = constraints
            .map_err(|error| Failure::new(format!("calculating preScoreState: {error}")))?;
        if constraints.is_empty() {
            return Ok(PreScored::Skip);
        }
        let all_keys = self.scores_need_all_keys(&pod.template);
        let mut state = SoftState { constraints, all_keys, domains: Vec::new() };
        let scored = nodes.iter().filter(|node| !state.is_ignored(node.labels()));
        let scored: Vec<NodeInfo<'_>> = scored.copied().collect();
        let domains =
            state.constraints.iter().map(|c| Domains::new(c, &scored, cx.world, all_keys));
        state.domains = domains.collect();
        cx.cycle.set(self.soft, state);
        Ok(PreScored::Ready)
    }
}

impl Score for PodTopologySpread {
    fn score(&self, cx: Cx<'_>, _pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let Some(state) = cx.cycle.get(self.soft) else { return Ok(0) };
        if state.is_ignored(node.labels()) {
            return Ok(0);
        }
        let mut sum = 0.0;
        for (constraint, domains) in state.constraints.iter().zip(&state.domains) {
            let Some(domain) = node.labels().get(&constraint.key) else { continue };
            let count = if constraint.key == HOSTNAME {
                constraint.pods.n_on(node)
            } else {
                domains.counts.get(domain).copied().unwrap_or(0)
            };
            sum += score_of_count(count, constraint.max_skew, domains.weight);
        }
        Ok(rounded(sum))
    }

    fn normalize(
        &self,
        cx: Cx<'_>,
        _pod: &PodInfo,
        scores: &mut [NodeScore],
    ) -> Result<(), Failure> {
        let Some(state) = cx.cycle.get(self.soft) else { return Ok(()) };
        let nodes = cx.world.nodes();
        let is_ignored = |score: &NodeScore| {
            nodes.node(score.row).is_some_and(|node| state.is_ignored(&node.metadata.labels))
        };
        let mut range = Range::default();
        for score in scores.iter().filter(|score| !is_ignored(score)) {
            range.add(score.score);
        }
        for score in scores {
            score.score = if is_ignored(score) { 0 } else { range.normalize(score.score) };
        }
        Ok(())
    }
}

/// Few domains would drown beside many, as each holds more pods: the logarithm of their number
/// evens that out.
pub(super) fn weight(n_domains: usize) -> f64 {
    go_ln((n_domains + 2) as f64)
}

/// A greater `max_skew` waters the differences between domains down.
pub(super) fn score_of_count(count: i64, max_skew: i64, weight: f64) -> f64 {
    count as f64 * weight + (max_skew - 1) as f64
}

/// Half away from zero, as Go's `math.Round`.
pub(super) fn rounded(sum: f64) -> i64 {
    sum.round() as i64
}

/// The least and the greatest of the scored nodes' sums.
#[derive(Clone, Copy)]
pub(super) struct Range {
    min: i64,
    max: i64,
}

impl Default for Range {
    fn default() -> Self {
        Range { min: i64::MAX, max: 0 }
    }
}

impl Range {
    pub(super) fn add(&mut self, sum: i64) {
        self.min = self.min.min(sum);
        self.max = self.max.max(sum);
    }

    /// The reverse, as fewer pods are better; in integers.
    pub(super) fn normalize(self, sum: i64) -> i64 {
        if self.max == 0 {
            MAX_NODE_SCORE
        } else {
            MAX_NODE_SCORE * (self.max + self.min - sum) / self.max
        }
    }
}
