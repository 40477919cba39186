//! Extender calls within an attempt (upstream's `findNodesThatPassExtenders`, `prioritizeNodes` and `callExtenders`).
//!
//! An attempt that waits for an extender is a value that resumes with the reply or with a timeout. Until then no other attempt begins,
//! and the world does not change ([`super::deferred_events`]).
//!
//! ```text
//! nominated node ─► filter on it alone ─► feasible: place
//!       └ no ─► feasible nodes ─► filter, one extender after the other ─► none: PostFilter ─► preempt, one after the other
//!                                                                      ├► one: place
//!                                                                      └► several: score ─► prioritize, in parallel ─► the best
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_extender::chain::NodeLookup;
use loadmaster_extender::messages::{MetaPod, MetaVictims};
use loadmaster_extender::{
    ExtenderOperation, ExtenderRequest, ExtenderResponse, ExtenderScores, Extenders, FilterChain,
    NodeNames, PreemptChain, RemainingNodes, Verb,
};
use loadmaster_framework::api_calls::PluginStepInput;
use loadmaster_framework::preemption::{Candidate, Victims};
use loadmaster_framework::{NodeRow, PodInfo, World};

use super::Engine;
use super::call_owner::CallOwner;
use super::effect::{CallId, Effect, Effects, ExtenderCall, Observation};
use super::post_filter::PostFilterRun;
use super::suspended_attempt::{Attempt, Feasible, PendingExtenderCall, SuspendedAttempt, Totals};
use crate::evaluate::ExtenderResults;
use crate::queue::QueuedPod;
use crate::scheduler::{Decision, ExtenderScoring};
use crate::time::{MonoTime, Now};

/// The extender client enforces the timeout of each call; a reply that has not arrived this much later never will.
pub(super) const REPLY_GRACE: Duration = Duration::from_secs(5);

/// The error in that case, which is the note of the pod's Event.
pub const NO_REPLY_FROM_EXTENDER: &str = "no reply from the extender";

/// Whether any extender filters or scores nodes for this pod.
pub(super) fn has_interested_extenders(extenders: &Extenders, pod: &PodInfo) -> bool {
    let is_interested = |verb| !extenders.interested_in(verb, &pod.template.spec).is_empty();
    !extenders.is_empty() && (is_interested(Verb::Filter) || is_interested(Verb::Prioritize))
}

/// A request about a pod.
pub(super) fn extender_request(
    extender: usize,
    pod: &PodInfo,
    operation: ExtenderOperation,
) -> ExtenderRequest {
    ExtenderRequest {
        extender,
        namespace: pod.template.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        operation,
    }
}

impl Engine {
    pub(super) fn attempt_with_extenders(
        &mut self,
        now: Now,
        queued: QueuedPod,
        began: u64,
        effects: &mut Effects,
    ) {
        let pod = queued.info.pod.clone();
        let attempt = Attempt { queued, began, failures: BTreeMap::new() };
        let profile_scheduler = &mut self.profiles[attempt.queued.profile_idx.0 as usize];
        match profile_scheduler.scheduler.evaluate_nominated_node(&mut self.world, &pod) {
            Some(row) => {
                let node = profile_scheduler.scheduler.set_single_feasible_node(&self.world, row);
                self.start_filter(now, attempt, Feasible::Nominated(node), effects);
            }
            None => self.find_feasible_nodes(now, attempt, effects),
        }
    }

    /// Finds the feasible nodes among all nodes.
    fn find_feasible_nodes(&mut self, now: Now, attempt: Attempt, effects: &mut Effects) {
        let pod = attempt.queued.info.pod.clone();
        let profile_scheduler = &mut self.profiles[attempt.queued.profile_idx.0 as usize];
        profile_scheduler.scheduler.set_next_start_node_index(self.search_start);
        let feasible_nodes = profile_scheduler.scheduler.find_feasible_nodes(&mut self.world, &pod);
        self.search_start = profile_scheduler.scheduler.next_start_node_index();
        match feasible_nodes {
            Ok(nodes) => self.start_filter(now, attempt, Feasible::All(nodes), effects),
            Err(decision) => self.handle_no_placement(now, attempt, decision, Vec::new(), effects),
        }
    }

    /// No feasible node is left, or a plugin failed.
    fn handle_no_placement(
        &mut self,
        now: Now,
        attempt: Attempt,
        decision: Decision,
        left_out: Vec<NodeRow>,
        effects: &mut Effects,
    ) {
        let Attempt { queued, began, failures } = attempt;
        match decision {
            Decision::Failed(text) => self.handle_attempt_error(now, queued, text, began, effects),
            Decision::Unschedulable | Decision::Selected { .. } => {
                let extended = ExtenderResults { excluded: left_out, failures };
                self.handle_fit_error(now, queued, began, &extended, effects);
            }
        }
    }

    fn start_filter(
        &mut self,
        now: Now,
        attempt: Attempt,
        feasible: Feasible,
        effects: &mut Effects,
    ) {
        let extenders = &self.profile_scheduler(attempt.queued.profile_idx).profile.extenders;
        let interested =
            extenders.interested_in(Verb::Filter, &attempt.queued.info.pod.template.spec);
        let filter_chain = FilterChain::new(feasible.nodes().names.clone(), interested);
        self.continue_filter(now, attempt, filter_chain, feasible, effects);
    }

    fn continue_filter(
        &mut self,
        now: Now,
        attempt: Attempt,
        mut filter_chain: FilterChain,
        feasible: Feasible,
        effects: &mut Effects,
    ) {
        match filter_chain.next_extender() {
            Some(extender) => {
                let operation = ExtenderOperation::Filter(filter_chain.nodes().clone());
                let pending =
                    self.call_extender(now, extender, &attempt.queued, operation, effects);
                let suspended =
                    SuspendedAttempt::Filter { attempt, filter_chain, feasible, pending };
                self.suspended = Some(Box::new(suspended));
            }
            None => self.filtered(now, attempt, filter_chain, feasible, effects),
        }
    }

    fn filtered(
        &mut self,
        now: Now,
        mut attempt: Attempt,
        filter_chain: FilterChain,
        feasible: Feasible,
        effects: &mut Effects,
    ) {
        let names = filter_chain.nodes().clone();
        let (left, failures) = filter_chain.finish();
        attempt.failures.extend(failures);
        if let Feasible::Nominated(_) = feasible
            && names.is_empty()
        {
            return self.find_feasible_nodes(now, attempt, effects);
        }
        // The world was frozen: rows are still valid.
        let all = &feasible.nodes().rows;
        let extenders = &self.profile_scheduler(attempt.queued.profile_idx).profile.extenders;
        let interested =
            extenders.interested_in(Verb::Prioritize, &attempt.queued.info.pod.template.spec);
        let pod = attempt.queued.info.pod.clone();
        let profile_scheduler = &mut self.profiles[attempt.queued.profile_idx.0 as usize];
        let is_all = left == RemainingNodes::All;
        if is_all
            && interested.is_empty()
            && let Some(Decision::Selected { row, .. }) =
                profile_scheduler.scheduler.select_among_feasible(&self.world, &pod)
        {
            return self.place(now, attempt.queued, row, attempt.began, effects);
        }
        let (left, left_out) = partition_rows(all, &left);
        if let [row] = left.as_ref() {
            return self.place(now, attempt.queued, *row, attempt.began, effects);
        }
        if left.is_empty() {
            return self.handle_no_placement(
                now,
                attempt,
                Decision::Unschedulable,
                left_out,
                effects,
            );
        }
        if is_all
            && let Some(nodes) =
                profile_scheduler.scheduler.cached_feasible_nodes(&self.world, &pod)
        {
            return self.prioritize(now, attempt, Totals::Index(nodes), names, interested, effects);
        }
        match profile_scheduler.scheduler.score_nodes(&mut self.world, &pod, &left) {
            Ok(totals) => {
                let names = if totals.len() == left.len() {
                    names
                } else {
                    Arc::new(names_with_totals(&names, &left, &totals))
                };
                let totals = Totals::Rows(totals);
                self.prioritize(now, attempt, totals, names, interested, effects);
            }
            Err(decision) => self.handle_no_placement(now, attempt, decision, left_out, effects),
        }
    }

    fn prioritize(
        &mut self,
        now: Now,
        attempt: Attempt,
        totals: Totals,
        nodes: Arc<NodeNames>,
        interested: Vec<usize>,
        effects: &mut Effects,
    ) {
        if interested.is_empty() {
            return self.select_host(now, attempt, &totals, &ExtenderScores::new(nodes), effects);
        }
        let call = |extender| {
            let operation = ExtenderOperation::Prioritize(nodes.clone());
            self.call_extender(now, extender, &attempt.queued, operation, effects)
        };
        let pending = interested.into_iter().map(call).collect();
        let scores = ExtenderScores::new(nodes);
        self.suspended =
            Some(Box::new(SuspendedAttempt::Prioritize { attempt, totals, scores, pending }));
    }

    /// Selects the best node (upstream's `selectHost`).
    fn select_host(
        &mut self,
        now: Now,
        attempt: Attempt,
        totals: &Totals,
        scores: &ExtenderScores,
        effects: &mut Effects,
    ) {
        let profile_scheduler = &mut self.profiles[attempt.queued.profile_idx.0 as usize];
        let pod = &attempt.queued.info.pod;
        let all_draw = profile_scheduler
            .profile
            .extenders
            .any_interested_without_prioritize(&pod.template.spec);
        let added = ExtenderScoring { scores, include_unscored: all_draw };
        let rows = match totals {
            Totals::Rows(totals) => Ok(added.best_nodes(totals.iter().copied())),
            Totals::Index(nodes) => profile_scheduler.scheduler.best_with_extender_scores(
                &mut self.world,
                pod,
                nodes,
                &added,
            ),
        };
        let decision = match rows {
            Ok(rows) if rows.is_empty() => Decision::Unschedulable,
            Ok(rows) => {
                let row = profile_scheduler.scheduler.pick_random_row(&rows);
                return self.place(now, attempt.queued, row, attempt.began, effects);
            }
            Err(decision) => decision,
        };
        self.handle_no_placement(now, attempt, decision, Vec::new(), effects);
    }

    /// Sends the candidates of a PostFilter plugin to extenders (upstream's `callExtenders`).
    pub(super) fn call_preempt_extenders(
        &mut self,
        now: Now,
        post_filter_run: PostFilterRun,
        candidates: &[Candidate],
        interested: Vec<usize>,
        effects: &mut Effects,
    ) {
        let victims = candidates.iter().filter_map(|candidate| {
            let name = self.world.node(candidate.row)?.name().to_owned();
            let pods = candidate.victims.pods.iter();
            let pods = pods.map(|pod| MetaPod { uid: pod.uid.to_string() }).collect();
            let num_pdb_violations = candidate.victims.n_pdb_violations as i64;
            Some((name, MetaVictims { pods, num_pdb_violations }))
        });
        let preempt_chain = PreemptChain::new(victims.collect(), interested);
        self.continue_preempt(now, post_filter_run, preempt_chain, effects);
    }

    fn continue_preempt(
        &mut self,
        now: Now,
        post_filter_run: PostFilterRun,
        mut preempt_chain: PreemptChain,
        effects: &mut Effects,
    ) {
        if let Some(extender) = preempt_chain.next_extender() {
            let operation = ExtenderOperation::Preempt(preempt_chain.victims().clone());
            let pending =
                self.call_extender(now, extender, &post_filter_run.queued, operation, effects);
            let post_filter_run = Box::new(post_filter_run);
            self.suspended = Some(Box::new(SuspendedAttempt::Preempt {
                post_filter_run,
                preempt_chain,
                pending,
            }));
            return;
        }
        let candidates: Vec<Candidate> = preempt_chain
            .victims()
            .iter()
            .filter_map(|(node, victims)| candidate(&self.world, node, victims))
            .collect();
        self.post_filter(
            now,
            post_filter_run,
            PluginStepInput::ExtendersReplied(Ok(&candidates)),
            effects,
        );
    }

    fn call_extender(
        &mut self,
        now: Now,
        extender: usize,
        queued: &QueuedPod,
        operation: ExtenderOperation,
        effects: &mut Effects,
    ) -> PendingExtenderCall {
        let profile_scheduler = self.profile_scheduler(queued.profile_idx);
        let configuration = profile_scheduler.configuration;
        let timeout = profile_scheduler.profile.extenders.get(extender);
        let timeout = timeout.map_or(Duration::ZERO, |extender| extender.timeout);
        let call = self.next_call(CallOwner::ExtenderCycle);
        let request = extender_request(extender, &queued.info.pod, operation);
        effects.push(Effect::CallExtender(ExtenderCall { id: call, configuration, request }));
        PendingExtenderCall { call, extender, until: now.mono.after(timeout + REPLY_GRACE) }
    }

    /// Handles the reply of an extender, or its error.
    pub(super) fn handle_extender_reply(
        &mut self,
        now: Now,
        call: CallId,
        response: Result<ExtenderResponse, String>,
        effects: &mut Effects,
    ) {
        let Some(owner) = self.calls.remove(&call) else { return };
        match owner {
            CallOwner::ExtenderCycle => self.handle_extender_response(now, call, response, effects),
            CallOwner::ExtenderBind { .. } => {
                let response = response.and_then(|response| match response {
                    ExtenderResponse::Bind(response) => Ok(response),
                    other => Err(unexpected_response(&other)),
                });
                self.handle_extender_bind_reply(now, &owner, response, effects);
            }
            _ => {}
        }
    }

    fn handle_extender_response(
        &mut self,
        now: Now,
        call: CallId,
        response: Result<ExtenderResponse, String>,
        effects: &mut Effects,
    ) {
        let Some(suspended) = self.suspended.take() else { return };
        match *suspended {
            SuspendedAttempt::Filter { mut attempt, mut filter_chain, feasible, pending } => {
                let response = response.and_then(|response| match response {
                    ExtenderResponse::Filter(response) => Ok((None, response)),
                    ExtenderResponse::FilterInOrder(left, response) => Ok((Some(left), response)),
                    other => Err(unexpected_response(&other)),
                });
                let extenders =
                    &self.profile_scheduler(attempt.queued.profile_idx).profile.extenders;
                let Some(extender) = extenders.get(pending.extender) else { return };
                let handled = filter_chain.handle_response(extender, response);
                match handled {
                    Ok(()) => self.continue_filter(now, attempt, filter_chain, feasible, effects),
                    Err(error) if matches!(feasible, Feasible::Nominated(_)) => {
                        let pod = attempt.queued.info.pod.full_name();
                        let message = format!("pod {pod}: evaluating its nominated node: {error}");
                        effects.push(Effect::Observe(Observation::InternalError { message }));
                        attempt.failures.extend(filter_chain.finish().1);
                        self.find_feasible_nodes(now, attempt, effects);
                    }
                    Err(text) => {
                        self.handle_attempt_error(
                            now,
                            attempt.queued,
                            text,
                            attempt.began,
                            effects,
                        );
                    }
                }
            }
            SuspendedAttempt::Prioritize { attempt, totals, mut scores, mut pending } => {
                let extenders =
                    &self.profile_scheduler(attempt.queued.profile_idx).profile.extenders;
                let index = pending.iter().position(|pending| pending.call == call);
                let extender = index.and_then(|at| extenders.get(pending.remove(at).extender));
                // An error only drops its scores.
                match (extender, response) {
                    (Some(extender), Ok(ExtenderResponse::Prioritize(response))) => {
                        scores.add(extender, &response);
                    }
                    (Some(extender), Ok(ExtenderResponse::PrioritizeInOrder(response))) => {
                        scores.add_in_order(extender, &response);
                    }
                    _ => {}
                }
                if pending.is_empty() {
                    return self.select_host(now, attempt, &totals, &scores, effects);
                }
                let suspended = SuspendedAttempt::Prioritize { attempt, totals, scores, pending };
                self.suspended = Some(Box::new(suspended));
            }
            SuspendedAttempt::Preempt { post_filter_run, mut preempt_chain, pending } => {
                let response = response.and_then(|response| match response {
                    ExtenderResponse::Preempt(response) => Ok(response),
                    other => Err(unexpected_response(&other)),
                });
                let extenders =
                    &self.profile_scheduler(post_filter_run.queued.profile_idx).profile.extenders;
                let Some(extender) = extenders.get(pending.extender) else { return };
                let handled =
                    preempt_chain.handle_response(extender, response, &FrozenNodes(&self.world));
                match handled {
                    Ok(()) => self.continue_preempt(now, *post_filter_run, preempt_chain, effects),
                    Err(error) => {
                        self.post_filter(
                            now,
                            *post_filter_run,
                            PluginStepInput::ExtendersReplied(Err(&error)),
                            effects,
                        );
                    }
                }
            }
        }
    }

    /// Handles timeouts of extender calls.
    pub(super) fn handle_extender_timeouts(&mut self, now: Now, effects: &mut Effects) {
        let pending = self.suspended.iter().flat_map(|suspended| suspended.pending());
        let timed_out: Vec<CallId> = pending
            .filter(|pending| pending.until <= now.mono)
            .map(|pending| pending.call)
            .collect();
        for call in timed_out {
            self.handle_extender_reply(now, call, Err(NO_REPLY_FROM_EXTENDER.to_owned()), effects);
        }
    }

    pub(super) fn extender_deadline(&self) -> Option<MonoTime> {
        let pending = self.suspended.iter().flat_map(|suspended| suspended.pending());
        pending.map(|pending| pending.until).min()
    }
}

/// The rows that passed the extenders, and those that did not.
fn partition_rows<'a>(
    all: &'a [NodeRow],
    left: &RemainingNodes,
) -> (Cow<'a, [NodeRow]>, Vec<NodeRow>) {
    let RemainingNodes::Indices(indices) = left else { return (Cow::Borrowed(all), Vec::new()) };
    let mut is_left = vec![false; all.len()];
    for at in indices {
        if let Some(is_left) = is_left.get_mut(*at) {
            *is_left = true;
        }
    }
    let rows = |wanted: bool| -> Vec<NodeRow> {
        let rows = all.iter().zip(&is_left).filter(|(_, is_left)| **is_left == wanted);
        rows.map(|(row, _)| *row).collect()
    };
    (Cow::Owned(rows(true)), rows(false))
}

/// The names of the rows that have a total score.
fn names_with_totals(names: &NodeNames, rows: &[NodeRow], totals: &[(NodeRow, i64)]) -> NodeNames {
    let known = |row: &NodeRow| totals.binary_search_by_key(row, |(row, _)| *row).is_ok();
    names.iter().zip(rows).filter(|(_, row)| known(row)).map(|(name, _)| name.clone()).collect()
}

fn unexpected_response(response: &ExtenderResponse) -> String {
    format!("unexpected response from the extender: {response:?}")
}

fn candidate(world: &World, node: &str, victims: &MetaVictims) -> Option<Candidate> {
    let row = world.nodes().row(node)?;
    let pods = victims.pods.iter().filter_map(|victim| world.assigned_pod(&victim.uid).cloned());
    let n_violations = usize::try_from(victims.num_pdb_violations).unwrap_or(0);
    Some(Candidate {
        row,
        victims: Victims { pods: pods.collect(), n_pdb_violations: n_violations },
    })
}

/// The nodes of the frozen world.
struct FrozenNodes<'a>(&'a World);

impl NodeLookup for FrozenNodes<'_> {
    fn has_pod(&self, node: &str, uid: &str) -> Option<bool> {
        let row = self.0.nodes().row(node)?;
        Some(self.0.nodes().pods(row).iter().any(|pod| *pod.uid == *uid))
    }
}
