//! Counts what goes on in the cluster: a controller that only looks.

#![expect(clippy::disallowed_types, reason = "a shell: controllers run on another thread")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use loadmaster_controllers::{Cache, Change, Controller, Key, Kind, Outcome};

/// Pods by how far they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// On a node, and not yet running.
    pub starting: usize,
    pub running: usize,
    /// Those of the running ones that will end by themselves.
    pub ending: usize,
    pub succeeded: usize,
    pub failed: usize,
    /// Whatever happened to anything so far.
    pub n_changes: u64,
}

/// How far a pod is.
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
            let is_going = pod.metadata.deletion_timestamp.is_some();
            Some(Phase::Running { ends: is_of_job || is_going })
        }
        _ => {
            let is_placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            is_placed.then_some(Phase::Starting)
        }
    }
}

impl Tally {
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

    fn hear(&mut self, change: &Change<'_>) {
        self.n_changes += 1;
        if let Some(pod) = change.old::<Pod>() {
            self.count(pod, |n| *n -= 1);
        }
        if let Some(pod) = change.new::<Pod>() {
            self.count(pod, |n| *n += 1);
        }
    }
}

/// Pods, as `namespace/name`, by the name of a scheduler that does not run here.
pub(super) type Unscheduled = BTreeMap<String, BTreeSet<String>>;

#[derive(Default)]
struct Counted {
    tally: Tally,
    /// The scheduler's profiles.
    profiles: BTreeSet<String>,
    unscheduled: Unscheduled,
}

impl Counted {
    /// The scheduler of a pod that is on no node, if it is none of the profiles.
    fn missing_scheduler<'a>(&self, pod: &'a Pod) -> Option<&'a str> {
        let spec = pod.spec.as_ref()?;
        let name = spec.scheduler_name.as_deref()?;
        let waits = phase(pod).is_none() && !name.is_empty() && !self.profiles.contains(name);
        waits.then_some(name)
    }

    fn hear(&mut self, change: &Change<'_>) {
        self.tally.hear(change);
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

/// A tally that is kept by one thread and read by another.
#[derive(Clone, Default)]
pub(super) struct SharedTally(Arc<Mutex<Counted>>);

impl SharedTally {
    /// A tally of a cluster whose scheduler has these profiles.
    pub fn new(profiles: BTreeSet<String>) -> SharedTally {
        SharedTally(Arc::new(Mutex::new(Counted { profiles, ..Counted::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As it is now.
    pub fn get(&self) -> Tally {
        self.lock().tally
    }

    /// Pods that wait for schedulers that do not run here.
    pub fn unscheduled(&self) -> Unscheduled {
        self.lock().unscheduled.clone()
    }

    /// What keeps it.
    pub fn keeper(&self) -> Box<dyn Controller> {
        Box::new(Keeper(self.clone()))
    }
}

struct Keeper(SharedTally);

impl Controller for Keeper {
    fn name(&self) -> &'static str {
        "tally"
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

    fn concerns(&self, change: &Change<'_>, _: &Cache) -> Vec<Key> {
        self.0.lock().hear(change);
        Vec::new()
    }

    fn reconcile(&mut self, _: &Key, _: &Cache, _: Timestamp) -> Outcome {
        Outcome::none()
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
    fn pods_of_schedulers_that_do_not_run_here() {
        let shared = SharedTally::new(BTreeSet::from(["default-scheduler".to_owned()]));
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
            shared.lock().hear(&Change { old, new: new.as_ref() });
            let found = shared.unscheduled();
            let want = Some(*want).filter(|it| !it.is_empty());
            let one = BTreeSet::from(["default/a".to_owned()]);
            let want: Unscheduled = want.map(|it| (it.to_owned(), one)).into_iter().collect();
            assert_eq!(found, want, "{nth}");
            old = new.as_ref();
        }
    }

    #[test]
    fn a_pod_is_counted_once() {
        let mut tally = Tally::default();
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
            tally.hear(&Change { old, new: Some(new) });
            let Tally { starting, running, ending, succeeded, failed, .. } = tally;
            assert_eq!([starting, running, ending, succeeded, failed], *want);
            old = Some(new);
        }
        tally.hear(&Change { old, new: None });
        assert_eq!(tally, Tally { n_changes: 7, ..Tally::default() });
    }
}
