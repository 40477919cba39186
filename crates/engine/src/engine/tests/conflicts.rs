//! Conflicts with another scheduler are counted once, in whatever order the events arrive.

use super::*;

impl Bench {
    /// The API server rejects the oldest call; code 0 means that no response arrived.
    fn reject_call(&mut self, code: u16, message: &str) {
        let call = self.calls.remove(0);
        let reply = Err(ApiError { code, message: message.to_owned() });
        self.apply(EngineEvent::Replied { call: call.id, reply });
    }

    /// A pod that another scheduler has bound, with some CPU.
    fn assigned_by_other(&mut self, name: &str, node: &str, cpu: &str) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "other", "uid": name},
            "spec": {
                "schedulerName": "rival", "nodeName": node,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            },
        }))
        .unwrap();
        self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))));
    }

    /// The watch says that our pod is bound to this node.
    fn observe_bound(&mut self, name: &str, labels: Value, node: &str) {
        self.set_pod(name, labels, json!({"nodeName": node}), json!({}));
    }

    /// The conflicts that were reported, and their Events.
    fn take_conflicts(&mut self) -> String {
        self.calls.clear();
        let lines = std::mem::take(&mut self.lines).into_iter();
        lines.filter(|line| line.contains("SchedulingConflict")).collect::<Vec<_>>().join("\n")
    }
}

const ASSIGNED: &str = "pod web is already assigned to node \"b\"";

/// The conflicts of a pod `web` with these labels (`pre-bind: wait` delays its bind), assumed on node `a`, after these events.
#[track_caller]
fn check(labels: Value, events: &[&str], want: &Expect) {
    let mut bench = Bench::new();
    bench.node("b", "0");
    bench.pod("web", labels.clone());
    bench.cycle();
    for event in events {
        // The last call is the bind, if there is one.
        bench.calls = bench.calls.split_off(bench.calls.len().saturating_sub(1));
        match *event {
            "on a" => bench.observe_bound("web", labels.clone(), "a"),
            "on b" => bench.observe_bound("web", labels.clone(), "b"),
            "assigned" => bench.reject_call(409, ASSIGNED),
            "unknown" => bench.reject_call(0, "no answer"),
            "bound" => bench.reply(Ok(())),
            "allowed" => bench.apply(EngineEvent::Permit {
                uid: "web".into(),
                plugin: None,
                decision: PermitDecision::Allow,
            }),
            "again" => {
                bench.advance(30);
                bench.cycle();
            }
            other => panic!("{other}"),
        }
    }
    want.assert_eq(&bench.take_conflicts());
}

#[test]
fn a_rejected_bind_is_a_conflict_once_the_pod_is_known_to_be_bound() {
    let lost = expect![[
        "SchedulingConflict bind: pod default/web was bound to node b by another scheduler while it was assumed on node a"
    ]];
    check(json!({}), &["assigned", "on b"], &lost);
    check(json!({}), &["on b", "assigned"], &lost);
    check(json!({}), &["assigned", "on b", "on b"], &lost);
    let same_node = expect![[
        "SchedulingConflict bind: pod default/web was bound to node a by another scheduler while it was assumed on node a"
    ]];
    check(json!({}), &["assigned", "on a"], &same_node);
    check(json!({}), &["on a", "assigned"], &same_node);
    check(json!({}), &["on a", "on a", "assigned"], &same_node);
    // Deleted, or replaced by a new pod with the same name.
    check(json!({}), &["assigned"], &expect![""]);
}

#[test]
fn our_own_bind_is_no_conflict() {
    let none = expect![""];
    check(json!({}), &["bound", "on a"], &none);
    check(json!({}), &["on a", "bound"], &none);
    check(json!({}), &["unknown", "on a"], &none);
    check(json!({}), &["on a", "unknown"], &none);
    check(json!({}), &["unknown", "again", "on a", "bound"], &none);
    check(json!({"reserve": "no"}), &[], &none);
}

#[test]
fn a_pod_bound_by_another_scheduler_before_our_bind_is_a_conflict() {
    let lost = expect![[r#"
        SchedulingConflict web: pod default/web was bound to node b by another scheduler while it was assumed on node a
        SchedulingConflict pod: pod default/web was bound to node b by another scheduler while it was assumed on node a"#]];
    check(json!({"permit": "wait"}), &["on b"], &lost);
    check(json!({"pre-bind": "wait"}), &["on b"], &lost);
    // Its bind follows and is rejected: that is the same conflict.
    check(json!({"permit": "wait"}), &["on b", "allowed", "assigned"], &lost);
    let same_node = expect![[r#"
        SchedulingConflict web: pod default/web was bound to node a by another scheduler while it was assumed on node a
        SchedulingConflict pod: pod default/web was bound to node a by another scheduler while it was assumed on node a"#]];
    check(json!({"permit": "wait"}), &["on a", "allowed", "assigned"], &same_node);
    let waited = expect![
        "SchedulingConflict pod: pod default/web was bound to node b by another scheduler while it was pending"
    ];
    check(json!({"reserve": "no"}), &["on b"], &waited);
    check(json!({}), &["unknown", "on b"], &waited);
}

#[test]
fn a_pod_that_was_never_attempted_is_no_conflict() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.observe_bound("web", json!({}), "a");
    expect![""].assert_eq(&bench.take_conflicts());
}

/// The conflicts when pods of another scheduler are bound to node `a`, which has two CPUs, while `n_assumed_pods` pods are assumed there.
#[track_caller]
fn check_resources(n_assumed_pods: u32, n_bound: u32, other_cpus: &[&str], want: &Expect) {
    let mut bench = Bench::new();
    for nth in 0..n_assumed_pods {
        bench.pod(&format!("web-{nth}"), json!({}));
        bench.cycle();
    }
    for nth in 0..n_bound {
        bench.observe_bound(&format!("web-{nth}"), json!({}), "a");
    }
    for (nth, cpu) in other_cpus.iter().enumerate() {
        bench.assigned_by_other(&format!("rival-{nth}"), "a", cpu);
        bench.assigned_by_other(&format!("rival-{nth}"), "a", cpu);
    }
    want.assert_eq(&bench.take_conflicts());
}

#[test]
fn insufficient_resources_for_an_assumed_pod_are_a_conflict() {
    check_resources(
        1,
        0,
        &["2"],
        &expect![[r#"
            SchedulingConflict web-0: node a has insufficient cpu for pod default/web-0, which is assumed on it: pod other/rival-0 of scheduler rival was bound first
            SchedulingConflict resources: node a has insufficient cpu for pod default/web-0, which is assumed on it: pod other/rival-0 of scheduler rival was bound first"#]],
    );
    // Of several pods the one that was assumed last; a pod gets one Event, and each conflict is counted.
    check_resources(
        2,
        1,
        &["1", "1"],
        &expect![[r#"
            SchedulingConflict web-1: node a has insufficient cpu for pod default/web-1, which is assumed on it: pod other/rival-0 of scheduler rival was bound first
            SchedulingConflict resources: node a has insufficient cpu for pod default/web-1, which is assumed on it: pod other/rival-0 of scheduler rival was bound first
            SchedulingConflict resources: node a has insufficient cpu for pod default/web-1, which is assumed on it: pod other/rival-1 of scheduler rival was bound first"#]],
    );
    check_resources(
        1,
        0,
        &["100m", "0", "0", "0", "0", "0", "0", "0", "0", "0"],
        &expect![[r#"
            SchedulingConflict web-0: node a has insufficient pods for pod default/web-0, which is assumed on it: pod other/rival-9 of scheduler rival was bound first
            SchedulingConflict resources: node a has insufficient pods for pod default/web-0, which is assumed on it: pod other/rival-9 of scheduler rival was bound first"#]],
    );
}

#[test]
fn sufficient_or_unused_resources_are_no_conflict() {
    let none = expect![""];
    check_resources(1, 0, &["1"], &none);
    check_resources(2, 0, &["0"], &none);
    check_resources(0, 0, &["2", "2"], &none);
    // Our pod was bound first: the conflict is the other scheduler's.
    check_resources(1, 1, &["2"], &none);
}
