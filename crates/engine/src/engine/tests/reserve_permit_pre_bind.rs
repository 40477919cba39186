//! Reserve, Permit and PreBind: rejections, waits and failures.

use super::*;

#[test]
fn reserve_and_permit_can_reject_a_pod() {
    let mut bench = Bench::new();
    bench.pod("greedy", json!({"reserve": "no"}));
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling greedy: 0/1 nodes are available: 1 nothing left.
        call pods/greedy/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 nothing left.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
    let mut bench = Bench::new();
    bench.pod("early", json!({"permit": "no"}));
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling early: 0/1 nodes are available: 1 not today.
        call pods/early/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 not today.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn a_pod_waiting_on_permit_blocks_no_other_pod() {
    let mut bench = Bench::new();
    bench.pod("gang", json!({"permit": "wait"}));
    bench.pod("web", json!({}));
    bench.cycle();
    bench.cycle();
    bench.check(&expect![[r#"
        call pods/gang/status {"nominatedNodeName":"a"}
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    bench.apply(EngineEvent::Permit {
        uid: "gang".into(),
        plugin: None,
        decision: PermitDecision::Allow,
    });
    bench.check(&expect![[r#"
        call pods/gang/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn waiting_on_permit_times_out() {
    let mut bench = Bench::new();
    bench.pod("gang", json!({"permit": "wait"}));
    bench.pod("horde", json!({"permit": "long"}));
    bench.cycle();
    bench.cycle();
    bench.advance(9);
    bench.check(&expect![[r#"
        call pods/gang/status {"nominatedNodeName":"a"}
        call pods/horde/status {"nominatedNodeName":"a"}
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    assert_eq!(bench.engine.next_timeout(), Some(MonoTime(20 * SECOND)));
    bench.advance(1);
    bench.check(&expect![[r#"
        FailedScheduling gang: 0/1 nodes are available: 1 rejected due to timeout after waiting 10s at plugin LabelDriven.
        0 active, 0 backing off, 1 unschedulable, 1 assumed, 1 on a"#]]);
    bench.advance(15 * 60);
    bench.check(&expect![[r#"
        FailedScheduling horde: 0/1 nodes are available: 1 rejected due to timeout after waiting 15m0s at plugin LabelDriven.
        1 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn a_pod_that_changes_while_it_waits_is_requeued_as_it_is_then() {
    let mut bench = Bench::new();
    bench.pod("gang", json!({"permit": "wait"}));
    bench.cycle();
    bench.pod("gang", json!({"permit": "wait", "team": "red"}));
    bench.advance(10);
    let (queued, _) = bench.engine.queue().get("gang").unwrap();
    assert_eq!(label_of(&queued.info.pod, "team"), "red");
}

#[test]
fn a_waiting_pod_can_be_rejected_by_an_event() {
    let mut bench = Bench::new();
    bench.pod("gang", json!({"permit": "wait"}));
    bench.cycle();
    let decision = PermitDecision::Reject("quorum lost".to_owned());
    bench.apply(EngineEvent::Permit {
        uid: "gang".into(),
        plugin: Some("LabelDriven".into()),
        decision,
    });
    bench.check(&expect![[r#"
        call pods/gang/status {"nominatedNodeName":"a"}
        FailedScheduling gang: 0/1 nodes are available: 1 quorum lost.
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn pre_bind_can_call_the_api_server() {
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "call"}));
    bench.cycle();
    bench.check(&expect![[r#"
        call pods/web/status {"nominatedNodeName":"a"}
        call persistentvolumeclaims/data/
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.reply(Ok(()));
    bench.reply(Ok(()));
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn pre_bind_can_wait_for_an_object() {
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "wait"}));
    bench.cycle();
    bench.reply(Ok(()));
    bench.check(&expect![[r#"
        call pods/web/status {"nominatedNodeName":"a"}
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.apply(EngineEvent::ObjectChanged { object: claim(), value: Some(json!({})) });
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn pre_bind_can_time_out_and_fail() {
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "wait"}));
    bench.cycle();
    bench.advance(60);
    bench.check(&expect![[r#"
        call pods/web/status {"nominatedNodeName":"a"}
        stuck: LabelDriven in PreBind, default/web on "a"
        PluginStuck web: plugin "LabelDriven" has been running PreBind for 60 s: the pod stays assumed on node "a" and is not bound until it finishes
        FailedScheduling web: never came
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "no"}));
    bench.cycle();
    bench.check(&expect![[r#"
        call pods/web/status {"nominatedNodeName":"a"}
        FailedScheduling web: running PreBind plugin "LabelDriven": broken
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}
