use expect_test::{Expect, expect};
use loadmaster_framework::testkit::PluginTestBench;
use loadmaster_framework::{EventObject, FeatureGates};
use serde_json::json;

use super::*;

fn bench(gate: bool) -> PluginTestBench {
    let gates =
        FeatureGates { taint_toleration_comparison_operators: gate, ..FeatureGates::default() };
    PluginTestBench::with_gates(&DEF, json!({}), gates).unwrap()
}

/// `key=value:effect`, as kubectl writes taints.
fn taint(text: &str) -> Value {
    let (pair, effect) = text.split_once(':').unwrap();
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    json!({"key": key, "value": value, "effect": effect})
}

fn node(name: &str, taints: &[&str]) -> Value {
    let taints: Vec<Value> = taints.iter().map(|text| taint(text)).collect();
    json!({"metadata": {"name": name}, "spec": {"taints": taints}})
}

fn pod(name: &str, tolerations: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"tolerations": tolerations}})
}

#[track_caller]
fn check(taints: &[&str], tolerations: Value, want: &Expect) {
    let mut bench = bench(false);
    bench.node(node("a", taints)).unwrap();
    let results = bench.filter(pod("web", tolerations)).unwrap();
    want.assert_eq(&results.join("; ").replace(REASON, "REASON"));
}

#[test]
fn filter() {
    check(&[], json!([]), &expect!["a Success"]);
    check(&["k=v:NoSchedule"], json!([]), &expect!["a UnschedulableAndUnresolvable REASON"]);
    check(&["k=v:NoExecute"], json!([]), &expect!["a UnschedulableAndUnresolvable REASON"]);
    check(&["k=v:PreferNoSchedule"], json!([]), &expect!["a Success"]);
    check(&["k=v:Other"], json!([]), &expect!["a Success"]);
    check(
        &["k=v:NoSchedule", "l:NoExecute"],
        json!([{"key": "k", "value": "v"}]),
        &expect!["a UnschedulableAndUnresolvable REASON"],
    );
    let both = json!([{"key": "k", "value": "v"}, {"key": "l", "operator": "Exists"}]);
    check(&["k=v:NoSchedule", "l:NoExecute"], both, &expect!["a Success"]);
}

fn scored(scores: &[(String, i64)]) -> String {
    let each = scores.iter().map(|(name, score)| format!("{name} {score}"));
    each.collect::<Vec<_>>().join(", ")
}

#[track_caller]
fn check_score(tolerations: Value, want: &Expect) {
    let mut bench = bench(false);
    let three = ["a=2:PreferNoSchedule", "b:PreferNoSchedule", "c:PreferNoSchedule"];
    bench.node(node("none", &[])).unwrap();
    bench.node(node("hard", &["h:NoSchedule"])).unwrap();
    bench.node(node("one", &["a=1:PreferNoSchedule"])).unwrap();
    bench.node(node("three", &three)).unwrap();
    want.assert_eq(&scored(&bench.score(pod("web", tolerations)).unwrap()));
}

#[test]
fn score() {
    check_score(json!([]), &expect!["none 100, one 67, three 0"]);
    check_score(json!([{"key": "a", "value": "1"}]), &expect!["none 100, one 100, three 0"]);
    check_score(json!([{"key": "b", "operator": "Exists"}]), &expect!["none 100, one 50, three 0"]);
    check_score(
        json!([{"key": "b", "operator": "Exists", "effect": "NoSchedule"}]),
        &expect!["none 100, one 67, three 0"],
    );
    check_score(
        json!([{"operator": "Exists", "effect": "PreferNoSchedule"}]),
        &expect!["none 100, one 100, three 100"],
    );
    check_score(
        json!([{"operator": "Exists"}]),
        &expect!["none 100, hard 100, one 100, three 100"],
    );
}

/// An evaluator stays in use when taint sets are added after it was built.
#[test]
fn taint_sets_added_after_the_evaluator_was_built() {
    let mut bench = bench(false);
    bench.node(node("a", &[])).unwrap();
    let web = bench.parse_pod(pod("web", json!([]))).unwrap();
    let PrepareResult::Evaluator(evaluator) = bench.prepare_incremental(&web) else {
        panic!("no evaluator")
    };
    assert_eq!(evaluator.dependencies().class, None);

    let hard = bench.node(node("b", &["k:NoSchedule"])).unwrap();
    assert!(!evaluator.filter_row(bench.evaluator_cx(), hard));
    let mut set = [1, 1];
    evaluator.filter_rows(bench.evaluator_cx(), NodeRow(0), &mut set);
    assert_eq!(set, [1, 0]);
    assert!(!evaluator.is_stale(bench.evaluator_cx()), "a hard taint changes no score");

    bench.node(node("c", &["k:PreferNoSchedule"])).unwrap();
    assert!(evaluator.is_stale(bench.evaluator_cx()), "the scores of the nodes differ now");
    let PrepareResult::Evaluator(evaluator) = bench.prepare_incremental(&web) else {
        panic!("no evaluator")
    };
    assert_eq!(evaluator.dependencies().class, Some(RowDependency::Node));

    for n in 0..=NEW_TAINT_SETS_MAX {
        assert!(!evaluator.is_stale(bench.evaluator_cx()), "{n} sets are not too many");
        bench.node(node("d", &[&format!("k={n}:NoSchedule")])).unwrap();
    }
    assert!(evaluator.is_stale(bench.evaluator_cx()), "too many sets are evaluated on every read");
}

#[test]
fn hint_node_change() {
    let hint = |old: Option<&[&str]>, new: &[&str]| {
        let parse = |taints: &[&str]| serde_json::from_value(node("a", taints)).unwrap();
        let (old, new) = (old.map(parse), parse(new));
        let action = if old.is_some() { ActionType::UPDATE_NODE_TAINT } else { ActionType::ADD };
        let event = ClusterEvent::new(EventResource::Node, action);
        let web = pod("web", json!([{"key": "mine", "operator": "Exists"}]));
        let old = old.as_ref().map(EventObject::Node);
        bench(false).queueing_hint(event, web, old, Some(EventObject::Node(&new))).unwrap()
    };
    assert_eq!(hint(None, &["mine:NoSchedule", "k:PreferNoSchedule"]), "Queue");
    assert_eq!(hint(None, &["k:NoExecute"]), "Skip");
    assert_eq!(hint(Some(&["k:NoSchedule"]), &[]), "Queue");
    assert_eq!(hint(Some(&["k:NoSchedule"]), &["l:NoSchedule"]), "Skip");
    assert_eq!(hint(Some(&["mine:NoSchedule"]), &[]), "Skip");
}

#[test]
fn hint_toleration_change() {
    let mut bench = bench(false);
    let mut hint = |name: &str| {
        let new = bench.parse_pod(pod(name, json!([]))).unwrap();
        let event =
            ClusterEvent::new(EventResource::UnschedulablePod, ActionType::UPDATE_POD_TOLERATION);
        bench
            .queueing_hint(event, pod("web", json!([])), None, Some(EventObject::Pod(&new)))
            .unwrap()
    };
    assert_eq!(hint("web"), "Queue");
    assert_eq!(hint("other"), "Skip");
}

#[test]
fn sign() {
    let tolerations = json!([
        {"key": "b", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "a", "value": "2"},
        {"key": "a", "value": "1"},
        {"operator": "Exists"},
    ]);
    let signed = bench(false).sign(pod("web", tolerations)).unwrap();
    let want = json!([
        {"operator": "Exists"},
        {"key": "a", "value": "1"},
        {"key": "a", "value": "2"},
        {"key": "b", "operator": "Exists", "effect": "NoSchedule"},
    ]);
    assert_eq!(signed, json!({"v1.Pod.Spec.Tolerations": want}));
    assert_eq!(bench(false).sign(json!({})).unwrap(), json!({"v1.Pod.Spec.Tolerations": []}));
}

#[test]
fn explain_lists_untolerated_taints() {
    let mut bench = bench(false);
    bench.node(node("a", &["gpu=yes:NoSchedule", "soft:PreferNoSchedule", "x:NoExecute"])).unwrap();
    bench.node(node("b", &["x:NoExecute"])).unwrap();
    let tolerates_x = json!([{"key": "x", "operator": "Exists"}]);
    let lines = bench.explain(pod("web", tolerates_x)).unwrap();
    assert_eq!(lines, ["a: taints=[gpu=yes:NoSchedule]"]);
    let lines = bench.explain(pod("web", json!([]))).unwrap();
    assert_eq!(lines, ["a: taints=[gpu=yes:NoSchedule x:NoExecute]", "b: taints=[x:NoExecute]"]);
}
