//! The engine: events in, effects out.
//!
//! It owns all scheduling state: the queue, the world (nodes and assigned pods), the profiles, and the pods that are being bound. It is
//! synchronous and reads no clock, no random source and no socket: the time is an argument of every call, random numbers come from a seed.
//!
//! ```text
//! EngineEvent ──apply_event──► world, pending pods ──► queue ──cycle──► scheduling cycle ──► assume ──► binding cycle ──► Effect
//!   ▲                                                    ▲                      │ fails                       │ fails         │
//!   │                                                    └──────────────────────┴─────────────────────────────┘               │
//!   └─────────────────────────── EngineEvent::Replied ◄── the API client's reply ◄────────────────────────────────────────────┘
//! ```
//!
//! [`Engine::apply_event`] handles an event and never schedules. [`Engine::cycle`] runs at most one scheduling cycle.
//! [`Engine::handle_timeouts`] does what is due, and [`Engine::next_timeout`] says when that is. Nothing else changes the engine.
//!
//! | module | |
//! | --- | --- |
//! | `event` | the input: events |
//! | `effect`, `observation` | the output: API calls, extender calls, Events, observations for metrics |
//! | `event_handlers` | objects that were added, updated or deleted (upstream's `eventhandlers.go`) |
//! | `scheduling_cycle` | one attempt up to Permit (upstream's `schedulingCycle`) |
//! | `assumed_pod`, `binding_cycle`, `bind` | waiting on Permit and PreBind; Bind and PostBind (upstream's `bindingCycle`) |
//! | `post_filter`, `eviction` | preemption: PostFilter, and the eviction of its victims |
//! | `extender_cycle`, `deferred` | extender calls within an attempt, and the events that are deferred until it ends |
//! | `plugin_objects` | what plugins are told: changes of pods, nodes and watched objects, and values that services publish |
//! | `plugin_actions` | what plugins request for other pods: allow, reject, activate, record an Event |
//! | `attempt_failure`, `scheduling_failure` | why a pod was not placed, and happens to it (upstream's `handleSchedulingFailure`) |
//! | `stuck` | plugins that do not finish |
//! | `conflicts` | conflicts with other schedulers |
//! | `profiles`, `reconfigure` | the profiles, and how those of another configuration replace them |
//! | `rejection_summary`, `last_attempt`, `scheduling_state` | the record of a failed attempt, and the state of a pod for `explain --last` |
//! | `shadow`, `shadow_comparison` | comparing decisions with those of another scheduler |
//! | `nominator` | nominated nodes of pending pods (upstream's `nominator`) |
//! | `call_owner` | who waits for a reply, an object or a deadline |
//! | `status_patch` | patches of a pod's conditions and nominated node, at most one in flight per pod |

mod assumed_pod;
mod attempt_failure;
mod bind;
mod binding_cycle;
mod call_owner;
mod configuration;
pub mod conflicts;
mod deferred_events;
pub mod effect;
pub mod event;
mod event_handlers;
mod eviction;
mod extender_cycle;
mod last_attempt;
mod node_filter_cache;
mod nominator;
mod observation;
mod orphaned_pods;
mod plugin_actions;
mod plugin_handle;
mod plugin_objects;
mod plugin_waits;
mod post_filter;
mod profiles;
mod reconfigure;
mod rejection_summary;
mod scheduling_cycle;
mod scheduling_failure;
pub mod scheduling_state;
pub mod shadow;
mod shadow_comparison;
mod status_patch;
pub mod stuck;
mod suspended_attempt;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{ExtraFieldsByKind, Str};
use loadmaster_framework::plugin_log::collect_log_lines;
use loadmaster_framework::{FeatureGates, PodInfo, World};
use loadmaster_stdx::{HashSeed, Map, Rng};

use crate::explain::{Explanation, explain_pod};
use crate::guard::{self, PluginPanic};
use crate::profile::Profile;
use crate::queue::{IncomingPods, ProfileIdx, Queue};
use crate::time::{MonoTime, Now};

use assumed_pod::AssumedPod;
use call_owner::CallOwner;
pub use configuration::EngineConfiguration;
pub use conflicts::{Conflict, ConflictKind, ConflictingPod};
use deferred_events::DeferredEvents;
pub use effect::{
    ApiServerCall, AttemptOutcome, CallId, Effect, Effects, EventRecord, ExtenderCall, Observation,
    RegardingObject,
};
pub use event::{ApiError, ApiObject, ApiReply, DeletedObjectKey, EngineEvent, PermitDecision};
use eviction::Eviction;
pub use extender_cycle::NO_REPLY_FROM_EXTENDER;
use orphaned_pods::OrphanedPods;
use plugin_actions::TimedPods;
use plugin_handle::{EventRegistrations, PluginHandle};
use plugin_objects::Publication;
use plugin_waits::PluginWaits;
use post_filter::PostFilterRun;
pub(crate) use profiles::{ProfileScheduler, Profiles};
use reconfigure::OtherPod;
pub use shadow::{ShadowComparison, ShadowResult, ShadowSummary, ShadowVerdict};
use status_patch::StatusPatches;
pub use stuck::StuckPlugin;
use suspended_attempt::SuspendedAttempt;

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub seed: u64,
    /// The seed of all hash maps, for the engine's and the plugins' calls. It affects no decision, and must be unknown to those who choose the
    /// names and labels of objects.
    pub hash_seed: HashSeed,
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    /// A pod that stays in unschedulablePods longer than this is retried without an event.
    pub max_in_unschedulable: Duration,
    /// How many pods may be between Permit and the end of their binding cycle. While the window is full no scheduling cycle runs, so that an
    /// urgent pod that arrives late is never behind tens of thousands that wait for the API server. Pods with a stuck PreBind plugin do not
    /// count.
    pub bind_window: usize,
    /// Compare every pod of our profiles that another scheduler binds with our own decision ([`Observation::ShadowCompared`]).
    pub shadow: bool,
    /// Verify one in this many decisions against per-node evaluation of all plugins; 0 for none.
    pub verify_every: u64,
    /// Reads a stopwatch, in nanoseconds. Its values go into [`Observation`]s and nowhere else.
    pub stopwatch: fn() -> u64,
}

impl Default for EngineOptions {
    /// Upstream's defaults, and a bind window of 500.
    fn default() -> Self {
        EngineOptions {
            seed: 0,
            hash_seed: HashSeed::FIXED,
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            max_in_unschedulable: Duration::from_secs(300),
            bind_window: 500,
            shadow: false,
            verify_every: 0,
            stopwatch: || 0,
        }
    }
}

/// The result of [`Engine::cycle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleResult {
    /// One scheduling attempt ran.
    Ran,
    /// No pod is ready.
    Idle,
    /// The bind window is full, or an attempt waits for an extender: replies must arrive first.
    Waiting,
}

/// One in this many engine calls measures the execution time of plugins (upstream's `pluginMetricsSamplePercent` is 10).
const PLUGIN_SAMPLE_EVERY: u64 = 10;

/// A pod of our profiles that has no node yet, as the API server has it.
pub(crate) struct PendingPod {
    pub pod: Arc<PodInfo>,
    pub profile_idx: ProfileIdx,
    /// `metadata.generation`.
    pub generation: i64,
    /// Its `PodScheduled` condition: as the API server has it, or as the last patch wrote it.
    pub condition: Option<status_patch::Condition>,
    /// The nominated node as the last patch wrote it, until the watch confirms it.
    pub written_nomination: Option<Str>,
    /// The pod for which it was rejected while it waited at Permit, by uid: the loss of its nominated node does not requeue that pod.
    pub rejected_for: Option<Box<str>>,
    /// The number of the engine call in which it was first seen.
    pub since: u64,
    /// Its last failed attempt.
    pub last_attempt: Option<Box<last_attempt::FailedAttempt>>,
    /// Its last failed bind.
    pub last_failed_bind: Option<Box<conflicts::FailedBind>>,
}

/// A scheduler without a clock, a random source or a socket.
pub struct Engine {
    options: EngineOptions,
    gates: FeatureGates,
    profiles: Profiles,
    needs: ExtraFieldsByKind,
    registrations: EventRegistrations,
    /// For PostFilter. Each profile breaks ties with a random stream of its own.
    rng: Rng,
    world: World,
    queue: Queue,
    pending: Map<Box<str>, PendingPod>,
    /// Pods without a node that no profile is responsible for: another configuration may have a profile for them. By uid.
    others: Map<Box<str>, OtherPod>,
    orphaned_pods: OrphanedPods,
    /// Assumed pods: this engine chose their node, and the watch has not confirmed the binding. By uid.
    assumed: Map<Box<str>, AssumedPod>,
    /// How many of `assumed` count against the bind window.
    n_binding: usize,
    /// Who waits for the reply to a call.
    calls: Map<CallId, CallOwner>,
    /// Plugins that wait for an object or a deadline.
    plugin_waits: PluginWaits,
    /// No deadline of a binding cycle ([`assumed_pod::Binding::deadline`]) is earlier. Thousands of pods may wait for their volumes, so it is
    /// not computed anew when one of these deadlines ends, only when this time is reached.
    binding_due: Option<MonoTime>,
    /// Attempts that wait for a PostFilter plugin, by uid.
    post_filter_runs: Map<Box<str>, PostFilterRun>,
    /// Evictions in progress, by uid of the preemptor.
    evictions: Map<Box<str>, Eviction>,
    /// The attempt that waits for an extender. Until it resumes, no other attempt begins and `world` does not change.
    suspended: Option<Box<SuspendedAttempt>>,
    /// Events that would change `world`, until then.
    deferred: DeferredEvents,
    status_patches: StatusPatches,
    /// Values that services published and that have not expired.
    publications: Vec<Publication>,
    /// Pods to be activated.
    timed_activations: TimedPods,
    /// Pods to be activated if they are gated then.
    timed_gate_checks: TimedPods,
    /// When to look next whether profiles of earlier configurations are still used.
    profiles_checked_at: Option<MonoTime>,
    last_diagnosis: Option<scheduling_failure::CachedDiagnosis>,
    node_filter_cache: node_filter_cache::NodeFilterCache,
    n_calls: u64,
    n_bindings: u64,
    /// Where the next search for feasible nodes starts when only a part of the nodes is scored (upstream's `nextStartNodeIndex`).
    search_start: usize,
    /// Number of calls to the engine: selects those in which plugins are timed.
    n_engine_calls: u64,
    /// When handling of the current object event began, by the stopwatch, and the durations measured so far.
    handling_since: Option<u64>,
    handled: Vec<Observation>,
    log_verbosity: u32,
    shadow: shadow::Shadow,
}

impl Engine {
    /// An engine without any objects. There must be at least one profile, and all profiles have the same QueueSort plugin.
    pub fn new(profiles: Vec<Arc<Profile>>, gates: FeatureGates, options: EngineOptions) -> Engine {
        let _entered = options.hash_seed.enter();
        let rng = Rng::new(options.seed);
        let queue = Queue::new(crate::queue::QueueOptions {
            initial_backoff: options.initial_backoff,
            max_backoff: options.max_backoff,
            max_in_unschedulable: options.max_in_unschedulable,
            pop_from_backoff: gates.pop_from_backoff_q,
        });
        let mut world = World::new(gates.clone());
        let needs = reconfigure::declare(&mut world, &profiles, &OrphanedPods::default());
        let mut all = Profiles::default();
        all.start(profiles, options.verify_every, &rng);
        Engine {
            registrations: EventRegistrations::of(&all),
            needs,
            profiles: all,
            rng: rng.split("PostFilter"),
            world,
            queue,
            pending: Map::default(),
            others: Map::default(),
            orphaned_pods: OrphanedPods::default(),
            assumed: Map::default(),
            n_binding: 0,
            calls: Map::default(),
            plugin_waits: PluginWaits::default(),
            binding_due: None,
            post_filter_runs: Map::default(),
            evictions: Map::default(),
            suspended: None,
            deferred: DeferredEvents::default(),
            status_patches: StatusPatches::default(),
            publications: Vec::new(),
            timed_activations: TimedPods::default(),
            timed_gate_checks: TimedPods::default(),
            profiles_checked_at: None,
            last_diagnosis: None,
            node_filter_cache: node_filter_cache::NodeFilterCache::default(),
            n_calls: 0,
            n_bindings: 0,
            search_start: 0,
            n_engine_calls: 0,
            handling_since: None,
            handled: Vec::new(),
            log_verbosity: 0,
            shadow: shadow::Shadow::default(),
            gates,
            options,
        }
    }

    /// Handles an event. Never schedules.
    pub fn apply_event(&mut self, now: Now, event: EngineEvent, effects: &mut Effects) {
        let _entered = self.options.hash_seed.enter();
        self.world.set_now(now);
        self.handling_since = matches!(
            event,
            EngineEvent::Upsert(_) | EngineEvent::Delete(_) | EngineEvent::ObjectChanged { .. }
        )
        .then(self.options.stopwatch);
        self.recording_plugin_calls(effects, |engine, effects| {
            engine.handle_event(now, event, effects);
            engine.handling_since = None;
            engine.handle_deferred(now, effects);
            engine.run_plugin_actions(now, effects);
        });
        effects.extend(self.handled.drain(..).map(Effect::Observe));
    }

    fn handle_event(&mut self, now: Now, event: EngineEvent, effects: &mut Effects) {
        if self.must_defer(&event) {
            return self.deferred.push(event);
        }
        match event {
            EngineEvent::Upsert(object) => self.upsert_object(now, object, effects),
            EngineEvent::Delete(key) => self.delete_object(now, &key, effects),
            EngineEvent::Replied { call, reply } => self.handle_reply(now, call, &reply, effects),
            EngineEvent::ExtenderReplied { call, reply } => {
                self.handle_extender_reply(now, call, reply, effects)
            }
            EngineEvent::ObjectChanged { object, value } => {
                self.handle_object_change(now, &object, value.as_ref(), effects);
                self.resume_waiting_plugins(now, &object, value.as_ref(), effects);
            }
            EngineEvent::Synced { group, resource, has_synced } => {
                self.world.set_synced(&group, &resource, has_synced);
            }
            EngineEvent::Published { plugin, value, ttl } => {
                self.handle_published(now, &plugin, &value, ttl, effects);
            }
            EngineEvent::Permit { uid, plugin, decision } => {
                self.handle_permit_decision(now, &uid, plugin.as_deref(), &decision, effects);
            }
            EngineEvent::Activate(uids) => self.activate(now, &uids),
            EngineEvent::Reconfigured(configuration) => {
                self.reconfigure(now, &configuration, effects);
            }
        }
    }

    /// Does what is due by now: completed backoffs, timeouts of waits, expired published values.
    pub fn handle_timeouts(&mut self, now: Now, effects: &mut Effects) {
        let _entered = self.options.hash_seed.enter();
        self.world.set_now(now);
        self.recording_plugin_calls(effects, |engine, effects| {
            let handle = PluginHandle::new(&engine.profiles, &engine.registrations, &engine.world);
            engine.queue.flush(now, &handle);
            engine.handle_wait_timeouts(now, effects);
            engine.expire_published(now);
            engine.run_timed_activations(now);
            engine.examine_mismatches(now, effects);
            engine.drop_unused_profiles(now);
            engine.handle_deferred(now, effects);
            engine.run_plugin_actions(now, effects);
        });
        effects.extend(self.handled.drain(..).map(Effect::Observe));
    }

    /// Runs work that calls plugins. The state of a plugin that panics is reset; in a sample of the calls plugins are timed.
    fn recording_plugin_calls<R>(
        &mut self,
        effects: &mut Effects,
        work: impl FnOnce(&mut Engine, &mut Effects) -> R,
    ) -> R {
        self.n_engine_calls += 1;
        let is_timed = self.n_engine_calls.is_multiple_of(PLUGIN_SAMPLE_EVERY);
        let watch = is_timed.then_some(self.options.stopwatch);
        let verbosity = self.log_verbosity;
        let ((done, lines), recorded) = guard::record_plugin_calls(watch, || {
            collect_log_lines(verbosity, || work(self, effects))
        });
        if !lines.is_empty() {
            effects.push(Effect::Observe(Observation::PluginLogs(lines)));
        }
        for panic in recorded.panics {
            self.recover(&panic);
            effects.push(Effect::Observe(Observation::PluginPanicked(Box::new(panic))));
        }
        if !recorded.executions.is_empty() {
            effects.push(Effect::Observe(Observation::PluginExecutions(recorded.executions)));
        }
        done
    }

    /// Resets a plugin that panicked and drops everything that was computed with it.
    fn recover(&mut self, panic: &PluginPanic) {
        let is_its =
            |it: &&mut ProfileScheduler| *it.profile.scheduler_name == *panic.plugin.profile;
        // Also the profiles of earlier configurations: the panic does not say which one it was.
        for profile_scheduler in self.profiles.iter_mut().filter(is_its) {
            profile_scheduler.scheduler.recover_from_panic(panic, &mut self.world);
        }
        if panic.extension_point.may_corrupt_state() {
            self.report_all_again(&panic.plugin);
            // QueueSort may read the state that was reset.
            self.sort_queue();
        }
        self.forget_diagnoses();
    }

    /// The highest level of the plugins' log lines that are reported ([`Observation::PluginLogs`]); 0 until it is set. It affects nothing
    /// else.
    pub fn set_log_verbosity(&mut self, verbosity: u32) {
        self.log_verbosity = verbosity;
    }

    /// When [`Engine::handle_timeouts`] has something to do next.
    pub fn next_timeout(&self) -> Option<MonoTime> {
        let waits = self.plugin_waits.first_deadline(|owner| !self.is_deferred(owner));
        let others = [
            self.binding_due,
            self.post_filter_stuck_at(),
            self.extender_deadline(),
            self.publication_deadline(),
            self.timed_activations.next_due(),
            self.timed_gate_checks.next_due(),
            self.shadow.next_due(),
            self.profiles_checked_at.filter(|_| !self.has_suspended_attempt()),
        ];
        self.queue.next_flush().into_iter().chain(waits).chain(others.into_iter().flatten()).min()
    }

    /// All nodes and assigned pods.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The schedulerName of a profile, also of one that another configuration replaced.
    pub fn profile_name(&self, profile_idx: ProfileIdx) -> &str {
        self.profiles.name(profile_idx)
    }

    /// How many pods were added to which queue since the last call (`scheduler_queue_incoming_pods_total`).
    pub fn take_incoming_counts(&mut self) -> Vec<IncomingPods> {
        self.queue.take_incoming_counts()
    }

    /// How many pods are between Permit and the end of their binding cycle, without those with a stuck PreBind plugin.
    pub fn n_binding_pods(&self) -> usize {
        self.n_binding
    }

    /// Evaluates a pending pod against all nodes now, and explains the result. `None` when no profile has such a pod. Nothing is
    /// different afterwards: the world changes only in dry runs.
    pub fn explain(&mut self, namespace: &str, name: &str) -> Option<Explanation> {
        let _entered = self.options.hash_seed.enter();
        let is_it = |pod: &PodInfo| *pod.name == *name && pod.template.namespace == *namespace;
        #[expect(clippy::disallowed_methods, reason = "names are unique")]
        let pending = self.pending.values().find(|pending| is_it(&pending.pod))?;
        let profile_idx = self.profile_for_pod(&pending.pod)?;
        let profile_scheduler = &self.profiles[profile_idx.0 as usize];
        Some(explain_pod(
            &profile_scheduler.profile,
            &mut self.world,
            profile_scheduler.scheduler.plugin_states(),
            &pending.pod,
        ))
    }

    /// A pending pod of our profiles, as the API server has it.
    pub fn pending_pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pending.get(uid).map(|pending| &pending.pod)
    }

    /// All pending pods, ordered by uid.
    pub fn pending_pods(&self) -> Vec<&Arc<PodInfo>> {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut pods: Vec<_> = self.pending.values().map(|pending| &pending.pod).collect();
        pods.sort_unstable_by(|a, b| a.uid.cmp(&b.uid));
        pods
    }

    /// Assigned pods whose node is not known, by node name.
    pub fn orphaned_pods(&self) -> impl Iterator<Item = (&Str, Vec<Arc<PodInfo>>)> {
        self.orphaned_pods.by_node()
    }

    /// The schedulerNames of its profiles.
    pub fn profile_names(&self) -> impl Iterator<Item = &str> {
        self.profiles.active().map(|it| &*it.profile.scheduler_name)
    }

    /// Number of assumed pods.
    pub fn n_assumed_pods(&self) -> usize {
        #[expect(clippy::disallowed_methods, reason = "counted")]
        self.assumed.values().filter(|assumed| !assumed.confirmed).count()
    }

    /// Uids of pods in a binding cycle, ordered.
    pub fn binding_pods(&self) -> Vec<&str> {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let running = self.assumed.iter().filter(|(_, assumed)| assumed.binding.is_some());
        let mut uids: Vec<&str> = running.map(|(uid, _)| &**uid).collect();
        uids.sort_unstable();
        uids
    }

    /// Differences between incremental and per-node evaluation that verification found ([`EngineOptions::verify_every`]).
    pub fn decision_mismatches(&self) -> impl Iterator<Item = &String> {
        self.profiles.decision_mismatches()
    }

    fn profile_for_pod(&self, pod: &PodInfo) -> Option<ProfileIdx> {
        self.profiles.active_index(pod.template.scheduler_name())
    }

    fn profile_scheduler(&self, profile_idx: ProfileIdx) -> &ProfileScheduler {
        &self.profiles[profile_idx.0 as usize]
    }

    fn next_call(&mut self, owner: CallOwner) -> CallId {
        self.n_calls += 1;
        let id = CallId(self.n_calls);
        self.calls.insert(id, owner);
        id
    }
}
