//! Extenders with a preempt verb.

use super::*;

/// Two nodes full of pods without priority, and a pod with a higher one: the extenders are called about the victims.
fn preempting(extenders: Value) -> Bench {
    let mut bench = Bench::with_extenders(extenders);
    for (pod, node) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")] {
        bench.set_pod(pod, json!({}), json!({"nodeName": node}), json!({}));
    }
    bench.set_pod("vip", json!({}), json!({"priority": 10}), json!({}));
    bench.cycle();
    bench
}

#[test]
fn extenders_can_change_the_preemption_candidates() {
    let config = json!([extender(json!({"preemptVerb": "x"}))]);
    let says = |answer: Value, want: Expect| {
        let mut bench = preempting(config.clone());
        bench.extender_replies(0, answer);
        bench.check(&want);
    };
    says(
        json!({"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "b2"}]}}}),
        expect![[r#"
            0 preempt vip: {"a":{"Pods":[{"UID":"a2"}],"NumPDBViolations":0},"b":{"Pods":[{"UID":"b2"}],"NumPDBViolations":0}}
            call pods/b2/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"default-scheduler: preempting to accommodate a higher priority pod","observedGeneration":1,"reason":"PreemptionByScheduler","status":"True","type":"DisruptionTarget"}]}
            FailedScheduling vip: 0/2 nodes are available: 2 Insufficient cpu.
            call pods/vip/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}],"nominatedNodeName":"b"}
            0 active, 0 backing off, 1 unschedulable, 0 assumed, 4 on a"#]],
    );
    says(
        json!({"NodeNameToMetaVictims": {}}),
        expect![[r#"
        0 preempt vip: {"a":{"Pods":[{"UID":"a2"}],"NumPDBViolations":0},"b":{"Pods":[{"UID":"b2"}],"NumPDBViolations":0}}
        FailedScheduling vip: 0/2 nodes are available: 2 Insufficient cpu. preemption: no candidate node for preemption
        call pods/vip/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. preemption: no candidate node for preemption","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 4 on a"#]],
    );
    says(
        json!({"NodeNameToMetaVictims": {"b": {}}}),
        expect![[r#"
        0 preempt vip: {"a":{"Pods":[{"UID":"a2"}],"NumPDBViolations":0},"b":{"Pods":[{"UID":"b2"}],"NumPDBViolations":0}}
        FailedScheduling vip: 0/2 nodes are available: 2 Insufficient cpu. preemption: expected at least one victim pod on node "b"
        call pods/vip/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. preemption: expected at least one victim pod on node \"b\"","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 4 on a"#]],
    );
    says(
        json!({"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "a1"}]}}}),
        expect![[r#"
        0 preempt vip: {"a":{"Pods":[{"UID":"a2"}],"NumPDBViolations":0},"b":{"Pods":[{"UID":"b2"}],"NumPDBViolations":0}}
        FailedScheduling vip: 0/2 nodes are available: 2 Insufficient cpu. preemption: extender: http://e claims to preempt pod (UID: &{a1}) on node: b, but the pod is not found on that node
        call pods/vip/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. preemption: extender: http://e claims to preempt pod (UID: &{a1}) on node: b, but the pod is not found on that node","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 4 on a"#]],
    );
    says(
        json!("EOF"),
        expect![[r#"
        0 preempt vip: {"a":{"Pods":[{"UID":"a2"}],"NumPDBViolations":0},"b":{"Pods":[{"UID":"b2"}],"NumPDBViolations":0}}
        FailedScheduling vip: 0/2 nodes are available: 2 Insufficient cpu. preemption: EOF
        call pods/vip/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. preemption: EOF","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 4 on a"#]],
    );
    let ignorable = json!([extender(json!({"preemptVerb": "x", "ignorable": true}))]);
    let mut bench = preempting(ignorable);
    bench.extender_replies(0, json!("EOF"));
    assert_eq!(bench.calls.len(), 2, "{:?}", bench.lines);
}
