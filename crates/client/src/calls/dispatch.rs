//! Who goes first, how many at a time, and the work itself.

#![expect(clippy::disallowed_types, reason = "the queue is filled from the engine's thread")]

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use loadmaster_framework::request::Verb;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::bind::{self, Answer, Bind, Intent, N_RETRIES_MAX, Step};
use super::{Finished, Job, Outcome, request};
use crate::lane::{Lane, Lanes, Reply, Request, SendError};
use crate::limit::Bucket;

/// A repeatable call whose connection is lost is made again so often.
const N_REPEATS_MAX: u32 = 3;

/// How much is done at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `clientConnection.qps`; negative for no limit.
    pub qps: f32,
    /// `clientConnection.burst`.
    pub burst: i32,
    /// Binds at a time.
    pub n_binds_max: usize,
    /// Other calls at a time.
    pub n_others_max: usize,
    /// Jobs that wait, of each sort.
    pub n_waiting_max: usize,
}

impl Default for Limits {
    /// Without a limit of pace. Five hundred binds at a time are the engine's bind window.
    fn default() -> Limits {
        let (qps, burst) = (-1.0, 1);
        Limits { qps, burst, n_binds_max: 512, n_others_max: 64, n_waiting_max: 100_000 }
    }
}

/// There is no room, or no work is taken any more: the job is given back.
#[derive(Debug, thiserror::Error)]
#[error("no room for another call")]
pub struct Full(pub Box<Job>);

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallsStats {
    /// Binds that wait for their turn.
    pub n_binds_waiting: usize,
    /// Binds on their way.
    pub n_binds_in_flight: usize,
    /// Other jobs that wait for their turn.
    pub n_others_waiting: usize,
    /// Other jobs on their way.
    pub n_others_in_flight: usize,
    /// Jobs that had to wait for the pace of `clientConnection`.
    pub n_throttled: u64,
    /// How long in all.
    pub throttled: Duration,
    /// How long at most.
    pub throttled_longest: Duration,
    /// Binds whose outcome had to be found out by reading.
    pub n_unknown_binds: u64,
}

/// The queue and who works on it. Work in progress is dropped with it.
pub struct Calls {
    shared: Arc<Shared>,
    dispatcher: AbortHandle,
}

struct Shared {
    queue: Mutex<Queue>,
    limits: Limits,
    /// Rung when there is work, or room for it.
    changed: Notify,
    /// Rung when all is done.
    idle: Notify,
}

#[derive(Default)]
struct Queue {
    binds: VecDeque<(Intent, Job)>,
    others: VecDeque<Job>,
    is_closed: bool,
    stats: CallsStats,
}

enum Work {
    Bind(Intent, Job),
    Other(Job),
}

impl Calls {
    /// Begins to work. Must be called within a tokio runtime. When `out` is full, work waits.
    pub fn start(lanes: &Lanes, limits: Limits, out: mpsc::Sender<Finished>) -> Calls {
        let (queue, changed, idle) = (Mutex::default(), Notify::new(), Notify::new());
        let shared = Arc::new(Shared { queue, limits, changed, idle });
        let worker = Worker { bind: lanes.bind.clone(), other: lanes.other.clone(), out };
        let dispatcher = tokio::spawn(dispatch(shared.clone(), worker)).abort_handle();
        Calls { shared, dispatcher }
    }

    /// Takes a job. Does not wait, and may be called from any thread.
    ///
    /// # Errors
    ///
    /// When too many jobs wait already, or after [`Calls::close`].
    pub fn submit(&self, job: Job) -> Result<(), Full> {
        let intent = Intent::of(&job.request);
        let mut queue = self.shared.queue();
        let n_waiting = if intent.is_some() { queue.binds.len() } else { queue.others.len() };
        if queue.is_closed || n_waiting >= self.shared.limits.n_waiting_max {
            return Err(Full(Box::new(job)));
        }
        match intent {
            Some(intent) => queue.binds.push_back((intent, job)),
            None => queue.others.push_back(job),
        }
        drop(queue);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Takes no more jobs. Those there are will be done.
    pub fn close(&self) {
        self.shared.queue().is_closed = true;
    }

    /// Drops all jobs at once, also those on their way: the lease is lost.
    pub fn stop(&self) {
        self.dispatcher.abort();
        let mut queue = self.shared.queue();
        queue.is_closed = true;
        queue.binds.clear();
        queue.others.clear();
    }

    /// Waits until no job waits and none is on its way.
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

    /// What has been done so far.
    pub fn stats(&self) -> CallsStats {
        let queue = self.shared.queue();
        let (n_binds_waiting, n_others_waiting) = (queue.binds.len(), queue.others.len());
        CallsStats { n_binds_waiting, n_others_waiting, ..queue.stats }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.dispatcher.abort();
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        let n_in_flight = self.stats.n_binds_in_flight + self.stats.n_others_in_flight;
        self.binds.is_empty() && self.others.is_empty() && n_in_flight == 0
    }

    fn can_bind(&self, limits: &Limits) -> bool {
        !self.binds.is_empty() && self.stats.n_binds_in_flight < limits.n_binds_max
    }

    fn can_do_other(&self, limits: &Limits) -> bool {
        !self.others.is_empty() && self.stats.n_others_in_flight < limits.n_others_max
    }

    /// The next job, counted as on its way. Binds first.
    fn pick(&mut self, limits: &Limits) -> Option<Work> {
        if self.can_bind(limits) {
            let (intent, job) = self.binds.pop_front()?;
            self.stats.n_binds_in_flight += 1;
            return Some(Work::Bind(intent, job));
        }
        if self.can_do_other(limits) {
            let job = self.others.pop_front()?;
            self.stats.n_others_in_flight += 1;
            return Some(Work::Other(job));
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
    let mut bucket = Bucket::new(shared.limits.qps, shared.limits.burst);
    let mut tasks = JoinSet::new();
    let worker = Arc::new(worker);
    loop {
        while tasks.try_join_next().is_some() {}
        let mut changed = pin!(shared.changed.notified());
        changed.as_mut().enable();
        let has_work = {
            let queue = shared.queue();
            queue.can_bind(&shared.limits) || queue.can_do_other(&shared.limits)
        };
        if !has_work {
            changed.await;
            continue;
        }
        let wait = bucket.take(started.elapsed());
        if !wait.is_zero() {
            let stats = &mut shared.queue().stats;
            stats.n_throttled += 1;
            stats.throttled += wait;
            stats.throttled_longest = stats.throttled_longest.max(wait);
        }
        if !wait.is_zero() {
            sleep(wait).await;
        }
        // Chosen after the wait: a bind that came meanwhile goes first.
        let Some(work) = shared.queue().pick(&shared.limits) else { continue };
        let in_flight =
            InFlight { shared: shared.clone(), is_bind: matches!(work, Work::Bind(..)) };
        let worker = worker.clone();
        tasks.spawn(async move {
            worker.finish(work, &in_flight).await;
            drop(in_flight);
        });
    }
}

/// A job on its way.
struct InFlight {
    shared: Arc<Shared>,
    is_bind: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        if self.is_bind {
            queue.stats.n_binds_in_flight -= 1;
        } else {
            queue.stats.n_others_in_flight -= 1;
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
    bind: Lane,
    other: Lane,
    out: mpsc::Sender<Finished>,
}

impl Worker {
    async fn finish(&self, work: Work, in_flight: &InFlight) {
        let finished = match work {
            Work::Bind(intent, job) => {
                let mut bind = Bind::new(intent);
                let outcome = self.run_bind(&mut bind, &job).await;
                if bind.was_unknown() {
                    in_flight.shared.queue().stats.n_unknown_binds += 1;
                }
                Finished { id: job.id, outcome }
            }
            Work::Other(job) => Finished { id: job.id, outcome: self.run_other(&job).await },
        };
        // Without a listener there is nobody to tell.
        let _ = self.out.send(finished).await;
    }

    async fn run_bind(&self, bind: &mut Bind, job: &Job) -> Outcome {
        let post = request::http(&job.request);
        let pod = loadmaster_framework::request::ApiRequest {
            verb: Verb::Get,
            subresource: loadmaster_api::Str::default(),
            body: None,
            ..job.request.clone()
        };
        loop {
            match bind.step() {
                Step::Post => bind.posted(ask(&self.bind, &post).await),
                // By the other lane: the connection of the first may be what is broken.
                Step::Read => bind.read(ask(&self.other, &request::http(&pod)).await),
                Step::Pause(pause) => sleep(pause).await,
                Step::Finish(outcome) => return outcome,
            }
        }
    }

    async fn run_other(&self, job: &Job) -> Outcome {
        let call = request::http(&job.request);
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
                    return Outcome::NotSent { message: error.to_string() };
                }
                Err(error) => {
                    if !request::is_repeatable(job.request.verb) || n_repeats >= N_REPEATS_MAX {
                        return Outcome::Unknown { message: error.to_string() };
                    }
                    sleep(bind::pause(n_repeats)).await;
                    n_repeats += 1;
                }
            }
        }
    }
}

async fn ask(lane: &Lane, call: &Request) -> Answer {
    let answered: Result<Reply, SendError> = lane.call(call).await;
    match answered {
        Ok(reply) => Answer::Reply(reply),
        Err(error) => Answer::Error(error),
    }
}

/// As client-go: whoever says when to come back is asked again.
fn retry_after(reply: &Reply) -> Option<Duration> {
    reply.retry_after.filter(|_| reply.status == 429 || reply.status >= 500)
}

fn outcome(reply: &Reply, verb: Verb, was_repeated: bool) -> Outcome {
    // What is to be deleted and is not there has been deleted by the attempt before.
    let is_gone = verb == Verb::Delete && reply.status == 404 && was_repeated;
    if !reply.is_success() && !is_gone {
        return bind::refused(reply);
    }
    Outcome::Done(serde_json::from_slice(&reply.body).unwrap_or(Value::Null))
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::request::ApiRequest;

    use super::*;

    fn job(id: u64, is_bind: bool) -> Job {
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
        Job { id, request }
    }

    #[test]
    fn binds_go_first() {
        let limits = Limits { n_binds_max: 2, n_others_max: 1, ..Limits::default() };
        let mut queue = Queue::default();
        for id in 0..3 {
            queue.others.push_back(job(id, false));
            let bind = job(10 + id, true);
            queue.binds.push_back((Intent::of(&bind.request).unwrap(), bind));
        }
        let mut pick = || match queue.pick(&limits)? {
            Work::Bind(intent, job) => {
                assert_eq!((&*intent.uid, &*intent.node), ("u", "a"));
                Some(job.id)
            }
            Work::Other(job) => Some(job.id),
        };
        assert_eq!([pick(), pick(), pick(), pick()], [Some(10), Some(11), Some(0), None]);
    }

    #[test]
    fn what_was_to_be_deleted_may_be_gone() {
        let gone = Reply { status: 404, retry_after: None, is_protobuf: false, body: "{}".into() };
        assert!(matches!(outcome(&gone, Verb::Delete, true), Outcome::Done(_)));
        assert!(matches!(outcome(&gone, Verb::Delete, false), Outcome::Refused { .. }));
        assert!(matches!(outcome(&gone, Verb::Get, true), Outcome::Refused { .. }));
    }
}
