//! Reserve, Permit and PreBind: what they hold, turn down and wait for.

use super::*;

#[test]
fn reserve_and_permit_may_turn_a_pod_down() {
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
fn permit_holds_one_and_nobody_else() {
    let mut bench = Bench::new();
    bench.pod("gang", json!({"permit": "wait"}));
    bench.pod("web", json!({}));
    bench.cycle();
    bench.cycle();
    bench.check(&expect![[r#"
        call pods/gang/status {"nominatedNodeName":"a"}
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    bench.apply(Event::Permit { uid: "gang".into(), plugin: None, verdict: Verdict::Allow });
    bench.check(&expect![[r#"
        call pods/gang/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn permit_does_not_wait_for_ever() {
    let mut bench = Bench::new();
    bench.pod("gang", json!({"permit": "wait"}));
    bench.pod("horde", json!({"permit": "long"}));
    bench.cycle();
    bench.cycle();
    bench.pass(9);
    bench.check(&expect![[r#"
        call pods/gang/status {"nominatedNodeName":"a"}
        call pods/horde/status {"nominatedNodeName":"a"}
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    assert_eq!(bench.engine.deadline(), Some(Mono(20 * SECOND)));
    bench.pass(1);
    bench.check(&expect![[r#"
        FailedScheduling gang: 0/1 nodes are available: 1 rejected due to timeout after waiting 10s at plugin Obedient.
        0 active, 0 backing off, 1 unschedulable, 1 assumed, 1 on a"#]]);
    bench.pass(15 * 60);
    bench.check(&expect![[r#"
        FailedScheduling horde: 0/1 nodes are available: 1 rejected due to timeout after waiting 15m0s at plugin Obedient.
        1 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn permit_can_be_denied_from_outside() {
    let mut bench = Bench::new();
    bench.pod("gang", json!({"permit": "wait"}));
    bench.cycle();
    let verdict = Verdict::Reject("quorum lost".to_owned());
    bench.apply(Event::Permit { uid: "gang".into(), plugin: Some("Obedient".into()), verdict });
    bench.check(&expect![[r#"
        call pods/gang/status {"nominatedNodeName":"a"}
        FailedScheduling gang: 0/1 nodes are available: 1 quorum lost.
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn pre_bind_calls_and_then_the_pod_is_bound() {
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "call"}));
    bench.cycle();
    bench.check(&expect![[r#"
        call pods/web/status {"nominatedNodeName":"a"}
        call persistentvolumeclaims/data/
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.answer(Ok(()));
    bench.answer(Ok(()));
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn pre_bind_waits_for_an_object() {
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "wait"}));
    bench.cycle();
    bench.answer(Ok(()));
    bench.check(&expect![[r#"
        call pods/web/status {"nominatedNodeName":"a"}
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.apply(Event::Changed { object: claim(), value: Some(json!({})) });
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn pre_bind_does_not_wait_for_ever_and_may_fail() {
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "wait"}));
    bench.cycle();
    bench.pass(60);
    bench.check(&expect![[r#"
        call pods/web/status {"nominatedNodeName":"a"}
        overdue: Obedient in PreBind, default/web on "a"
        PluginOverdue web: plugin "Obedient" has not finished PreBind for 60 s: the pod keeps node "a" until it has, and is not bound before
        FailedScheduling web: never came
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "no"}));
    bench.cycle();
    bench.check(&expect![[r#"
        call pods/web/status {"nominatedNodeName":"a"}
        FailedScheduling web: running PreBind plugin "Obedient": broken
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}
