//! The queue of API calls, and the task that executes them.

#![expect(clippy::disallowed_types, reason = "the queue is filled from the engine's thread")]

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_framework::api_calls::{ApiRequest, Verb};
use loadmaster_stdx::Map;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::bind::{self, BindOperation, BindReply, BindStep, BindTarget, N_RETRIES_MAX};
use super::{ApiCall, ApiCallOutcome, FinishedCall, http_request};
use crate::api_client::{ApiClient, ApiClients, Reply, Request, SendError};
use crate::flowcontrol::TokenBucket;

/// How often an idempotent call is repeated when its connection is lost.
const N_REPEATS_MAX: u32 = 3;

/// Rate limit and queue sizes.
#[derive(Clone, Copy, Debug)]
pub struct ApiDispatcherLimits {
    /// `clientConnection.qps`; negative for no limit.
    pub qps: f32,
    /// `clientConnection.burst`.
    pub burst: i32,
    /// Concurrent binds.
    pub n_binds_max: usize,
    /// Other concurrent calls.
    pub n_others_max: usize,
    /// Length of the queue of binds, and of the queue of other calls.
    pub n_waiting_max: usize,
}

impl Default for ApiDispatcherLimits {
    /// No rate limit; as many concurrent binds as the engine's bind window.
    fn default() -> ApiDispatcherLimits {
        let (qps, burst) = (-1.0, 1);
        ApiDispatcherLimits {
            qps,
            burst,
            n_binds_max: 512,
            n_others_max: 64,
            n_waiting_max: 100_000,
        }
    }
}

/// The queue is full or closed; the call is returned.
#[derive(Debug, thiserror::Error)]
#[error("the queue of API calls is full or closed")]
pub struct QueueFull(pub Box<ApiCall>);

/// Queue lengths and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiDispatcherStats {
    /// Binds in the queue.
    pub n_binds_waiting: usize,
    /// Binds in flight.
    pub n_binds_in_flight: usize,
    /// Other calls in the queue.
    pub n_others_waiting: usize,
    /// Other calls in flight.
    pub n_others_in_flight: usize,
    /// Calls that had to wait for the rate limit of `clientConnection`.
    pub n_throttled: u64,
    /// The total time that calls waited for the rate limit.
    pub throttled: Duration,
    /// The longest wait for the rate limit.
    pub throttled_longest: Duration,
    /// Binds whose outcome had to be found by reading the pod.
    pub n_unknown_binds: u64,
}

/// The queue of API calls and the task that executes them. Dropping it cancels calls in flight.
pub struct ApiDispatcher {
    shared: Arc<Shared>,
    dispatcher: AbortHandle,
}

struct Shared {
    queue: Mutex<Queue>,
    limits: ApiDispatcherLimits,
    /// Notified when a call is queued or finished.
    changed: Notify,
    /// Notified when no call is queued or in flight.
    idle: Notify,
}

#[derive(Default)]
struct Queue {
    binds: VecDeque<(BindTarget, ApiCall)>,
    others: VecDeque<ApiCall>,
    /// Pods whose status has patches in the queue or in flight.
    patched: Map<PodName, PatchedPod>,
    is_closed: bool,
    stats: ApiDispatcherStats,
}

/// Namespace and name.
type PodName = (Str, Str);

/// A pod whose status is being patched. Executed after its bind, a patch would set the condition `PodScheduled` of a bound pod to `False`, or be
/// refused because of the nominated node. So its bind is queued when no patch is in flight, and overrides those that are not sent yet, as
/// upstream's does: they would only delay it.
#[derive(Default)]
struct PatchedPod {
    /// In the queue or in flight.
    n_patches: usize,
    /// The first ones of those in the queue, which are not sent.
    n_overridden: usize,
    n_in_flight: usize,
    /// More than one if the pod was deleted, and created again with the same name.
    binds: Vec<(BindTarget, ApiCall)>,
}

/// The pod whose status the request patches.
fn patched_pod(request: &ApiRequest) -> Option<PodName> {
    let is_patch = request.subresource == "status" && request.resource == "pods";
    is_patch.then(|| (request.namespace.clone(), request.name.clone()))
}

enum QueuedCall {
    Bind(BindTarget, ApiCall),
    Other(ApiCall),
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
        let intent = BindTarget::from_request(&job.request);
        let mut queue = self.shared.queue();
        let n_waiting = if intent.is_some() { queue.binds.len() } else { queue.others.len() };
        if queue.is_closed || n_waiting >= self.shared.limits.n_waiting_max {
            return Err(QueueFull(Box::new(job)));
        }
        match intent {
            Some(intent) => queue.add_bind(intent, job),
            None => queue.add_other(job),
        }
        drop(queue);
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
        let mut queue = self.shared.queue();
        queue.is_closed = true;
        queue.binds.clear();
        queue.others.clear();
        queue.patched.clear();
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
        let queue = self.shared.queue();
        let (n_binds_waiting, n_others_waiting) = (queue.binds.len(), queue.others.len());
        ApiDispatcherStats { n_binds_waiting, n_others_waiting, ..queue.stats }
    }
}

impl Drop for ApiDispatcher {
    fn drop(&mut self) {
        self.dispatcher.abort();
    }
}

impl Queue {
    fn add_bind(&mut self, target: BindTarget, job: ApiCall) {
        let pod = (job.request.namespace.clone(), job.request.name.clone());
        match self.patched.get_mut(&pod) {
            Some(patched) => {
                patched.n_overridden = patched.n_patches - patched.n_in_flight;
                match patched.n_in_flight {
                    0 => self.binds.push_back((target, job)),
                    _ => patched.binds.push((target, job)),
                }
            }
            None => self.binds.push_back((target, job)),
        }
    }

    fn add_other(&mut self, job: ApiCall) {
        if let Some(pod) = patched_pod(&job.request) {
            self.patched.entry(pod).or_default().n_patches += 1;
        }
        self.others.push_back(job);
    }

    /// A patch of the pod's status has finished. Queues the pod's bind after the last one.
    fn finish_patch(&mut self, pod: &PodName) {
        let Some(patched) = self.patched.get_mut(pod) else { return };
        patched.n_patches -= 1;
        patched.n_in_flight -= 1;
        if patched.n_patches == patched.n_overridden {
            self.binds.extend(patched.binds.drain(..));
        }
        self.forget_if_unpatched(pod);
    }

    fn forget_if_unpatched(&mut self, pod: &PodName) {
        if self.patched.get(pod).is_some_and(|patched| patched.n_patches == 0) {
            self.patched.remove(pod);
        }
    }

    /// Removes patches from the beginning of the queue that binds have overridden.
    fn take_overridden(&mut self) -> Vec<ApiCall> {
        let mut overridden = Vec::new();
        while self.is_next_overridden() {
            let Some(job) = self.others.pop_front() else { break };
            if let Some(pod) = patched_pod(&job.request) {
                if let Some(patched) = self.patched.get_mut(&pod) {
                    patched.n_overridden -= 1;
                    patched.n_patches -= 1;
                }
                self.forget_if_unpatched(&pod);
            }
            overridden.push(job);
        }
        overridden
    }

    fn is_idle(&self) -> bool {
        let n_in_flight = self.stats.n_binds_in_flight + self.stats.n_others_in_flight;
        self.binds.is_empty() && self.others.is_empty() && n_in_flight == 0
    }

    fn can_bind(&self, limits: &ApiDispatcherLimits) -> bool {
        !self.binds.is_empty() && self.stats.n_binds_in_flight < limits.n_binds_max
    }

    fn can_do_other(&self, limits: &ApiDispatcherLimits) -> bool {
        !self.others.is_empty() && self.stats.n_others_in_flight < limits.n_others_max
    }

    /// Whether a bind has overridden the next call that is not a bind.
    fn is_next_overridden(&self) -> bool {
        let pod = self.others.front().and_then(|job| patched_pod(&job.request));
        let patched = pod.and_then(|pod| self.patched.get(&pod));
        patched.is_some_and(|patched| patched.n_overridden > 0)
    }

    /// Removes the next call from the queue and counts it as in flight. Binds first.
    fn pick(&mut self, limits: &ApiDispatcherLimits) -> Option<QueuedCall> {
        if self.can_bind(limits) {
            let (intent, job) = self.binds.pop_front()?;
            self.stats.n_binds_in_flight += 1;
            return Some(QueuedCall::Bind(intent, job));
        }
        if self.can_do_other(limits) && !self.is_next_overridden() {
            let job = self.others.pop_front()?;
            if let Some(patched) =
                patched_pod(&job.request).and_then(|pod| self.patched.get_mut(&pod))
            {
                patched.n_in_flight += 1;
            }
            self.stats.n_others_in_flight += 1;
            return Some(QueuedCall::Other(job));
        }
        None
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
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
        let has_work = {
            let queue = shared.queue();
            queue.can_bind(&shared.limits) || queue.can_do_other(&shared.limits)
        };
        if !has_work {
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
        let patched = match &work {
            QueuedCall::Bind(..) => None,
            QueuedCall::Other(job) => patched_pod(&job.request),
        };
        let is_bind = matches!(work, QueuedCall::Bind(..));
        let in_flight = InFlight { shared: shared.clone(), is_bind, patched };
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
    is_bind: bool,
    /// The pod whose status the call patches.
    patched: Option<PodName>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        if self.is_bind {
            queue.stats.n_binds_in_flight -= 1;
        } else {
            queue.stats.n_others_in_flight -= 1;
        }
        if let Some(pod) = &self.patched {
            queue.finish_patch(pod);
        }
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
                if bind.was_outcome_unknown() {
                    in_flight.shared.queue().stats.n_unknown_binds += 1;
                }
                FinishedCall { id: job.id, outcome }
            }
            QueuedCall::Other(job) => {
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
        let (mut n_retries, mut n_repeats) = (0, 0);
        loop {
            match self.other.call(&call).await {
                Ok(reply) => match retry_after(&reply) {
                    Some(pause) if n_retries < N_RETRIES_MAX => {
                        n_retries += 1;
                        sleep(pause).await;
                    }
                    _ => return outcome(&reply, job.request.verb, n_repeats > 0),
                },
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

async fn send(client: &ApiClient, call: &Request) -> BindReply {
    let sent: Result<Reply, SendError> = client.call(call).await;
    match sent {
        Ok(reply) => BindReply::Reply(reply),
        Err(error) => BindReply::Error(error),
    }
}

/// As client-go: 429 and 5xx with `Retry-After` are retried.
fn retry_after(reply: &Reply) -> Option<Duration> {
    reply.retry_after.filter(|_| reply.status == 429 || reply.status >= 500)
}

fn outcome(reply: &Reply, verb: Verb, was_repeated: bool) -> ApiCallOutcome {
    // An earlier attempt has deleted the object.
    let is_already_deleted = verb == Verb::Delete && reply.status == 404 && was_repeated;
    if !reply.is_success() && !is_already_deleted {
        return bind::refused_outcome(reply);
    }
    ApiCallOutcome::Done(serde_json::from_slice(&reply.body).unwrap_or(Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, is_bind: bool) -> ApiCall {
        let subresource = if is_bind { "binding" } else { "status" };
        let request = ApiRequest {
            verb: if is_bind { Verb::Create } else { Verb::MergePatch },
            group: "".into(),
            version: "v1".into(),
            resource: "pods".into(),
            namespace: "n".into(),
            name: "p".into(),
            subresource: subresource.into(),
            body: Some(serde_json::json!({"metadata": {"uid": "u"}, "target": {"name": "a"}})),
        };
        ApiCall { id, request }
    }

    #[test]
    fn binds_go_first() {
        let limits = ApiDispatcherLimits {
            n_binds_max: 2,
            n_others_max: 1,
            ..ApiDispatcherLimits::default()
        };
        let mut queue = Queue::default();
        for id in 0..3 {
            queue.others.push_back(job(id, false));
            let bind = job(10 + id, true);
            queue.binds.push_back((BindTarget::from_request(&bind.request).unwrap(), bind));
        }
        let mut pick = || match queue.pick(&limits)? {
            QueuedCall::Bind(intent, job) => {
                assert_eq!((&*intent.uid, &*intent.node), ("u", "a"));
                Some(job.id)
            }
            QueuedCall::Other(job) => Some(job.id),
        };
        assert_eq!([pick(), pick(), pick(), pick()], [Some(10), Some(11), Some(0), None]);
    }

    #[test]
    fn a_bind_waits_for_patches_of_its_pod_and_overrides_those_that_are_not_sent() {
        let limits = ApiDispatcherLimits { n_others_max: 1, ..ApiDispatcherLimits::default() };
        let mut queue = Queue::default();
        let add = |queue: &mut Queue, id: u64, is_bind: bool, name: &str| {
            let mut job = job(id, is_bind);
            job.request.name = name.into();
            match BindTarget::from_request(&job.request) {
                Some(target) => queue.add_bind(target, job),
                None => queue.add_other(job),
            }
        };
        // The ids of the calls that are not sent, and of those that are.
        let step = |queue: &mut Queue, finished: Option<&str>| {
            if let Some(name) = finished {
                queue.stats.n_others_in_flight -= 1;
                queue.finish_patch(&("n".into(), name.into()));
            }
            let overridden: Vec<u64> = queue.take_overridden().iter().map(|job| job.id).collect();
            let picked = std::iter::from_fn(|| queue.pick(&limits)).map(|work| match work {
                QueuedCall::Bind(_, job) | QueuedCall::Other(job) => job.id,
            });
            (overridden, picked.collect::<Vec<u64>>())
        };
        for (id, is_bind, name) in [(0, false, "p"), (1, false, "p"), (2, false, "q")] {
            add(&mut queue, id, is_bind, name);
        }
        assert_eq!(step(&mut queue, None), (vec![], vec![0]));
        add(&mut queue, 3, true, "p");
        add(&mut queue, 4, true, "q");
        add(&mut queue, 5, true, "r");
        add(&mut queue, 6, false, "r");
        assert_eq!(step(&mut queue, None), (vec![1, 2], vec![4, 5]));
        assert_eq!(step(&mut queue, Some("p")), (vec![], vec![3, 6]));
        assert_eq!(step(&mut queue, Some("r")), (vec![], vec![]));
        assert!(queue.patched.is_empty());
    }

    #[test]
    fn a_repeated_delete_that_finds_nothing_succeeds() {
        let not_found =
            Reply { status: 404, retry_after: None, is_protobuf: false, body: "{}".into() };
        assert!(matches!(outcome(&not_found, Verb::Delete, true), ApiCallOutcome::Done(_)));
        assert!(matches!(outcome(&not_found, Verb::Delete, false), ApiCallOutcome::Refused { .. }));
        assert!(matches!(outcome(&not_found, Verb::Get, true), ApiCallOutcome::Refused { .. }));
    }
}
