use expect_test::{Expect, expect};
use loadmaster_api::Service;
use loadmaster_framework::FeatureGates;
use loadmaster_framework::testkit::{PluginTestBench, PodBuilder, node, pod};
use serde_json::json;

use super::*;

#[track_caller]
fn check_args(given: Value, want: &Expect) {
    let complete = DEF.args.unwrap();
    want.assert_eq(&match complete(&given, &FeatureGates::default()) {
        Ok(args) => args.to_string(),
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    });
}

#[test]
fn args() {
    check_args(json!({"affinityLabels": null}), &expect!["{}"]);
    check_args(
        json!({"affinityLabels": ["rack"], "antiAffinityLabelsPreference": ["zone", "zone"]}),
        &expect![[r#"{"affinityLabels":["rack"],"antiAffinityLabelsPreference":["zone","zone"]}"#]],
    );
    check_args(
        json!({"label": "rack"}),
        &expect![
            "label: unknown field `label`, expected `affinityLabels` or `antiAffinityLabelsPreference`"
        ],
    );
}

/// Nodes in region r and rack 1 or 2, by name: `a1`, `a2`, `b1` with zone a or b, and one without labels.
fn bench(args: Value) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, args).unwrap();
    for name in ["a1", "a2", "b1"] {
        let (zone, rack) = name.split_at(1);
        bench.node(node(name).label("zone", zone).label("rack", rack)).unwrap();
    }
    bench.node(node("bare")).unwrap();
    add_service(&mut bench, json!({"app": "web"}));
    bench
}

fn add_service(bench: &mut PluginTestBench, selector: Value) {
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": selector}});
    let service: Service = serde_json::from_value(service).unwrap();
    bench.world.update_cluster_objects(|cluster| {
        cluster.services.insert("default".into(), vec![Arc::new(service)]);
    });
}

fn web(name: &str) -> PodBuilder {
    pod(name).label("app", "web")
}

fn affinity(labels: &[&str]) -> Value {
    json!({"affinityLabels": labels})
}

#[track_caller]
fn check_filter(bench: &mut PluginTestBench, incoming: impl Into<Value>, want: &str) {
    let results = bench.filter(incoming).unwrap();
    let feasible = results.iter().filter_map(|result| result.strip_suffix(" Success"));
    assert_eq!(feasible.collect::<Vec<_>>().join(" "), want);
    for result in results.iter().filter(|result| !result.ends_with(" Success")) {
        let rejection = "Unschedulable node(s) didn't match service affinity";
        assert_eq!(result.split_once(' ').unwrap().1, rejection);
    }
}

#[test]
fn pods_of_a_service_share_the_values_of_labels() {
    let mut bench = bench(affinity(&["zone"]));
    check_filter(&mut bench, web("new"), "a1 a2 b1 bare");
    bench.add_assigned_pod("a2", web("old")).unwrap();
    check_filter(&mut bench, web("new"), "a1 a2");
    // Only pods with all labels of the new one count, in its namespace.
    check_filter(&mut bench, web("new").label("tier", "front"), "a1 a2 b1 bare");
    check_filter(&mut bench, web("new").namespace("other"), "a1 a2 b1 bare");
    // No Service selects these.
    add_service(&mut bench, json!({"app": "db"}));
    check_filter(&mut bench, web("new"), "a1 a2 b1 bare");
    add_service(&mut bench, json!({}));
    check_filter(&mut bench, web("new"), "a1 a2 b1 bare");
}

#[test]
fn the_first_pod_in_the_order_of_nodes_decides() {
    let mut bench = bench(affinity(&["zone", "rack"]));
    bench.add_assigned_pod("b1", web("old-b")).unwrap();
    check_filter(&mut bench, web("new"), "b1");
    bench.add_assigned_pod("a2", web("old-a")).unwrap();
    check_filter(&mut bench, web("new"), "a2");
    // A label that its node does not have is not required.
    bench.delete_pod("default/old-a");
    bench.delete_pod("default/old-b");
    bench.add_assigned_pod("bare", web("old")).unwrap();
    check_filter(&mut bench, web("new"), "a1 a2 b1 bare");
}

#[test]
fn the_node_selector_comes_first() {
    let mut bench = bench(affinity(&["zone", "rack"]));
    check_filter(&mut bench, web("new").node_selector("zone", "a"), "a1 a2");
    bench.add_assigned_pod("b1", web("old")).unwrap();
    check_filter(&mut bench, web("new").node_selector("zone", "a"), "a1");
    // Other labels of the selector are another plugin's.
    check_filter(&mut bench, web("new").node_selector("disk", "ssd"), "b1");
    let own = pod("alone").node_selector("rack", "2").node_selector("zone", "a");
    check_filter(&mut bench, own, "a2");
}

#[test]
fn without_labels_the_filter_is_skipped() {
    let mut bench = bench(json!({"antiAffinityLabelsPreference": ["zone"]}));
    assert_eq!(bench.pre_filter(web("new")).unwrap(), "Skip");
    assert_eq!(bench.extension_points().events.as_ref().map(Vec::len), Some(0));
}

#[test]
fn dry_runs_add_and_remove_pods() {
    let mut bench = bench(affinity(&["zone"]));
    let old = bench.add_assigned_pod("b1", web("old")).unwrap();
    let nominated = Arc::new(bench.parse_pod(web("nominated")).unwrap());
    let other = Arc::new(bench.parse_pod(pod("other")).unwrap());
    let incoming = bench.parse_pod(web("new")).unwrap();
    let points = bench.extension_points();
    let (pre, filter) = (points.pre_filter.as_ref().unwrap(), points.filter.as_ref().unwrap());
    let (mut cycle, mut states) = (CycleState::default(), Default::default());
    let world = &bench.world;
    let cx = SerialCx { world, cycle: &mut cycle, states: &mut states };
    pre.pre_filter(cx, &incoming).unwrap();
    let at = |name: &str| world.node(world.nodes().row(name).unwrap()).unwrap();
    let feasible = |cycle: &CycleState| {
        let cx = Cx { world, cycle, states: &states };
        let nodes = ["a1", "b1"].into_iter();
        let feasible = nodes.filter(|name| filter.filter(cx, &incoming, at(name)).is_ok());
        feasible.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(feasible(&cycle), "b1");
    pre.remove_pod(&mut cycle, world, &incoming, &old, at("b1")).unwrap();
    assert_eq!(feasible(&cycle), "a1 b1");
    pre.add_pod(&mut cycle, world, &incoming, &other, at("b1")).unwrap();
    assert_eq!(feasible(&cycle), "a1 b1");
    pre.add_pod(&mut cycle, world, &incoming, &nominated, at("a2")).unwrap();
    assert_eq!(feasible(&cycle), "a1");
    pre.add_pod(&mut cycle, world, &incoming, &old, at("b1")).unwrap();
    assert_eq!(feasible(&cycle), "a1");
    pre.remove_pod(&mut cycle, world, &incoming, &nominated, at("a2")).unwrap();
    assert_eq!(feasible(&cycle), "b1");
}

/// Scores of a1, a2, b1 and the node without labels.
#[track_caller]
fn check_score(labels: &[&str], pods: &[(&str, usize)], want: [i64; 4]) {
    let mut bench = bench(json!({"antiAffinityLabelsPreference": labels}));
    for (on, n_pods) in pods {
        for at in 0..*n_pods {
            bench.add_assigned_pod(on, web(&format!("{on}-{at}")).label("ordinal", "x")).unwrap();
        }
        bench.add_assigned_pod(on, web(&format!("{on}-elsewhere")).namespace("other")).unwrap();
        let deleted = web(&format!("{on}-deleted"));
        let deleted = deleted.set_field("/metadata/deletionTimestamp", "2026-01-31T12:00:00Z");
        bench.add_assigned_pod(on, deleted).unwrap();
    }
    let scores = bench.score(web("new")).unwrap();
    assert_eq!(scores.into_iter().map(|(_, score)| score).collect::<Vec<_>>(), want);
}

#[test]
fn the_pods_of_a_service_are_spread_over_the_values_of_labels() {
    check_score(&[], &[("a1", 2)], [0, 0, 0, 0]);
    check_score(&["zone"], &[], [100, 100, 100, 0]);
    check_score(&["zone"], &[("a1", 2), ("b1", 1)], [33, 33, 66, 0]);
    check_score(&["zone"], &[("a1", 1), ("bare", 3)], [75, 75, 100, 0]);
    check_score(&["zone", "rack"], &[("a1", 1)], [0, 50, 50, 0]);
    check_score(&["zone", "gpu"], &[("a1", 1)], [0, 0, 50, 0]);
}

#[test]
fn pods_without_service_are_not_counted() {
    let mut bench = bench(json!({"antiAffinityLabelsPreference": ["zone"]}));
    bench.add_assigned_pod("a1", pod("db-0").label("app", "db")).unwrap();
    let scores = bench.score(pod("db-1").label("app", "db")).unwrap();
    assert_eq!(scores.into_iter().map(|(_, score)| score).collect::<Vec<_>>(), [100, 100, 100, 0]);
}

/// The hint for a pod `new` with the label app=web after another pod changed.
#[track_caller]
fn check_pod_hint(old: PodBuilder, new: Option<PodBuilder>, want: &str) {
    let mut bench = bench(affinity(&["zone"]));
    let old = bench.parse_pod(old).unwrap();
    let new = new.map(|new| bench.parse_pod(new).unwrap());
    let action = if new.is_some() { ActionType::UPDATE_POD_LABEL } else { ActionType::DELETE };
    let event = ClusterEvent::new(EventResource::AssignedPod, action);
    let (old, new) = (EventObject::Pod(&old), new.as_ref().map(EventObject::Pod));
    assert_eq!(bench.queueing_hint(event, web("new").into(), Some(old), new).unwrap(), want);
}

#[test]
fn pods_of_the_service_wake_when_they_leave_it() {
    let on_a1 = |pod: PodBuilder| pod.set_field("/spec/nodeName", "a1");
    check_pod_hint(on_a1(web("old")), None, "Queue");
    check_pod_hint(web("old"), None, "Skip");
    check_pod_hint(web("old").set_field("/status/nominatedNodeName", "a1"), None, "Queue");
    check_pod_hint(on_a1(pod("old")), None, "Skip");
    check_pod_hint(on_a1(web("old").namespace("other")), None, "Skip");
    check_pod_hint(on_a1(web("old")), Some(on_a1(pod("old"))), "Queue");
    check_pod_hint(on_a1(web("old")), Some(on_a1(web("old").label("x", "y"))), "Skip");
    check_pod_hint(on_a1(pod("old")), Some(on_a1(web("old"))), "Skip");
    check_pod_hint(pod("new"), Some(web("new")), "Queue");
}

#[track_caller]
fn check_node_hint(old: Option<(&str, &str)>, new: (&str, &str), want: &str) {
    let mut bench = bench(affinity(&["zone"]));
    let with = |(key, value): (&str, &str)| -> Node {
        serde_json::from_value(node("a").label(key, value).into()).unwrap()
    };
    let action = if old.is_some() { ActionType::UPDATE_NODE_LABEL } else { ActionType::ADD };
    let event = ClusterEvent::new(EventResource::Node, action);
    let (old, new) = (old.map(with), with(new));
    let (old, new) = (old.as_ref().map(EventObject::Node), Some(EventObject::Node(&new)));
    assert_eq!(bench.queueing_hint(event, web("new").into(), old, new).unwrap(), want);
}

#[test]
fn nodes_wake_pods_when_an_affinity_label_changes() {
    check_node_hint(None, ("x", "y"), "Queue");
    check_node_hint(Some(("zone", "a")), ("zone", "b"), "Queue");
    check_node_hint(Some(("x", "y")), ("zone", "b"), "Queue");
    check_node_hint(Some(("x", "y")), ("x", "z"), "Skip");
}
