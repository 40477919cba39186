use super::super::compare;
use super::*;

/// Compares Loadmaster's answer; `reference` is what kube-scheduler answers to the reference case, if it is asked again.
#[track_caller]
fn check(
    case: &OracleCase,
    theirs: &Value,
    reference: Option<&Value>,
    ours: &Value,
    want: Option<&str>,
) {
    let mut is_asked = false;
    let found = compare::compare(case, theirs, ours, |asked| {
        is_asked = true;
        assert_ne!(asked, case);
        Ok(reference.cloned().unwrap())
    });
    assert_eq!(found.unwrap().map(|difference| difference.kind).as_deref(), want);
    assert_eq!(is_asked, reference.is_some());
}

fn explain(pod: Value) -> OracleCase {
    case(OracleCaseKind::Explain, vec![pod])
}

fn case(kind: OracleCaseKind, objects: Vec<Value>) -> OracleCase {
    OracleCase {
        id: 0,
        pod: "default/web".to_owned(),
        config: None,
        feature_gates: Default::default(),
        objects,
        kind,
    }
}

fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// The answer for a pod that PreFilter rejects on both nodes.
fn rejected(plugin: &str, reason: &str) -> Value {
    let status =
        json!({"code": "UnschedulableAndUnresolvable", "plugin": plugin, "reasons": [reason]});
    let nodes = ["a", "b"].map(|name| json!({"name": name, "filter": status}));
    let message = format!("0/2 nodes are available: {reason}.");
    json!({"preFilter": status, "nodes": nodes, "best": [], "message": message})
}

const OUR_DEVICES: &str = "pod has ResourceClaims, which this version does not support yet";

/// Only a rejection for a missing claim is replaced.
#[test]
fn other_rejections_of_pods_with_claims_are_compared() {
    let case = explain(pod("web", json!({"resourceClaims": [{"name": "gpu"}]})));
    let theirs = rejected("NodeAffinity", "pod affinity terms conflict");
    check(&case, &theirs, None, &theirs, None);
    let ours = rejected("DynamicResources", OUR_DEVICES);
    let want = "deviation: preFilter of NodeAffinity versus DynamicResources";
    check(&case, &theirs, None, &ours, Some(want));
    let theirs = rejected("DynamicResources", "resourceclaim in use");
    check(&case, &theirs, None, &ours, Some("deviation: preFilter of DynamicResources"));
    assert!(of(&self::case(OracleCaseKind::Preemption, case.objects.clone())).is_empty());
    assert!(of(&explain(pod("web", json!({})))).is_empty());
}

#[test]
fn pods_with_resource_claims() {
    let case = explain(pod("web", json!({"resourceClaims": [{"name": "gpu"}]})));
    let mut theirs = rejected("DynamicResources", "could not find ResourceClaim \"default/gpu\"");
    theirs["preEnqueue"] = theirs["preFilter"].clone();
    let check = |ours: &Value, want| check(&case, &theirs, None, ours, want);
    check(&rejected("DynamicResources", OUR_DEVICES), None);
    let gone = "deviation: preEnqueue of none versus DynamicResources";
    check(&theirs, Some(gone));
    check(&rejected("DynamicResources", "x"), Some("deviation: preFilter of DynamicResources"));
}

fn holds_port_80(name: &str, priority: i64) -> Value {
    let container = json!({"name": "c", "ports": [{"hostPort": 80}]});
    pod(name, json!({"nodeName": "a", "priority": priority, "containers": [container]}))
}

fn no_victims(reason: &str) -> Value {
    let status = json!({"code": "Unschedulable", "reasons": [reason]});
    json!({"fits": false, "candidates": {}, "best": [], "nominated": "", "status": status})
}

fn victim(name: &str) -> Value {
    let victims = json!({"victims": [name], "pdbViolations": 0});
    json!({"fits": false, "candidates": {"a": victims}, "best": ["a"], "nominated": "a", "status": {"code": "Success"}})
}

#[test]
fn victims_with_the_same_host_port() {
    let web = pod("web", json!({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}));
    let objects = vec![holds_port_80("weak", 0), holds_port_80("strong", 20), web];
    let case = case(OracleCaseKind::Preemption, objects);
    let (theirs, reference) = (victim("default/weak"), no_victims("ports"));
    let check = |ours: &Value, want| check(&case, &theirs, Some(&reference), ours, want);
    check(&reference, None);
    check(&theirs, Some("deviation: candidates"));
    check(&no_victims("other"), Some("deviation: status of PostFilter"));
    check(&victim("default/strong"), Some("deviation: candidates"));
}

#[test]
fn victims_that_have_not_started() {
    let assigned = |name| pod(name, json!({"nodeName": "a", "priority": 0}));
    let objects = vec![assigned("p"), assigned("q"), pod("web", json!({"priority": 1}))];
    let case = case(OracleCaseKind::Preemption, objects);
    let reference = victim("default/q");
    let check = |ours: &Value, want| {
        check(&case, &victim("default/p"), Some(&reference), ours, want);
    };
    check(&victim("default/q"), None);
    check(&victim("default/p"), Some("deviation: victims"));
}

#[test]
fn claims_whose_class_is_in_the_annotation_only() {
    let claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "data",
        "annotations": {"volume.beta.kubernetes.io/storage-class": "fast"}}, "spec": {}});
    let mut case = case(OracleCaseKind::Explain, vec![claim, pod("web", json!({}))]);
    assert!(of(&case).is_empty());
    case.feature_gates.insert("StorageCapacityScoring".to_owned(), true);
    let theirs =
        json!({"error": "panic: runtime error: invalid memory address or nil pointer dereference"});
    let scored = json!({"nodes": [], "best": ["a"], "message": ""});
    let check = |ours: &Value, want| check(&case, &theirs, Some(&scored), ours, want);
    check(&scored, None);
    check(&json!({"nodes": [], "best": ["b"], "message": ""}), Some("deviation: best"));
}

#[test]
fn pods_that_never_preempt() {
    let of_policy = |policy: &str| {
        case(OracleCaseKind::Preemption, vec![pod("web", json!({"preemptionPolicy": policy}))])
    };
    let keeps = |reason: &str| {
        let status = json!({"code": "Unschedulable", "reasons": [reason]});
        json!({"fits": false, "candidates": {}, "best": [], "status": status})
    };
    let never = "preemption: not eligible due to preemptionPolicy=Never.";
    check(&of_policy("Never"), &keeps(never), None, &no_victims(never), None);
    let kept = Some("deviation: nomination");
    check(&of_policy("Never"), &keeps(never), None, &keeps(never), kept);
    let fits = json!({"fits": true, "candidates": {}, "best": []});
    check(&of_policy("Never"), &fits, None, &fits, None);
    let usual = of_policy("PreemptLowerPriority");
    check(&usual, &keeps("ports"), None, &no_victims("ports"), Some("nomination"));
}

#[test]
fn plugins_of_configurations() {
    #[track_caller]
    fn check(theirs: Value, want: Value) {
        assert_eq!(expected_plugins(&json!({"x": theirs})), json!({"x": want}));
    }
    check(json!({"filter": [["P", 0]]}), json!({"filter": [["P", 0]]}));
    let devices = json!([["DynamicResources", 0], ["P", 0]]);
    check(json!({"filter": devices}), json!({"filter": [["P", 0]]}));
    check(json!({"preFilter": devices}), json!({"preFilter": [["DynamicResources", 0], ["P", 0]]}));
    check(json!({"reserve": [["DynamicResources", 0]], "placementScore": [["P", 1]]}), json!({}));
    check(json!({"bind": [["DefaultBinder", 0]]}), json!({"bind": [["DefaultBinder", 0]]}));
}

#[test]
fn parts_of_signatures() {
    let volumes = |volumes: Value| json!({"a": 1, VOLUMES_FRAGMENT: volumes});
    let claim = |name: &str| {
        json!({"persistentVolumeClaim": {"claimName": name, "readOnly": true}}).to_string()
    };
    let mut theirs = volumes(json!([claim("b"), claim("a"), "{\"emptyDir\":{}}"]));
    theirs["v1.Pod.Spec.DynamicResources"] = json!([]);
    let want = volumes(json!(["a", "b"]));
    assert_eq!(json!(expected_signature(theirs.as_object().unwrap().clone())), want);
}

/// Every scenario that is named exists and is marked, and no marked one about kube-scheduler's answers is unnamed here. Those about
/// scheduler-plugins answer no case of a fresh comparison.
#[test]
fn scenarios_of_deviations() {
    let folder = crate::root().unwrap().join("scenarios");
    let mut named: Vec<_> = with_scenario().map(|(_, path)| folder.join(path)).collect();
    named.sort();
    let paths = loadmaster_sim::scenario::scenario_paths(&folder).unwrap();
    let marked = paths.into_iter().filter(|path| {
        let (_, scenario) = loadmaster_sim::scenario::read_scenario_file(path).unwrap();
        let of_plugins =
            scenario.oracle.is_some_and(|oracle| oracle.starts_with("scheduler-plugins "));
        scenario.deviation.is_some() && !of_plugins
    });
    assert_eq!(named, marked.collect::<Vec<_>>());
}
