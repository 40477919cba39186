//! Attempts that ask extenders, with answers from a script.

use loadmaster_extender::{Answer, Question};

use super::*;

mod binding;
mod meanwhile;
mod preempting;

/// A question in a line: the extender's place, and about what.
pub(super) fn asked(extend: &Extend) -> String {
    let about = match &extend.ask.question {
        Question::Filter(nodes) | Question::Prioritize(nodes) => nodes.join(" "),
        Question::Preempt(victims) => serde_json::to_string(victims).unwrap(),
        Question::Bind(node) => node.to_string(),
    };
    let verb = extend.ask.question.verb().name();
    format!("{} {verb} {}: {about}", extend.ask.extender, extend.ask.name)
}

impl Bench {
    /// Nodes a and b with two CPUs each, and these extenders.
    fn asking(extenders: Value) -> Bench {
        let mut bench = Bench::extended(Options::default(), extenders);
        bench.node("b", "2");
        bench
    }

    fn node_of(&self, uid: &str) -> String {
        let world = self.engine.world();
        let row = world.row_of_pod(uid).unwrap();
        world.node(row).unwrap().name().to_owned()
    }

    /// Answers a question; a text is an error.
    fn extender_says(&mut self, nth: usize, answer: Value) {
        let Extend { id, ask } = self.asks.remove(nth);
        let answer = match answer {
            Value::String(error) => Err(error),
            answer => {
                let body = answer.to_string();
                Ok(Answer::read(&ask.question, true, body.as_bytes()).unwrap())
            }
        };
        self.apply(Event::Extended { call: id, answer });
    }
}

/// Everything but the URL; asked by name.
fn extender(config: Value) -> Value {
    let mut extender = json!({"urlPrefix": "http://e", "nodeCacheCapable": true});
    for (key, value) in config.as_object().unwrap() {
        extender[key] = value.clone();
    }
    extender
}

fn filtering() -> Value {
    json!([extender(json!({"filterVerb": "f"}))])
}

#[test]
fn one_node_that_is_left_is_taken() {
    let mut bench = Bench::asking(json!([extender(
        json!({"filterVerb": "f", "prioritizeVerb": "p", "weight": 1})
    )]));
    bench.pod("web", json!({}));
    assert_eq!(bench.cycle(), Cycled::Ran);
    assert_eq!(bench.cycle(), Cycled::Waiting);
    bench.extender_says(0, json!({"NodeNames": ["b"], "FailedNodes": {"a": "full"}}));
    bench.check(&expect![[r#"
        0 filter web: a b
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    assert_eq!(bench.cycle(), Cycled::Idle);
}

#[test]
fn whom_an_attempt_waits_for_is_told() {
    let one = |name: &str, verbs: Value| {
        let mut config = extender(verbs);
        config["urlPrefix"] = format!("http://me:secret@{name}").into();
        config
    };
    let mut bench = Bench::asking(json!([
        one("first", json!({"filterVerb": "f"})),
        one("second", json!({"prioritizeVerb": "p", "weight": 1})),
        one("third", json!({"prioritizeVerb": "p", "weight": 1})),
    ]));
    bench.pod("web", json!({}));
    bench.cycle();
    let waits = |bench: &Bench| {
        let progress = bench.engine.progress(bench.now, "default", "web").unwrap();
        let names: Vec<String> =
            progress.waits_for.iter().map(|wait| wait.plugin.to_string()).collect();
        (progress.attempts, names.join(" "))
    };
    assert_eq!(waits(&bench), (1, "http://me:***@first".to_owned()));
    bench.extender_says(0, json!({"NodeNames": ["a", "b"]}));
    assert_eq!(waits(&bench), (1, "http://me:***@second http://me:***@third".to_owned()));
}

/// An extender that keeps every node.
#[track_caller]
fn check_kept(bench: &mut Bench, pod: &str, want: &[&str]) {
    bench.pod(pod, json!({}));
    bench.cycle();
    let Question::Filter(nodes) = bench.asks[0].ask.question.clone() else { panic!("{pod}") };
    let nodes: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
    assert_eq!(nodes, want, "{pod}");
    bench.extender_says(0, json!({"NodeNames": nodes}));
    assert!(bench.engine.world().row_of_pod(pod).is_some(), "{pod}");
}

#[test]
fn pods_alike_are_asked_about_the_nodes_of_the_moment() {
    let mut bench = Bench::asking(filtering());
    for pod in ["1", "2", "3"] {
        check_kept(&mut bench, pod, &["a", "b"]);
    }
    // Two fit on a node, and the emptier one is better.
    assert_ne!(bench.node_of("1"), bench.node_of("2"));
    let left = if bench.node_of("3") == "a" { "b" } else { "a" };
    check_kept(&mut bench, "4", &[left]);
    bench.node("c", "3");
    check_kept(&mut bench, "5", &["c"]);
    // Its row may be another node's now.
    bench.apply(Event::Gone(Name::Node("c".into())));
    bench.node("d", "3");
    check_kept(&mut bench, "6", &["d"]);
    bench.node("e", "1");
    check_kept(&mut bench, "7", &["d", "e"]);
    assert_eq!(bench.node_of("7"), "d");
}

#[test]
fn no_node_is_left() {
    let check = |answer: Value, want: Expect| {
        let mut bench = Bench::asking(filtering());
        bench.pod("web", json!({}));
        bench.cycle();
        bench.extender_says(0, answer);
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
    // Nodes that are dropped without a word are not counted; those that nobody knows are.
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
fn any_event_wakes_whom_an_extender_turned_down() {
    let mut bench = Bench::asking(filtering());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.extender_says(0, json!({}));
    bench.said.clear();
    bench.pass(20);
    bench.check(&expect!["0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"]);
    bench.pod("other", json!({}));
    bench.check(&expect!["1 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"]);
    bench.node("b", "1");
    bench.check(&expect!["2 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
}

/// Extenders read annotations, which are not kept: news of the pod that look like nothing new may be just that.
#[test]
fn any_news_of_the_pod_wakes_it() {
    let mut bench = Bench::asking(filtering());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.extender_says(0, json!({}));
    bench.said.clear();
    bench.pass(20);
    bench.pod("web", json!({}));
    bench.check(&expect!["1 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
}

#[test]
fn extenders_are_asked_one_after_the_other() {
    let both = json!([
        extender(json!({"filterVerb": "f", "ignorable": true})),
        extender(json!({"filterVerb": "f"})),
    ]);
    let mut bench = Bench::asking(both.clone());
    bench.node("c", "2");
    bench.pod("web", json!({}));
    bench.cycle();
    bench.extender_says(0, json!({"NodeNames": ["c", "b"]}));
    bench.extender_says(0, json!({"NodeNames": ["c"]}));
    bench.check(&expect![[r#"
        0 filter web: a b c
        1 filter web: b c
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    // The error of one whose errors do not count changes nothing.
    let mut bench = Bench::asking(both);
    bench.pod("web", json!({}));
    bench.cycle();
    bench.extender_says(0, json!({"NodeNames": ["b"]}));
    bench.extender_says(0, json!("connection refused"));
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
        let mut bench = Bench::asking(config.clone());
        bench.pod("web", json!({}));
        bench.cycle();
        assert_eq!(std::mem::take(&mut bench.said).len(), 2, "both are asked at once");
        bench.extender_says(order[0], answers[order[0]].clone());
        assert!(bench.said.is_empty());
        bench.extender_says(0, answers[order[1]].clone());
        assert_eq!(bench.node_of("web"), want);
    };
    let score = |a: i64, b: i64| json!([{"Host": "a", "Score": a}, {"Host": "b", "Score": b}]);
    for order in [[0, 1], [1, 0]] {
        check([score(10, 0), score(3, 6)], order, "a");
        check([score(8, 0), score(3, 6)], order, "b");
        // What fails costs its scores only.
        check([json!("EOF"), score(3, 6)], order, "b");
    }
}

/// The node that a pod gets among a and b, which are equal, when an extender scores them so: the first of its kind, and one that came
/// after others.
#[track_caller]
fn check_scores(scores: Value, want: &[&str]) {
    for before in [&[][..], &["a", "b"]] {
        let mut seen = Vec::new();
        for seed in 0..12 {
            let extenders = json!([extender(json!({"prioritizeVerb": "p", "weight": 1}))]);
            let mut bench = Bench::extended(Options { seed, ..Options::default() }, extenders);
            bench.node("b", "2");
            for node in before {
                bench.pod(node, json!({}));
                bench.cycle();
                bench.extender_says(0, json!([{"Host": node, "Score": 10}]));
                assert_eq!(bench.node_of(node), *node);
            }
            bench.pod("web", json!({}));
            bench.cycle();
            bench.extender_says(0, scores.clone());
            seen.push(bench.node_of("web"));
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, want, "after {before:?}");
    }
}

#[test]
fn the_best_sum_wins() {
    check_scores(json!([{"Host": "a", "Score": 1}, {"Host": "b", "Score": 2}]), &["b"]);
    check_scores(json!([{"Host": "a", "Score": -1}]), &["b"]);
    check_scores(json!([{"Host": "a", "Score": 0}, {"Host": "b", "Score": 0}]), &["a", "b"]);
    check_scores(json!([]), &["a", "b"]);
    check_scores(json!("EOF"), &["a", "b"]);
    // As upstream: among equals only nodes that an extender named draw lots.
    check_scores(json!([{"Host": "b", "Score": 0}]), &["b"]);
    check_scores(json!([{"Host": "x", "Score": 100}]), &["a", "b"]);
}

#[test]
fn pods_of_no_interest_are_not_told() {
    let managing = json!([extender(json!({
        "filterVerb": "f", "managedResources": [{"name": "e.com/gpu", "ignoredByScheduler": true}],
    }))]);
    let mut bench = Bench::asking(managing);
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
    bench.extender_says(0, json!({"NodeNames": ["a"]}));
    bench.check(&expect![[r#"
        0 filter gpu: a b
        call pods/gpu/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn a_promised_node_is_tried_first() {
    let mut bench = Bench::asking(filtering());
    bench.set_pod("web", json!({}), json!({}), json!({"nominatedNodeName": "b"}));
    bench.cycle();
    bench.extender_says(0, json!({"NodeNames": ["b"]}));
    bench.check(&expect![[r#"
        0 filter web: b
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    for answer in [json!({"FailedNodes": {"b": "not this one"}}), json!("EOF")] {
        let mut bench = Bench::asking(filtering());
        bench.set_pod("web", json!({}), json!({}), json!({"nominatedNodeName": "b"}));
        bench.cycle();
        bench.extender_says(0, answer);
        bench.extender_says(0, json!({"NodeNames": ["a"]}));
        assert_eq!(bench.said.last().unwrap(), "call pods/web/binding");
    }
}
