//! Pacing a cluster: it has no clock of its own.

#![expect(clippy::disallowed_types, reason = "the binary paces what has no clock")]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use loadmaster_sim::cluster::{Cluster, Millis, sample::Churn};

/// A cluster with what goes on in it.
pub(super) struct Drive {
    pub cluster: Cluster,
    churn: Option<Churn>,
    began: Instant,
    /// Time spent on working, not on waiting or drawing.
    pub busy: Duration,
}

/// How far ahead churn is planned.
const PLAN_AHEAD_MS: Millis = 1_000;

/// Decisions between two looks at the clock.
const N_DECISIONS: usize = 32;

impl Drive {
    pub fn new(cluster: Cluster, churn: Option<Churn>) -> Drive {
        Drive { cluster, churn, began: Instant::now(), busy: Duration::ZERO }
    }

    /// Time since it began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Runs to a time of the cluster, or as far as it gets in this much time; says whether it got there. Time moves on only while no
    /// pod is ready, so that every run decides the same.
    pub fn run(&mut self, until_ms: Millis, at_most: Duration) -> bool {
        let began = Instant::now();
        if let Some(churn) = &mut self.churn {
            for (at_ms, change) in churn.plan(until_ms.saturating_add(PLAN_AHEAD_MS)) {
                self.cluster.at(at_ms, change);
            }
        }
        let arrived = loop {
            let idle = (0..N_DECISIONS).any(|_| !self.cluster.decide_next());
            if idle {
                match self.cluster.due_ms() {
                    Some(due_ms) if due_ms <= until_ms => self.cluster.advance(due_ms),
                    _ => break true,
                }
            }
            if began.elapsed() >= at_most {
                break false;
            }
        };
        // Where nothing more will happen, time ends.
        if arrived && self.cluster.due_ms().is_some() {
            self.cluster.advance(until_ms);
        }
        self.busy += began.elapsed();
        arrived
    }
}

/// What the cluster measures its decisions with.
pub(super) struct Stopwatch;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Stopwatch {
    /// Nanoseconds since the first call.
    pub fn ticks() -> u64 {
        u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
