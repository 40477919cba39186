//! Sums by keys of any type; random histories with trials are in `tests/world`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loadmaster_api::Str;
use serde_json::{Value, json};

use super::*;
use crate::api_calls::ObjectRef;
use crate::registry::ExtensionPoints;
use crate::testkit::{node, pod};
use crate::watched_objects::{Gvr, WatchRequirement};
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

#[derive(serde::Deserialize)]
struct Limit {
    cpu: i64,
}

fn limits() -> Gvr {
    Gvr::new("example.com", "v1", "limits")
}

/// Amounts of -1 panic.
fn declare_limits(points: &mut ExtensionPoints) -> NamespaceSums {
    let slot = points.watch::<Limit>(limits(), WatchRequirement::Optional);
    points.sum_pods_by_namespace(&slot, |limit| {
        assert!(limit.cpu >= 0, "no amounts");
        Resources { cpu_milli: limit.cpu, ..Resources::default() }
    })
}

fn set_limit(world: &mut World, namespace: &str, name: &str, cpu: Option<i64>) {
    let Gvr { group, resource, .. } = limits();
    let object =
        ObjectRef { group, resource, namespace: Str::new(namespace), name: Str::new(name) };
    let value =
        cpu.map(|cpu| json!({"metadata": {"namespace": namespace, "name": name}, "cpu": cpu}));
    world.update_watched_object(&object, value.as_ref());
}

fn in_namespace(world: &mut World, namespace: &str, name: &str) -> Arc<PodInfo> {
    let mut object = member(name, "a");
    object["metadata"]["namespace"] = json!(namespace);
    object["metadata"]["uid"] = json!(name);
    parse(world, object)
}

/// Pods, their CPU, and the amounts of the objects.
#[track_caller]
fn check_total(world: &World, sums: &NamespaceSums, want: (i64, i64, i64)) {
    let NamespaceTotal { pods, object_amounts } = world.namespace_total(sums);
    assert_eq!((pods.pods, pods.amounts.cpu_milli, object_amounts.cpu_milli), want);
}

#[test]
fn totals_have_the_namespaces_with_an_object() {
    let mut points = ExtensionPoints::default();
    let sums = declare_limits(&mut points);
    let mut world = world_with_node();
    points.watched_kinds().for_each(|watch| world.watch_objects(&watch));
    let row = world.nodes().row("n").unwrap();
    for (namespace, name) in [("red", "p1"), ("red", "p2"), ("blue", "p3")] {
        let pod = in_namespace(&mut world, namespace, name);
        world.add_pod(row, pod);
    }
    set_limit(&mut world, "red", "b", Some(7));
    set_limit(&mut world, "red", "c", Some(8));
    // What is there already counts.
    points.pod_sums().iter().for_each(|def| world.sum_pods(def));
    check_total(&world, &sums, (2, 500, 7));
    set_limit(&mut world, "blue", "b", Some(20));
    check_total(&world, &sums, (3, 750, 27));
    set_limit(&mut world, "red", "a", Some(1));
    check_total(&world, &sums, (3, 750, 21));
    set_limit(&mut world, "red", "a", None);
    check_total(&world, &sums, (3, 750, 27));
    world.remove_pod("p1").unwrap();
    check_total(&world, &sums, (2, 500, 27));
    assert_eq!(world.pod_sum(sums.by_namespace(), &Str::new("red")).pods, 1);
    {
        let mut run = crate::world::DryRun::new(&mut world);
        run.evict("p3").unwrap();
        check_total(&run, &sums, (1, 250, 27));
    }
    check_total(&world, &sums, (2, 500, 27));
    set_limit(&mut world, "red", "b", None);
    set_limit(&mut world, "red", "c", None);
    check_total(&world, &sums, (1, 250, 20));
    set_limit(&mut world, "blue", "b", None);
    check_total(&world, &sums, (0, 0, 0));
    // Of another plugin.
    let other = declare_limits(&mut ExtensionPoints::default());
    assert_eq!(*world.namespace_total(&other), NamespaceTotal::default());
}

#[test]
fn an_object_for_which_the_plugin_panics_has_no_amounts() {
    let mut points = ExtensionPoints::default();
    let sums = declare_limits(&mut points);
    let guard: CallGuard = Arc::new(|call| drop(catch_unwind(AssertUnwindSafe(call))));
    let mut world = world_with_node();
    points.watched_kinds().for_each(|watch| world.watch_objects(&watch));
    world.sum_pods(&points.pod_sums()[0].clone().guarded(guard));
    let pod = in_namespace(&mut world, "red", "p1");
    world.add_pod(world.nodes().row("n").unwrap(), pod);
    set_limit(&mut world, "red", "a", Some(-1));
    check_total(&world, &sums, (1, 250, 0));
    set_limit(&mut world, "red", "a", Some(3));
    check_total(&world, &sums, (1, 250, 3));
}
