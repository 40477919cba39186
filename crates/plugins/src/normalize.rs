//! Bringing raw scores into `0..=100` by their maximum (upstream's `DefaultNormalizeScore`).

use loadmaster_framework::MAX_NODE_SCORE;
use loadmaster_framework::points::NodeScore;
use loadmaster_framework::prepare::Classes;

/// `100 * raw / max`, or its reverse; all 0, or reversed all 100, when the maximum is 0. Integer division.
pub(crate) fn by_max(raw: i64, max: i64, reverse: bool) -> i64 {
    let score = if max == 0 { 0 } else { MAX_NODE_SCORE * raw / max };
    if reverse { MAX_NODE_SCORE - score } else { score }
}

/// [`by_max`] over the feasible nodes.
pub(crate) fn nodes_by_max(scores: &mut [NodeScore], reverse: bool) {
    let max = scores.iter().map(|node| node.score).max().unwrap_or(0).max(0);
    for node in scores {
        node.score = by_max(node.score, max, reverse);
    }
}

/// [`by_max`] over the feasible classes, whose raw score is their word number `word`.
pub(crate) fn classes_by_max(classes: &Classes<'_>, word: usize, reverse: bool, out: &mut [i64]) {
    let max = classes.feasible().map(|class| classes.words(class)[word]).max().unwrap_or(0).max(0);
    for class in classes.feasible() {
        out[class] = by_max(classes.words(class)[word], max, reverse);
    }
}
