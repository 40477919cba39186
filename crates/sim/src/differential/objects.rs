//! Random nodes, and random objects that select pods.

use std::marker::PhantomData;
use std::sync::Arc;

use loadmaster_api::{
    Namespace, Node, ReplicaSet, ReplicationController, Service, StatefulSet, Str,
};
use loadmaster_framework::World;
use loadmaster_framework::cluster_objects::{ClusterObjects, ListedObject};
use loadmaster_stdx::{Rng, decode_erased};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::pods::{APPS, NAMESPACES, OWNER_NAMES, random_selector};

/// A node with random labels, taints, resources and images; `n_racks` values of the label `rack` occur.
pub(super) fn random_node(rng: &mut Rng, name: &str, n_racks: u64) -> Option<Node> {
    let mut labels = json!({"kubernetes.io/hostname": name, "disk": *rng.pick(&["ssd", "hdd"])});
    if !rng.one_in(12) {
        labels["topology.kubernetes.io/zone"] =
            json!(*rng.pick(&["z1", "z2", "z3", "z3", "z2", "z1", "z1", ""]));
    }
    if !rng.one_in(6) {
        labels["rack"] = json!(format!("r{}", rng.below(n_racks)));
    }
    if rng.one_in(15) {
        labels["kubernetes.io/hostname"] = json!("shared");
    }
    let mut taints = Vec::new();
    for (key, effect) in
        [("gpu", "NoSchedule"), ("spot", "PreferNoSchedule"), ("old", "PreferNoSchedule")]
    {
        if rng.one_in(6) {
            taints.push(json!({"key": key, "effect": effect}));
        }
    }
    let mut images = Vec::new();
    for (image, size) in [("app:v1", 500_000_000_u64), ("db:v2", 900_000_000)] {
        if rng.one_in(3) {
            images.push(json!({"names": [image], "sizeBytes": size}));
        }
    }
    let features: &[&str] =
        if rng.one_in(4) { &[] } else { &["RestartAllContainersOnContainerExits"] };
    decode(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": rng.one_in(20)},
        "status": {
            "allocatable": {
                "cpu": *rng.pick(&["2", "4", "7500m", "16"]),
                "memory": *rng.pick(&["4Gi", "8Gi", "30Gi"]),
                "pods": *rng.pick(&["5", "10", "20"]),
                "example.com/gpu": rng.below(3).to_string(),
            },
            "images": images,
            "declaredFeatures": features,
        },
    }))
}

/// Sets a namespace with random labels.
pub(super) fn set_namespace(rng: &mut Rng, cluster: &mut Cluster, name: &str) {
    let labels = json!({"team": *rng.pick(&["x", "y"])});
    if let Some(namespace) =
        decode::<Namespace>(json!({"metadata": {"name": name, "labels": labels}}))
    {
        cluster.set_namespace(namespace);
    }
}

/// Adds, changes or deletes an object that selects pods for the default spread constraints: a Service, or an object that owns pods of
/// the bare pool.
pub(super) fn change_random_object(rng: &mut Rng, cluster: &mut Cluster) {
    let namespace = *rng.pick(&NAMESPACES);
    let is_deleted = rng.one_in(3);
    let pairs = match rng.below(4) {
        0 => json!({"app": *rng.pick(&APPS), "tier": *rng.pick(&["web", "db"])}),
        1 => json!({"tier": *rng.pick(&["web", "db"])}),
        2 => json!({}),
        _ => json!({"app": *rng.pick(&APPS)}),
    };
    let kind = *rng.pick(&["Service", "ReplicaSet", "StatefulSet", "ReplicationController"]);
    let name = match kind {
        "Service" => format!("service-{}", rng.below(3)),
        _ => (*rng.pick(&OWNER_NAMES)).to_owned(),
    };
    let selector = match kind {
        "Service" | "ReplicationController" => pairs,
        _ => random_selector(rng),
    };
    let object = json!({
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": selector},
    });
    let change = if is_deleted { ObjectChange::Delete } else { ObjectChange::Upsert };
    cluster.change_object(change, &object);
}

/// What happens to a Service, ReplicaSet, StatefulSet or ReplicationController; objects of other kinds are ignored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectChange {
    /// It is added, or takes the place of the one with its namespace and name.
    Upsert,
    Delete,
}

/// Where an object is changed.
enum Target<'a> {
    /// A world, as the engine does: what does not depend on the object holds.
    World(&'a mut World),
    /// The lists alone.
    Lists(&'a mut ClusterObjects),
}

impl ObjectChange {
    /// Changes the list with the object.
    pub fn apply(self, objects: &mut ClusterObjects, object: &Value) {
        self.apply_to(Target::Lists(objects), object);
    }

    /// Changes the object in a world as the engine does, where what does not depend on it holds.
    pub fn apply_to_world(self, world: &mut World, object: &Value) {
        self.apply_to(Target::World(world), object);
    }

    fn apply_to(self, target: Target<'_>, object: &Value) {
        match object["kind"].as_str() {
            Some("Service") => self.apply_listed::<Service>(target, object),
            Some("ReplicaSet") => self.apply_listed::<ReplicaSet>(target, object),
            Some("StatefulSet") => self.apply_listed::<StatefulSet>(target, object),
            Some("ReplicationController") => {
                self.apply_listed::<ReplicationController>(target, object);
            }
            _ => {}
        }
    }

    fn apply_listed<T: ListedObject + DeserializeOwned>(self, target: Target<'_>, object: &Value) {
        let text = |at: &str| object["metadata"][at].as_str().unwrap_or_default();
        let (namespace, name) = (Str::new(text("namespace")), text("name"));
        let new = (self == ObjectChange::Upsert).then(|| decode::<T>(object.clone())).flatten();
        match (target, new.map(Arc::new)) {
            (Target::World(world), Some(new)) => world.upsert_listed(new),
            (Target::World(world), None) => world.delete_listed::<T>(&namespace, name),
            (Target::Lists(objects), new) => {
                let list = T::list_mut(objects).entry(namespace).or_default();
                list.retain(|known| *known.metadata().name != *name);
                list.extend(new);
            }
        }
    }
}

/// Decodes an object. All values in these files are well formed, which a unit test checks.
pub(super) fn decode<T: DeserializeOwned>(value: Value) -> Option<T> {
    decode_erased(PhantomData, value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_change_and_go() {
        let object = |selector: &str| {
            json!({
                "kind": "ReplicaSet",
                "metadata": {"name": "a", "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": selector}}},
            })
        };
        let mut objects = ClusterObjects::default();
        let mut world = World::default();
        let mut selectors = |change: ObjectChange, selector: &str| {
            change.apply(&mut objects, &object(selector));
            change.apply_to_world(&mut world, &object(selector));
            let listed = |cluster: &ClusterObjects| cluster.replica_sets.get("default").cloned();
            assert_eq!(listed(world.cluster_objects()), listed(&objects));
            let sets = objects.replica_sets.get("default").into_iter().flatten();
            let labels = sets.filter_map(|set| set.spec.selector.as_ref()?.match_labels.get("app"));
            labels.map(|value| value.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(selectors(ObjectChange::Upsert, "x"), ["x"]);
        assert_eq!(selectors(ObjectChange::Upsert, "y"), ["y"]);
        assert!(selectors(ObjectChange::Delete, "x").is_empty());
    }

    #[test]
    fn every_random_node_can_be_decoded() {
        let mut rng = Rng::new(1);
        assert!((0..500).all(|_| random_node(&mut rng, "a", 3).is_some()));
    }
}
