//! Filters and scores of all rows, in blocks. All plugins look at a block before the next one: its columns are then read from memory once, not
//! once per plugin.

use loadmaster_framework::incremental::ScoreOutOfRange;
use loadmaster_framework::{EvaluatorCx, NodeRow};

use super::evaluator_part::EvaluatorPart;
use crate::guard::ExtensionPoint;

/// Number of rows of a block: the columns that the resource plugins read of it, and the sums, take 84 KiB of a second-level cache. Few with debug
/// assertions, so that the small clusters of tests and of the twin have many blocks.
pub(crate) const ROWS_PER_BLOCK: usize = if cfg!(debug_assertions) { 4 } else { 2048 };

/// Removes from `set` the rows that a filter rejects, and writes the weighted sum of the scores of the other rows to `sums`. Other sums mean
/// nothing. Calls `on_block` with the set and the sums of each block.
///
/// # Errors
///
/// When a score is out of range; all sums then mean nothing.
pub(crate) fn filter_and_score<'a>(
    cx: EvaluatorCx<'_>,
    filters: impl Iterator<Item = &'a EvaluatorPart> + Clone,
    scores: impl Iterator<Item = &'a EvaluatorPart> + Clone,
    set: &mut [u8],
    sums: &mut [i64],
    mut on_block: impl FnMut(&[u8], &[i64]),
) -> Result<(), ScoreOutOfRange> {
    let mut in_range = Ok(());
    let blocks = set.chunks_mut(ROWS_PER_BLOCK).zip(sums.chunks_mut(ROWS_PER_BLOCK));
    for (nth, (set, sums)) in blocks.enumerate() {
        let first = NodeRow((nth * ROWS_PER_BLOCK) as u32);
        for part in filters.clone() {
            part.enter(ExtensionPoint::Filter).filter_rows(cx, first, set);
        }
        sums.fill(0);
        for part in scores.clone() {
            let evaluator = part.enter(ExtensionPoint::Score);
            in_range = in_range.and(evaluator.score_rows(cx, first, set, part.weight, sums));
        }
        on_block(set, sums);
    }
    in_range
}
