//! The queue of events, and the tasks that write them.

#![expect(clippy::disallowed_types, reason = "events come from the engine's thread")]

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use loadmaster_stdx::Rng;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::requests::{self, EventApi};
use super::write_window::WriteWindow;
use super::{EventCorrelator, EventWrite, NewEvent};
use crate::api_client::{ApiClient, Reply, Request};
use crate::flowcontrol::{TokenBucket, random_fraction, random_seed};
use crate::status::decode_status;

/// Upstream's maxTriesPerEvent and sleepDuration, the latter lengthened at random by up to a quarter.
const N_TRIES_MAX: u32 = 12;
const PAUSE: Duration = Duration::from_secs(10);

/// How often the correlator is asked for counts that are due.
const REFRESH_PERIOD: Duration = Duration::from_secs(60);

/// Events that the correlator caches, about 400 bytes each.
const N_CACHED_MAX: usize = 50_000;

/// Limits and names of an event recorder.
#[derive(Clone, Debug)]
pub struct EventRecorderOptions {
    /// The host name: a part of `reportingInstance`.
    pub hostname: String,
    /// `clientConnection.qps`: Events have a rate limiter of their own.
    pub qps: f32,
    /// `clientConnection.burst`.
    pub burst: i32,
    /// Queue length; more events are dropped. Upstream's queue holds 1,000 events, but starts a goroutine for each at once, without
    /// a limit.
    pub n_waiting_max: usize,
    /// Concurrent writes while the API server is idle; one while it is busy, because binds are more important.
    pub n_writing_max: usize,
}

impl Default for EventRecorderOptions {
    fn default() -> EventRecorderOptions {
        EventRecorderOptions {
            hostname: "localhost".to_owned(),
            qps: -1.0,
            burst: 1,
            n_waiting_max: 100_000,
            n_writing_max: 32,
        }
    }
}

/// Queue lengths and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventRecorderStats {
    /// Events and repetitions in the queue.
    pub n_waiting: usize,
    /// Writes in flight, or waiting for a retry.
    pub n_writing: usize,
    /// Events written.
    pub n_written: u64,
    /// Events dropped because the queue was full.
    pub n_dropped: u64,
    /// Events not written because the server refused them or could not be reached.
    pub n_failed: u64,
}

/// Records events asynchronously. Events in the queue are lost when it is dropped.
pub struct EventRecorder {
    shared: Arc<Shared>,
    writer: AbortHandle,
}

struct Shared {
    state: Mutex<State>,
    options: EventRecorderOptions,
    /// Notified when an event is queued or a write has finished.
    changed: Notify,
    /// Notified when nothing is queued or in flight.
    idle: Notify,
}

struct State {
    queued: VecDeque<(i64, NewEvent)>,
    writes: VecDeque<EventWrite>,
    series: EventCorrelator,
    /// Writes in flight; the others of `stats.n_writing` wait for a retry.
    n_in_flight: usize,
    window: WriteWindow,
    stats: EventRecorderStats,
}

impl EventRecorder {
    /// Starts the writer task. Must be called within a tokio runtime.
    pub fn start(client: &ApiClient, options: EventRecorderOptions) -> EventRecorder {
        let state = State {
            queued: VecDeque::new(),
            writes: VecDeque::new(),
            series: EventCorrelator::new(N_CACHED_MAX, Rng::new(random_seed())),
            n_in_flight: 0,
            window: WriteWindow::new(options.n_writing_max),
            stats: EventRecorderStats::default(),
        };
        let (state, changed, idle) = (Mutex::new(state), Notify::new(), Notify::new());
        let shared = Arc::new(Shared { state, options, changed, idle });
        let writer = tokio::spawn(write_all(shared.clone(), client.clone())).abort_handle();
        EventRecorder { shared, writer }
    }

    /// Queues an event. Does not block, and may be called from any thread. When the queue is full, the event is dropped and
    /// counted.
    pub fn record(&self, event: NewEvent) {
        let wall_us = jiff::Timestamp::now().as_microsecond();
        let mut state = self.shared.state();
        if state.n_waiting() >= self.shared.options.n_waiting_max {
            state.stats.n_dropped += 1;
            return;
        }
        state.queued.push_back((wall_us, event));
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Waits until all events are written or have failed. Has no timeout.
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

    /// Current queue lengths and counters.
    pub fn stats(&self) -> EventRecorderStats {
        let state = self.shared.state();
        EventRecorderStats { n_waiting: state.n_waiting(), ..state.stats }
    }
}

impl Drop for EventRecorder {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.writes.is_empty() && self.stats.n_writing == 0
    }

    fn n_waiting(&self) -> usize {
        self.queued.len() + self.writes.len()
    }

    /// Whether a write may be sent. A tenth of the queue is enough to wait for a busy server; beyond that Events would get lost.
    fn may_write(&self, options: &EventRecorderOptions) -> bool {
        let is_long = self.n_waiting() > options.n_waiting_max / 10;
        let n_max = if is_long { options.n_writing_max } else { self.window.size() };
        self.n_in_flight < n_max
    }

    /// The next write: passes queued events to the correlator until one has to be written.
    fn pick(&mut self, now: Duration) -> Option<EventWrite> {
        while let Some((wall_us, event)) = self.queued.pop_front() {
            let write = self.series.correlate(now, wall_us, event);
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

async fn write_all(shared: Arc<Shared>, client: ApiClient) {
    let started = Instant::now();
    let api = detect_event_api(&client).await;
    let mut bucket = TokenBucket::new(shared.options.qps, shared.options.burst);
    let mut tasks = JoinSet::new();
    let mut refresh_at = started + REFRESH_PERIOD;
    loop {
        while tasks.try_join_next().is_some() {}
        let mut changed = pin!(shared.changed.notified());
        changed.as_mut().enable();
        if Instant::now() >= refresh_at {
            refresh_at = Instant::now() + REFRESH_PERIOD;
            let state = &mut *shared.state();
            state.writes.extend(state.series.refresh_series(started.elapsed()));
        }
        let next = {
            let mut state = shared.state();
            let state = &mut *state;
            if state.may_write(&shared.options) {
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
                () = tokio::time::sleep_until(refresh_at) => {}
            }
            continue;
        };
        let wait = bucket.reserve(started.elapsed());
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let writer = Writer { shared: shared.clone(), client: client.clone(), api };
        tasks.spawn(async move { writer.write(write).await });
    }
}

/// The API for Events: core/v1 only if the server has no events.k8s.io/v1.
async fn detect_event_api(client: &ApiClient) -> EventApi {
    let mut rng = Rng::new(random_seed());
    loop {
        match client.call(&Request::get("/apis/events.k8s.io/v1")).await {
            Ok(reply) if reply.status == 404 => return EventApi::CoreV1,
            // Also when discovery is forbidden.
            Ok(reply) if reply.status < 500 && reply.status != 429 => return EventApi::EventsV1,
            Ok(_) | Err(_) => sleep(pause(&mut rng)).await,
        }
    }
}

fn pause(rng: &mut Rng) -> Duration {
    PAUSE + random_fraction(rng, PAUSE / 4)
}

struct Writer {
    shared: Arc<Shared>,
    client: ApiClient,
    api: EventApi,
}

enum WriteResult {
    Written,
    Refused(u16, String),
    Again(Option<Duration>, String),
}

impl Writer {
    async fn write(&self, write: EventWrite) {
        let mut rng = Rng::new(random_seed());
        for nth in 1..=N_TRIES_MAX {
            let started = Instant::now();
            let result = self.attempt(&write).await;
            let Some(after) = self.finish_attempt(&write, result, nth, started.elapsed()) else {
                return;
            };
            sleep(after.unwrap_or_else(|| pause(&mut rng))).await;
            self.shared.state().n_in_flight += 1;
        }
    }

    /// Counts the result of an attempt. Returns `Some` when the write is to be retried, with the server's Retry-After if there is
    /// one;
    /// meanwhile other writes may use its slot.
    fn finish_attempt(
        &self,
        write: &EventWrite,
        result: WriteResult,
        nth: u32,
        duration: Duration,
    ) -> Option<Option<Duration>> {
        let mut state = self.shared.state();
        state.n_in_flight -= 1;
        let again = match result {
            WriteResult::Again(after, _) if nth < N_TRIES_MAX => Some(after),
            WriteResult::Written => {
                // Errors say nothing about how busy the server is: a refused connection takes no time.
                state.window.observe(duration);
                state.stats.n_written += 1;
                None
            }
            WriteResult::Again(_, message) => {
                state.stats.n_failed += 1;
                tracing::warn!(
                    event = write.event.name,
                    message,
                    "Unable to write event (retry limit exceeded)"
                );
                None
            }
            WriteResult::Refused(status, message) => {
                state.stats.n_failed += 1;
                tracing::warn!(
                    event = write.event.name,
                    status,
                    message,
                    "Server rejected event (will not retry)"
                );
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

    async fn attempt(&self, write: &EventWrite) -> WriteResult {
        // As upstream: events without an action are written as core/v1.
        let api = if write.event.new_event.action.is_empty() { EventApi::CoreV1 } else { self.api };
        if let Some(series) = write.series {
            match self.send(&requests::patch(write, api, series)).await {
                // The Event has expired: it is created again below.
                Ok(reply) if reply.status == 404 => {}
                Ok(reply) => return classify_reply(&reply, false),
                Err(message) => return WriteResult::Again(None, message),
            }
        }
        let request = requests::create(write, api, &self.shared.options.hostname);
        match self.send(&request).await {
            Ok(reply) => classify_reply(&reply, write.series.is_none()),
            Err(message) => WriteResult::Again(None, message),
        }
    }

    async fn send(&self, request: &Request) -> Result<Reply, String> {
        self.client.call(request).await.map_err(|error| error.to_string())
    }
}

/// The result of an attempt by its reply. 409 for a new Event means that an earlier attempt, whose reply was lost, has created it;
/// for a repetition it means that its Event was created meanwhile and can be patched.
fn classify_reply(reply: &Reply, may_exist: bool) -> WriteResult {
    if reply.is_success() || (reply.status == 409 && may_exist) {
        return WriteResult::Written;
    }
    let message = decode_status(reply.status, &reply.body).message;
    match reply.status {
        409 | 429 | 500.. => WriteResult::Again(reply.retry_after, message),
        status => WriteResult::Refused(status, message),
    }
}
