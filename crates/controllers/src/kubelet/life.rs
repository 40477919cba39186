//! The life of a pod on a fake kubelet: what its status should be, from its spec, its annotations and the time. Pure.
//!
//! | annotation (or label) | says | default |
//! | --- | --- | --- |
//! | `loadmaster.io/start-seconds` | so long after it was scheduled it starts | 1 |
//! | `loadmaster.io/init-seconds` | each init container runs for so long | 1 |
//! | `loadmaster.io/run-seconds` | its containers run for so long, then they end | for ever; pods of Jobs 5 to 30 |
//! | `loadmaster.io/exit-code` | how they end | 0 |
//! | `loadmaster.io/stop-seconds` | when it is deleted it takes so long, at most its grace period | 0 |
//!
//! All containers of a pod share its fate. Those that end start again if the restart policy says so, later each time, as kubelets do.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStatus, Pod, PodSpec, PodStatus,
};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::node::seconds;
use crate::meta;
use crate::queue::after;

/// What is to be done about a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing, unless it changes.
    Rest,
    /// Nothing before this moment.
    Wait(Timestamp),
    /// Its status is to be this, as a strategic merge patch.
    Tell(Value),
    /// It is over: delete it with no grace.
    Remove,
}

/// Where the pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the node.
    pub host_ip: String,
    /// Of the pod.
    pub pod_ip: String,
}

/// How the annotations call it.
const START: &str = "loadmaster.io/start-seconds";
const INIT: &str = "loadmaster.io/init-seconds";
const RUN: &str = "loadmaster.io/run-seconds";
const STOP: &str = "loadmaster.io/stop-seconds";
const EXIT_CODE: &str = "loadmaster.io/exit-code";

/// Pods of Jobs of which nothing else is said run for so many milliseconds.
const JOB_MS: (u64, u64) = (5_000, 30_000);

/// Containers that ended start again after the first pause, doubled each time up to the second; as `pkg/kubelet` does.
const RESTART_MIN: Duration = Duration::from_secs(10);
const RESTART_MAX: Duration = Duration::from_secs(300);

/// Whether the pod has an address yet, or needs none any more.
pub fn needs_address(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let has_one = status.is_some_and(|status| status.pod_ip.is_some());
    !has_one && !is_over(pod) && !meta::is_terminating(&pod.metadata)
}

/// What is to be done now.
pub fn next(pod: &Pod, place: &Place, now: Timestamp) -> Step {
    let empty = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&empty.0);
    let status = pod.status.as_ref().unwrap_or(&empty.1);
    let life = Life { pod, spec, status, place, now };
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        return life.stop(deleted.0);
    }
    if is_over(pod) {
        return Step::Rest;
    }
    let Some(started) = status.start_time.as_ref().map(|time| time.0) else { return life.begin() };
    if life.deadline(started).is_some_and(|deadline| deadline <= now) {
        return life.tell(Stage::Failed { reason: "DeadlineExceeded" }, started);
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

struct Life<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    status: &'a PodStatus,
    place: &'a Place,
    now: Timestamp,
}

/// What containers do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// So many init containers are done.
    Init(usize),
    /// Since then, and so many restarts before.
    Running {
        since: Timestamp,
        n_restarts: i32,
    },
    /// They have ended and will start again.
    Waiting {
        since: Timestamp,
        n_restarts: i32,
    },
    Succeeded,
    Failed {
        reason: &'static str,
    },
}

impl Life<'_> {
    fn said(&self, name: &str) -> Option<&str> {
        let metadata = &self.pod.metadata;
        meta::annotation(metadata, name).or_else(|| meta::label(metadata, name))
    }

    /// A number of seconds; what is none counts as not said.
    fn span(&self, name: &str) -> Option<Duration> {
        Duration::try_from_secs_f64(self.said(name)?.parse().ok()?).ok()
    }

    fn exit_code(&self) -> i32 {
        self.said(EXIT_CODE).and_then(|it| it.parse().ok()).unwrap_or(0)
    }

    fn begin(&self) -> Step {
        let scheduled =
            self.status.conditions.iter().flatten().find(|it| it.type_ == "PodScheduled");
        let scheduled = scheduled.and_then(|it| it.last_transition_time.as_ref());
        let made = self.pod.metadata.creation_timestamp.as_ref();
        let since = scheduled.or(made).map_or(self.now, |time| time.0);
        let at = after(since, self.span(START).unwrap_or(Duration::from_secs(1)));
        if at > self.now {
            return Step::Wait(at);
        }
        let stage = if self.n_inits() > 0 { Stage::Init(0) } else { self.running(0) };
        self.tell(stage, self.now)
    }

    fn deadline(&self, started: Timestamp) -> Option<Timestamp> {
        let seconds = u64::try_from(self.spec.active_deadline_seconds?).ok()?;
        Some(after(started, Duration::from_secs(seconds)))
    }

    /// The end of a wait, or the deadline if that comes first.
    fn wait(&self, started: Timestamp, until: Timestamp) -> Step {
        let until = self.deadline(started).map_or(until, |deadline| deadline.min(until));
        if until == Timestamp::MAX { Step::Rest } else { Step::Wait(until) }
    }

    fn n_inits(&self) -> usize {
        self.spec.init_containers.iter().flatten().filter(|it| !is_sidecar(it)).count()
    }

    fn n_inits_done(&self, started: Timestamp) -> usize {
        let each = self.span(INIT).unwrap_or(Duration::from_secs(1));
        let passed = started.duration_until(self.now).as_millis().max(0);
        let each = i128::try_from(each.as_millis()).unwrap_or(i128::MAX);
        let done = passed.checked_div(each).and_then(|n| usize::try_from(n).ok());
        done.unwrap_or(usize::MAX).min(self.n_inits())
    }

    fn initialize(&self, started: Timestamp) -> Step {
        let n_done = self.n_inits_done(started);
        let statuses = self.status.init_container_statuses.iter().flatten();
        let n_told =
            statuses.filter(|it| state(it).is_some_and(|it| it.terminated.is_some())).count();
        if n_told < n_done {
            return self.tell(Stage::Init(n_done), started);
        }
        let each = self.span(INIT).unwrap_or(Duration::from_secs(1));
        let n_next = u32::try_from(n_done + 1).unwrap_or(u32::MAX);
        self.wait(started, after(started, each.saturating_mul(n_next)))
    }

    /// All init containers are done.
    fn run(&self, started: Timestamp) -> Step {
        let first = self.status.container_statuses.iter().flatten().next();
        let n_restarts = first.map_or(0, |it| it.restart_count);
        let running = first.and_then(state).and_then(|it| it.running.as_ref());
        let Some(since) = running.map(|it| it.started_at.as_ref().map_or(started, |at| at.0))
        else {
            return self.restart(started, first, n_restarts);
        };
        if let Some(end) = self.runs_for().map(|span| after(since, span)) {
            return if end > self.now {
                self.keep(started, since, n_restarts, end)
            } else {
                self.end(started, n_restarts)
            };
        }
        self.keep(started, since, n_restarts, Timestamp::MAX)
    }

    /// It runs and goes on running: repairs what somebody else has told of it.
    fn keep(&self, started: Timestamp, since: Timestamp, n_restarts: i32, end: Timestamp) -> Step {
        let is_current = self.status.observed_generation >= self.pod.metadata.generation;
        let is_right = self.status.phase.as_deref() == Some("Running")
            && self.has("ContainersReady")
            && self.has("Ready") == self.passes_gates();
        if is_right && is_current {
            return self.wait(started, end);
        }
        self.tell(Stage::Running { since, n_restarts }, started)
    }

    /// It does not run: for the first time, or again.
    fn restart(
        &self,
        started: Timestamp,
        first: Option<&ContainerStatus>,
        n_restarts: i32,
    ) -> Step {
        let ended =
            first.and_then(|it| it.last_state.as_ref()).and_then(|it| it.terminated.as_ref());
        let Some(ended) = ended.and_then(|it| it.finished_at.as_ref()) else {
            return self.tell(self.running(n_restarts), started);
        };
        let doublings = u32::try_from(n_restarts).unwrap_or(0).min(16);
        let pause = (RESTART_MIN * (1 << doublings)).min(RESTART_MAX);
        let at = after(ended.0, pause);
        if at > self.now {
            return self.wait(started, at);
        }
        self.tell(self.running(n_restarts + 1), started)
    }

    fn running(&self, n_restarts: i32) -> Stage {
        Stage::Running { since: self.now, n_restarts }
    }

    fn runs_for(&self) -> Option<Duration> {
        self.span(RUN).or_else(|| {
            meta::controller_of(&self.pod.metadata).filter(|owner| owner.kind == "Job")?;
            let uid = self.pod.metadata.uid.as_deref().unwrap_or("");
            let chance = Rng::new(0).split(uid).below(JOB_MS.1 - JOB_MS.0);
            Some(Duration::from_millis(JOB_MS.0 + chance))
        })
    }

    /// Its containers have run long enough.
    fn end(&self, started: Timestamp, n_restarts: i32) -> Step {
        let is_ok = self.exit_code() == 0;
        let stage = match self.spec.restart_policy.as_deref() {
            Some("Never") if !is_ok => Stage::Failed { reason: "" },
            Some("Never" | "OnFailure") if is_ok => Stage::Succeeded,
            _ => Stage::Waiting { since: self.now, n_restarts },
        };
        self.tell(stage, started)
    }

    /// It is being deleted; `deadline` is when its grace ends.
    fn stop(&self, deadline: Timestamp) -> Step {
        let grace = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let stop = self.span(STOP).unwrap_or(Duration::ZERO);
        let grace_span = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let early = grace_span.saturating_sub(stop);
        let at = deadline.saturating_sub(jiff::SignedDuration::try_from(early).unwrap_or_default());
        if let Ok(at) = at
            && at > self.now
        {
            return Step::Wait(at);
        }
        // Who holds a finalizer on it (the Job controller) wants to know how it ended.
        if self.pod.metadata.finalizers.iter().flatten().next().is_some() && !is_over(self.pod) {
            let stage = match self.spec.restart_policy.as_deref() {
                Some("Never" | "OnFailure") => Stage::Failed { reason: "" },
                _ => Stage::Succeeded,
            };
            let started = self.status.start_time.as_ref().map_or(self.now, |time| time.0);
            return self.tell(stage, started);
        }
        // With no grace left it is gone as soon as its finalizers are.
        if grace == 0 { Step::Rest } else { Step::Remove }
    }

    /// Whether a condition is told to be true.
    fn has(&self, condition: &str) -> bool {
        let mut conditions = self.status.conditions.iter().flatten();
        conditions.any(|it| it.type_ == condition && it.status == "True")
    }

    fn passes_gates(&self) -> bool {
        self.spec.readiness_gates.iter().flatten().all(|gate| self.has(&gate.condition_type))
    }

    fn tell(&self, stage: Stage, started: Timestamp) -> Step {
        let phase = match stage {
            Stage::Init(_) => "Pending",
            Stage::Running { .. } | Stage::Waiting { .. } => "Running",
            Stage::Succeeded => "Succeeded",
            Stage::Failed { .. } => "Failed",
        };
        let containers = self.spec.containers.iter();
        let containers: Vec<Value> = containers.map(|it| self.container(it, stage)).collect();
        let mut n_before = 0;
        let inits = self.spec.init_containers.iter().flatten();
        let inits: Vec<Value> = inits
            .map(|it| {
                let told = self.init(it, n_before, stage, started);
                n_before += usize::from(!is_sidecar(it));
                told
            })
            .collect();
        let mut status = json!({"phase": phase, "startTime": seconds(started),
            "conditions": self.conditions(stage), "containerStatuses": containers});
        if !inits.is_empty() {
            status["initContainerStatuses"] = inits.into();
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
        if let Stage::Failed { reason } = stage
            && !reason.is_empty()
        {
            status["reason"] = reason.into();
            status["message"] =
                "Pod was active on the node longer than the specified deadline".into();
        }
        Step::Tell(json!({"metadata": {"uid": self.pod.metadata.uid}, "status": status}))
    }

    fn conditions(&self, stage: Stage) -> Vec<Value> {
        let is_running = matches!(stage, Stage::Running { .. });
        let why_not = match stage {
            Stage::Succeeded => "PodCompleted",
            Stage::Failed { .. } => "PodFailed",
            _ => "ContainersNotReady",
        };
        let is_ready = is_running && self.passes_gates();
        let why_not_ready = if is_running { "ReadinessGatesNotReady" } else { why_not };
        let is_initialized = !matches!(stage, Stage::Init(_));
        let is_over = matches!(stage, Stage::Succeeded | Stage::Failed { .. });
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

    /// A container that is no init container.
    fn container(&self, container: &Container, stage: Stage) -> Value {
        let old =
            self.status.container_statuses.iter().flatten().find(|it| it.name == container.name);
        let since = old
            .and_then(state)
            .and_then(|it| it.running.as_ref())
            .and_then(|it| it.started_at.as_ref());
        let since = since.map_or(self.now, |time| time.0);
        let n_restarts = old.map_or(0, |it| it.restart_count);
        let ended = |code: i32| {
            let reason = if code == 0 { "Completed" } else { "Error" };
            json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": seconds(since), "finishedAt": seconds(self.now)}})
        };
        let has_run = old.and_then(state).is_some_and(|it| it.running.is_some());
        // What was told to stop says 143; what was never started or was stopped otherwise says so, too.
        let failed = if self.exit_code() == 0 { 143 } else { self.exit_code() };
        let (state, n_restarts, is_ready) = match stage {
            Stage::Init(_) => (json!({"waiting": {"reason": "PodInitializing"}}), 0, false),
            Stage::Running { since, n_restarts } => {
                (json!({"running": {"startedAt": seconds(since)}}), n_restarts, true)
            }
            Stage::Waiting { n_restarts, .. } => {
                (json!({"waiting": {"reason": "CrashLoopBackOff"}}), n_restarts, false)
            }
            Stage::Succeeded => (ended(0), n_restarts, false),
            Stage::Failed { .. } => (ended(failed), n_restarts, false),
        };
        let mut told = self.told(container, state, n_restarts, is_ready);
        if matches!(stage, Stage::Waiting { .. }) && has_run {
            told["lastState"] = ended(self.exit_code());
        } else if let Some(last) = old.and_then(|it| it.last_state.as_ref()) {
            told["lastState"] = json!(last);
        }
        told
    }

    /// An init container, before which so many are to be done.
    fn init(
        &self,
        container: &Container,
        n_before: usize,
        stage: Stage,
        started: Timestamp,
    ) -> Value {
        let n_done = if let Stage::Init(n_done) = stage { n_done } else { usize::MAX };
        let each = self.span(INIT).unwrap_or(Duration::from_secs(1));
        let at =
            |n: usize| after(started, each.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX)));
        let is_over = matches!(stage, Stage::Succeeded | Stage::Failed { .. });
        let running = json!({"running": {"startedAt": seconds(at(n_before))}});
        let ended = |end: Timestamp| json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": seconds(at(n_before)), "finishedAt": seconds(end)}});
        let (state, is_ready) = match (is_sidecar(container), n_before < n_done) {
            (true, _) if is_over => (ended(self.now), false),
            (true, _) if n_before <= n_done => (running, true),
            (false, true) => (ended(at(n_before + 1)), true),
            (false, false) if n_before == n_done => (running, false),
            _ => (json!({"waiting": {"reason": "PodInitializing"}}), false),
        };
        self.told(container, state, 0, is_ready)
    }

    fn told(&self, container: &Container, state: Value, n_restarts: i32, is_ready: bool) -> Value {
        let uid = self.pod.metadata.uid.as_deref().unwrap_or("");
        let image = container.image.as_deref().unwrap_or("");
        let has_started = state["waiting"].is_null();
        let mut told = json!({"name": container.name, "image": image, "imageID": image, "ready": is_ready,
            "restartCount": n_restarts, "started": state["running"].is_object(), "state": state});
        if has_started {
            told["containerID"] = format!("fake://{uid}/{}/{n_restarts}", container.name).into();
        }
        if let Some(resources) =
            container.resources.as_ref().filter(|it| it.requests.is_some() || it.limits.is_some())
        {
            told["resources"] = json!({"requests": resources.requests, "limits": resources.limits});
            told["allocatedResources"] = json!(resources.requests);
        }
        told
    }
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn state(status: &ContainerStatus) -> Option<&ContainerState> {
    status.state.as_ref()
}
