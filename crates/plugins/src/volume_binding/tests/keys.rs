//! Equal claims have equal keys, and evaluators follow the changes that are announced.

use loadmaster_framework::PluginEvaluator;
use loadmaster_framework::incremental::ClassKey;
use loadmaster_framework::testkit::PluginTestBenchError;
use loadmaster_framework::testkit::TestCycle;
use loadmaster_framework::testkit::incremental_history::check_incremental_history;
use loadmaster_stdx::Rng;

use super::*;

#[test]
fn pods_with_equal_claims_share_their_key() {
    let mut bench = bench();
    for name in ["data-0", "data-1"] {
        claim(&mut bench, name, "wait", json!({}));
    }
    let of = |claim: &str| pod_with(&[claim]);
    assert!(bench.have_equal_keys(of("data-0"), of("data-1")).unwrap());
    let differences = [
        json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
        json!({"spec": {"storageClassName": "static"}}),
        json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
        json!({"spec": {"volumeMode": "Block"}}),
        json!({"spec": {"volumeAttributesClassName": "gold"}}),
        json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "a1"}}}),
    ];
    for more in differences {
        claim(&mut bench, "data-1", "wait", more.clone());
        assert!(!bench.have_equal_keys(of("data-0"), of("data-1")).unwrap(), "{more}");
    }
}

#[test]
fn equal_keys_imply_equal_results() {
    let mut bench = bench();
    claim(&mut bench, "data", "static", json!({}));
    volume(&mut bench, "pv", "static", on(HOSTNAME, &["a1"]));
    bound_claim(&mut bench, "bound", "bound");
    volume(&mut bench, "bound", "wait", on(ZONE, &["a"]));
    let report = bench.check_key(pod_with(&["data", "bound"])).unwrap();
    for change in ["pod name", "uid", "token volume", "ordinal label", "priority", "annotation"] {
        assert!(report.keeps(change), "{change}");
    }
}

fn capacity(bench: &mut PluginTestBench, name: &str, label: (&str, &str), size: &str) {
    let object = json!({"metadata": {"name": name, "namespace": "csi"}, "storageClassName": "wait",
        "nodeTopology": {"matchLabels": {label.0: label.1}}, "capacity": size});
    bench.object(&StorageKind::CsiStorageCapacity.gvr(), object).unwrap();
}

/// The nodes that pass, if the evaluator is still valid.
fn feasible(bench: &PluginTestBench, evaluator: &dyn PluginEvaluator) -> Option<String> {
    let cx = bench.evaluator_cx();
    let passes = |row: &NodeRow| {
        let mut key = ClassKey::new();
        evaluator.class_key(cx, *row, &mut key);
        evaluator.filter_row(cx, *row) && evaluator.filter_class(cx, &key)
    };
    let names = cx.nodes().rows().filter(passes).filter_map(|row| cx.nodes().node(row));
    let names: Vec<&str> = names.map(|node| node.name()).collect();
    (!evaluator.is_stale(cx)).then(|| names.join(" "))
}

#[test]
fn evaluators_stay_when_the_capacity_of_a_zone_changes() {
    let mut bench = bench();
    bench.node(node_of("b2", "b")).unwrap();
    let driver =
        json!({"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": true}});
    bench.object(&StorageKind::CsiDriver.gvr(), driver).unwrap();
    claim(&mut bench, "data", "wait", json!({}));
    capacity(&mut bench, "a", (ZONE, "a"), "3Gi");
    capacity(&mut bench, "b", (ZONE, "b"), "3Gi");
    let pod = bench.parse_pod(pod_with(&["data"])).unwrap();
    let PrepareResult::Evaluator(evaluator) = bench.prepare_incremental(&pod) else {
        panic!("no evaluator")
    };
    assert_eq!(feasible(&bench, &*evaluator).unwrap(), "a1 a2 b1 b2");
    capacity(&mut bench, "a", (ZONE, "a"), "512Mi");
    assert_eq!(feasible(&bench, &*evaluator).unwrap(), "b1 b2");
    // A free volume of that zone, in another class and then in this one.
    volume(&mut bench, "pv", "static", on(ZONE, &["a"]));
    assert_eq!(feasible(&bench, &*evaluator).unwrap(), "b1 b2");
    volume(&mut bench, "pv", "wait", on(ZONE, &["a"]));
    assert_eq!(feasible(&bench, &*evaluator).unwrap(), "a1 a2 b1 b2");
    // Now the result depends on a label of which each node has its own value.
    capacity(&mut bench, "a1", (HOSTNAME, "a1"), "3Gi");
    assert_eq!(feasible(&bench, &*evaluator), None);
}

const CLAIMS: [&str; 4] = ["c0", "c1", "c2", "c3"];
const VOLUMES: [&str; 5] = ["p0", "p1", "p2", "p3", "p4"];
const NODES: [&str; 4] = ["a1", "a2", "b1", "b2"];
/// A label that some nodes have.
const DISK: &str = "example.com/disk";

fn pick(rng: &mut Rng, names: &[&'static str]) -> &'static str {
    names[rng.below(names.len() as u64) as usize]
}

/// A random history of a bench: objects of all kinds, nodes, and pods that are reserved and unreserved.
struct History {
    version: u64,
    by_zone: bool,
    reserved: Vec<TestCycle>,
}

impl History {
    fn next_version(&mut self) -> Value {
        self.version += 1;
        json!({"metadata": {"resourceVersion": self.version.to_string()}})
    }

    /// In a history `by_zone`, results depend on no label of which each node has its own value.
    fn affinity(&self, rng: &mut Rng) -> Value {
        let zone = *rng.pick(&["a", "b"]);
        match rng.below(6) {
            0 => json!({}),
            1 => on(ZONE, &[zone]),
            2 => with_term(json!([{"key": ZONE, "operator": "NotIn", "values": [zone]}])),
            3 => with_term(
                json!([{"key": DISK, "operator": "Exists"}, {"key": ZONE, "operator": "In", "values": [zone]}]),
            ),
            _ if self.by_zone => on(DISK, &["ssd"]),
            _ => on(HOSTNAME, &[*rng.pick(&NODES)]),
        }
    }

    fn topology(&self, rng: &mut Rng) -> Value {
        match rng.below(4) {
            0 => json!({"matchLabels": {ZONE: *rng.pick(&["a", "b"])}}),
            1 => json!({"matchExpressions": [{"key": DISK, "operator": "DoesNotExist"}]}),
            _ if self.by_zone => json!({"matchLabels": {ZONE: "a", DISK: "ssd"}}),
            _ => json!({"matchLabels": {HOSTNAME: *rng.pick(&NODES)}}),
        }
    }

    fn change(&mut self, bench: &mut PluginTestBench, rng: &mut Rng) -> &'static str {
        let mut more = self.next_version();
        match rng.below(11) {
            0 | 1 => {
                merge(&mut more, &self.affinity(rng));
                let size = *rng.pick(&["1Gi", "2Gi"]);
                merge(&mut more, &json!({"spec": {"capacity": {"storage": size}}}));
                if rng.one_in(4) {
                    let claim = *rng.pick(&CLAIMS);
                    let claim_ref = json!({"namespace": "default", "name": claim});
                    merge(&mut more, &json!({"spec": {"claimRef": claim_ref}}));
                }
                let (name, class) = (*rng.pick(&VOLUMES), *rng.pick(&["static", "wait"]));
                volume(bench, name, class, more);
                "volume"
            }
            2 => {
                let name = *rng.pick(&VOLUMES);
                bench.delete_object(&StorageKind::PersistentVolume.gvr(), "", name);
                "volume deleted"
            }
            3 | 4 => {
                let name = *rng.pick(&CLAIMS);
                match rng.below(4) {
                    0 => bound_claim(bench, name, pick(rng, &VOLUMES)),
                    1 => {
                        let node = json!({"volume.kubernetes.io/selected-node": *rng.pick(&NODES)});
                        merge(&mut more, &json!({"metadata": {"annotations": node}}));
                        claim(bench, name, "wait", more);
                    }
                    _ => claim(bench, name, pick(rng, &["static", "wait"]), more),
                }
                "claim"
            }
            5 => {
                let (name, zone) = (*rng.pick(&NODES), *rng.pick(&["a", "b"]));
                let mut changed = node_of(name, zone);
                if rng.one_in(2) {
                    changed = changed.label(DISK, "ssd");
                }
                bench.node(changed).unwrap();
                "node"
            }
            6 => {
                let size = *rng.pick(&["512Mi", "1Gi", "3Gi"]);
                let name = format!("c{}", rng.below(4));
                let object = json!({"metadata": {"name": name, "namespace": "csi"}, "storageClassName": "wait",
                    "nodeTopology": self.topology(rng), "capacity": size});
                bench.object(&StorageKind::CsiStorageCapacity.gvr(), object).unwrap();
                "capacity"
            }
            7 => {
                let driver = json!({"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": rng.one_in(2)}});
                bench.object(&StorageKind::CsiDriver.gvr(), driver).unwrap();
                "driver"
            }
            8 => {
                let requirement = json!([{"key": ZONE, "values": [*rng.pick(&["a", "b"])]}]);
                let terms = json!([{"matchLabelExpressions": requirement}]);
                let more =
                    json!({"allowedTopologies": if rng.one_in(2) { terms } else { json!([]) }});
                class(bench, "wait", "WaitForFirstConsumer", "csi.example.com", more);
                "class"
            }
            9 => {
                let pod = pod_with(&[*rng.pick(&CLAIMS)])
                    .set_field("/metadata/name", format!("r{}", self.version));
                if let Ok(mut cycle) = bench.start_cycle(pod, pick(rng, &NODES)) {
                    assert_eq!(bench.reserve(&mut cycle), "Success");
                    self.reserved.push(cycle);
                }
                "reserve"
            }
            _ => {
                if !self.reserved.is_empty() {
                    let at = rng.below(self.reserved.len() as u64) as usize;
                    bench.unreserve(self.reserved.remove(at));
                }
                "unreserve"
            }
        }
    }
}

fn with_term(expressions: Value) -> Value {
    let terms = json!([{"matchExpressions": expressions}]);
    json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}})
}

fn node_of(name: &str, zone: &str) -> loadmaster_framework::testkit::NodeBuilder {
    node(name).label(ZONE, zone).label(HOSTNAME, name)
}

fn run_history(seed: u64) -> Result<(), PluginTestBenchError> {
    let gates = FeatureGates {
        storage_capacity_scoring: seed.is_multiple_of(2),
        ..FeatureGates::default()
    };
    let mut bench = bench_with(json!({}), gates);
    for (name, zone) in [("b2", "b"), ("c1", "c"), ("c2", "c")] {
        bench.node(node_of(name, zone)).unwrap();
    }
    for name in CLAIMS {
        claim(&mut bench, name, "wait", json!({}));
    }
    let mut history =
        History { version: 100, by_zone: seed.is_multiple_of(3), reserved: Vec::new() };
    let mut n_pods = 0;
    let pod = |rng: &mut Rng| {
        n_pods += 1;
        let claims: Vec<&str> = CLAIMS.into_iter().filter(|_| rng.one_in(2)).collect();
        pod_with(&claims).set_field("/metadata/name", format!("w{n_pods}")).into()
    };
    let change = |bench: &mut PluginTestBench, rng: &mut Rng| Ok(history.change(bench, rng));
    check_incremental_history(&mut bench, &mut Rng::new(seed), 60, pod, change)
}

#[test]
fn evaluators_follow_random_changes() {
    for seed in 0..150 {
        run_history(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}
