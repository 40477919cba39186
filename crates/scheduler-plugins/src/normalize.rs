//! Normalizes raw scores to `0..=100` by their minimum and maximum: upstream's NormalizeScore of PodState and NodeResourcesAllocatable.

use loadmaster_framework::MAX_NODE_SCORE;
use loadmaster_framework::extension_points::NodeScore;
use loadmaster_framework::incremental::NodeClasses;

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
pub(crate) fn normalize_scores(scores: &mut [NodeScore]) {
    let Some(range) = ScoreRange::of(scores.iter().map(|node| node.score)) else { return };
    for node in scores {
        node.score = range.normalize(node.score);
    }
}

/// The same for the feasible classes, whose class key is the raw score.
pub(crate) fn normalize_class_scores(classes: &NodeClasses<'_>, out: &mut [i64]) {
    let raw = |class: usize| classes.key(class)[0];
    let Some(range) = ScoreRange::of(classes.feasible().map(raw)) else { return };
    for class in classes.feasible() {
        out[class] = range.normalize(raw(class));
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
