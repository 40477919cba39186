//! Score plugins that give every node a raw score, whatever the pod is, and normalize it to `0..=100` by the minimum and the maximum: PodState
//! and NodeResourcesAllocatable.

use std::sync::Arc;

use loadmaster_framework::extension_points::NodeScore;
use loadmaster_framework::incremental::{
    ClassKey, EvaluatorCx, NodeClasses, PluginEvaluator, PrepareCx, ResultDependencies,
    RowDependency,
};
use loadmaster_framework::{
    Cx, ExtensionPoints, Failure, Incremental, MAX_NODE_SCORE, NodeInfo, NodeRow, PodInfo,
    PrepareResult, Score, World,
};

/// What such a plugin defines.
pub(crate) trait RawNodeScore: Send + Sync + 'static {
    /// What of the row the score reads.
    const DEPENDENCY: RowDependency;

    fn raw_score(&self, world: &World, node: NodeInfo<'_>) -> i64;
}

/// Registers the Score plugin, its incremental form, and no events: it rejects no pod.
pub(crate) fn register(points: &mut ExtensionPoints, plugin: impl RawNodeScore) {
    let plugin = Arc::new(NormalizedNodeScore(Arc::new(plugin)));
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_no_events();
}

struct NormalizedNodeScore<P>(Arc<P>);

impl<P: RawNodeScore> Score for NormalizedNodeScore<P> {
    fn score(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(self.0.raw_score(cx.world, node))
    }

    fn normalize(&self, _: Cx<'_>, _: &PodInfo, scores: &mut [NodeScore]) -> Result<(), Failure> {
        normalize_scores(scores);
        Ok(())
    }
}

/// The score does not depend on the pod: all pods share one evaluator.
impl<P: RawNodeScore> Incremental for NormalizedNodeScore<P> {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Evaluator(Box::new(NormalizedNodeScore(self.0.clone())))
    }
}

/// The class of a node is its raw score.
impl<P: RawNodeScore> PluginEvaluator for NormalizedNodeScore<P> {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { class: Some(P::DEPENDENCY), ..ResultDependencies::default() }
    }

    fn class_key_len(&self) -> usize {
        1
    }

    fn class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        out.push(cx.world.node(row).map_or(0, |node| self.0.raw_score(cx.world, node)));
    }

    fn has_class_scores(&self) -> bool {
        true
    }

    fn score_classes(&self, _: EvaluatorCx<'_>, classes: &NodeClasses<'_>, out: &mut [i64]) {
        let raw = |class: usize| classes.key(class)[0];
        let Some(range) = ScoreRange::of(classes.feasible().map(raw)) else { return };
        for class in classes.feasible() {
            out[class] = range.normalize(raw(class));
        }
    }
}

/// The smallest and the largest raw score of the feasible nodes.
struct ScoreRange {
    min: i64,
    max: i64,
}

impl ScoreRange {
    /// `None` without scores.
    fn of(scores: impl Iterator<Item = i64> + Clone) -> Option<ScoreRange> {
        Some(ScoreRange { min: scores.clone().min()?, max: scores.max()? })
    }

    /// `(raw - min) * 100 / (max - min)`, integer division; 0 if all raw scores are equal.
    fn normalize(&self, raw: i64) -> i64 {
        // 128 bits, because raw scores may be as large as the memory of a node times a weight.
        let above_min = |score: i64| i128::from(score) - i128::from(self.min);
        match above_min(self.max) {
            0 => 0,
            range => (above_min(raw) * i128::from(MAX_NODE_SCORE) / range) as i64,
        }
    }
}

/// Normalizes the scores of the feasible nodes.
fn normalize_scores(scores: &mut [NodeScore]) {
    let Some(range) = ScoreRange::of(scores.iter().map(|node| node.score)) else { return };
    for node in scores {
        node.score = range.normalize(node.score);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(raw: &[i64], want: &[i64]) {
        let range = ScoreRange::of(raw.iter().copied()).unwrap();
        let normalized: Vec<i64> = raw.iter().map(|score| range.normalize(*score)).collect();
        assert_eq!(normalized, want);
    }

    #[test]
    fn scores_are_scaled_to_the_whole_range() {
        check(&[7], &[0]);
        check(&[3, 3], &[0, 0]);
        check(&[-2, 0, 1], &[0, 66, 100]);
        check(&[-10, -20, -30], &[100, 50, 0]);
        check(&[i64::MIN, 0, i64::MAX], &[0, 50, 100]);
        assert!(ScoreRange::of([].into_iter()).is_none());
    }
}
