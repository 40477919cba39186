//! All feasible nodes, and the scores of some: what extenders are asked about.

use loadmaster_framework::prepare::OutOfRange;
use loadmaster_framework::{PodInfo, Row, World};
use loadmaster_stdx::Set;

use super::{Decision, Scheduler};
use crate::evaluate::{Extended, Verdict};
use crate::guard;
use crate::search::Search;

impl Scheduler {
    /// The rows that plugins find feasible, but for those left out, by row; with a search that ends early, as many as it wants. `Err`
    /// is the decision when there is none.
    pub fn feasible(&mut self, world: &mut World, pod: &PodInfo) -> Result<Vec<Row>, Decision> {
        let found = self.survey(world, pod, None)?;
        Ok(found.into_iter().map(|(row, _)| row).collect())
    }

    /// Those of these feasible rows that are still so, with their totals.
    pub fn scored(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        rows: &[Row],
    ) -> Result<Vec<(Row, i64)>, Decision> {
        self.survey(world, pod, Some(rows))
    }

    /// Filters all rows, or filters and scores some.
    fn survey(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        among: Option<&[Row]>,
    ) -> Result<Vec<(Row, i64)>, Decision> {
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
    ) -> Result<Vec<(Row, i64)>, Decision> {
        self.n_decisions += 1;
        self.cycle = Default::default();
        if pod.resized.is_some() || !pod.node_name.is_empty() {
            return self.survey_one_by_one(world, pod, among);
        }
        let mut without = self.promised_to_others(world, pod).map_err(Decision::Failed)?;
        without.extend(others(world, among));
        let search = self.profile.search;
        let n_nodes = world.nodes().len();
        let n_wanted = search.n_wanted(n_nodes, true);
        let ends_early = among.is_none() && n_wanted < n_nodes;
        if let Err(failure) = self.refresh(world, pod, !ends_early) {
            return Err(Decision::Failed(failure.to_string()));
        }
        let Some(kept) = self.kept.get(&pod.template.id) else {
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
            Ok(totals) => Ok(totals),
            Err(OutOfRange) => self.survey_one_by_one(world, pod, among),
        }
    }

    fn survey_one_by_one(
        &mut self,
        world: &World,
        pod: &PodInfo,
        among: Option<&[Row]>,
    ) -> Result<Vec<(Row, i64)>, Decision> {
        let extended = Extended { left_out: others(world, among), ..Extended::default() };
        let ends_early = among.is_none();
        let evaluation = self.search(world, pod, ends_early, &extended);
        if let Some(failure) = evaluation.failure {
            return Err(Decision::Failed(failure));
        }
        let feasible = evaluation.nodes.iter().filter(|node| node.verdict == Verdict::Feasible);
        let totals: Vec<(Row, i64)> =
            feasible.map(|node| (node.row, node.total.unwrap_or(0))).collect();
        if totals.is_empty() { Err(Decision::Unschedulable) } else { Ok(totals) }
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
