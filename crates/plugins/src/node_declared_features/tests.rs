use loadmaster_framework::testkit::incremental_history::check_incremental_history;
use loadmaster_framework::testkit::{NodeBuilder, PluginTestBench, PodBuilder, node, pod};
use loadmaster_framework::{EventObject, FeatureGates, Rng};
use serde_json::json;

use super::*;

const RESTART: &str = "RestartAllContainersOnContainerExits";
const USERS: &str = "UserNamespacesHostNetworkSupport";

/// What kubelets declare with the default gates.
const DEFAULT: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    RESTART,
];

fn declaring(name: &str, features: &[&str]) -> NodeBuilder {
    node(name).set_field("/status/declaredFeatures", json!(features))
}

fn bench() -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    let all = [&DEFAULT[..], &[USERS]].concat();
    for node in [
        node("none"),
        declaring("default", &DEFAULT),
        declaring("users", &[USERS]),
        declaring("all", &all),
    ] {
        bench.node(node).unwrap();
    }
    bench
}

/// A pod of which a container of this list restarts all containers.
fn restarts(list: &str) -> PodBuilder {
    let on_exit = json!({"operator": "In", "values": [42]});
    let rules = json!([{"action": "Restart", "exitCodes": on_exit}, {"action": "RestartAllContainers", "exitCodes": on_exit}]);
    let container = json!([{"name": "a"}, {"name": "b", "restartPolicy": "Never", "restartPolicyRules": rules}]);
    pod("web").set_field(list, container)
}

fn on_host(host_users: Value) -> PodBuilder {
    pod("web").set_field("/spec/hostNetwork", true).set_field("/spec/hostUsers", host_users)
}

/// The nodes on which the pod fits.
#[track_caller]
fn check(pod: PodBuilder, want: &str) {
    let results = bench().filter(pod).unwrap();
    let feasible = results.iter().filter_map(|result| result.strip_suffix(" Success"));
    assert_eq!(feasible.collect::<Vec<_>>().join(" "), want);
    let rejected = format!("UnschedulableAndUnresolvable {REASON}");
    assert!(results.iter().all(|it| it.ends_with("Success") || it.ends_with(&rejected)));
}

#[test]
fn nodes_must_declare_what_a_pod_needs() {
    check(pod("web"), "none default users all");
    check(restarts("/spec/containers"), "default all");
    check(restarts("/spec/initContainers"), "default all");
    check(on_host(json!(false)), "users all");
    check(on_host(json!(true)), "none default users all");
    check(on_host(Value::Null), "none default users all");
    check(pod("web").set_field("/spec/hostUsers", false), "none default users all");
    let both = restarts("/spec/containers").set_field("/spec/hostNetwork", true);
    check(both.set_field("/spec/hostUsers", false), "all");
}

#[test]
fn pods_without_required_features_are_skipped() {
    assert_eq!(bench().pre_filter(pod("web")).unwrap(), "Skip");
    assert_eq!(bench().pre_filter(restarts("/spec/containers")).unwrap(), "All");
}

#[test]
fn features_are_sorted() {
    assert!(FEATURES.windows(2).all(|pair| pair[0].name < pair[1].name));
    assert!(FEATURES.len() <= 8, "a FeatureSet has eight bits");
}

#[test]
fn lists_of_features_are_read_in_order() {
    #[track_caller]
    fn check(features: &[&str], want: bool) {
        let node: Value = declaring("a", features).into();
        assert_eq!(declares(&serde_json::from_value(node).unwrap(), RESTART), want);
    }
    check(&[], false);
    check(&[RESTART], true);
    check(&["Q", RESTART, RESTART, "S"], true);
    check(&["S", RESTART], false);
    check(&[USERS, RESTART], false);
    check(&["", "a"], false);
}

#[test]
fn hint_node_change() {
    let parse = |features: &[&str]| -> Node {
        serde_json::from_value(declaring("a", features).into()).unwrap()
    };
    let hint = |old: Option<&[&str]>, new: &[&str]| {
        let (old, new) = (old.map(parse), parse(new));
        let action = match old {
            Some(_) => ActionType::UPDATE_NODE_DECLARED_FEATURE,
            None => ActionType::ADD,
        };
        let event = ClusterEvent::new(EventResource::Node, action);
        let old = old.as_ref().map(EventObject::Node);
        let new = Some(EventObject::Node(&new));
        bench().queueing_hint(event, restarts("/spec/containers").into(), old, new).unwrap()
    };
    assert_eq!(hint(None, &[]), "Queue");
    assert_eq!(hint(Some(&[]), &[RESTART]), "Queue");
    // Whether the feature is one that the pod needs does not matter.
    assert_eq!(hint(Some(&[RESTART]), &["Other"]), "Queue");
    assert_eq!(hint(Some(&[RESTART]), &[RESTART]), "Skip");
}

#[test]
fn hint_pod_update() {
    let mut bench = bench();
    let mut hint = |old: PodBuilder, new: PodBuilder| {
        let [old, new] = [old, new].map(|pod| bench.parse_pod(pod).unwrap());
        let event = ClusterEvent::new(EventResource::UnschedulablePod, ActionType::UPDATE);
        let (old, new) = (Some(EventObject::Pod(&old)), Some(EventObject::Pod(&new)));
        bench.queueing_hint(event, pod("web").into(), old, new).unwrap()
    };
    let needs = || on_host(json!(false));
    assert_eq!(hint(needs(), pod("web")), "Queue");
    assert_eq!(hint(pod("web"), needs()), "Queue");
    assert_eq!(hint(needs(), restarts("/spec/containers")), "Queue");
    assert_eq!(hint(needs(), needs().label("app", "web")), "Skip");
    assert_eq!(hint(needs(), pod("other")), "Skip");
}

#[test]
fn signature_has_a_digit_per_feature() {
    #[track_caller]
    fn check(pod: PodBuilder, want: &str) {
        let signed = bench().sign(pod.into()).unwrap();
        assert_eq!(signed, json!({"v1.Pod.Spec.RequiredFeatures()": want}));
    }
    check(pod("web"), "00000");
    check(restarts("/spec/initContainers"), "00010");
    check(on_host(json!(false)), "00001");
}

#[test]
fn explain_names_the_features_that_a_node_lacks() {
    let details = bench().explain(restarts("/spec/containers")).unwrap();
    let required = format!("pod: requiredFeatures=[{RESTART}]");
    let missing = |node: &str| format!("{node}: missingFeatures=[{RESTART}]");
    assert_eq!(details, [required, missing("none"), missing("users")]);
    assert_eq!(bench().explain(pod("web")).unwrap(), [""; 0]);
}

#[test]
fn pods_share_their_key_if_they_need_the_same_features() {
    let mut bench = bench();
    let (main, init) = (restarts("/spec/containers"), restarts("/spec/initContainers"));
    assert!(bench.have_equal_keys(main.clone(), init).unwrap());
    assert!(!bench.have_equal_keys(main.clone(), on_host(json!(false))).unwrap());
    for pod in [pod("web"), main, on_host(json!(false))] {
        bench.check_key(pod).unwrap();
    }
}

#[test]
fn cached_evaluations_see_changed_nodes() {
    let pod = |rng: &mut Rng| match rng.below(3) {
        0 => restarts("/spec/containers").into(),
        1 => on_host(json!(false)).into(),
        _ => pod("web").into(),
    };
    let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
        let name = *rng.pick(&["none", "default", "new"]);
        let lists: [&[&str]; 3] = [&[], &DEFAULT, &[USERS]];
        let features = *rng.pick(&lists);
        bench.node(declaring(name, features)).map(|_| "node")
    };
    for seed in 0..20 {
        check_incremental_history(&mut bench(), &mut Rng::new(seed), 30, pod, change).unwrap();
    }
}

#[test]
fn nothing_is_checked_if_the_gate_is_off() {
    let gates = FeatureGates { node_declared_features: false, ..FeatureGates::default() };
    let mut bench = PluginTestBench::with_gates(&DEF, json!({}), gates).unwrap();
    bench.node(node("none")).unwrap();
    let pod = || restarts("/spec/containers");
    assert_eq!(bench.pre_filter(pod()).unwrap(), "Skip");
    assert_eq!(bench.filter(pod()).unwrap(), ["none Success"]);
    assert_eq!(bench.explain(pod()).unwrap(), [""; 0]);
    assert_eq!(bench.sign(pod().into()).unwrap(), Value::Null);
    assert!(bench.extension_points().events.as_ref().is_some_and(Vec::is_empty));
}
