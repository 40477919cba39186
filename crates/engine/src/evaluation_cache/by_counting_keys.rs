//! Builds score indexes, from those of other combinations where that takes less time.

use loadmaster_framework::EvaluatorCx;
use loadmaster_stdx::Map;
use smallvec::SmallVec;

use super::{EvaluationCache, KeyId};
use crate::combination_id::CombinationId;
use crate::score_index::ScoreIndex;

/// The combinations whose counted rows were found last, by their shared index and those of their keys whose counters counted any pod.
///
/// In a rollout, the default constraints of a new ReplicaSet's pods count none yet. Their counted rows are those of the pods of the
/// ReplicaSet before, without what its constraints count.
#[derive(Default)]
pub(super) struct ByCountingKeys(Map<(usize, SmallVec<[KeyId; 2]>), CombinationId>);

/// Maximum number of combinations that are remembered.
const REMEMBERED_MAX: usize = 1 << 12;

impl ByCountingKeys {
    /// Remembers a combination; returns the one before with the same keys.
    fn insert(
        &mut self,
        row_index: usize,
        keys: SmallVec<[KeyId; 2]>,
        id: CombinationId,
    ) -> Option<CombinationId> {
        if self.0.len() >= REMEMBERED_MAX {
            self.0.clear();
        }
        self.0.insert((row_index, keys), id)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl EvaluationCache {
    /// Builds the score index of a combination whose shared index is up to date. That of another combination is brought up to date for it over
    /// at most `changes_max` changes.
    pub fn build_index(&mut self, id: CombinationId, cx: EvaluatorCx<'_>, changes_max: u64) {
        let index = self.index_of_similar(id, cx, changes_max).or_else(|| {
            let cached = self.cached.get(id.0)?;
            let shared = self.row_indexes.get(cached.row_index)?;
            Some(ScoreIndex::new(&cached.evaluator, shared, cx))
        });
        if let Some(cached) = self.cached.get_mut(id.0) {
            cached.index = index.map(Box::new);
        }
    }

    /// The score index of a combination, from that of another one that differs from it only in keys whose counters count no pod for this one.
    fn index_of_similar(
        &mut self,
        id: CombinationId,
        cx: EvaluatorCx<'_>,
        changes_max: u64,
    ) -> Option<ScoreIndex> {
        let cached = self.cached.get(id.0)?;
        let counting = cached.evaluator.parts().iter().filter(|part| part.counts_any(cx.world));
        let keys: SmallVec<_> = counting.map(|part| cached.keys[part.position]).collect();
        if keys.is_empty() {
            return None;
        }
        let row_index = cached.row_index;
        let similar = self.by_counting_keys.insert(row_index, keys, id).filter(|it| *it != id)?;
        let other = self.cached.get_mut(similar.0).filter(|it| it.row_index == row_index)?;
        // One that is too far behind would be built anew for its next pod, too.
        let behind = cx.world.next_change_seq() - other.checked_at;
        let mut index = other.index.take().filter(|_| behind <= changes_max)?;
        let (own, other) = (self.cached.get(id.0)?, self.cached.get(similar.0)?);
        let shared = self.row_indexes.get(row_index)?;
        if !index.catch_up(&other.evaluator, shared, cx) {
            return None;
        }
        let built = index.for_other(&own.evaluator, shared, cx);
        self.cached.get_mut(similar.0)?.index = Some(index);
        built
    }
}
