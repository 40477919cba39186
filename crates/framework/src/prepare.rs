//! The incremental form of Filter and Score: one question for all pods of a template, kept current as the world changes.
//!
//! A plugin that implements only [`crate::Filter`] and [`crate::Score`] is right and slow: it is asked node by node. One that also
//! implements [`Prepare`] says where its answer comes from:
//!
//! - a **row-local** part: a verdict and a final score (`0..=100`) that hang on one node and its pods alone;
//! - a **class** part: a few numbers (words) per row, such as "zone 2" or "1 untolerated taint". Rows with equal words are one
//!   class; verdicts and scores that hang on sums over the cluster or on the other feasible nodes are worked out once a class
//!   and decision, never once a row.
//!
//! Both must say exactly what the one-node methods say: the twin tests hold them against each other.

use smallvec::SmallVec;

use crate::MAX_NODE_SCORE;
use crate::pod::PodInfo;
use crate::result::Rejection;
use crate::table::{NodeTable, Row};
use crate::world::World;

/// Numbers that tell the rows of one plugin and template apart.
pub type Words = SmallVec<[i64; 8]>;

/// A plugin's side of the incremental form.
pub trait Prepare: Send + Sync {
    /// Prepares the answers for pods like this one. Counters taken from the world are given back in [`Run::release`].
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> Prepared;
}

/// What [`Prepare::prepare`] answers.
pub enum Prepared {
    /// Neither filters nor scores these pods.
    Skip,
    /// Rejects these pods everywhere.
    Rejected(Rejection),
    /// Answers in parts.
    Run(Box<dyn Run>),
    /// Cannot answer in parts: ask node by node.
    OneByOne,
}

/// What an answer hangs on; tells the engine when to ask again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// [`Run::filter_row`] may reject, and hangs on the node object alone (`false`) or on its pods too.
    pub filter: Option<RowPart>,
    /// [`Run::score_row`] may differ from 0.
    pub score: Option<RowPart>,
    /// [`Run::class_row`] pushes words.
    pub class: Option<RowPart>,
    /// Row-local answers change when the set of nodes or their images change.
    pub node_set: bool,
}

/// What a part of a row's answer hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPart {
    /// The node object alone.
    Node,
    /// The node object and the pods on it.
    Pods,
}

/// A set of rows, one byte each: 1 is a member.
pub type RowSet = [u8];

/// The classes of one decision, as one plugin sees them.
pub struct Classes<'a> {
    /// Words of all plugins, class after class.
    pub words: &'a [i64],
    /// Words a class.
    pub stride: usize,
    /// Where this plugin's words begin within a class.
    pub offset: usize,
    /// How many it has.
    pub n_words: usize,
    /// Rows in each class that passed every row-local filter.
    pub rows: &'a [u32],
    /// Classes that are feasible so far.
    pub feasible: &'a [bool],
}

impl Classes<'_> {
    /// Number of classes.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// This plugin's words of a class.
    pub fn words(&self, class: usize) -> &[i64] {
        let start = class * self.stride + self.offset;
        &self.words[start..start + self.n_words]
    }

    /// Feasible classes that have rows.
    pub fn feasible(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        (0..self.len()).filter(|class| self.feasible[*class] && self.rows[*class] > 0)
    }
}

/// A score is not in `0..=100`. The engine asks one by one then, which says whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// The score, if it is in `0..=100`.
pub fn in_range(score: i64) -> Result<i64, OutOfRange> {
    if (0..=MAX_NODE_SCORE).contains(&score) { Ok(score) } else { Err(OutOfRange) }
}

/// A plugin's answers for one template.
pub trait Run: Send + Sync {
    /// What the answers hang on. Constant during the life of the run.
    fn reads(&self) -> Reads;

    /// Whether PreFilter narrows the nodes for these pods. Of so many nodes fewer may be enough when
    /// `percentageOfNodesToScore` says so: the search is then over those that are left.
    fn narrows(&self) -> bool {
        false
    }

    /// Row-local verdict. Called only for rows that hold a node.
    fn filter_row(&self, nodes: &NodeTable, row: Row) -> bool {
        let _ = (nodes, row);
        true
    }

    /// [`Run::filter_row`] for all members of `set`: takes out those that fail.
    fn filter_all(&self, nodes: &NodeTable, set: &mut RowSet) {
        for (at, member) in set.iter_mut().enumerate() {
            if *member != 0 && !self.filter_row(nodes, Row(at as u32)) {
                *member = 0;
            }
        }
    }

    /// Row-local score, final, in `0..=100`.
    fn score_row(&self, nodes: &NodeTable, row: Row) -> i64 {
        let _ = (nodes, row);
        0
    }

    /// Adds `weight` times [`Run::score_row`] for the members of `set`; what it writes elsewhere does not matter. `Err` when one
    /// of their scores is out of range: what was written does not matter then.
    fn score_all(
        &self,
        nodes: &NodeTable,
        set: &RowSet,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), OutOfRange> {
        for (at, sum) in out.iter_mut().enumerate() {
            if set[at] != 0 {
                *sum += weight * in_range(self.score_row(nodes, Row(at as u32)))?;
            }
        }
        Ok(())
    }

    /// Number of words a class has: constant until [`Run::is_stale`].
    fn n_words(&self) -> usize {
        0
    }

    /// Pushes this plugin's words of a row that passed every row-local filter.
    fn class_row(&self, world: &World, row: Row, out: &mut Words) {
        let _ = (world, row, out);
    }

    /// Verdict of a class.
    fn class_filter(&self, world: &World, words: &[i64]) -> bool {
        let _ = (world, words);
        true
    }

    /// Whether [`Run::class_score`] has anything to add.
    fn scores_classes(&self) -> bool {
        false
    }

    /// Writes the normalised score (`0..=100`) of every feasible class to `out`.
    fn class_score(&self, world: &World, classes: &Classes<'_>, out: &mut [i64]) {
        let _ = (world, classes, out);
    }

    /// Whether the meaning of the words changed, so that the run must be made anew.
    fn is_stale(&self, world: &World) -> bool {
        let _ = world;
        false
    }

    /// Gives back what the run took from the world.
    fn release(&mut self, world: &mut World) {
        let _ = world;
    }
}
