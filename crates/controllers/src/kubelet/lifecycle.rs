//! The lifecycle of a pod on a simulated kubelet: its status as a function of its spec, its annotations and the time. No I/O.
//!
//! | annotation (or label) | meaning | default |
//! | --- | --- | --- |
//! | `loadmaster.io/start-seconds` | time from scheduling to start | 1 |
//! | `loadmaster.io/init-seconds` | run time of each init container | 1 |
//! | `loadmaster.io/run-seconds` | run time of its containers, then they terminate | unlimited; pods of Jobs 5 to 30 |
//! | `loadmaster.io/exit-code` | exit code of its containers | 0 |
//! | `loadmaster.io/stop-seconds` | time from deletion to termination, at most its grace period | the longest `preStop.sleep`, or 0 |
//!
//! All containers of a pod behave alike. Terminated ones are restarted according to the restart policy, with kubelets' exponential backoff.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStatus, Pod, PodSpec, PodStatus,
};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::node::seconds;
use crate::meta;
use crate::work_queue::saturating_add;

/// The next action of the kubelet for a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PodAction {
    /// Nothing until the pod changes.
    Nothing,
    /// Nothing until this time.
    WaitUntil(Timestamp),
    /// Update the status with this strategic merge patch.
    PatchStatus(Value),
    /// Delete the pod with grace period 0.
    Delete,
}

/// IP addresses for the status of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAddresses {
    /// IP address of the node.
    pub host_ip: String,
    /// IP address of the pod.
    pub pod_ip: String,
}

/// The annotations.
const START: &str = "loadmaster.io/start-seconds";
const INIT: &str = "loadmaster.io/init-seconds";
const RUN: &str = "loadmaster.io/run-seconds";
const STOP: &str = "loadmaster.io/stop-seconds";
const EXIT_CODE: &str = "loadmaster.io/exit-code";

/// Default run time of pods of Jobs: a random number of milliseconds in this range.
const JOB_MS: (u64, u64) = (5_000, 30_000);

/// Restart backoff of containers: doubled from the minimum to the maximum, as in `pkg/kubelet`.
const RESTART_MIN: Duration = Duration::from_secs(10);
const RESTART_MAX: Duration = Duration::from_secs(300);

/// Whether the pod needs an IP address: it has none yet and is not terminated or terminating.
pub fn needs_pod_ip(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let has_one = status.is_some_and(|status| status.pod_ip.is_some());
    !has_one && !is_over(pod) && !meta::is_terminating(&pod.metadata)
}

/// The action that is due now.
pub fn next_pod_action(pod: &Pod, place: &PodAddresses, now: Timestamp) -> PodAction {
    let empty = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&empty.0);
    let status = pod.status.as_ref().unwrap_or(&empty.1);
    let life = PodLifecycle { pod, spec, status, place, now };
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        return life.stop(deleted.0);
    }
    if is_over(pod) {
        return PodAction::Nothing;
    }
    let Some(started) = status.start_time.as_ref().map(|time| time.0) else { return life.start() };
    if life.deadline(started).is_some_and(|deadline| deadline <= now) {
        return life.patch_status(ContainersState::Failed { reason: "DeadlineExceeded" }, started);
    }
    if life.n_inits_done(started) < life.n_inits() {
        return life.initialize(started);
    }
    life.run(started)
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

struct PodLifecycle<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    status: &'a PodStatus,
    place: &'a PodAddresses,
    now: Timestamp,
}

/// The state of all containers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ContainersState {
    /// This number of init containers have completed.
    Init(usize),
    /// The containers are running.
    Running {
        since: Timestamp,
        n_restarts: i32,
    },
    /// They have terminated and will be restarted.
    Waiting {
        since: Timestamp,
        n_restarts: i32,
    },
    Succeeded,
    Failed {
        reason: &'static str,
    },
}

impl PodLifecycle<'_> {
    fn setting(&self, name: &str) -> Option<&str> {
        let metadata = &self.pod.metadata;
        meta::annotation_value(metadata, name).or_else(|| meta::label_value(metadata, name))
    }

    /// A number of seconds; an invalid value counts as absent.
    fn duration_setting(&self, name: &str) -> Option<Duration> {
        Duration::try_from_secs_f64(self.setting(name)?.parse().ok()?).ok()
    }

    fn exit_code(&self) -> i32 {
        self.setting(EXIT_CODE).and_then(|it| it.parse().ok()).unwrap_or(0)
    }

    fn start(&self) -> PodAction {
        let scheduled =
            self.status.conditions.iter().flatten().find(|it| it.type_ == "PodScheduled");
        let scheduled = scheduled.and_then(|it| it.last_transition_time.as_ref());
        let made = self.pod.metadata.creation_timestamp.as_ref();
        let since = scheduled.or(made).map_or(self.now, |time| time.0);
        let at =
            saturating_add(since, self.duration_setting(START).unwrap_or(Duration::from_secs(1)));
        if at > self.now {
            return PodAction::WaitUntil(at);
        }
        let stage = if self.n_inits() > 0 { ContainersState::Init(0) } else { self.running(0) };
        self.patch_status(stage, self.now)
    }

    fn deadline(&self, started: Timestamp) -> Option<Timestamp> {
        let seconds = u64::try_from(self.spec.active_deadline_seconds?).ok()?;
        Some(saturating_add(started, Duration::from_secs(seconds)))
    }

    /// The end of a wait, or the deadline if that comes first.
    fn wait(&self, started: Timestamp, until: Timestamp) -> PodAction {
        let until = self.deadline(started).map_or(until, |deadline| deadline.min(until));
        if until == Timestamp::MAX { PodAction::Nothing } else { PodAction::WaitUntil(until) }
    }

    fn n_inits(&self) -> usize {
        self.spec.init_containers.iter().flatten().filter(|it| !is_sidecar(it)).count()
    }

    fn n_inits_done(&self, started: Timestamp) -> usize {
        let each = self.duration_setting(INIT).unwrap_or(Duration::from_secs(1));
        let passed = started.duration_until(self.now).as_millis().max(0);
        let each = i128::try_from(each.as_millis()).unwrap_or(i128::MAX);
        let done = passed.checked_div(each).and_then(|n| usize::try_from(n).ok());
        done.unwrap_or(usize::MAX).min(self.n_inits())
    }

    fn initialize(&self, started: Timestamp) -> PodAction {
        let n_done = self.n_inits_done(started);
        let statuses = self.status.init_container_statuses.iter().flatten();
        let n_reported =
            statuses.filter(|it| state(it).is_some_and(|it| it.terminated.is_some())).count();
        if n_reported < n_done {
            return self.patch_status(ContainersState::Init(n_done), started);
        }
        let each = self.duration_setting(INIT).unwrap_or(Duration::from_secs(1));
        let n_next = u32::try_from(n_done + 1).unwrap_or(u32::MAX);
        self.wait(started, saturating_add(started, each.saturating_mul(n_next)))
    }

    /// All init containers are done.
    fn run(&self, started: Timestamp) -> PodAction {
        let first = self.status.container_statuses.iter().flatten().next();
        let n_restarts = first.map_or(0, |it| it.restart_count);
        let running = first.and_then(state).and_then(|it| it.running.as_ref());
        let Some(since) = running.map(|it| it.started_at.as_ref().map_or(started, |at| at.0))
        else {
            return self.restart(started, first, n_restarts);
        };
        if let Some(end) = self.run_duration().map(|span| saturating_add(since, span)) {
            return if end > self.now {
                self.keep_running(started, since, n_restarts, end)
            } else {
                self.finish(started, n_restarts)
            };
        }
        self.keep_running(started, since, n_restarts, Timestamp::MAX)
    }

    /// It keeps running: corrects the status if another writer changed it.
    fn keep_running(
        &self,
        started: Timestamp,
        since: Timestamp,
        n_restarts: i32,
        end: Timestamp,
    ) -> PodAction {
        let is_current = self.status.observed_generation >= self.pod.metadata.generation;
        let n = |list: Option<usize>| list.unwrap_or(0);
        let n_ephemeral = n(self.spec.ephemeral_containers.as_ref().map(Vec::len));
        let is_right = self.status.phase.as_deref() == Some("Running")
            && n(self.status.ephemeral_container_statuses.as_ref().map(Vec::len)) == n_ephemeral
            && self.has("ContainersReady")
            && self.has("Ready") == self.passes_gates();
        if is_right && is_current {
            return self.wait(started, end);
        }
        self.patch_status(ContainersState::Running { since, n_restarts }, started)
    }

    /// It is not running: starts it, or restarts it after the backoff.
    fn restart(
        &self,
        started: Timestamp,
        first: Option<&ContainerStatus>,
        n_restarts: i32,
    ) -> PodAction {
        let ended =
            first.and_then(|it| it.last_state.as_ref()).and_then(|it| it.terminated.as_ref());
        let Some(ended) = ended.and_then(|it| it.finished_at.as_ref()) else {
            return self.patch_status(self.running(n_restarts), started);
        };
        let doublings = u32::try_from(n_restarts).unwrap_or(0).min(16);
        let pause = (RESTART_MIN * (1 << doublings)).min(RESTART_MAX);
        let at = saturating_add(ended.0, pause);
        if at > self.now {
            return self.wait(started, at);
        }
        self.patch_status(self.running(n_restarts + 1), started)
    }

    fn running(&self, n_restarts: i32) -> ContainersState {
        ContainersState::Running { since: self.now, n_restarts }
    }

    fn run_duration(&self) -> Option<Duration> {
        self.duration_setting(RUN).or_else(|| {
            meta::controller_of(&self.pod.metadata).filter(|owner| owner.kind == "Job")?;
            let uid = self.pod.metadata.uid.as_deref().unwrap_or("");
            let chance = Rng::new(0).split(uid).below(JOB_MS.1 - JOB_MS.0);
            Some(Duration::from_millis(JOB_MS.0 + chance))
        })
    }

    /// Its containers have run long enough.
    fn finish(&self, started: Timestamp, n_restarts: i32) -> PodAction {
        let is_ok = self.exit_code() == 0;
        let stage = match self.spec.restart_policy.as_deref() {
            Some("Never") if !is_ok => ContainersState::Failed { reason: "" },
            Some("Never" | "OnFailure") if is_ok => ContainersState::Succeeded,
            _ => ContainersState::Waiting { since: self.now, n_restarts },
        };
        self.patch_status(stage, started)
    }

    /// It is being deleted; `deadline` is when its grace ends.
    fn stop(&self, deadline: Timestamp) -> PodAction {
        let grace = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let stop = self.duration_setting(STOP).unwrap_or_else(|| self.pre_stop_sleep());
        let grace_span = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let early = grace_span.saturating_sub(stop);
        let at = deadline.saturating_sub(jiff::SignedDuration::try_from(early).unwrap_or_default());
        if let Ok(at) = at
            && at > self.now
        {
            return PodAction::WaitUntil(at);
        }
        // The owner of a finalizer (the Job controller) needs the final status.
        if self.pod.metadata.finalizers.iter().flatten().next().is_some() && !is_over(self.pod) {
            let stage = match self.spec.restart_policy.as_deref() {
                Some("Never" | "OnFailure") => ContainersState::Failed { reason: "" },
                _ => ContainersState::Succeeded,
            };
            let started = self.status.start_time.as_ref().map_or(self.now, |time| time.0);
            return self.patch_status(stage, started);
        }
        // With grace period 0 the API server removes it with its last finalizer.
        if grace == 0 { PodAction::Nothing } else { PodAction::Delete }
    }

    /// The longest `sleep` of a preStop hook: the hooks of all containers run at the same time.
    fn pre_stop_sleep(&self) -> Duration {
        let hooks =
            self.spec.containers.iter().filter_map(|it| it.lifecycle.as_ref()?.pre_stop.as_ref());
        let sleeps = hooks.filter_map(|hook| u64::try_from(hook.sleep.as_ref()?.seconds).ok());
        Duration::from_secs(sleeps.max().unwrap_or(0))
    }

    /// Whether a condition is true in the status.
    fn has(&self, condition: &str) -> bool {
        let mut conditions = self.status.conditions.iter().flatten();
        conditions.any(|it| it.type_ == condition && it.status == "True")
    }

    fn passes_gates(&self) -> bool {
        self.spec.readiness_gates.iter().flatten().all(|gate| self.has(&gate.condition_type))
    }

    fn patch_status(&self, stage: ContainersState, started: Timestamp) -> PodAction {
        let phase = match stage {
            ContainersState::Init(_) => "Pending",
            ContainersState::Running { .. } | ContainersState::Waiting { .. } => "Running",
            ContainersState::Succeeded => "Succeeded",
            ContainersState::Failed { .. } => "Failed",
        };
        let containers = self.spec.containers.iter();
        let containers: Vec<Value> =
            containers.map(|it| self.main_container_status(it, stage)).collect();
        let mut n_before = 0;
        let inits = self.spec.init_containers.iter().flatten();
        let inits: Vec<Value> = inits
            .map(|it| {
                let status = self.init_container_status(it, n_before, stage, started);
                n_before += usize::from(!is_sidecar(it));
                status
            })
            .collect();
        let mut status = json!({"phase": phase, "startTime": seconds(started),
            "conditions": self.conditions(stage), "containerStatuses": containers});
        if !inits.is_empty() {
            status["initContainerStatuses"] = inits.into();
        }
        let ephemeral = self.ephemeral_container_statuses(stage);
        if !ephemeral.is_empty() {
            status["ephemeralContainerStatuses"] = ephemeral.into();
        }
        if let Some(generation) = self.pod.metadata.generation {
            status["observedGeneration"] = generation.into();
        }
        if !self.place.host_ip.is_empty() && self.status.host_ip.is_none() {
            status["hostIP"] = self.place.host_ip.as_str().into();
            status["hostIPs"] = json!([{"ip": self.place.host_ip}]);
        }
        if !self.place.pod_ip.is_empty() && self.status.pod_ip.is_none() {
            status["podIP"] = self.place.pod_ip.as_str().into();
            status["podIPs"] = json!([{"ip": self.place.pod_ip}]);
        }
        if let ContainersState::Failed { reason } = stage
            && !reason.is_empty()
        {
            status["reason"] = reason.into();
            status["message"] =
                "Pod was active on the node longer than the specified deadline".into();
        }
        PodAction::PatchStatus(
            json!({"metadata": {"uid": self.pod.metadata.uid}, "status": status}),
        )
    }

    fn conditions(&self, stage: ContainersState) -> Vec<Value> {
        let is_running = matches!(stage, ContainersState::Running { .. });
        let why_not = match stage {
            ContainersState::Succeeded => "PodCompleted",
            ContainersState::Failed { .. } => "PodFailed",
            _ => "ContainersNotReady",
        };
        let is_ready = is_running && self.passes_gates();
        let why_not_ready = if is_running { "ReadinessGatesNotReady" } else { why_not };
        let is_initialized = !matches!(stage, ContainersState::Init(_));
        let is_over = matches!(stage, ContainersState::Succeeded | ContainersState::Failed { .. });
        let conditions = [
            ("PodReadyToStartContainers", !is_over, ""),
            ("Initialized", is_initialized, "ContainersNotInitialized"),
            ("Ready", is_ready, why_not_ready),
            ("ContainersReady", is_running, why_not),
        ];
        let all = conditions.into_iter().map(|(kind, is_true, why_not)| {
            let status = if is_true { "True" } else { "False" };
            let same = |it: &&k8s_openapi::api::core::v1::PodCondition| it.type_ == kind && it.status == status;
            let old = self.status.conditions.iter().flatten().find(same);
            let since = old.and_then(|it| it.last_transition_time.as_ref()).map_or(self.now, |time| time.0);
            let reason = (!is_true && !why_not.is_empty()).then_some(why_not);
            json!({"type": kind, "status": status, "reason": reason, "lastTransitionTime": seconds(since),
                "observedGeneration": self.pod.metadata.generation})
        });
        all.collect()
    }

    /// The status of a container that is not an init container.
    fn main_container_status(&self, container: &Container, stage: ContainersState) -> Value {
        let old =
            self.status.container_statuses.iter().flatten().find(|it| it.name == container.name);
        let since = old
            .and_then(state)
            .and_then(|it| it.running.as_ref())
            .and_then(|it| it.started_at.as_ref());
        let since = since.map_or(self.now, |time| time.0);
        let n_restarts = old.map_or(0, |it| it.restart_count);
        let ended = |code: i32| ended(code, since, self.now);
        let has_run = old.and_then(state).is_some_and(|it| it.running.is_some());
        // Containers that were stopped or never started exit with 143 (SIGTERM).
        let failed = if self.exit_code() == 0 { 143 } else { self.exit_code() };
        let (state, n_restarts, is_ready) = match stage {
            ContainersState::Init(_) => {
                (json!({"waiting": {"reason": "PodInitializing"}}), 0, false)
            }
            ContainersState::Running { since, n_restarts } => {
                (json!({"running": {"startedAt": seconds(since)}}), n_restarts, true)
            }
            ContainersState::Waiting { n_restarts, .. } => {
                (json!({"waiting": {"reason": "CrashLoopBackOff"}}), n_restarts, false)
            }
            ContainersState::Succeeded => (ended(0), n_restarts, false),
            ContainersState::Failed { .. } => (ended(failed), n_restarts, false),
        };
        let mut status = self.container_status(container, state, n_restarts, is_ready);
        if matches!(stage, ContainersState::Waiting { .. }) && has_run {
            status["lastState"] = ended(self.exit_code());
        } else if let Some(last) = old.and_then(|it| it.last_state.as_ref()) {
            status["lastState"] = json!(last);
        }
        status
    }

    /// The status of an init container that runs after `n_before` others.
    fn init_container_status(
        &self,
        container: &Container,
        n_before: usize,
        stage: ContainersState,
        started: Timestamp,
    ) -> Value {
        let n_done = if let ContainersState::Init(n_done) = stage { n_done } else { usize::MAX };
        let each = self.duration_setting(INIT).unwrap_or(Duration::from_secs(1));
        let at = |n: usize| {
            saturating_add(started, each.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX)))
        };
        let is_over = matches!(stage, ContainersState::Succeeded | ContainersState::Failed { .. });
        let running = json!({"running": {"startedAt": seconds(at(n_before))}});
        let ended = |end: Timestamp| json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": seconds(at(n_before)), "finishedAt": seconds(end)}});
        let (state, is_ready) = match (is_sidecar(container), n_before < n_done) {
            (true, _) if is_over => (ended(self.now), false),
            (true, _) if n_before <= n_done => (running, true),
            (false, true) => (ended(at(n_before + 1)), true),
            (false, false) if n_before == n_done => (running, false),
            _ => (json!({"waiting": {"reason": "PodInitializing"}}), false),
        };
        self.container_status(container, state, 0, is_ready)
    }

    /// The statuses of ephemeral containers, which `kubectl debug` waits for: they run as soon as they are added, until the pod ends.
    fn ephemeral_container_statuses(&self, stage: ContainersState) -> Vec<Value> {
        let is_over = matches!(stage, ContainersState::Succeeded | ContainersState::Failed { .. });
        let statuses = self.spec.ephemeral_containers.iter().flatten().map(|it| {
            let mut all = self.status.ephemeral_container_statuses.iter().flatten();
            let running = all.find(|old| old.name == it.name).and_then(state);
            let running = running.and_then(|it| it.running.as_ref()?.started_at.as_ref());
            let since = running.map_or(self.now, |time| time.0);
            let state = match is_over {
                false => json!({"running": {"startedAt": seconds(since)}}),
                true => ended(0, since, self.now),
            };
            let container = Container {
                name: it.name.clone(),
                image: it.image.clone(),
                ..Container::default()
            };
            self.container_status(&container, state, 0, false)
        });
        statuses.collect()
    }

    fn container_status(
        &self,
        container: &Container,
        state: Value,
        n_restarts: i32,
        is_ready: bool,
    ) -> Value {
        let uid = self.pod.metadata.uid.as_deref().unwrap_or("");
        let image = container.image.as_deref().unwrap_or("");
        let has_started = state["waiting"].is_null();
        let mut status = json!({"name": container.name, "image": image, "imageID": image, "ready": is_ready,
            "restartCount": n_restarts, "started": state["running"].is_object(), "state": state});
        if has_started {
            status["containerID"] = format!("fake://{uid}/{}/{n_restarts}", container.name).into();
        }
        if let Some(resources) =
            container.resources.as_ref().filter(|it| it.requests.is_some() || it.limits.is_some())
        {
            status["resources"] =
                json!({"requests": resources.requests, "limits": resources.limits});
            status["allocatedResources"] = json!(resources.requests);
        }
        status
    }
}

fn ended(code: i32, since: Timestamp, end: Timestamp) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": seconds(since), "finishedAt": seconds(end)}})
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn state(status: &ContainerStatus) -> Option<&ContainerState> {
    status.state.as_ref()
}
