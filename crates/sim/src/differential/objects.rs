//! Random nodes, and random objects that select pods.

use std::marker::PhantomData;
use std::sync::Arc;

use loadmaster_api::{Namespace, Node, Str};
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_stdx::{Map, Rng, decode_erased};
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
    cluster.update_objects(|objects| match is_deleted {
        true => delete_object(objects, &object),
        false => upsert_object(objects, &object),
    });
}

/// Adds or replaces a Service, ReplicaSet, StatefulSet or ReplicationController; other kinds are ignored.
pub(super) fn upsert_object(objects: &mut ClusterObjects, object: &Value) {
    with_list(objects, object, true);
}

/// Deletes the object with this kind, namespace and name.
pub(super) fn delete_object(objects: &mut ClusterObjects, object: &Value) {
    with_list(objects, object, false);
}

fn with_list(objects: &mut ClusterObjects, object: &Value, keep: bool) {
    match object["kind"].as_str() {
        Some("Service") => {
            replace(&mut objects.services, object, keep, |it| &it.metadata.name);
        }
        Some("ReplicaSet") => {
            replace(&mut objects.replica_sets, object, keep, |it| &it.metadata.name);
        }
        Some("StatefulSet") => {
            replace(&mut objects.stateful_sets, object, keep, |it| &it.metadata.name);
        }
        Some("ReplicationController") => {
            replace(&mut objects.replication_controllers, object, keep, |it| &it.metadata.name);
        }
        _ => {}
    }
}

fn replace<T: DeserializeOwned>(
    by_namespace: &mut Map<Str, Vec<Arc<T>>>,
    object: &Value,
    keep: bool,
    name_of: fn(&T) -> &str,
) {
    let text = |at: &str| object["metadata"][at].as_str().unwrap_or_default();
    let list = by_namespace.entry(Str::new(text("namespace"))).or_default();
    list.retain(|known| name_of(known) != text("name"));
    if keep && let Some(new) = decode(object.clone()) {
        list.push(Arc::new(new));
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
        let mut selectors = |change: fn(&mut ClusterObjects, &Value), selector: &str| {
            change(&mut objects, &object(selector));
            let sets = objects.replica_sets.get("default").into_iter().flatten();
            let labels = sets.filter_map(|set| set.spec.selector.as_ref()?.match_labels.get("app"));
            labels.map(|value| value.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(selectors(upsert_object, "x"), ["x"]);
        assert_eq!(selectors(upsert_object, "y"), ["y"]);
        assert!(selectors(delete_object, "x").is_empty());
    }

    #[test]
    fn every_random_node_can_be_decoded() {
        let mut rng = Rng::new(1);
        assert!((0..500).all(|_| random_node(&mut rng, "a", 3).is_some()));
    }
}
