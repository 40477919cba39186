//! Scores of one pod on every row: how a formula meets the node table, the same for both plugins.

use std::cell::Cell;

use loadmaster_framework::NodeTable;
use loadmaster_framework::prepare::{OutOfRange, in_range};

use super::amounts::{Demand, Placed};
use super::formula::Formula;
use super::kernel::{self, Fused};

/// A formula with what one pod asks for.
pub(super) struct Scorer {
    formula: Formula,
    placed: Placed,
    /// The formula in lanes, if it is one over two resources.
    fused: Option<Fused>,
}

impl Scorer {
    pub fn new(formula: Formula, demand: Demand, nodes: &NodeTable) -> Scorer {
        let weights = demand.parts.iter().map(|part| part.weight);
        let fused = Fused::new(&formula, weights);
        Scorer { formula, placed: Placed::new(demand, nodes), fused }
    }

    /// The score of one row.
    pub fn score_row(&self, nodes: &NodeTable, at: usize) -> i64 {
        if let (Some(fused), Some(lanes)) = (&self.fused, self.placed.pair(nodes))
            && let Some(score) = fused.score(&lanes, at)
        {
            return score;
        }
        self.exact(nodes, at)
    }

    /// Adds `weight` times the score to the rows of `set`, and anything to other rows. Only absurd amounts, which the lanes
    /// leave to [`Formula::score`], can give a score that is out of range.
    pub fn score_all(
        &self,
        nodes: &NodeTable,
        set: &[u8],
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), OutOfRange> {
        let outcome = Cell::new(Ok(()));
        let exact = |at| {
            in_range(self.exact(nodes, at)).unwrap_or_else(|error| {
                outcome.set(Err(error));
                0
            })
        };
        if let (Some(fused), Some(lanes)) = (&self.fused, self.placed.pair(nodes)) {
            kernel::add_scores(fused, &lanes, set, weight, out, &exact);
        } else {
            for at in (0..out.len()).filter(|at| set[*at] != 0) {
                out[at] = out[at].wrapping_add(weight.wrapping_mul(exact(at)));
            }
        }
        outcome.get()
    }

    /// Whether looking up the columns anew would make the answers faster.
    pub fn is_stale(&self, nodes: &NodeTable) -> bool {
        self.placed.is_stale(nodes)
    }

    fn exact(&self, nodes: &NodeTable, at: usize) -> i64 {
        self.formula.score(self.placed.of_row(nodes, at))
    }
}
