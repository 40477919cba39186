//! Attempts that call extenders, with scripted replies.

use loadmaster_extender::{ExtenderOperation, ExtenderResponse};

use super::*;

mod bind;
mod deferred_events;
mod preemption;

/// A call to an extender as a line: the index of the extender, the verb, the pod and the argument.
pub(super) fn call_line(extend: &ExtenderCall) -> String {
    let about = match &extend.request.operation {
        ExtenderOperation::Filter(nodes) | ExtenderOperation::Prioritize(nodes) => nodes.join(" "),
        ExtenderOperation::Preempt(victims) => serde_json::to_string(victims).unwrap(),
        ExtenderOperation::Bind(node) => node.to_string(),
    };
    let verb = extend.request.operation.verb().name();
    format!("{} {verb} {}: {about}", extend.request.extender, extend.request.name)
}

impl Bench {
    /// Nodes a and b with two CPUs each, and these extenders.
    fn with_extenders(extenders: Value) -> Bench {
        let mut bench = Bench::extended(EngineOptions::default(), extenders);
        bench.node("b", "2");
        bench
    }

    fn node_of(&self, uid: &str) -> String {
        let world = self.engine.world();
        let row = world.row_of_pod(uid).unwrap();
        world.node(row).unwrap().name().to_owned()
    }

    /// Replies to a call; a string is an error.
    pub(super) fn extender_replies(&mut self, nth: usize, answer: Value) {
        let ExtenderCall { id, request, .. } = self.extender_calls.remove(nth);
        let answer = match answer {
            Value::String(error) => Err(error),
            answer => {
                let body = answer.to_string();
                Ok(ExtenderResponse::decode(&request.operation, true, body.as_bytes()).unwrap())
            }
        };
        self.apply(EngineEvent::ExtenderReplied { call: id, reply: answer });
    }
}

/// The configuration of an extender that gets node names.
fn extender(config: Value) -> Value {
    let mut extender = json!({"urlPrefix": "http://e", "nodeCacheCapable": true});
    for (key, value) in config.as_object().unwrap() {
        extender[key] = value.clone();
    }
    extender
}

fn filter_extender() -> Value {
    json!([extender(json!({"filterVerb": "f"}))])
}

#[test]
fn a_single_remaining_node_is_selected() {
    let mut bench = Bench::with_extenders(json!([extender(
        json!({"filterVerb": "f", "prioritizeVerb": "p", "weight": 1})
    )]));
    bench.pod("web", json!({}));
    assert_eq!(bench.cycle(), CycleResult::Ran);
    assert_eq!(bench.cycle(), CycleResult::Waiting);
    bench.extender_replies(0, json!({"NodeNames": ["b"], "FailedNodes": {"a": "full"}}));
    bench.check(&expect![[r#"
        0 filter web: a b
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    assert_eq!(bench.cycle(), CycleResult::Idle);
}

#[test]
fn progress_names_the_extenders_that_an_attempt_waits_for() {
    let one = |name: &str, verbs: Value| {
        let mut config = extender(verbs);
        config["urlPrefix"] = format!("http://me:secret@{name}").into();
        config
    };
    let mut bench = Bench::with_extenders(json!([
        one("first", json!({"filterVerb": "f"})),
        one("second", json!({"prioritizeVerb": "p", "weight": 1})),
        one("third", json!({"prioritizeVerb": "p", "weight": 1})),
    ]));
    bench.pod("web", json!({}));
    bench.cycle();
    let waits = |bench: &Bench| {
        let progress = bench.engine.pod_scheduling_state(bench.now, "default", "web").unwrap();
        let names: Vec<String> =
            progress.waits_for.iter().map(|wait| wait.plugin.to_string()).collect();
        (progress.attempts, names.join(" "))
    };
    assert_eq!(waits(&bench), (1, "http://me:***@first".to_owned()));
    bench.extender_replies(0, json!({"NodeNames": ["a", "b"]}));
    assert_eq!(waits(&bench), (1, "http://me:***@second http://me:***@third".to_owned()));
}

/// Schedules a pod with an extender that accepts every node, and checks which nodes it got.
#[track_caller]
fn check_sent_nodes(bench: &mut Bench, pod: &str, want: &[&str]) {
    bench.pod(pod, json!({}));
    bench.cycle();
    let ExtenderOperation::Filter(nodes) = bench.extender_calls[0].request.operation.clone() else {
        panic!("{pod}")
    };
    let nodes: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
    assert_eq!(nodes, want, "{pod}");
    bench.extender_replies(0, json!({"NodeNames": nodes}));
    assert!(bench.engine.world().row_of_pod(pod).is_some(), "{pod}");
}

#[test]
fn extenders_get_the_current_feasible_nodes_for_equal_pods() {
    let mut bench = Bench::with_extenders(filter_extender());
    for pod in ["1", "2", "3"] {
        check_sent_nodes(&mut bench, pod, &["a", "b"]);
    }
    // Two pods fit on a node, and the emptier node is better.
    assert_ne!(bench.node_of("1"), bench.node_of("2"));
    let left = if bench.node_of("3") == "a" { "b" } else { "a" };
    check_sent_nodes(&mut bench, "4", &[left]);
    bench.node("c", "3");
    check_sent_nodes(&mut bench, "5", &["c"]);
    // The row of the deleted node may be reused.
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Node("c".into())));
    bench.node("d", "3");
    check_sent_nodes(&mut bench, "6", &["d"]);
    bench.node("e", "1");
    check_sent_nodes(&mut bench, "7", &["d", "e"]);
    assert_eq!(bench.node_of("7"), "d");
}

#[test]
fn no_node_passes_the_extenders() {
    let check = |answer: Value, want: Expect| {
        let mut bench = Bench::with_extenders(filter_extender());
        bench.pod("web", json!({}));
        bench.cycle();
        bench.extender_replies(0, answer);
        bench.check(&want);
    };
    check(
        json!({"NodeNames": [], "FailedNodes": {"a": "full"}, "FailedAndUnresolvableNodes": {"b": "no gpu"}}),
        expect![[r#"
            0 filter web: a b
            FailedScheduling web: 0/2 nodes are available: 1 full, 1 no gpu. preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.
            call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 1 full, 1 no gpu. preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]],
    );
    // Nodes that are dropped without a reason are not counted; unknown nodes are.
    check(
        json!({"NodeNames": []}),
        expect![[r#"
        0 filter web: a b
        FailedScheduling web: 0/2 nodes are available: preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]],
    );
    check(
        json!({"FailedNodes": {"a": "full", "x": "full"}}),
        expect![[r#"
        0 filter web: a b
        FailedScheduling web: 0/2 nodes are available: 2 full. preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 full. preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]],
    );
    check(
        json!({"NodeNames": ["a"], "Error": "no idea"}),
        expect![[r#"
        0 filter web: a b
        FailedScheduling web: no idea
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"no idea","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]],
    );
    check(
        json!({"NodeNames": ["x"]}),
        expect![[r#"
        0 filter web: a b
        FailedScheduling web: extender "http://e" claims a filtered node "x" which is not found in the input node list
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"extender \"http://e\" claims a filtered node \"x\" which is not found in the input node list","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]],
    );
    check(
        json!("Post \"http://e/f\": EOF"),
        expect![[r#"
        0 filter web: a b
        FailedScheduling web: Post "http://e/f": EOF
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"Post \"http://e/f\": EOF","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]],
    );
}

#[test]
fn any_event_requeues_a_pod_that_an_extender_rejected() {
    let mut bench = Bench::with_extenders(filter_extender());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.extender_replies(0, json!({}));
    bench.lines.clear();
    bench.advance(20);
    bench.check(&expect!["0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"]);
    bench.pod("other", json!({}));
    bench.check(&expect!["1 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"]);
    bench.node("b", "1");
    bench.check(&expect!["2 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
}

/// Extenders read annotations, which are not stored: an update of the pod without visible changes may have changed them.
#[test]
fn any_update_of_the_pod_requeues_it() {
    let mut bench = Bench::with_extenders(filter_extender());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.extender_replies(0, json!({}));
    bench.lines.clear();
    bench.advance(20);
    bench.pod("web", json!({}));
    bench.check(&expect!["1 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
}

#[test]
fn filter_extenders_are_called_one_after_the_other() {
    let both = json!([
        extender(json!({"filterVerb": "f", "ignorable": true})),
        extender(json!({"filterVerb": "f"})),
    ]);
    let mut bench = Bench::with_extenders(both.clone());
    bench.node("c", "2");
    bench.pod("web", json!({}));
    bench.cycle();
    bench.extender_replies(0, json!({"NodeNames": ["c", "b"]}));
    bench.extender_replies(0, json!({"NodeNames": ["c"]}));
    bench.check(&expect![[r#"
        0 filter web: a b c
        1 filter web: b c
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    // The error of an ignorable extender changes nothing.
    let mut bench = Bench::with_extenders(both);
    bench.pod("web", json!({}));
    bench.cycle();
    bench.extender_replies(0, json!({"NodeNames": ["b"]}));
    bench.extender_replies(0, json!("connection refused"));
    bench.check(&expect![[r#"
        0 filter web: a b
        1 filter web: b
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn scores_of_all_extenders_are_added() {
    let config = json!([
        extender(json!({"prioritizeVerb": "p", "weight": 1})),
        extender(json!({"prioritizeVerb": "p", "weight": 3})),
    ]);
    let check = |answers: [Value; 2], order: [usize; 2], want: &str| {
        let mut bench = Bench::with_extenders(config.clone());
        bench.pod("web", json!({}));
        bench.cycle();
        assert_eq!(std::mem::take(&mut bench.lines).len(), 2, "both are called in parallel");
        bench.extender_replies(order[0], answers[order[0]].clone());
        assert!(bench.lines.is_empty());
        bench.extender_replies(0, answers[order[1]].clone());
        assert_eq!(bench.node_of("web"), want);
    };
    let score = |a: i64, b: i64| json!([{"Host": "a", "Score": a}, {"Host": "b", "Score": b}]);
    for order in [[0, 1], [1, 0]] {
        check([score(10, 0), score(3, 6)], order, "a");
        check([score(8, 0), score(3, 6)], order, "b");
        // An error only drops the scores of that extender.
        check([json!("EOF"), score(3, 6)], order, "b");
    }
}

/// The nodes that a pod may get among a and b, which are equal, with these scores of an extender: for the first pod of its template, and
/// after other pods.
#[track_caller]
fn check_scores(scores: Value, want: &[&str]) {
    for before in [&[][..], &["a", "b"]] {
        let mut seen = Vec::new();
        for seed in 0..12 {
            let extenders = json!([extender(json!({"prioritizeVerb": "p", "weight": 1}))]);
            let mut bench =
                Bench::extended(EngineOptions { seed, ..EngineOptions::default() }, extenders);
            bench.node("b", "2");
            for node in before {
                bench.pod(node, json!({}));
                bench.cycle();
                bench.extender_replies(0, json!([{"Host": node, "Score": 10}]));
                assert_eq!(bench.node_of(node), *node);
            }
            bench.pod("web", json!({}));
            bench.cycle();
            bench.extender_replies(0, scores.clone());
            seen.push(bench.node_of("web"));
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, want, "after {before:?}");
    }
}

#[test]
fn the_highest_total_is_selected() {
    check_scores(json!([{"Host": "a", "Score": 1}, {"Host": "b", "Score": 2}]), &["b"]);
    check_scores(json!([{"Host": "a", "Score": -1}]), &["b"]);
    check_scores(json!([{"Host": "a", "Score": 0}, {"Host": "b", "Score": 0}]), &["a", "b"]);
    check_scores(json!([]), &["a", "b"]);
    check_scores(json!("EOF"), &["a", "b"]);
    // As upstream: among equal nodes only those in an extender's reply take part in the random selection.
    check_scores(json!([{"Host": "b", "Score": 0}]), &["b"]);
    check_scores(json!([{"Host": "x", "Score": 100}]), &["a", "b"]);
}

#[test]
fn extenders_are_not_called_for_pods_they_are_not_interested_in() {
    let managing = json!([extender(json!({
        "filterVerb": "f", "managedResources": [{"name": "e.com/gpu", "ignoredByScheduler": true}],
    }))]);
    let mut bench = Bench::with_extenders(managing);
    bench.pod("web", json!({}));
    bench.cycle();
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    // NodeResourcesFit leaves the resource to the extender.
    let resources = json!({"requests": {"e.com/gpu": "1"}, "limits": {"e.com/gpu": "1"}});
    let containers = json!({"containers": [{"name": "c", "resources": resources}]});
    bench.set_pod("gpu", json!({}), containers, json!({}));
    bench.cycle();
    bench.extender_replies(0, json!({"NodeNames": ["a"]}));
    bench.check(&expect![[r#"
        0 filter gpu: a b
        call pods/gpu/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn a_nominated_node_is_evaluated_first() {
    let mut bench = Bench::with_extenders(filter_extender());
    bench.set_pod("web", json!({}), json!({}), json!({"nominatedNodeName": "b"}));
    bench.cycle();
    bench.extender_replies(0, json!({"NodeNames": ["b"]}));
    bench.check(&expect![[r#"
        0 filter web: b
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    for answer in [json!({"FailedNodes": {"b": "not this one"}}), json!("EOF")] {
        let mut bench = Bench::with_extenders(filter_extender());
        bench.set_pod("web", json!({}), json!({}), json!({"nominatedNodeName": "b"}));
        bench.cycle();
        bench.extender_replies(0, answer);
        bench.extender_replies(0, json!({"NodeNames": ["a"]}));
        assert_eq!(bench.lines.last().unwrap(), "call pods/web/binding");
    }
}
