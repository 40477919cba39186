//! The loop of the engine's thread: delivers events to the engine, runs scheduling cycles, and executes the engine's effects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::RawObject;
use loadmaster_client::Kind;
use loadmaster_client::api_dispatcher::{ApiCall, ApiDispatcher, FinishedCall};
use loadmaster_client::event_recorder::EventRecorder;
use loadmaster_client::reflector::{KindUnavailableReason, ReflectorEvent};
use loadmaster_engine::engine::{CycleResult, EngineConfiguration, Observation};
use loadmaster_engine::{Effect, Effects, Engine, EngineEvent, Now};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver};
use tokio::sync::{oneshot, watch};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::extender_calls::{ConnectedExtenders, ExtenderCaller, ExtenderReply};
use super::missing_kinds::MissingKinds;
use super::observations::ClientCounts;
use super::recording::Recording;
use super::service::ServiceRequest;
use super::shadow_report::ShadowReport;
use super::{clock, event_conversion, observations};
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::serve::HealthState;

/// A command from another thread to the engine's thread.
pub(super) enum Command {
    /// Start or stop scheduling.
    SetLeading(bool),
    /// Run a query on the engine. It should be short: nothing is scheduled meanwhile.
    Query(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Replace the configuration.
    Reload(Box<ReloadRequest>),
    /// Handle an event from a service.
    ServiceRequest(Box<ServiceRequest>),
    /// End the loop.
    Stop,
}

/// Another configuration for the engine.
pub(super) struct ReloadRequest {
    pub configuration: Arc<EngineConfiguration>,
    pub extenders: ConnectedExtenders,
    /// Gets the kinds that are not watched yet when the configuration has taken effect, or the reasons why it cannot.
    pub done: oneshot::Sender<Result<Vec<Kind>, Vec<String>>>,
}

/// A configuration that takes effect when the running attempt has ended.
struct PendingReload {
    number: u64,
    done: oneshot::Sender<Result<Vec<Kind>, Vec<String>>>,
}

/// Limits per iteration of the loop, so that neither watch events nor scheduling cycles starve.
const WATCH_EVENTS_PER_BATCH: usize = 2048;
const CYCLES_PER_BATCH: usize = 64;

/// How often gauges such as queue lengths are updated.
const STATE_PERIOD_NANOS: u64 = 250_000_000;
/// How often the ages of pending pods are updated, for which every queued pod is read.
const AGES_PERIOD_NANOS: u64 = 5_000_000_000;

/// The longest sleep, so that metrics stay up to date.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Before all kinds have synced nothing can be scheduled, so that objects are taken in together, after at least this time: to wake the thread
/// for each of them costs more than to take it in.
const SYNC_PAUSE: Duration = Duration::from_millis(5);

/// The engine, its input channels and its outputs.
pub(super) struct EngineLoop {
    pub engine: Engine,
    pub recording: Option<Recording>,
    pub watch_events: Receiver<ReflectorEvent>,
    pub finished_calls: Receiver<FinishedCall>,
    pub commands: UnboundedReceiver<Command>,
    pub calls: Arc<ApiDispatcher>,
    pub extender_caller: ExtenderCaller,
    pub extender_replies: UnboundedReceiver<ExtenderReply>,
    pub recorder: Arc<EventRecorder>,
    pub metrics: Arc<Metrics>,
    pub logs: Logs,
    pub synced: HealthState,
    /// Kinds that cannot be listed or watched.
    pub missing: MissingKinds,
    /// All kinds that are watched.
    pub kinds: Vec<Kind>,
    /// Notifies services whether this replica is the leader.
    pub leading: watch::Sender<bool>,
    /// What a shadow has found.
    pub shadow_report: ShadowReport,
}

/// What ended the sleep of the thread.
enum WakeReason {
    WatchEvent(Option<ReflectorEvent>),
    CallFinished(Option<FinishedCall>),
    ExtenderReplied(Option<ExtenderReply>),
    Command(Option<Command>),
    Timeout,
}

/// The state of the loop.
struct LoopState {
    is_leading: bool,
    is_over: bool,
    /// Kinds that have not synced yet.
    unsynced: Vec<Kind>,
    effects: Effects,
    /// Calls that the dispatcher did not accept because its queue is full.
    backlog: VecDeque<ApiCall>,
    state_updated_at: u64,
    ages_updated_at: u64,
    client_counts: ClientCounts,
    /// Decision mismatches that have been reported.
    n_reported_mismatches: usize,
    /// Number of configurations that replaced the first one.
    n_reloads: u64,
    pending_reload: Option<PendingReload>,
    /// The runtime in which this thread sleeps. Extenders are called in it: during a call the engine only waits, and no other thread has to
    /// be woken for it.
    runtime: Runtime,
}

impl EngineLoop {
    /// Runs until [`Command::Stop`] or until a channel is closed.
    pub fn run(mut self) {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                return tracing::error!(%error, "Failed to start the runtime of the engine thread");
            }
        };
        let mut state = LoopState {
            is_leading: false,
            is_over: false,
            unsynced: self.kinds.clone(),
            effects: Effects::new(),
            backlog: VecDeque::new(),
            state_updated_at: 0,
            ages_updated_at: 0,
            client_counts: ClientCounts::default(),
            n_reported_mismatches: 0,
            n_reloads: 0,
            pending_reload: None,
            runtime,
        };
        while !state.is_over {
            self.engine.set_log_verbosity(self.logs.highest_verbosity());
            let n_events = self.drain_channels(&mut state);
            let now = clock::now();
            if self.engine.next_timeout().is_some_and(|deadline| deadline <= now.mono) {
                self.handle_timeouts(now, &mut state);
            }
            self.finish_reload(&mut state);
            let has_run = self.run_cycles(now, &mut state);
            self.execute_effects(&mut state);
            self.update_state_metrics(now, &mut state);
            if n_events == 0 && !has_run {
                self.sleep(&mut state);
            }
        }
        self.shadow_report.finish();
    }

    fn drain_channels(&mut self, state: &mut LoopState) -> usize {
        let mut n_events = 0;
        // Let extender calls make progress even if watch events never stop.
        if state.runtime.metrics().num_alive_tasks() > 0 {
            state.runtime.block_on(yield_now());
        }
        while let Ok(command) = self.commands.try_recv() {
            self.handle_command(command, state);
            n_events += 1;
        }
        // Replies to API calls first: they free slots in the bind window.
        while let Ok(call) = self.finished_calls.try_recv() {
            self.apply(event_conversion::reply_event(call), None, state);
            n_events += 1;
        }
        while let Ok(reply) = self.extender_replies.try_recv() {
            self.apply(reply.into(), None, state);
            n_events += 1;
        }
        for _ in 0..WATCH_EVENTS_PER_BATCH {
            if !self.engine.accepts_object_events() {
                break;
            }
            let Ok(event) = self.watch_events.try_recv() else { break };
            self.handle_watch_event(event, state);
            n_events += 1;
        }
        n_events
    }

    /// Runs scheduling cycles if this replica leads and all kinds have synced.
    fn run_cycles(&mut self, now: Now, state: &mut LoopState) -> bool {
        if !state.is_leading || !state.unsynced.is_empty() {
            return false;
        }
        for nth in 0..CYCLES_PER_BATCH {
            if self.cycle(now, state) != CycleResult::Ran {
                return nth > 0;
            }
        }
        true
    }

    fn apply(&mut self, event: EngineEvent, raw: Option<&RawObject>, state: &mut LoopState) {
        let (now, before) = (clock::now(), state.effects.len());
        if let Some(recording) = &mut self.recording {
            recording.record_event(now, &event, raw);
        }
        self.engine.apply_event(now, event, &mut state.effects);
        self.finish_call(now, &state.effects[before..], None);
    }

    fn cycle(&mut self, now: Now, state: &mut LoopState) -> CycleResult {
        let before = state.effects.len();
        if let Some(recording) = &mut self.recording {
            recording.record_cycle(now);
        }
        let result = self.engine.cycle(now, &mut state.effects);
        self.finish_call(now, &state.effects[before..], Some(result));
        result
    }

    fn handle_timeouts(&mut self, now: Now, state: &mut LoopState) {
        let before = state.effects.len();
        if let Some(recording) = &mut self.recording {
            recording.record_timeouts(now);
        }
        self.engine.handle_timeouts(now, &mut state.effects);
        self.finish_call(now, &state.effects[before..], None);
    }

    /// Records the effects of a call, and adds a shadow's comparisons to the report.
    fn finish_call(&mut self, now: Now, effects: &[Effect], cycled: Option<CycleResult>) {
        let entry = self.recording.as_ref().and_then(Recording::last_entry);
        for effect in effects {
            if let Effect::Observe(Observation::ShadowCompared(comparison)) = effect {
                self.shadow_report.add(comparison, entry);
            }
        }
        if let Some(recording) = &mut self.recording {
            recording.record_effects(now, effects, cycled);
        }
    }

    fn handle_command(&mut self, command: Command, state: &mut LoopState) {
        match command {
            Command::SetLeading(is_leading) => {
                state.is_leading = is_leading;
                self.leading.send_replace(is_leading);
            }
            Command::ServiceRequest(request) => self.apply(request.event, None, state),
            Command::Query(query) => query(&mut self.engine),
            Command::Reload(request) => self.reload(*request, state),
            Command::Stop => state.is_over = true,
        }
    }

    /// Replaces the configuration, or says why that is impossible.
    fn reload(&mut self, request: ReloadRequest, state: &mut LoopState) {
        let ReloadRequest { configuration, extenders, done } = request;
        let mut obstacles = self.engine.obstacles(&configuration);
        obstacles.extend(self.extender_caller.obstacle(&extenders));
        if !obstacles.is_empty() {
            let _ = done.send(Err(obstacles));
            return;
        }
        state.n_reloads += 1;
        self.extender_caller.add_configuration(state.n_reloads, extenders);
        state.pending_reload = Some(PendingReload { number: state.n_reloads, done });
        self.apply(EngineEvent::Reconfigured(configuration), None, state);
        self.finish_reload(state);
    }

    /// Reports that a configuration has taken effect. Kinds that its plugins watch and that were not watched before must be listed before
    /// the next attempt.
    fn finish_reload(&mut self, state: &mut LoopState) {
        let has_begun = |it: &mut PendingReload| self.engine.configuration() >= it.number;
        let Some(reload) = state.pending_reload.take_if(has_begun) else { return };
        self.extender_caller.drop_configurations_before(self.engine.earliest_configuration());
        let mut added = super::watched_kinds(&self.engine);
        added.retain(|kind| !self.kinds.contains(kind));
        self.kinds.extend(&added);
        state.unsynced.extend(&added);
        let _ = reload.done.send(Ok(added));
    }

    fn handle_watch_event(&mut self, event: ReflectorEvent, state: &mut LoopState) {
        self.extender_caller.handle_watch_event(&event);
        let mut bytes = None;
        let engine_event: Option<EngineEvent> = match event {
            ReflectorEvent::Upsert { kind, object, raw } => {
                bytes = raw;
                event_conversion::upsert_event(kind, object)
            }
            ReflectorEvent::Delete { kind, namespace, name, uid } => {
                event_conversion::delete_event(kind, namespace, &name, uid)
            }
            ReflectorEvent::Synced(kind) => {
                self.mark_synced(kind, state);
                event_conversion::synced_event(kind, true)
            }
            ReflectorEvent::Unavailable { kind, why } => {
                self.handle_unavailable(kind, &why, state);
                let is_absent = !matches!(why, KindUnavailableReason::Failing { .. });
                if is_absent { event_conversion::synced_event(kind, false) } else { None }
            }
            ReflectorEvent::Available(kind) => {
                tracing::info!(
                    resource = kind.resource().resource,
                    "The resource can be read again"
                );
                self.missing.remove(kind);
                None
            }
            _ => None,
        };
        if let Some(event) = engine_event {
            self.apply(event, bytes.as_ref(), state);
        }
    }

    fn mark_synced(&mut self, kind: Kind, state: &mut LoopState) {
        self.missing.remove(kind);
        self.remove_unsynced(kind, state);
    }

    fn remove_unsynced(&self, kind: Kind, state: &mut LoopState) {
        let n_unsynced = state.unsynced.len();
        state.unsynced.retain(|unsynced| *unsynced != kind);
        if state.unsynced.is_empty() && n_unsynced > 0 {
            tracing::info!("Caches are synced");
            self.synced.succeed();
        }
    }

    /// A kind cannot be read. If it is required, no pod is scheduled until it can; otherwise scheduling continues without it.
    fn handle_unavailable(
        &mut self,
        kind: Kind,
        why: &KindUnavailableReason,
        state: &mut LoopState,
    ) {
        let blocks_scheduling = state.unsynced.contains(&kind);
        let text = self.missing.add(kind, why, blocks_scheduling);
        if kind.resource().required {
            if blocks_scheduling {
                self.synced.fail(text);
            }
        } else if !matches!(why, KindUnavailableReason::Failing { .. }) {
            self.remove_unsynced(kind, state);
        }
    }

    fn execute_effects(&mut self, state: &mut LoopState) {
        while let Some(call) = state.backlog.pop_front() {
            if let Err(full) = self.calls.submit(call) {
                state.backlog.push_front(*full.0);
                break;
            }
        }
        for effect in state.effects.drain(..) {
            match effect {
                Effect::Call(call) => {
                    let call = ApiCall { id: call.id.0, request: call.request };
                    if state.backlog.is_empty() {
                        if let Err(full) = self.calls.submit(call) {
                            state.backlog.push_back(*full.0);
                        }
                    } else {
                        state.backlog.push_back(call);
                    }
                }
                Effect::CallExtender(call) => self.extender_caller.call(call, &state.runtime),
                Effect::RecordEvent(event) => self.recorder.record(observations::new_event(event)),
                Effect::Observe(it) => {
                    observations::observe(&self.engine, &self.metrics, &self.logs, &it);
                }
            }
        }
    }

    fn update_state_metrics(&mut self, now: Now, state: &mut LoopState) {
        if now.mono.0 >= state.state_updated_at + STATE_PERIOD_NANOS {
            state.state_updated_at = now.mono.0;
            observations::update_state(&mut self.engine, &self.metrics);
            let (calls, events) = (self.calls.stats(), self.recorder.stats());
            state.client_counts.update(&self.metrics.loadmaster, calls, events);
            for mismatch in self.engine.decision_mismatches().skip(state.n_reported_mismatches) {
                tracing::error!(
                    mismatch,
                    "A decision differs from per-node evaluation; this is a bug"
                );
                self.metrics.loadmaster.decision_mismatches(1);
                state.n_reported_mismatches += 1;
            }
        }
        if now.mono.0 >= state.ages_updated_at + AGES_PERIOD_NANOS {
            state.ages_updated_at = now.mono.0;
            observations::update_pending_ages(&self.engine, &self.metrics, now.wall);
            self.shadow_report.write_if_due(now);
        }
    }

    /// Sleeps until there is input or a timeout is due.
    fn sleep(&mut self, state: &mut LoopState) {
        let now = clock::now();
        if let Some(recording) = &mut self.recording {
            recording.flush_old_block(now);
        }
        let due = self.engine.next_timeout().map(|deadline| deadline.since(now.mono));
        let mut longest = due.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        if !state.backlog.is_empty() {
            longest = longest.min(Duration::from_millis(10));
        }
        let accepts_objects = self.engine.accepts_object_events();
        let woken = state.runtime.block_on(async {
            tokio::select! {
                biased;
                command = self.commands.recv() => WakeReason::Command(command),
                call = self.finished_calls.recv() => WakeReason::CallFinished(call),
                reply = self.extender_replies.recv() => WakeReason::ExtenderReplied(reply),
                event = self.watch_events.recv(), if accepts_objects => WakeReason::WatchEvent(event),
                () = sleep(longest) => WakeReason::Timeout,
            }
        });
        match woken {
            WakeReason::Command(Some(command)) => self.handle_command(command, state),
            WakeReason::CallFinished(Some(call)) => {
                self.apply(event_conversion::reply_event(call), None, state);
            }
            WakeReason::ExtenderReplied(Some(reply)) => {
                self.apply(reply.into(), None, state);
            }
            WakeReason::WatchEvent(Some(event)) => {
                self.handle_watch_event(event, state);
                if !state.unsynced.is_empty() {
                    state.runtime.block_on(async { sleep(SYNC_PAUSE).await });
                }
            }
            WakeReason::Timeout => {}
            // A sender was dropped: the scheduler is stopping.
            WakeReason::Command(None)
            | WakeReason::CallFinished(None)
            | WakeReason::ExtenderReplied(None)
            | WakeReason::WatchEvent(None) => state.is_over = true,
        }
    }
}
