//! Fault injection: a real engine in a simulated cluster with dropped and delayed watch events, failing API calls and leader changes.
//! Everything follows from one seed: the objects, the workload, the faults of the network, and the time, which is virtual.
//!
//! ```text
//!  workload, kubelets ──► fake API server ──WatchEvent──► network ──Event──► engine
//!                              ▲                             │   ▲             │
//!                              └───────── API calls ─────────┘   └── Effect ───┘
//!                                     reference model: the objects that the engine was given, checked against what it does
//! ```
//!
//! | module | |
//! | --- | --- |
//! | [`fake_api_server`](crate::fake_api_server) | an API server in memory: objects, rejected requests, watch events |
//! | `workload` | users and controllers that create and delete objects, and simulated kubelets |
//! | `panicking_plugin` | a plugin that panics at random at every extension point |
//! | `fake_extenders` | extenders that answer late, never, with an error, or at random |
//! | `watching_plugin`, `holding_plugin` | test plugins: one reads watched objects and published values; one holds pods at Permit and waits in PreBind |
//! | `plugin_workload` | custom objects and their controller, and the plugin author's service |
//! | `out_of_tree` | out-of-tree plugins, and the objects and services around them |
//! | `volumes` | claims, volumes, and their controllers |
//! | `gangs`, `quotas` | PodGroups with Coscheduling, ElasticQuotas with CapacityScheduling |
//! | `reloads` | other configurations that replace the running one |
//! | `reporting_plugin` | a test plugin in every profile, which reports what is reserved |
//! | `simulated_profiles`, `run_configuration` | builds the profiles, and those of a run |
//! | `watched_objects` | the objects that plugins watch |
//! | `plugin_calls`, `plugin_model` | what the test plugins did, and what they should see and do |
//! | `faulty_network` | the faults of a run, and the network that injects them |
//! | `reference_model` | an independent copy of what the engine knows |
//! | `invariants`, `settled` | the invariants that are checked during a run and at its end |
//! | `runner` | the steps of a run: first with faults, then without them until everything has settled |
//! | `runs` | the runs of many seeds |
//! | `trace` | all events and effects, as a hash and as readable lines |

pub mod fake_extenders;
mod faulty_network;
mod gangs;
mod holding_plugin;
mod invariants;
mod out_of_tree;
pub mod panicking_plugin;
mod plugin_calls;
mod plugin_model;
mod plugin_workload;
mod quotas;
mod reference_model;
mod reloads;
mod reporting_plugin;
mod run_configuration;
mod runner;
mod runs;
mod settled;
mod simulated_profiles;
mod trace;
mod volumes;
mod watched_objects;
mod watching_plugin;
mod workload;

use std::sync::{Arc, LazyLock};

use loadmaster_engine::Profile;
use loadmaster_framework::{FeatureGates, Registry};
use loadmaster_stdx::HashSeed;

pub use out_of_tree::{
    ClusterView, FinalCheck, ObjectSource, OutOfTreeWorkload, PodTemplateChange, ValueSource,
};
pub use plugin_workload::profiles_with_test_plugins;
pub use runner::run_simulation;
pub use runs::SimulationRuns;
pub use simulated_profiles::SchedulerPluginsProfiles;

/// Options of one simulated run.
#[derive(Clone, Copy, Debug)]
pub struct SimulationOptions {
    pub seed: u64,
    /// The engine's [`EngineOptions::hash_seed`](loadmaster_engine::engine::EngineOptions::hash_seed), which must not affect the run.
    pub hash_seed: HashSeed,
    /// Number of steps with faults. After them the run goes on without faults until everything has settled.
    pub steps: u32,
    /// A bug that is injected between the API server and the engine.
    pub injected_bug: Option<InjectedBug>,
}

impl SimulationOptions {
    /// A run of 200 steps without an injected bug, with one of eight hash seeds.
    pub fn new(seed: u64) -> SimulationOptions {
        SimulationOptions { seed, hash_seed: nth_hash_seed(seed), steps: 200, injected_bug: None }
    }

    /// The same run with another hash seed: it must have the same report.
    pub fn with_other_hash_seed(self) -> SimulationOptions {
        SimulationOptions { hash_seed: nth_hash_seed(self.hash_seed.number() + 1), ..self }
    }
}

/// Few, because each takes memory until the process ends.
fn nth_hash_seed(nth: u64) -> HashSeed {
    static ALL: LazyLock<[HashSeed; 8]> =
        LazyLock::new(|| std::array::from_fn(|nth| HashSeed::new(nth as u64)));
    ALL[(nth % 8) as usize]
}

/// The profiles and feature gates of the simulated scheduler.
#[derive(Clone)]
pub struct SimulatedSchedulerConfig {
    pub profile: Arc<Profile>,
    /// The same profile with a plugin that panics, used in some runs. The invariants are always checked with `profile`.
    pub panicking: Option<Arc<Profile>>,
    /// The same profile with extenders, used in some runs.
    pub with_extenders: Vec<Arc<Profile>>,
    /// The same profile with test plugins ([`profiles_with_test_plugins`]), used in some runs.
    pub with_test_plugins: Vec<Arc<Profile>>,
    /// What happens around the out-of-tree plugins of `profile`
    /// ([`SimulatedSchedulerConfig::with_out_of_tree_plugins`]).
    pub out_of_tree: Option<Arc<OutOfTreeWorkload>>,
    /// One in so many runs has claims and volumes; 0: none has.
    pub volume_runs: u64,
    /// One in so many runs has gangs, and one in so many has quotas; 0: none has.
    pub gang_runs: u64,
    pub quota_runs: u64,
    /// In one in so many runs other configurations replace that of the running engine; 0: in none.
    pub reload_runs: u64,
    /// What these configurations are built from.
    pub registry: Registry,
    /// The same profile with Coscheduling and CapacityScheduling, for these runs. The invariants are always checked with `profile`.
    pub with_scheduler_plugins: Option<SchedulerPluginsProfiles>,
    pub gates: FeatureGates,
}

/// A bug in what the engine receives, to show that the invariants detect its consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedBug {
    /// The reply of a failed bind is dropped, as if the assumed pod were not forgotten.
    LostBindFailure,
    /// Delete events of assigned pods are dropped: pods that wait for resources are not requeued.
    LostPodDelete,
    /// After its bind a pod is deleted and then added again as pending: the events of an API server that lags behind.
    StalePod,
    /// Update events of pending pods are dropped.
    LostPodUpdate,
    /// Watch events of the objects that a plugin reads are dropped.
    LostNodePool,
    /// Watch events of the objects that PreBind waits for are dropped.
    LostAttachment,
    /// Values that a service publishes are dropped.
    LostPublication,
    /// Waiting pods are allowed that nobody allowed, as if Permit did not hold them.
    IgnoredHold,
    /// Timeouts are not handled.
    LostTimeouts,
    /// The reference model does not see Unreserve, as if the resources of a rejected pod were not released.
    LostUnreserve,
    /// Volumes are received without node affinity.
    LostVolumeAffinity,
    /// The API server does not send the watch events of volumes that have a claim.
    LostVolumeUpdate,
    /// Watch events of claims that were bound immediately are dropped.
    LostClaimUpdate,
    /// Watch events of CSINodes are dropped, as if nodes had no limits.
    LostCsiNode,
    /// Claims are received without ReadWriteOncePod.
    WrongAccessMode,
    /// Claims are received as bound when a volume is reserved for them, as if PreBind did not wait.
    EarlyBinding,
    /// PreBind does not mark the volumes that it binds, so that they stay reserved for their claims.
    UnmarkedVolume,
    /// Add and update events of PodGroups are dropped.
    LostPodGroup,
    /// Delete events of PodGroups are dropped.
    LostPodGroupDelete,
    /// The reference model sees only the first Unreserve of a call, as if the other members of a rejected gang kept their nodes.
    PartlyRejectedGang,
    /// PodGroups are received with a timeout of 200 seconds.
    WrongGangTimeout,
    /// Watch events of ElasticQuotas are dropped.
    LostElasticQuota,
    /// The engine does not receive other configurations.
    LostReload,
    /// Other configurations take effect except for weights and arguments, which stay.
    MixedReload,
    /// The state of a plugin that another configuration does not change begins anew.
    LostPluginState,
    /// Another configuration keeps the QueueSort plugin.
    KeptOrder,
}

/// Counts of a run in which no invariant was violated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimulationReport {
    /// Pods created.
    pub pods: u64,
    /// Scheduling attempts.
    pub attempts: u64,
    /// Bind calls, and how many of them succeeded.
    pub binds: u64,
    pub bound: u64,
    /// API calls that were rejected, or whose response was lost.
    pub failed_calls: u64,
    /// Pods evicted by preemption.
    pub evictions: u64,
    /// Watches that broke, each followed by a relist.
    pub relists: u64,
    pub leader_losses: u64,
    /// Panics of plugins.
    pub panics: u64,
    /// Calls to extenders, and how many of them failed or timed out.
    pub extender_calls: u64,
    pub failed_extender_calls: u64,
    /// Pods reserved by the plugin that holds pods, how often it made one wait at Permit, and how often it waited in PreBind.
    pub reserved: u64,
    pub held: u64,
    pub waits: u64,
    /// Claims created by users, writes of PreBind for claims and volumes, and failures of the provisioner.
    pub claims: u64,
    pub volume_writes: u64,
    pub failed_provisions: u64,
    /// PodGroups created by users, how often a member began to wait at Permit, and how often a group was rejected while members waited.
    pub gangs: u64,
    pub gang_waits: u64,
    pub failed_gangs: u64,
    /// Pods that were reserved in a namespace with a quota, and pods at the end that quotas keep pending.
    pub within_quota: u64,
    pub over_quota: u64,
    /// Configurations that replaced another one, and how many of them did so while pods were in flight.
    pub reloads: u64,
    pub busy_reloads: u64,
    /// Pods that were bound after the faults had ended, but only because they had been unschedulable for five minutes: perhaps a
    /// queueing hint missed an event.
    pub bound_after_flush: u64,
    /// Pods that are still unschedulable at the end.
    pub unschedulable: u64,
    /// Hash of all events and effects: two runs with the same seed have the same.
    pub trace: u64,
}

impl SimulationReport {
    /// Adds the counts of another run, and clears the trace.
    pub fn add(&mut self, other: &SimulationReport) {
        let SimulationReport {
            pods,
            attempts,
            binds,
            bound,
            failed_calls,
            evictions,
            relists,
            leader_losses,
            panics,
            extender_calls,
            failed_extender_calls,
            reserved,
            held,
            waits,
            claims,
            volume_writes,
            failed_provisions,
            gangs,
            gang_waits,
            failed_gangs,
            within_quota,
            over_quota,
            reloads,
            busy_reloads,
            ..
        } = other;
        self.pods += pods;
        self.attempts += attempts;
        self.binds += binds;
        self.bound += bound;
        self.failed_calls += failed_calls;
        self.evictions += evictions;
        self.relists += relists;
        self.leader_losses += leader_losses;
        self.panics += panics;
        self.extender_calls += extender_calls;
        self.failed_extender_calls += failed_extender_calls;
        self.reserved += reserved;
        self.held += held;
        self.waits += waits;
        self.claims += claims;
        self.volume_writes += volume_writes;
        self.failed_provisions += failed_provisions;
        self.gangs += gangs;
        self.gang_waits += gang_waits;
        self.failed_gangs += failed_gangs;
        self.within_quota += within_quota;
        self.over_quota += over_quota;
        self.reloads += reloads;
        self.busy_reloads += busy_reloads;
        self.bound_after_flush += other.bound_after_flush;
        self.unschedulable += other.unschedulable;
        self.trace = 0;
    }
}

/// An invariant was violated.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}, step {step}, {at_ms} ms: {message}")]
pub struct InvariantViolation {
    pub seed: u64,
    pub step: u32,
    /// Virtual time since the run began.
    pub at_ms: u64,
    pub message: String,
}
