//! The per-node form of Score: the fewer matching pods in a node's domains, the higher the score.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::{
    Cx, Failure, MAX_NODE_SCORE, NodeInfo, NodeScore, PodInfo, PreScore, PreScoreResult, Score,
    SerialCx, World,
};
use loadmaster_stdx::Map;
use loadmaster_stdx::float::go_ln_of;

use super::constraint::{Constraint, has_all_keys};
use super::{HOSTNAME, PodTopologySpread};

/// The state that PreScore computes for Score (upstream's `preScoreState`).
#[derive(Clone)]
pub(super) struct PreScoreState {
    constraints: Vec<Constraint>,
    /// Nodes without all topology keys are not scored.
    all_keys: bool,
    /// In the order of `constraints`.
    domains: Vec<TopologyPodCounts>,
}

/// The domains of one constraint.
#[derive(Clone)]
struct TopologyPodCounts {
    /// By label value, where a missing label counts as an empty value; not filled for host names, which
    /// are counted per node.
    counts: Map<Str, i64>,
    weight: Weight,
}

impl PreScoreState {
    fn is_ignored(&self, labels: &Labels) -> bool {
        self.all_keys && !has_all_keys(labels, &self.constraints)
    }
}

impl TopologyPodCounts {
    /// The domains of the scored nodes, with the matching pods of all nodes in them.
    fn new(
        constraint: &Constraint,
        scored: &[NodeInfo<'_>],
        world: &World,
        all_keys: bool,
    ) -> Self {
        if constraint.key == HOSTNAME {
            return TopologyPodCounts {
                counts: Map::default(),
                weight: Weight::new(scored.len(), constraint.max_skew),
            };
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
                *count += constraint.pods.count_on_node(node);
            }
        }
        TopologyPodCounts { weight: Weight::new(counts.len(), constraint.max_skew), counts }
    }
}

impl PreScore for PodTopologySpread {
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        nodes: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        if cx.world.nodes().is_empty() {
            return Ok(PreScoreResult::Skip);
        }
        let constraints = self.soft_constraints(cx.world.cluster_objects(), &pod.template);
        let constraints = constraints
            .map_err(|error| Failure::new(format!("calculating preScoreState: {error}")))?;
        if constraints.is_empty() {
            return Ok(PreScoreResult::Skip);
        }
        let all_keys = self.scores_need_all_keys(&pod.template);
        let mut state = PreScoreState { constraints, all_keys, domains: Vec::new() };
        let scored = nodes.iter().filter(|node| !state.is_ignored(node.labels()));
        let scored: Vec<NodeInfo<'_>> = scored.copied().collect();
        let domains = state
            .constraints
            .iter()
            .map(|c| TopologyPodCounts::new(c, &scored, cx.world, all_keys));
        state.domains = domains.collect();
        cx.cycle.set(self.pre_score_state, state);
        Ok(PreScoreResult::Ready)
    }
}

impl Score for PodTopologySpread {
    fn score(&self, cx: Cx<'_>, _pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let Some(state) = cx.cycle.get(self.pre_score_state) else { return Ok(0) };
        if state.is_ignored(node.labels()) {
            return Ok(0);
        }
        let mut sum = 0.0;
        for (constraint, domains) in state.constraints.iter().zip(&state.domains) {
            let Some(domain) = node.labels().get(&constraint.key) else { continue };
            let count = if constraint.key == HOSTNAME {
                constraint.pods.count_on_node(node)
            } else {
                domains.counts.get(domain).copied().unwrap_or(0)
            };
            sum += domains.weight.score(count);
        }
        Ok(rounded(sum))
    }

    fn normalize(
        &self,
        cx: Cx<'_>,
        _pod: &PodInfo,
        scores: &mut [NodeScore],
    ) -> Result<(), Failure> {
        let Some(state) = cx.cycle.get(self.pre_score_state) else { return Ok(()) };
        let nodes = cx.world.nodes();
        let is_ignored = |score: &NodeScore| {
            nodes.node(score.row).is_some_and(|node| state.is_ignored(&node.metadata.labels))
        };
        let mut range = ScoreRange::default();
        for score in scores.iter().filter(|score| !is_ignored(score)) {
            range.add(score.score);
        }
        for score in scores {
            score.score = if is_ignored(score) { 0 } else { range.normalize(score.score) };
        }
        Ok(())
    }
}

/// How much the pods in a domain count.
#[derive(Clone, Copy)]
pub(super) struct Weight {
    per_pod: f64,
    addend: f64,
}

impl Weight {
    /// Constraints with few domains have more pods per domain, which the logarithm of the number of domains compensates (upstream's
    /// `topologyNormalizingWeight`). A larger `max_skew` makes differences between domains count less (upstream's `scoreForCount`).
    pub fn new(n_domains: usize, max_skew: i64) -> Weight {
        Weight { per_pod: go_ln_of(n_domains + 2), addend: (max_skew - 1) as f64 }
    }

    #[inline]
    pub fn score(self, count: i64) -> f64 {
        count as f64 * self.per_pod + self.addend
    }
}

/// Half away from zero, as Go's `math.Round`. The standard library's `round` is a function call.
#[inline]
pub(super) fn rounded(sum: f64) -> i64 {
    // From this number to twice as much, all floating point numbers are whole, and each whole number is one.
    const WHOLE: f64 = (1_u64 << 52) as f64;
    if !(0.0..WHOLE / 2.0).contains(&sum) {
        return rounded_any(sum);
    }
    // The addition rounds half to even, so that a half may be missing.
    let even = ((sum + WHOLE).to_bits() - WHOLE.to_bits()) as i64;
    even + i64::from(sum - even as f64 >= 0.5)
}

#[cold]
fn rounded_any(sum: f64) -> i64 {
    let whole = sum as i64;
    let rest = sum - whole as f64;
    whole.saturating_add(i64::from(rest >= 0.5) - i64::from(rest <= -0.5))
}

/// The lowest and the highest sum of the scored nodes.
#[derive(Clone, Copy)]
pub(super) struct ScoreRange {
    min: i64,
    max: i64,
}

impl Default for ScoreRange {
    fn default() -> Self {
        ScoreRange { min: i64::MAX, max: 0 }
    }
}

impl ScoreRange {
    pub(super) fn add(&mut self, sum: i64) {
        self.min = self.min.min(sum);
        self.max = self.max.max(sum);
    }

    /// Reversed, as fewer pods are better; integer division.
    pub(super) fn normalize(self, sum: i64) -> i64 {
        if self.max == 0 {
            MAX_NODE_SCORE
        } else {
            MAX_NODE_SCORE * (self.max + self.min - sum) / self.max
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn sums_are_rounded_as_by_the_standard_library() {
        let near_half = [0.499_999_999_999_999_94, 0.5, 1.5, 2.5, 3.499_999_999_999_999_6];
        let near_bound = [2_251_799_813_685_247.5, 2_251_799_813_685_248.0];
        let large = [4_503_599_627_370_495.5, 9e15, 1e19, f64::MAX, f64::INFINITY];
        let random = std::iter::repeat_with({
            let mut rng = Rng::new(5);
            move || rng.below(1 << 40) as f64 / 4096.0
        });
        let fixed = near_half.into_iter().chain(near_bound).chain(large).chain([0.0]);
        for sum in fixed.chain(random.take(10_000)) {
            for sum in [sum, -sum] {
                assert_eq!(rounded(sum), sum.round() as i64, "{sum}");
            }
        }
        assert_eq!(rounded(f64::NAN), 0);
    }
}
