//! The calls that are waiting, and which of them is next.

use std::collections::VecDeque;
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_framework::api_calls::ApiRequest;
use loadmaster_stdx::Map;

use super::ApiCall;
use super::bind::BindTarget;

/// Rate limit and queue sizes.
#[derive(Clone, Copy, Debug)]
pub struct ApiDispatcherLimits {
    /// `clientConnection.qps`; negative for no limit.
    pub qps: f32,
    /// `clientConnection.burst`.
    pub burst: i32,
    /// Concurrent binds.
    pub n_binds_max: usize,
    /// Concurrent patches of pods' statuses while no pod is being bound, and otherwise: a server that is busy binds pods first.
    pub n_patches_max: usize,
    /// See `n_patches_max`.
    pub n_patches_while_binding_max: usize,
    /// Other concurrent calls.
    pub n_others_max: usize,
    /// Length of the queues of binds, of patches, and of other calls, each.
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
            n_patches_max: 8,
            n_patches_while_binding_max: 2,
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
    /// Patches of pods' statuses in the queue.
    pub n_patches_waiting: usize,
    /// Patches of pods' statuses in flight.
    pub n_patches_in_flight: usize,
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
    /// Binds that succeeded.
    pub n_binds_succeeded: u64,
    /// Binds of pods that were deleted or bound elsewhere meanwhile.
    pub n_binds_in_conflict: u64,
    /// Binds that failed for another reason.
    pub n_binds_failed: u64,
}

/// Calls that are waiting.
#[derive(Default)]
pub(super) struct CallQueue {
    binds: VecDeque<(BindTarget, ApiCall)>,
    patches: VecDeque<(PodName, ApiCall)>,
    others: VecDeque<ApiCall>,
    /// Pods whose status has patches in the queue or in flight.
    patched: Map<PodName, PatchedPod>,
    /// No more calls are accepted.
    pub is_closed: bool,
    /// Calls in flight, and counters.
    pub stats: ApiDispatcherStats,
}

/// Namespace and name.
pub(super) type PodName = (Str, Str);

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

/// A call that is executed next.
pub(super) enum QueuedCall {
    Bind(BindTarget, ApiCall),
    /// A patch of the status of this pod.
    Patch(PodName, ApiCall),
    Other(ApiCall),
}

/// What counts as in flight.
pub(super) enum InFlightKind {
    Bind,
    /// A patch of the status of this pod.
    Patch(PodName),
    Other,
}

impl QueuedCall {
    /// What counts as in flight until it has finished.
    pub fn kind(&self) -> InFlightKind {
        match self {
            QueuedCall::Bind(..) => InFlightKind::Bind,
            QueuedCall::Patch(pod, _) => InFlightKind::Patch(pod.clone()),
            QueuedCall::Other(_) => InFlightKind::Other,
        }
    }
}

impl CallQueue {
    /// Adds a call; returns it if it is not accepted.
    pub fn add(&mut self, job: ApiCall, limits: &ApiDispatcherLimits) -> Result<(), QueueFull> {
        let target = BindTarget::from_request(&job.request);
        let pod = patched_pod(&job.request);
        let n_waiting = match (&target, &pod) {
            (Some(_), _) => self.binds.len(),
            (None, Some(_)) => self.patches.len(),
            (None, None) => self.others.len(),
        };
        if self.is_closed || n_waiting >= limits.n_waiting_max {
            return Err(QueueFull(Box::new(job)));
        }
        match (target, pod) {
            (Some(target), _) => self.add_bind(target, job),
            (None, Some(pod)) => self.add_patch(pod, job),
            (None, None) => self.others.push_back(job),
        }
        Ok(())
    }

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

    fn add_patch(&mut self, pod: PodName, job: ApiCall) {
        self.patched.entry(pod.clone()).or_default().n_patches += 1;
        self.patches.push_back((pod, job));
    }

    /// Queues the pod's bind after the last patch.
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

    /// Removes the first patches that are waiting, as far as binds have overridden them.
    pub fn take_overridden(&mut self) -> Vec<ApiCall> {
        let mut overridden = Vec::new();
        while self.is_next_patch_overridden() {
            let Some((pod, job)) = self.patches.pop_front() else { break };
            if let Some(patched) = self.patched.get_mut(&pod) {
                patched.n_overridden -= 1;
                patched.n_patches -= 1;
            }
            self.forget_if_unpatched(&pod);
            overridden.push(job);
        }
        overridden
    }

    fn is_next_patch_overridden(&self) -> bool {
        let patched = self.patches.front().and_then(|(pod, _)| self.patched.get(pod));
        patched.is_some_and(|patched| patched.n_overridden > 0)
    }

    /// Whether no call is waiting or in flight.
    pub fn is_idle(&self) -> bool {
        let ApiDispatcherStats {
            n_binds_in_flight, n_patches_in_flight, n_others_in_flight, ..
        } = self.stats;
        let n_in_flight = n_binds_in_flight + n_patches_in_flight + n_others_in_flight;
        n_in_flight == 0
            && self.binds.is_empty()
            && self.patches.is_empty()
            && self.others.is_empty()
    }

    /// Whether a call may be sent.
    pub fn has_next(&self, limits: &ApiDispatcherLimits) -> bool {
        self.can_bind(limits) || self.can_do_other(limits) || self.can_patch(limits)
    }

    fn can_bind(&self, limits: &ApiDispatcherLimits) -> bool {
        !self.binds.is_empty() && self.stats.n_binds_in_flight < limits.n_binds_max
    }

    fn can_do_other(&self, limits: &ApiDispatcherLimits) -> bool {
        !self.others.is_empty() && self.stats.n_others_in_flight < limits.n_others_max
    }

    fn can_patch(&self, limits: &ApiDispatcherLimits) -> bool {
        let is_binding = !self.binds.is_empty() || self.stats.n_binds_in_flight > 0;
        let n_max =
            if is_binding { limits.n_patches_while_binding_max } else { limits.n_patches_max };
        !self.patches.is_empty() && self.stats.n_patches_in_flight < n_max
    }

    /// The counters, with the numbers of calls that are waiting.
    pub fn stats(&self) -> ApiDispatcherStats {
        ApiDispatcherStats {
            n_binds_waiting: self.binds.len(),
            n_patches_waiting: self.patches.len(),
            n_others_waiting: self.others.len(),
            ..self.stats
        }
    }

    /// Drops the calls that are waiting, and accepts no more.
    pub fn stop(&mut self) {
        self.is_closed = true;
        self.binds.clear();
        self.patches.clear();
        self.others.clear();
        self.patched.clear();
    }

    /// Removes the next call from the queue and counts it as in flight. Binds first, patches of the status last.
    pub fn pick(&mut self, limits: &ApiDispatcherLimits) -> Option<QueuedCall> {
        if self.can_bind(limits) {
            let (target, job) = self.binds.pop_front()?;
            self.stats.n_binds_in_flight += 1;
            return Some(QueuedCall::Bind(target, job));
        }
        if self.can_do_other(limits) {
            let job = self.others.pop_front()?;
            self.stats.n_others_in_flight += 1;
            return Some(QueuedCall::Other(job));
        }
        if self.can_patch(limits) && !self.is_next_patch_overridden() {
            let (pod, job) = self.patches.pop_front()?;
            if let Some(patched) = self.patched.get_mut(&pod) {
                patched.n_in_flight += 1;
            }
            self.stats.n_patches_in_flight += 1;
            return Some(QueuedCall::Patch(pod, job));
        }
        None
    }

    /// A call that was picked has finished.
    pub fn finish(&mut self, kind: &InFlightKind) {
        match kind {
            InFlightKind::Bind => self.stats.n_binds_in_flight -= 1,
            InFlightKind::Other => self.stats.n_others_in_flight -= 1,
            InFlightKind::Patch(pod) => {
                self.stats.n_patches_in_flight -= 1;
                self.finish_patch(pod);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::api_calls::Verb;

    use super::*;

    fn job(id: u64, verb: Verb, subresource: &str, name: &str) -> ApiCall {
        let request = ApiRequest {
            verb,
            group: "".into(),
            version: "v1".into(),
            resource: "pods".into(),
            namespace: "n".into(),
            name: name.into(),
            subresource: subresource.into(),
            body: Some(serde_json::json!({"metadata": {"uid": "u"}, "target": {"name": "a"}})),
        };
        ApiCall { id, request }
    }

    fn bind(id: u64, name: &str) -> ApiCall {
        job(id, Verb::Create, "binding", name)
    }

    fn patch(id: u64, name: &str) -> ApiCall {
        job(id, Verb::MergePatch, "status", name)
    }

    fn eviction(id: u64, name: &str) -> ApiCall {
        job(id, Verb::Delete, "", name)
    }

    /// A queue and its limits.
    struct Bench {
        queue: CallQueue,
        limits: ApiDispatcherLimits,
    }

    impl Bench {
        fn new(limits: ApiDispatcherLimits, jobs: impl IntoIterator<Item = ApiCall>) -> Bench {
            let mut bench = Bench { queue: CallQueue::default(), limits };
            jobs.into_iter().for_each(|job| bench.queue.add(job, &bench.limits).unwrap());
            bench
        }

        /// Ids of the patches that binds have overridden, and of the calls that are sent.
        fn step(&mut self) -> (Vec<u64>, Vec<u64>) {
            let overridden = self.queue.take_overridden().iter().map(|job| job.id).collect();
            let picked = std::iter::from_fn(|| self.queue.pick(&self.limits));
            let ids = picked.map(|work| match work {
                QueuedCall::Bind(_, job) | QueuedCall::Patch(_, job) | QueuedCall::Other(job) => {
                    job.id
                }
            });
            (overridden, ids.collect())
        }

        fn finish_patch(&mut self, name: &str) {
            self.queue.finish(&InFlightKind::Patch(("n".into(), name.into())));
        }
    }

    #[test]
    fn binds_go_first_and_patches_last() {
        let limits = ApiDispatcherLimits {
            n_binds_max: 2,
            n_others_max: 1,
            n_patches_while_binding_max: 1,
            n_patches_max: 3,
            ..ApiDispatcherLimits::default()
        };
        let jobs = (0..3).flat_map(|id| {
            let name = |kind: &str| format!("{kind}{id}");
            [patch(20 + id, &name("p")), eviction(10 + id, &name("e")), bind(id, &name("b"))]
        });
        let mut bench = Bench::new(limits, jobs);
        assert_eq!(bench.step(), (vec![], vec![0, 1, 10, 20]));
        bench.queue.finish(&InFlightKind::Bind);
        assert_eq!(bench.step(), (vec![], vec![2]));
        bench.queue.finish(&InFlightKind::Bind);
        bench.queue.finish(&InFlightKind::Other);
        assert_eq!(bench.step(), (vec![], vec![11]), "a bind is still in flight");
        bench.queue.finish(&InFlightKind::Bind);
        assert_eq!(bench.step(), (vec![], vec![21, 22]));
        bench.queue.finish(&InFlightKind::Other);
        assert_eq!(bench.step(), (vec![], vec![12]));
        assert!(!bench.queue.is_idle());
    }

    #[test]
    fn a_bind_waits_for_patches_of_its_pod_and_overrides_those_that_are_not_sent() {
        let limits = ApiDispatcherLimits {
            n_patches_max: 1,
            n_patches_while_binding_max: 1,
            ..ApiDispatcherLimits::default()
        };
        let mut bench = Bench::new(limits, [patch(0, "p"), patch(1, "p"), patch(2, "q")]);
        assert_eq!(bench.step(), (vec![], vec![0]));
        for job in [bind(3, "p"), bind(4, "q"), bind(5, "r"), patch(6, "r")] {
            bench.queue.add(job, &bench.limits).unwrap();
        }
        assert_eq!(bench.step(), (vec![1, 2], vec![4, 5]));
        bench.finish_patch("p");
        assert_eq!(bench.step(), (vec![], vec![3, 6]));
        bench.finish_patch("r");
        assert_eq!(bench.step(), (vec![], vec![]));
        assert!(bench.queue.patched.is_empty());
    }

    #[test]
    fn a_full_queue_returns_the_call() {
        let limits = ApiDispatcherLimits { n_waiting_max: 1, ..ApiDispatcherLimits::default() };
        let jobs = [bind(0, "b"), patch(1, "p"), eviction(2, "e")];
        let mut bench = Bench::new(limits, jobs.clone());
        for job in &jobs {
            let refused = bench.queue.add(job.clone(), &bench.limits).unwrap_err();
            assert_eq!(*refused.0, *job);
        }
        bench.queue.stop();
        assert!(bench.queue.is_idle());
        assert!(bench.queue.add(bind(3, "b"), &bench.limits).is_err());
    }
}
