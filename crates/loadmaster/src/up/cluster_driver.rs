//! Runs the workload of a cluster over time, and detects when the cluster has settled.

#![expect(clippy::disallowed_types, reason = "a running cluster has a clock")]

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::Method;
use loadmaster_daemon::run::QueryOutcome;
use loadmaster_stdx::SortCompactly as _;
use serde_json::json;

use super::cluster::LocalCluster;
use super::cluster_view::ClusterView;
use super::pod_counts::PodCounts;
use super::sample_workload::{Action, Churn, Millis};

/// How far ahead the churn is planned.
const PLAN_AHEAD_MS: Millis = 1_000;

/// The cluster counts as settled when nothing has changed for this time.
const SETTLE_TIME: Duration = Duration::from_millis(1_500);

/// Time between two snapshots of the scheduler: while something changes, and while nothing does.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(200);
const IDLE_SNAPSHOT_INTERVAL: Duration = Duration::from_millis(500);

/// A cluster with its workload.
pub(super) struct ClusterDriver {
    pub cluster: LocalCluster,
    actions: VecDeque<(Millis, Action)>,
    churn: Option<Churn>,
    started: Instant,
    /// The last pod counts, and when they last changed.
    last: (PodCounts, Instant),
    snapshot: Snapshot,
    /// Messages of actions that the API server rejected.
    pub rejected_actions: Vec<String>,
}

/// The last snapshot of the scheduler. Snapshots cost time of the scheduler, so they are not taken in every step.
struct Snapshot {
    view: Rc<ClusterView>,
    at: Instant,
    /// The pod counts at that time.
    counts: PodCounts,
    n_decisions: u64,
}

/// The state of the cluster at one point in time.
pub(super) struct ClusterState {
    pub since: Duration,
    pub view: Rc<ClusterView>,
    pub counts: PodCounts,
    pub n_decisions: u64,
    pub deciding: Duration,
    /// Nothing will change any more without external input.
    pub is_settled: bool,
}

impl ClusterState {
    /// Number of pods without a node.
    pub fn n_pending(&self) -> usize {
        self.view.n_pending()
    }
}

impl ClusterDriver {
    pub fn new(
        cluster: LocalCluster,
        arrivals: Vec<(Millis, Action)>,
        churn: Option<Churn>,
    ) -> ClusterDriver {
        let started = Instant::now();
        ClusterDriver {
            cluster,
            actions: arrivals.into(),
            churn,
            started,
            last: (PodCounts::default(), started),
            snapshot: Snapshot {
                view: Rc::default(),
                at: started,
                counts: PodCounts::default(),
                n_decisions: 0,
            },
            rejected_actions: Vec::new(),
        }
    }

    /// Runs the actions that are due, and returns the current state; `None` when the scheduler has ended.
    pub fn step(&mut self) -> Option<ClusterState> {
        let since = self.started.elapsed();
        let now_ms = Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX);
        if let Some(churn) = &mut self.churn {
            let mut planned = churn.plan_actions(now_ms.saturating_add(PLAN_AHEAD_MS));
            planned.sort_compactly_by_key(|(at_ms, _)| *at_ms);
            self.actions.extend(planned);
        }
        while self.actions.front().is_some_and(|(at_ms, _)| *at_ms <= now_ms) {
            if let Some((_, action)) = self.actions.pop_front() {
                self.carry_out(action);
                // Its effects are yet to come.
                self.last.1 = Instant::now();
            }
        }
        let counts = self.cluster.counts();
        if counts != self.last.0 {
            self.last = (counts, Instant::now());
        }
        let (n_decisions, seconds) = self.cluster.decision_count_and_seconds();
        let is_same = counts == self.snapshot.counts && n_decisions == self.snapshot.n_decisions;
        if self.snapshot.at.elapsed()
            >= if is_same { IDLE_SNAPSHOT_INTERVAL } else { SNAPSHOT_INTERVAL }
        {
            match self.cluster.query_view() {
                QueryOutcome::Completed(mut view) => {
                    view.add_pods_of_other_schedulers(&self.cluster.pods_of_other_schedulers());
                    let (view, at) = (Rc::new(view), Instant::now());
                    self.snapshot = Snapshot { view, at, counts, n_decisions };
                }
                QueryOutcome::Busy => {}
                QueryOutcome::Ended => return None,
            }
        }
        let Snapshot { view, at, .. } = &self.snapshot;
        let is_idle = counts.starting == 0 && counts.ending == 0 && view.n_busy == 0;
        let is_workload_done = self.churn.is_none() && self.actions.is_empty();
        Some(ClusterState {
            since,
            // A snapshot must be newer than the last change.
            is_settled: is_workload_done
                && is_idle
                && at.saturating_duration_since(self.last.1) >= SETTLE_TIME,
            view: view.clone(),
            counts,
            n_decisions,
            deciding: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        })
    }

    /// Whether Ctrl-C or SIGTERM was received.
    pub fn is_stop_requested(&self) -> bool {
        self.cluster.is_stop_requested()
    }

    fn carry_out(&mut self, action: Action) {
        let api = &mut self.cluster.api;
        let done = match &action {
            Action::Create(object) => api.create(object),
            Action::Scale { namespace, name, replicas } => {
                let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale");
                api.merge_patch(&path, &json!({"spec": {"replicas": replicas}}))
            }
            Action::RemoveNode(name) => {
                api.call(Method::DELETE, &format!("/api/v1/nodes/{name}"), None)
            }
        };
        if let Err(error) = done
            && !error.already_exists()
        {
            self.rejected_actions.push(error.message);
        }
    }
}
