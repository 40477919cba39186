//! Random changes of a world, which must afterwards equal a world that is rebuilt from scratch.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod trial;

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use loadmaster_api::{Node, Pod, Str};
use loadmaster_framework::affinity_terms::TermRole;
use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_framework::pod_sums::{PodSum, PodSumsDef};
use loadmaster_framework::topology_counter::{
    AssignedPod, TopologyCounterId, TopologyCounterSpec, TopologyDeltas,
};
use loadmaster_framework::watched_objects::ObjectWatch;
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{
    ExtensionPoints, Gvr, NodeRow, PodInfo, PodSums, WatchRequirement, World,
};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

/// Counts the pods of one app by zone, on nodes with an SSD.
#[derive(PartialEq, Eq, Hash)]
struct PodsOfApp {
    app: Str,
    keys: [Str; 1],
}

impl TopologyCounterSpec for PodsOfApp {
    fn delta(&self, pod: &AssignedPod<'_>, out: &mut TopologyDeltas) {
        if pod.labels.get("app") == Some(&self.app) {
            out.add(&self.keys[0], 1);
        }
    }

    fn label_keys(&self) -> Vec<Str> {
        vec![Str::new("app")]
    }

    fn counts_terminating_pods(&self) -> bool {
        false
    }

    fn has_node_filter(&self) -> bool {
        true
    }

    fn counts_node(&self, node: &Node) -> bool {
        node.metadata.labels.get("disk").is_some_and(|disk| disk == "ssd")
    }

    fn tracks_min(&self) -> bool {
        true
    }

    fn topology_keys(&self) -> &[Str] {
        &self.keys
    }
}

fn pods_of_app(app: &str) -> PodsOfApp {
    PodsOfApp { app: Str::new(app), keys: [Str::new("zone")] }
}

/// Sums of pods by app, terminating pods apart.
static SUMS_BY_APP: LazyLock<(PodSums<(Str, bool)>, PodSumsDef)> = LazyLock::new(|| {
    let mut points = ExtensionPoints::default();
    let app_of = |pod: &PodInfo| Some((pod.template.labels.get("app")?.clone(), pod.terminating));
    let sums = points.sum_pods(app_of);
    (sums, points.pod_sums()[0].clone())
});

fn sums_by_app(world: &World) -> [PodSum; 4] {
    [("p", false), ("p", true), ("q", false), ("q", true)].map(|(app, terminating)| {
        let mut sum = world.pod_sum(&SUMS_BY_APP.0, &(Str::new(app), terminating)).clone();
        // A resource stays listed as long as a pod of the sum is there.
        sum.amounts.scalars.retain(|(_, amount)| *amount != 0);
        sum
    })
}

fn node(rng: &mut Rng, name: &str) -> Node {
    let mut labels = json!({"disk": *rng.pick(&["ssd", "hdd"])});
    if !rng.one_in(5) {
        labels["zone"] = json!(*rng.pick(&["a", "b", "c"]));
    }
    let value = json!({
        "metadata": {"name": name, "labels": labels},
        "status": {
            "allocatable": {"cpu": rng.range(1, 8).to_string(), "pods": "10", "example.com/gpu": rng.below(3).to_string()},
            "images": [{"names": [*rng.pick(&["x:1", "y:1"])], "sizeBytes": 5}],
        },
    });
    serde_json::from_value(value).expect("a node")
}

fn pod(rng: &mut Rng, name: &str) -> Pod {
    let value = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": *rng.pick(&["p", "q"])},
            "deletionTimestamp": if rng.one_in(6) { json!("2026-01-01T00:00:00Z") } else { json!(null) }},
        "spec": {"containers": [{"resources": {"requests": {"cpu": "100m", "example.com/gpu": "1"}}, "ports": [
            {"hostPort": rng.below(3), "containerPort": 1}]}]},
    });
    serde_json::from_value(value).expect("a pod")
}

/// All readable state of a world, with names instead of ids.
fn describe_world(world: &mut World) -> Vec<String> {
    let mut lines = Vec::new();
    let counters = [
        world.acquire_topology_counter(pods_of_app("p")),
        world.acquire_topology_counter(pods_of_app("q")),
    ];
    for info in world.node_infos() {
        let mut pods: Vec<&str> = info.pods().map(|pod| &*pod.name).collect();
        pods.sort_unstable();
        let mut ports: Vec<i32> = info.host_ports().map(|port| port.port).collect();
        ports.sort_unstable();
        let sums =
            ["cpu", "memory", "example.com/gpu"].map(|r| (info.allocatable(r), info.requested(r)));
        let nonzero = (info.nonzero_requested_cpu(), info.nonzero_requested_memory());
        lines.push(format!(
            "{} {pods:?} {ports:?} {sums:?} {nonzero:?} {}",
            info.name(),
            info.n_pods()
        ));
    }
    for id in counters {
        for domains in world.topology_counter(id).domains() {
            let column = world.nodes().labels().column(domains.key());
            for zone in ["a", "b", "c"] {
                let value = column.id(zone);
                let sum =
                    value.map(|value| (domains.domain_exists(value), domains.domain_sum(value)));
                lines.push(format!("{zone} {sum:?}"));
            }
            lines.push(format!(
                "{:?} {:?} {}",
                domains.min_domain_sum(),
                domains.n_domains(),
                domains.total()
            ));
        }
        world.release_topology_counter(id);
    }
    lines.push(format!("{:?}", sums_by_app(world)));
    lines
        .push(format!("{:?}", ["x:1", "y:1"].map(|image| world.nodes().n_nodes_with_image(image))));
    lines.sort();
    lines
}

/// A new world with the same objects.
fn rebuilt(world: &World) -> World {
    let mut fresh = World::default();
    fresh.sum_pods(&SUMS_BY_APP.1);
    for info in world.node_infos() {
        fresh.upsert_node(info.node().clone());
    }
    for info in world.node_infos() {
        let row = fresh.nodes().row(info.name()).expect("the node");
        for pod in info.pods() {
            fresh.ensure_label_column(&Str::new("zone"));
            let mut plain = Pod::default();
            plain.metadata.name = pod.name.clone();
            plain.metadata.namespace = pod.template.namespace.clone();
            plain.metadata.labels = pod.template.labels.clone();
            plain.spec.shared = (*pod.template.spec).clone();
            let parsed = fresh.parse_pod(&plain).expect("it parsed before");
            fresh.add_pod(row, Arc::new(PodInfo { terminating: pod.terminating, ..parsed }));
        }
    }
    fresh
}

#[test]
fn an_incremental_world_equals_a_rebuilt_one() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut world = World::default();
        world.sum_pods(&SUMS_BY_APP.1);
        // Acquired from the beginning, so that every change updates them.
        let acquired = [
            world.acquire_topology_counter(pods_of_app("p")),
            world.acquire_topology_counter(pods_of_app("q")),
        ];
        for step in 0..120 {
            let name = format!("n{}", rng.below(6));
            match rng.below(8) {
                0..=1 => drop(world.upsert_node(Arc::new(node(&mut rng, &name)))),
                2 if rng.one_in(2) => drop(world.remove_node(&name)),
                3 => drop(world.remove_pod(&format!("default/p{}", rng.below(20)))),
                _ => {
                    let own_name = format!("p{}", rng.below(20));
                    let pod = pod(&mut rng, &own_name);
                    let parsed = Arc::new(world.parse_pod(&pod).expect("a pod"));
                    if let Some(row) = world.nodes().row(&name) {
                        world.add_pod(row, parsed);
                    }
                }
            }
            let mut fresh = rebuilt(&world);
            assert_eq!(
                describe_world(&mut world),
                describe_world(&mut fresh),
                "seed {seed}, step {step}"
            );
            for (counter, app) in acquired.iter().zip(["p", "q"]) {
                let rows: BTreeSet<NodeRow> = world.rows_counted_by(&[*counter]).collect();
                for info in world.node_infos() {
                    let is_counted = |pod: &Arc<PodInfo>| {
                        pod.template.labels.get("app").is_some_and(|it| it == app)
                    };
                    let row = world.nodes().row(info.name()).expect("the node");
                    assert!(
                        !info.pods().any(is_counted) || rows.contains(&row),
                        "seed {seed}, step {step}"
                    );
                }
            }
        }
        acquired.into_iter().for_each(|id| world.release_topology_counter(id));
    }
}

/// A new counter that reads another label counts all pods anew; their terms keep their ids, which keys and evaluators have.
#[test]
fn affinity_terms_keep_their_ids_when_pods_are_counted_anew() {
    let mut world = World::default();
    let row = world.upsert_node(Arc::new(node(&mut Rng::new(1), "n")));
    for at in 0..1_100 {
        let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"group": at.to_string()}}});
        let pod = json!({"metadata": {"name": format!("p{at}"), "uid": format!("u{at}"), "namespace": "default"},
            "spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let info = world.parse_pod(&pod).unwrap();
        world.add_pod(row, Arc::new(info));
    }
    let labels = [("group", Str::new("7"))].into_iter().collect();
    let none = Default::default();
    let state = |world: &World| {
        let roles = [TermRole::RequiredAntiAffinity];
        let terms = world.affinity_terms();
        (terms.matching(&roles, &Str::new("default"), &none, &labels), terms.version())
    };
    let before = state(&world);
    assert_eq!(before.0.len(), 1);
    world.acquire_topology_counter(pods_of_app("p"));
    assert_eq!(state(&world), before);
}

#[test]
fn objects_that_only_keys_read_invalidate_no_evaluator() {
    let mut world = World::default();
    let kind = |resource: &str| Gvr::new("", "v1", resource);
    for resource in ["claims", "volumes"] {
        let mut watch = ObjectWatch::in_keys::<Value>(kind(resource), WatchRequirement::Required);
        watch.used_by_incremental = true;
        world.watch_objects(&watch);
    }
    let template = |namespace: &str| {
        let pod = json!({"metadata": {"name": "x", "namespace": namespace}});
        world.parse_pod(&serde_json::from_value(pod).unwrap()).unwrap().template
    };
    let templates = ["a", "b"].map(template);
    let mut update = |resource: &str, namespace: &str| {
        let versions = |world: &World| templates.each_ref().map(|it| world.key_version(it));
        let (was, name) = (versions(&world), "x".into());
        let before = (world.next_change_seq(), world.evaluators_valid_since());
        let object = ObjectRef {
            group: "".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name,
        };
        world.update_watched_object(&object, Some(&json!({})));
        assert_eq!((world.next_change_seq(), world.evaluators_valid_since()), before);
        let now = versions(&world);
        [now[0] > was[0], now[1] > was[1]]
    };
    assert_eq!(update("claims", "a"), [true, false]);
    assert_eq!(update("claims", "b"), [false, true]);
    assert_eq!(update("volumes", ""), [true, true]);
    assert_eq!(update("pods", "a"), [false, false], "not watched");
}

#[test]
fn a_change_of_pods_names_the_counters_that_they_add_to() {
    let mut world = World::default();
    let row = world.upsert_node(Arc::new(node(&mut Rng::new(1), "n")));
    let p = world.acquire_topology_counter(pods_of_app("p"));
    let q = world.acquire_topology_counter(pods_of_app("q"));
    let mut check = |app: &str, deleted: Value, counters: &[TopologyCounterId]| {
        let metadata = json!({"name": "x", "namespace": "default", "labels": {"app": app}, "deletionTimestamp": deleted});
        let pod: Pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        let pod = Arc::new(world.parse_pod(&pod).unwrap());
        let then = world.next_change_seq();
        world.add_pod(row, pod.clone());
        world.remove_pod(&pod.uid);
        let counters = counters.iter().copied().collect();
        assert_eq!(
            world.changes_since(then),
            Some(&[WorldChange::Pods(row, counters); 2][..]),
            "{app}"
        );
    };
    check("p", json!(null), &[p]);
    check("q", json!(null), &[q]);
    check("other", json!(null), &[]);
    check("p", json!("2026-01-01T00:00:00Z"), &[]);
}
