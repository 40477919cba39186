//! Deciding one pod after the other: picks the cheapest way that gives the exact answer.
//!
//! | way | when | cost |
//! | --- | --- | --- |
//! | kept index | pods like this one came not long ago | a few changed rows and a table of classes |
//! | one pass | pods never seen, or seen too long ago; plugins that must be asked node by node | columns, once over all rows |
//! | one by one | nominated pods, pods with a node name | every plugin about every node |
//!
//! All three agree; the twin tests hold the first two against the third.

use std::sync::Arc;

use loadmaster_framework::template::TemplateId;
use loadmaster_framework::{PluginStates, PodInfo, Row, World};
use loadmaster_stdx::{Map, Rng};

use crate::evaluate::incremental::Question;
use crate::evaluate::{Evaluation, one_by_one};
use crate::kept::Index;
use crate::pass::Pass;
use crate::profile::Profile;

/// What was decided about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Place it here; `n_ties` nodes had this total.
    Place { row: Row, total: i64, n_ties: u64 },
    /// No node is feasible; [`Scheduler::evaluate`] says why.
    Unschedulable,
    /// A plugin failed.
    Failed(String),
}

/// How many rows all kept indexes together may have: about 24 bytes each.
const KEPT_ROWS_MAX: usize = 64 << 20;

/// An index that is more than one change a so many rows behind is not worth catching up with: a changed row costs about as much
/// as twenty rows of a pass.
const ROWS_PER_CHANGE: usize = 20;

/// An index is never caught up over more changes than this; the world remembers at least as many.
const CHANGES_MAX: usize = 1 << 14;

/// What is kept for one template.
struct Kept {
    question: Question,
    index: Option<Index>,
    /// Number of the world's change at its last decision, up to which `question` is known to hold.
    checked_at: u64,
    /// Number of the decision it was last used in.
    used: u64,
}

/// Decides pods of one profile.
pub struct Scheduler {
    profile: Arc<Profile>,
    states: PluginStates,
    kept: Map<TemplateId, Kept>,
    pass: Pass,
    rng: Rng,
    n_decisions: u64,
    check_every: Option<u64>,
    disagreements: Vec<String>,
}

impl Scheduler {
    /// A scheduler that breaks ties by the given chance.
    pub fn new(profile: Arc<Profile>, rng: Rng) -> Self {
        Scheduler {
            states: profile.states.clone(),
            profile,
            kept: Map::default(),
            pass: Pass::default(),
            rng,
            n_decisions: 0,
            check_every: None,
            disagreements: Vec::new(),
        }
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Holds one decision in `n` against asking every plugin about every node.
    pub fn check_every(&mut self, n: u64) {
        self.check_every = (n > 0).then_some(n);
    }

    /// What such checks found: one line a pod whose fast answer was wrong.
    pub fn disagreements(&self) -> &[String] {
        &self.disagreements
    }

    /// Decides a pod. The world's nodes and pods stay as they are: placing the pod is the caller's.
    pub fn decide(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        self.n_decisions += 1;
        if self.check_every.is_some_and(|n| self.n_decisions.is_multiple_of(n)) {
            self.check(world, pod);
        }
        let special = pod.resized.is_some()
            || !pod.node_name.is_empty()
            || !pod.nominated_node_name.is_empty()
            || world.nominated_nodes().next().is_some();
        if special {
            return self.decide_one_by_one(world, pod);
        }
        self.refresh(world, pod);
        let id = pod.template.id;
        let Some(kept) = self.kept.get_mut(&id) else { return Decision::Unschedulable };
        if let Some(index) = &mut kept.index {
            return index.decide(&kept.question, world, &mut self.rng);
        }
        if kept.question.rejected.is_some() {
            return Decision::Unschedulable;
        }
        self.pass.run(&kept.question, &self.profile, world, &mut self.states, pod);
        self.pass.decide(&mut self.rng)
    }

    /// Everything about every node, for a pod that was not placed.
    pub fn evaluate(&mut self, world: &World, pod: &PodInfo) -> Evaluation {
        one_by_one::evaluate(&self.profile, world, &mut self.states.clone(), pod)
    }

    /// The feasible rows with their totals, by row, in the way [`Scheduler::decide`] would go now.
    pub fn totals(&mut self, world: &mut World, pod: &PodInfo) -> Vec<(Row, i64)> {
        self.refresh(world, pod);
        let Some(kept) = self.kept.get_mut(&pod.template.id) else { return Vec::new() };
        let mut totals = match &mut kept.index {
            Some(index) => index.totals(&kept.question, world),
            None if kept.question.rejected.is_some() => Vec::new(),
            None => {
                self.pass.run(&kept.question, &self.profile, world, &mut self.states, pod);
                self.pass.totals()
            }
        };
        totals.sort_unstable();
        totals
    }

    fn decide_one_by_one(&mut self, world: &World, pod: &PodInfo) -> Decision {
        let evaluation = one_by_one::evaluate(&self.profile, world, &mut self.states, pod);
        if let Some(failure) = evaluation.failure {
            return Decision::Failed(failure);
        }
        if let Some(row) = evaluation.only_feasible() {
            let only = evaluation.nodes.iter().find(|node| node.row == row);
            let total = only.and_then(|node| node.total).unwrap_or(0);
            return Decision::Place { row, total, n_ties: 1 };
        }
        let best = evaluation.best();
        let total = evaluation.nodes.iter().filter_map(|node| node.total).max();
        match total {
            Some(total) if !best.is_empty() => {
                Decision::Place { row: *self.rng.pick(&best), total, n_ties: best.len() as u64 }
            }
            _ => Decision::Unschedulable,
        }
    }

    /// Brings what is kept for the pod's template up to date, and decides whether an index is worth having.
    fn refresh(&mut self, world: &mut World, pod: &PodInfo) {
        let id = pod.template.id;
        let now = world.now();
        if let Some(kept) = self.kept.get(&id)
            && !still_holds(kept, world, pod)
        {
            self.forget(id, world);
        }
        if !self.kept.contains_key(&id) {
            self.make_room(world);
            let question = Question::new(&self.profile, world, pod);
            let kept = Kept { question, index: None, checked_at: now, used: 0 };
            self.kept.insert(id, kept);
            self.update(id, world, false);
            return;
        }
        self.update(id, world, true);
    }

    fn update(&mut self, id: TemplateId, world: &World, seen_before: bool) {
        let n_decisions = self.n_decisions;
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let worth = (world.nodes().n_rows() / ROWS_PER_CHANGE).clamp(8, CHANGES_MAX) as u64;
        let behind = world.now() - kept.checked_at;
        kept.used = n_decisions;
        kept.checked_at = world.now();
        let divisible = kept.question.one_by_one.is_empty() && kept.question.rejected.is_none();
        if !seen_before || !divisible || behind > worth {
            kept.index = None;
            return;
        }
        let caught_up =
            kept.index.as_mut().is_some_and(|index| index.catch_up(&kept.question, world));
        if !caught_up {
            kept.index = Some(Index::new(&kept.question, world));
        }
    }

    fn forget(&mut self, id: TemplateId, world: &mut World) {
        if let Some(kept) = self.kept.remove(&id) {
            kept.question.release(world);
        }
    }

    /// Drops what was not used for longest, a quarter at a time.
    fn make_room(&mut self, world: &mut World) {
        let max = (KEPT_ROWS_MAX / world.nodes().n_rows().max(1)).clamp(16, 4096);
        if self.kept.len() < max {
            return;
        }
        let mut by_use: Vec<(u64, TemplateId)> =
            self.kept.iter().map(|(id, kept)| (kept.used, *id)).collect();
        by_use.sort_unstable();
        for (_, id) in by_use.into_iter().take(max / 4) {
            self.forget(id, world);
        }
    }

    fn check(&mut self, world: &mut World, pod: &PodInfo) {
        if world.nominated_nodes().next().is_some() || !pod.node_name.is_empty() {
            return;
        }
        let fast = self.totals(world, pod);
        let slow = one_by_one::totals(&self.evaluate(world, pod));
        if fast != slow {
            let line = format!("{}: fast {fast:?}, one by one {slow:?}", pod.full_name());
            self.disagreements.push(line);
        }
    }
}

fn still_holds(kept: &Kept, world: &World, pod: &PodInfo) -> bool {
    use loadmaster_framework::world::Change;
    if !Arc::ptr_eq(&kept.question.template, &pod.template) || kept.question.is_stale(world) {
        return false;
    }
    match world.changes_since(kept.checked_at) {
        Some(changes) => !changes.contains(&Change::Everything),
        None => false,
    }
}
