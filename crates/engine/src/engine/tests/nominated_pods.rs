//! Pods with a nominated node.

use super::*;

#[test]
fn nominated_pods_that_never_preempt_do_not_wait_for_each_other() {
    let mut bench = Bench::new();
    let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "2"}}}]);
    let spec = json!({"preemptionPolicy": "Never", "priority": 10, "containers": containers});
    for name in ["web", "db"] {
        bench.set_pod(name, json!({}), spec.clone(), json!({"nominatedNodeName": "a"}));
    }
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling web: 0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never.
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}],"nominatedNodeName":null}
        1 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
    bench.cycle();
    bench.check(&expect![[r#"
        call pods/db/binding
        0 active, 0 backing off, 1 unschedulable, 1 assumed, 1 on a"#]]);
}

/// A stronger pod has taken the port on the nominated node, and the victims have no ports.
#[test]
fn a_preemptor_is_tried_again_when_its_last_victim_is_gone() {
    let mut bench = Bench::new();
    let container = json!([{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]);
    let proxy = json!({"priority": 20, "nodeName": "a", "containers": container});
    bench.set_pod("proxy", json!({}), proxy, json!({}));
    for name in ["old", "older"] {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "deletionTimestamp": "2026-01-31T12:00:00Z"},
            "spec": {"nodeName": "a", "containers": [{"name": "c"}]},
            "status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
        }))
        .unwrap();
        bench.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))));
    }
    let web = json!({"priority": 10, "containers": container});
    bench.set_pod("web", json!({}), web, json!({"nominatedNodeName": "a"}));
    bench.cycle();
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("old".into())));
    bench.check(&expect![[r#"
        FailedScheduling web: 0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. preemption: not eligible due to a terminating pod on the nominated node.
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. preemption: not eligible due to a terminating pod on the nominated node.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 2 on a"#]]);
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("older".into())));
    bench.check(&expect!["1 active, 0 backing off, 0 unschedulable, 0 assumed, 1 on a"]);
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling web: 0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 1 on a"#]]);
}

/// A victim counts as one until it is gone, or will not be evicted.
#[test]
fn victims_are_known_until_they_are_deleted() {
    let preempting = || {
        let mut bench = Bench::new();
        let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "2"}}}]);
        let old = json!({"nodeName": "a", "priority": 0, "containers": containers});
        bench.set_pod("old", json!({}), old, json!({}));
        let web = json!({"priority": 10, "containers": containers});
        bench.set_pod("web", json!({}), web, json!({}));
        bench.cycle();
        bench
    };
    let is_victim = |bench: &Bench| bench.engine.world().ongoing_preemptions().is_victim("old");
    let mut bench = preempting();
    // The victim's condition, the preemptor's, the victim's deletion.
    (0..3).for_each(|_| bench.reply(Ok(())));
    assert!(bench.calls.is_empty() && is_victim(&bench));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("old".into())));
    assert!(!is_victim(&bench));
    let mut bench = preempting();
    assert!(is_victim(&bench));
    bench.reply(Err("no"));
    assert!(!is_victim(&bench));
}
