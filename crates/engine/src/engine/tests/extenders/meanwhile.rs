//! What comes while an extender is asked.

use super::*;

#[test]
fn objects_wait_for_the_attempt() {
    let mut bench = Bench::asking(filtering());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.apply(Event::Gone(Name::Node(Str::new("a"))));
    bench.node("c", "2");
    bench.pod("next", json!({}));
    assert_eq!(bench.cycle(), Cycled::Waiting);
    let nodes = |bench: &Bench| -> Vec<String> {
        bench.engine.world().node_infos().map(|node| node.name().to_owned()).collect()
    };
    assert_eq!(nodes(&bench), ["a", "b"]);
    bench.extender_says(0, json!({"NodeNames": ["a"]}));
    let mut after = nodes(&bench);
    after.sort_unstable();
    assert_eq!(after, ["b", "c"]);
    bench.check(&expect![[r#"
        0 filter web: a b
        call pods/web/binding
        1 active, 0 backing off, 0 unschedulable, 1 assumed, 0 on a"#]]);
    assert_eq!(bench.cycle(), Cycled::Ran);
    bench.check(&expect![[r#"
        0 filter next: c b
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 0 on a"#]]);
}

#[test]
fn the_pod_may_go_while_an_extender_is_asked() {
    let mut bench = Bench::asking(filtering());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.apply(Event::Gone(Name::Pod("web".into())));
    bench.extender_says(0, json!({"NodeNames": ["a"]}));
    bench.answer(Err("not found"));
    bench.check(&expect![[r#"
        0 filter web: a b
        call pods/web/binding
        FailedScheduling web: running Bind plugin "DefaultBinder": not found
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    // The same when it is turned down.
    bench.pod("web", json!({}));
    bench.cycle();
    bench.apply(Event::Gone(Name::Pod("web".into())));
    bench.extender_says(0, json!({}));
    bench.check(&expect![[r#"
        0 filter web: a b
        FailedScheduling web: 0/2 nodes are available: preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    assert_eq!(bench.cycle(), Cycled::Idle);
}

#[test]
fn an_answer_that_never_comes_fails_the_attempt() {
    let mut bench = Bench::asking(filtering());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.pass(9);
    assert_eq!(bench.cycle(), Cycled::Waiting);
    assert_eq!(bench.engine.deadline(), Some(Mono(20 * SECOND)));
    bench.pass(1);
    bench.check(&expect![[r#"
        0 filter web: a b
        FailedScheduling web: no answer came from the extender
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:30Z","message":"no answer came from the extender","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    // And when it comes after all, nobody waits for it.
    bench.extender_says(0, json!({"NodeNames": ["a"]}));
    bench.check(&expect!["0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
}

#[test]
fn a_binding_that_fails_meanwhile_ends_afterwards() {
    let mut bench = Bench::asking(filtering());
    bench.pod("first", json!({}));
    bench.cycle();
    bench.extender_says(0, json!({"NodeNames": ["a"]}));
    bench.pod("second", json!({}));
    bench.cycle();
    bench.answer(Err("the server is busy"));
    bench.check(&expect![[r#"
        0 filter first: a b
        call pods/first/binding
        0 filter second: a b
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.extender_says(0, json!({"NodeNames": ["a"]}));
    bench.check(&expect![[r#"
        call pods/second/binding
        FailedScheduling first: running Bind plugin "DefaultBinder": the server is busy
        call pods/first/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running Bind plugin \"DefaultBinder\": the server is busy","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn objects_are_kept_back_at_the_bound() {
    let mut bench = Bench::asking(filtering());
    bench.pod("web", json!({}));
    bench.cycle();
    assert!(bench.engine.hears_objects());
    for _ in 0..16 << 10 {
        bench.apply(Event::Gone(Name::Pod("nobody".into())));
    }
    assert!(!bench.engine.hears_objects());
    bench.extender_says(0, json!({"NodeNames": ["a"]}));
    assert!(bench.engine.hears_objects());
}

#[test]
fn of_what_a_service_publishes_meanwhile_the_last_is_kept() {
    let mut bench = Bench::asking(filtering());
    bench.pod("web", json!({}));
    bench.cycle();
    for nth in 0..=16 << 10 {
        let (plugin, value) = ("Nobody".into(), json!(nth));
        bench.apply(Event::Published { plugin, value, good_for: Duration::from_secs(60) });
    }
    assert!(bench.engine.hears_objects());
    bench.said.clear();
    bench.extender_says(0, json!({"NodeNames": ["a"]}));
    bench.check(&expect![[r#"
        call pods/web/binding
        no plugin "Nobody" takes what is published to it
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}
