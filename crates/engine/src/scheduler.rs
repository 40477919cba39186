//! Deciding one pod after the other: picks the cheapest way that gives the exact answer.
//!
//! | way | when | cost |
//! | --- | --- | --- |
//! | kept index | pods like this one came not long ago | a few changed rows and a table of classes |
//! | one pass | pods never seen, or seen too long ago; plugins that must be asked node by node | columns, once over all rows |
//! | one by one | pods with a node name, pods under an in-place resize, scores out of range | every plugin about every node |
//!
//! Where a few feasible nodes are enough ([`crate::search`]) no index is kept: the pass takes the first ones of the rotating order.
//! Pods whose PreFilter narrows the nodes, and plugins that must be asked node by node, go one by one then.
//!
//! A pod that was promised a node by preemption tries that node first, alone. Nodes that are promised to other pods of at least
//! its priority are asked about one by one, with those pods on them; the rest of the decision goes one of the ways above.
//!
//! All three agree; the twin tests hold the first two against the third.

pub(crate) mod survey;

pub use survey::{Added, FeasibleNodes};

use std::sync::Arc;

use loadmaster_framework::prepare::OutOfRange;
use loadmaster_framework::template::TemplateId;
use loadmaster_framework::{CycleState, Failure, PluginStates, PodInfo, Rejection, Row, World};
use loadmaster_stdx::{Map, Rng};

use crate::evaluate::incremental::Question;
use crate::evaluate::one_by_one::{self, Attempted};
use crate::evaluate::{Evaluation, Extended, NodeVerdict, Rejected};
use crate::guard::{self, Panic};
use crate::kept::Index;
use crate::pass::Pass;
use crate::profile::Profile;
use crate::search::{Course, Search};
use survey::NamesOfRows;

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
    course: Course,
    n_decisions: u64,
    check_every: Option<u64>,
    disagreements: Vec<String>,
    /// What the last decision left in the cycle state, and for which plugins.
    cycle: (CycleState, Vec<usize>),
    names: NamesOfRows,
    /// What the last survey found, if a kept index answered it.
    surveyed: Option<Arc<FeasibleNodes>>,
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
            course: Course::default(),
            n_decisions: 0,
            check_every: None,
            disagreements: Vec::new(),
            cycle: (CycleState::default(), Vec::new()),
            names: NamesOfRows::default(),
            surveyed: None,
        }
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The plugins' states.
    pub fn states(&self) -> &PluginStates {
        &self.states
    }

    /// The plugins' states, for the points that are called one after the other.
    pub fn states_mut(&mut self) -> &mut PluginStates {
        &mut self.states
    }

    /// Holds one decision in `n` against asking every plugin about every node.
    pub fn check_every(&mut self, n: u64) {
        self.check_every = (n > 0).then_some(n);
    }

    /// What such checks found: one line a pod whose fast answer was wrong.
    pub fn disagreements(&self) -> &[String] {
        &self.disagreements
    }

    /// Where a search that ends early begins. All profiles of an engine share it.
    pub fn search_start(&self) -> usize {
        self.course.start
    }

    /// Lets the next such search begin there.
    pub fn search_from(&mut self, start: usize) {
        self.course.start = start;
    }

    /// A plugin panicked: all that it had a hand in is made anew. Its state is again what it was at first, if it may have been
    /// changed in part.
    pub fn recover(&mut self, panic: &Panic, world: &mut World) {
        self.forget_all(world);
        let mut plugins = self.profile.plugins.iter();
        let plugin = plugins.find(|plugin| plugin.name == panic.who.plugin);
        if let Some(plugin) = plugin.filter(|_| panic.site.may_tear()) {
            self.states.reset(plugin.states.clone(), &self.profile.states);
        }
    }

    /// Decides a pod. The world's nodes and pods stay as they are: placing the pod is the caller's.
    pub fn decide(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        let n_panics = guard::n_panics();
        let slow = self.is_checked(world, pod).then(|| self.evaluate(world, pod));
        let decided = guard::section(|| self.decide_by_kind(world, pod));
        let decided = decided.unwrap_or_else(|caught| {
            let (_, failure) = caught.note(&self.profile);
            self.start_over(world);
            Decision::Failed(failure.to_string())
        });
        // A plugin that panics fails one of both, and that is no news.
        if let Some(slow) = slow.filter(|_| guard::n_panics() == n_panics) {
            self.check(pod, &slow, &decided);
        }
        decided
    }

    /// Whether the next decision is held against asking every plugin; the way it is made is the same. Not where a node was promised to
    /// some pod, or where the search ends early.
    fn is_checked(&self, world: &World, pod: &PodInfo) -> bool {
        self.check_every.is_some_and(|n| (self.n_decisions + 1).is_multiple_of(n))
            && self.profile.search == Search::All
            && world.nominated_nodes().next().is_none()
            && pod.nominated_node_name.is_empty()
            && pod.node_name.is_empty()
    }

    fn decide_by_kind(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        self.n_decisions += 1;
        self.surveyed = None;
        if let Some(row) = self.promised(world, pod) {
            return Decision::Place { row, total: 0, n_ties: 1 };
        }
        if pod.resized.is_some() || !pod.node_name.is_empty() {
            return self.decide_one_by_one(world, pod);
        }
        let promised = match self.promised_to_others(world, pod) {
            Ok(rows) => rows,
            Err(failure) => return Decision::Failed(failure),
        };
        let search = self.profile.search;
        let n_nodes = world.nodes().len();
        let n_wanted = search.n_wanted(n_nodes, !self.profile.score.is_empty());
        let ends_early = n_wanted < n_nodes;
        if let Err(failure) = self.refresh(world, pod, !ends_early) {
            return Decision::Failed(failure.to_string());
        }
        let id = pod.template.id;
        let Some(kept) = self.kept.get_mut(&id) else { return Decision::Unschedulable };
        // Whom PreFilter leaves is searched, and a plugin that fails counts only where it is asked.
        let asks = kept.question.narrows() || ends_early && !kept.question.one_by_one.is_empty();
        if search != Search::All && asks {
            return self.decide_one_by_one(world, pod);
        }
        if let Some(index) = &mut kept.index
            && promised.is_empty()
        {
            if let Ok(decision) = index.decide(&kept.question, world, &mut self.rng) {
                return decision;
            }
            kept.index = None;
            return self.decide_one_by_one(world, pod);
        }
        if kept.question.rejected.is_some() {
            return Decision::Unschedulable;
        }
        let question = &kept.question;
        if ends_early {
            self.course.refresh(world.nodes());
        }
        let early = ends_early.then_some((&mut self.course, n_wanted));
        self.pass.run(question, &self.profile, world, &mut self.states, pod, &promised, early);
        self.cycle = (self.pass.take_cycle(), question.one_by_one.clone());
        match self.pass.decide(&mut self.rng) {
            Ok(decision) => decision,
            Err(OutOfRange) => self.decide_one_by_one(world, pod),
        }
    }

    /// What the plugins remember of the last decision, for those that go on with the pod in its binding cycle. `Err` when one
    /// of them now says something else than when it decided.
    pub fn take_cycle(
        &mut self,
        world: &World,
        pod: &PodInfo,
        row: Row,
    ) -> Result<CycleState, Rejected> {
        let (cycle, asked) = std::mem::take(&mut self.cycle);
        let late = &self.profile.late;
        let missing: Vec<usize> =
            late.iter().copied().filter(|plugin| !asked.contains(plugin)).collect();
        if missing.is_empty() {
            return Ok(cycle);
        }
        let states = &mut self.states;
        one_by_one::replay(&self.profile, world, states, pod, (row, &missing), cycle)
    }

    /// One of some rows, each with the same chance; there is at least one.
    pub fn pick(&mut self, rows: &[Row]) -> Row {
        *self.rng.pick(rows)
    }

    /// The row of the node that the pod was promised, if it fits there (upstream's `evaluateNominatedNode`).
    pub fn promised(&mut self, world: &World, pod: &PodInfo) -> Option<Row> {
        self.cycle = Default::default();
        if pod.nominated_node_name.is_empty() {
            return None;
        }
        let row = world.nodes().row(&pod.nominated_node_name)?;
        let states = &mut self.states;
        let verdicts = one_by_one::verdicts(&self.profile, world, states, pod, &[row]).ok()?;
        matches!(verdicts.as_slice(), [Ok(())]).then_some(row)
    }

    /// Rows that the pod cannot have because of the pods that are nominated to them. The others among the nominated rows are
    /// decided like any row.
    fn promised_to_others(&mut self, world: &World, pod: &PodInfo) -> Result<Vec<Row>, String> {
        let keeps = |other: &Arc<PodInfo>| {
            other.template.priority() >= pod.template.priority() && other.uid != pod.uid
        };
        let nodes = world.nominated_nodes();
        let nodes = nodes.filter(|node| world.nominated(node).iter().any(keeps));
        let mut rows: Vec<Row> = nodes.filter_map(|node| world.nodes().row(node)).collect();
        if rows.is_empty() {
            return Ok(rows);
        }
        rows.sort_unstable();
        let states = &mut self.states;
        match one_by_one::verdicts(&self.profile, world, states, pod, &rows) {
            Err(Rejected { rejection: Rejection::Failed(failure), .. }) => Err(failure.to_string()),
            // The usual way finds the same rejection.
            Err(_) => Ok(Vec::new()),
            Ok(verdicts) => {
                let mut kept_from = Vec::new();
                for (row, verdict) in rows.into_iter().zip(verdicts) {
                    match verdict {
                        Ok(()) => {}
                        Err(Rejected { rejection: Rejection::Failed(failure), .. }) => {
                            return Err(failure.to_string());
                        }
                        Err(_) => kept_from.push(row),
                    }
                }
                Ok(kept_from)
            }
        }
    }

    /// Everything about every node, for a pod that was not placed.
    pub fn evaluate(&mut self, world: &World, pod: &PodInfo) -> Evaluation {
        one_by_one::evaluate(&self.profile, world, &mut self.states.clone(), pod)
    }

    /// The same, with what PostFilter goes on with.
    pub fn attempt(&mut self, world: &World, pod: &PodInfo, extended: &Extended) -> Attempted {
        one_by_one::search(&self.profile, world, &mut self.states, pod, None, extended)
    }

    /// Whether the last decision about such a pod holds for all pods of its template: every plugin decides by the template.
    pub fn answers_by_template(&self, pod: &PodInfo) -> bool {
        let kept = self.kept.get(&pod.template.id);
        kept.is_some_and(|kept| kept.question.one_by_one.is_empty())
    }

    /// The feasible rows with their totals, by row, in the way [`Scheduler::decide`] would go now; none when a plugin fails.
    pub fn totals(&mut self, world: &mut World, pod: &PodInfo) -> Vec<(Row, i64)> {
        let totals = guard::section(|| self.totals_by_kind(world, pod));
        totals.unwrap_or_else(|caught| {
            caught.note(&self.profile);
            self.start_over(world);
            Vec::new()
        })
    }

    fn totals_by_kind(&mut self, world: &mut World, pod: &PodInfo) -> Vec<(Row, i64)> {
        let is_known = self.refresh(world, pod, true).is_ok();
        let kept = self.kept.get_mut(&pod.template.id).filter(|_| is_known);
        let Some(kept) = kept else { return Vec::new() };
        let totals = match &mut kept.index {
            Some(index) => index.totals(&kept.question, world).map(Iterator::collect),
            None if kept.question.rejected.is_some() => Ok(Vec::new()),
            None => {
                self.pass.run(
                    &kept.question,
                    &self.profile,
                    world,
                    &mut self.states,
                    pod,
                    &[],
                    None,
                );
                self.pass.totals()
            }
        };
        totals.unwrap_or_else(|OutOfRange| one_by_one::totals(&self.evaluate(world, pod)))
    }

    fn decide_one_by_one(&mut self, world: &World, pod: &PodInfo) -> Decision {
        let evaluation = self.search(world, pod, true, &Extended::default());
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

    /// Asks every plugin node by node, in the order of the profile's search if it may end early.
    fn search(
        &mut self,
        world: &World,
        pod: &PodInfo,
        may_end_early: bool,
        extended: &Extended,
    ) -> Evaluation {
        let search = self.profile.search;
        let walks = may_end_early && search != Search::All;
        if walks {
            self.course.refresh(world.nodes());
        }
        let walk = walks.then(|| self.course.walk(search));
        let states = &mut self.states;
        let Attempted { evaluation, n_visited, .. } =
            one_by_one::search(&self.profile, world, states, pod, walk, extended);
        if walks {
            self.course.advance(n_visited);
        }
        evaluation
    }

    /// Brings what is kept for the pod's template up to date, and decides whether an index is worth having, if it may have one.
    fn refresh(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        may_index: bool,
    ) -> Result<(), Failure> {
        let id = pod.template.id;
        let now = world.now();
        if let Some(kept) = self.kept.get(&id)
            && !still_holds(kept, world, pod)
        {
            self.forget(id, world);
        }
        if !self.kept.contains_key(&id) {
            self.make_room(world);
            let question = Question::new(&self.profile, world, pod)?;
            let kept = Kept { question, index: None, checked_at: now, used: 0 };
            self.kept.insert(id, kept);
            self.update(id, world, false);
            return Ok(());
        }
        self.update(id, world, may_index);
        Ok(())
    }

    fn update(&mut self, id: TemplateId, world: &World, may_index: bool) {
        let n_decisions = self.n_decisions;
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let worth = (world.nodes().n_rows() / ROWS_PER_CHANGE).clamp(8, CHANGES_MAX) as u64;
        let behind = world.now() - kept.checked_at;
        kept.used = n_decisions;
        kept.checked_at = world.now();
        let divisible = kept.question.one_by_one.is_empty() && kept.question.rejected.is_none();
        if !may_index || !divisible || behind > worth {
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
            kept.question.release(&self.profile, world);
        }
    }

    /// Drops whatever was being changed when somebody panicked.
    fn start_over(&mut self, world: &mut World) {
        self.forget_all(world);
        self.pass = Pass::default();
        self.surveyed = None;
    }

    fn forget_all(&mut self, world: &mut World) {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut ids: Vec<TemplateId> = self.kept.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.forget(id, world));
    }

    /// Drops what was not used for longest, a quarter at a time.
    fn make_room(&mut self, world: &mut World) {
        let max = (KEPT_ROWS_MAX / world.nodes().n_rows().max(1)).clamp(16, 4096);
        if self.kept.len() < max {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut by_use: Vec<(u64, TemplateId)> =
            self.kept.iter().map(|(id, kept)| (kept.used, *id)).collect();
        by_use.sort_unstable();
        for (_, id) in by_use.into_iter().take(max / 4) {
            self.forget(id, world);
        }
    }

    /// Holds a decision that was made against what every plugin said about every node.
    fn check(&mut self, pod: &PodInfo, slow: &Evaluation, decided: &Decision) {
        let is_right = match decided {
            Decision::Failed(_) => true,
            Decision::Unschedulable => !slow.is_feasible(),
            // An only node is taken whatever its score.
            Decision::Place { row, .. } if slow.only_feasible().is_some() => {
                slow.only_feasible() == Some(*row)
            }
            Decision::Place { row, total, n_ties } => {
                let best = slow.best();
                let is_best = |node: &NodeVerdict| node.row == *row && node.total == Some(*total);
                best.contains(row) && best.len() as u64 == *n_ties && slow.nodes.iter().any(is_best)
            }
        };
        if !is_right {
            let slow = one_by_one::totals(slow);
            let line = format!("{}: {decided:?}, one by one {slow:?}", pod.full_name());
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
