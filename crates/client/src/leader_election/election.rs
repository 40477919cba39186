//! The leader election as a state machine without I/O and clock.

use std::time::Duration;

use loadmaster_stdx::Rng;

use super::{LeaderElectionEvent, LeaderElectionRecord};
use crate::flowcontrol::random_fraction;

/// Jitter of a candidate's retry period: client-go's JitterFactor of 1.2, in tenths.
const JITTER_TENTHS: u32 = 12;

/// How often a candidate reads a lease that another replica holds. client-go reads it every 2 to 4.4 s.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// The longest time by which a leader stops before another replica could acquire its lease.
const MARGIN_MAX: Duration = Duration::from_secs(1);

/// The lease duration of a released lease, as in client-go.
const RELEASED_SECONDS: i32 = 1;

/// The durations of `leaderElection`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderElectionTiming {
    /// How long after its last renewal candidates wait before they acquire a lease.
    pub lease_duration: Duration,
    /// How long a leader retries to renew before it stops leading.
    pub renew_deadline: Duration,
    /// Time between attempts.
    pub retry_period: Duration,
}

/// The current time of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The monotonic clock, since any fixed moment; all decisions use it.
    pub mono: Duration,
    /// Microseconds since 1970; only written into the lease.
    pub wall_us: i64,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionAction {
    /// Read the lease.
    Get,
    /// Create it.
    Create(LeaderElectionRecord),
    /// Update the lease last read or written.
    Update(LeaderElectionRecord),
    /// Wait.
    Wait(Duration),
    /// The election has ended.
    Stop,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseReply {
    /// The lease was read.
    Found(LeaderElectionRecord),
    /// There is no such lease.
    NotFound,
    /// The lease was created or updated.
    Written,
    /// The request failed, or its outcome is unknown.
    Failed,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Waits for the next attempt.
    Idle,
    /// Renews the lease without reading it first, as client-go's fast path.
    Optimistic(LeaderElectionRecord),
    /// Reads the lease.
    Reading,
    /// Creates or updates the lease.
    Creating(LeaderElectionRecord),
    Updating(LeaderElectionRecord),
    /// Reads, then updates the lease to release it.
    ReleaseReading,
    Releasing(LeaderElectionRecord),
    Stopped,
}

/// The state of a candidate or leader.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: LeaderElectionTiming,
    rng: Rng,
    phase: Phase,
    is_leading: bool,
    is_releasing: bool,
    observed: LeaderElectionRecord,
    /// When that record was first observed, or written.
    observed_at: Duration,
    reported_leader: String,
    /// The time of the next attempt.
    try_at: Duration,
    /// When the current request was sent.
    sent_at: Duration,
    /// When a leader stops leading.
    give_up_at: Duration,
}

impl Election {
    /// A candidate, which makes its first attempt at once.
    pub fn new(identity: String, timing: LeaderElectionTiming, rng: Rng) -> Election {
        Election {
            identity,
            timing,
            rng,
            phase: Phase::Idle,
            is_leading: false,
            is_releasing: false,
            observed: LeaderElectionRecord::default(),
            observed_at: Duration::ZERO,
            reported_leader: String::new(),
            try_at: Duration::ZERO,
            sent_at: Duration::ZERO,
            give_up_at: Duration::MAX,
        }
    }

    /// Whether this replica is the leader.
    pub fn is_leading(&self) -> bool {
        self.is_leading
    }

    /// When the lease was last renewed, or last observed to change.
    pub fn observed_at(&self) -> Duration {
        self.observed_at
    }

    /// When the current leader stops leading: requests need no response after this.
    pub fn give_up_at(&self) -> Duration {
        self.give_up_at
    }

    /// What to do now. After a request, call [`Election::handle_reply`]; after a wait, this.
    pub fn next_action(
        &mut self,
        now: ClockReading,
        events: &mut Vec<LeaderElectionEvent>,
    ) -> ElectionAction {
        self.check_deadline(now, events);
        if self.phase == Phase::Idle {
            if self.is_releasing && self.is_leading {
                self.phase = Phase::ReleaseReading;
            } else if self.is_releasing {
                self.phase = Phase::Stopped;
            } else if now.mono >= self.try_at {
                self.begin(now);
            } else {
                return ElectionAction::Wait(self.wait(now));
            }
        }
        self.sent_at = now.mono;
        match &self.phase {
            Phase::Idle | Phase::Stopped => ElectionAction::Stop,
            Phase::Reading | Phase::ReleaseReading => ElectionAction::Get,
            Phase::Creating(record) => ElectionAction::Create(record.clone()),
            Phase::Optimistic(record) | Phase::Updating(record) | Phase::Releasing(record) => {
                ElectionAction::Update(record.clone())
            }
        }
    }

    fn wait(&self, now: ClockReading) -> Duration {
        let until = if self.is_leading { self.try_at.min(self.give_up_at) } else { self.try_at };
        until.saturating_sub(now.mono)
    }

    /// Releases the lease if it is held, and ends the election, after the request in flight.
    pub fn release(&mut self) {
        self.is_releasing = true;
    }

    fn begin(&mut self, now: ClockReading) {
        let is_mine = self.observed.holder == self.identity;
        if is_mine && self.is_observed_valid(now) {
            let record = self.renewal(now, &self.observed);
            self.phase = Phase::Optimistic(record);
        } else {
            self.phase = Phase::Reading;
        }
        if self.is_leading {
            self.try_at = now.mono + self.timing.retry_period;
        }
    }

    /// Handles the result of a request.
    pub fn handle_reply(
        &mut self,
        now: ClockReading,
        reply: LeaseReply,
        events: &mut Vec<LeaderElectionEvent>,
    ) {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        match (phase, reply) {
            (Phase::Optimistic(record) | Phase::Updating(record), LeaseReply::Written)
            | (Phase::Creating(record), LeaseReply::Written) => {
                self.handle_written(now, record, events)
            }
            // Another replica has changed the lease, or the outcome is unknown.
            (Phase::Optimistic(_), _) => self.phase = Phase::Reading,
            (Phase::Reading, LeaseReply::NotFound) => {
                let record = self.new_record(now, 0);
                self.phase = Phase::Creating(record);
            }
            (Phase::Reading, LeaseReply::Found(record)) => self.handle_record(now, record),
            (Phase::ReleaseReading, LeaseReply::Found(record))
                if record.holder == self.identity =>
            {
                self.phase = Phase::Releasing(LeaderElectionRecord {
                    holder: String::new(),
                    duration_s: RELEASED_SECONDS,
                    acquired_us: now.wall_us,
                    renewed_us: now.wall_us,
                    transitions: record.transitions,
                });
            }
            (Phase::ReleaseReading | Phase::Releasing(_), _) => self.stop_leading(events),
            (_, _) => self.schedule_retry(now),
        }
        self.check_deadline(now, events);
        self.report_new_leader(events);
    }

    /// The lease was read.
    fn handle_record(&mut self, now: ClockReading, record: LeaderElectionRecord) {
        if record != self.observed {
            self.observed = record;
            self.observed_at = now.mono;
        }
        let holder = &self.observed.holder;
        let is_mine = *holder == self.identity;
        if !is_mine && self.is_leading {
            // Another replica acquired the lease: our own has expired.
            self.give_up_at = now.mono;
            return;
        }
        if !holder.is_empty() && !is_mine && self.is_observed_valid(now) {
            self.try_at = now.mono + CHECK_PERIOD;
            return;
        }
        let record = if is_mine {
            self.renewal(now, &self.observed)
        } else {
            self.new_record(now, self.observed.transitions.saturating_add(1))
        };
        self.phase = Phase::Updating(record);
    }

    fn handle_written(
        &mut self,
        now: ClockReading,
        record: LeaderElectionRecord,
        events: &mut Vec<LeaderElectionEvent>,
    ) {
        self.observed = record;
        self.observed_at = now.mono;
        if !self.is_leading {
            self.is_leading = true;
            events.push(LeaderElectionEvent::StartedLeading);
        }
        self.try_at = now.mono + self.timing.retry_period;
        let LeaderElectionTiming { lease_duration, renew_deadline, .. } = self.timing;
        let margin = MARGIN_MAX.min(lease_duration.saturating_sub(renew_deadline) / 2);
        let safe = (self.sent_at + lease_duration).saturating_sub(margin);
        self.give_up_at = (self.try_at + renew_deadline).min(safe);
    }

    /// An attempt of a candidate failed: schedules the next one.
    fn schedule_retry(&mut self, now: ClockReading) {
        if self.is_leading {
            return;
        }
        let jitter = random_fraction(&mut self.rng, self.timing.retry_period * JITTER_TENTHS / 10);
        self.try_at = now.mono + self.timing.retry_period + jitter;
    }

    fn check_deadline(&mut self, now: ClockReading, events: &mut Vec<LeaderElectionEvent>) {
        if self.is_leading && now.mono >= self.give_up_at {
            self.stop_leading(events);
        }
    }

    fn stop_leading(&mut self, events: &mut Vec<LeaderElectionEvent>) {
        if self.is_leading {
            self.is_leading = false;
            events.push(LeaderElectionEvent::StoppedLeading);
        }
        self.phase = Phase::Stopped;
    }

    /// Reports a new leader, at the end of an attempt.
    fn report_new_leader(&mut self, events: &mut Vec<LeaderElectionEvent>) {
        let is_attempt_over = matches!(self.phase, Phase::Idle | Phase::Stopped);
        if !is_attempt_over || self.observed.holder == self.reported_leader {
            return;
        }
        self.reported_leader.clone_from(&self.observed.holder);
        events.push(LeaderElectionEvent::NewLeader(self.reported_leader.clone()));
    }

    fn is_observed_valid(&self, now: ClockReading) -> bool {
        let seconds = u64::try_from(self.observed.duration_s).unwrap_or_default();
        self.observed_at + Duration::from_secs(seconds) > now.mono
    }

    fn new_record(&self, now: ClockReading, transitions: i32) -> LeaderElectionRecord {
        LeaderElectionRecord {
            holder: self.identity.clone(),
            duration_s: i32::try_from(self.timing.lease_duration.as_secs()).unwrap_or(i32::MAX),
            acquired_us: now.wall_us,
            renewed_us: now.wall_us,
            transitions,
        }
    }

    fn renewal(&self, now: ClockReading, before: &LeaderElectionRecord) -> LeaderElectionRecord {
        let acquired_us = before.acquired_us;
        LeaderElectionRecord { acquired_us, ..self.new_record(now, before.transitions) }
    }
}
