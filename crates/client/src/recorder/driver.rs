//! Writes Events, a few at a time.

#![expect(clippy::disallowed_types, reason = "notices come from the engine's thread")]

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use loadmaster_stdx::Rng;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::body::{self, Style};
use super::{Notice, Series, Write};
use crate::answer::status_of;
use crate::lane::{Lane, Reply, Request};
use crate::limit::{Bucket, part, random_seed};

/// Upstream's maxTriesPerEvent and sleep between them, lengthened by up to a quarter.
const N_TRIES_MAX: u32 = 12;
const PAUSE: Duration = Duration::from_secs(10);

/// How often series are looked through.
const SWEEP: Duration = Duration::from_secs(60);

/// Events that are remembered for their repetitions, about 400 bytes each.
const N_KNOWN_MAX: usize = 50_000;

/// How Events are written.
#[derive(Clone, Debug)]
pub struct RecorderOptions {
    /// Of this machine: a part of `reportingInstance`.
    pub hostname: String,
    /// `clientConnection.qps` once more: Events have a bucket of their own.
    pub qps: f32,
    /// `clientConnection.burst` once more.
    pub burst: i32,
    /// Events that wait to be written; more are dropped. Upstream's queue holds 1,000, but is emptied at once into as many
    /// goroutines as it takes, without a limit.
    pub n_waiting_max: usize,
    /// Events that are written at a time: few, because binds want the server more.
    pub n_writing_max: usize,
}

impl Default for RecorderOptions {
    fn default() -> RecorderOptions {
        RecorderOptions {
            hostname: "localhost".to_owned(),
            qps: -1.0,
            burst: 1,
            n_waiting_max: 100_000,
            n_writing_max: 16,
        }
    }
}

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderStats {
    /// Events and repetitions that wait to be written.
    pub n_waiting: usize,
    /// Those on their way, or waiting for another try.
    pub n_writing: usize,
    /// Written.
    pub n_written: u64,
    /// Dropped, because too many waited.
    pub n_dropped: u64,
    /// Given up, because the server refused or could not be reached.
    pub n_failed: u64,
}

/// Takes notices and writes Events. What waits is lost when this is dropped.
pub struct Recorder {
    shared: Arc<Shared>,
    writer: AbortHandle,
}

struct Shared {
    state: Mutex<State>,
    options: RecorderOptions,
    /// Rung when there is something to write, or room for it.
    changed: Notify,
    /// Rung when all is written.
    idle: Notify,
}

struct State {
    notices: VecDeque<(i64, Notice)>,
    writes: VecDeque<Write>,
    series: Series,
    /// On their way now; of `stats.n_writing`, the others pause.
    n_in_flight: usize,
    stats: RecorderStats,
}

impl Recorder {
    /// Begins to write. Must be called within a tokio runtime.
    pub fn start(lane: &Lane, options: RecorderOptions) -> Recorder {
        let state = State {
            notices: VecDeque::new(),
            writes: VecDeque::new(),
            series: Series::new(N_KNOWN_MAX, Rng::new(random_seed())),
            n_in_flight: 0,
            stats: RecorderStats::default(),
        };
        let (state, changed, idle) = (Mutex::new(state), Notify::new(), Notify::new());
        let shared = Arc::new(Shared { state, options, changed, idle });
        let writer = tokio::spawn(write_all(shared.clone(), lane.clone())).abort_handle();
        Recorder { shared, writer }
    }

    /// Takes a notice. Does not wait, and may be called from any thread. Dropped and counted when too many wait.
    pub fn record(&self, notice: Notice) {
        let wall_us = jiff::Timestamp::now().as_microsecond();
        let mut state = self.shared.state();
        if state.notices.len() + state.writes.len() >= self.shared.options.n_waiting_max {
            state.stats.n_dropped += 1;
            return;
        }
        state.notices.push_back((wall_us, notice));
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Waits until all is written, or given up. Whoever calls sets a limit.
    pub async fn drain(&self) {
        loop {
            let mut idle = pin!(self.shared.idle.notified());
            idle.as_mut().enable();
            if self.shared.state().is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// What has been done so far.
    pub fn stats(&self) -> RecorderStats {
        let state = self.shared.state();
        RecorderStats { n_waiting: state.notices.len() + state.writes.len(), ..state.stats }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.notices.is_empty() && self.writes.is_empty() && self.stats.n_writing == 0
    }

    /// The next Event that is worth writing.
    fn pick(&mut self, now: Duration) -> Option<Write> {
        while let Some((wall_us, notice)) = self.notices.pop_front() {
            let write = self.series.take(now, wall_us, notice);
            self.writes.extend(write);
            if !self.writes.is_empty() {
                break;
            }
        }
        self.writes.pop_front()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write_all(shared: Arc<Shared>, lane: Lane) {
    let started = Instant::now();
    let style = style(&lane).await;
    let mut bucket = Bucket::new(shared.options.qps, shared.options.burst);
    let mut tasks = JoinSet::new();
    let mut sweep_at = started + SWEEP;
    loop {
        while tasks.try_join_next().is_some() {}
        let mut changed = pin!(shared.changed.notified());
        changed.as_mut().enable();
        if Instant::now() >= sweep_at {
            sweep_at = Instant::now() + SWEEP;
            let state = &mut *shared.state();
            state.writes.extend(state.series.sweep(started.elapsed()));
        }
        let next = {
            let mut state = shared.state();
            let state = &mut *state;
            if state.n_in_flight < shared.options.n_writing_max {
                let next = state.pick(started.elapsed());
                if next.is_some() {
                    state.n_in_flight += 1;
                    state.stats.n_writing += 1;
                } else if state.is_idle() {
                    shared.idle.notify_waiters();
                }
                next
            } else {
                None
            }
        };
        let Some(write) = next else {
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(sweep_at) => {}
            }
            continue;
        };
        let wait = bucket.take(started.elapsed());
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let writer = Writer { shared: shared.clone(), lane: lane.clone(), style };
        tasks.spawn(async move { writer.write(write).await });
    }
}

/// Where Events are written: core/v1 only if the server has nothing newer.
async fn style(lane: &Lane) -> Style {
    let mut rng = Rng::new(random_seed());
    loop {
        match lane.call(&Request::get("/apis/events.k8s.io/v1")).await {
            Ok(reply) if reply.status == 404 => return Style::Core,
            // Also when it is forbidden to look: then it is there.
            Ok(reply) if reply.status < 500 && reply.status != 429 => return Style::Events,
            Ok(_) | Err(_) => sleep(pause(&mut rng)).await,
        }
    }
}

fn pause(rng: &mut Rng) -> Duration {
    PAUSE + part(rng, PAUSE / 4)
}

struct Writer {
    shared: Arc<Shared>,
    lane: Lane,
    style: Style,
}

enum Tried {
    Written,
    Refused(u16, String),
    Again(Option<Duration>, String),
}

impl Writer {
    async fn write(&self, write: Write) {
        let mut rng = Rng::new(random_seed());
        for nth in 1..=N_TRIES_MAX {
            let tried = self.attempt(&write).await;
            let Some(after) = self.conclude(&write, tried, nth) else { return };
            sleep(after.unwrap_or_else(|| pause(&mut rng))).await;
            self.shared.state().n_in_flight += 1;
        }
    }

    /// Counts what came of a try. Answers with the server's wish for a pause, if any, when there is to be another one; others
    /// use its place meanwhile.
    fn conclude(&self, write: &Write, tried: Tried, nth: u32) -> Option<Option<Duration>> {
        let mut state = self.shared.state();
        state.n_in_flight -= 1;
        let again = match tried {
            Tried::Again(after, _) if nth < N_TRIES_MAX => Some(after),
            Tried::Written => {
                state.stats.n_written += 1;
                None
            }
            Tried::Again(_, message) => {
                state.stats.n_failed += 1;
                tracing::warn!(event = write.event.name, message, "an Event could not be written");
                None
            }
            Tried::Refused(status, message) => {
                state.stats.n_failed += 1;
                tracing::warn!(event = write.event.name, status, message, "an Event was refused");
                None
            }
        };
        if again.is_none() {
            state.stats.n_writing -= 1;
        }
        if state.is_idle() {
            self.shared.idle.notify_waiters();
        }
        self.shared.changed.notify_one();
        again
    }

    async fn attempt(&self, write: &Write) -> Tried {
        // Upstream writes what has no action through core/v1, too.
        let style = if write.event.notice.action.is_empty() { Style::Core } else { self.style };
        if let Some(series) = write.series {
            match self.ask(&body::patch(write, style, series)).await {
                // It has expired: written anew below.
                Ok(reply) if reply.status == 404 => {}
                Ok(reply) => return judged(&reply, false),
                Err(message) => return Tried::Again(None, message),
            }
        }
        let request = body::create(write, style, &self.shared.options.hostname);
        match self.ask(&request).await {
            Ok(reply) => judged(&reply, write.series.is_none()),
            Err(message) => Tried::Again(None, message),
        }
    }

    async fn ask(&self, request: &Request) -> Result<Reply, String> {
        self.lane.call(request).await.map_err(|error| error.to_string())
    }
}

/// What an answer means. An Event that exists already was written by an attempt whose answer was lost; of a series it says
/// that its Event was written meanwhile, and can be patched.
fn judged(reply: &Reply, may_exist: bool) -> Tried {
    if reply.is_success() || (reply.status == 409 && may_exist) {
        return Tried::Written;
    }
    let message = status_of(reply.status, &reply.body).message;
    match reply.status {
        409 | 429 | 500.. => Tried::Again(reply.retry_after, message),
        status => Tried::Refused(status, message),
    }
}
