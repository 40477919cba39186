//! All feasible nodes, and the scores of some: what extenders are asked about.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_extender::{NodeNames, Scores};
use loadmaster_framework::prepare::OutOfRange;
use loadmaster_framework::{PodInfo, Row, World};
use loadmaster_stdx::Set;

use super::{Decision, Scheduler};
use crate::evaluate::{Extended, Verdict};
use crate::guard;
use crate::search::Search;

/// Feasible nodes.
#[derive(Debug)]
pub struct FeasibleNodes {
    /// Ascending.
    pub rows: Vec<Row>,
    /// Their names, in the same order.
    pub names: Arc<NodeNames>,
}

/// Names of rows, and the last nodes that were asked for: many pods have the same ones.
#[derive(Default)]
pub(crate) struct NamesOfRows {
    /// Shared texts, by row.
    names: Vec<Str>,
    last: Option<Arc<FeasibleNodes>>,
}

impl NamesOfRows {
    pub fn of(&mut self, world: &World, rows: Vec<Row>) -> Arc<FeasibleNodes> {
        if self.names.len() < world.nodes().n_rows() {
            self.names.resize(world.nodes().n_rows(), Str::default());
        }
        let mut is_renamed = false;
        for row in &rows {
            let name = world.node(*row).map_or("", |node| node.name());
            // The row may have been another node's.
            if self.names[row.index()].as_str() != name {
                self.names[row.index()] = Str::new(name);
                is_renamed = true;
            }
        }
        if let Some(last) = self.last.as_ref().filter(|last| !is_renamed && last.rows == rows) {
            return last.clone();
        }
        let names = rows.iter().map(|row| self.names[row.index()].clone()).collect();
        let nodes = Arc::new(FeasibleNodes { rows, names: Arc::new(names) });
        self.last = Some(nodes.clone());
        nodes
    }
}

/// What extenders' scores add to totals.
#[derive(Debug)]
pub struct Added<'a> {
    /// By place among the nodes that they were asked about.
    pub scores: &'a Scores,
    /// Whether nodes draw lots that no extender gave a score.
    pub all_draw: bool,
}

impl Added<'_> {
    /// The best of the nodes that extenders were asked about, in their order. Among equals upstream prefers those that an extender
    /// gave a score, because only these draw lots.
    pub fn best(&self, totals: impl Iterator<Item = (Row, i64)>) -> Vec<Row> {
        self.best_of(totals.zip(self.scores.by_place()))
    }

    /// The best of some of them, with their totals, and what is added.
    fn best_of(&self, nodes: impl Iterator<Item = ((Row, i64), (i64, bool))>) -> Vec<Row> {
        let mut best = (i64::MIN, false);
        let mut rows = Vec::new();
        for ((row, total), (score, is_named)) in nodes {
            let sum = (total.wrapping_add(score), self.all_draw || is_named);
            if sum > best {
                best = sum;
                rows.clear();
            }
            if sum == best {
                rows.push(row);
            }
        }
        rows
    }
}

/// What a survey found.
enum Found {
    /// All feasible nodes, by an index.
    Indexed(Arc<FeasibleNodes>),
    /// Feasible rows with their totals, if these were asked for, by row; not empty.
    Rows(Vec<(Row, i64)>),
}

impl Scheduler {
    /// The nodes that plugins find feasible; with a search that ends early, as many as it wants. `Err` is the decision when there is
    /// none.
    pub fn feasible(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
    ) -> Result<Arc<FeasibleNodes>, Decision> {
        self.surveyed = None;
        match self.survey(world, pod, None)? {
            Found::Indexed(nodes) if nodes.rows.is_empty() => Err(Decision::Unschedulable),
            Found::Indexed(nodes) => {
                self.surveyed = Some(nodes.clone());
                Ok(nodes)
            }
            Found::Rows(rows) => {
                let rows = rows.into_iter().map(|(row, _)| row).collect();
                Ok(self.names.of(world, rows))
            }
        }
    }

    /// One node alone, with its name, in place of what a survey finds.
    pub fn alone(&mut self, world: &World, row: Row) -> Arc<FeasibleNodes> {
        self.surveyed = None;
        self.names.of(world, vec![row])
    }

    /// Those of these feasible rows that are still so, with their totals, by row.
    pub fn scored(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        rows: &[Row],
    ) -> Result<Vec<(Row, i64)>, Decision> {
        match self.survey(world, pod, Some(rows))? {
            Found::Indexed(nodes) => Ok(nodes.rows.iter().map(|row| (*row, 0)).collect()),
            Found::Rows(rows) => Ok(rows),
        }
    }

    /// Decides among all nodes that the last survey found. `None` where this takes a look at each of them.
    pub fn decide_surveyed(&mut self, world: &World, pod: &PodInfo) -> Option<Decision> {
        self.surveyed.as_ref()?;
        let kept = self.kept.get_mut(&pod.template.id)?;
        let index = kept.index.as_mut().filter(|_| kept.checked_at == world.now())?;
        let decided = guard::section(|| index.decide(&kept.question, world, &mut self.rng));
        // Whoever panicked does so again where it is caught and told.
        decided.ok()?.ok()
    }

    /// What the last survey found, if the index that told is still there: [`Scheduler::best_surveyed`] will ask it.
    pub fn surveyed(&self, world: &World, pod: &PodInfo) -> Option<Arc<FeasibleNodes>> {
        let kept = self.kept.get(&pod.template.id)?;
        kept.index.as_ref().filter(|_| kept.checked_at == world.now())?;
        self.surveyed.clone()
    }

    /// The best of the nodes that the last survey found, with what extenders add. They are rarely worth a list of totals: the index
    /// reads these off its table.
    pub fn best_surveyed(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        nodes: &FeasibleNodes,
        added: &Added<'_>,
    ) -> Result<Vec<Row>, Decision> {
        if let Some(rows) = self.best_kept(world, pod, added) {
            return Ok(rows);
        }
        // A plugin panicked, and what was kept is gone.
        let totals = self.scored(world, pod, &nodes.rows)?;
        let all = nodes.rows.iter().zip(added.scores.by_place());
        let still = all.filter_map(|(row, score)| {
            let at = totals.binary_search_by_key(row, |(row, _)| *row).ok()?;
            Some((totals[at], score))
        });
        Ok(added.best_of(still))
    }

    fn best_kept(&mut self, world: &World, pod: &PodInfo, added: &Added<'_>) -> Option<Vec<Row>> {
        self.surveyed.as_ref()?;
        let kept = self.kept.get_mut(&pod.template.id)?;
        let index = kept.index.as_mut().filter(|_| kept.checked_at == world.now())?;
        let best = guard::section(|| {
            let totals = index.totals(&kept.question, world)?;
            Ok::<_, OutOfRange>(added.best(totals))
        });
        // Whoever panicked does so again where it is caught and told.
        best.ok()?.ok()
    }

    /// Filters all rows, or filters and scores some.
    fn survey(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        among: Option<&[Row]>,
    ) -> Result<Found, Decision> {
        let surveyed = guard::section(|| self.survey_by_kind(world, pod, among));
        surveyed.unwrap_or_else(|caught| {
            let (_, failure) = caught.note(&self.profile);
            self.start_over(world);
            Err(Decision::Failed(failure.to_string()))
        })
    }

    fn survey_by_kind(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        among: Option<&[Row]>,
    ) -> Result<Found, Decision> {
        self.n_decisions += 1;
        self.cycle = Default::default();
        if pod.resized.is_some() || !pod.node_name.is_empty() {
            return self.survey_one_by_one(world, pod, among);
        }
        if let Some(totals) = among.and_then(|rows| self.totals_of_all(world, pod, rows)) {
            return Ok(Found::Rows(totals));
        }
        let mut without = self.promised_to_others(world, pod).map_err(Decision::Failed)?;
        without.extend(others(world, among));
        let search = self.profile.search;
        let n_nodes = world.nodes().len();
        let n_wanted = search.n_wanted(n_nodes, true);
        let ends_early = among.is_none() && n_wanted < n_nodes;
        if let Err(failure) = self.refresh(world, pod, n_wanted >= n_nodes) {
            return Err(Decision::Failed(failure.to_string()));
        }
        let Some(kept) = self.kept.get_mut(&pod.template.id) else {
            return Err(Decision::Unschedulable);
        };
        let question = &kept.question;
        let asks = question.narrows() || ends_early && !question.one_by_one.is_empty();
        if search != Search::All && asks {
            return self.survey_one_by_one(world, pod, among);
        }
        if question.rejected.is_some() {
            return Err(Decision::Unschedulable);
        }
        if let Some(index) = &mut kept.index
            && among.is_none()
            && without.is_empty()
            && let Ok(nodes) = index.nodes(question, world, &mut self.names)
        {
            return Ok(Found::Indexed(nodes));
        }
        if ends_early {
            self.course.refresh(world.nodes());
        }
        let early = ends_early.then_some((&mut self.course, n_wanted));
        let (profile, states) = (&self.profile, &mut self.states);
        match among {
            Some(_) => self.pass.run(question, profile, world, states, pod, &without, early),
            None => self.pass.run_filters(question, profile, world, states, pod, &without, early),
        }
        self.cycle = (self.pass.take_cycle(), question.one_by_one.clone());
        if let Some(failure) = self.pass.failed() {
            return Err(Decision::Failed(failure.to_owned()));
        }
        match self.pass.totals() {
            Ok(totals) if totals.is_empty() => Err(Decision::Unschedulable),
            Ok(totals) => Ok(Found::Rows(totals)),
            Err(OutOfRange) => self.survey_one_by_one(world, pod, among),
        }
    }

    /// The totals of these rows, if they are all that the last survey found in an index.
    fn totals_of_all(
        &mut self,
        world: &World,
        pod: &PodInfo,
        rows: &[Row],
    ) -> Option<Vec<(Row, i64)>> {
        self.surveyed.as_ref().filter(|nodes| nodes.rows == rows)?;
        let kept = self.kept.get_mut(&pod.template.id)?;
        let index = kept.index.as_mut().filter(|_| kept.checked_at == world.now())?;
        index.totals(&kept.question, world).ok().map(Iterator::collect)
    }

    fn survey_one_by_one(
        &mut self,
        world: &World,
        pod: &PodInfo,
        among: Option<&[Row]>,
    ) -> Result<Found, Decision> {
        let extended = Extended { left_out: others(world, among), ..Extended::default() };
        let ends_early = among.is_none();
        let evaluation = self.search(world, pod, ends_early, &extended);
        if let Some(failure) = evaluation.failure {
            return Err(Decision::Failed(failure));
        }
        let feasible = evaluation.nodes.iter().filter(|node| node.verdict == Verdict::Feasible);
        let totals: Vec<(Row, i64)> =
            feasible.map(|node| (node.row, node.total.unwrap_or(0))).collect();
        if totals.is_empty() { Err(Decision::Unschedulable) } else { Ok(Found::Rows(totals)) }
    }
}

/// All rows but these; none when these are all.
fn others(world: &World, among: Option<&[Row]>) -> Vec<Row> {
    let Some(among) = among.filter(|among| among.len() < world.nodes().len()) else {
        return Vec::new();
    };
    let wanted: Set<Row> = among.iter().copied().collect();
    world.nodes().rows().filter(|row| !wanted.contains(row)).collect()
}
