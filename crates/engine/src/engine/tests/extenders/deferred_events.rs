//! Events while an attempt waits for an extender.

use super::*;

#[test]
fn object_events_are_deferred_until_the_attempt_ends() {
    let mut bench = Bench::with_extenders(filter_extender());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Node(Str::new("a"))));
    bench.node("c", "2");
    bench.pod("next", json!({}));
    assert_eq!(bench.cycle(), CycleResult::Waiting);
    let nodes = |bench: &Bench| -> Vec<String> {
        bench.engine.world().node_infos().map(|node| node.name().to_owned()).collect()
    };
    assert_eq!(nodes(&bench), ["a", "b"]);
    bench.extender_replies(0, json!({"NodeNames": ["a"]}));
    let mut after = nodes(&bench);
    after.sort_unstable();
    assert_eq!(after, ["b", "c"]);
    bench.check(&expect![[r#"
        0 filter web: a b
        call pods/web/binding
        1 active, 0 backing off, 0 unschedulable, 1 assumed, 0 on a"#]]);
    assert_eq!(bench.cycle(), CycleResult::Ran);
    bench.check(&expect![[r#"
        0 filter next: c b
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 0 on a"#]]);
}

#[test]
fn the_pod_may_be_deleted_while_an_extender_is_called() {
    let mut bench = Bench::with_extenders(filter_extender());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("web".into())));
    bench.extender_replies(0, json!({"NodeNames": ["a"]}));
    bench.reply(Err("not found"));
    bench.check(&expect![[r#"
        0 filter web: a b
        call pods/web/binding
        FailedScheduling web: running Bind plugin "DefaultBinder": not found
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    // The same when the extender rejects all nodes.
    bench.pod("web", json!({}));
    bench.cycle();
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("web".into())));
    bench.extender_replies(0, json!({}));
    bench.check(&expect![[r#"
        0 filter web: a b
        FailedScheduling web: 0/2 nodes are available: preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    assert_eq!(bench.cycle(), CycleResult::Idle);
}

#[test]
fn a_missing_reply_fails_the_attempt() {
    let mut bench = Bench::with_extenders(filter_extender());
    bench.pod("web", json!({}));
    bench.cycle();
    bench.advance(9);
    assert_eq!(bench.cycle(), CycleResult::Waiting);
    assert_eq!(bench.engine.next_timeout(), Some(MonoTime(20 * SECOND)));
    bench.advance(1);
    bench.check(&expect![[r#"
        0 filter web: a b
        FailedScheduling web: no reply from the extender
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:30Z","message":"no reply from the extender","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    // A late reply is ignored.
    bench.extender_replies(0, json!({"NodeNames": ["a"]}));
    bench.check(&expect!["0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
}

#[test]
fn a_failed_binding_cycle_is_deferred() {
    let mut bench = Bench::with_extenders(filter_extender());
    bench.pod("first", json!({}));
    bench.cycle();
    bench.extender_replies(0, json!({"NodeNames": ["a"]}));
    bench.pod("second", json!({}));
    bench.cycle();
    bench.reply(Err("the server is busy"));
    bench.check(&expect![[r#"
        0 filter first: a b
        call pods/first/binding
        0 filter second: a b
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.extender_replies(0, json!({"NodeNames": ["a"]}));
    bench.check(&expect![[r#"
        call pods/second/binding
        FailedScheduling first: running Bind plugin "DefaultBinder": the server is busy
        call pods/first/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running Bind plugin \"DefaultBinder\": the server is busy","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn objects_are_not_accepted_at_the_limit() {
    let mut bench = Bench::with_extenders(filter_extender());
    bench.pod("web", json!({}));
    bench.cycle();
    assert!(bench.engine.accepts_object_events());
    for _ in 0..16 << 10 {
        bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("nobody".into())));
    }
    assert!(!bench.engine.accepts_object_events());
    bench.extender_replies(0, json!({"NodeNames": ["a"]}));
    assert!(bench.engine.accepts_object_events());
}

#[test]
fn only_the_last_published_value_is_deferred() {
    let mut bench = Bench::with_extenders(filter_extender());
    bench.pod("web", json!({}));
    bench.cycle();
    for nth in 0..=16 << 10 {
        let (plugin, value) = ("Nobody".into(), json!(nth));
        bench.apply(EngineEvent::Published { plugin, value, ttl: Duration::from_secs(60) });
    }
    assert!(bench.engine.accepts_object_events());
    bench.lines.clear();
    bench.extender_replies(0, json!({"NodeNames": ["a"]}));
    bench.check(&expect![[r#"
        call pods/web/binding
        no plugin "Nobody" accepts published values
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}
