//! A cluster that misbehaves on purpose, around a real engine. Everything follows from one seed: the objects, what people do to them,
//! what the network does to news and calls, and the time, which is virtual.
//!
//! ```text
//!  users, kubelets ──► truth (API server) ──news──► network ──Event──► engine
//!                         ▲                            │   ▲             │
//!                         └────────── calls ───────────┘   └── Effect ───┘
//!                                                  known: what the engine was told, checked against what it does
//! ```
//!
//! | module | |
//! | --- | --- |
//! | [`truth`](crate::truth) | an API server in memory: objects, refusals, news |
//! | `users` | what is asked of the cluster, and what nodes do |
//! | `nervous` | a plugin that panics now and then |
//! | `extenders` | extenders that answer late, never, wrongly, and differently each time |
//! | `faults` | which faults a run has, and the network that has them |
//! | `known` | what the engine was told, as an independent bookkeeper writes it down |
//! | `check` | the invariants |
//! | `drive` | the steps of a run: first with faults, then without them until everything has settled |
//! | `trace` | all that happened, as a number and as lines to read |

mod check;
mod drive;
pub mod extenders;
mod faults;
mod known;
pub mod nervous;
mod trace;
mod users;

use std::sync::Arc;

use loadmaster_engine::Profile;
use loadmaster_framework::FeatureGates;

pub use drive::run;

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    /// Steps with faults; as long as it takes without them follows.
    pub steps: u32,
    /// What is done to the engine on purpose.
    pub sabotage: Option<Sabotage>,
}

impl Options {
    /// A run of the usual length.
    pub fn new(seed: u64) -> Options {
        Options { seed, steps: 200, sabotage: None }
    }
}

/// Who decides in a run.
#[derive(Clone)]
pub struct Setup {
    pub profile: Arc<Profile>,
    /// The same with a plugin that panics: who decides in some runs. The checks ask the first one.
    pub nervous: Option<Arc<Profile>>,
    /// The same with extenders: who decides in some runs.
    pub extended: Vec<Arc<Profile>>,
    pub gates: FeatureGates,
}

/// A bug in what the engine hears, to show that the checks see what comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// That a bind failed is never answered: as if a pod that was assumed were not forgotten.
    ForgottenForget,
    /// Deletions of assigned pods are not told: nobody who waits for room is woken.
    LostDeletion,
    /// After its bind a pod is told as gone and then as pending, as it was: the news of an API server that lags behind.
    StalePod,
    /// Changes of pods that are pending are not told.
    LostUpdate,
}

/// What a run that broke nothing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Pods that were created.
    pub pods: u64,
    /// Attempts of the engine.
    pub attempts: u64,
    /// Bind calls, and those that were carried out.
    pub binds: u64,
    pub bound: u64,
    /// Calls that were refused or whose answer was not true.
    pub refused: u64,
    /// Pods that were deleted for others.
    pub evictions: u64,
    /// Watches that broke and were listed anew.
    pub relists: u64,
    pub leader_losses: u64,
    /// Panics of plugins.
    pub panics: u64,
    /// Questions to extenders, and those that were answered with an error or not at all.
    pub asked: u64,
    pub unanswered: u64,
    /// Pods that were bound when nothing went wrong any more, but only because they had waited for five minutes: perhaps an event
    /// did not wake them that should have.
    pub bound_after_flush: u64,
    /// Pods that fit nowhere in the end.
    pub left: u64,
    /// All events and effects, as a number: two runs of one seed have the same.
    pub trace: u64,
}

impl Report {
    /// Adds the numbers of another run; of their traces nothing is left.
    pub fn add(&mut self, other: &Report) {
        let Report {
            pods,
            attempts,
            binds,
            bound,
            refused,
            evictions,
            relists,
            leader_losses,
            panics,
            asked,
            unanswered,
            ..
        } = other;
        self.pods += pods;
        self.attempts += attempts;
        self.binds += binds;
        self.bound += bound;
        self.refused += refused;
        self.evictions += evictions;
        self.relists += relists;
        self.leader_losses += leader_losses;
        self.panics += panics;
        self.asked += asked;
        self.unanswered += unanswered;
        self.bound_after_flush += other.bound_after_flush;
        self.left += other.left;
        self.trace = 0;
    }
}

/// An invariant does not hold.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}, step {step}, {at_ms} ms: {what}")]
pub struct Broken {
    pub seed: u64,
    pub step: u32,
    /// Virtual time since the run began.
    pub at_ms: u64,
    pub what: String,
}
