//! One test per rule; the expected results are upstream's.

use std::sync::Arc;

use expect_test::{Expect, expect};
use loadmaster_api::{ReplicaSet, Service, Str};
use loadmaster_framework::cluster_event::EventObject;
use loadmaster_framework::testkit::PluginTestBench;
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, CycleState, EventResource, FeatureGates, PreFilterResult,
    SerialCx,
};
use serde_json::{Value, json};

use super::{DEF, args};

/// Four nodes in two zones, and one without a zone; pods with the label `app: a` by node.
fn bench(args: Value, pods: &[&str]) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, args).unwrap();
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")] {
        bench.node(node(name, Some(zone))).unwrap();
    }
    bench.node(node("lost", None)).unwrap();
    for (at, node) in pods.iter().enumerate() {
        bench.add_assigned_pod(node, assigned_pod(at)).unwrap();
    }
    bench
}

fn node(name: &str, zone: Option<&str>) -> Value {
    let mut node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}});
    if let Some(zone) = zone {
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = zone.into();
    }
    node
}

fn assigned_pod(at: usize) -> Value {
    json!({"metadata": {"name": format!("p{at}"), "labels": {"app": "a"}}})
}

fn incoming(constraints: Value) -> Value {
    json!({
        "metadata": {"name": "incoming", "labels": {"app": "a"}},
        "spec": {"topologySpreadConstraints": constraints},
    })
}

fn constraint(key: &str, action: &str, more: Value) -> Value {
    let mut constraint = json!({
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": action,
        "labelSelector": {"matchLabels": {"app": "a"}},
    });
    for (name, value) in more.as_object().unwrap() {
        constraint[name] = value.clone();
    }
    constraint
}

fn hard_zone(more: Value) -> Value {
    constraint("topology.kubernetes.io/zone", "DoNotSchedule", more)
}

#[track_caller]
fn check_filter(pods: &[&str], constraints: Value, want: &Expect) {
    let results = bench(json!({}), pods).filter(incoming(constraints)).unwrap();
    want.assert_eq(
        &results.join("\n").replace("node(s) didn't match pod topology spread constraints", "~"),
    );
}

#[track_caller]
fn check_score(args: Value, pods: &[&str], constraints: Value, want: &Expect) {
    let scores = bench(args, pods).score(incoming(constraints)).unwrap();
    let scores: Vec<String> =
        scores.iter().map(|(node, score)| format!("{node} {score}")).collect();
    want.assert_eq(&scores.join(", "));
}

#[test]
fn skew_is_relative_to_the_domain_with_the_fewest_matching_pods() {
    check_filter(
        &["a1", "a2", "b1"],
        json!([hard_zone(json!({}))]),
        &expect![[r#"
            a1 Unschedulable ~
            a2 Unschedulable ~
            b1 Success
            b2 Success
            lost UnschedulableAndUnresolvable ~ (missing required label)"#]],
    );
}

#[test]
fn a_pod_that_does_not_match_its_own_selector_does_not_count_itself() {
    check_filter(
        &["a1"],
        json!([hard_zone(json!({"labelSelector": {"matchLabels": {"app": "a", "x": "y"}}}))]),
        &expect![[r#"
            a1 Success
            a2 Success
            b1 Success
            b2 Success
            lost UnschedulableAndUnresolvable ~ (missing required label)"#]],
    );
}

#[test]
fn with_fewer_domains_than_min_domains_the_global_minimum_is_zero() {
    check_filter(
        &["a1", "b1"],
        json!([hard_zone(json!({"minDomains": 3}))]),
        &expect![[r#"
            a1 Unschedulable ~
            a2 Unschedulable ~
            b1 Unschedulable ~
            b2 Unschedulable ~
            lost UnschedulableAndUnresolvable ~ (missing required label)"#]],
    );
}

#[test]
fn the_first_constraint_that_fails_is_the_reason() {
    let host = constraint("kubernetes.io/hostname", "DoNotSchedule", json!({}));
    check_filter(
        &["lost", "a1"],
        json!([host, hard_zone(json!({}))]),
        &expect![[r#"
            a1 Unschedulable ~
            a2 Unschedulable ~
            b1 Success
            b2 Success
            lost UnschedulableAndUnresolvable ~ (missing required label)"#]],
    );
}

#[test]
fn nodes_without_the_key_of_another_constraint_do_not_count() {
    let mut bench = bench(json!({}), &["a1"]);
    let mut nameless = node("a1", Some("a"));
    nameless["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "a"});
    bench.node(nameless).unwrap();
    let zone = hard_zone(json!({}));
    let host = constraint("kubernetes.io/hostname", "DoNotSchedule", json!({"maxSkew": 9}));
    let mut result = |constraints: Value| bench.filter(incoming(constraints)).unwrap()[1].clone();
    assert_ne!(result(json!([zone])), "a2 Success");
    assert_eq!(result(json!([zone, host])), "a2 Success");
}

#[test]
fn absent_and_empty_selectors_count_no_pods() {
    for selector in [json!(null), json!({})] {
        check_filter(
            &["a1", "a2"],
            json!([hard_zone(json!({"labelSelector": selector}))]),
            &expect![[r#"
                a1 Success
                a2 Success
                b1 Success
                b2 Success
                lost UnschedulableAndUnresolvable ~ (missing required label)"#]],
        );
    }
}

#[test]
fn match_label_keys_restrict_the_selector_unless_the_gate_is_off() {
    let more = json!({"matchLabelKeys": ["version", "absent"]});
    let mut pod = incoming(json!([hard_zone(more)]));
    pod["metadata"]["labels"]["version"] = "2".into();
    for (gate, want) in [(true, "Success"), (false, "Unschedulable")] {
        let gates = FeatureGates {
            match_label_keys_in_pod_topology_spread: gate,
            ..FeatureGates::default()
        };
        let mut bench = PluginTestBench::with_gates(&DEF, json!({}), gates).unwrap();
        bench.node(node("a", Some("a"))).unwrap();
        bench.node(node("b", Some("b"))).unwrap();
        bench.add_assigned_pod("a", assigned_pod(0)).unwrap();
        let results = bench.filter(pod.clone()).unwrap();
        assert_eq!(results[0].split(' ').nth(1), Some(want), "gate {gate}");
    }
}

#[test]
fn node_inclusion_policies_decide_which_nodes_count() {
    let mut bench = bench(json!({}), &["a1", "a2"]);
    let mut b1 = node("b1", Some("b"));
    b1["spec"] = json!({"taints": [{"key": "own", "effect": "NoSchedule"}]});
    bench.node(b1).unwrap();
    let mut b2 = node("b2", Some("b"));
    b2["metadata"]["labels"]["disk"] = "hdd".into();
    bench.node(b2).unwrap();
    let mut result = |more: Value| {
        let mut pod = incoming(json!([hard_zone(more)]));
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!({
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]}],
        });
        let results = bench.filter(pod).unwrap();
        results[0].split(' ').nth(1).unwrap().to_owned()
    };
    // Zone b is empty and counts because of b1, which matches the affinity.
    assert_eq!(result(json!({})), "Unschedulable");
    // The taint of b1 excludes it, so zone a has the fewest pods.
    assert_eq!(result(json!({"nodeTaintsPolicy": "Honor"})), "Success");
    // Zone b counts again because of b2: the affinity is ignored.
    let both = json!({"nodeTaintsPolicy": "Honor", "nodeAffinityPolicy": "Ignore"});
    assert_eq!(result(both), "Unschedulable");
}

#[test]
fn fewer_matching_pods_score_higher_and_nodes_without_the_key_score_zero() {
    let zone = constraint("topology.kubernetes.io/zone", "ScheduleAnyway", json!({}));
    check_score(
        json!({}),
        &["a1", "a1", "a2", "b1"],
        json!([zone]),
        &expect!["a1 25, a2 25, b1 100, b2 100, lost 0"],
    );
}

#[test]
fn host_names_count_per_node() {
    let host = constraint("kubernetes.io/hostname", "ScheduleAnyway", json!({}));
    check_score(
        json!({}),
        &["a1", "a1", "a2"],
        json!([host]),
        &expect!["a1 0, a2 50, b1 100, b2 100, lost 100"],
    );
}

#[test]
fn system_defaults_apply_to_pods_of_a_service_and_score_nodes_without_a_zone() {
    let mut bench = bench(json!({}), &["a1", "a1", "lost"]);
    let pod = json!({"metadata": {"name": "incoming", "labels": {"app": "a"}}});
    assert_eq!(bench.score(pod.clone()).unwrap(), [], "no service, no constraint");
    add_service(&mut bench, json!({"app": "a"}));
    let scores = bench.score(pod).unwrap();
    let scores: Vec<String> =
        scores.iter().map(|(node, score)| format!("{node} {score}")).collect();
    expect!["a1 30, a2 61, b1 84, b2 84, lost 100"].assert_eq(&scores.join(", "));
}

#[test]
fn nodes_without_a_zone_form_a_domain_even_if_every_other_node_is_its_own_zone() {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    for (name, zone) in [("a", Some("a")), ("b", Some("b")), ("lost", None)] {
        bench.node(node(name, zone)).unwrap();
    }
    for at in 0..5 {
        bench.add_assigned_pod("a", assigned_pod(at)).unwrap();
    }
    add_service(&mut bench, json!({"app": "a"}));
    let pod = json!({"metadata": {"name": "incoming", "labels": {"app": "a"}}});
    let scores = bench.score(pod).unwrap();
    let scores: Vec<String> =
        scores.iter().map(|(node, score)| format!("{node} {score}")).collect();
    expect!["a 9, b 81, lost 100"].assert_eq(&scores.join(", "));
}

fn add_service(bench: &mut PluginTestBench, selector: Value) {
    let service =
        json!({"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": selector}});
    let service: Service = serde_json::from_value(service).unwrap();
    bench.world.update_cluster_objects(|cluster| {
        cluster.services.insert(Str::new("default"), vec![Arc::new(service)]);
    });
}

#[test]
fn listed_default_constraints_filter_and_the_owner_restricts_their_selector() {
    let args = json!({"defaultingType": "List", "defaultConstraints": [{
        "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
    }]});
    let mut bench = bench(args, &["a1"]);
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "controller": true});
    let pod = json!({"metadata": {
        "name": "incoming", "labels": {"app": "a", "hash": "1"}, "ownerReferences": [owner],
    }});
    let result = |bench: &mut PluginTestBench| bench.filter(pod.clone()).unwrap()[0].clone();
    assert_eq!(result(&mut bench), "a1 Success");
    add_service(&mut bench, json!({"app": "a"}));
    assert_eq!(
        result(&mut bench),
        "a1 Unschedulable node(s) didn't match pod topology spread constraints"
    );
    let set = json!({
        "metadata": {"name": "r", "namespace": "default"},
        "spec": {"selector": {"matchExpressions": [{"key": "hash", "operator": "Exists"}]}},
    });
    let set: ReplicaSet = serde_json::from_value(set).unwrap();
    bench.world.update_cluster_objects(|cluster| {
        cluster.replica_sets.insert(Str::new("default"), vec![Arc::new(set)]);
    });
    assert_eq!(result(&mut bench), "a1 Success", "pods of other replica sets do not count");
}

#[test]
fn an_invalid_selector_fails_the_attempt() {
    let selector =
        json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["a"]}]});
    let pod = incoming(json!([hard_zone(json!({"labelSelector": selector}))]));
    expect![[
        r#"Error get constraints from pod: obtaining pod's hard topology spread constraints: "Like" is not a valid label selector operator"#
    ]]
    .assert_eq(&bench(json!({}), &[]).pre_filter(pod).unwrap());
}

/// The nodes that fit after a dry run has added `victim` to the node or removed it.
fn after_dry_run(bench: &mut PluginTestBench, node: &str, victim: Value, add: bool) -> Vec<String> {
    let incoming = bench.parse_pod(incoming(json!([hard_zone(json!({}))]))).unwrap();
    let victim = Arc::new(bench.parse_pod(victim).unwrap());
    let (mut cycle, mut states) = (CycleState::default(), Default::default());
    let world = &bench.world;
    let points = bench.extension_points();
    let (pre, filter) = (points.pre_filter.clone().unwrap(), points.filter.clone().unwrap());
    let cx = SerialCx { world, cycle: &mut cycle, states: &mut states };
    assert_eq!(pre.pre_filter(cx, &incoming), Ok(PreFilterResult::All));
    let node = world.node(world.nodes().row(node).unwrap()).unwrap();
    if add {
        pre.add_pod(&mut cycle, world, &incoming, &victim, node).unwrap();
    } else {
        pre.remove_pod(&mut cycle, world, &incoming, &victim, node).unwrap();
    }
    let cx = Cx { world, cycle: &cycle, states: &states };
    let fits = world.node_infos().filter(|node| filter.filter(cx, &incoming, *node).is_ok());
    fits.map(|node| node.name().to_owned()).collect()
}

#[test]
fn dry_runs_update_the_counts_and_the_minimum() {
    let mut one = bench(json!({}), &["a1"]);
    assert_eq!(after_dry_run(&mut one, "a1", assigned_pod(0), false), ["a1", "a2", "b1", "b2"]);
    assert_eq!(after_dry_run(&mut one, "b1", assigned_pod(9), true), ["a1", "a2", "b1", "b2"]);
    assert_eq!(after_dry_run(&mut one, "lost", assigned_pod(9), true), ["b1", "b2"]);
    // A terminating victim was not counted and is subtracted all the same, as in upstream.
    let mut terminating = assigned_pod(9);
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    one.add_assigned_pod("b1", terminating.clone()).unwrap();
    assert_eq!(after_dry_run(&mut one, "b1", terminating, false), ["b1", "b2"]);
}

#[test]
fn signs_only_pods_without_constraints() {
    let plain = json!({"metadata": {"name": "p"}});
    let list = json!({"defaultingType": "List"});
    assert_eq!(bench(json!({}), &[]).sign(plain.clone()).unwrap(), json!(null));
    assert_eq!(bench(list.clone(), &[]).sign(plain).unwrap(), json!({}));
    let own = incoming(json!([hard_zone(json!({}))]));
    assert_eq!(bench(list, &[]).sign(own).unwrap(), json!(null));
}

#[test]
fn pods_of_the_namespace_wake_when_they_start_or_stop_matching_the_selector() {
    let mut bench = bench(json!({}), &[]);
    let pod = incoming(json!([hard_zone(json!({"nodeTaintsPolicy": "Honor"}))]));
    let mut hint = |action: ActionType, old: Option<Value>, new: Option<Value>| {
        let old = old.map(|pod| bench.parse_pod(pod).unwrap());
        let new = new.map(|pod| bench.parse_pod(pod).unwrap());
        let event = ClusterEvent::new(EventResource::AssignedPod, action);
        let (old, new) = (old.as_ref().map(EventObject::Pod), new.as_ref().map(EventObject::Pod));
        bench.queueing_hint(event, pod.clone(), old, new).unwrap()
    };
    let other = |app: &str, node: &str, namespace: &str| {
        json!({
            "metadata": {"name": "x", "namespace": namespace, "labels": {"app": app}},
            "spec": {"nodeName": node},
        })
    };
    let near = other("a", "a1", "default");
    assert_eq!(hint(ActionType::DELETE, Some(near.clone()), None), "Queue");
    assert_eq!(hint(ActionType::ADD, None, Some(near.clone())), "Queue");
    assert_eq!(hint(ActionType::ADD, None, Some(other("b", "a1", "default"))), "Skip");
    assert_eq!(hint(ActionType::ADD, None, Some(other("a", "", "default"))), "Skip");
    assert_eq!(hint(ActionType::ADD, None, Some(other("a", "a1", "other"))), "Skip");
    let relabeled = other("b", "a1", "default");
    assert_eq!(hint(ActionType::UPDATE_POD_LABEL, Some(near.clone()), Some(relabeled)), "Queue");
    assert_eq!(hint(ActionType::UPDATE_POD_LABEL, Some(near.clone()), Some(near)), "Skip");
    let mut tolerant = pod.clone();
    tolerant["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    assert_eq!(hint(ActionType::UPDATE_POD_TOLERATION, Some(pod.clone()), Some(tolerant)), "Queue");
}

#[test]
fn nodes_wake_when_they_join_leave_or_move_between_domains() {
    let mut bench = bench(json!({}), &[]);
    let pod = incoming(json!([hard_zone(json!({}))]));
    let mut hint = |action: ActionType, old: Option<Value>, new: Option<Value>| {
        let read = |node: Value| serde_json::from_value::<loadmaster_api::Node>(node).unwrap();
        let (old, new) = (old.map(read), new.map(read));
        let event = ClusterEvent::new(EventResource::Node, action);
        let (old, new) = (old.as_ref().map(EventObject::Node), new.as_ref().map(EventObject::Node));
        bench.queueing_hint(event, pod.clone(), old, new).unwrap()
    };
    let (a, b, lost) = (node("n", Some("a")), node("n", Some("b")), node("n", None));
    assert_eq!(hint(ActionType::ADD, None, Some(a.clone())), "Queue");
    assert_eq!(hint(ActionType::ADD, None, Some(lost.clone())), "Skip");
    assert_eq!(hint(ActionType::DELETE, Some(a.clone()), None), "Queue");
    assert_eq!(hint(ActionType::UPDATE_NODE_LABEL, Some(a.clone()), Some(b)), "Queue");
    assert_eq!(hint(ActionType::UPDATE_NODE_LABEL, Some(a.clone()), Some(lost.clone())), "Queue");
    assert_eq!(hint(ActionType::UPDATE_NODE_LABEL, Some(a.clone()), Some(a.clone())), "Skip");
    let mut tainted = a.clone();
    tainted["spec"] = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
    assert_eq!(hint(ActionType::UPDATE_NODE_TAINT, Some(a), Some(tainted)), "Queue");
    assert_eq!(hint(ActionType::UPDATE_NODE_TAINT, Some(lost.clone()), Some(lost)), "Skip");
}

#[track_caller]
fn check_args(given: Value, want: &Expect) {
    let text = match args::complete(&given, &FeatureGates::default()) {
        Ok(complete) => complete.to_string(),
        Err(errors) => {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            texts.join("\n")
        }
    };
    want.assert_eq(&text);
}

#[test]
fn arguments_are_completed_and_validated() {
    check_args(json!({}), &expect![[r#"{"defaultingType":"System"}"#]]);
    let listed = json!({"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway"});
    check_args(
        json!({"defaultingType": "List", "defaultConstraints": [listed]}),
        &expect![[
            r#"{"defaultConstraints":[{"maxSkew":1,"topologyKey":"a","whenUnsatisfiable":"ScheduleAnyway"}],"defaultingType":"List"}"#
        ]],
    );
    check_args(
        json!({"defaultConstraints": [listed]}),
        &expect![[
            r#"defaultingType: Invalid value: "System": when .defaultConstraints are not empty"#
        ]],
    );
    check_args(
        json!({"defaultingType": "Foo", "defaultConstraints": [
            {},
            {"maxSkew": 1, "topologyKey": "A!/b", "whenUnsatisfiable": "X", "labelSelector": {}},
            {"maxSkew": 1, "topologyKey": "A!/b", "whenUnsatisfiable": "X"},
        ]}),
        &expect![[r#"
            defaultingType: Unsupported value: "Foo": supported values: "System", "List"
            defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)
            defaultConstraints[0].topologyKey: Required value: can not be empty
            defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty
            defaultConstraints[1].topologyKey: Invalid value: "A!/b": prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            defaultConstraints[1].whenUnsatisfiable: Unsupported value: "X": supported values: "DoNotSchedule", "ScheduleAnyway"
            defaultConstraints[1].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod
            defaultConstraints[2].topologyKey: Invalid value: "A!/b": prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            defaultConstraints[2].whenUnsatisfiable: Unsupported value: "X": supported values: "DoNotSchedule", "ScheduleAnyway"
            defaultConstraints[2]: Duplicate value: "{A!/b, X}""#]],
    );
    check_args(
        json!({"defaultConstraint": []}),
        &expect![
            "defaultConstraint: unknown field `defaultConstraint`, expected `defaultConstraints` or `defaultingType`"
        ],
    );
}

#[test]
fn explain_names_the_constraint_and_the_pods_in_the_domain() {
    #[track_caller]
    fn check(pods: &[&str], constraints: Value, want: &Expect) {
        let lines = bench(json!({}), pods).explain(incoming(constraints)).unwrap();
        want.assert_eq(&lines.join("\n"));
    }
    check(
        &["a1", "a1", "a1", "a2"],
        json!([hard_zone(json!({}))]),
        &expect![[r#"
        a1: constraints=constraint 1 (topology.kubernetes.io/zone, maxSkew 1, app=a): 4 in topology.kubernetes.io/zone=a, the fewest of a domain 0: default/p0, default/p1, default/p2 and 1 more
        a2: constraints=constraint 1 (topology.kubernetes.io/zone, maxSkew 1, app=a): 4 in topology.kubernetes.io/zone=a, the fewest of a domain 0: default/p0, default/p1, default/p2 and 1 more
        lost: constraints=constraint 1 (topology.kubernetes.io/zone, maxSkew 1, app=a): the node has no topology.kubernetes.io/zone"#]],
    );
    let hosts = constraint("kubernetes.io/hostname", "DoNotSchedule", json!({"maxSkew": 2}));
    let all = constraint("kubernetes.io/hostname", "DoNotSchedule", json!({"labelSelector": {}}));
    check(
        &["a1", "a1"],
        json!([hard_zone(json!({"maxSkew": 5})), hosts, all]),
        &expect![[r#"
        a1: constraints=constraint 2 (kubernetes.io/hostname, maxSkew 2, app=a): 2 in kubernetes.io/hostname=a1, the fewest of a domain 0: default/p0, default/p1
        lost: constraints=constraint 1 (topology.kubernetes.io/zone, maxSkew 5, app=a): the node has no topology.kubernetes.io/zone"#]],
    );
    check(&["b1"], json!([constraint("rack", "ScheduleAnyway", json!({}))]), &expect![[r#""#]]);
}
