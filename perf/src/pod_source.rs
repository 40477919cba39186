//! Makes the pods of a workload, bare or as they are in a cluster, and the changes of a rollout.
//!
//! Clustered pods are created by controllers and changed by admission: each has an owner, a token volume, environment variables and a hash
//! label, and a third of the controllers are StatefulSets, which give each pod labels of its own. The n-th controller is in the n-th of 50
//! namespaces, modulo 50, with a Service that selects its pods, so that the default constraints of PodTopologySpread apply.

use std::sync::Arc;

use anyhow::Result;
use loadmaster_api::{ReplicaSet, Service, StatefulSet};
use loadmaster_engine::EngineEvent;
use loadmaster_engine::engine::ApiObject;
use loadmaster_framework::World;
use loadmaster_sim::cluster_made_pods::{ControllerKind, N_TEAMS, PodController};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use crate::workload::{self, Kind};

/// What pods are like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Only the fields that the workload is about.
    Bare,
    /// As the API server has them.
    Clustered,
}

/// Makes the pods of a row.
pub struct PodSource {
    kind: Kind,
    shape: Shape,
    /// Of bare pods.
    manifests: Vec<Value>,
    /// Of clustered pods.
    controllers: Vec<PodController>,
    rng: Rng,
    n_made: u32,
    n_changes: u64,
}

impl PodSource {
    /// For clustered pods, adds their controllers and services to the cluster.
    pub fn new(kind: Kind, shape: Shape, add: impl FnMut(Change)) -> Result<PodSource> {
        let mut manifests = workload::manifests(kind);
        let mut rng = Rng::new(1);
        let mut controllers = Vec::new();
        if shape == Shape::Clustered {
            if kind.has_one_template() {
                manifests = in_every_namespace(&manifests[0], "app");
            }
            controllers = controllers_of("train", &manifests, &mut rng);
            Change::of_controllers(&controllers)?.into_iter().for_each(add);
        }
        Ok(PodSource { kind, shape, manifests, controllers, rng, n_made: 0, n_changes: 0 })
    }

    /// The next pod.
    pub fn next_pod(&mut self) -> Value {
        self.n_made += 1;
        let n_groups = self.manifests.len();
        let group = match self.kind {
            Kind::RoundRobin | Kind::Ten | Kind::TenAndUnschedulable => {
                self.n_made as usize % n_groups
            }
            _ => self.rng.below(n_groups as u64) as usize,
        };
        let mut pod = match self.shape {
            Shape::Bare => self.manifests[group].clone(),
            Shape::Clustered => self.controllers[group].create_pod(&mut self.rng),
        };
        let name = format!("train-{}", self.n_made);
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["uid"] = json!(name);
        if self.shape == Shape::Bare {
            pod["metadata"]["name"] = json!(name);
        }
        match self.kind {
            Kind::LabelsDiffer => pod["metadata"]["labels"]["id"] = json!(name),
            Kind::Different => {
                let cpu = 20 + self.n_made % 211;
                pod["metadata"]["labels"]["id"] = json!(name);
                pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
                    json!(format!("{cpu}m"));
            }
            Kind::Pairs => {
                pod["spec"]["containers"][0]["resources"]["requests"] =
                    workload::random_requests(&mut self.rng);
            }
            _ => {}
        }
        pod
    }

    /// A pod with labels, selectors and requests that no other has, and with nothing that a cluster adds.
    pub fn pod_of_new_key(&self, nth: u32) -> Value {
        let mut pod = workload::with_app_label(&self.manifests[0], &format!("new-{nth}"));
        pod["metadata"]["uid"] = json!(format!("new-{nth}"));
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
            json!(format!("{}m", 301 + nth));
        pod
    }

    /// The next change of a rollout: in turn a Service, a ReplicaSet, and the labels of a template.
    pub fn next_change(&mut self) -> Result<Change> {
        let n = self.n_changes;
        self.n_changes += 1;
        let group = self.rng.below(self.manifests.len() as u64) as usize;
        let version = json!(format!("v{n}"));
        if self.shape == Shape::Bare {
            // Nothing that bare pods depend on but their labels, in the namespace that they are in.
            let template = json!({"metadata": {"namespace": "default", "labels": {"app": "other"}}, "spec": {}});
            let other =
                PodController::new(ControllerKind::ReplicaSet, "other", template, &mut self.rng);
            if n % 3 == 2 {
                self.manifests[group]["metadata"]["labels"]["version"] = version;
            }
            return if n.is_multiple_of(3) {
                Change::service(&other)
            } else {
                Change::owner(&other)
            };
        }
        let controller = &mut self.controllers[group];
        if n.is_multiple_of(3) {
            return Change::service(controller);
        }
        let mut template = controller.template().clone();
        if n % 3 == 2 {
            template["metadata"]["labels"]["version"] = version;
        }
        controller.roll_out(&mut self.rng, template);
        Change::owner(controller)
    }
}

/// The manifest with another label `app` for every namespace: a controller cannot be in more than one.
pub fn in_every_namespace(manifest: &Value, app: &str) -> Vec<Value> {
    let other = |n| workload::with_app_label(manifest, &format!("{app}-{n}"));
    std::iter::once(manifest.clone()).chain((1..N_TEAMS).map(other)).collect()
}

/// The controllers of clustered pods with these manifests.
pub fn controllers_of(name: &str, manifests: &[Value], rng: &mut Rng) -> Vec<PodController> {
    let manifests = manifests.iter().enumerate();
    let controllers = manifests.map(|(nth, manifest)| {
        PodController::of_team(nth, &format!("{name}-{nth}"), manifest, rng)
    });
    controllers.collect()
}

/// An object that was added or updated.
pub enum Change {
    Service(Service),
    ReplicaSet(ReplicaSet),
    StatefulSet(StatefulSet),
}

impl Change {
    /// The services and the owners of the controllers' pods are added.
    pub fn of_controllers(controllers: &[PodController]) -> Result<Vec<Change>> {
        let changes = controllers.iter().flat_map(|it| [Change::service(it), Change::owner(it)]);
        changes.collect()
    }

    /// The object as an event.
    pub fn into_event(self) -> EngineEvent {
        EngineEvent::Upsert(match self {
            Change::Service(object) => ApiObject::Service(Arc::new(object)),
            Change::ReplicaSet(object) => ApiObject::ReplicaSet(Arc::new(object)),
            Change::StatefulSet(object) => ApiObject::StatefulSet(Arc::new(object)),
        })
    }

    /// The service of a controller's pods.
    fn service(controller: &PodController) -> Result<Change> {
        Ok(Change::Service(serde_json::from_value(controller.service())?))
    }

    /// The object that owns a controller's pods.
    fn owner(controller: &PodController) -> Result<Change> {
        let owner = controller.owner();
        Ok(match controller.kind() {
            ControllerKind::StatefulSet => Change::StatefulSet(serde_json::from_value(owner)?),
            _ => Change::ReplicaSet(serde_json::from_value(owner)?),
        })
    }

    /// Applies the change.
    pub fn apply(self, world: &mut World) {
        match self {
            Change::Service(object) => world.upsert_listed(Arc::new(object)),
            Change::ReplicaSet(object) => world.upsert_listed(Arc::new(object)),
            Change::StatefulSet(object) => world.upsert_listed(Arc::new(object)),
        }
    }
}
