//! Extenders that are asked within an attempt (upstream's `findNodesThatPassExtenders`, `prioritizeNodes` and `callExtenders`).
//!
//! An attempt that waits for an extender is a value that goes on when the answer comes, or when it has not come in time. Until
//! then no other attempt begins, and the world stays as it is ([`super::overlay`]).
//!
//! ```text
//! promised node ─► filter on it alone ─► there
//!       └ no ─► feasible nodes ─► filter, one after the other ─► none: PostFilter ─► preempt, one after the other
//!                                                             ├► one: there
//!                                                             └► several: scores ─► prioritize, all at once ─► the best
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_extender::chain::Nodes;
use loadmaster_extender::messages::{MetaPod, MetaVictims};
use loadmaster_extender::{
    Answer, Ask, Extenders, Filtering, Left, NodeFailure, NodeNames, Preempting, Question, Scores,
    Verb,
};
use loadmaster_framework::preemption::{Candidate, Victims};
use loadmaster_framework::request::Input;
use loadmaster_framework::{PodInfo, Row, World};

use super::Engine;
use super::binding::Owner;
use super::effect::{CallId, Effect, Effects, Extend, Observation};
use super::post_filter::PostFiltering;
use crate::evaluate::Extended;
use crate::queue::QueuedPod;
use crate::scheduler::{Added, Decision, FeasibleNodes};
use crate::time::{Mono, Now};

/// Whoever makes the calls keeps the time of each; an answer that has not come so much later never will.
pub(super) const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// What is made of that.
pub(super) const NO_ANSWER: &str = "no answer came from the extender";

/// An attempt that waits.
pub(super) enum Suspended {
    Filter { attempt: Attempt, filtering: Filtering, feasible: Feasible, asked: Asked },
    Prioritize { attempt: Attempt, totals: Totals, scores: Scores, asked: Vec<Asked> },
    Preempt { asking: Box<PostFiltering>, preempting: Preempting, asked: Asked },
}

/// What does not change while extenders are asked.
pub(super) struct Attempt {
    queued: QueuedPod,
    /// What it showed on the stopwatch when it began.
    began: u64,
    /// What extenders said about nodes so far.
    failures: BTreeMap<String, NodeFailure>,
}

/// What extenders are asked about.
pub(super) enum Feasible {
    /// The node that the pod was promised.
    Promised(Arc<FeasibleNodes>),
    /// All nodes that plugins find feasible.
    All(Arc<FeasibleNodes>),
}

impl Feasible {
    fn nodes(&self) -> &Arc<FeasibleNodes> {
        match self {
            Feasible::Promised(nodes) | Feasible::All(nodes) => nodes,
        }
    }
}

/// What plugins give to the nodes that extenders are asked to score.
pub(super) enum Totals {
    /// By row.
    Known(Vec<(Row, i64)>),
    /// For all nodes of the survey, what its index gives when it is asked: the world is pinned.
    Kept(Arc<FeasibleNodes>),
}

/// A call that is under way.
pub(super) struct Asked {
    call: CallId,
    extender: usize,
    until: Mono,
}

impl Suspended {
    /// The pod that is tried.
    pub fn queued(&self) -> &QueuedPod {
        match self {
            Suspended::Filter { attempt, .. } | Suspended::Prioritize { attempt, .. } => {
                &attempt.queued
            }
            Suspended::Preempt { asking, .. } => &asking.queued,
        }
    }

    /// Places of the extenders that are being asked.
    pub fn extenders(&self) -> impl Iterator<Item = usize> {
        self.asked().iter().map(|asked| asked.extender)
    }

    fn asked(&self) -> &[Asked] {
        match self {
            Suspended::Filter { asked, .. } | Suspended::Preempt { asked, .. } => {
                std::slice::from_ref(asked)
            }
            Suspended::Prioritize { asked, .. } => asked,
        }
    }
}

/// Whether extenders decide about the node of such a pod.
pub(super) fn takes_part(extenders: &Extenders, pod: &PodInfo) -> bool {
    let asked = |verb| !extenders.asked(verb, &pod.template.spec).is_empty();
    !extenders.is_empty() && (asked(Verb::Filter) || asked(Verb::Prioritize))
}

/// A call about a pod.
pub(super) fn ask(extender: usize, pod: &PodInfo, question: Question) -> Ask {
    Ask {
        extender,
        namespace: pod.template.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        question,
    }
}

impl Engine {
    pub(super) fn attempt_extended(
        &mut self,
        now: Now,
        queued: QueuedPod,
        began: u64,
        effects: &mut Effects,
    ) {
        let pod = queued.info.pod.clone();
        let attempt = Attempt { queued, began, failures: BTreeMap::new() };
        let seat = &mut self.seats[attempt.queued.seat.0 as usize];
        match seat.scheduler.promised(&self.world, &pod) {
            Some(row) => {
                let node = seat.scheduler.alone(&self.world, row);
                self.begin_filtering(now, attempt, Feasible::Promised(node), effects);
            }
            None => self.survey(now, attempt, effects),
        }
    }

    /// Looks for nodes among all of them.
    fn survey(&mut self, now: Now, attempt: Attempt, effects: &mut Effects) {
        let pod = attempt.queued.info.pod.clone();
        let seat = &mut self.seats[attempt.queued.seat.0 as usize];
        seat.scheduler.search_from(self.search_start);
        let found = seat.scheduler.feasible(&mut self.world, &pod);
        self.search_start = seat.scheduler.search_start();
        match found {
            Ok(nodes) => self.begin_filtering(now, attempt, Feasible::All(nodes), effects),
            Err(decision) => self.undecided(now, attempt, decision, Vec::new(), effects),
        }
    }

    /// No node is left, or a plugin failed.
    fn undecided(
        &mut self,
        now: Now,
        attempt: Attempt,
        decision: Decision,
        left_out: Vec<Row>,
        effects: &mut Effects,
    ) {
        let Attempt { queued, began, failures } = attempt;
        match decision {
            Decision::Failed(text) => self.attempt_failed(now, queued, text, began, effects),
            Decision::Unschedulable | Decision::Place { .. } => {
                let extended = Extended { left_out, failures };
                self.nothing_fits(now, queued, began, &extended, effects);
            }
        }
    }

    fn begin_filtering(
        &mut self,
        now: Now,
        attempt: Attempt,
        feasible: Feasible,
        effects: &mut Effects,
    ) {
        let extenders = &self.seat(attempt.queued.seat).profile.extenders;
        let asked = extenders.asked(Verb::Filter, &attempt.queued.info.pod.template.spec);
        let filtering = Filtering::new(feasible.nodes().names.clone(), asked);
        self.go_on_filtering(now, attempt, filtering, feasible, effects);
    }

    fn go_on_filtering(
        &mut self,
        now: Now,
        attempt: Attempt,
        mut filtering: Filtering,
        feasible: Feasible,
        effects: &mut Effects,
    ) {
        match filtering.ask_next() {
            Some(extender) => {
                let question = Question::Filter(filtering.nodes().clone());
                let asked = self.ask(now, extender, &attempt.queued, question, effects);
                let suspended = Suspended::Filter { attempt, filtering, feasible, asked };
                self.suspended = Some(Box::new(suspended));
            }
            None => self.filtered(now, attempt, filtering, feasible, effects),
        }
    }

    fn filtered(
        &mut self,
        now: Now,
        mut attempt: Attempt,
        filtering: Filtering,
        feasible: Feasible,
        effects: &mut Effects,
    ) {
        let names = filtering.nodes().clone();
        let (left, failures) = filtering.finish();
        attempt.failures.extend(failures);
        if let Feasible::Promised(_) = feasible
            && names.is_empty()
        {
            return self.survey(now, attempt, effects);
        }
        // The world was pinned: rows are what they were.
        let all = &feasible.nodes().rows;
        let extenders = &self.seat(attempt.queued.seat).profile.extenders;
        let asked = extenders.asked(Verb::Prioritize, &attempt.queued.info.pod.template.spec);
        let pod = attempt.queued.info.pod.clone();
        let seat = &mut self.seats[attempt.queued.seat.0 as usize];
        let is_all = left == Left::All;
        if is_all
            && asked.is_empty()
            && let Some(Decision::Place { row, .. }) =
                seat.scheduler.decide_surveyed(&self.world, &pod)
        {
            return self.place(now, attempt.queued, row, attempt.began, effects);
        }
        let (left, left_out) = divide(all, &left);
        if let [row] = left.as_ref() {
            return self.place(now, attempt.queued, *row, attempt.began, effects);
        }
        if left.is_empty() {
            return self.undecided(now, attempt, Decision::Unschedulable, left_out, effects);
        }
        if is_all && let Some(nodes) = seat.scheduler.surveyed(&self.world, &pod) {
            return self.prioritize(now, attempt, Totals::Kept(nodes), names, asked, effects);
        }
        match seat.scheduler.scored(&mut self.world, &pod, &left) {
            Ok(totals) => {
                let names = if totals.len() == left.len() {
                    names
                } else {
                    Arc::new(left_of(&names, &left, &totals))
                };
                let totals = Totals::Known(totals);
                self.prioritize(now, attempt, totals, names, asked, effects);
            }
            Err(decision) => self.undecided(now, attempt, decision, left_out, effects),
        }
    }

    fn prioritize(
        &mut self,
        now: Now,
        attempt: Attempt,
        totals: Totals,
        nodes: Arc<NodeNames>,
        asked: Vec<usize>,
        effects: &mut Effects,
    ) {
        if asked.is_empty() {
            return self.choose(now, attempt, &totals, &Scores::new(nodes), effects);
        }
        let ask = |extender| {
            let question = Question::Prioritize(nodes.clone());
            self.ask(now, extender, &attempt.queued, question, effects)
        };
        let asked = asked.into_iter().map(ask).collect();
        let scores = Scores::new(nodes);
        self.suspended = Some(Box::new(Suspended::Prioritize { attempt, totals, scores, asked }));
    }

    /// The best node.
    fn choose(
        &mut self,
        now: Now,
        attempt: Attempt,
        totals: &Totals,
        scores: &Scores,
        effects: &mut Effects,
    ) {
        let seat = &mut self.seats[attempt.queued.seat.0 as usize];
        let pod = &attempt.queued.info.pod;
        let all_draw = seat.profile.extenders.any_without_scores(&pod.template.spec);
        let added = Added { scores, all_draw };
        let rows = match totals {
            Totals::Known(totals) => Ok(added.best(totals.iter().copied())),
            Totals::Kept(nodes) => {
                seat.scheduler.best_surveyed(&mut self.world, pod, nodes, &added)
            }
        };
        let decision = match rows {
            Ok(rows) if rows.is_empty() => Decision::Unschedulable,
            Ok(rows) => {
                let row = seat.scheduler.pick(&rows);
                return self.place(now, attempt.queued, row, attempt.began, effects);
            }
            Err(decision) => decision,
        };
        self.undecided(now, attempt, decision, Vec::new(), effects);
    }

    /// Lets extenders look at whom a PostFilter plugin would evict.
    pub(super) fn ask_preempters(
        &mut self,
        now: Now,
        asking: PostFiltering,
        candidates: &[Candidate],
        asked: Vec<usize>,
        effects: &mut Effects,
    ) {
        let victims = candidates.iter().filter_map(|candidate| {
            let name = self.world.node(candidate.row)?.name().to_owned();
            let pods = candidate.victims.pods.iter();
            let pods = pods.map(|pod| MetaPod { uid: pod.uid.to_string() }).collect();
            let num_pdb_violations = candidate.victims.n_violations as i64;
            Some((name, MetaVictims { pods, num_pdb_violations }))
        });
        let preempting = Preempting::new(victims.collect(), asked);
        self.go_on_preempting(now, asking, preempting, effects);
    }

    fn go_on_preempting(
        &mut self,
        now: Now,
        asking: PostFiltering,
        mut preempting: Preempting,
        effects: &mut Effects,
    ) {
        if let Some(extender) = preempting.ask_next() {
            let question = Question::Preempt(preempting.victims().clone());
            let asked = self.ask(now, extender, &asking.queued, question, effects);
            let asking = Box::new(asking);
            self.suspended = Some(Box::new(Suspended::Preempt { asking, preempting, asked }));
            return;
        }
        let candidates: Vec<Candidate> = preempting
            .victims()
            .iter()
            .filter_map(|(node, victims)| candidate(&self.world, node, victims))
            .collect();
        self.post_filter(now, asking, Input::Extended(Ok(&candidates)), effects);
    }

    fn ask(
        &mut self,
        now: Now,
        extender: usize,
        queued: &QueuedPod,
        question: Question,
        effects: &mut Effects,
    ) -> Asked {
        let timeout = self.seat(queued.seat).profile.extenders.get(extender);
        let timeout = timeout.map_or(Duration::ZERO, |extender| extender.timeout);
        let call = self.next_call(Owner::Extended);
        let ask = ask(extender, &queued.info.pod, question);
        effects.push(Effect::Extend(Extend { id: call, ask }));
        Asked { call, extender, until: now.mono.after(timeout + ANSWER_GRACE) }
    }

    /// An extender answered, or could not.
    pub(super) fn extended(
        &mut self,
        now: Now,
        call: CallId,
        answer: Result<Answer, String>,
        effects: &mut Effects,
    ) {
        let Some(owner) = self.calls.remove(&call) else { return };
        match owner {
            Owner::Extended => self.attempt_answered(now, call, answer, effects),
            Owner::Binder { .. } => {
                let answer = answer.and_then(|answer| match answer {
                    Answer::Bind(answer) => Ok(answer),
                    other => Err(beside_the_point(&other)),
                });
                self.binder_answered(now, &owner, answer, effects);
            }
            _ => {}
        }
    }

    fn attempt_answered(
        &mut self,
        now: Now,
        call: CallId,
        answer: Result<Answer, String>,
        effects: &mut Effects,
    ) {
        let Some(suspended) = self.suspended.take() else { return };
        match *suspended {
            Suspended::Filter { mut attempt, mut filtering, feasible, asked } => {
                let answer = answer.and_then(|answer| match answer {
                    Answer::Filter(answer) => Ok((None, answer)),
                    Answer::Left(left, answer) => Ok((Some(left), answer)),
                    other => Err(beside_the_point(&other)),
                });
                let extenders = &self.seat(attempt.queued.seat).profile.extenders;
                let Some(extender) = extenders.get(asked.extender) else { return };
                let taken = filtering.answered(extender, answer);
                match taken {
                    Ok(()) => self.go_on_filtering(now, attempt, filtering, feasible, effects),
                    Err(what) if matches!(feasible, Feasible::Promised(_)) => {
                        let pod = attempt.queued.info.pod.full_name();
                        let what = format!("pod {pod}: evaluating its nominated node: {what}");
                        effects.push(Effect::Observe(Observation::Trouble { what }));
                        attempt.failures.extend(filtering.finish().1);
                        self.survey(now, attempt, effects);
                    }
                    Err(text) => {
                        self.attempt_failed(now, attempt.queued, text, attempt.began, effects);
                    }
                }
            }
            Suspended::Prioritize { attempt, totals, mut scores, mut asked } => {
                let extenders = &self.seat(attempt.queued.seat).profile.extenders;
                let place = asked.iter().position(|asked| asked.call == call);
                let extender = place.and_then(|at| extenders.get(asked.remove(at).extender));
                // An error costs its scores, and nothing else.
                match (extender, answer) {
                    (Some(extender), Ok(Answer::Prioritize(answer))) => {
                        scores.add(extender, &answer);
                    }
                    (Some(extender), Ok(Answer::Scores(answer))) => {
                        scores.add_in_order(extender, &answer);
                    }
                    _ => {}
                }
                if asked.is_empty() {
                    return self.choose(now, attempt, &totals, &scores, effects);
                }
                let suspended = Suspended::Prioritize { attempt, totals, scores, asked };
                self.suspended = Some(Box::new(suspended));
            }
            Suspended::Preempt { asking, mut preempting, asked } => {
                let answer = answer.and_then(|answer| match answer {
                    Answer::Preempt(answer) => Ok(answer),
                    other => Err(beside_the_point(&other)),
                });
                let extenders = &self.seat(asking.queued.seat).profile.extenders;
                let Some(extender) = extenders.get(asked.extender) else { return };
                let taken = preempting.answered(extender, answer, &Known(&self.world));
                match taken {
                    Ok(()) => self.go_on_preempting(now, *asking, preempting, effects),
                    Err(error) => {
                        self.post_filter(now, *asking, Input::Extended(Err(&error)), effects);
                    }
                }
            }
        }
    }

    /// Goes on without answers that are too late.
    pub(super) fn extenders_time_out(&mut self, now: Now, effects: &mut Effects) {
        let asked = self.suspended.iter().flat_map(|suspended| suspended.asked());
        let overdue: Vec<CallId> =
            asked.filter(|asked| asked.until <= now.mono).map(|asked| asked.call).collect();
        for call in overdue {
            self.extended(now, call, Err(NO_ANSWER.to_owned()), effects);
        }
    }

    pub(super) fn extender_deadline(&self) -> Option<Mono> {
        let asked = self.suspended.iter().flat_map(|suspended| suspended.asked());
        asked.map(|asked| asked.until).min()
    }
}

/// The rows that are left, and those that are not.
fn divide<'a>(all: &'a [Row], left: &Left) -> (Cow<'a, [Row]>, Vec<Row>) {
    let Left::At(places) = left else { return (Cow::Borrowed(all), Vec::new()) };
    let mut is_left = vec![false; all.len()];
    for at in places {
        if let Some(is_left) = is_left.get_mut(*at) {
            *is_left = true;
        }
    }
    let rows = |wanted: bool| -> Vec<Row> {
        let rows = all.iter().zip(&is_left).filter(|(_, is_left)| **is_left == wanted);
        rows.map(|(row, _)| *row).collect()
    };
    (Cow::Owned(rows(true)), rows(false))
}

/// The names of those of these rows that have a total.
fn left_of(names: &NodeNames, rows: &[Row], totals: &[(Row, i64)]) -> NodeNames {
    let known = |row: &Row| totals.binary_search_by_key(row, |(row, _)| *row).is_ok();
    names.iter().zip(rows).filter(|(_, row)| known(row)).map(|(name, _)| name.clone()).collect()
}

fn beside_the_point(answer: &Answer) -> String {
    format!("the extender answered another question: {answer:?}")
}

fn candidate(world: &World, node: &str, victims: &MetaVictims) -> Option<Candidate> {
    let row = world.nodes().row(node)?;
    let on_node = world.nodes().pods(row);
    let pods = victims
        .pods
        .iter()
        .filter_map(|victim| on_node.iter().find(|pod| *pod.uid == *victim.uid).map(Arc::clone));
    let n_violations = usize::try_from(victims.num_pdb_violations).unwrap_or(0);
    Some(Candidate { row, victims: Victims { pods: pods.collect(), n_violations } })
}

/// The nodes as they are while extenders are asked.
struct Known<'a>(&'a World);

impl Nodes for Known<'_> {
    fn has_pod(&self, node: &str, uid: &str) -> Option<bool> {
        let row = self.0.nodes().row(node)?;
        Some(self.0.nodes().pods(row).iter().any(|pod| *pod.uid == *uid))
    }
}
