//! Asking every plugin about every node: the way plugins are written, the twin of every faster way, and what `explain` shows.

use std::collections::BTreeSet;

use loadmaster_api::Str;
use loadmaster_framework::points::{Cx, NodeScore, SerialCx};
use loadmaster_framework::{
    Code, CycleState, Failure, MAX_NODE_SCORE, NodeInfo, PluginStates, PodInfo, PreFiltered,
    PreScored, Rejection, Row, Score, World,
};
use loadmaster_stdx::Set;

use super::filters::Filters;
use super::{Evaluation, Extended, NodeVerdict, Rejected, Verdict};
use crate::guard::{self, Site};
use crate::profile::{EXTENDER, Member, Profile};
use crate::search::Walk;

/// Evaluates a pod as upstream's PreFilter, Filter, PreScore, Score and NormalizeScore do, over all nodes. `states` is changed
/// only by PreFilter and PreScore.
pub fn evaluate(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
) -> Evaluation {
    attempt(profile, world, states, pod).evaluation
}

/// What an attempt found out, and what it leaves to PostFilter.
#[derive(Default)]
pub struct Attempted {
    pub evaluation: Evaluation,
    pub cycle: CycleState,
    /// Indexes of plugins whose Filter is not called in this cycle.
    pub skipped: Vec<usize>,
    /// How many nodes Filter was asked about.
    pub n_visited: usize,
}

/// The same, for those who go on when no node is feasible.
pub fn attempt(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
) -> Attempted {
    search(profile, world, states, pod, None, &Extended::default())
}

/// The same about the nodes that a walk visits, with only as many feasible ones as it wants, once extenders have spoken.
pub fn search(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
    walk: Option<Walk<'_>>,
    extended: &Extended,
) -> Attempted {
    if world.nodes().is_empty() {
        return Attempted::default();
    }
    let (cycle, skipped) = (CycleState::default(), Vec::new());
    let mut attempt = Attempt { profile, world, states, pod, cycle, skipped };
    let mut evaluation = Evaluation::default();
    let mut n_visited = 0;
    match attempt.pre_filter(&mut evaluation) {
        Ok(nodes) => n_visited = attempt.filter(nodes.as_ref(), walk, &mut evaluation),
        Err(rejected) => {
            if let Rejection::Failed(failure) = &rejected.rejection {
                evaluation.failure = Some(failure.to_string());
            }
            evaluation.pre_filter = Some(rejected);
        }
    }
    extend(extended, world, &mut evaluation);
    if evaluation.failure.is_none()
        && let Err(failure) = attempt.score(&mut evaluation)
    {
        // An only node is taken without asking for scores, so that nobody's failure counts.
        evaluation.forget_scores();
        if evaluation.only_feasible().is_none() {
            evaluation.failure = Some(failure.to_string());
        }
    }
    Attempted { evaluation, cycle: attempt.cycle, skipped: attempt.skipped, n_visited }
}

/// Puts what extenders said over what plugins said.
fn extend(extended: &Extended, world: &World, evaluation: &mut Evaluation) {
    if extended.is_empty() {
        return;
    }
    let mut also = BTreeSet::new();
    for node in &mut evaluation.nodes {
        let name = world.node(node.row).map_or("", |node| node.name());
        let Some(verdict) = extended.verdict(node.row, name) else { continue };
        if let Verdict::Rejected(Rejected { plugin: Some(plugin), .. }) = &node.verdict {
            also.insert(*plugin);
        }
        // A node that an extender speaks ill of and leaves in all the same is feasible.
        if node.verdict != Verdict::Feasible || extended.left_out.contains(&node.row) {
            node.verdict = verdict;
        }
    }
    if !extended.left_out.is_empty() {
        also.insert(EXTENDER);
    }
    evaluation.also_rejected_by = also.into_iter().collect();
    let is_unheard_of = |name: &str| world.nodes().row(name).is_none();
    let elsewhere = extended.failures.iter().filter(|(name, _)| is_unheard_of(name));
    evaluation.elsewhere = elsewhere.map(|(_, failure)| super::rejected(failure)).collect();
}

/// Filter's verdicts about some rows, narrowed by PreFilter or not, nominated pods included: what upstream asks about a pod's
/// nominated node. `Err` when PreFilter turns the pod down everywhere.
pub fn verdicts(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
    rows: &[Row],
) -> Result<Vec<Result<(), Rejected>>, Rejected> {
    let (cycle, skipped) = (CycleState::default(), Vec::new());
    let mut attempt = Attempt { profile, world, states, pod, cycle, skipped };
    attempt.pre_filter(&mut Evaluation::default())?;
    let filters = Filters { profile, skipped: &attempt.skipped };
    let nodes = rows.iter().filter_map(|row| world.node(*row));
    Ok(nodes.map(|node| filters.ask(attempt.cx(), pod, node)).collect())
}

/// Adds to a cycle what `plugins` remember of it when the decision was made without asking them node by node: PreFilter for the
/// pod, and Filter for the chosen node.
pub fn replay(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
    (row, plugins): (Row, &[usize]),
    cycle: CycleState,
) -> Result<CycleState, Rejected> {
    let skipped = (0..profile.plugins.len()).filter(|plugin| !plugins.contains(plugin)).collect();
    let mut attempt = Attempt { profile, world, states, pod, cycle, skipped };
    for member in profile.pre_filter.iter().filter(|member| plugins.contains(&member.plugin)) {
        match member.point.pre_filter(attempt.serial(), pod) {
            Ok(PreFiltered::Skip) => attempt.skipped.push(member.plugin),
            Ok(_) => {}
            Err(rejection) => return Err(Rejected { plugin: Some(member.name), rejection }),
        }
    }
    if let Some(node) = world.node(row) {
        let filters = Filters { profile, skipped: &attempt.skipped };
        filters.ask_once(attempt.cx(), pod, node)?;
    }
    Ok(attempt.cycle)
}

struct Attempt<'a> {
    profile: &'a Profile,
    world: &'a World,
    states: &'a mut PluginStates,
    pod: &'a PodInfo,
    cycle: CycleState,
    skipped: Vec<usize>,
}

impl Attempt<'_> {
    fn serial(&mut self) -> SerialCx<'_> {
        SerialCx { world: self.world, cycle: &mut self.cycle, states: self.states }
    }

    fn cx(&self) -> Cx<'_> {
        Cx { world: self.world, cycle: &self.cycle, states: self.states }
    }

    /// The nodes that are left to Filter, if they are not all.
    fn pre_filter(&mut self, evaluation: &mut Evaluation) -> Result<Option<Set<Str>>, Rejected> {
        let mut narrowed: Option<Set<Str>> = None;
        let mut by: BTreeSet<&'static str> = BTreeSet::new();
        let mut remembered = None;
        let profile = self.profile;
        for member in &profile.pre_filter {
            let pod = self.pod;
            match member.point.pre_filter(self.serial(), pod) {
                Ok(PreFiltered::All) => {}
                Ok(PreFiltered::Skip) => self.skipped.push(member.plugin),
                Ok(PreFiltered::Nodes(nodes)) => {
                    by.insert(member.name);
                    narrowed = Some(match narrowed.take() {
                        Some(before) => before.intersection(&nodes).cloned().collect(),
                        None => nodes,
                    });
                }
                // Preemption may still help, so the others are asked too; the last one wins.
                Err(rejection @ Rejection::Unschedulable(_)) => {
                    remembered = Some(Rejected { plugin: Some(member.name), rejection });
                    continue;
                }
                Err(rejection @ Rejection::Unresolvable(_)) => {
                    return Err(Rejected { plugin: Some(member.name), rejection });
                }
                Err(other) => {
                    let text =
                        format!("running PreFilter plugin {:?}: {}", member.name, other.message());
                    let rejection = Rejection::Failed(Failure::new(text));
                    return Err(Rejected { plugin: Some(member.name), rejection });
                }
            }
            if narrowed.as_ref().is_some_and(Set::is_empty) {
                return Err(nothing_left(&by));
            }
        }
        evaluation.narrowed_by = by.into_iter().collect();
        match remembered {
            Some(rejected) => Err(rejected),
            None => Ok(narrowed),
        }
    }

    /// Asks about the nodes; how many were asked about.
    fn filter(
        &mut self,
        narrowed: Option<&Set<Str>>,
        walk: Option<Walk<'_>>,
        evaluation: &mut Evaluation,
    ) -> usize {
        let filters = Filters { profile: self.profile, skipped: &self.skipped };
        let is_left = |row: &Row| {
            let name = self.world.node(*row).map(|node| node.name());
            narrowed.is_none_or(|nodes| name.is_some_and(|name| nodes.contains(name)))
        };
        let n_nodes = self.world.nodes().len();
        let mut n_wanted = n_nodes;
        let rows: Vec<Row> = match walk {
            None => self.world.nodes().rows().collect(),
            Some(walk) => {
                let left: Vec<Row> = walk.order.iter().copied().filter(is_left).collect();
                n_wanted = walk.search.n_wanted(left.len(), !self.profile.score.is_empty());
                let others = walk.order.iter().copied().filter(|row| !is_left(row));
                others.chain(walk.visit(&left)).collect()
            }
        };
        evaluation.nodes.reserve(rows.len());
        let (mut n_visited, mut n_found) = (0, 0);
        for node in rows.into_iter().filter_map(|row| self.world.node(row)) {
            let left_out = !is_left(&node.row());
            let verdict = if left_out {
                Verdict::Narrowed
            } else {
                match filters.ask(self.cx(), self.pod, node) {
                    Ok(()) => Verdict::Feasible,
                    Err(rejected) => Verdict::Rejected(rejected),
                }
            };
            n_found += usize::from(verdict == Verdict::Feasible);
            if n_found > n_wanted {
                break;
            }
            n_visited += usize::from(!left_out);
            if let Verdict::Rejected(Rejected { rejection: Rejection::Failed(failure), .. }) =
                &verdict
                && evaluation.failure.is_none()
            {
                evaluation.failure = Some(failure.to_string());
            }
            // Upstream tries a pod's nominated node first, narrowed or not, and remembers why it did not fit.
            if self.pod.nominated_node_name == node.name() {
                let rejected = match &verdict {
                    Verdict::Rejected(rejected) => Some(rejected.clone()),
                    Verdict::Narrowed => filters.ask(self.cx(), self.pod, node).err(),
                    Verdict::Feasible => None,
                };
                evaluation.nominated_rejected_by =
                    rejected.as_ref().and_then(|rejected| rejected.plugin);
                evaluation.nominated = rejected.filter(|_| left_out);
            }
            evaluation.nodes.push(NodeVerdict {
                row: node.row(),
                verdict,
                scores: vec![],
                total: None,
            });
        }
        if walk.is_some() {
            evaluation.nodes.sort_unstable_by_key(|node| node.row);
        }
        n_visited
    }

    fn score(&mut self, evaluation: &mut Evaluation) -> Result<(), Failure> {
        let world = self.world;
        let places = evaluation.nodes.iter().enumerate();
        let places = places.filter(|(_, node)| node.verdict == Verdict::Feasible).map(|(at, _)| at);
        let places: Vec<usize> = places.collect();
        let rows = places.iter().map(|at| evaluation.nodes[*at].row);
        let feasible: Vec<NodeInfo<'_>> = rows.filter_map(|row| world.node(row)).collect();
        if feasible.is_empty() {
            return Ok(());
        }
        let profile = self.profile;
        if profile.score.is_empty() {
            // Upstream gives every node 1 when nobody scores.
            places.iter().for_each(|at| evaluation.nodes[*at].total = Some(1));
            return Ok(());
        }
        let skipped = self.pre_score(&feasible)?;
        places.iter().for_each(|at| evaluation.nodes[*at].total = Some(0));
        for member in profile.score.iter().filter(|member| !skipped.contains(&member.plugin)) {
            let scores = guard::section(|| self.score_by(member, &feasible));
            let scores = scores.unwrap_or_else(|caught| Err(caught.note(profile).1))?;
            evaluation.score_plugins.push(member.name);
            for (at, score) in places.iter().zip(scores) {
                let node = &mut evaluation.nodes[*at];
                node.scores.push(score.score * member.weight);
                node.total = Some(node.total.unwrap_or(0) + score.score * member.weight);
            }
        }
        Ok(())
    }

    fn pre_score(&mut self, feasible: &[NodeInfo<'_>]) -> Result<Vec<usize>, Failure> {
        let mut skipped = Vec::new();
        let (profile, pod) = (self.profile, self.pod);
        for member in &profile.pre_score {
            let answer = member.point.pre_score(self.serial(), pod, feasible);
            let answer = answer.map_err(|failure| {
                Failure::new(format!("running PreScore plugin {:?}: {failure}", member.name))
            })?;
            if answer == PreScored::Skip {
                skipped.push(member.plugin);
            }
        }
        Ok(skipped)
    }

    fn score_by(
        &self,
        member: &Member<dyn Score>,
        feasible: &[NodeInfo<'_>],
    ) -> Result<Vec<NodeScore>, Failure> {
        let Member { plugin, name, point, .. } = member;
        let watch = guard::stopwatch();
        guard::turn(*plugin, Site::Score);
        let cx = Cx { world: self.world, cycle: &self.cycle, states: self.states };
        let failed = |when: &str, failure: Failure| {
            Failure::new(format!("running {when} plugins: plugin {name:?} failed with: {failure}"))
        };
        let mut scores = Vec::with_capacity(feasible.len());
        for node in feasible {
            let began = watch.map(|watch| watch());
            let score = point.score(cx, self.pod, *node);
            if let Some(began) = began {
                let code = score.as_ref().map_or(Code::Error, |_| Code::Success);
                guard::timed(|| self.profile.who(name), Site::Score, code, began);
            }
            let score = score.map_err(|failure| failed("Score", failure))?;
            scores.push(NodeScore { row: node.row(), score });
        }
        guard::turn(*plugin, Site::Normalize);
        point
            .normalize(cx, self.pod, &mut scores)
            .map_err(|failure| failed("Normalize on Score", failure))?;
        match scores.iter().find(|node| !(0..=MAX_NODE_SCORE).contains(&node.score)) {
            Some(bad) => Err(Failure::new(format!(
                "applying score defaultWeights on Score plugins: plugin {name:?} returns an invalid score {}, it should in the \
                 range of [0, {MAX_NODE_SCORE}] after normalizing",
                bad.score
            ))),
            None => Ok(scores),
        }
    }
}

fn nothing_left(by: &BTreeSet<&'static str>) -> Rejected {
    let names: Vec<&str> = by.iter().copied().collect();
    let text = match names.as_slice() {
        [one] => format!("node(s) didn't satisfy plugin {one}"),
        several => {
            format!("node(s) didn't satisfy plugin(s) [{}] simultaneously", several.join(" "))
        }
    };
    Rejected { plugin: None, rejection: Rejection::unresolvable(text) }
}

/// The rows that one-node evaluation finds feasible, with their totals: the form in which the twins are compared.
pub fn totals(evaluation: &Evaluation) -> Vec<(Row, i64)> {
    evaluation.nodes.iter().filter_map(|node| Some((node.row, node.total?))).collect()
}
