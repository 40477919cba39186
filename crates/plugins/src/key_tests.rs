//! For every in-tree plugin with an incremental form: equal keys imply equal results, with each field of several incoming pods changed in
//! turn; and cached evaluations see every change of an assigned pod.

use std::sync::Arc;

use loadmaster_api::{ReplicaSet, ReplicationController, Service, StatefulSet, Str};
use loadmaster_framework::PluginDef;
use loadmaster_framework::testkit::{KeyReport, PluginTestBench, PodBuilder, node, pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    IN_TREE_PLUGINS, image_locality, inter_pod_affinity, node_affinity, node_ports, node_resources,
    pod_topology_spread,
};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Every plugin with an incremental form, with each of these arguments.
fn plugins() -> Vec<(&'static PluginDef, Value)> {
    let mut all = Vec::new();
    for def in IN_TREE_PLUGINS {
        if PluginTestBench::new(def, json!({})).unwrap().extension_points().incremental.is_none() {
            continue;
        }
        all.extend(args_of(def.name).into_iter().map(|args| (def, args)));
    }
    all
}

fn args_of(plugin: &str) -> Vec<Value> {
    let mut all = vec![json!({})];
    all.push(match plugin {
        pod_topology_spread::NAME => hard_default_constraint(),
        inter_pod_affinity::NAME => {
            json!({"hardPodAffinityWeight": 0, "ignorePreferredTermsOfExistingPods": true})
        }
        node_resources::fit::NAME => json!({"ignoredResources": ["example.com/device"],
            "scoringStrategy": {"type": "MostAllocated",
                "resources": [{"name": "cpu", "weight": 1}, {"name": "example.com/fpga", "weight": 2}]}}),
        node_affinity::NAME => json!({"addedAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}]}}}),
        _ => return all,
    });
    all
}

/// A default constraint of PodTopologySpread that filters.
fn hard_default_constraint() -> Value {
    json!({"defaultingType": "List", "defaultConstraints": [
        {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}]})
}

fn object<T: DeserializeOwned>(name: &str, selector: Value) -> Vec<Arc<T>> {
    let object =
        json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"selector": selector}});
    vec![Arc::new(serde_json::from_value(object).unwrap())]
}

fn image(name: &str, mib: i64) -> Value {
    json!({"names": [name], "sizeBytes": mib * 1024 * 1024})
}

/// A term about pods with this label in the same zone.
fn term(key: &str, value: &str) -> Value {
    json!({"topologyKey": ZONE, "labelSelector": {"matchLabels": {key: value}}})
}

fn weighted(term: &Value) -> Value {
    json!({"weight": 50, "podAffinityTerm": term})
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Four nodes in two zones, one of them tainted and one cordoned; pods of two namespaces with ports, requests and terms; a Service and
/// controllers.
fn bench(def: &PluginDef, args: Value) -> PluginTestBench {
    let mut bench = PluginTestBench::new(def, args).unwrap();
    let images = json!([image("app:latest", 600), image("app:2", 300)]);
    let nodes = [
        node("a1").label(ZONE, "a").label("disk", "ssd").set_field("/status/images", images),
        node("a2").label(ZONE, "a").taint("own", "x", "PreferNoSchedule").allocatable("cpu", "8"),
        node("b1").label(ZONE, "b").label("disk", "hdd").taint("own", "x", "NoSchedule"),
        node("b2").label(ZONE, "b").set_field("/spec/unschedulable", true),
    ];
    for node in nodes {
        bench.node(node.allocatable("example.com/device", "2")).unwrap();
    }
    for (name, team) in [("default", "one"), ("other", "two")] {
        bench.namespace(json!({"metadata": {"name": name, "labels": {"team": team}}})).unwrap();
    }
    bench.world.update_cluster_objects(|cluster| {
        let default = || Str::new("default");
        cluster.services.insert(default(), object::<Service>("web", json!({"app": "web"})));
        let selector = |app: &str| json!({"matchLabels": {"app": app}});
        cluster.replica_sets.insert(default(), object::<ReplicaSet>("rs", selector("web")));
        cluster.stateful_sets.insert(default(), object::<StatefulSet>("sts", selector("db")));
        let pairs = json!({"app": "db"});
        let controllers = object::<ReplicationController>("rc", pairs);
        cluster.replication_controllers.insert(default(), controllers);
    });
    add_assigned_pods(&mut bench);
    bench
}

fn add_assigned_pods(bench: &mut PluginTestBench) {
    let assigned = |name: &str, app: &str| pod(name).label("app", app);
    let port = |ip: &str| json!([{"hostPort": 80, "hostIP": ip, "protocol": "TCP"}]);
    let ports = "/spec/containers/0/ports";
    let affinity = |kind: &str, required: Value, preferred: Value| json!({kind: {REQUIRED: required, PREFERRED: preferred}});
    let anywhere = json!({"topologyKey": HOSTNAME, "namespaceSelector": {"matchLabels": {"team": "two"}},
        "labelSelector": {"matchLabels": {"app": "web"}}});
    let none = json!([]);
    let preferred = json!([weighted(&term("version", "2"))]);
    let terms = [
        affinity("podAntiAffinity", json!([term("app", "db")]), none.clone()),
        affinity("podAntiAffinity", json!([anywhere]), none),
        affinity("podAffinity", json!([term("app", "db")]), preferred),
    ];
    let [no_db, no_web_of_team, with_db] =
        terms.map(|terms| move |pod: PodBuilder| pod.set_field("/spec/affinity", terms));
    let ordinary = [
        ("a1", assigned("p0", "web").set_field(ports, port("10.0.0.1")).request("cpu", "1")),
        ("a1", assigned("p1", "web").label("version", "2").request("memory", "1Gi")),
        ("a2", no_db(assigned("p2", "cache"))),
        ("a2", assigned("p3", "web").set_field(ports, port("")).request("cpu", "7500m")),
        ("b1", no_web_of_team(assigned("p4", "cache")).request("example.com/device", "1")),
        ("b1", assigned("p5", "db").namespace("other")),
        ("b2", with_db(assigned("p6", "cache"))),
    ];
    for (node, pod) in ordinary {
        bench.add_assigned_pod(node, pod).unwrap();
    }
}

fn spread(action: &str, more: Value) -> Value {
    let mut constraint = json!({"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": action,
        "labelSelector": {"matchLabels": {"app": "web"}}});
    for (field, value) in more.as_object().unwrap() {
        constraint[field] = value.clone();
    }
    json!([constraint])
}

fn web() -> PodBuilder {
    pod("web-0").label("app", "web").label("version", "1")
}

/// The incoming pods, by name.
fn pods() -> Vec<(&'static str, Value)> {
    let constraints = "/spec/topologySpreadConstraints";
    let policies = json!({"matchLabelKeys": ["version"], "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Honor"});
    let node_affinity = json!({"nodeAffinity": {
        REQUIRED: {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd", "hdd"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a2"]}]}]},
        PREFERRED: [{"weight": 5, "preference": {
            "matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}}],
    }});
    let containers = json!([
        {"name": "app", "image": "app", "ports": [{"hostPort": 80, "hostIP": "10.0.0.2", "protocol": "TCP"}],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi", "example.com/device": "1"}}},
        {"name": "log", "image": "app:2"}]);
    let web_terms = json!({
        "podAffinity": {REQUIRED: [term("app", "web")], PREFERRED: [weighted(&term("version", "2"))]},
        "podAntiAffinity": {PREFERRED: [weighted(&term("app", "cache"))], REQUIRED: [
            {"topologyKey": HOSTNAME, "namespaces": ["other"], "labelSelector": {"matchLabels": {"app": "db"}},
                "matchLabelKeys": ["version"]}]},
    });
    let tolerations = json!([
        {"key": "own", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
        {"key": "own", "value": "x", "effect": "PreferNoSchedule", "tolerationSeconds": 9}]);
    let volume = json!([{"name": "models", "image": {"reference": "app:2"}}]);
    vec![
        (
            "bare",
            json!({"metadata": {"name": "web-0"}, "spec": {"containers": [{"name": "main"}]}}),
        ),
        ("service", web().into()),
        (
            "containers",
            pod("web-0").set_field("/spec/containers", containers).tolerates("own").into(),
        ),
        ("volume image", pod("web-0").set_field("/spec/volumes", volume).into()),
        (
            "node affinity",
            web().set_field("/spec/affinity", node_affinity).node_selector(ZONE, "a").into(),
        ),
        ("pod affinity", web().set_field("/spec/affinity", web_terms).into()),
        (
            "hard spread",
            web()
                .set_field(constraints, spread("DoNotSchedule", policies.clone()))
                .node_selector("disk", "ssd")
                .tolerates("own")
                .into(),
        ),
        ("tolerations", pod("web-0").set_field("/spec/tolerations", tolerations).into()),
        // The zone with the most pods passes for a pod that the selector does not match.
        (
            "large skew",
            web().set_field(constraints, spread("DoNotSchedule", json!({"maxSkew": 3}))).into(),
        ),
        (
            "soft spread",
            web()
                .set_field(constraints, spread("ScheduleAnyway", policies))
                .tolerates("own")
                .into(),
        ),
    ]
}

/// What differs between the pods of one controller, and what no in-tree plugin reads: keeps every key.
const ALWAYS_KEPT: &[&str] = &[
    "pod name",
    "uid",
    "generation",
    "creation time",
    "annotation",
    "ordinal label",
    "pod name label",
    "job index label",
    "token volume",
    "hostname",
    "subdomain",
    "service account",
    "scheduler name",
    "priority",
    "nominated node",
    "environment",
];

fn check(def: &PluginDef, args: &Value, name: &str, pod: Value) -> KeyReport {
    let report = bench(def, args.clone()).check_key(pod);
    report.unwrap_or_else(|error| panic!("{} {args}, pod {name}: {error}", def.name))
}

#[test]
fn equal_keys_imply_equal_results_and_pods_of_one_controller_share_their_key() {
    for (def, args) in plugins() {
        for (name, pod) in pods() {
            let report = check(def, &args, name, pod);
            for change in ALWAYS_KEPT {
                assert!(report.keeps(change), "{} {args}, pod {name}: {change}", def.name);
            }
            assert!(report.n_changes > 150, "{name}: {}", report.n_changes);
        }
    }
}

/// A pod with all that plugins read of assigned pods: labels, terms of all kinds, host ports, requests (also of init containers and
/// overhead), an owner, volumes and tolerations.
fn assigned_pod() -> PodBuilder {
    let port = |port: u32, ip: &str| json!([{"hostPort": port, "hostIP": ip, "protocol": "TCP"}]);
    let requests = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "512Mi"}});
    let containers = json!([
        {"name": "app", "image": "app", "ports": port(80, "10.0.0.2"), "resources":
            {"requests": {"cpu": "1500m", "memory": "1Gi", "example.com/device": "1"}}},
        {"name": "log", "image": "app:2", "ports": port(443, "")}]);
    let init = json!([
        {"name": "copy", "image": "app", "resources": requests("3")},
        {"name": "proxy", "image": "app:2", "restartPolicy": "Always", "ports": port(8080, ""), "resources": requests("250m")}]);
    let team = json!({"matchLabels": {"team": "one"}});
    let of_team = json!({"topologyKey": ZONE, "namespaceSelector": team, "labelSelector": {"matchLabels": {"app": "web"}},
        "matchLabelKeys": ["version"]});
    let elsewhere = json!({"topologyKey": HOSTNAME, "namespaces": ["default"], "labelSelector": {"matchLabels": {"app": "cache"}}});
    let affinity = json!({
        "podAffinity": {REQUIRED: [term("app", "web")], PREFERRED: [weighted(&term("version", "1"))]},
        "podAntiAffinity": {REQUIRED: [elsewhere], PREFERRED: [weighted(&of_team)]},
    });
    let volumes = json!([{"name": "data", "emptyDir": {}},
        {"name": "kube-api-access-x7b2q", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "1", "controller": true}]);
    web()
        .set_field("/metadata/name", "web-x")
        .set_field("/metadata/uid", "uid-of-web-x")
        .set_field("/metadata/ownerReferences", owner)
        .set_field("/spec/containers", containers)
        .set_field("/spec/initContainers", init)
        .set_field("/spec/overhead", json!({"cpu": "100m", "memory": "64Mi"}))
        .set_field("/spec/affinity", affinity)
        .set_field("/spec/volumes", volumes)
        .set_field("/spec/priority", 5)
        .tolerates("own")
}

/// The plugins that read assigned pods.
const READS_ASSIGNED_PODS: [&str; 5] = [
    node_ports::NAME,
    node_resources::fit::NAME,
    node_resources::balanced_allocation::NAME,
    pod_topology_spread::NAME,
    inter_pod_affinity::NAME,
];

#[test]
fn cached_evaluations_see_every_change_of_an_assigned_pod() {
    let names = ["containers", "pod affinity", "hard spread", "soft spread"];
    let incoming =
        || pods().into_iter().filter(move |(name, _)| names.contains(name)).map(|(_, pod)| pod);
    for (def, args) in plugins() {
        if READS_ASSIGNED_PODS.contains(&def.name) {
            let n = bench(def, args.clone()).check_assigned_pod("a1", assigned_pod(), incoming());
            let n = n.unwrap_or_else(|error| panic!("{} {args}: {error}", def.name));
            assert!(n > 1_000, "{n}");
        }
    }
}

/// Whether the plugin's key distinguishes the two pods; their results differ.
#[track_caller]
fn check_distinguished(def: &PluginDef, args: Value, one: PodBuilder, other: PodBuilder) {
    let mut bench = bench(def, args);
    assert!(!bench.have_equal_keys(one.clone(), other.clone()).unwrap());
    let mut results =
        |pod: PodBuilder| (bench.filter(pod.clone()).unwrap(), bench.score(pod).unwrap());
    assert_ne!(results(one), results(other), "otherwise the case shows nothing");
}

#[test]
fn the_key_of_ports_has_protocol_and_address() {
    let with_port = |protocol: &str, ip: &str| {
        let port = json!([{"hostPort": 80, "protocol": protocol, "hostIP": ip}]);
        pod("web-0").set_field("/spec/containers/0/ports", port)
    };
    let check = |one, other| check_distinguished(&node_ports::DEF, json!({}), one, other);
    check(with_port("TCP", "10.0.0.1"), with_port("UDP", "10.0.0.1"));
    check(with_port("TCP", "10.0.0.1"), with_port("TCP", "10.0.0.2"));
}

#[test]
fn the_key_of_requests_has_the_defaults_of_containers_without_requests() {
    // Both request nothing that is filtered by; a container that does not say so is scored as 100m.
    let zero = pod("web-0").request("cpu", "0").request("memory", "0");
    check_distinguished(&node_resources::fit::DEF, json!({}), pod("web-0"), zero);
}

#[test]
fn the_key_of_images_has_those_of_volumes() {
    let volume = json!([{"name": "models", "image": {"reference": "app:2"}}]);
    let with_volume = pod("web-0").set_field("/spec/volumes", volume);
    check_distinguished(&image_locality::DEF, json!({}), pod("web-0"), with_volume);
}

#[test]
fn the_key_of_pod_affinity_has_the_effect_of_the_namespace() {
    check_distinguished(&inter_pod_affinity::DEF, json!({}), web(), web().namespace("other"));
}

fn with_spread(pod: PodBuilder, more: Value) -> PodBuilder {
    pod.set_field("/spec/topologySpreadConstraints", spread("DoNotSchedule", more))
}

fn check_spread(one: PodBuilder, other: PodBuilder) {
    check_distinguished(&pod_topology_spread::DEF, json!({}), one, other);
}

#[test]
fn the_key_of_spread_has_match_label_keys() {
    let of_version = |version: &str| {
        with_spread(web().label("version", version), json!({"matchLabelKeys": ["version"]}))
    };
    check_spread(of_version("1"), of_version("2"));
}

#[test]
fn the_key_of_spread_has_whether_the_pod_matches_its_own_selector() {
    let of_app = |app: &str| with_spread(pod("web-0").label("app", app), json!({"maxSkew": 3}));
    check_spread(of_app("web"), of_app("cache"));
}

#[test]
fn the_key_of_spread_has_what_the_inclusion_policies_read() {
    check_spread(
        with_spread(web(), json!({})),
        with_spread(web().node_selector("disk", "ssd"), json!({})),
    );
    let of_disk = || {
        let policy = json!({"topologyKey": HOSTNAME, "nodeTaintsPolicy": "Honor"});
        let terms = json!([{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]);
        let affinity = json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}});
        with_spread(web(), policy).set_field("/spec/affinity", affinity)
    };
    check_spread(of_disk(), of_disk().tolerates("own"));
}

#[test]
fn the_key_of_spread_has_the_default_selector_of_services_and_owners() {
    let check = |one, other| {
        check_distinguished(&pod_topology_spread::DEF, hard_default_constraint(), one, other);
    };
    let cache = || pod("cache-0").label("app", "cache");
    check(web(), cache());
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "controller": true}]);
    check(cache(), cache().set_field("/metadata/ownerReferences", owner));
}

#[test]
fn pods_that_a_service_distinguishes_by_ordinal_do_not_share_their_key() {
    let mut bench = bench(&pod_topology_spread::DEF, hard_default_constraint());
    assert!(bench.check_key(web()).unwrap().keeps("ordinal label"));
    bench.world.update_cluster_objects(|cluster| {
        let selector = json!({"app": "web", "apps.kubernetes.io/pod-index": "7"});
        cluster.services.insert(Str::new("default"), object::<Service>("web", selector));
    });
    assert!(!bench.check_key(web()).unwrap().keeps("ordinal label"));
}

#[test]
fn pods_that_an_existing_term_distinguishes_by_ordinal_do_not_share_their_key() {
    let mut bench = bench(&inter_pod_affinity::DEF, json!({}));
    let terms = json!([term("apps.kubernetes.io/pod-index", "7")]);
    let affinity = json!({"podAntiAffinity": {REQUIRED: terms}});
    bench.add_assigned_pod("a1", pod("p7").set_field("/spec/affinity", affinity)).unwrap();
    let report = bench.check_key(web()).unwrap();
    assert!(!report.keeps("ordinal label"));
    assert!(report.keeps("pod name label"));
}
