//! Counts what goes on in the cluster: a controller that only looks.

#![expect(clippy::disallowed_types, reason = "a shell: controllers run on another thread")]

use std::sync::{Arc, Mutex, PoisonError};

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

/// A tally that is kept by one thread and read by another.
#[derive(Clone, Default)]
pub(super) struct SharedTally(Arc<Mutex<Tally>>);

impl SharedTally {
    /// As it is now.
    pub fn get(&self) -> Tally {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).hear(change);
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
