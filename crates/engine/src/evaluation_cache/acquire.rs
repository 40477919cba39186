//! What a new combination of keys shares with others: found by those of its keys on which it depends, or made.

use loadmaster_framework::World;
use loadmaster_framework::incremental::{EvaluatorKey, RowDependency};

use super::{EvaluationCache, KeyId, UNCOUNTED_MAX, by_id};
use crate::evaluate::evaluator_part::EvaluatorPart;
use crate::evaluate::incremental::Evaluator;
use crate::evaluate::node_rows::NodeRows;
use crate::evaluate::row_classes::RowClasses;
use crate::evaluate::row_results::RowResults;
use crate::score_index::SharedRowIndex;

impl EvaluationCache {
    /// The rows that pass a combination's filters of the node object.
    pub(super) fn acquire_node_rows(&mut self, evaluator: &Evaluator, keys: &[KeyId]) -> usize {
        let keys = keys_of(evaluator, keys, |part| part.filters_rows(RowDependency::Node));
        self.node_rows.acquire(keys, NodeRows::default)
    }

    /// The row results of a combination.
    pub(super) fn acquire_row_results(&mut self, evaluator: &Evaluator, keys: &[KeyId]) -> usize {
        let reads_pods = |part: &EvaluatorPart| {
            part.filters_rows(RowDependency::Pods) || part.scores_rows(RowDependency::Pods)
        };
        let keys = keys_of(evaluator, keys, reads_pods);
        self.row_results.acquire(keys, || RowResults::new(evaluator))
    }

    /// The classes of rows of a combination.
    pub(super) fn acquire_row_classes(&mut self, evaluator: &Evaluator, keys: &[KeyId]) -> usize {
        let keys = keys_of(evaluator, keys, |part| part.key_len > 0);
        self.row_classes.acquire(keys, RowClasses::default)
    }

    /// The shared index of rows of a combination.
    pub(super) fn acquire_row_index(
        &mut self,
        world: &World,
        evaluator: &Evaluator,
        keys: &[KeyId],
    ) -> usize {
        let valid_since = world.evaluators_valid_since();
        if self.uncounted_since != valid_since || self.uncounted.len() > UNCOUNTED_MAX {
            self.uncounted.clear();
            self.uncounted_since = valid_since;
        }
        let mut shared = Vec::with_capacity(keys.len());
        for part in evaluator.parts().iter().filter(|part| part.is_indexed()) {
            shared.push(match &part.uncounted {
                Some(uncounted) => self.uncounted_id(part.plugin, uncounted),
                None => keys[part.position],
            });
        }
        self.row_indexes.acquire(shared.into(), SharedRowIndex::default)
    }

    fn uncounted_id(&mut self, plugin: usize, uncounted: &EvaluatorKey) -> KeyId {
        let key = (plugin, uncounted.clone());
        if let Some(id) = self.uncounted.get(&key) {
            return *id;
        }
        let id = KeyId(by_id::id_without_value(self.next_serial()));
        self.uncounted.insert(key, id);
        id
    }
}

/// The keys of the plugins with these parts.
fn keys_of(
    evaluator: &Evaluator,
    keys: &[KeyId],
    is_wanted: impl Fn(&EvaluatorPart) -> bool,
) -> Box<[KeyId]> {
    let parts = evaluator.parts().iter().filter(|part| is_wanted(part));
    parts.map(|part| keys[part.position]).collect()
}
