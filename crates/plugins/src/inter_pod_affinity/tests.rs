//! One row a rule; the answers are upstream's.

use std::sync::Arc;

use expect_test::{Expect, expect};
use loadmaster_framework::event::EventObject;
use loadmaster_framework::testkit::Bench;
use loadmaster_framework::{
    Action, ClusterEvent, Cx, CycleState, EventResource, FeatureGates, PreFiltered, SerialCx,
};
use serde_json::{Map, Value, json};

use super::DEF;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Two nodes in zone a, one in zone b, one without a zone.
fn bench(args: Value) -> Bench {
    let mut bench = Bench::new(&DEF, args).unwrap();
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

fn place(bench: &mut Bench, pods: &[(&str, Value)]) {
    for (at, (node, pod)) in pods.iter().enumerate() {
        let mut pod = pod.clone();
        pod["metadata"]["uid"] = format!("{at}").into();
        bench.assigned(node, pod).unwrap();
    }
}

#[track_caller]
fn check_filter(placed: &[(&str, Value)], asked: Value, want: &Expect) {
    let mut bench = bench(json!({}));
    place(&mut bench, placed);
    want.assert_eq(&bench.filter(asked).unwrap().join("\n"));
}

#[track_caller]
fn check_score(args: Value, placed: &[(&str, Value)], asked: Value, want: &Expect) {
    let mut bench = bench(args);
    place(&mut bench, placed);
    let scores = bench.score(asked).unwrap();
    let scores: Vec<String> =
        scores.iter().map(|(node, score)| format!("{node} {score}")).collect();
    want.assert_eq(&scores.join(", "));
}

#[test]
fn required_affinity_asks_for_company_in_every_domain() {
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
fn company_counts_only_if_all_terms_speak_of_the_same_pod() {
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
fn the_first_of_its_kind_fits_where_the_key_is() {
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
fn refusals_work_both_ways_and_the_pods_own_comes_first() {
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
fn skips_pods_that_neither_speak_nor_are_spoken_of() {
    let mut bench = bench(json!({}));
    bench.assigned("a1", pod("db", &[("podAntiAffinity", required("host", "web"))])).unwrap();
    assert_eq!(bench.pre_filter(pod("other", &[])).unwrap(), "Skip");
    assert_eq!(bench.pre_filter(pod("web", &[])).unwrap(), "All");
    let speaks = pod("other", &[("podAntiAffinity", required("host", "nobody"))]);
    assert_eq!(bench.pre_filter(speaks).unwrap(), "All");
}

/// Whether a pod with one required affinity term fits beside a pod of namespace `namespace`.
fn reaches(namespace: &str, term_more: Value) -> bool {
    let mut bench = bench(json!({}));
    bench.namespace(json!({"metadata": {"name": "known", "labels": {"team": "x"}}})).unwrap();
    let mut db = pod("db", &[]);
    db["metadata"]["namespace"] = namespace.into();
    bench.assigned("a1", db).unwrap();
    let mut term = term("host", "db");
    for (name, value) in term_more.as_object().unwrap() {
        term[name] = value.clone();
    }
    let web = pod("web", &[("podAffinity", json!({ REQUIRED: [term] }))]);
    bench.filter(web).unwrap()[0] == "a1 Success"
}

#[test]
fn terms_reach_namespaces_by_name_and_by_label() {
    assert!(reaches("default", json!({})), "its own unless the term says otherwise");
    assert!(!reaches("known", json!({})));
    assert!(reaches("known", json!({"namespaces": ["known"]})));
    assert!(!reaches("default", json!({"namespaces": ["known"]})));
    assert!(reaches("unknown", json!({"namespaceSelector": {}})), "an empty selector means all");
    let team = json!({"namespaceSelector": {"matchLabels": {"team": "x"}}});
    assert!(reaches("known", team.clone()));
    assert!(!reaches("unknown", team.clone()));
    assert!(!reaches("default", team));
    // Upstream forgets to drop the selector: one that is content with no labels reaches every
    // namespace.
    let absent = json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]});
    assert!(reaches("known", json!({"namespaceSelector": absent})));
}

#[test]
fn namespace_selectors_of_other_pods_see_the_labels_of_the_pods_namespace() {
    let mut bench = bench(json!({}));
    let absent = json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]});
    let mut refusal = term("host", "web");
    refusal["namespaceSelector"] = absent;
    bench
        .assigned("a1", pod("db", &[("podAntiAffinity", json!({ REQUIRED: [refusal] }))]))
        .unwrap();
    assert_ne!(bench.filter(pod("web", &[])).unwrap()[0], "a1 Success");
    bench.namespace(json!({"metadata": {"name": "default", "labels": {"team": "x"}}})).unwrap();
    assert_eq!(bench.filter(pod("web", &[])).unwrap()[0], "a1 Success");
}

#[test]
fn weights_of_both_sides_are_summed_and_spread_over_the_range() {
    let shy = pod("shy", &[("podAntiAffinity", preferred(30, "zone", "web"))]);
    let fond = pod("fond", &[("podAffinity", required("host", "web"))]);
    let web = pod("web", &[("podAffinity", preferred(10, "host", "fond"))]);
    // Zone a: -30. On a2 there is company worth 10, and 5 for the other's required term.
    check_score(
        json!({"hardPodAffinityWeight": 5}),
        &[("a1", shy), ("a2", fond)],
        web,
        &expect!["a1 0, a2 50, b1 100, lost 100"],
    );
}

#[test]
fn shares_are_divided_before_they_are_truncated() {
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
fn equal_weights_are_worth_nothing_and_no_weights_are_not_scored() {
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
fn preferences_of_other_pods_can_be_ignored() {
    let db = || pod("db", &[("podAffinity", preferred(9, "host", "web"))]);
    let args = json!({"ignorePreferredTermsOfExistingPods": true});
    check_score(args.clone(), &[("a1", db())], pod("web", &[]), &expect![""]);
    // With a preference of its own the pod is scored, and the others' count as well.
    let web = pod("web", &[("podAffinity", preferred(1, "zone", "db"))]);
    check_score(args, &[("a1", db())], web, &expect!["a1 100, a2 10, b1 0, lost 0"]);
}

/// Which nodes fit after a dry run added `other` to the node or took it away.
fn after_dry_run(
    bench: &mut Bench,
    asked: &Value,
    node: &str,
    other: Value,
    add: bool,
) -> Vec<String> {
    let asked = bench.pod(asked.clone()).unwrap();
    let other = Arc::new(bench.pod(other).unwrap());
    let (mut cycle, mut states) = (CycleState::default(), Default::default());
    let world = &bench.world;
    let points = bench.points();
    let (pre, filter) = (points.pre_filter.clone().unwrap(), points.filter.clone().unwrap());
    let cx = SerialCx { world, cycle: &mut cycle, states: &mut states };
    assert_eq!(pre.pre_filter(cx, &asked), Ok(PreFiltered::All));
    let place = world.node(world.nodes().row(node).unwrap()).unwrap();
    if add {
        pre.add_pod(&mut cycle, world, &asked, &other, place).unwrap();
    } else {
        pre.remove_pod(&mut cycle, world, &asked, &other, place).unwrap();
    }
    let cx = Cx { world, cycle: &cycle, states: &states };
    let fits = world.node_infos().filter(|node| filter.filter(cx, &asked, *node).is_ok());
    fits.map(|node| node.name().to_owned()).collect()
}

#[test]
fn dry_runs_move_all_three_sums() {
    let db = pod("db", &[("podAntiAffinity", required("host", "web"))]);
    let mut bench = bench(json!({}));
    bench.assigned("a1", db.clone()).unwrap();
    let shy = pod("web", &[("podAntiAffinity", required("zone", "db"))]);
    assert_eq!(after_dry_run(&mut bench, &shy, "b1", db.clone(), true), ["lost"]);
    assert_eq!(after_dry_run(&mut bench, &shy, "a1", db, false), ["a1", "a2", "b1", "lost"]);
    let fond = pod("fond", &[("podAffinity", required("zone", "fond"))]);
    bench.assigned("b1", fond.clone()).unwrap();
    assert_eq!(after_dry_run(&mut bench, &fond, "a1", fond.clone(), true), ["a1", "a2", "b1"]);
    // Once the last of its kind is gone the pod is the first again.
    assert_eq!(after_dry_run(&mut bench, &fond, "b1", fond.clone(), false), ["a1", "a2", "b1"]);
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
    assert_eq!(Bench::new(&DEF, ignores).unwrap().sign(labeled).unwrap(), json!({}));
}

#[test]
fn pods_wake_when_they_bring_company_or_take_a_refusal_away() {
    let mut bench = bench(json!({}));
    let both =
        [("podAffinity", required("zone", "db")), ("podAntiAffinity", required("zone", "noise"))];
    let asked = pod("web", &both);
    let mut hint = |action: Action, old: Option<Value>, new: Option<Value>| {
        let old = old.map(|pod| bench.pod(pod).unwrap());
        let new = new.map(|pod| bench.pod(pod).unwrap());
        let event = ClusterEvent::new(EventResource::AssignedPod, action);
        let (old, new) = (old.as_ref().map(EventObject::Pod), new.as_ref().map(EventObject::Pod));
        bench.hint(event, asked.clone(), old, new).unwrap()
    };
    let on = |node: &str, mut pod: Value| {
        pod["metadata"]["uid"] = "x".into();
        pod["spec"]["nodeName"] = node.into();
        pod
    };
    let [db, noise, other] = ["db", "noise", "other"].map(|app| on("a1", pod(app, &[])));
    assert_eq!(hint(Action::ADD, None, Some(db.clone())), "Queue");
    assert_eq!(hint(Action::ADD, None, Some(on("", pod("db", &[])))), "Skip");
    assert_eq!(hint(Action::ADD, None, Some(other.clone())), "Skip");
    assert_eq!(hint(Action::DELETE, Some(noise.clone()), None), "Queue");
    assert_eq!(hint(Action::DELETE, Some(db.clone()), None), "Skip");
    let refuses = on("a1", pod("other", &[("podAntiAffinity", required("zone", "web"))]));
    assert_eq!(hint(Action::DELETE, Some(refuses), None), "Queue");
    let label = Action::UPDATE_POD_LABEL;
    assert_eq!(hint(label, Some(other.clone()), Some(db.clone())), "Queue");
    assert_eq!(hint(label, Some(noise), Some(other.clone())), "Queue");
    assert_eq!(hint(label, Some(db), Some(other)), "Skip");
    assert_eq!(hint(label, Some(asked.clone()), Some(asked.clone())), "Queue", "its own labels");
}

#[test]
fn nodes_wake_when_they_join_a_wanted_domain_or_leave_an_unwanted_one() {
    let mut bench = bench(json!({}));
    let mut hint = |asked: &Value, old: Option<Value>, new: Value| {
        let read = |node: Value| serde_json::from_value::<loadmaster_api::Node>(node).unwrap();
        let (old, new) = (old.map(read), read(new));
        let action = if old.is_none() { Action::ADD } else { Action::UPDATE_NODE_LABEL };
        let event = ClusterEvent::new(EventResource::Node, action);
        let old = old.as_ref().map(EventObject::Node);
        bench.hint(event, asked.clone(), old, Some(EventObject::Node(&new))).unwrap()
    };
    let (a, b, lost) = (node("n", Some("a")), node("n", Some("b")), node("n", None));
    let fond = pod("web", &[("podAffinity", required("zone", "db"))]);
    assert_eq!(hint(&fond, None, a.clone()), "Queue");
    assert_eq!(hint(&fond, None, lost.clone()), "Skip");
    assert_eq!(hint(&fond, Some(lost.clone()), a.clone()), "Queue");
    assert_eq!(hint(&fond, Some(a.clone()), b.clone()), "Queue");
    assert_eq!(hint(&fond, Some(a.clone()), lost.clone()), "Skip");
    let shy = pod("web", &[("podAntiAffinity", required("zone", "db"))]);
    assert_eq!(hint(&shy, None, lost.clone()), "Queue");
    assert_eq!(hint(&shy, Some(lost.clone()), a.clone()), "Skip");
    assert_eq!(hint(&shy, Some(a.clone()), b), "Queue");
    assert_eq!(hint(&shy, Some(a.clone()), lost), "Queue");
    assert_eq!(hint(&shy, Some(a.clone()), a), "Skip");
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
