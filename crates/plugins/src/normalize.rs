//! Normalizes raw scores to `0..=100` by their maximum (upstream's `DefaultNormalizeScore`).

use loadmaster_framework::MAX_NODE_SCORE;
use loadmaster_framework::extension_points::NodeScore;
use loadmaster_framework::incremental::NodeClasses;

/// `100 * raw / max`, or its reverse; 0 (reversed: 100) for every node when the maximum is 0. Integer division.
pub(crate) fn normalize_score(raw: i64, max: i64, reverse: bool) -> i64 {
    let score = if max == 0 { 0 } else { MAX_NODE_SCORE * raw / max };
    if reverse { MAX_NODE_SCORE - score } else { score }
}

/// [`normalize_score`] for the feasible nodes.
pub(crate) fn default_normalize_score(scores: &mut [NodeScore], reverse: bool) {
    let max = scores.iter().map(|node| node.score).max().unwrap_or(0).max(0);
    for node in scores {
        node.score = normalize_score(node.score, max, reverse);
    }
}

/// [`normalize_score`] for the feasible classes, whose raw score is element `at` of their class key.
pub(crate) fn normalize_class_scores(
    classes: &NodeClasses<'_>,
    at: usize,
    reverse: bool,
    out: &mut [i64],
) {
    let max = classes.feasible().map(|class| classes.key(class)[at]).max().unwrap_or(0).max(0);
    for class in classes.feasible() {
        out[class] = normalize_score(classes.key(class)[at], max, reverse);
    }
}
