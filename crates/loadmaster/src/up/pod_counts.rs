//! Counts pods by phase, in a controller that changes nothing.

#![expect(clippy::disallowed_types, reason = "controllers run on another thread")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use loadmaster_controllers::{Cache, Controller, Key, Kind, ObjectChange, ReconcileResult};

/// Number of pods by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PodCounts {
    /// Assigned, but not running yet.
    pub starting: usize,
    pub running: usize,
    /// Running pods that will end by themselves.
    pub ending: usize,
    pub succeeded: usize,
    pub failed: usize,
    /// Number of all object changes so far.
    pub n_changes: u64,
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Running { ends: bool },
    Succeeded,
    Failed,
}

fn phase(pod: &Pod) -> Option<Phase> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match phase {
        Some("Succeeded") => Some(Phase::Succeeded),
        Some("Failed") => Some(Phase::Failed),
        Some("Running") => {
            let mut owners = pod.metadata.owner_references.iter().flatten();
            let is_of_job = owners.any(|owner| owner.kind == "Job");
            let is_terminating = pod.metadata.deletion_timestamp.is_some();
            Some(Phase::Running { ends: is_of_job || is_terminating })
        }
        _ => {
            let is_assigned = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            is_assigned.then_some(Phase::Starting)
        }
    }
}

impl PodCounts {
    fn count(&mut self, pod: &Pod, change: impl Fn(&mut usize)) {
        match phase(pod) {
            Some(Phase::Starting) => change(&mut self.starting),
            Some(Phase::Running { ends }) => {
                change(&mut self.running);
                if ends {
                    change(&mut self.ending);
                }
            }
            Some(Phase::Succeeded) => change(&mut self.succeeded),
            Some(Phase::Failed) => change(&mut self.failed),
            None => {}
        }
    }

    fn handle_change(&mut self, change: &ObjectChange<'_>) {
        self.n_changes += 1;
        if let Some(pod) = change.old::<Pod>() {
            self.count(pod, |n| *n -= 1);
        }
        if let Some(pod) = change.new::<Pod>() {
            self.count(pod, |n| *n += 1);
        }
    }
}

/// Pending pods (`namespace/name`) by the name of a scheduler that does not run in this cluster.
pub(super) type PodsOfOtherSchedulers = BTreeMap<String, BTreeSet<String>>;

#[derive(Default)]
struct CounterState {
    counts: PodCounts,
    /// The scheduler's profiles.
    profiles: BTreeSet<String>,
    unscheduled: PodsOfOtherSchedulers,
}

impl CounterState {
    /// The scheduler name of a pending pod, if no profile has it.
    fn missing_scheduler<'a>(&self, pod: &'a Pod) -> Option<&'a str> {
        let spec = pod.spec.as_ref()?;
        let name = spec.scheduler_name.as_deref()?;
        let is_unscheduled =
            phase(pod).is_none() && !name.is_empty() && !self.profiles.contains(name);
        is_unscheduled.then_some(name)
    }

    fn handle_change(&mut self, change: &ObjectChange<'_>) {
        self.counts.handle_change(change);
        if let Some(pod) = change.old::<Pod>()
            && let Some(name) = self.missing_scheduler(pod)
            && let Some(pods) = self.unscheduled.get_mut(name)
        {
            pods.remove(&full_name(pod));
            if pods.is_empty() {
                self.unscheduled.remove(name);
            }
        }
        if let Some(pod) = change.new::<Pod>()
            && let Some(name) = self.missing_scheduler(pod)
        {
            self.unscheduled.entry(name.to_owned()).or_default().insert(full_name(pod));
        }
    }
}

fn full_name(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let text = |it: &Option<String>| it.clone().unwrap_or_default();
    format!("{}/{}", text(&meta.namespace), text(&meta.name))
}

/// Pod counts that one thread updates and others read.
#[derive(Clone, Default)]
pub(super) struct SharedPodCounts(Arc<Mutex<CounterState>>);

impl SharedPodCounts {
    /// Counts for a scheduler with these profiles.
    pub fn new(profiles: BTreeSet<String>) -> SharedPodCounts {
        SharedPodCounts(Arc::new(Mutex::new(CounterState { profiles, ..CounterState::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, CounterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current counts.
    pub fn current_counts(&self) -> PodCounts {
        self.lock().counts
    }

    /// Pending pods of schedulers that do not run in this cluster.
    pub fn pods_of_other_schedulers(&self) -> PodsOfOtherSchedulers {
        self.lock().unscheduled.clone()
    }

    /// The controller that updates the counts.
    pub fn counting_controller(&self) -> Box<dyn Controller> {
        Box::new(PodCounter(self.clone()))
    }
}

struct PodCounter(SharedPodCounts);

impl Controller for PodCounter {
    fn name(&self) -> &'static str {
        "pod-counter"
    }

    fn watches(&self) -> &'static [Kind] {
        &[
            Kind::Pod,
            Kind::Deployment,
            Kind::ReplicaSet,
            Kind::StatefulSet,
            Kind::DaemonSet,
            Kind::Job,
        ]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
        self.0.lock().handle_change(change);
        Vec::new()
    }

    fn reconcile(&mut self, _: &Key, _: &Cache, _: Timestamp) -> ReconcileResult {
        ReconcileResult::none()
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_controllers::Object;
    use serde_json::json;

    use super::*;

    fn pod(phase: &str, node: &str, owner: &str) -> Object {
        let owners = json!([{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "u"}]);
        let spec = if node.is_empty() {
            json!({"containers": []})
        } else {
            json!({"containers": [], "nodeName": node})
        };
        let pod = json!({
            "metadata": {"name": "a", "namespace": "default", "ownerReferences": owners},
            "spec": spec, "status": {"phase": phase},
        });
        Object::from_json(Kind::Pod, pod).unwrap()
    }

    #[test]
    fn pending_pods_of_other_schedulers_are_listed() {
        let shared = SharedPodCounts::new(BTreeSet::from(["default-scheduler".to_owned()]));
        let pod = |scheduler: &str, node: Option<&str>, phase: &str| {
            let spec = json!({"containers": [], "schedulerName": scheduler, "nodeName": node});
            let metadata = json!({"name": "a", "namespace": "default"});
            let pod = json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}});
            Object::from_json(Kind::Pod, pod).unwrap()
        };
        let steps = [
            (Some(pod("default-scheduler", None, "Pending")), ""),
            (Some(pod("", None, "Pending")), ""),
            (Some(pod("other", None, "Pending")), "other"),
            (Some(pod("another", None, "Pending")), "another"),
            (Some(pod("another", Some("n"), "Pending")), ""),
            (Some(pod("other", None, "")), "other"),
            (Some(pod("other", None, "Failed")), ""),
            (Some(pod("other", None, "Pending")), "other"),
            (None, ""),
        ];
        let mut old = None;
        for (nth, (new, want)) in steps.iter().enumerate() {
            shared.lock().handle_change(&ObjectChange { old, new: new.as_ref() });
            let found = shared.pods_of_other_schedulers();
            let want = Some(*want).filter(|it| !it.is_empty());
            let one = BTreeSet::from(["default/a".to_owned()]);
            let want: PodsOfOtherSchedulers =
                want.map(|it| (it.to_owned(), one)).into_iter().collect();
            assert_eq!(found, want, "{nth}");
            old = new.as_ref();
        }
    }

    #[test]
    fn a_pod_is_counted_once() {
        let mut counts = PodCounts::default();
        let steps = [
            (pod("Pending", "", "Job"), [0; 5]),
            (pod("Pending", "n", "Job"), [1, 0, 0, 0, 0]),
            (pod("Running", "n", "Job"), [0, 1, 1, 0, 0]),
            (pod("Succeeded", "n", "Job"), [0, 0, 0, 1, 0]),
            (pod("Failed", "n", "Job"), [0, 0, 0, 0, 1]),
            (pod("Running", "n", "ReplicaSet"), [0, 1, 0, 0, 0]),
        ];
        let mut old = None;
        for (new, want) in &steps {
            counts.handle_change(&ObjectChange { old, new: Some(new) });
            let PodCounts { starting, running, ending, succeeded, failed, .. } = counts;
            assert_eq!([starting, running, ending, succeeded, failed], *want);
            old = Some(new);
        }
        counts.handle_change(&ObjectChange { old, new: None });
        assert_eq!(counts, PodCounts { n_changes: 7, ..PodCounts::default() });
    }
}
