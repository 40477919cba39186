//! Which pods share evaluations, and the feature gate that decides whether evaluations are kept.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;

use loadmaster_api::{Node, Pod};
use loadmaster_config::default_configuration;
use loadmaster_engine::world_loader::build_profiles;
use loadmaster_engine::{Decision, Profile, Scheduler};
use loadmaster_framework::{FeatureGates, World};
use loadmaster_plugins::in_tree_registry;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

fn profile(gates: &FeatureGates) -> Arc<Profile> {
    let checked = default_configuration(&in_tree_registry(), &Default::default()).unwrap();
    Arc::new(build_profiles(&checked, gates).swap_remove(0))
}

/// A world of three nodes.
fn world() -> World {
    let mut world = World::default();
    for name in ["a", "b", "c"] {
        let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "500"}}});
        world.upsert_node(Arc::new(serde_json::from_value::<Node>(node).unwrap()));
    }
    world
}

/// A pod of a StatefulSet, as the API server has it.
fn stateful_pod(ordinal: u32, cpu: &str) -> Value {
    let labels = json!({"app": "db", "apps.kubernetes.io/pod-index": ordinal.to_string(),
        "statefulset.kubernetes.io/pod-name": format!("db-{ordinal}")});
    json!({
        "metadata": {"name": format!("db-{ordinal}"), "uid": format!("uid-{ordinal}"), "namespace": "default", "labels": labels},
        "spec": {
            "hostname": format!("db-{ordinal}"),
            "containers": [{"name": "db", "resources": {"requests": {"cpu": cpu}}}],
            "volumes": [{"name": format!("kube-api-access-{ordinal}"), "projected": {}}],
        },
    })
}

/// Schedules and assumes a pod.
fn schedule(scheduler: &mut Scheduler, world: &mut World, pod: Value) {
    let pod = world.parse_pod(&serde_json::from_value::<Pod>(pod).unwrap()).unwrap();
    let Decision::Selected { row, .. } = scheduler.schedule_pod(world, &pod) else {
        panic!("{} does not fit", pod.full_name())
    };
    world.add_pod(row, Arc::new(pod));
}

#[test]
fn pods_that_differ_in_ordinals_and_token_volumes_share_everything() {
    let mut world = world();
    let mut scheduler = Scheduler::new(profile(&FeatureGates::default()), Rng::new(1));
    schedule(&mut scheduler, &mut world, stateful_pod(0, "100m"));
    let of_one = scheduler.cache_size();
    for ordinal in 1..100 {
        schedule(&mut scheduler, &mut world, stateful_pod(ordinal, "100m"));
    }
    assert_eq!(scheduler.cache_size(), of_one);
    assert_eq!(of_one.combinations, 1);
    assert_eq!(world.n_contribution_classes(), 1, "they are counted together, too");
    schedule(&mut scheduler, &mut world, stateful_pod(100, "200m"));
    assert_eq!(scheduler.cache_size().combinations, 2);
}

#[test]
fn without_the_gate_no_evaluation_is_kept_for_the_next_pod() {
    for opportunistic_batching in [true, false] {
        let gates = FeatureGates { opportunistic_batching, ..FeatureGates::default() };
        let mut world = world();
        let mut scheduler = Scheduler::new(profile(&gates), Rng::new(1));
        for (ordinal, cpu) in [(0, "100m"), (1, "200m"), (2, "300m")] {
            schedule(&mut scheduler, &mut world, stateful_pod(ordinal, cpu));
        }
        let n_kept = if opportunistic_batching { 3 } else { 1 };
        assert_eq!(scheduler.cache_size().combinations, n_kept, "{opportunistic_batching}");
    }
}
