use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;
use crate::messages::{HostPriority, MetaPod, decode_message};
use crate::request::{ExtenderOperation, ExtenderResponse};

fn extender(config: Value) -> Extender {
    let config: v1::Extender = serde_json::from_value(config).unwrap();
    Extender::new(0, &config)
}

fn names<const N: usize>(names: [&str; N]) -> Arc<NodeNames> {
    Arc::new(names.map(Str::new).into_iter().collect())
}

fn caching() -> Extender {
    extender(json!({"urlPrefix": "http://e/", "filterVerb": "f", "nodeCacheCapable": true}))
}

#[test]
fn extenders_are_called_for_pods_they_are_interested_in() {
    let config = json!([
        {"urlPrefix": "all", "filterVerb": "f", "ignorable": true},
        {"urlPrefix": "gpu", "filterVerb": "f", "bindVerb": "b", "managedResources": [{"name": "e.com/gpu"}]},
        {"urlPrefix": "scores", "prioritizeVerb": "p", "weight": 1},
    ]);
    let config: Vec<v1::Extender> = serde_json::from_value(config).unwrap();
    let extenders = Extenders::new(&config);
    let check = |spec: Value, want: [&[usize]; 4]| {
        let spec: SharedPodSpec = serde_json::from_value(spec).unwrap();
        let verbs = [Verb::Filter, Verb::Prioritize, Verb::Preempt, Verb::Bind];
        assert_eq!(
            verbs.map(|verb| extenders.interested_in(verb, &spec)),
            want.map(<[usize]>::to_vec)
        );
    };
    // Ignorable extenders are last.
    let order: Vec<(&str, usize)> =
        extenders.iter().map(|it| (it.url_prefix.as_str(), it.config_index)).collect();
    assert_eq!(order, [("gpu", 1), ("scores", 2), ("all", 0)]);
    check(json!({}), [&[2], &[1], &[], &[]]);
    let wants = |list: &str| json!([{"name": "c", "resources": {list: {"e.com/gpu": "1"}}}]);
    check(json!({"containers": wants("requests")}), [&[0, 2], &[1], &[], &[0]]);
    check(json!({"containers": wants("limits")}), [&[0, 2], &[1], &[], &[0]]);
    check(json!({"initContainers": wants("requests")}), [&[0, 2], &[1], &[], &[0]]);
    // As upstream: overhead and the pod's own resources do not count.
    check(json!({"overhead": {"e.com/gpu": "1"}}), [&[2], &[1], &[], &[]]);
}

#[test]
fn urls_and_timeouts() {
    let it = extender(json!({"urlPrefix": "http://e//", "bindVerb": "b/c"}));
    assert_eq!(it.url(Verb::Bind), "http://e/b/c");
    assert_eq!(extender(json!({"httpTimeout": "100ms"})).timeout, Duration::from_millis(100));
    assert_eq!(extender(json!({"httpTimeout": "-1s"})).timeout, Duration::ZERO);
}

/// A decoded response to filter.
fn filter_response(
    response: &Value,
    extender: &Extender,
    chain: &FilterChain,
) -> (Option<RemainingNodes>, ExtenderFilterResult<NamedObject>) {
    let operation = ExtenderOperation::Filter(chain.nodes().clone());
    let by_name = extender.node_cache_capable;
    match ExtenderResponse::decode(&operation, by_name, response.to_string().as_bytes()).unwrap() {
        ExtenderResponse::Filter(response) => (None, response),
        ExtenderResponse::FilterInOrder(remaining, response) => (Some(remaining), response),
        other => panic!("{other:?}"),
    }
}

/// Checks what remains of the nodes a, b and c after an extender's response, and why the others were rejected.
#[track_caller]
fn check_filter(extender: &Extender, response: Result<Value, &str>, want: &Expect) {
    let nodes = ["a", "b", "c"].map(Str::new);
    let mut chain = FilterChain::new(Arc::new(nodes.iter().cloned().collect()), vec![0]);
    assert_eq!(chain.next_extender(), Some(0));
    let response = response.map(|response| filter_response(&response, extender, &chain));
    if let Err(error) = chain.handle_response(extender, response.map_err(str::to_owned)) {
        return want.assert_eq(&format!("error: {error}"));
    }
    assert_eq!(chain.next_extender(), None);
    let (remaining, failures) = chain.finish();
    let remaining: Vec<&str> = match &remaining {
        RemainingNodes::All => nodes.iter().map(Str::as_str).collect(),
        RemainingNodes::Indices(indices) => indices.iter().map(|at| nodes[*at].as_str()).collect(),
    };
    let mut lines = vec![format!("remaining: {}", remaining.join(" "))];
    lines.extend(failures.iter().map(|(node, failure)| {
        let resolvable = if failure.is_unresolvable { "unresolvable" } else { "unschedulable" };
        format!("{node}: {resolvable}: {}", failure.message)
    }));
    want.assert_eq(&lines.join("\n"));
}

#[test]
fn filter_responses_with_names() {
    let it = caching();
    check_filter(&it, Ok(json!({"nodenames": ["c", "a"]})), &expect!["remaining: a c"]);
    check_filter(&it, Ok(json!({"NodeNames": ["a", "a"]})), &expect!["remaining: a"]);
    check_filter(&it, Ok(json!({"NodeNames": []})), &expect!["remaining: "]);
    check_filter(&it, Ok(json!({})), &expect!["remaining: "]);
    check_filter(&it, Ok(Value::Null), &expect!["remaining: "]);
    check_filter(
        &it,
        Ok(
            json!({"NodeNames": ["a"], "FailedNodes": {"b": "full", "c": "full"}, "FailedAndUnresolvableNodes": {"c": "no gpu"}}),
        ),
        &expect![[r#"
            remaining: a
            b: unschedulable: full
            c: unresolvable: no gpu"#]],
    );
    check_filter(
        &it,
        Ok(json!({"NodeNames": ["a", "b", "c"], "FailedNodes": {"x": "not in the request"}})),
        &expect![[r#"
            remaining: a b c
            x: unschedulable: not in the request"#]],
    );
    check_filter(
        &it,
        Ok(json!({"NodeNames": ["a", "x"]})),
        &expect![[
            r#"error: extender "http://e/" claims a filtered node "x" which is not found in the input node list"#
        ]],
    );
    check_filter(
        &it,
        Ok(json!({"Nodes": {"items": [{"metadata": {"name": "b"}}]}})),
        &expect!["remaining: b"],
    );
    check_filter(
        &it,
        Ok(json!({"NodeNames": ["a"], "Error": "cannot say"})),
        &expect!["error: cannot say"],
    );
    check_filter(&it, Err("connection refused"), &expect!["error: connection refused"]);
}

#[test]
fn filter_responses_with_objects() {
    let it = extender(json!({"urlPrefix": "http://e", "filterVerb": "f"}));
    check_filter(
        &it,
        Ok(json!({"nodes": {"items": [{"metadata": {"name": "b"}}]}})),
        &expect!["remaining: b"],
    );
    // Names do not count from an extender that was sent objects.
    check_filter(&it, Ok(json!({"NodeNames": ["a"]})), &expect!["remaining: "]);
    check_filter(
        &it,
        Ok(json!({"Nodes": {"items": [{}]}})),
        &expect![[
            r#"error: extender "http://e" claims a filtered node "" which is not found in the input node list"#
        ]],
    );
}

#[test]
fn errors_of_ignorable_extenders_are_ignored() {
    let it = Extender { ignorable: true, ..caching() };
    let unchanged = expect!["remaining: a b c"];
    check_filter(&it, Err("connection refused"), &unchanged);
    check_filter(&it, Ok(json!({"NodeNames": ["x"], "FailedNodes": {"a": "y"}})), &unchanged);
    check_filter(&it, Ok(json!({"Error": "cannot say", "FailedNodes": {"a": "y"}})), &unchanged);
}

#[test]
fn no_extender_is_called_without_nodes() {
    let mut chain = FilterChain::new(names(["a"]), vec![3, 5]);
    assert_eq!(chain.next_extender(), Some(3));
    chain.handle_response(&caching(), Ok(Default::default())).unwrap();
    assert_eq!((chain.next_extender(), &**chain.nodes()), (None, &*names([])));
}

#[test]
fn node_indices_are_found_in_any_order() {
    let nodes = ["a", "b", "c", "d"].map(Str::new);
    let check = |names: &[&str], want: &[Option<usize>]| {
        let mut index = NodeIndex::new(&nodes);
        let found: Vec<Option<usize>> = names.iter().map(|name| index.find(name)).collect();
        assert_eq!(found, want, "{names:?}");
    };
    check(&["a", "b", "c", "d"], &[Some(0), Some(1), Some(2), Some(3)]);
    check(&["b", "d"], &[Some(1), Some(3)]);
    check(&["d", "a", "a", "c"], &[Some(3), Some(0), Some(0), Some(2)]);
    check(&["x", "a", "b", "b", ""], &[None, Some(0), Some(1), Some(1), None]);
    check(&["d", "d", "e"], &[Some(3), Some(3), None]);
}

#[test]
fn remaining_nodes_are_indices_of_the_initial_nodes() {
    let mut chain = FilterChain::new(names(["a", "b", "c"]), vec![0, 1]);
    for (response, want) in [(json!(["c", "b"]), "b c"), (json!(["c"]), "c")] {
        chain.next_extender().unwrap();
        let response = filter_response(&json!({"NodeNames": response}), &caching(), &chain);
        chain.handle_response(&caching(), Ok(response)).unwrap();
        assert_eq!(chain.nodes().join(" "), want);
    }
    assert_eq!(chain.finish().0, RemainingNodes::Indices(vec![2]));
}

#[test]
fn scores_are_scaled_weighted_and_summed() {
    let score = |host: &str, score| HostPriority { host: host.to_owned(), score };
    let weighted = |weight| Extender { weight, ..caching() };
    let mut scores = ExtenderScores::new(names(["a", "b", "c"]));
    scores.add(&weighted(1), &vec![score("a", 10), score("b", -2), score("b", 1)]);
    scores.add(&weighted(5), &vec![score("a", 1), score("x", 0)]);
    let check = |scores: &ExtenderScores, want: [(i64, bool); 3]| {
        assert_eq!(scores.iter().collect::<Vec<_>>(), want);
    };
    check(&scores, [(150, true), (-10, true), (0, false)]);
    scores.add_in_order(&weighted(2), &[0, 1, 2]);
    check(&scores, [(150, true), (10, true), (40, true)]);
    scores.add(&weighted(i64::MAX), &vec![score("a", i64::MAX)]);
    let wrapped = i64::MAX.wrapping_mul(i64::MAX.wrapping_mul(10)).wrapping_add(150);
    check(&scores, [(wrapped, true), (10, true), (40, true)]);
}

/// Node a has pods 1 and 2, b has 3.
struct Cluster;

impl NodeLookup for Cluster {
    fn has_pod(&self, node: &str, uid: &str) -> Option<bool> {
        match node {
            "a" => Some(["1", "2"].contains(&uid)),
            "b" => Some(uid == "3"),
            _ => None,
        }
    }
}

#[track_caller]
fn check_preempt(extender: &Extender, response: Result<Value, &str>, want: &Expect) {
    let victim =
        |uid: &str| MetaVictims { pods: vec![MetaPod { uid: uid.into() }], num_pdb_violations: 0 };
    let victims = BTreeMap::from([("a".to_owned(), victim("1")), ("b".to_owned(), victim("3"))]);
    let mut chain = PreemptChain::new(victims, vec![0]);
    assert_eq!(chain.next_extender(), Some(0));
    let response =
        response.map(|response| decode_message(response.to_string().as_bytes()).unwrap());
    match chain.handle_response(extender, response.map_err(str::to_owned), &Cluster) {
        Ok(()) => want.assert_eq(&serde_json::to_string(chain.victims()).unwrap()),
        Err(error) => want.assert_eq(&format!("error: {error}")),
    }
}

#[test]
fn preempt_responses() {
    let responds = |victims: Value| Ok(json!({"nodeNameToMetaVictims": victims}));
    let smaller = json!({"a": {"Pods": [{"UID": "2"}], "NumPDBViolations": 1}});
    let unknown_node = json!({"x": {"Pods": []}});
    let elsewhere = json!({"b": {"Pods": [{"UID": "1"}]}});
    let no_victims = json!({"a": {"Pods": [{"UID": "1"}]}, "b": null});
    let it = caching();
    check_preempt(
        &it,
        responds(smaller.clone()),
        &expect![[r#"{"a":{"Pods":[{"UID":"2"}],"NumPDBViolations":1}}"#]],
    );
    check_preempt(&it, responds(json!({})), &expect!["{}"]);
    check_preempt(&it, Err("EOF"), &expect!["error: EOF"]);
    check_preempt(
        &it,
        responds(unknown_node.clone()),
        &expect![[r#"error: nodeinfo not found for node name "x""#]],
    );
    check_preempt(
        &it,
        responds(elsewhere.clone()),
        &expect![
            "error: extender: http://e/ claims to preempt pod (UID: &{1}) on node: b, but the pod is not found on that node"
        ],
    );
    check_preempt(
        &it,
        responds(no_victims.clone()),
        &expect![[r#"error: expected at least one victim pod on node "b""#]],
    );
    let it = Extender { ignorable: true, ..caching() };
    let unchanged = expect![[
        r#"{"a":{"Pods":[{"UID":"1"}],"NumPDBViolations":0},"b":{"Pods":[{"UID":"3"}],"NumPDBViolations":0}}"#
    ]];
    check_preempt(
        &it,
        responds(smaller),
        &expect![[r#"{"a":{"Pods":[{"UID":"2"}],"NumPDBViolations":1}}"#]],
    );
    check_preempt(&it, Err("EOF"), &unchanged);
    check_preempt(&it, responds(unknown_node), &unchanged);
    check_preempt(&it, responds(elsewhere), &unchanged);
    check_preempt(
        &it,
        responds(no_victims),
        &expect![[r#"{"a":{"Pods":[{"UID":"1"}],"NumPDBViolations":0}}"#]],
    );
}

#[test]
fn names_and_debug_output_have_no_password() {
    let it = extender(json!({"urlPrefix": "http://me:secret@e", "filterVerb": "f"}));
    assert_eq!((&*it.name, &*it.url(Verb::Filter)), ("http://me:***@e", "http://me:secret@e/f"));
    assert_eq!(format!("{it:?}"), r#"Extender { name: "http://me:***@e", .. }"#);
}

/// A plugin may propose victims on other nodes than the candidate; an extender may not.
#[test]
fn proposed_victims_may_be_on_other_nodes() {
    #[track_caller]
    fn check(proposed: &[&str], returned: &[&str], want: Result<(), &str>) {
        let victims = |uids: &[&str]| MetaVictims {
            pods: uids.iter().map(|uid| MetaPod { uid: (*uid).to_owned() }).collect(),
            num_pdb_violations: 0,
        };
        let of_b = |uids| BTreeMap::from([("b".to_owned(), victims(uids))]);
        let mut chain = PreemptChain::new(of_b(proposed), vec![0]);
        assert_eq!(chain.next_extender(), Some(0));
        let result = ExtenderPreemptionResult { node_name_to_meta_victims: of_b(returned) };
        let handled = chain.handle_response(&caching(), Ok(result), &Cluster);
        assert_eq!(handled, want.map_err(str::to_owned));
        assert_eq!(*chain.victims(), of_b(if want.is_ok() { returned } else { proposed }));
    }
    let unknown = "extender: http://e/ claims to preempt pod (UID: &{2}) on node: b, but the pod is not found on that node";
    check(&["3", "1"], &["3", "1"], Ok(()));
    check(&["3", "1"], &["1"], Ok(()));
    check(&["1"], &["3"], Ok(()));
    check(&["3", "1"], &["3", "2"], Err(unknown));
}
