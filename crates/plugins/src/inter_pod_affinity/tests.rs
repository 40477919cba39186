//! One test per rule; the expected results are upstream's.

use std::sync::Arc;

use expect_test::{Expect, expect};
use loadmaster_framework::cluster_event::EventObject;
use loadmaster_framework::testkit::PluginTestBench;
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, CycleState, EventResource, FeatureGates, PreFilterResult,
    SerialCx,
};
use serde_json::{Map, Value, json};

use super::DEF;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Two nodes in zone a, one in zone b, one without a zone.
fn bench(args: Value) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, args).unwrap();
    for (name, zone) in [("a1", Some("a")), ("a2", Some("a")), ("b1", Some("b")), ("lost", None)] {
        bench.node(node(name, zone)).unwrap();
    }
    bench
}

fn node(name: &str, zone: Option<&str>) -> Value {
    let mut node = json!({"metadata": {"name": name, "labels": {"host": name}}});
    if let Some(zone) = zone {
        node["metadata"]["labels"]["zone"] = zone.into();
    }
    node
}

/// A pod with the label `app`, and with terms by kind: `podAffinity` or `podAntiAffinity`.
fn pod(app: &str, terms: &[(&str, Value)]) -> Value {
    let affinity: Map<String, Value> =
        terms.iter().map(|(kind, terms)| ((*kind).to_owned(), terms.clone())).collect();
    json!({
        "metadata": {"name": app, "labels": {"app": app}},
        "spec": {"affinity": affinity},
    })
}

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
}

fn required(key: &str, app: &str) -> Value {
    json!({ REQUIRED: [term(key, app)] })
}

fn preferred(weight: i64, key: &str, app: &str) -> Value {
    json!({ PREFERRED: [{"weight": weight, "podAffinityTerm": term(key, app)}] })
}

fn assign_pods(bench: &mut PluginTestBench, pods: &[(&str, Value)]) {
    for (at, (node, pod)) in pods.iter().enumerate() {
        let mut pod = pod.clone();
        pod["metadata"]["uid"] = format!("{at}").into();
        bench.add_assigned_pod(node, pod).unwrap();
    }
}

#[track_caller]
fn check_filter(placed: &[(&str, Value)], incoming: Value, want: &Expect) {
    let mut bench = bench(json!({}));
    assign_pods(&mut bench, placed);
    want.assert_eq(&bench.filter(incoming).unwrap().join("\n"));
}

#[track_caller]
fn check_score(args: Value, placed: &[(&str, Value)], incoming: Value, want: &Expect) {
    let mut bench = bench(args);
    assign_pods(&mut bench, placed);
    let scores = bench.score(incoming).unwrap();
    let scores: Vec<String> =
        scores.iter().map(|(node, score)| format!("{node} {score}")).collect();
    want.assert_eq(&scores.join(", "));
}

#[test]
fn required_affinity_needs_a_matching_pod_in_every_domain() {
    check_filter(
        &[("a1", pod("db", &[]))],
        pod("web", &[("podAffinity", required("zone", "db"))]),
        &expect![[r#"
            a1 Success
            a2 Success
            b1 UnschedulableAndUnresolvable node(s) didn't match pod affinity rules
            lost UnschedulableAndUnresolvable node(s) didn't match pod affinity rules"#]],
    );
}

#[test]
fn a_pod_counts_only_if_it_matches_all_affinity_terms() {
    let both = json!({ REQUIRED: [term("zone", "db"), term("host", "cache")] });
    check_filter(
        &[("a1", pod("db", &[])), ("a2", pod("cache", &[]))],
        pod("web", &[("podAffinity", both)]),
        &expect![[r#"
            a1 UnschedulableAndUnresolvable node(s) didn't match pod affinity rules
            a2 UnschedulableAndUnresolvable node(s) didn't match pod affinity rules
            b1 UnschedulableAndUnresolvable node(s) didn't match pod affinity rules
            lost UnschedulableAndUnresolvable node(s) didn't match pod affinity rules"#]],
    );
}

#[test]
fn the_first_pod_of_a_group_fits_on_nodes_with_the_topology_key() {
    check_filter(
        &[],
        pod("web", &[("podAffinity", required("zone", "web"))]),
        &expect![[r#"
            a1 Success
            a2 Success
            b1 Success
            lost UnschedulableAndUnresolvable node(s) didn't match pod affinity rules"#]],
    );
    // One on a node without the key changes nothing; one elsewhere does.
    check_filter(
        &[("lost", pod("web", &[])), ("b1", pod("web", &[]))],
        pod("web", &[("podAffinity", required("zone", "web"))]),
        &expect![[r#"
            a1 UnschedulableAndUnresolvable node(s) didn't match pod affinity rules
            a2 UnschedulableAndUnresolvable node(s) didn't match pod affinity rules
            b1 Success
            lost UnschedulableAndUnresolvable node(s) didn't match pod affinity rules"#]],
    );
}

#[test]
fn anti_affinity_applies_in_both_directions_and_the_own_one_is_reported_first() {
    let db = pod("db", &[("podAntiAffinity", required("host", "web"))]);
    check_filter(
        &[("a1", db.clone()), ("b1", db)],
        pod("web", &[("podAntiAffinity", required("zone", "db"))]),
        &expect![[r#"
            a1 Unschedulable node(s) didn't match pod anti-affinity rules
            a2 Unschedulable node(s) didn't match pod anti-affinity rules
            b1 Unschedulable node(s) didn't match pod anti-affinity rules
            lost Success"#]],
    );
    let db = pod("db", &[("podAntiAffinity", required("host", "web"))]);
    check_filter(
        &[("a1", db)],
        pod("web", &[]),
        &expect![[r#"
            a1 Unschedulable node(s) didn't satisfy existing pods anti-affinity rules
            a2 Success
            b1 Success
            lost Success"#]],
    );
}

#[test]
fn pre_filter_skips_pods_without_terms_that_no_existing_term_matches() {
    let mut bench = bench(json!({}));
    bench
        .add_assigned_pod("a1", pod("db", &[("podAntiAffinity", required("host", "web"))]))
        .unwrap();
    assert_eq!(bench.pre_filter(pod("other", &[])).unwrap(), "Skip");
    assert_eq!(bench.pre_filter(pod("web", &[])).unwrap(), "All");
    let with_terms = pod("other", &[("podAntiAffinity", required("host", "none"))]);
    assert_eq!(bench.pre_filter(with_terms).unwrap(), "All");
}

/// Whether a pod with one required affinity term fits beside a pod of namespace `namespace`.
fn term_selects_namespace(namespace: &str, term_more: Value) -> bool {
    let mut bench = bench(json!({}));
    bench.namespace(json!({"metadata": {"name": "known", "labels": {"team": "x"}}})).unwrap();
    let mut db = pod("db", &[]);
    db["metadata"]["namespace"] = namespace.into();
    bench.add_assigned_pod("a1", db).unwrap();
    let mut term = term("host", "db");
    for (name, value) in term_more.as_object().unwrap() {
        term[name] = value.clone();
    }
    let web = pod("web", &[("podAffinity", json!({ REQUIRED: [term] }))]);
    bench.filter(web).unwrap()[0] == "a1 Success"
}

#[test]
fn terms_select_namespaces_by_name_and_by_label() {
    assert!(
        term_selects_namespace("default", json!({})),
        "the namespace of the pod is the default"
    );
    assert!(!term_selects_namespace("known", json!({})));
    assert!(term_selects_namespace("known", json!({"namespaces": ["known"]})));
    assert!(!term_selects_namespace("default", json!({"namespaces": ["known"]})));
    assert!(
        term_selects_namespace("unknown", json!({"namespaceSelector": {}})),
        "an empty selector means all"
    );
    let team = json!({"namespaceSelector": {"matchLabels": {"team": "x"}}});
    assert!(term_selects_namespace("known", team.clone()));
    assert!(!term_selects_namespace("unknown", team.clone()));
    assert!(!term_selects_namespace("default", team));
    // Upstream evaluates the selector against empty labels too: one that matches them selects every
    // namespace.
    let absent = json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]});
    assert!(term_selects_namespace("known", json!({"namespaceSelector": absent})));
}

#[test]
fn namespace_selectors_of_existing_pods_match_the_labels_of_the_incoming_pods_namespace() {
    let mut bench = bench(json!({}));
    let absent = json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]});
    let mut anti_affinity_term = term("host", "web");
    anti_affinity_term["namespaceSelector"] = absent;
    bench
        .add_assigned_pod(
            "a1",
            pod("db", &[("podAntiAffinity", json!({ REQUIRED: [anti_affinity_term] }))]),
        )
        .unwrap();
    assert_ne!(bench.filter(pod("web", &[])).unwrap()[0], "a1 Success");
    bench.namespace(json!({"metadata": {"name": "default", "labels": {"team": "x"}}})).unwrap();
    assert_eq!(bench.filter(pod("web", &[])).unwrap()[0], "a1 Success");
}

#[test]
fn weights_of_both_directions_are_summed_and_normalized() {
    let anti_affine = pod("shy", &[("podAntiAffinity", preferred(30, "zone", "web"))]);
    let affine = pod("fond", &[("podAffinity", required("host", "web"))]);
    let web = pod("web", &[("podAffinity", preferred(10, "host", "fond"))]);
    // Zone a: -30. On a2: 10 for the preferred term of the pod, and 5 for the required term of the other pod.
    check_score(
        json!({"hardPodAffinityWeight": 5}),
        &[("a1", anti_affine), ("a2", affine)],
        web,
        &expect!["a1 0, a2 50, b1 100, lost 100"],
    );
}

#[test]
fn normalization_divides_before_it_truncates() {
    let near =
        |weight, node| (node, pod("db", &[("podAffinity", preferred(weight, "host", "web"))]));
    check_score(
        json!({}),
        &[near(29, "a1"), near(100, "a2")],
        pod("web", &[]),
        &expect!["a1 28, a2 100, b1 0, lost 0"],
    );
}

#[test]
fn equal_sums_score_zero_and_without_sums_nodes_are_not_scored() {
    check_score(
        json!({}),
        &[("a1", pod("db", &[]))],
        pod("web", &[("podAffinity", preferred(9, "nowhere", "db"))]),
        &expect![""],
    );
    let near = |node| (node, pod(node, &[("podAffinity", preferred(9, "host", "web"))]));
    check_score(
        json!({}),
        &[near("a1"), near("a2"), near("b1"), near("lost")],
        pod("web", &[]),
        &expect!["a1 0, a2 0, b1 0, lost 0"],
    );
}

#[test]
fn preferred_terms_of_existing_pods_can_be_ignored() {
    let db = || pod("db", &[("podAffinity", preferred(9, "host", "web"))]);
    let args = json!({"ignorePreferredTermsOfExistingPods": true});
    check_score(args.clone(), &[("a1", db())], pod("web", &[]), &expect![""]);
    // A pod with a preferred term of its own is scored, and the terms of existing pods count as well.
    let web = pod("web", &[("podAffinity", preferred(1, "zone", "db"))]);
    check_score(args, &[("a1", db())], web, &expect!["a1 100, a2 10, b1 0, lost 0"]);
}

/// The nodes that fit after a dry run has added `other` to the node or removed it.
fn after_dry_run(
    bench: &mut PluginTestBench,
    incoming: &Value,
    node: &str,
    other: Value,
    add: bool,
) -> Vec<String> {
    let incoming = bench.parse_pod(incoming.clone()).unwrap();
    let other = Arc::new(bench.parse_pod(other).unwrap());
    let (mut cycle, mut states) = (CycleState::default(), Default::default());
    let world = &bench.world;
    let points = bench.extension_points();
    let (pre, filter) = (points.pre_filter.clone().unwrap(), points.filter.clone().unwrap());
    let cx = SerialCx { world, cycle: &mut cycle, states: &mut states };
    assert_eq!(pre.pre_filter(cx, &incoming), Ok(PreFilterResult::All));
    let node = world.node(world.nodes().row(node).unwrap()).unwrap();
    if add {
        pre.add_pod(&mut cycle, world, &incoming, &other, node).unwrap();
    } else {
        pre.remove_pod(&mut cycle, world, &incoming, &other, node).unwrap();
    }
    let cx = Cx { world, cycle: &cycle, states: &states };
    let fits = world.node_infos().filter(|node| filter.filter(cx, &incoming, *node).is_ok());
    fits.map(|node| node.name().to_owned()).collect()
}

#[test]
fn dry_runs_update_all_three_counts() {
    let db = pod("db", &[("podAntiAffinity", required("host", "web"))]);
    let mut bench = bench(json!({}));
    bench.add_assigned_pod("a1", db.clone()).unwrap();
    let anti_affine = pod("web", &[("podAntiAffinity", required("zone", "db"))]);
    assert_eq!(after_dry_run(&mut bench, &anti_affine, "b1", db.clone(), true), ["lost"]);
    assert_eq!(
        after_dry_run(&mut bench, &anti_affine, "a1", db, false),
        ["a1", "a2", "b1", "lost"]
    );
    let affine = pod("fond", &[("podAffinity", required("zone", "fond"))]);
    bench.add_assigned_pod("b1", affine.clone()).unwrap();
    assert_eq!(after_dry_run(&mut bench, &affine, "a1", affine.clone(), true), ["a1", "a2", "b1"]);
    // Without the last matching pod, the incoming pod is the first of its group again.
    assert_eq!(after_dry_run(&mut bench, &affine, "b1", affine.clone(), false), ["a1", "a2", "b1"]);
}

#[test]
fn signs_the_labels_of_pods_without_terms() {
    let mut bench = bench(json!({}));
    let with = |more: Value| json!({"metadata": {"name": "p"}, "spec": {"affinity": more}});
    assert_eq!(bench.sign(with(json!(null))).unwrap(), json!({"v1.Pod.Labels": null}));
    assert_eq!(bench.sign(with(json!({"podAffinity": {}}))).unwrap(), json!(null));
    let labeled = json!({"metadata": {"name": "p", "labels": {"a": "b"}}});
    assert_eq!(bench.sign(labeled.clone()).unwrap(), json!({"v1.Pod.Labels": {"a": "b"}}));
    let ignores = json!({"ignorePreferredTermsOfExistingPods": true});
    assert_eq!(PluginTestBench::new(&DEF, ignores).unwrap().sign(labeled).unwrap(), json!({}));
}

#[test]
fn pods_wake_when_they_satisfy_affinity_or_resolve_anti_affinity() {
    let mut bench = bench(json!({}));
    let both =
        [("podAffinity", required("zone", "db")), ("podAntiAffinity", required("zone", "noise"))];
    let incoming = pod("web", &both);
    let mut hint = |action: ActionType, old: Option<Value>, new: Option<Value>| {
        let old = old.map(|pod| bench.parse_pod(pod).unwrap());
        let new = new.map(|pod| bench.parse_pod(pod).unwrap());
        let event = ClusterEvent::new(EventResource::AssignedPod, action);
        let (old, new) = (old.as_ref().map(EventObject::Pod), new.as_ref().map(EventObject::Pod));
        bench.queueing_hint(event, incoming.clone(), old, new).unwrap()
    };
    let on = |node: &str, mut pod: Value| {
        pod["metadata"]["uid"] = "x".into();
        pod["spec"]["nodeName"] = node.into();
        pod
    };
    let [db, noise, other] = ["db", "noise", "other"].map(|app| on("a1", pod(app, &[])));
    assert_eq!(hint(ActionType::ADD, None, Some(db.clone())), "Queue");
    assert_eq!(hint(ActionType::ADD, None, Some(on("", pod("db", &[])))), "Skip");
    assert_eq!(hint(ActionType::ADD, None, Some(other.clone())), "Skip");
    assert_eq!(hint(ActionType::DELETE, Some(noise.clone()), None), "Queue");
    assert_eq!(hint(ActionType::DELETE, Some(db.clone()), None), "Skip");
    let with_anti_affinity =
        on("a1", pod("other", &[("podAntiAffinity", required("zone", "web"))]));
    assert_eq!(hint(ActionType::DELETE, Some(with_anti_affinity), None), "Queue");
    let label = ActionType::UPDATE_POD_LABEL;
    assert_eq!(hint(label, Some(other.clone()), Some(db.clone())), "Queue");
    assert_eq!(hint(label, Some(noise), Some(other.clone())), "Queue");
    assert_eq!(hint(label, Some(db), Some(other)), "Skip");
    assert_eq!(
        hint(label, Some(incoming.clone()), Some(incoming.clone())),
        "Queue",
        "its own labels"
    );
}

#[test]
fn nodes_wake_when_they_join_an_affinity_domain_or_leave_an_anti_affinity_domain() {
    let mut bench = bench(json!({}));
    let mut hint = |incoming: &Value, old: Option<Value>, new: Value| {
        let read = |node: Value| serde_json::from_value::<loadmaster_api::Node>(node).unwrap();
        let (old, new) = (old.map(read), read(new));
        let action = if old.is_none() { ActionType::ADD } else { ActionType::UPDATE_NODE_LABEL };
        let event = ClusterEvent::new(EventResource::Node, action);
        let old = old.as_ref().map(EventObject::Node);
        bench.queueing_hint(event, incoming.clone(), old, Some(EventObject::Node(&new))).unwrap()
    };
    let (a, b, lost) = (node("n", Some("a")), node("n", Some("b")), node("n", None));
    let affine = pod("web", &[("podAffinity", required("zone", "db"))]);
    assert_eq!(hint(&affine, None, a.clone()), "Queue");
    assert_eq!(hint(&affine, None, lost.clone()), "Skip");
    assert_eq!(hint(&affine, Some(lost.clone()), a.clone()), "Queue");
    assert_eq!(hint(&affine, Some(a.clone()), b.clone()), "Queue");
    assert_eq!(hint(&affine, Some(a.clone()), lost.clone()), "Skip");
    let anti_affine = pod("web", &[("podAntiAffinity", required("zone", "db"))]);
    assert_eq!(hint(&anti_affine, None, lost.clone()), "Queue");
    assert_eq!(hint(&anti_affine, Some(lost.clone()), a.clone()), "Skip");
    assert_eq!(hint(&anti_affine, Some(a.clone()), b), "Queue");
    assert_eq!(hint(&anti_affine, Some(a.clone()), lost), "Queue");
    assert_eq!(hint(&anti_affine, Some(a.clone()), a), "Skip");
}

#[test]
fn arguments_are_completed_and_validated() {
    let complete = |given: Value| match super::complete(&given, &FeatureGates::default()) {
        Ok(complete) => complete.to_string(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    };
    expect![[r#"{"hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false}"#]]
        .assert_eq(&complete(json!({})));
    expect!["hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"]
        .assert_eq(&complete(json!({"hardPodAffinityWeight": 101})));
    expect![[
        "weight: unknown field `weight`, expected `hardPodAffinityWeight` or `ignorePreferredTermsOfExistingPods`"
    ]]
    .assert_eq(&complete(json!({"weight": 1})));
}

#[test]
fn explain_names_terms_and_pods() {
    #[track_caller]
    fn check(placed: &[(&str, Value)], incoming: Value, want: &Expect) {
        let mut bench = bench(json!({}));
        assign_pods(&mut bench, placed);
        want.assert_eq(&bench.explain(incoming).unwrap().join("\n"));
    }
    let web = || pod("web", &[]);
    check(
        &[("a1", web())],
        pod("x", &[("podAffinity", required("zone", "web"))]),
        &expect![[r#"
        b1: affinity=term 1 (app=web) has no pod in zone=b
        lost: affinity=term 1 (app=web): the node has no zone"#]],
    );
    let apart = pod("x", &[("podAntiAffinity", required("zone", "web"))]);
    check(
        &[("a1", web()), ("a1", web()), ("a2", web()), ("a2", web())],
        apart,
        &expect![[r#"
        a1: antiAffinity=term 1 (app=web) has default/web, default/web, default/web and 1 more in zone=a
        a2: antiAffinity=term 1 (app=web) has default/web, default/web, default/web and 1 more in zone=a"#]],
    );
    let alone = pod("alone", &[("podAntiAffinity", required("host", "x"))]);
    check(
        &[("b1", alone), ("b1", web())],
        pod("x", &[]),
        &expect!["b1: antiAffinityOfOthers=of default/alone in host=b1"],
    );
    check(&[("a1", web())], web(), &expect![[r#""#]]);
}
