//! Cached evaluations of the whole default profile see every change of an assigned pod.
//!
//! Each field of a pod on a node is changed in turn, in a world in which a scheduler has decided about some incoming pods and keeps their
//! evaluators. After each change the scheduler's decisions are compared with those of per-node evaluation in a world that is built
//! from the objects; also while the pod is evicted in a trial, after the trial is undone, and after changes of a Service, a ReplicaSet
//! and namespaces.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::{Namespace, Node, Pod, ReplicaSet, Service, Str};
use loadmaster_engine::diagnosis::fit_error_message;
use loadmaster_engine::evaluate::{Evaluation, per_node};
use loadmaster_engine::world_loader::default_profile;
use loadmaster_engine::{Decision, Profile, Scheduler};
use loadmaster_framework::testkit::pod_changes::{PodChange, PodVocabulary, pod_changes};
use loadmaster_framework::testkit::{PodBuilder, node, pod};
use loadmaster_framework::world::Trial;
use loadmaster_framework::{NodeRow, PodInfo, World};
use loadmaster_plugins::in_tree_registry;
use loadmaster_stdx::Rng;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The uid and the node of the pod that is changed.
const UID: &str = "uid-of-web-x";
const NODE: &str = "a1";

/// How many of the values that a field is changed to are used.
const VALUES_PER_FIELD: usize = 3;

fn decode<T: DeserializeOwned>(object: impl Into<Value>) -> T {
    serde_json::from_value(object.into()).unwrap()
}

/// Brings an object into its original or its changed state.
type SetObject = fn(world: &mut World, is_changed: bool);

/// Objects that the keys and the counts of pods depend on.
const OBJECTS: [(&str, SetObject); 5] = [
    ("the Service selects other pods", |world, is_changed| {
        let app = if is_changed { "cache" } else { "web" };
        set_service(world, app);
    }),
    ("the Service is deleted", |world, is_changed| {
        if is_changed {
            world.delete_listed::<Service>(&Str::new("default"), "web");
        }
    }),
    ("the ReplicaSet selects other pods", |world, is_changed| {
        let version = if is_changed { "2" } else { "1" };
        let set = json!({"metadata": {"name": "rs", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"version": version}}}});
        world.upsert_listed(Arc::new(decode::<ReplicaSet>(set)));
    }),
    ("the namespace default belongs to another team", |world, is_changed| {
        set_namespace(world, "default", if is_changed { "two" } else { "one" });
    }),
    ("the namespace other belongs to another team", |world, is_changed| {
        set_namespace(world, "other", if is_changed { "one" } else { "two" });
    }),
];

fn set_service(world: &mut World, app: &str) {
    let service = json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"app": app}}});
    world.upsert_listed(Arc::new(decode::<Service>(service)));
}

fn set_namespace(world: &mut World, name: &str, team: &str) {
    let namespace = json!({"metadata": {"name": name, "labels": {"team": team}}});
    world.upsert_namespace(Arc::new(decode::<Namespace>(namespace)));
}

/// A world with the objects, one of them changed if asked for, and four nodes in two zones with some pods.
fn world(changed_object: Option<usize>) -> World {
    let mut world = World::default();
    for (at, (_, set)) in OBJECTS.iter().enumerate() {
        set(&mut world, changed_object == Some(at));
    }
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")] {
        let images = json!([{"names": ["app:latest"], "sizeBytes": 600_000_000}]);
        let node = node(name)
            .label(ZONE, zone)
            .allocatable("cpu", "4")
            .allocatable("example.com/device", "1");
        let node = if name == "a2" { node.set_field("/status/images", images) } else { node };
        world.upsert_node(Arc::new(decode::<Node>(node)));
    }
    let near_db = json!({"podAffinity": {REQUIRED: [term("app", "db")]}});
    let others = [
        ("a2", pod("p0").label("app", "web").label("version", "1").request("cpu", "500m")),
        ("b1", pod("p1").label("app", "db").namespace("other").request("memory", "1Gi")),
        ("b1", pod("p2").label("app", "cache").set_field("/spec/affinity", near_db)),
        ("b2", pod("p3").label("app", "web").label("version", "2").request("cpu", "2")),
    ];
    for (node, pod) in others {
        assign(&mut world, node, &Value::from(pod));
    }
    world
}

/// Adds a pod to a node as the engine does, or updates it; with a node that does not exist it is on none.
fn assign(world: &mut World, node: &str, pod: &Value) {
    let pod = PodInfo { node_name: Str::new(node), ..parse(world, pod.clone()).unwrap() };
    let pod = Arc::new(pod);
    if world.refresh_pod(&pod) {
        return;
    }
    match world.nodes().row(node) {
        Some(row) => world.add_pod(row, pod),
        None => drop(world.remove_pod(&pod.uid)),
    }
}

/// `None` if the pod is invalid.
fn parse(world: &mut World, pod: Value) -> Option<PodInfo> {
    let mut pod: Pod = serde_json::from_value(pod).ok()?;
    if pod.metadata.namespace.is_empty() {
        pod.metadata.namespace = Str::new("default");
    }
    world.parse_pod(&pod).ok()
}

/// A term about pods with this label in the same zone.
fn term(key: &str, value: &str) -> Value {
    json!({"topologyKey": ZONE, "labelSelector": {"matchLabels": {key: value}}})
}

/// The pod that is changed, as a cluster makes it, with all that plugins read of assigned pods.
fn assigned_pod() -> Value {
    let port = |port: u32, ip: &str| json!([{"hostPort": port, "hostIP": ip, "protocol": "TCP"}]);
    let containers = json!([
        {"name": "app", "image": "app", "ports": port(80, "10.0.0.2"), "resources":
            {"requests": {"cpu": "1500m", "memory": "1Gi", "example.com/device": "1"}}},
        {"name": "log", "image": "app", "ports": port(443, "")}]);
    let requests = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "512Mi"}});
    let init = json!([
        {"name": "copy", "image": "app", "resources": requests("3")},
        {"name": "proxy", "image": "app", "restartPolicy": "Always", "ports": port(8080, ""), "resources": requests("250m")}]);
    let of_team = json!({"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "web"}},
        "namespaceSelector": {"matchLabels": {"team": "one"}}, "matchLabelKeys": ["version"]});
    let no_cache = json!({"topologyKey": HOSTNAME, "namespaces": ["default"],
        "labelSelector": {"matchLabels": {"app": "cache"}}});
    let affinity = json!({
        "podAffinity": {REQUIRED: [term("app", "web")], PREFERRED: [{"weight": 20, "podAffinityTerm": term("app", "db")}]},
        "podAntiAffinity": {REQUIRED: [no_cache], PREFERRED: [{"weight": 50, "podAffinityTerm": of_team}]},
    });
    let token = json!({"name": "kube-api-access-x7b2q", "projected":
        {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "1", "controller": true}]);
    pod("web-x")
        .label("app", "web")
        .label("version", "1")
        .set_field("/metadata/uid", UID)
        .set_field("/metadata/ownerReferences", owner)
        .set_field("/spec/containers", containers)
        .set_field("/spec/initContainers", init)
        .set_field("/spec/overhead", json!({"cpu": "100m"}))
        .set_field("/spec/affinity", affinity)
        .set_field("/spec/volumes", json!([{"name": "data", "emptyDir": {}}, token]))
        .set_field("/spec/priority", 5)
        .tolerates("own")
        .into()
}

/// The incoming pods, whose decisions depend on what is assigned.
fn incoming_pods() -> Vec<(&'static str, PodBuilder)> {
    let web = || pod("web-0").label("app", "web").label("version", "1");
    let spread = |when: &str, key: &str, more: Value| {
        let mut constraint = json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": "web"}}});
        constraint.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([constraint])
    };
    let constraints = "/spec/topologySpreadConstraints";
    let ports =
        json!([{"hostPort": 80, "hostIP": "0.0.0.0"}, {"hostPort": 8080, "protocol": "UDP"}]);
    let same_version = json!({"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "web"}},
        "matchLabelKeys": ["version"]});
    let db_of_team = json!({"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "db"}},
        "namespaceSelector": {"matchLabels": {"team": "two"}}});
    let away = json!({"podAntiAffinity": {REQUIRED: [same_version, db_of_team]}});
    let near = json!({"podAffinity": {REQUIRED: [{"topologyKey": ZONE,
        "labelSelector": {"matchLabels": {"version": "1"}}, "namespaceSelector": {"matchLabels": {"team": "one"}}}]}});
    vec![
        ("large", pod("large").request("cpu", "2500m").request("example.com/device", "1")),
        ("with ports", pod("ports").set_field("/spec/containers/0/ports", ports)),
        // Of the Service: spread by default, and the terms of assigned pods are about it.
        ("of a Service", web()),
        ("that others avoid", pod("cache-0").label("app", "cache")),
        ("that avoids others", web().set_field("/spec/affinity", away)),
        ("near others", pod("near").set_field("/spec/affinity", near)),
        (
            "hard spread",
            web().set_field(
                constraints,
                spread("DoNotSchedule", ZONE, json!({"maxSkew": 2, "matchLabelKeys": ["version"]})),
            ),
        ),
        (
            "soft spread",
            web().set_field(constraints, spread("ScheduleAnyway", HOSTNAME, json!({}))),
        ),
    ]
}

/// A scheduler with cached evaluations, and the incoming pods that they are of.
struct Tested {
    profile: Arc<Profile>,
    scheduler: Scheduler,
    incoming: Vec<(&'static str, PodBuilder)>,
    /// The different evaluations of each incoming pod so far.
    different: BTreeMap<&'static str, Vec<Evaluation>>,
}

impl Tested {
    fn new() -> Tested {
        let profile = Arc::new(default_profile(&in_tree_registry()).unwrap());
        let scheduler = Scheduler::new(profile.clone(), Rng::new(1));
        let incoming = incoming_pods();
        Tested { profile, scheduler, incoming, different: BTreeMap::new() }
    }

    /// The per-node evaluation of every incoming pod.
    fn evaluate(&self, world: &mut World) -> Vec<Evaluation> {
        let evaluate = |pod: &PodBuilder| {
            let pod = parse(world, pod.clone().into()).unwrap();
            let states = &mut self.profile.states.clone();
            per_node::evaluate_per_node(&self.profile, world, states, &pod)
        };
        self.incoming.iter().map(|(_, pod)| pod).map(evaluate).collect()
    }

    /// Compares the decisions about all incoming pods with the evaluations of the twin.
    #[track_caller]
    fn check(&mut self, world: &mut World, want: &[Evaluation], change: &str) {
        for ((name, pod), want) in self.incoming.iter().zip(want) {
            let context = format!("{change}, the pod {name}");
            let pod = parse(world, pod.clone().into()).unwrap();
            let totals = per_node::feasible_total_scores(want);
            let found = self.scheduler.feasible_total_scores(world, &pod);
            // A single feasible node is selected without scoring, so that it may have any total.
            if totals.len() == 1 {
                let rows =
                    |totals: &[(NodeRow, i64)]| totals.iter().map(|it| it.0).collect::<Vec<_>>();
                assert_eq!(rows(&found), rows(&totals), "{context}");
            } else {
                assert_eq!(found, totals, "{context}");
            }
            let best = want.best_nodes();
            match self.scheduler.schedule_pod(world, &pod) {
                Decision::Selected { row, n_ties, .. } => {
                    let has_ties = n_ties.is_none_or(|n| n == best.len() as u64);
                    assert!(best.contains(&row) && has_ties, "{context}: {row:?}");
                    let selected_among = self.scheduler.best_rows(world, &pod);
                    assert!(selected_among.is_none_or(|rows| rows == best), "{context}");
                }
                Decision::Unschedulable => {
                    assert_eq!(best, [], "{context}");
                    let found = self.scheduler.evaluate_for_diagnosis(world, &pod);
                    let message = |it: &Evaluation| fit_error_message(it, world.nodes().len());
                    assert_eq!(message(&found), message(want), "{context}");
                }
                Decision::Failed(error) => panic!("{context}: {error}"),
            }
            let different = self.different.entry(*name).or_default();
            if !different.contains(want) {
                different.push(want.clone());
            }
        }
    }
}

/// Some of the changes of every field.
fn some_changes(changes: Vec<PodChange>) -> Vec<PodChange> {
    let mut by_field: BTreeMap<String, Vec<PodChange>> = BTreeMap::new();
    for change in changes {
        let field = change.name.split('=').next().unwrap_or_default().to_owned();
        by_field.entry(field).or_default().push(change);
    }
    let some = by_field.into_values().flat_map(|changes| {
        let step = changes.len().div_ceil(VALUES_PER_FIELD);
        changes.into_iter().step_by(step)
    });
    some.collect()
}

/// The world of the scheduler, with the pod that is changed.
struct Changes {
    world: World,
    original: Value,
    /// What the pod is changed to: an assigned pod with the name of its node.
    changes: Vec<(String, PodChange)>,
}

impl Changes {
    fn new() -> Changes {
        let mut world = world(None);
        let original = assigned_pod();
        assign(&mut world, NODE, &original);
        let vocabulary = PodVocabulary::new(&world, &original);
        let mut changes = Vec::new();
        for mut change in some_changes(pod_changes(&original, &vocabulary)) {
            change.pod["metadata"]["uid"] = json!(UID);
            let Some(pod) = parse(&mut world, change.pod.clone()) else { continue };
            let node = if pod.node_name.is_empty() { NODE } else { &pod.node_name };
            changes.push((node.to_owned(), change));
        }
        assert!(changes.len() > 300, "{}", changes.len());
        Changes { world, original, changes }
    }
}

/// A new world in which a pod is on a node.
fn twin(changed_object: Option<usize>, node: &str, pod: &Value) -> World {
    let mut twin = world(changed_object);
    assign(&mut twin, node, pod);
    twin
}

#[test]
fn decisions_see_every_change_of_an_assigned_pod() {
    let mut tested = Tested::new();
    let Changes { mut world, original, changes } = Changes::new();
    let without = tested.evaluate(&mut self::world(None));
    let with_original = tested.evaluate(&mut twin(None, NODE, &original));
    tested.check(&mut world, &with_original, "no change");
    for (node, PodChange { name, pod }) in &changes {
        let want = tested.evaluate(&mut twin(None, node, pod));
        assign(&mut world, node, pod);
        // The sums of the world, which Filter and Score read, too.
        assert_eq!(tested.evaluate(&mut world), want, "{name}, per node");
        tested.check(&mut world, &want, name);

        let mut trial = Trial::new(&mut world);
        trial.evict(UID);
        tested.check(trial.world_mut(), &without, &format!("{name}, evicted"));
        trial.undo();
        tested.check(&mut world, &want, &format!("{name}, eviction undone"));

        assign(&mut world, NODE, &original);
        tested.check(&mut world, &with_original, &format!("{name}, undone"));
    }
    for (name, different) in &tested.different {
        assert!(different.len() > 2, "the assigned pod hardly matters to the pod {name}");
    }
}

#[test]
fn decisions_see_changes_of_objects_that_select_a_changed_pod() {
    let mut tested = Tested::new();
    let Changes { mut world, changes, .. } = Changes::new();
    for (nth, (node, PodChange { name, pod })) in changes.iter().step_by(3).enumerate() {
        let at = nth % OBJECTS.len();
        let (what, set) = OBJECTS[at];
        assign(&mut world, node, pod);
        let want = tested.evaluate(&mut twin(None, node, pod));
        tested.check(&mut world, &want, name);
        set(&mut world, true);
        let changed = tested.evaluate(&mut twin(Some(at), node, pod));
        tested.check(&mut world, &changed, &format!("{name}, {what}"));
        OBJECTS.iter().for_each(|(_, set)| set(&mut world, false));
        tested.check(&mut world, &want, &format!("{name}, {what} no more"));
    }
}
