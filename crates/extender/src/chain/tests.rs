use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;
use crate::ask::{Answer, Question};
use crate::messages::{HostPriority, MetaPod, read};

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
fn who_is_asked() {
    let config = json!([
        {"urlPrefix": "all", "filterVerb": "f", "ignorable": true},
        {"urlPrefix": "gpu", "filterVerb": "f", "bindVerb": "b", "managedResources": [{"name": "e.com/gpu"}]},
        {"urlPrefix": "scores", "prioritizeVerb": "p", "weight": 1},
    ]);
    let config: Vec<v1::Extender> = serde_json::from_value(config).unwrap();
    let extenders = Extenders::new(&config);
    let check = |spec: Value, want: [&[usize]; 4]| {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let verbs = [Verb::Filter, Verb::Prioritize, Verb::Preempt, Verb::Bind];
        assert_eq!(verbs.map(|verb| extenders.asked(verb, &spec)), want.map(<[usize]>::to_vec));
    };
    // Those whose errors do not count come last.
    let order: Vec<(&str, usize)> =
        extenders.iter().map(|it| (it.url_prefix.as_str(), it.configured_at)).collect();
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
fn urls_and_times() {
    let it = extender(json!({"urlPrefix": "http://e//", "bindVerb": "b/c"}));
    assert_eq!(it.url(Verb::Bind), "http://e/b/c");
    assert_eq!(it.timeout, Duration::from_secs(5));
    assert_eq!(extender(json!({"httpTimeout": "100ms"})).timeout, Duration::from_millis(100));
    assert_eq!(extender(json!({"httpTimeout": "-1s"})).timeout, Duration::ZERO);
}

/// An answer as it is read by whoever asked.
fn filter_answer(
    answer: &Value,
    extender: &Extender,
    asked: &Filtering,
) -> (Option<Left>, ExtenderFilterResult<Named>) {
    let question = Question::Filter(asked.nodes().clone());
    let by_name = extender.node_cache_capable;
    match Answer::read(&question, by_name, answer.to_string().as_bytes()).unwrap() {
        Answer::Filter(answer) => (None, answer),
        Answer::Left(left, answer) => (Some(left), answer),
        other => panic!("{other:?}"),
    }
}

/// An extender's answer about nodes a, b and c: what is left, and why the others are not.
#[track_caller]
fn check_filter(extender: &Extender, answer: Result<Value, &str>, want: &Expect) {
    let nodes = ["a", "b", "c"].map(Str::new);
    let mut filtering = Filtering::new(Arc::new(nodes.iter().cloned().collect()), vec![0]);
    assert_eq!(filtering.ask_next(), Some(0));
    let answer = answer.map(|answer| filter_answer(&answer, extender, &filtering));
    if let Err(error) = filtering.answered(extender, answer.map_err(str::to_owned)) {
        return want.assert_eq(&format!("error: {error}"));
    }
    assert_eq!(filtering.ask_next(), None);
    let (left, failures) = filtering.finish();
    let left: Vec<&str> = match &left {
        Left::All => nodes.iter().map(Str::as_str).collect(),
        Left::At(places) => places.iter().map(|at| nodes[*at].as_str()).collect(),
    };
    let mut said = vec![format!("left: {}", left.join(" "))];
    said.extend(failures.iter().map(|(node, failure)| {
        let resolvable = if failure.is_unresolvable { "unresolvable" } else { "unschedulable" };
        format!("{node}: {resolvable}: {}", failure.message)
    }));
    want.assert_eq(&said.join("\n"));
}

#[test]
fn filter_by_name() {
    let it = caching();
    check_filter(&it, Ok(json!({"nodenames": ["c", "a"]})), &expect!["left: a c"]);
    check_filter(&it, Ok(json!({"NodeNames": ["a", "a"]})), &expect!["left: a"]);
    check_filter(&it, Ok(json!({"NodeNames": []})), &expect!["left: "]);
    check_filter(&it, Ok(json!({})), &expect!["left: "]);
    check_filter(&it, Ok(Value::Null), &expect!["left: "]);
    check_filter(
        &it,
        Ok(
            json!({"NodeNames": ["a"], "FailedNodes": {"b": "full", "c": "full"}, "FailedAndUnresolvableNodes": {"c": "no gpu"}}),
        ),
        &expect![[r#"
            left: a
            b: unschedulable: full
            c: unresolvable: no gpu"#]],
    );
    check_filter(
        &it,
        Ok(json!({"NodeNames": ["a", "b", "c"], "FailedNodes": {"x": "unheard of"}})),
        &expect![[r#"
            left: a b c
            x: unschedulable: unheard of"#]],
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
        &expect!["left: b"],
    );
    check_filter(
        &it,
        Ok(json!({"NodeNames": ["a"], "Error": "cannot say"})),
        &expect!["error: cannot say"],
    );
    check_filter(&it, Err("connection refused"), &expect!["error: connection refused"]);
}

#[test]
fn filter_by_object() {
    let it = extender(json!({"urlPrefix": "http://e", "filterVerb": "f"}));
    check_filter(
        &it,
        Ok(json!({"nodes": {"items": [{"metadata": {"name": "b"}}]}})),
        &expect!["left: b"],
    );
    // Names do not count from an extender that was sent objects.
    check_filter(&it, Ok(json!({"NodeNames": ["a"]})), &expect!["left: "]);
    check_filter(
        &it,
        Ok(json!({"Nodes": {"items": [{}]}})),
        &expect![[
            r#"error: extender "http://e" claims a filtered node "" which is not found in the input node list"#
        ]],
    );
}

#[test]
fn errors_that_do_not_count() {
    let it = Extender { ignorable: true, ..caching() };
    let untouched = expect!["left: a b c"];
    check_filter(&it, Err("connection refused"), &untouched);
    check_filter(&it, Ok(json!({"NodeNames": ["x"], "FailedNodes": {"a": "y"}})), &untouched);
    check_filter(&it, Ok(json!({"Error": "cannot say", "FailedNodes": {"a": "y"}})), &untouched);
}

#[test]
fn nobody_is_asked_about_no_node() {
    let mut filtering = Filtering::new(names(["a"]), vec![3, 5]);
    assert_eq!(filtering.ask_next(), Some(3));
    filtering.answered(&caching(), Ok(Default::default())).unwrap();
    assert_eq!((filtering.ask_next(), &**filtering.nodes()), (None, &*names([])));
}

#[test]
fn names_are_found_in_any_order() {
    let asked = ["a", "b", "c", "d"].map(Str::new);
    let check = |names: &[&str], want: &[Option<usize>]| {
        let mut places = Places::new(&asked);
        let found: Vec<Option<usize>> = names.iter().map(|name| places.find(name)).collect();
        assert_eq!(found, want, "{names:?}");
    };
    check(&["a", "b", "c", "d"], &[Some(0), Some(1), Some(2), Some(3)]);
    check(&["b", "d"], &[Some(1), Some(3)]);
    check(&["d", "a", "a", "c"], &[Some(3), Some(0), Some(0), Some(2)]);
    check(&["x", "a", "b", "b", ""], &[None, Some(0), Some(1), Some(1), None]);
    check(&["d", "d", "e"], &[Some(3), Some(3), None]);
}

#[test]
fn what_is_left_of_what_was_left_keeps_its_place() {
    let mut filtering = Filtering::new(names(["a", "b", "c"]), vec![0, 1]);
    for (answer, want) in [(json!(["c", "b"]), "b c"), (json!(["c"]), "c")] {
        filtering.ask_next().unwrap();
        let answer = filter_answer(&json!({"NodeNames": answer}), &caching(), &filtering);
        filtering.answered(&caching(), Ok(answer)).unwrap();
        assert_eq!(filtering.nodes().join(" "), want);
    }
    assert_eq!(filtering.finish().0, Left::At(vec![2]));
}

#[test]
fn scores_are_scaled_weighed_and_summed() {
    let score = |host: &str, score| HostPriority { host: host.to_owned(), score };
    let weighing = |weight| Extender { weight, ..caching() };
    let mut scores = Scores::new(names(["a", "b", "c"]));
    scores.add(&weighing(1), &vec![score("a", 10), score("b", -2), score("b", 1)]);
    scores.add(&weighing(5), &vec![score("a", 1), score("x", 0)]);
    let check = |scores: &Scores, want: [(i64, bool); 3]| {
        assert_eq!(scores.by_place().collect::<Vec<_>>(), want);
    };
    check(&scores, [(150, true), (-10, true), (0, false)]);
    scores.add_in_order(&weighing(2), &[0, 1, 2]);
    check(&scores, [(150, true), (10, true), (40, true)]);
    scores.add(&weighing(i64::MAX), &vec![score("a", i64::MAX)]);
    let wrapped = i64::MAX.wrapping_mul(i64::MAX.wrapping_mul(10)).wrapping_add(150);
    check(&scores, [(wrapped, true), (10, true), (40, true)]);
}

/// Node a has pods 1 and 2, b has 3.
struct Cluster;

impl Nodes for Cluster {
    fn has_pod(&self, node: &str, uid: &str) -> Option<bool> {
        match node {
            "a" => Some(["1", "2"].contains(&uid)),
            "b" => Some(uid == "3"),
            _ => None,
        }
    }
}

#[track_caller]
fn check_preempt(extender: &Extender, answer: Result<Value, &str>, want: &Expect) {
    let victim =
        |uid: &str| MetaVictims { pods: vec![MetaPod { uid: uid.into() }], num_pdb_violations: 0 };
    let victims = BTreeMap::from([("a".to_owned(), victim("1")), ("b".to_owned(), victim("3"))]);
    let mut preempting = Preempting::new(victims, vec![0]);
    assert_eq!(preempting.ask_next(), Some(0));
    let answer = answer.map(|answer| read(answer.to_string().as_bytes()).unwrap());
    match preempting.answered(extender, answer.map_err(str::to_owned), &Cluster) {
        Ok(()) => want.assert_eq(&serde_json::to_string(preempting.victims()).unwrap()),
        Err(error) => want.assert_eq(&format!("error: {error}")),
    }
}

#[test]
fn preempt() {
    let says = |victims: Value| Ok(json!({"nodeNameToMetaVictims": victims}));
    let kept = json!({"a": {"Pods": [{"UID": "2"}], "NumPDBViolations": 1}});
    let unheard_of = json!({"x": {"Pods": []}});
    let elsewhere = json!({"b": {"Pods": [{"UID": "1"}]}});
    let nobody = json!({"a": {"Pods": [{"UID": "1"}]}, "b": null});
    let it = caching();
    check_preempt(
        &it,
        says(kept.clone()),
        &expect![[r#"{"a":{"Pods":[{"UID":"2"}],"NumPDBViolations":1}}"#]],
    );
    check_preempt(&it, says(json!({})), &expect!["{}"]);
    check_preempt(&it, Err("EOF"), &expect!["error: EOF"]);
    check_preempt(
        &it,
        says(unheard_of.clone()),
        &expect![[r#"error: nodeinfo not found for node name "x""#]],
    );
    check_preempt(
        &it,
        says(elsewhere.clone()),
        &expect![
            "error: extender: http://e/ claims to preempt pod (UID: &{1}) on node: b, but the pod is not found on that node"
        ],
    );
    check_preempt(
        &it,
        says(nobody.clone()),
        &expect![[r#"error: expected at least one victim pod on node "b""#]],
    );
    let it = Extender { ignorable: true, ..caching() };
    let untouched = expect![[
        r#"{"a":{"Pods":[{"UID":"1"}],"NumPDBViolations":0},"b":{"Pods":[{"UID":"3"}],"NumPDBViolations":0}}"#
    ]];
    check_preempt(
        &it,
        says(kept),
        &expect![[r#"{"a":{"Pods":[{"UID":"2"}],"NumPDBViolations":1}}"#]],
    );
    check_preempt(&it, Err("EOF"), &untouched);
    check_preempt(&it, says(unheard_of), &untouched);
    check_preempt(&it, says(elsewhere), &untouched);
    check_preempt(
        &it,
        says(nobody),
        &expect![[r#"{"a":{"Pods":[{"UID":"1"}],"NumPDBViolations":0}}"#]],
    );
}

#[test]
fn passwords_are_not_shown() {
    for (url, want) in [
        ("http://e.example:80/x", "http://e.example:80/x"),
        ("https://me:secret@e.example/x@y:z", "https://me:***@e.example/x@y:z"),
        ("https://me:a:b@c@e.example", "https://me:***@e.example"),
        ("https://:secret@e.example?q", "https://:***@e.example?q"),
        ("https://me@e.example", "https://me@e.example"),
        ("http://e.example/me:secret@x", "http://e.example/me:secret@x"),
        ("", ""),
    ] {
        assert_eq!(without_password(url), want);
    }
    let it = extender(json!({"urlPrefix": "http://me:secret@e", "filterVerb": "f"}));
    assert_eq!((&*it.name, &*it.url(Verb::Filter)), ("http://me:***@e", "http://me:secret@e/f"));
}
