//! Brings the cached evaluation of a pod up to date, and decides whether it gets a score index.

use loadmaster_framework::{EvaluatorCx, PodInfo, World};

use super::{Decision, Scheduler};
use crate::combination_id::CombinationId;

/// Maximum number of rows in all score indexes together; about 20 bytes each.
const CACHED_ROWS_MAX: usize = 64 << 20;

/// A shared index is not updated if there is more than one change per this many rows: updating a row costs about as much as eight rows of
/// a full scan. It is not built either if there are more than half as many changes, because building it costs several scans.
const ROWS_PER_CHANGE: usize = 8;

/// Counted rows are not updated if there are more changes than rows: most changes concern none of them, and cost next to nothing. They are
/// not found either if there are more than a quarter as many, because finding them costs several scans.
const ROWS_PER_COUNTED_CHANGE: usize = 1;

/// A score index is always updated over at most so many changes.
const CHANGES_MIN: usize = 32;

/// A score index is never updated over more changes than this; the world's change log is at least as long.
const CHANGES_MAX: usize = 1 << 14;

impl Scheduler {
    /// Updates the cached evaluation of pods with these keys, and decides whether to build a score index if `may_index`. `Err` is the
    /// decision when a plugin panics.
    pub(super) fn refresh(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        may_index: bool,
    ) -> Result<CombinationId, Decision> {
        if !self.profile.reuses_results {
            self.cache.forget_all(world);
        }
        let max = (CACHED_ROWS_MAX / world.nodes().n_rows().max(1)).clamp(16, 4096);
        self.cache.evict_least_recently_used(max, world);
        let found = self.cache.find_or_prepare(&self.profile, world, &self.states, pod);
        let (id, is_new) = found.map_err(|failure| Decision::Failed(failure.to_string()))?;
        if self.cache.update_scans_nodes(id, world) {
            world.update_columns();
        }
        self.update(id, world, may_index, is_new);
        Ok(id)
    }

    fn update(&mut self, id: CombinationId, world: &World, may_index: bool, is_new: bool) {
        let cx = EvaluatorCx { world, states: &self.states };
        let only_user = self.cache.is_only_user_of_row_index(id).then_some(id);
        let needs_classes = is_new && self.cache.has_no_row_classes(id);
        let Some((cached, results, shared)) = self.cache.with_row_index(id) else { return };
        let behind = world.next_change_seq() - cached.checked_at;
        cached.used = self.n_decisions;
        cached.checked_at = world.next_change_seq();
        let evaluator = &cached.evaluator;
        let is_incremental = evaluator.per_node_plugins.is_empty() && evaluator.rejected.is_none();
        let n_rows = world.nodes().n_rows();
        let changes_max =
            |per_change: usize| (n_rows / per_change).clamp(CHANGES_MIN, CHANGES_MAX) as u64;
        let counted_max = changes_max(ROWS_PER_COUNTED_CHANGE);
        // The next pod with these keys makes an index worth its while.
        let is_worth_while = match &cached.index {
            _ if !evaluator.counts_pods() || only_user.is_some() => true,
            Some(_) => behind <= counted_max,
            // The first pod after a rollout: a full scan would look at as many class keys.
            None if is_new => needs_classes || evaluator.counts_nothing(world),
            None => behind <= counted_max / 4,
        };
        let shared_max = changes_max(ROWS_PER_CHANGE);
        let has_index = may_index
            && is_incremental
            && is_worth_while
            && shared.refresh(evaluator, results, cx, (shared_max, !is_new), only_user);
        if !has_index {
            cached.index = None;
            // Full scans of these pods compute the rows that changed, for example beside a plugin without an incremental form.
            if !is_new && evaluator.rejected.is_none() && behind <= shared_max {
                results.catch_up(cx);
            }
            return;
        }
        let caught_up =
            cached.index.as_mut().is_some_and(|index| index.catch_up(evaluator, shared, cx));
        if !caught_up {
            self.cache.build_index(id, cx, counted_max);
        }
    }
}
