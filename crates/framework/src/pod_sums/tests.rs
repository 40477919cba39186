//! Sums by keys of any type; random histories with trials are in `tests/world`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loadmaster_api::Str;
use serde_json::{Value, json};

use super::*;
use crate::registry::ExtensionPoints;
use crate::testkit::{node, pod};
use crate::world::World;

fn parse(world: &mut World, object: impl Into<Value>) -> Arc<PodInfo> {
    let pod = serde_json::from_value(object.into()).unwrap();
    Arc::new(world.parse_pod(&pod).unwrap())
}

fn world_with_node() -> World {
    let mut world = World::default();
    let object: Value = node("n").into();
    world.upsert_node(Arc::new(serde_json::from_value(object).unwrap()));
    world
}

fn group_of(pod: &PodInfo) -> Option<Str> {
    pod.template.labels.get("group").cloned()
}

fn member(name: &str, group: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"group": group}},
        "spec": {"containers": [{"resources": {"requests": {"cpu": "250m", "example.com/gpu": "2"}}}]}})
}

#[test]
fn pods_are_summed_by_key() {
    let mut points = ExtensionPoints::default();
    let requests = points.sum_pods(group_of);
    let ones = points.sum_pods_by(
        |pod: &PodInfo| group_of(pod).map(|group| group.len()),
        |_| Resources { cpu_milli: 1, ..Resources::default() },
    );
    let mut world = world_with_node();
    let row = world.nodes().row("n").unwrap();
    let first = parse(&mut world, member("first", "a"));
    world.add_pod(row, first);
    // Sums that are declared later have the pods that are there.
    points.pod_sums().iter().for_each(|def| world.sum_pods(def));
    points.pod_sums().iter().for_each(|def| world.sum_pods(def));
    for object in [member("second", "a"), member("third", "b"), pod("without").into()] {
        let pod = parse(&mut world, object);
        world.add_pod(row, pod);
    }
    let a = world.pod_sum(&requests, &Str::new("a"));
    assert_eq!(
        (a.pods, a.amounts.cpu_milli, a.amounts.scalar("example.com/gpu")),
        (2, 500, Some(4))
    );
    let ones_of = |world: &World| world.pod_sum(&ones, &1).clone();
    assert_eq!((ones_of(&world).pods, ones_of(&world).amounts.cpu_milli), (3, 3));

    let orphaned = parse(&mut world, member("orphaned", "b"));
    world.sum_orphaned_pod(&orphaned, 1);
    assert_eq!(world.pod_sum(&requests, &Str::new("b")).pods, 2);
    world.sum_orphaned_pod(&orphaned, -1);
    world.remove_pod("/third").unwrap();
    assert_eq!(*world.pod_sum(&requests, &Str::new("b")), PodSum::default());
    assert_eq!(ones_of(&world).pods, 2);
    world.remove_node("n");
    assert_eq!(ones_of(&world), PodSum::default());
}

#[test]
fn sums_of_another_plugin_are_zero() {
    let sums = ExtensionPoints::default().sum_pods(group_of);
    assert_eq!(*world_with_node().pod_sum(&sums, &Str::new("a")), PodSum::default());
}

#[test]
fn a_pod_for_which_the_plugin_panics_does_not_count() {
    let mut points = ExtensionPoints::default();
    let sums = points.sum_pods_by(group_of, |pod| match &*pod.name {
        "bad" => panic!("no amounts"),
        _ => Resources::default(),
    });
    let guard: CallGuard = Arc::new(|call| drop(catch_unwind(AssertUnwindSafe(call))));
    let mut world = world_with_node();
    let row = world.nodes().row("n").unwrap();
    world.sum_pods(&points.pod_sums()[0].clone().guarded(guard));
    for name in ["good", "bad"] {
        let pod = parse(&mut world, member(name, "a"));
        world.add_pod(row, pod);
    }
    assert_eq!(world.pod_sum(&sums, &Str::new("a")).pods, 1);
    let uids: Vec<Box<str>> = world.nodes().pods(row).iter().map(|pod| pod.uid.clone()).collect();
    uids.iter().for_each(|uid| drop(world.remove_pod(uid)));
    assert_eq!(*world.pod_sum(&sums, &Str::new("a")), PodSum::default());
}
