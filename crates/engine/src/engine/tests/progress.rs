//! What is told of a pod on its way to a node.

use super::*;
use crate::engine::progress::{Progress, State};

impl Bench {
    fn progress(&self, name: &str) -> Progress {
        self.engine.progress(self.now, "default", name).expect("a pod that is known")
    }

    #[track_caller]
    fn tells(&self, name: &str, want: &Expect) {
        let progress = self.progress(name);
        let text = serde_json::to_string_pretty(&progress).unwrap();
        want.assert_eq(&text);
        assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
    }
}

#[test]
fn a_pod_that_fits_nowhere_says_what_it_knew_and_what_it_waits_for() {
    let mut bench = Bench::new();
    bench.node("b", "500m");
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    assert_eq!(bench.progress("db").state, State::Active);
    assert_eq!(bench.progress("db").last, None);
    bench.cycle();
    bench.pass(1);
    bench.tells("db", &expect![[r#"
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
            "turnedDown": [
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
    assert_eq!(bench.progress("db").last.unwrap().turned_down[0].n_nodes, 2);
}

#[test]
fn preemption_is_told() {
    let mut bench = Bench::new();
    for name in ["old", "older"] {
        bench.set_pod(name, json!({}), json!({"nodeName": "a", "priority": 0}), json!({}));
    }
    bench.set_pod("urgent", json!({}), json!({"priority": 10}), json!({}));
    bench.cycle();
    bench.tells(
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
            "turnedDown": [
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
fn pods_like_each_other_share_what_is_kept() {
    let mut bench = Bench::new();
    for nth in 0..3 {
        bench.set_pod(
            &format!("db-{nth}"),
            json!({}),
            json!({"nodeSelector": {"a": "b"}}),
            json!({}),
        );
    }
    while bench.cycle() == Cycled::Ran {}
    let kept = |name: &str| bench.engine.pending[name].last.as_ref().unwrap().reasons().unwrap();
    assert!(Arc::ptr_eq(&kept("db-0"), &kept("db-1")));
    assert!(Arc::ptr_eq(&kept("db-0"), &kept("db-2")));
}

#[test]
fn an_update_keeps_the_record_and_the_end_of_the_pod_drops_it() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.answer(Err("the server is busy"));
    let before = bench.progress("web").last.unwrap();
    assert_eq!((&*before.result, before.attempt), ("error", 1));
    bench.pod("web", json!({"color": "red"}));
    let after = bench.progress("web");
    assert_eq!((after.state, after.last.unwrap()), (State::Backoff, before));
    bench.apply(Event::Gone(Name::Pod("web".into())));
    assert_eq!(bench.engine.progress(bench.now, "default", "web"), None);
    bench.pod("web", json!({}));
    assert_eq!(bench.progress("web").last, None);
}

#[test]
fn every_place_has_its_name() {
    #[track_caller]
    fn check(labels: Value, spec: Value, want: (State, &str, u32)) {
        let mut bench = Bench::new();
        bench.set_pod("web", labels, spec, json!({}));
        bench.cycle();
        let Progress { state, node, attempts, .. } = bench.progress("web");
        assert_eq!((state, &*node, attempts), want);
    }
    check(json!({}), json!({}), (State::Binding, "a", 1));
    check(json!({"permit": "wait"}), json!({}), (State::Permit, "a", 1));
    check(json!({"permit": "no"}), json!({}), (State::Unschedulable, "", 1));
    check(json!({"reserve": "no"}), json!({}), (State::Unschedulable, "", 1));
    check(json!({"pre-bind": "no"}), json!({}), (State::Backoff, "", 1));
    check(json!({}), json!({"schedulingGates": [{"name": "quota"}]}), (State::Gated, "", 0));
    check(json!({}), json!({"nodeName": "a"}), (State::Assigned, "a", 0));
    check(json!({}), json!({"nodeName": "elsewhere"}), (State::Assigned, "elsewhere", 0));
    let engine = Bench::new().engine;
    assert_eq!(engine.progress(Bench::new().now, "default", "nobody"), None);
}

#[test]
fn reasons_beyond_the_limit_are_counted_only() {
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
        bench.apply(Event::Set(Object::Node(Arc::new(node))));
    }
    let mut wanted = resources(40);
    wanted.remove("pods");
    let containers = json!([{"name": "c", "resources": {"requests": wanted}}]);
    bench.set_pod("db", json!({}), json!({"containers": containers}), json!({}));
    bench.cycle();
    let last = bench.progress("db").last.unwrap();
    let shown: usize = last.turned_down.iter().map(|group| group.n_nodes).sum();
    assert_eq!((last.turned_down.len(), shown + last.n_other_nodes), (16, 41));
}

#[test]
fn pods_that_wait_are_told_in_short() {
    let mut bench = Bench::new();
    bench.node("b", "500m");
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    bench.set_pod("late", json!({}), json!({}), json!({}));
    bench.set_pod("gated", json!({}), json!({"schedulingGates": [{"name": "quota"}]}), json!({}));
    let told = |bench: &Bench| {
        let lines =
            bench.engine.waiting().map(|it| format!("{} {:?} {}", it.pod.name, it.state, it.why));
        let mut lines: Vec<String> = lines.collect();
        lines.sort_unstable();
        lines
    };
    let db = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    assert_eq!(
        told(&bench),
        [
            format!("db Unschedulable {db}"),
            "gated Gated waiting for scheduling gates: [quota]".to_owned(),
            "late Active ".to_owned(),
        ]
    );
    bench.cycle();
    assert_eq!(told(&bench)[2], "late Binding ");
}
