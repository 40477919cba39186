//! How many feasible nodes are enough, and where the search for them begins: `percentageOfNodesToScore`.
//!
//! Upstream checks nodes side by side, so that it may find a few more than it wants. Here it is what upstream does with one worker:
//! nodes in order from the rotating start until one more than wanted is found; that one is where the next search begins.

use loadmaster_framework::table::NodeTable;
use loadmaster_framework::{FeatureGates, Row};

/// Upstream's `minFeasibleNodesToFind`.
const N_WANTED_MIN: usize = 100;

/// Upstream's `minFeasibleNodesPercentageToFind`.
const PERCENTAGE_MIN: usize = 5;

/// How many feasible nodes are enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// None are: all nodes are searched.
    All,
    /// So many percent of the nodes.
    Percentage(usize),
    /// The fewer percent the more nodes there are: what upstream does by default.
    Adaptive,
}

impl Search {
    /// What a profile's `percentageOfNodesToScore` means.
    pub fn new(percentage: i32, gates: &FeatureGates) -> Search {
        match usize::try_from(percentage) {
            Ok(0) if gates.adaptive_node_sampling => Search::Adaptive,
            Ok(percentage @ 1..=99) => Search::Percentage(percentage),
            _ => Search::All,
        }
    }

    /// So many of `n_nodes` (upstream's `numFeasibleNodesToFind`). Where nobody scores, the first one will do.
    pub fn n_wanted(self, n_nodes: usize, scores: bool) -> usize {
        let percentage = match self {
            Search::All => return n_nodes,
            Search::Percentage(percentage) => percentage,
            Search::Adaptive => 50usize.saturating_sub(n_nodes / 125).max(PERCENTAGE_MIN),
        };
        if !scores {
            return 1;
        }
        if n_nodes < N_WANTED_MIN {
            return n_nodes;
        }
        (n_nodes * percentage / 100).max(N_WANTED_MIN)
    }
}

/// A search that may end early.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    pub search: Search,
    /// All nodes.
    pub order: &'a [Row],
    /// Where it begins: a place in `order`, or in what PreFilter left of it.
    pub start: usize,
}

impl<'a> Walk<'a> {
    /// These rows, each once, from the start.
    pub fn visit<'b>(&self, rows: &'b [Row]) -> impl Iterator<Item = Row> + use<'b> {
        let start = self.start % rows.len().max(1);
        rows[start..].iter().chain(&rows[..start]).copied()
    }
}

/// The order of the nodes, and where the next search begins.
#[derive(Default)]
pub(crate) struct Course {
    rows: Vec<Row>,
    version: u64,
    pub start: usize,
}

impl Course {
    /// Brings the order up to date.
    pub fn refresh(&mut self, nodes: &NodeTable) {
        let order = nodes.order();
        if order.version() != self.version {
            self.rows = order.rows();
            self.version = order.version();
        }
    }

    pub fn walk(&self, search: Search) -> Walk<'_> {
        Walk { search, order: &self.rows, start: self.start }
    }

    /// So many nodes were looked at.
    pub fn advance(&mut self, n_visited: usize) {
        self.start = (self.start + n_visited) % self.rows.len().max(1);
    }

    /// Leaves the first `n_wanted` members of the set, in order from the start.
    pub fn take_first(&mut self, n_wanted: usize, set: &mut [u8]) {
        let mut n_found = 0;
        let mut n_visited = self.rows.len();
        for (at, row) in self.walk(Search::All).visit(&self.rows).enumerate() {
            let member = &mut set[row.index()];
            if *member == 0 {
                continue;
            }
            n_found += 1;
            if n_found > n_wanted {
                n_visited = n_visited.min(at);
                *member = 0;
            }
        }
        self.advance(n_visited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many() {
        let check = |search: Search, n_nodes, want| {
            assert_eq!(search.n_wanted(n_nodes, true), want, "{search:?} of {n_nodes}");
        };
        check(Search::All, 5000, 5000);
        check(Search::Percentage(10), 99, 99);
        check(Search::Percentage(10), 100, 100);
        check(Search::Percentage(10), 1000, 100);
        check(Search::Percentage(10), 5009, 500);
        check(Search::Percentage(99), 101, 100);
        check(Search::Adaptive, 99, 99);
        check(Search::Adaptive, 100, 100);
        check(Search::Adaptive, 1000, 420);
        check(Search::Adaptive, 5000, 500);
        check(Search::Adaptive, 100_000, 5000);
        assert_eq!(Search::Percentage(50).n_wanted(1000, false), 1);
    }

    #[test]
    fn what_a_percentage_means() {
        let gates = FeatureGates::default();
        let adaptive = FeatureGates { adaptive_node_sampling: true, ..gates.clone() };
        assert_eq!(Search::new(0, &gates), Search::All);
        assert_eq!(Search::new(0, &adaptive), Search::Adaptive);
        assert_eq!(Search::new(30, &adaptive), Search::Percentage(30));
        assert_eq!(Search::new(100, &adaptive), Search::All);
    }
}
