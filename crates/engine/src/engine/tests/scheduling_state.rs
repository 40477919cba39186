//! The scheduling state of pods, for `explain --last`.

use super::*;
use crate::engine::scheduling_state::{PodSchedulingState, PodState};

impl Bench {
    fn progress(&self, name: &str) -> PodSchedulingState {
        self.engine.pod_scheduling_state(self.now, "default", name).expect("a pod that is known")
    }

    #[track_caller]
    fn check_progress(&self, name: &str, want: &Expect) {
        let progress = self.progress(name);
        let text = serde_json::to_string_pretty(&progress).unwrap();
        want.assert_eq(&text);
        assert_eq!(serde_json::from_str::<PodSchedulingState>(&text).unwrap(), progress);
    }
}

#[test]
fn progress_of_an_unschedulable_pod() {
    let mut bench = Bench::new();
    bench.node("b", "500m");
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    assert_eq!(bench.progress("db").state, PodState::Active);
    assert_eq!(bench.progress("db").last, None);
    bench.cycle();
    bench.advance(1);
    bench.check_progress("db", &expect![[r#"
        {
          "pod": "default/db",
          "profile": "default-scheduler",
          "state": "unschedulable",
          "attempts": 1,
          "since": "2023-11-14T22:13:20Z",
          "waitsFor": [
            {
              "plugin": "NodeAffinity",
              "events": [
                "NodeAdd|UpdateNodeLabel",
                "NodeUpdateNodeTaint"
              ]
            }
          ],
          "last": {
            "time": "2023-11-14T22:13:20Z",
            "attempt": 1,
            "result": "unschedulable",
            "message": "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
            "rejectedNodes": [
              {
                "code": "UnschedulableAndUnresolvable",
                "plugin": "NodeAffinity",
                "reasons": [
                  "node(s) didn't match Pod's node affinity/selector"
                ],
                "nodes": 2,
                "examples": [
                  "a",
                  "b"
                ]
              }
            ]
          }
        }"#]]);
    // The record is of then: a node that came since is not in it.
    bench.node("c", "500m");
    assert_eq!(bench.progress("db").last.unwrap().rejected_nodes[0].n_nodes, 2);
}

#[test]
fn progress_contains_the_preemption() {
    let mut bench = Bench::new();
    for name in ["old", "older"] {
        bench.set_pod(name, json!({}), json!({"nodeName": "a", "priority": 0}), json!({}));
    }
    bench.set_pod("urgent", json!({}), json!({"priority": 10}), json!({}));
    bench.cycle();
    bench.check_progress(
        "urgent",
        &expect![[r#"
        {
          "pod": "default/urgent",
          "profile": "default-scheduler",
          "state": "unschedulable",
          "attempts": 1,
          "since": "2023-11-14T22:13:20Z",
          "backoffUntil": "2023-11-14T22:13:21Z",
          "waitsFor": [
            {
              "plugin": "NodeResourcesFit",
              "events": [
                "PodDelete|UpdatePodScaleDown",
                "NodeAdd|UpdateNodeAllocatable",
                "resource.k8s.io/DeviceClassAdd|Update",
                "NodeUpdateNodeTaint"
              ]
            }
          ],
          "last": {
            "time": "2023-11-14T22:13:20Z",
            "attempt": 1,
            "result": "unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient cpu.",
            "rejectedNodes": [
              {
                "code": "Unschedulable",
                "plugin": "NodeResourcesFit",
                "reasons": [
                  "Insufficient cpu"
                ],
                "nodes": 1,
                "examples": [
                  "a"
                ]
              }
            ],
            "nominatedNode": "a",
            "victims": [
              "default/older"
            ],
            "allVictims": 1
          }
        }"#]],
    );
}

#[test]
fn pods_of_one_template_share_the_rejection_summary() {
    let mut bench = Bench::new();
    for nth in 0..3 {
        bench.set_pod(
            &format!("db-{nth}"),
            json!({}),
            json!({"nodeSelector": {"a": "b"}}),
            json!({}),
        );
    }
    while bench.cycle() == CycleResult::Ran {}
    let summary =
        |name: &str| bench.engine.pending[name].last_attempt.as_ref().unwrap().reasons().unwrap();
    assert!(Arc::ptr_eq(&summary("db-0"), &summary("db-1")));
    assert!(Arc::ptr_eq(&summary("db-0"), &summary("db-2")));
}

#[test]
fn an_update_preserves_the_last_attempt_and_deletion_drops_it() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.reply(Err("the server is busy"));
    let before = bench.progress("web").last.unwrap();
    assert_eq!((&*before.result, before.attempt), ("error", 1));
    bench.pod("web", json!({"color": "red"}));
    let after = bench.progress("web");
    assert_eq!((after.state, after.last.unwrap()), (PodState::Backoff, before));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("web".into())));
    assert_eq!(bench.engine.pod_scheduling_state(bench.now, "default", "web"), None);
    bench.pod("web", json!({}));
    assert_eq!(bench.progress("web").last, None);
}

#[test]
fn every_pod_state() {
    #[track_caller]
    fn check(labels: Value, spec: Value, want: (PodState, &str, u32)) {
        let mut bench = Bench::new();
        bench.set_pod("web", labels, spec, json!({}));
        bench.cycle();
        let PodSchedulingState { state, node, attempts, .. } = bench.progress("web");
        assert_eq!((state, &*node, attempts), want);
    }
    check(json!({}), json!({}), (PodState::Binding, "a", 1));
    check(json!({"permit": "wait"}), json!({}), (PodState::Permit, "a", 1));
    check(json!({"permit": "no"}), json!({}), (PodState::Unschedulable, "", 1));
    check(json!({"reserve": "no"}), json!({}), (PodState::Unschedulable, "", 1));
    check(json!({"pre-bind": "no"}), json!({}), (PodState::Backoff, "", 1));
    check(json!({}), json!({"schedulingGates": [{"name": "quota"}]}), (PodState::Gated, "", 0));
    check(json!({}), json!({"nodeName": "a"}), (PodState::Assigned, "a", 0));
    check(json!({}), json!({"nodeName": "elsewhere"}), (PodState::Assigned, "elsewhere", 0));
    let engine = Bench::new().engine;
    assert_eq!(engine.pod_scheduling_state(Bench::new().now, "default", "nobody"), None);
}

#[test]
fn reasons_beyond_the_limit_are_only_counted() {
    let mut bench = Bench::new();
    let resources = |missing: usize| {
        let offered = (0..40).filter(|nth| *nth != missing);
        let mut all: serde_json::Map<String, Value> =
            offered.map(|nth| (format!("example.com/r{nth}"), json!("1"))).collect();
        all.extend([("cpu", "4"), ("pods", "10")].map(|(name, n)| (name.to_owned(), json!(n))));
        all
    };
    for nth in 0..40 {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": format!("n{nth:02}")}, "status": {"allocatable": resources(nth)},
        }))
        .unwrap();
        bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))));
    }
    let mut wanted = resources(40);
    wanted.remove("pods");
    let containers = json!([{"name": "c", "resources": {"requests": wanted}}]);
    bench.set_pod("db", json!({}), json!({"containers": containers}), json!({}));
    bench.cycle();
    let last = bench.progress("db").last.unwrap();
    let shown: usize = last.rejected_nodes.iter().map(|group| group.n_nodes).sum();
    assert_eq!((last.rejected_nodes.len(), shown + last.n_other_nodes), (16, 41));
}

#[test]
fn pending_pods_are_summarized() {
    let mut bench = Bench::new();
    bench.node("b", "500m");
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    bench.set_pod("late", json!({}), json!({}), json!({}));
    bench.set_pod("gated", json!({}), json!({"schedulingGates": [{"name": "quota"}]}), json!({}));
    let summaries = |bench: &Bench| {
        let lines = bench
            .engine
            .pending_pod_summaries()
            .map(|it| format!("{} {:?} {}", it.pod.name, it.state, it.reason));
        let mut lines: Vec<String> = lines.collect();
        lines.sort_unstable();
        lines
    };
    let db = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    assert_eq!(
        summaries(&bench),
        [
            format!("db Unschedulable {db}"),
            "gated Gated waiting for scheduling gates: [quota]".to_owned(),
            "late Active ".to_owned(),
        ]
    );
    bench.cycle();
    assert_eq!(summaries(&bench)[2], "late Binding ");
}
