//! The queue of API calls, and the task that executes them.

#![expect(clippy::disallowed_types, reason = "the queue is filled from the engine's thread")]

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loadmaster_framework::api_calls::Verb;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::bind::{self, BindOperation, BindReply, BindStep};
use super::call_queue::{
    ApiDispatcherLimits, ApiDispatcherStats, CallQueue, InFlightKind, QueueFull, QueuedCall,
};
use super::{ApiCall, ApiCallOutcome, FinishedCall, http_request};
use crate::api_client::{ApiClient, ApiClients, Reply, Request, SendError};
use crate::flowcontrol::TokenBucket;

/// How often an idempotent call is repeated when its connection is lost.
const N_REPEATS_MAX: u32 = 3;

/// The queue of API calls and the task that executes them. Dropping it cancels calls in flight.
pub struct ApiDispatcher {
    shared: Arc<Shared>,
    dispatcher: AbortHandle,
}

struct Shared {
    queue: Mutex<CallQueue>,
    limits: ApiDispatcherLimits,
    /// Notified when a call is queued or finished.
    changed: Notify,
    /// Notified when no call is queued or in flight.
    idle: Notify,
}

impl ApiDispatcher {
    /// Starts the dispatcher task. Must be called within a tokio runtime. When `out` is full, calls wait.
    pub fn start(
        clients: &ApiClients,
        limits: ApiDispatcherLimits,
        out: mpsc::Sender<FinishedCall>,
    ) -> ApiDispatcher {
        let (queue, changed, idle) = (Mutex::default(), Notify::new(), Notify::new());
        let shared = Arc::new(Shared { queue, limits, changed, idle });
        let worker = Worker { bind: clients.bind.clone(), other: clients.other.clone(), out };
        let dispatcher = tokio::spawn(dispatch(shared.clone(), worker)).abort_handle();
        ApiDispatcher { shared, dispatcher }
    }

    /// Queues a call. Does not block, and may be called from any thread.
    ///
    /// # Errors
    ///
    /// When the queue is full, or after [`ApiDispatcher::close`].
    pub fn submit(&self, job: ApiCall) -> Result<(), QueueFull> {
        self.shared.queue().add(job, &self.shared.limits)?;
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Accepts no more calls. Queued calls are still executed.
    pub fn close(&self) {
        self.shared.queue().is_closed = true;
    }

    /// Drops all queued calls and cancels those in flight, as when the lease is lost.
    pub fn stop(&self) {
        self.dispatcher.abort();
        self.shared.queue().stop();
    }

    /// Waits until no call is queued or in flight.
    pub async fn drain(&self) {
        loop {
            let mut idle = pin!(self.shared.idle.notified());
            idle.as_mut().enable();
            if self.shared.queue().is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// Current queue lengths and counters.
    pub fn stats(&self) -> ApiDispatcherStats {
        self.shared.queue().stats()
    }
}

impl Drop for ApiDispatcher {
    fn drop(&mut self) {
        self.dispatcher.abort();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, CallQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn dispatch(shared: Arc<Shared>, worker: Worker) {
    let started = Instant::now();
    let mut bucket = TokenBucket::new(shared.limits.qps, shared.limits.burst);
    let mut tasks = JoinSet::new();
    let worker = Arc::new(worker);
    loop {
        while tasks.try_join_next().is_some() {}
        let mut changed = pin!(shared.changed.notified());
        changed.as_mut().enable();
        let overridden = shared.queue().take_overridden();
        if !overridden.is_empty() {
            let worker = worker.clone();
            tasks.spawn(async move { worker.report_overridden(overridden).await });
            if shared.queue().is_idle() {
                shared.idle.notify_waiters();
            }
        }
        if !shared.queue().has_next(&shared.limits) {
            changed.await;
            continue;
        }
        let wait = bucket.reserve(started.elapsed());
        if !wait.is_zero() {
            let stats = &mut shared.queue().stats;
            stats.n_throttled += 1;
            stats.throttled += wait;
            stats.throttled_longest = stats.throttled_longest.max(wait);
        }
        if !wait.is_zero() {
            sleep(wait).await;
        }
        // Taken after the wait: a bind that was queued meanwhile goes first, and may have overridden the next call.
        let Some(work) = shared.queue().pick(&shared.limits) else { continue };
        let in_flight = InFlight { shared: shared.clone(), kind: work.kind() };
        let worker = worker.clone();
        tasks.spawn(async move {
            worker.execute(work, &in_flight).await;
            drop(in_flight);
        });
    }
}

/// Counts a call as in flight until it is dropped.
struct InFlight {
    shared: Arc<Shared>,
    kind: InFlightKind,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.finish(&self.kind);
        let is_idle = queue.is_idle();
        drop(queue);
        self.shared.changed.notify_one();
        if is_idle {
            self.shared.idle.notify_waiters();
        }
    }
}

struct Worker {
    bind: ApiClient,
    other: ApiClient,
    out: mpsc::Sender<FinishedCall>,
}

impl Worker {
    async fn execute(&self, work: QueuedCall, in_flight: &InFlight) {
        let finished = match work {
            QueuedCall::Bind(intent, job) => {
                let mut bind = BindOperation::new(intent);
                let outcome = self.run_bind(&mut bind, &job).await;
                count_bind(&mut in_flight.shared.queue().stats, &bind, &outcome);
                FinishedCall { id: job.id, outcome }
            }
            QueuedCall::Patch(_, job) | QueuedCall::Other(job) => {
                FinishedCall { id: job.id, outcome: self.run_other(&job).await }
            }
        };
        // The receiver may be closed at shutdown.
        let _ = self.out.send(finished).await;
    }

    async fn report_overridden(&self, overridden: Vec<ApiCall>) {
        for ApiCall { id, .. } in overridden {
            let message = "the pod is being bound".to_owned();
            let outcome = ApiCallOutcome::NotSent { message };
            // The receiver may be closed at shutdown.
            let _ = self.out.send(FinishedCall { id, outcome }).await;
        }
    }

    async fn run_bind(&self, bind: &mut BindOperation, job: &ApiCall) -> ApiCallOutcome {
        let post = http_request::to_http_request(&job.request);
        let pod = loadmaster_framework::api_calls::ApiRequest {
            verb: Verb::Get,
            subresource: loadmaster_api::Str::default(),
            body: None,
            ..job.request.clone()
        };
        loop {
            match bind.next_step() {
                BindStep::Post => bind.handle_post_reply(send(&self.bind, &post).await),
                // With another client: the bind connection may be broken.
                BindStep::Read => bind.handle_read_reply(
                    send(&self.other, &http_request::to_http_request(&pod)).await,
                ),
                BindStep::Pause(pause) => sleep(pause).await,
                BindStep::Finish(outcome) => return outcome,
            }
        }
    }

    async fn run_other(&self, job: &ApiCall) -> ApiCallOutcome {
        let call = http_request::to_http_request(&job.request);
        let mut n_repeats = 0;
        loop {
            match self.other.call_with_retries(&call).await {
                Ok(reply) => return outcome(&reply, job.request.verb, n_repeats > 0),
                Err(error) if !error.may_have_arrived() => {
                    return ApiCallOutcome::NotSent { message: error.to_string() };
                }
                Err(error) => {
                    if !http_request::is_idempotent(job.request.verb) || n_repeats >= N_REPEATS_MAX
                    {
                        return ApiCallOutcome::Unknown { message: error.to_string() };
                    }
                    sleep(bind::pause(n_repeats)).await;
                    n_repeats += 1;
                }
            }
        }
    }
}

fn count_bind(stats: &mut ApiDispatcherStats, bind: &BindOperation, outcome: &ApiCallOutcome) {
    stats.n_unknown_binds += u64::from(bind.was_outcome_unknown());
    let count = match outcome {
        ApiCallOutcome::Done(_) => &mut stats.n_binds_succeeded,
        ApiCallOutcome::BoundElsewhere { .. }
        | ApiCallOutcome::Refused { status: 404 | 409, .. } => &mut stats.n_binds_in_conflict,
        _ => &mut stats.n_binds_failed,
    };
    *count += 1;
}

async fn send(client: &ApiClient, call: &Request) -> BindReply {
    let sent: Result<Reply, SendError> = client.call(call).await;
    match sent {
        Ok(reply) => BindReply::Reply(reply),
        Err(error) => BindReply::Error(error),
    }
}

fn outcome(reply: &Reply, verb: Verb, was_repeated: bool) -> ApiCallOutcome {
    // An earlier attempt has deleted the object.
    let is_already_deleted = verb == Verb::Delete && reply.status == 404 && was_repeated;
    if !reply.is_success() && !is_already_deleted {
        return bind::refused_outcome(reply);
    }
    ApiCallOutcome::Done(loadmaster_stdx::json::from_slice(&reply.body).unwrap_or(Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_delete_that_finds_nothing_succeeds() {
        let not_found =
            Reply { status: 404, retry_after: None, is_protobuf: false, body: "{}".into() };
        assert!(matches!(outcome(&not_found, Verb::Delete, true), ApiCallOutcome::Done(_)));
        assert!(matches!(outcome(&not_found, Verb::Delete, false), ApiCallOutcome::Refused { .. }));
        assert!(matches!(outcome(&not_found, Verb::Get, true), ApiCallOutcome::Refused { .. }));
    }
}
