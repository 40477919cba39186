//! Asking every plugin about every node: the way plugins are written, the twin of every faster way, and what `explain` shows.

use std::collections::BTreeSet;

use loadmaster_api::Str;
use loadmaster_framework::points::{Cx, NodeScore, SerialCx};
use loadmaster_framework::{
    CycleState, Failure, MAX_NODE_SCORE, NodeInfo, Overlay, PluginStates, PodInfo, PreFiltered,
    PreScored, Rejection, Row, World,
};
use loadmaster_stdx::Set;

use super::{Evaluation, NodeVerdict, Rejected, Verdict};
use crate::profile::Profile;

/// Evaluates a pod as upstream's PreFilter, Filter, PreScore, Score and NormalizeScore do, over all nodes. `states` is changed
/// only by PreFilter and PreScore.
pub fn evaluate(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
) -> Evaluation {
    let mut attempt = Attempt { profile, world, states, pod, cycle: CycleState::default() };
    let mut evaluation = Evaluation::default();
    if world.nodes().is_empty() {
        return evaluation;
    }
    match attempt.pre_filter(&mut evaluation) {
        Ok(narrowed) => attempt.filter(&narrowed, &mut evaluation),
        Err(rejected) => {
            if let Rejection::Failed(failure) = &rejected.rejection {
                evaluation.failure = Some(failure.to_string());
            }
            evaluation.pre_filter = Some(rejected);
        }
    }
    if evaluation.failure.is_none()
        && let Err(failure) = attempt.score(&mut evaluation)
    {
        // An only node is taken without asking for scores, so that nobody's failure counts.
        evaluation.forget_scores();
        if evaluation.only_feasible().is_none() {
            evaluation.failure = Some(failure.to_string());
        }
    }
    evaluation
}

/// What PreFilter leaves to Filter.
struct Narrowed {
    nodes: Option<Set<Str>>,
    /// Indexes of plugins whose Filter is not called.
    skipped: Vec<usize>,
}

struct Attempt<'a> {
    profile: &'a Profile,
    world: &'a World,
    states: &'a mut PluginStates,
    pod: &'a PodInfo,
    cycle: CycleState,
}

impl Attempt<'_> {
    fn serial(&mut self) -> SerialCx<'_> {
        SerialCx { world: self.world, cycle: &mut self.cycle, states: self.states }
    }

    fn pre_filter(&mut self, evaluation: &mut Evaluation) -> Result<Narrowed, Rejected> {
        let mut narrowed = Narrowed { nodes: None, skipped: Vec::new() };
        let mut by: BTreeSet<&'static str> = BTreeSet::new();
        let mut remembered = None;
        let profile = self.profile;
        for member in &profile.pre_filter {
            let pod = self.pod;
            match member.point.pre_filter(self.serial(), pod) {
                Ok(PreFiltered::All) => {}
                Ok(PreFiltered::Skip) => narrowed.skipped.push(member.plugin),
                Ok(PreFiltered::Nodes(nodes)) => {
                    by.insert(member.name);
                    narrowed.nodes = Some(match narrowed.nodes.take() {
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
            if narrowed.nodes.as_ref().is_some_and(Set::is_empty) {
                return Err(nothing_left(&by));
            }
        }
        evaluation.narrowed_by = by.into_iter().collect();
        match remembered {
            Some(rejected) => Err(rejected),
            None => Ok(narrowed),
        }
    }

    fn filter(&mut self, narrowed: &Narrowed, evaluation: &mut Evaluation) {
        evaluation.nodes.reserve(self.world.nodes().len());
        for node in self.world.node_infos() {
            let left_out =
                narrowed.nodes.as_ref().is_some_and(|nodes| !nodes.contains(node.name()));
            let verdict = if left_out {
                Verdict::Narrowed
            } else {
                match self.filter_with_nominated(node, &narrowed.skipped) {
                    Ok(()) => Verdict::Feasible,
                    Err(rejected) => Verdict::Rejected(rejected),
                }
            };
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
                    Verdict::Narrowed => self.filter_with_nominated(node, &narrowed.skipped).err(),
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
    }

    /// Twice where pods of at least this priority are nominated to the node: with them, and then without. Both must succeed.
    fn filter_with_nominated(&self, node: NodeInfo<'_>, skipped: &[usize]) -> Result<(), Rejected> {
        let nominated = self.world.nominated(node.name()).iter().filter(|other| {
            other.template.priority() >= self.pod.template.priority() && other.uid != self.pod.uid
        });
        let nominated: Vec<_> = nominated.collect();
        if !nominated.is_empty() {
            let mut overlay = Overlay::default();
            let mut cycle = self.cycle.clone();
            for other in nominated {
                overlay.add(other.clone());
                let seen = node.with(&overlay);
                for member in &self.profile.pre_filter {
                    if skipped.contains(&member.plugin) {
                        continue;
                    }
                    let added = member.point.add_pod(&mut cycle, self.world, self.pod, other, seen);
                    added.map_err(|failure| {
                        let text = format!(
                            "running AddPod on PreFilter plugin {:?}: {failure}",
                            member.name
                        );
                        Rejected { plugin: None, rejection: Failure::new(text).into() }
                    })?;
                }
            }
            self.filter_node(&cycle, node.with(&overlay), skipped)?;
        }
        self.filter_node(&self.cycle, node, skipped)
    }

    fn filter_node(
        &self,
        cycle: &CycleState,
        node: NodeInfo<'_>,
        skipped: &[usize],
    ) -> Result<(), Rejected> {
        let cx = Cx { world: self.world, cycle, states: self.states };
        for member in &self.profile.filter {
            if skipped.contains(&member.plugin) {
                continue;
            }
            if let Err(rejection) = member.point.filter(cx, self.pod, node) {
                let rejection = match rejection {
                    Rejection::Failed(failure) => {
                        let text = format!("running {:?} filter plugin: {failure}", member.name);
                        Rejection::Failed(Failure::new(text))
                    }
                    other => other,
                };
                return Err(Rejected { plugin: Some(member.name), rejection });
            }
        }
        Ok(())
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
            let scores = self.score_by(member.name, &*member.point, &feasible)?;
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
        name: &str,
        point: &dyn loadmaster_framework::Score,
        feasible: &[NodeInfo<'_>],
    ) -> Result<Vec<NodeScore>, Failure> {
        let cx = Cx { world: self.world, cycle: &self.cycle, states: self.states };
        let failed = |when: &str, failure: Failure| {
            Failure::new(format!("running {when} plugins: plugin {name:?} failed with: {failure}"))
        };
        let mut scores = Vec::with_capacity(feasible.len());
        for node in feasible {
            let score =
                point.score(cx, self.pod, *node).map_err(|failure| failed("Score", failure))?;
            scores.push(NodeScore { row: node.row(), score });
        }
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
