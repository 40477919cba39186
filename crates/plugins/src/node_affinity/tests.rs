use expect_test::{Expect, expect};
use loadmaster_api::Node;
use loadmaster_framework::EventObject;
use loadmaster_framework::testkit::PluginTestBench;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Nodes `a` (zone 1, ssd, 4 cores), `b` (zone 2, 16 cores) and `c` (no labels).
fn bench(args: Value) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, args).unwrap();
    let labels = [
        ("a", json!({"zone": "1", "disk": "ssd", "cores": "4"})),
        ("b", json!({"zone": "2", "cores": "16"})),
        ("c", json!({})),
    ];
    for (name, labels) in labels {
        bench.node(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
    }
    bench
}

/// A requirement: key, operator, values.
fn requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

fn labels(requirements: &[Value]) -> Value {
    json!({"matchExpressions": requirements})
}

fn fields(requirements: &[Value]) -> Value {
    json!({"matchFields": requirements})
}

fn named(values: &[&str]) -> Value {
    requirement("metadata.name", "In", values)
}

fn required(terms: &[Value]) -> Value {
    json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}})
}

fn preferred(terms: &[(i32, Value)]) -> Value {
    let terms = terms.iter().map(|(weight, term)| json!({"weight": weight, "preference": term}));
    json!({"preferredDuringSchedulingIgnoredDuringExecution": terms.collect::<Vec<_>>()})
}

fn pod(affinity: Value) -> Value {
    json!({"metadata": {"name": "web"}, "spec": {"affinity": {"nodeAffinity": affinity}}})
}

fn selecting(selector: Value) -> Value {
    json!({"metadata": {"name": "web"}, "spec": {"nodeSelector": selector}})
}

/// The result of PreFilter, then the nodes that pass (`a`), those that the pod's affinity rejects (`-b`) and those that the
/// profile's affinity rejects (`!c`).
fn filtered(bench: &mut PluginTestBench, pod: Value) -> String {
    let pre_filter = bench.pre_filter(pod.clone()).unwrap();
    let results = bench.filter(pod).unwrap();
    let short = results.iter().map(|result| match result.split_once(' ').unwrap() {
        (name, "Success") => name.to_owned(),
        (name, text) if text.ends_with(REASON_POD) => format!("-{name}"),
        (name, text) if text.ends_with(REASON_ENFORCED) => format!("!{name}"),
        (name, text) if text.contains("PreFilter result") => format!("({name})"),
        (_, text) if text.ends_with(REASON_CONFLICT) => "conflict".to_owned(),
        _ => result.clone(),
    });
    format!("{pre_filter}: {}", short.collect::<Vec<_>>().join(" "))
}

#[track_caller]
fn check(pod: Value, want: &Expect) {
    want.assert_eq(&filtered(&mut bench(json!({})), pod));
}

#[test]
fn node_selector() {
    check(json!({}), &expect!["Skip: a b c"]);
    check(selecting(json!({})), &expect!["Skip: a b c"]);
    check(selecting(json!({"zone": "1"})), &expect!["All: a -b -c"]);
    check(selecting(json!({"zone": "3"})), &expect!["All: -a -b -c"]);
    check(selecting(json!({"zone": "1", "disk": "hdd"})), &expect!["All: -a -b -c"]);
}

#[test]
fn required_terms() {
    let term = |key: &str, operator: &str, values: &[&str]| {
        pod(required(&[labels(&[requirement(key, operator, values)])]))
    };
    check(term("zone", "In", &["1", "2"]), &expect!["All: a b -c"]);
    check(term("zone", "NotIn", &["1"]), &expect!["All: -a b c"]);
    check(term("zone", "Exists", &[]), &expect!["All: a b -c"]);
    check(term("zone", "DoesNotExist", &[]), &expect!["All: -a -b c"]);
    check(term("cores", "Gt", &["8"]), &expect!["All: -a b -c"]);
    check(term("cores", "Lt", &["8"]), &expect!["All: a -b -c"]);
    let zone = requirement("zone", "In", &["1"]);
    let cores = requirement("cores", "Gt", &["8"]);
    check(pod(required(&[labels(&[zone.clone(), cores.clone()])])), &expect!["All: -a -b -c"]);
    check(pod(required(&[labels(&[zone]), labels(&[cores])])), &expect!["All: a b -c"]);
    let mut both = term("zone", "Exists", &[]);
    both["spec"]["nodeSelector"] = json!({"cores": "16"});
    check(both, &expect!["All: -a b -c"]);
}

#[test]
fn terms_that_match_nothing() {
    check(pod(required(&[])), &expect!["All: -a -b -c"]);
    check(pod(required(&[json!({})])), &expect!["All: -a -b -c"]);
    let good = labels(&[requirement("zone", "Exists", &[])]);
    let bad = labels(&[requirement("zone", "Foo", &[])]);
    check(pod(required(std::slice::from_ref(&bad))), &expect!["All: -a -b -c"]);
    check(pod(required(&[bad, good])), &expect!["All: a b -c"]);
    for (operator, values) in [("In", &[][..]), ("NotIn", &[]), ("Exists", &["1"])] {
        let bad = labels(&[requirement("zone", operator, values)]);
        check(pod(required(&[bad])), &expect!["All: -a -b -c"]);
    }
}

#[test]
fn terms_that_select_nodes_by_name() {
    check(pod(required(&[fields(&[named(&["b"])])])), &expect!["Nodes [b]: (a) b (c)"]);
    check(pod(required(&[fields(&[named(&["x"])])])), &expect!["Nodes [x]: (a) (b) (c)"]);
    check(
        pod(required(&[fields(&[named(&["a"])]), fields(&[named(&["b"])])])),
        &expect!["Nodes [a b]: a b (c)"],
    );
    check(
        pod(required(&[fields(&[named(&["a"]), named(&["b"])])])),
        &expect![
            "UnschedulableAndUnresolvable pod affinity terms conflict: conflict conflict conflict"
        ],
    );
    let conflict = fields(&[named(&["a"]), named(&["b"])]);
    check(pod(required(&[conflict, fields(&[named(&["c"])])])), &expect!["Nodes [c]: (a) (b) c"]);
    // Two names in one list are invalid; PreFilter restricts the nodes to them all the same.
    check(pod(required(&[fields(&[named(&["a", "b"])])])), &expect!["Nodes [a b]: -a -b (c)"]);
    let not = requirement("metadata.name", "NotIn", &["a"]);
    check(pod(required(&[fields(&[not])])), &expect!["All: -a b c"]);
    let zone = labels(&[requirement("zone", "In", &["2"])]);
    check(pod(required(&[fields(&[named(&["a"])]), zone])), &expect!["All: a b -c"]);
    let mut not_b = labels(&[requirement("zone", "Exists", &[])]);
    not_b["matchFields"] = json!([requirement("metadata.name", "NotIn", &["b"])]);
    check(pod(required(&[not_b])), &expect!["All: a -b -c"]);
    let mut only_a = pod(required(&[fields(&[named(&["a"])])]));
    only_a["spec"]["nodeSelector"] = json!({"zone": "2"});
    check(only_a, &expect!["Nodes [a]: -a (b) (c)"]);
}

#[test]
fn added_affinity() {
    let zone = labels(&[requirement("zone", "Exists", &[])]);
    let mut bench = bench(json!({"addedAffinity": required(&[zone])}));
    expect!["All: a b !c"].assert_eq(&filtered(&mut bench, json!({})));
    expect!["All: a -b !c"].assert_eq(&filtered(&mut bench, selecting(json!({"zone": "1"}))));
}

#[test]
fn added_affinity_without_terms_matches_nothing() {
    let mut bench = bench(json!({"addedAffinity": required(&[])}));
    expect!["All: !a !b !c"].assert_eq(&filtered(&mut bench, json!({})));
}

#[track_caller]
fn check_score(args: Value, pod: Value, want: &Expect) {
    let scores = match bench(args).score(pod) {
        Ok(scores) => scores,
        Err(error) => return want.assert_eq(&error.to_string()),
    };
    let each = scores.iter().map(|(name, score)| format!("{name} {score}"));
    want.assert_eq(&each.collect::<Vec<_>>().join(", "));
}

#[test]
fn score() {
    let zone = |value: &str| labels(&[requirement("zone", "In", &[value])]);
    let any = labels(&[requirement("zone", "Exists", &[])]);
    let none = json!({});
    check_score(none.clone(), json!({}), &expect![""]);
    check_score(none.clone(), pod(preferred(&[(5, zone("1"))])), &expect!["a 100, b 0, c 0"]);
    check_score(
        none.clone(),
        pod(preferred(&[(1, zone("1")), (2, any.clone())])),
        &expect!["a 100, b 66, c 0"],
    );
    check_score(none.clone(), pod(preferred(&[(5, zone("3"))])), &expect!["a 0, b 0, c 0"]);
    check_score(none.clone(), pod(preferred(&[(5, json!({}))])), &expect!["a 0, b 0, c 0"]);
    let added = json!({"addedAffinity": preferred(&[(3, zone("2"))])});
    check_score(added.clone(), json!({}), &expect!["a 0, b 100, c 0"]);
    check_score(added, pod(preferred(&[(1, any)])), &expect!["a 25, b 100, c 0"]);
    // A term with weight 0 is not evaluated.
    let bad = |weight| pod(preferred(&[(weight, labels(&[requirement("zone", "Foo", &[])]))]));
    check_score(none.clone(), bad(0), &expect!["a 0, b 0, c 0"]);
    check_score(
        none,
        bad(1),
        &expect![[
            r#"[0].matchExpressions[0].operator: Unsupported value: "Foo": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt""#
        ]],
    );
}

/// Nodes by their value of label `zone`.
#[track_caller]
fn check_hint(args: Value, pod: Value, old: Option<&str>, new: &str, want: &str) {
    let parse = |zone: &str| -> Node {
        let labels = json!({"zone": zone});
        serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}})).unwrap()
    };
    let (old, new) = (old.map(parse), parse(new));
    let action = if old.is_some() { ActionType::UPDATE_NODE_LABEL } else { ActionType::ADD };
    let event = ClusterEvent::new(EventResource::Node, action);
    let old = old.as_ref().map(EventObject::Node);
    let result = bench(args).queueing_hint(event, pod, old, Some(EventObject::Node(&new))).unwrap();
    assert_eq!(result, want);
}

#[test]
fn hints() {
    let zone_1 = || selecting(json!({"zone": "1"}));
    check_hint(json!({}), zone_1(), None, "1", "Queue");
    check_hint(json!({}), zone_1(), None, "2", "Skip");
    check_hint(json!({}), zone_1(), Some("2"), "1", "Queue");
    check_hint(json!({}), zone_1(), Some("1"), "1", "Skip");
    check_hint(json!({}), zone_1(), Some("1"), "2", "Skip");
    let bad = || pod(required(&[labels(&[requirement("zone", "Foo", &[])])]));
    let error = r#"Error nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "Foo": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt""#;
    check_hint(json!({}), bad(), None, "1", error);
    let added = json!({"addedAffinity": required(&[labels(&[requirement("zone", "In", &["2"])])])});
    check_hint(added.clone(), json!({}), None, "1", "Skip");
    check_hint(added.clone(), json!({}), None, "2", "Queue");
    // As upstream, the old node is checked against the pod's own affinity only.
    check_hint(added, json!({}), Some("1"), "2", "Skip");
}

#[test]
fn sign() {
    let mut both = required(&[
        labels(&[requirement("zone", "In", &["2", "1"]), requirement("disk", "Exists", &[])]),
        fields(&[named(&["a"])]),
    ]);
    both["preferredDuringSchedulingIgnoredDuringExecution"] =
        json!([{"weight": 5, "preference": labels(&[requirement("cores", "Gt", &["8"])])}]);
    let mut signed = pod(both);
    signed["spec"]["nodeSelector"] = json!({"zone": "1", "a": "b"});
    let sign = |pod: Value| {
        let signed = bench(json!({})).sign(pod).unwrap();
        serde_json::to_string_pretty(&signed).unwrap()
    };
    expect![[r#"
        {
          "v1.Pod.Spec.Affinity.NodeAffinity": {
            "Preferred": [
              "{\"Weight\":5,\"Preference\":{\"MatchExpressions\":[\"{\\\"key\\\":\\\"cores\\\",\\\"operator\\\":\\\"Gt\\\",\\\"values\\\":[\\\"8\\\"]}\"],\"MatchFields\":[]}}"
            ],
            "Required": [
              "{\"MatchExpressions\":[\"{\\\"key\\\":\\\"disk\\\",\\\"operator\\\":\\\"Exists\\\"}\",\"{\\\"key\\\":\\\"zone\\\",\\\"operator\\\":\\\"In\\\",\\\"values\\\":[\\\"1\\\",\\\"2\\\"]}\"],\"MatchFields\":[]}",
              "{\"MatchExpressions\":[],\"MatchFields\":[\"{\\\"key\\\":\\\"metadata.name\\\",\\\"operator\\\":\\\"In\\\",\\\"values\\\":[\\\"a\\\"]}\"]}"
            ]
          },
          "v1.Pod.Spec.Affinity.NodeSelector": {
            "a": "b",
            "zone": "1"
          }
        }"#]].assert_eq(&sign(signed));
    expect![[r#"
        {
          "v1.Pod.Spec.Affinity.NodeAffinity": null,
          "v1.Pod.Spec.Affinity.NodeSelector": null
        }"#]]
    .assert_eq(&sign(json!({})));
    expect![[r#"
        {
          "v1.Pod.Spec.Affinity.NodeAffinity": {
            "Preferred": [],
            "Required": []
          },
          "v1.Pod.Spec.Affinity.NodeSelector": null
        }"#]]
    .assert_eq(&sign(pod(json!({}))));
}

/// The complete arguments, or the errors.
#[track_caller]
fn check_args(given: Value, want: &Expect) {
    let result = match args::complete(&given, &loadmaster_framework::FeatureGates::default()) {
        Ok(args) => args.to_string(),
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    };
    want.assert_eq(&result);
}

#[test]
fn arguments() {
    check_args(json!({}), &expect!["{}"]);
    check_args(json!({"addedAffinity": null}), &expect!["{}"]);
    check_args(json!({"addedAffinity": {}}), &expect![[r#"{"addedAffinity":{}}"#]]);
    let selector = "requiredDuringSchedulingIgnoredDuringExecution";
    check_args(
        json!({"addedAffinity": {selector: {}}}),
        &expect![[
            r#"{"addedAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":null}}}"#
        ]],
    );
    let term = labels(&[requirement("zone", "In", &["1"]), requirement("a", "Exists", &[])]);
    check_args(
        json!({"addedAffinity": required(&[term, json!({})])}),
        &expect![[
            r#"{"addedAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"In","values":["1"]},{"key":"a","operator":"Exists"}]},{}]}}}"#
        ]],
    );
    check_args(
        json!({"addedAffinity": preferred(&[(2, json!(null))])}),
        &expect![[
            r#"{"addedAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"preference":{},"weight":2}]}}"#
        ]],
    );
}

#[test]
fn invalid_arguments_are_rejected() {
    let added = |affinity: Value| json!({"addedAffinity": affinity});
    check_args(
        json!({"affinity": {}}),
        &expect!["affinity: unknown field `affinity`, expected `addedAffinity`"],
    );
    check_args(
        added(json!({"required": {}})),
        &expect![
            "addedAffinity.required: unknown field `required`, expected `requiredDuringSchedulingIgnoredDuringExecution` or `preferredDuringSchedulingIgnoredDuringExecution`"
        ],
    );
    check_args(
        added(json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": "1"}]})),
        &expect![[
            r#"addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: invalid type: string "1", expected i32"#
        ]],
    );
    check_args(
        added(required(&[labels(&[requirement("zone", "Foo", &[])])])),
        &expect![[
            r#"addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "Foo": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt""#
        ]],
    );
    let two = labels(&[requirement("a", "Gt", &["x"]), requirement("b", "In", &[])]);
    let by_name = fields(&[named(&["a", "b"])]);
    check_args(
        added(required(&[two, by_name])),
        &expect![[r#"
        addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]: [matchExpressions[0].values[0]: Invalid value: "x": for 'Gt', 'Lt' operators, the value must be an integer, matchExpressions[1].values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty]
        addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchFields[0].values: Invalid value: ["a","b"]: must have one element"#]],
    );
    let bad = || labels(&[requirement("a", "Lt", &[])]);
    check_args(
        added(preferred(&[(0, bad()), (1, bad())])),
        &expect![
            "addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[1].matchExpressions[0].values: Invalid value: null: for 'Gt', 'Lt' operators, exactly one value is required"
        ],
    );
}

fn any_requirement() -> impl Strategy<Value = Value> {
    let operators = vec!["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt"];
    let value = prop::sample::select(vec!["0", "1", "2"]);
    let values = prop::collection::vec(value, 0..3);
    let parts = (prop::sample::select(vec!["a", "b"]), prop::sample::select(operators), values);
    parts.prop_map(|(key, operator, values)| {
        // Most are well-formed.
        let values = if operator.contains("Exist") { vec![] } else { values };
        requirement(key, operator, &values)
    })
}

fn any_term() -> impl Strategy<Value = Value> {
    let field = (prop::sample::select(vec!["In", "NotIn"]), 0..3)
        .prop_map(|(operator, n)| requirement("metadata.name", operator, &[&format!("n{n}")]));
    let parts = (prop::collection::vec(any_requirement(), 0..3), prop::option::of(field));
    parts.prop_map(|(requirements, field)| {
        let mut term = labels(&requirements);
        term["matchFields"] = field.into_iter().collect();
        term
    })
}

/// Values of labels `a` and `b` of up to five nodes.
fn any_nodes() -> impl Strategy<Value = Vec<[Option<u8>; 2]>> {
    prop::collection::vec([prop::option::of(0..3_u8), prop::option::of(0..3_u8)], 0..5)
}

fn set_nodes(bench: &mut PluginTestBench, nodes: &[[Option<u8>; 2]]) {
    for (at, values) in nodes.iter().enumerate() {
        let mut labels = json!({});
        for (key, value) in ["a", "b"].iter().zip(values) {
            if let Some(value) = value {
                labels[key] = json!(value.to_string());
            }
        }
        let name = format!("n{at}");
        bench.node(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
    }
}

proptest! {
    /// The incremental form equals the per-node methods, also after the nodes have changed.
    #[test]
    fn the_incremental_form_equals_the_per_node_methods(
        first in any_nodes(),
        then in any_nodes(),
        selector in prop::option::of(0..3_u8),
        terms in prop::option::of(prop::collection::vec(any_term(), 0..3)),
        weighted in prop::collection::vec((0..4, any_term()), 0..3),
        added in prop::option::of(prop::sample::select(vec!["In", "NotIn"])),
    ) {
        let added = added.map(|operator| required(&[labels(&[requirement("b", operator, &["1"])])]));
        let mut bench = PluginTestBench::new(&DEF, json!({"addedAffinity": added})).unwrap();
        set_nodes(&mut bench, &first);
        let mut affinity = preferred(&weighted);
        if let Some(terms) = terms {
            affinity["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!({"nodeSelectorTerms": terms});
        }
        let mut incoming = pod(affinity);
        if let Some(value) = selector {
            incoming["spec"]["nodeSelector"] = json!({"a": value.to_string()});
        }
        let incoming = bench.parse_pod(incoming).unwrap();
        bench.check_incremental(&incoming).unwrap();

        let PrepareResult::Evaluator(evaluator) = bench.prepare_incremental(&incoming) else { return Ok(()) };
        set_nodes(&mut bench, &then);
        bench.world.remove_node("n1");
        let nodes = bench.world.nodes();
        let mut set = nodes.columns().occupied.clone();
        evaluator.filter_rows(bench.evaluator_cx(), NodeRow(0), &mut set);
        for row in nodes.rows() {
            prop_assert_eq!(set[row.index()] != 0, evaluator.filter_row(bench.evaluator_cx(), row));
        }
        bench.check_incremental(&incoming).unwrap();
    }
}

#[test]
fn explain_says_which_labels_and_requirements_do_not_match() {
    #[track_caller]
    fn check(args: Value, pod: Value, want: &Expect) {
        want.assert_eq(&bench(args).explain(pod).unwrap().join("\n"));
    }
    check(
        json!({}),
        selecting(json!({"zone": "2", "disk": "ssd"})),
        &expect![[r#"
        a: unmatched=nodeSelector zone=2, the node has zone=1
        b: unmatched=nodeSelector disk=ssd, the node has no disk
        c: unmatched=nodeSelector disk=ssd, the node has no disk; nodeSelector zone=2, the node has no zone"#]],
    );
    let (ssd, many) = (requirement("disk", "In", &["ssd"]), requirement("cores", "Gt", &["8"]));
    let terms =
        [labels(&[ssd.clone(), many.clone()]), labels(&[requirement("gpu", "Exists", &[])])];
    check(
        json!({}),
        pod(required(&terms)),
        &expect![[r#"
        a: unmatched=term 1 cores Gt (8), the node has cores=4; term 2 gpu, the node has no gpu
        b: unmatched=term 1 disk in (ssd), the node has no disk; term 2 gpu, the node has no gpu
        c: unmatched=term 1 disk in (ssd) and cores Gt (8), the node has no cores, no disk; term 2 gpu, the node has no gpu"#]],
    );
    let term = json!({"matchExpressions": [ssd], "matchFields": [requirement("metadata.name", "NotIn", &["c"])]});
    check(
        json!({}),
        pod(required(&[term])),
        &expect![[r#"
        b: unmatched=term 1 disk in (ssd), the node has no disk
        c: unmatched=term 1 disk in (ssd) and metadata.name not in (c), the node has no disk"#]],
    );
    check(
        json!({}),
        pod(required(&[json!({})])),
        &expect![[r#"
        a: unmatched=term 1 is empty
        b: unmatched=term 1 is empty
        c: unmatched=term 1 is empty"#]],
    );
    let added = json!({"addedAffinity": required(&[labels(&[many])])});
    check(
        added,
        selecting(json!({"zone": "1"})),
        &expect![[r#"
        a: unmatched=addedAffinity term 1 cores Gt (8), the node has cores=4
        b: unmatched=nodeSelector zone=1, the node has zone=2
        c: unmatched=addedAffinity term 1 cores Gt (8), the node has no cores; nodeSelector zone=1, the node has no zone"#]],
    );
}
