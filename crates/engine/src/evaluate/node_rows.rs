//! The rows that pass the filters that depend only on the node object, kept for all combinations of keys that have these filters in common.
//!
//! Many pods select a pool of nodes, or tolerate the taints of some nodes only. Nodes change seldom: a full scan needs to look only at the
//! rows that are left.

use loadmaster_framework::incremental::RowDependency;
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{EvaluatorCx, NodeRow};

use super::incremental::Evaluator;

/// Rows are listed if at most one of so many passes: a vector loop takes a fraction of the time per row that a list takes.
const ROWS_PER_LISTED: usize = 4;

/// The rows that pass the filters with [`RowDependency::Node`]. All evaluators that are passed to it have equal such filters.
#[derive(Default)]
pub(crate) struct NodeRows {
    rows: Rows,
    /// Sequence number of the first change that is not applied yet; `None` before the first scan.
    cursor: Option<u64>,
}

enum Rows {
    /// By row: 1 if it holds a node that passes.
    Mask(Vec<u8>),
    /// The rows that pass, ascending, if they are few.
    List(Vec<NodeRow>),
}

impl Default for Rows {
    fn default() -> Self {
        Rows::List(Vec::new())
    }
}

impl NodeRows {
    /// The rows that pass, ascending, if they are few.
    pub fn listed(&self) -> Option<&[NodeRow]> {
        match &self.rows {
            Rows::List(rows) => Some(rows),
            Rows::Mask(_) => None,
        }
    }

    /// Adds the rows to an empty set: 1 for each that passes, by row.
    pub fn copy_to(&self, n_rows: usize, set: &mut Vec<u8>) {
        match &self.rows {
            Rows::Mask(mask) => set.extend_from_slice(mask),
            Rows::List(rows) => {
                set.resize(n_rows, 0);
                rows.iter().for_each(|row| set[row.index()] = 1);
            }
        }
    }

    /// Brings the rows up to date.
    pub fn catch_up(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>) {
        let next = cx.world.next_change_seq();
        if self.cursor != Some(next) && self.apply_changes(evaluator, cx).is_none() {
            self.compute_all(evaluator, cx);
        }
        self.cursor = Some(next);
    }

    fn compute_all(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>) {
        let mut mask = cx.nodes().columns().occupied.clone();
        evaluator.filter_rows(cx, RowDependency::Node, &mut mask);
        let n: usize = mask.iter().map(|passes| usize::from(*passes)).sum();
        self.rows = if n * ROWS_PER_LISTED <= mask.len() {
            let rows = (0..).map(NodeRow).zip(mask);
            Rows::List(rows.filter(|(_, passes)| *passes != 0).map(|(row, _)| row).collect())
        } else {
            Rows::Mask(mask)
        };
    }

    /// Applies the changes of the world. `None` if all rows must be computed.
    fn apply_changes(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>) -> Option<()> {
        let n_rows = cx.nodes().n_rows();
        let changes = cx.world.changes_since(self.cursor?)?;
        // A change of pods costs next to nothing, but there may be many.
        if changes.len() > n_rows {
            return None;
        }
        if let Rows::Mask(mask) = &mut self.rows {
            mask.resize(n_rows, 0);
        }
        let depends_on_node_set = || {
            let mut filters = evaluator.row_filters(RowDependency::Node);
            filters.any(|part| part.dependencies.node_set)
        };
        for change in changes {
            match *change {
                WorldChange::Pods(..) => {}
                WorldChange::NodeSet if depends_on_node_set() => return None,
                WorldChange::NodeSet => {}
                WorldChange::Node(row) => {
                    self.set(row, evaluator.row_passes(cx, RowDependency::Node, row));
                }
            }
        }
        let is_long = self.listed().is_some_and(|rows| rows.len() * ROWS_PER_LISTED > n_rows);
        (!is_long).then_some(())
    }

    fn set(&mut self, row: NodeRow, passes: bool) {
        match &mut self.rows {
            Rows::Mask(mask) => mask[row.index()] = u8::from(passes),
            Rows::List(rows) => match (rows.binary_search(&row), passes) {
                (Err(at), true) => rows.insert(at, row),
                (Ok(at), false) => {
                    rows.remove(at);
                }
                _ => {}
            },
        }
    }
}
