//! The kept index of one template: which rows are feasible, by class and score, brought up to date from the world's changes.

use std::sync::Arc;

use loadmaster_framework::prepare::{OutOfRange, RowPart, Words};
use loadmaster_framework::world::Change;
use loadmaster_framework::{Row, World};
use loadmaster_stdx::Rng;

use crate::evaluate::buckets::Buckets;
use crate::evaluate::incremental::{ClassTable, Question};
use crate::scheduler::survey::NamesOfRows;
use crate::scheduler::{Decision, FeasibleNodes};

/// Answers for one template, row by row.
pub(crate) struct Index {
    buckets: Buckets,
    table: ClassTable,
    /// 1 where the node object itself is acceptable.
    node_passes: Vec<u8>,
    /// The part of the local score that hangs on the node object.
    node_score: Vec<i64>,
    /// Whether a row's score was out of range since the index was made.
    row_scores: Result<(), OutOfRange>,
    /// Number of the first change not taken over yet.
    cursor: u64,
    words: Words,
    /// Feasible nodes that were asked for, by which classes were feasible. `None` once a row came, went, or changed its class.
    nodes: Option<(Vec<bool>, Arc<FeasibleNodes>)>,
}

impl Index {
    /// Asks about every row.
    pub fn new(question: &Question, world: &World) -> Index {
        let n_rows = world.nodes().n_rows();
        let mut index = Index {
            buckets: Buckets::default(),
            table: ClassTable::default(),
            node_passes: vec![0; n_rows],
            node_score: vec![0; n_rows],
            row_scores: Ok(()),
            cursor: world.now(),
            words: Words::new(),
            nodes: None,
        };
        index.buckets.clear(n_rows);
        for row in world.nodes().rows() {
            index.ask_node(question, world, row);
        }
        index
    }

    /// Takes over what changed; `false` when the index must be made anew.
    pub fn catch_up(&mut self, question: &Question, world: &World) -> bool {
        let Some(changes) = world.changes_since(self.cursor) else { return false };
        let n_rows = world.nodes().n_rows();
        self.buckets.grow(n_rows);
        self.node_passes.resize(n_rows, 0);
        self.node_score.resize(n_rows, 0);
        for change in changes {
            match change {
                Change::Pods(row) => self.ask_pods(question, world, *row),
                Change::Node(row) => self.ask_node(question, world, *row),
                Change::NodeSet if question.reads_node_set() => return false,
                Change::NodeSet => {}
                Change::Everything => return false,
            }
        }
        self.cursor = world.now();
        true
    }

    /// Decides among the rows as they are. `Err` when a score is out of range: the index cannot go on then.
    pub fn decide(
        &mut self,
        question: &Question,
        world: &World,
        rng: &mut Rng,
    ) -> Result<Decision, OutOfRange> {
        self.decide_classes(question, world)?;
        let picked = self.buckets.best(&self.table).and_then(|best| {
            let row = self.buckets.pick(&self.table, best, rng)?;
            Some(Decision::Place { row, total: best.total, n_ties: best.n_ties })
        });
        Ok(picked.unwrap_or(Decision::Unschedulable))
    }

    /// The feasible nodes.
    pub fn nodes(
        &mut self,
        question: &Question,
        world: &World,
        names: &mut NamesOfRows,
    ) -> Result<Arc<FeasibleNodes>, OutOfRange> {
        self.decide_classes(question, world)?;
        if let Some((classes, nodes)) = &self.nodes
            && *classes == self.table.feasible
        {
            return Ok(nodes.clone());
        }
        let rows = self.buckets.totals(&self.table).map(|(row, _)| row).collect();
        let nodes = names.of(world, rows);
        self.nodes = Some((self.table.feasible.clone(), nodes.clone()));
        Ok(nodes)
    }

    /// Every feasible row with its total, by row.
    pub fn totals(
        &mut self,
        question: &Question,
        world: &World,
    ) -> Result<impl Iterator<Item = (Row, i64)>, OutOfRange> {
        self.decide_classes(question, world)?;
        Ok(self.buckets.totals(&self.table))
    }

    fn decide_classes(&mut self, question: &Question, world: &World) -> Result<(), OutOfRange> {
        self.row_scores?;
        question.filter_classes(world, &mut self.table);
        question.score_classes(world, &mut self.table)
    }

    /// The row-local score; 0 and a remark where it is out of range.
    fn score_row(&mut self, question: &Question, world: &World, row: Row, which: RowPart) -> i64 {
        question.score_row(world.nodes(), row, which).unwrap_or_else(|error| {
            self.row_scores = Err(error);
            0
        })
    }

    /// The node in a row appeared, changed or went.
    fn ask_node(&mut self, question: &Question, world: &World, row: Row) {
        let nodes = world.nodes();
        let at = row.index();
        let passes = nodes.node(row).is_some() && question.filter_row(nodes, row, RowPart::Node);
        self.node_passes[at] = u8::from(passes);
        self.node_score[at] =
            if passes { self.score_row(question, world, row, RowPart::Node) } else { 0 };
        // Another node may have taken the row.
        self.nodes = None;
        self.leave(question, row);
        if passes {
            self.ask_pods(question, world, row);
        }
    }

    /// The pods on a row changed.
    fn ask_pods(&mut self, question: &Question, world: &World, row: Row) {
        if self.node_passes[row.index()] == 0 {
            return;
        }
        let nodes = world.nodes();
        if !question.filter_row(nodes, row, RowPart::Pods) {
            if self.buckets.get(row).is_some() {
                self.nodes = None;
            }
            self.leave(question, row);
            return;
        }
        let score =
            self.node_score[row.index()] + self.score_row(question, world, row, RowPart::Pods);
        let before = self.buckets.get(row);
        match before {
            Some((class, old)) if !question.words_follow_pods() => {
                if old != score {
                    self.buckets.remove(row);
                    self.buckets.insert(row, class, score);
                }
                return;
            }
            Some((class, _)) => {
                let known = self.table.words(class, question.stride());
                question.update_words(world, row, known, &mut self.words);
            }
            None => question.words(world, row, &mut self.words),
        }
        // Entering before leaving keeps a class alive whose only row stays in it.
        let class = self.table.enter(&self.words);
        if before.is_none_or(|(before, _)| before != class) {
            self.nodes = None;
        }
        self.leave(question, row);
        self.buckets.insert(row, class, score);
    }

    fn leave(&mut self, question: &Question, row: Row) {
        if let Some((class, _)) = self.buckets.get(row) {
            self.buckets.remove(row);
            self.table.leave(class, question.stride());
        }
    }
}
