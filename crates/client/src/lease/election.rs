//! What to do about the lease, and when.

use std::time::Duration;

use loadmaster_stdx::Rng;

use super::{LeaseNews, Record};
use crate::limit::part;

/// A candidate's pause is lengthened by up to so many times itself; client-go's JitterFactor of 1.2, in tenths.
const JITTER_TENTHS: u32 = 12;

/// How often a candidate looks at a lease that somebody holds. client-go's looks come 2 to 4.4 s apart.
const LOOK: Duration = Duration::from_secs(1);

/// A leader stops so long before its lease could be taken over, at most.
const MARGIN_MAX: Duration = Duration::from_secs(1);

/// A released lease is written with this duration, as client-go.
const RELEASED_SECONDS: i32 = 1;

/// The three times of `leaderElection`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a lease is good.
    pub lease_duration: Duration,
    /// How long a leader tries to renew.
    pub renew_deadline: Duration,
    /// How long between tries.
    pub retry_period: Duration,
}

/// The time by two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since any fixed moment: what counts.
    pub mono: Duration,
    /// Microseconds since 1970: what is written for people.
    pub wall_us: i64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Read the lease.
    Get,
    /// Create it.
    Create(Record),
    /// Replace the version that was read or written last.
    Update(Record),
    /// Nothing, for so long.
    Wait(Duration),
    /// Nothing any more.
    Over,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was read.
    Found(Record),
    /// There is none.
    Missing,
    /// It was written.
    Written,
    /// Neither, or nobody knows.
    Failed,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Waits for the next try.
    Idle,
    /// Renews what is believed to be the newest version.
    Optimistic(Record),
    /// Reads.
    Reading,
    /// Creates or updates.
    Creating(Record),
    Updating(Record),
    /// Reads, then writes, to give it back.
    ReleaseReading,
    Releasing(Record),
    Over,
}

/// A candidate, or the leader.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    rng: Rng,
    phase: Phase,
    is_leading: bool,
    is_releasing: bool,
    observed: Record,
    /// When that record was seen first, or written.
    observed_at: Duration,
    reported: String,
    /// The next try.
    try_at: Duration,
    /// When the request at hand was sent.
    sent_at: Duration,
    /// When a leader gives up.
    give_up_at: Duration,
}

impl Election {
    /// A candidate, who tries at once.
    pub fn new(identity: String, timing: Timing, rng: Rng) -> Election {
        Election {
            identity,
            timing,
            rng,
            phase: Phase::Idle,
            is_leading: false,
            is_releasing: false,
            observed: Record::default(),
            observed_at: Duration::ZERO,
            reported: String::new(),
            try_at: Duration::ZERO,
            sent_at: Duration::ZERO,
            give_up_at: Duration::MAX,
        }
    }

    /// Whether we lead.
    pub fn is_leading(&self) -> bool {
        self.is_leading
    }

    /// When the lease was renewed last, or last seen to change.
    pub fn observed_at(&self) -> Duration {
        self.observed_at
    }

    /// When a request must have been answered: later than this its answer is of no use.
    pub fn give_up_at(&self) -> Duration {
        self.give_up_at
    }

    /// What is to be done now. After a request, call [`Election::told`]; after a wait, this.
    pub fn next(&mut self, now: Now, news: &mut Vec<LeaseNews>) -> Ask {
        self.check_deadline(now, news);
        if self.phase == Phase::Idle {
            if self.is_releasing && self.is_leading {
                self.phase = Phase::ReleaseReading;
            } else if self.is_releasing {
                self.phase = Phase::Over;
            } else if now.mono >= self.try_at {
                self.begin(now);
            } else {
                return Ask::Wait(self.wait(now));
            }
        }
        self.sent_at = now.mono;
        match &self.phase {
            Phase::Idle | Phase::Over => Ask::Over,
            Phase::Reading | Phase::ReleaseReading => Ask::Get,
            Phase::Creating(record) => Ask::Create(record.clone()),
            Phase::Optimistic(record) | Phase::Updating(record) | Phase::Releasing(record) => {
                Ask::Update(record.clone())
            }
        }
    }

    fn wait(&self, now: Now) -> Duration {
        let until = if self.is_leading { self.try_at.min(self.give_up_at) } else { self.try_at };
        until.saturating_sub(now.mono)
    }

    /// Gives the lease back if it is held, and ends. A request on its way is waited for.
    pub fn release(&mut self) {
        self.is_releasing = true;
    }

    fn begin(&mut self, now: Now) {
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

    /// Takes what came of the request.
    pub fn told(&mut self, now: Now, told: Told, news: &mut Vec<LeaseNews>) {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        match (phase, told) {
            (Phase::Optimistic(record) | Phase::Updating(record), Told::Written)
            | (Phase::Creating(record), Told::Written) => self.held(now, record, news),
            // Somebody has changed it, or nobody knows: read.
            (Phase::Optimistic(_), _) => self.phase = Phase::Reading,
            (Phase::Reading, Told::Missing) => {
                let record = self.fresh(now, 0);
                self.phase = Phase::Creating(record);
            }
            (Phase::Reading, Told::Found(record)) => self.found(now, record),
            (Phase::ReleaseReading, Told::Found(record)) if record.holder == self.identity => {
                self.phase = Phase::Releasing(Record {
                    holder: String::new(),
                    duration_s: RELEASED_SECONDS,
                    acquired_us: now.wall_us,
                    renewed_us: now.wall_us,
                    transitions: record.transitions,
                });
            }
            (Phase::ReleaseReading | Phase::Releasing(_), _) => self.over(news),
            (_, _) => self.failed(now),
        }
        self.check_deadline(now, news);
        self.report(news);
    }

    /// The lease was read.
    fn found(&mut self, now: Now, record: Record) {
        if record != self.observed {
            self.observed = record;
            self.observed_at = now.mono;
        }
        let holder = &self.observed.holder;
        let is_mine = *holder == self.identity;
        if !is_mine && self.is_leading {
            // Whoever it is has waited until we could not be leading any more.
            self.give_up_at = now.mono;
            return;
        }
        if !holder.is_empty() && !is_mine && self.is_observed_valid(now) {
            self.try_at = now.mono + LOOK;
            return;
        }
        let record = if is_mine {
            self.renewal(now, &self.observed)
        } else {
            self.fresh(now, self.observed.transitions.saturating_add(1))
        };
        self.phase = Phase::Updating(record);
    }

    fn held(&mut self, now: Now, record: Record, news: &mut Vec<LeaseNews>) {
        self.observed = record;
        self.observed_at = now.mono;
        if !self.is_leading {
            self.is_leading = true;
            news.push(LeaseNews::Leading);
        }
        self.try_at = now.mono + self.timing.retry_period;
        let Timing { lease_duration, renew_deadline, .. } = self.timing;
        let margin = MARGIN_MAX.min(lease_duration.saturating_sub(renew_deadline) / 2);
        let safe = (self.sent_at + lease_duration).saturating_sub(margin);
        self.give_up_at = (self.try_at + renew_deadline).min(safe);
    }

    /// A try came to nothing.
    fn failed(&mut self, now: Now) {
        if self.is_leading {
            return;
        }
        let jitter = part(&mut self.rng, self.timing.retry_period * JITTER_TENTHS / 10);
        self.try_at = now.mono + self.timing.retry_period + jitter;
    }

    fn check_deadline(&mut self, now: Now, news: &mut Vec<LeaseNews>) {
        if self.is_leading && now.mono >= self.give_up_at {
            self.over(news);
        }
    }

    fn over(&mut self, news: &mut Vec<LeaseNews>) {
        if self.is_leading {
            self.is_leading = false;
            news.push(LeaseNews::Lost);
        }
        self.phase = Phase::Over;
    }

    /// Tells who leads, once a try is over.
    fn report(&mut self, news: &mut Vec<LeaseNews>) {
        let is_over = matches!(self.phase, Phase::Idle | Phase::Over);
        if !is_over || self.observed.holder == self.reported {
            return;
        }
        self.reported.clone_from(&self.observed.holder);
        news.push(LeaseNews::NewLeader(self.reported.clone()));
    }

    fn is_observed_valid(&self, now: Now) -> bool {
        let seconds = u64::try_from(self.observed.duration_s).unwrap_or_default();
        self.observed_at + Duration::from_secs(seconds) > now.mono
    }

    fn fresh(&self, now: Now, transitions: i32) -> Record {
        Record {
            holder: self.identity.clone(),
            duration_s: i32::try_from(self.timing.lease_duration.as_secs()).unwrap_or(i32::MAX),
            acquired_us: now.wall_us,
            renewed_us: now.wall_us,
            transitions,
        }
    }

    fn renewal(&self, now: Now, before: &Record) -> Record {
        let acquired_us = before.acquired_us;
        Record { acquired_us, ..self.fresh(now, before.transitions) }
    }
}
