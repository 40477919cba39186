//! One pass over all rows: for pods never seen, and for plugins that must be asked node by node.

use loadmaster_framework::points::{Cx, NodeScore, SerialCx};
use loadmaster_framework::prepare::{OutOfRange, Words, in_range};
use loadmaster_framework::{
    CycleState, Failure, NodeInfo, PluginStates, PodInfo, PreFiltered, PreScored, Rejection, Row,
    World,
};
use loadmaster_stdx::Rng;

use crate::evaluate::incremental::{ClassTable, Question};
use crate::guard::{self, Site};
use crate::profile::Profile;
use crate::scheduler::Decision;
use crate::search::Course;

/// Scratch space and result of a pass.
#[derive(Default)]
pub(crate) struct Pass {
    /// 1 where the row is feasible.
    set: Vec<u8>,
    totals: Vec<i64>,
    class_of: Vec<u32>,
    table: ClassTable,
    failure: Option<Stop>,
    cycle: CycleState,
}

/// Why a pass has no answer.
enum Stop {
    /// A plugin failed.
    Failed(String),
    /// A score is out of range.
    OutOfRange,
}

impl From<OutOfRange> for Stop {
    fn from(_: OutOfRange) -> Self {
        Stop::OutOfRange
    }
}

impl Pass {
    /// Evaluates the pod on all rows but `left_out`, which nominated pods or extenders keep from it. With a search that ends early,
    /// only the first so many feasible rows of its course are scored.
    #[expect(clippy::too_many_arguments, reason = "the pass's surroundings, each once")]
    pub fn run(
        &mut self,
        question: &Question,
        profile: &Profile,
        world: &World,
        states: &mut PluginStates,
        pod: &PodInfo,
        left_out: &[Row],
        early: Option<(&mut Course, usize)>,
    ) {
        let mut rest = self.filter(question, profile, world, states, pod, left_out, early);
        if self.failure.is_none() {
            self.failure = self.score(&mut rest, states).err();
        }
        self.cycle = rest.cycle;
    }

    /// The same without scores: every total is 0.
    #[expect(clippy::too_many_arguments, reason = "the pass's surroundings, each once")]
    pub fn run_filters(
        &mut self,
        question: &Question,
        profile: &Profile,
        world: &World,
        states: &mut PluginStates,
        pod: &PodInfo,
        left_out: &[Row],
        early: Option<(&mut Course, usize)>,
    ) {
        self.cycle = self.filter(question, profile, world, states, pod, left_out, early).cycle;
    }

    #[expect(clippy::too_many_arguments, reason = "the pass's surroundings, each once")]
    fn filter<'a>(
        &mut self,
        question: &'a Question,
        profile: &'a Profile,
        world: &'a World,
        states: &mut PluginStates,
        pod: &'a PodInfo,
        left_out: &[Row],
        early: Option<(&mut Course, usize)>,
    ) -> Rest<'a> {
        let nodes = world.nodes();
        self.failure = None;
        self.set.clear();
        self.set.extend_from_slice(&nodes.columns().live);
        question.filter_all(nodes, &mut self.set);
        self.totals.clear();
        self.totals.resize(self.set.len(), 0);
        self.classify(question, world);
        question.filter_classes(world, &mut self.table);
        self.drop_infeasible_classes(question);
        left_out.iter().for_each(|row| self.set[row.index()] = 0);
        let mut rest = Rest { question, profile, world, pod, cycle: CycleState::default() };
        if !question.one_by_one.is_empty()
            && let Err(failure) = rest.filter(states, &mut self.set)
        {
            self.failure = Some(Stop::Failed(failure));
        }
        let is_smaller = !question.one_by_one.is_empty() || !left_out.is_empty() || early.is_some();
        if let Some((course, n_wanted)) = early {
            course.take_first(n_wanted, &mut self.set);
        }
        if is_smaller && self.failure.is_none() {
            self.recount(question);
        }
        rest
    }

    /// What the plugins that were asked node by node remember of this cycle.
    pub fn take_cycle(&mut self) -> CycleState {
        std::mem::take(&mut self.cycle)
    }

    fn score(&mut self, rest: &mut Rest<'_>, states: &mut PluginStates) -> Result<(), Stop> {
        let (question, world) = (rest.question, rest.world);
        question.score_all(world.nodes(), &self.set, &mut self.totals)?;
        question.score_classes(world, &mut self.table)?;
        self.add_offsets(question);
        if question.one_by_one.is_empty() {
            return Ok(());
        }
        rest.score(states, &self.set, &mut self.totals)
    }

    /// Picks one of the best rows, each with the same chance. `Err` when a score is out of range.
    pub fn decide(&self, rng: &mut Rng) -> Result<Decision, OutOfRange> {
        match &self.failure {
            None => Ok(self.pick(rng)),
            Some(Stop::Failed(failure)) => Ok(Decision::Failed(failure.clone())),
            Some(Stop::OutOfRange) => Err(OutOfRange),
        }
    }

    fn pick(&self, rng: &mut Rng) -> Decision {
        let mut best = i64::MIN;
        let mut n_ties = 0u64;
        for (member, total) in self.set.iter().zip(&self.totals) {
            if *member != 0 && *total >= best {
                n_ties = if *total > best { 1 } else { n_ties + 1 };
                best = *total;
            }
        }
        if n_ties == 0 {
            return Decision::Unschedulable;
        }
        let mut nth = rng.below(n_ties);
        for (at, (member, total)) in self.set.iter().zip(&self.totals).enumerate() {
            if *member != 0 && *total == best {
                if nth == 0 {
                    return Decision::Place { row: Row(at as u32), total: best, n_ties };
                }
                nth -= 1;
            }
        }
        Decision::Unschedulable
    }

    /// Why a plugin could not answer.
    pub fn failed(&self) -> Option<&str> {
        match &self.failure {
            Some(Stop::Failed(failure)) => Some(failure),
            _ => None,
        }
    }

    /// Every feasible row with its total. `Err` when a score is out of range.
    pub fn totals(&self) -> Result<Vec<(Row, i64)>, OutOfRange> {
        match &self.failure {
            None => {}
            Some(Stop::Failed(_)) => return Ok(Vec::new()),
            Some(Stop::OutOfRange) => return Err(OutOfRange),
        }
        let rows = self.set.iter().zip(&self.totals).enumerate();
        let feasible = rows.filter(|(_, (member, _))| **member != 0);
        Ok(feasible.map(|(at, (_, total))| (Row(at as u32), *total)).collect())
    }

    fn classify(&mut self, question: &Question, world: &World) {
        self.table.clear();
        let mut words = Words::new();
        if question.stride() == 0 {
            // One class, of which nobody needs the rows one by one.
            let n = self.set.iter().map(|member| u32::from(*member)).sum();
            if n > 0 {
                self.table.enter(&words);
                self.table.rows[0] = n;
            }
            return;
        }
        self.class_of.clear();
        self.class_of.resize(self.set.len(), 0);
        let mut last: Option<(Words, u32)> = None;
        for (at, member) in self.set.iter().enumerate() {
            if *member == 0 {
                continue;
            }
            question.words(world, Row(at as u32), &mut words);
            // Neighboring rows are often alike.
            let class = match &last {
                Some((known, class)) if *known == words => {
                    self.table.rows[*class as usize] += 1;
                    *class
                }
                _ => self.table.enter(&words),
            };
            self.class_of[at] = class;
            match &mut last {
                Some((known, known_class)) if *known_class != class => {
                    known.clone_from(&words);
                    *known_class = class;
                }
                Some(_) => {}
                None => last = Some((words.clone(), class)),
            }
        }
    }

    fn drop_infeasible_classes(&mut self, question: &Question) {
        if self.table.feasible.iter().all(|feasible| *feasible) {
            return;
        }
        if question.stride() == 0 {
            self.set.fill(0);
            return;
        }
        for (member, class) in self.set.iter_mut().zip(&self.class_of) {
            *member &= u8::from(self.table.feasible[*class as usize]);
        }
    }

    /// Scores are normalised over the rows that are still feasible.
    fn recount(&mut self, question: &Question) {
        self.table.rows.fill(0);
        for (at, member) in self.set.iter().enumerate() {
            if *member != 0 {
                let class = if question.stride() == 0 { 0 } else { self.class_of[at] };
                self.table.rows[class as usize] += 1;
            }
        }
        for (feasible, rows) in self.table.feasible.iter_mut().zip(&self.table.rows) {
            *feasible &= *rows > 0;
        }
    }

    fn add_offsets(&mut self, question: &Question) {
        if question.stride() == 0 {
            let offset = self.table.offsets.first().copied().unwrap_or(0);
            if offset != 0 {
                self.totals.iter_mut().for_each(|total| *total += offset);
            }
            return;
        }
        for (total, class) in self.totals.iter_mut().zip(&self.class_of) {
            *total += self.table.offsets.get(*class as usize).copied().unwrap_or(0);
        }
    }
}

/// The plugins that must be asked node by node.
struct Rest<'a> {
    question: &'a Question,
    profile: &'a Profile,
    world: &'a World,
    pod: &'a PodInfo,
    cycle: CycleState,
}

impl Rest<'_> {
    fn filter(&mut self, states: &mut PluginStates, set: &mut [u8]) -> Result<(), String> {
        let mut skipped = Vec::new();
        let (profile, world, pod) = (self.profile, self.world, self.pod);
        let mine = &self.question.one_by_one;
        for member in profile.pre_filter.iter().filter(|member| mine.contains(&member.plugin)) {
            let cx = SerialCx { world, cycle: &mut self.cycle, states };
            match member.point.pre_filter(cx, pod) {
                Ok(PreFiltered::All) => {}
                Ok(PreFiltered::Skip) => skipped.push(member.plugin),
                Ok(PreFiltered::Nodes(names)) => {
                    keep(set, |row| world.node(row).is_some_and(|node| names.contains(node.name())))
                }
                Err(Rejection::Failed(failure)) => {
                    return Err(format!("running PreFilter plugin {:?}: {failure}", member.name));
                }
                Err(_) => set.fill(0),
            }
        }
        for member in profile.filter.iter().filter(|member| mine.contains(&member.plugin)) {
            if skipped.contains(&member.plugin) {
                continue;
            }
            let cx = Cx { world, cycle: &self.cycle, states };
            guard::turn(member.plugin, Site::Filter);
            let mut failure = None;
            keep(set, |row| {
                let Some(node) = world.node(row) else { return false };
                match member.point.filter(cx, pod, node) {
                    Ok(()) => true,
                    Err(Rejection::Failed(why)) => {
                        failure.get_or_insert_with(|| {
                            format!("running {:?} filter plugin: {why}", member.name)
                        });
                        false
                    }
                    Err(_) => false,
                }
            });
            if let Some(failure) = failure {
                return Err(failure);
            }
        }
        Ok(())
    }

    fn score(
        &mut self,
        states: &mut PluginStates,
        set: &[u8],
        totals: &mut [i64],
    ) -> Result<(), Stop> {
        let (profile, world, pod) = (self.profile, self.world, self.pod);
        let mine = |plugin: usize| self.question.one_by_one.contains(&plugin);
        if !profile.pre_score.iter().any(|member| mine(member.plugin))
            && !profile.score.iter().any(|member| mine(member.plugin))
        {
            return Ok(());
        }
        let rows = set.iter().enumerate().filter(|(_, member)| **member != 0);
        let nodes: Vec<NodeInfo<'_>> =
            rows.filter_map(|(at, _)| world.node(Row(at as u32))).collect();
        if nodes.len() <= 1 {
            // An only node is taken without asking for scores.
            return Ok(());
        }
        let mut skipped = Vec::new();
        for member in profile.pre_score.iter().filter(|member| mine(member.plugin)) {
            let cx = SerialCx { world, cycle: &mut self.cycle, states };
            match member.point.pre_score(cx, pod, &nodes) {
                Ok(PreScored::Ready) => {}
                Ok(PreScored::Skip) => skipped.push(member.plugin),
                Err(why) => {
                    let text = format!("running PreScore plugin {:?}: {why}", member.name);
                    return Err(Stop::Failed(text));
                }
            }
        }
        let cx = Cx { world, cycle: &self.cycle, states };
        for member in profile.score.iter().filter(|member| mine(member.plugin)) {
            if skipped.contains(&member.plugin) {
                continue;
            }
            let failed = |when: &str, why: Failure| {
                let name = member.name;
                Stop::Failed(format!("running {when} plugins: plugin {name:?} failed with: {why}"))
            };
            let mut scores = Vec::with_capacity(nodes.len());
            guard::turn(member.plugin, Site::Score);
            for node in &nodes {
                let score = member.point.score(cx, pod, *node);
                let score = score.map_err(|why| failed("Score", why))?;
                scores.push(NodeScore { row: node.row(), score });
            }
            guard::turn(member.plugin, Site::Normalize);
            let normalized = member.point.normalize(cx, pod, &mut scores);
            normalized.map_err(|why| failed("Normalize on Score", why))?;
            for node in scores {
                totals[node.row.index()] += member.weight * in_range(node.score)?;
            }
        }
        Ok(())
    }
}

fn keep(set: &mut [u8], mut passes: impl FnMut(Row) -> bool) {
    for (at, member) in set.iter_mut().enumerate() {
        if *member != 0 && !passes(Row(at as u32)) {
            *member = 0;
        }
    }
}
