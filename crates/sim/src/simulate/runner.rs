//! The steps of a run.

mod effects;
mod reload;
mod settle;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Timestamp;
use loadmaster_engine::engine::{
    ApiObject, ApiServerCall, CycleResult, DeletedObjectKey, Effects, EngineEvent, PermitDecision,
};
use loadmaster_engine::{Engine, MonoTime, Now};
use loadmaster_stdx::Rng;

use start::{OptionalParts, new_engine};

use super::fake_extenders::{self, FakeExtenders};
use super::faulty_network::{Delivery, FaultyNetwork};
use super::gangs::{self, GangModel};
use super::invariants::{self, CheckResult};
use super::out_of_tree::OutOfTreeRun;
use super::plugin_calls::{self, PluginCall};
use super::plugin_workload::PluginWorkload;
use super::quotas::{self};
use super::reference_model::{CallKind, ReferenceModel};
use super::reloads::{self, Reloads};
use super::run_configuration::RunConfiguration;
use super::trace::{Trace, TraceLog};
use super::volumes::{self};
use super::workload::Workload;
use super::{
    InjectedBug, InvariantViolation, SimulatedSchedulerConfig, SimulationOptions, SimulationReport,
};
use crate::fake_api_server::{FakeApiServer, is_pod_terminal};

/// Virtual time at which a run begins.
const START: MonoTime = MonoTime(10_000_000_000);
const START_WALL: i64 = 1_700_000_000_000_000_000;

/// Longer than any run, in virtual time.
const NEVER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Virtual time may stand still for at most this many rounds.
const N_ROUNDS_MAX: u32 = 20_000;

/// Invariants that need a world built from scratch are checked every this many steps.
const FULL_CHECK_EVERY: u32 = 8;

/// Runs a seed: first with faults, then without. The log receives every event and effect as a line.
///
/// # Errors
///
/// The first invariant that was violated.
pub fn run_simulation<'a>(
    setup: &'a SimulatedSchedulerConfig,
    options: SimulationOptions,
    log: TraceLog<'a>,
) -> Result<SimulationReport, Box<InvariantViolation>> {
    let violation = |(step, at_ms), message| {
        Box::new(InvariantViolation { seed: options.seed, step, at_ms, message })
    };
    let mut run = Runner::new(setup, options, log).map_err(|message| violation((0, 0), message))?;
    let ended = run.with_faults().and_then(|()| run.without_faults());
    match ended {
        Ok(()) => Ok(run.report()),
        Err(message) => Err(violation((run.step, run.at_ms()), message)),
    }
}

struct Runner<'a> {
    setup: &'a SimulatedSchedulerConfig,
    options: SimulationOptions,
    /// Whether pods leave unschedulablePods after a timeout. Without the flush a missed event is detected.
    flushes: bool,
    rng: Rng,
    step: u32,
    now: Now,
    /// In runs whose configuration is replaced.
    reloads: Option<Reloads>,
    /// The configurations that this engine received, by number.
    configurations: Vec<Arc<RunConfiguration>>,
    /// The numbers of the configurations under which pods were reserved, by uid.
    reserved_under: BTreeMap<Box<str>, u64>,
    api_server: FakeApiServer,
    workload: Workload,
    plugin_workload: PluginWorkload,
    out_of_tree: Option<OutOfTreeRun>,
    network: FaultyNetwork,
    extenders: FakeExtenders,
    model: ReferenceModel,
    parts: OptionalParts,
    gangs: GangModel,
    engine: Engine,
    /// Leader term: an engine that lost its lease receives no replies.
    term: u64,
    trace: Trace<'a>,
    report: SimulationReport,
    /// Uids of the pods to which the injected bug was already applied.
    affected_pods: BTreeSet<Box<str>>,
}

impl<'a> Runner<'a> {
    fn report(mut self) -> SimulationReport {
        self.report.pods = self.workload.n_pods();
        self.report.relists = self.network.n_relists;
        self.report.failed_calls = self.network.n_failed_calls;
        self.report.extender_calls = self.extenders.n_requests;
        self.report.failed_extender_calls = self.extenders.n_failed;
        if let Some(volumes) = self.workload.volumes() {
            self.report.claims = volumes.n_claims;
            self.report.failed_provisions = volumes.controllers.provisioner.n_failed;
        }
        self.report.gangs = self.workload.n_gangs();
        self.report.gang_waits = self.gangs.n_waits;
        self.report.failed_gangs = self.gangs.n_failed;
        self.report.trace = self.trace.value();
        self.report
    }

    fn at_ms(&self) -> u64 {
        self.now.mono.since(START).as_millis() as u64
    }

    fn with_faults(&mut self) -> CheckResult {
        for step in 0..self.options.steps {
            self.step = step;
            self.advance();
            for _ in 0..self.rng.below(3) {
                self.workload.random_operation(&mut self.api_server, self.now.wall);
                self.plugin_workload.random_operation(&mut self.api_server);
                if let Some(run) = &mut self.out_of_tree {
                    run.random_operation(&mut self.api_server);
                }
            }
            self.plugin_workload.run_controller(&mut self.api_server, false);
            self.run_volume_controllers(false)?;
            self.workload.run_kubelets(&mut self.api_server, self.now.wall, false);
            // More often between PreBind and Bind, and while members of a gang wait.
            let is_half_done =
                self.network.has_volume_writes_in_flight() || self.gangs.has_waiting_members();
            let one_in = if is_half_done { 12 } else { 60 };
            if self.network.faults.leader_losses && self.rng.one_in(one_in) {
                self.lose_leader();
            }
            let n_max = if self.rng.one_in(3) { self.rng.below(6) } else { u64::MAX };
            self.deliver(n_max)?;
            self.reload_sometimes()?;
            self.run_service()?;
            self.handle_timeouts()?;
            let n_max = if self.rng.one_in(3) { self.rng.below(4) } else { u64::MAX };
            self.cycle(n_max)?;
            self.reload_sometimes()?;
            self.check()?;
        }
        Ok(())
    }

    /// Runs the controllers of claims and volumes, and checks what they did.
    fn run_volume_controllers(&mut self, all: bool) -> CheckResult {
        if self.workload.volumes().is_none() {
            return Ok(());
        }
        for event in self.workload.run_volume_controllers(&mut self.api_server, all) {
            self.trace.note(self.at_ms(), format_args!("{event}"));
        }
        volumes::check_objects(&self.api_server)
    }

    fn advance(&mut self) {
        let ms = match self.rng.below(30) {
            0..=19 => self.rng.range(0, 500),
            20..=28 => self.rng.range(500, 5_000),
            _ if self.network.faults.stalls => self.rng.range(10_000, 400_000),
            _ => self.rng.range(5_000, 30_000),
        };
        self.advance_to(self.now.mono.after(Duration::from_millis(ms as u64)));
    }

    fn advance_to(&mut self, then: MonoTime) {
        let passed = then.since(self.now.mono).as_nanos() as u64;
        self.now.mono = MonoTime(self.now.mono.0 + passed);
        self.now.wall = Timestamp(self.now.wall.0 + passed as i64);
    }

    /// The lease is lost: a new engine starts empty, and API calls of the old one may still arrive.
    fn lose_leader(&mut self) {
        self.term += 1;
        self.report.leader_losses += 1;
        self.trace.note(self.at_ms(), format_args!("leader {} starts", self.term));
        let mut engine_rng = Rng::new(self.options.seed).split(&format!("engine {}", self.term));
        let configuration = self.running_configuration();
        let hash_seed = self.options.hash_seed;
        self.engine =
            new_engine(&configuration, self.setup, self.flushes, hash_seed, &mut engine_rng);
        self.model = self.parts.new_model(&configuration);
        self.gangs.forget();
        self.begin_configurations(configuration);
        self.network.relist_all(self.now.mono);
    }

    /// Lets the network deliver what is due, at most this many deliveries.
    fn deliver(&mut self, n_max: u64) -> CheckResult {
        let mut out = Vec::new();
        for _ in 0..n_max {
            let events = self.api_server.take_watch_events();
            self.network.send_watch_events(self.now.mono, events);
            if let Some(response) = self.extenders.next_response(self.now, &mut self.api_server) {
                self.handle_extender_reply(response)?;
                continue;
            }
            if !self.network.deliver_one(self.now, &mut self.api_server, &mut out) {
                break;
            }
            for delivery in out.drain(..) {
                match delivery {
                    Delivery::WatchEvent(event)
                        if volumes::is_not_sent(self.options.injected_bug, &event) => {}
                    Delivery::WatchEvent(event) => {
                        self.model.defer_event(event.clone());
                        self.update_model();
                        self.handle_event(event)?;
                    }
                    Delivery::Reply { term, call, reply } if term == self.term => {
                        self.model.handle_reply(&call, &reply);
                        self.update_model();
                        let is_bind = matches!(CallKind::of_call(&call), CallKind::Bind { .. });
                        self.report.bound += u64::from(is_bind && reply.is_ok());
                        self.handle_reply(&call, reply)?;
                    }
                    Delivery::Reply { .. } | Delivery::RequestArrived => {}
                }
            }
        }
        let events = self.api_server.take_watch_events();
        self.network.send_watch_events(self.now.mono, events);
        match self.api_server.pods_bound_twice().first() {
            None => Ok(()),
            Some(pod) => Err(format!("pod {pod} was bound twice")),
        }
    }

    fn handle_extender_reply(&mut self, response: fake_extenders::ExtenderReply) -> CheckResult {
        if response.term != self.term {
            return Ok(());
        }
        if let Some((call, reply)) = &response.bind {
            self.model.handle_reply(call, reply);
            self.update_model();
            self.report.bound += u64::from(reply.is_ok());
        }
        self.apply(response.event)
    }

    /// Passes an event to the engine, unless the injected bug drops it.
    fn handle_event(&mut self, event: EngineEvent) -> CheckResult {
        let is_lost = match (self.options.injected_bug, &event) {
            (Some(InjectedBug::LostPodDelete), EngineEvent::Delete(DeletedObjectKey::Pod(uid))) => {
                self.engine.world().row_of_pod(uid).is_some()
            }
            (Some(InjectedBug::LostPodUpdate), EngineEvent::Upsert(ApiObject::Pod(pod))) => {
                let is_known = self.engine.pending_pod(&pod.metadata.uid).is_some();
                is_known && pod.spec.node_name.is_empty() && !is_pod_terminal(pod)
            }
            (Some(bug), EngineEvent::ObjectChanged { object, .. }) => {
                let resource = object.resource.as_str();
                bug == InjectedBug::LostNodePool && resource == "nodepools"
                    || bug == InjectedBug::LostAttachment && resource == "attachments"
            }
            _ => false,
        };
        let is_lost = is_lost || gangs::is_lost(self.options.injected_bug, &event);
        let is_lost = is_lost || quotas::is_lost(self.options.injected_bug, &event);
        let waits = self.model.plugins.waits_on(&event);
        let (bug, objects) = (self.options.injected_bug, &self.model.plugins.objects);
        let events = volumes::altered_event(bug, objects, gangs::altered_event(bug, event));
        for event in events.into_iter().filter(|_| !is_lost) {
            self.apply(event)?;
        }
        self.model.plugins.check_resumed(&waits)
    }

    /// The plugin author's service publishes values, and allows or rejects pods that wait at Permit.
    fn run_service(&mut self) -> CheckResult {
        if let Some(event) = self.plugin_workload.publication(&self.api_server) {
            self.publish(event)?;
        }
        let run = self.out_of_tree.as_mut();
        for event in run.map(|it| it.publications(&self.api_server)).unwrap_or_default() {
            self.publish(event)?;
        }
        if self.parts.gangs && self.options.injected_bug == Some(InjectedBug::IgnoredHold) {
            let waiting = self.engine.world().waiting_pods().iter().next();
            if let Some(uid) = waiting.map(|waiting| waiting.pod.uid.clone()) {
                let decision = PermitDecision::Allow;
                self.apply(EngineEvent::Permit { uid, plugin: None, decision })?;
            }
        }
        let held: Vec<Box<str>> = self.model.plugins.held_pods().map(Into::into).collect();
        let Some((uid, decision)) = self.plugin_workload.permit_decision(&held) else {
            return Ok(());
        };
        let is_allowed = decision == PermitDecision::Allow;
        if is_allowed && self.options.injected_bug != Some(InjectedBug::IgnoredHold) {
            self.model.plugins.allow(&uid);
        }
        self.apply(EngineEvent::Permit { uid, plugin: None, decision })
    }

    fn publish(&mut self, event: EngineEvent) -> CheckResult {
        if let EngineEvent::Published { plugin, value, ttl } = &event {
            let until = self.now.mono.after(*ttl);
            match &self.out_of_tree {
                Some(_) => self.model.plugins.out_of_tree.publish(plugin, value, until),
                None if self.running_configuration().has_plugin(plugin) => {
                    self.model.plugins.publish(value, until);
                }
                // A value for no plugin is dropped.
                None => {}
            }
        }
        match self.options.injected_bug {
            Some(InjectedBug::LostPublication) => Ok(()),
            _ => self.apply(event),
        }
    }

    /// Updates the reference model with what the test plugins did in the last engine call.
    fn apply_plugin_calls(&mut self) -> CheckResult {
        let mut n_unreserved = 0;
        for call in plugin_calls::take_recorded() {
            n_unreserved += u32::from(matches!(call, PluginCall::Unreserved { .. }));
            match &call {
                PluginCall::Reserved { uid, node } => {
                    invariants::check_bind(self.setup, &self.model, &self.engine, uid, node)?;
                    self.handle_reserved(uid);
                    if self.parts.quotas {
                        self.report.within_quota +=
                            u64::from(quotas::check_reserved(&self.model, uid)?);
                    }
                    self.model.assume(uid, node.clone());
                    if self.parts.gangs {
                        self.gangs.handle_reserved(&self.model, uid);
                    }
                    let nodes = self.engine.world().nodes();
                    let object = nodes.row(node).and_then(|row| nodes.node(row)).cloned();
                    self.model.reserve_claims(uid, node, object);
                    self.model.plugins.out_of_tree.handle_reserved(uid);
                    self.report.reserved += 1;
                }
                PluginCall::Unreserved { uid } => {
                    let is_lost = match self.options.injected_bug {
                        Some(InjectedBug::LostUnreserve) => true,
                        Some(InjectedBug::PartlyRejectedGang) => n_unreserved > 1,
                        _ => false,
                    };
                    self.model.counting.end_reservation(uid);
                    if !is_lost {
                        self.model.assumed.remove(uid);
                        self.gangs.handle_unreserved(uid);
                    }
                }
                PluginCall::Bound { uid } => self.model.counting.end_reservation(uid),
                PluginCall::Held { .. } => self.report.held += 1,
                PluginCall::Waits { .. } => self.report.waits += 1,
                _ => {}
            }
            self.model.plugins.handle_call(self.now.mono, call)?;
        }
        if self.out_of_tree.is_some() || self.parts.gangs {
            let waiting = self.engine.world().waiting_pods().iter();
            self.model.plugins.waiting = waiting.map(|waiting| waiting.pod.uid.clone()).collect();
        }
        match self.parts.gangs {
            true => self.gangs.end_call(self.now.mono, &self.model, &self.engine),
            false => Ok(()),
        }
    }

    fn handle_reply(
        &mut self,
        call: &ApiServerCall,
        reply: loadmaster_engine::engine::ApiReply,
    ) -> CheckResult {
        let CallKind::Bind { uid, .. } = CallKind::of_call(call) else {
            return self.apply(EngineEvent::Replied { call: call.id, reply });
        };
        if self.options.injected_bug == Some(InjectedBug::LostBindFailure) && reply.is_err() {
            return Ok(());
        }
        let is_bound = reply.is_ok();
        self.apply(EngineEvent::Replied { call: call.id, reply })?;
        if self.options.injected_bug == Some(InjectedBug::StalePod)
            && is_bound
            && self.affected_pods.insert(uid.clone())
            && let Some(pod) = self.model.pods.get(&uid).cloned()
        {
            let mut pod = pod;
            pod.spec.node_name = loadmaster_api::Str::default();
            self.apply(EngineEvent::Delete(DeletedObjectKey::Pod(uid)))?;
            self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))))?;
        }
        Ok(())
    }

    fn apply(&mut self, event: EngineEvent) -> CheckResult {
        self.trace.event(self.at_ms(), &event);
        let mut effects = Effects::new();
        self.gangs.begin_call(&self.model);
        self.engine.apply_event(self.now, event, &mut effects);
        self.apply_plugin_calls()?;
        self.carry_out(effects, false)?;
        self.update_model();
        Ok(())
    }

    /// The engine is about to receive something, or was called: the reference model handles what it received, unless the engine defers it.
    fn update_model(&mut self) {
        if !self.engine.has_suspended_attempt() {
            self.model.handle_deferred();
        }
        self.model.nominated = invariants::nominated_pods(&self.engine);
    }

    fn handle_timeouts(&mut self) -> CheckResult {
        let is_due = self.engine.next_timeout().is_some_and(|due| due <= self.now.mono);
        if !is_due || self.options.injected_bug == Some(InjectedBug::LostTimeouts) {
            return Ok(());
        }
        let mut effects = Effects::new();
        self.gangs.begin_call(&self.model);
        self.engine.handle_timeouts(self.now, &mut effects);
        self.model.plugins.expire_published(self.now.mono);
        self.apply_plugin_calls()?;
        self.carry_out(effects, false)?;
        self.update_model();
        Ok(())
    }

    /// Runs scheduling cycles, at most this many.
    fn cycle(&mut self, n_max: u64) -> CheckResult {
        if !self.model.plugins.awaited_kinds.is_empty() {
            return Ok(());
        }
        for _ in 0..n_max.min(u64::from(N_ROUNDS_MAX)) {
            let mut effects = Effects::new();
            self.gangs.begin_call(&self.model);
            let first = self.first_pods();
            let cycled = self.engine.cycle(self.now, &mut effects);
            if cycled == CycleResult::Ran {
                reloads::check_popped(&first, &self.engine)?;
            }
            self.apply_plugin_calls()?;
            self.carry_out(effects, true)?;
            self.update_model();
            if cycled != CycleResult::Ran {
                return Ok(());
            }
            self.report.attempts += 1;
        }
        match n_max {
            u64::MAX => {
                Err("the engine schedules pods forever while virtual time stands still".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn check(&self) -> CheckResult {
        if self.engine.has_suspended_attempt() {
            // The reference model is not updated yet, see [`Runner::update_model`].
            return self.check_fast_decisions();
        }
        invariants::check_queue(&self.model, &self.engine)?;
        invariants::check_nominations(&self.model, &self.engine)?;
        self.check_reloaded()?;
        self.model.plugins.check_waits(self.now.mono, &self.engine)?;
        self.gangs.check_timeouts(self.now.mono)?;
        self.check_fast_decisions()?;
        if self.step.is_multiple_of(FULL_CHECK_EVERY) {
            let counted = self.model.world(&self.setup.gates, "");
            invariants::check_same_world(self.engine.world(), &counted)?;
        }
        Ok(())
    }

    fn check_fast_decisions(&self) -> CheckResult {
        match self.engine.decision_mismatches().next() {
            Some(difference) => {
                Err(format!("a fast decision differs from per-node evaluation: {difference}"))
            }
            None => Ok(()),
        }
    }
}
