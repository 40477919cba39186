//! A plugin that panics costs one pod one attempt, wherever it does so.

use std::cmp::Ordering;

use loadmaster_framework::points::{NodeScore, PostFilter, Unfit};
use loadmaster_framework::prepare::{Prepare, Prepared, Reads, RowPart, Run};
use loadmaster_framework::table::NodeTable;
use loadmaster_framework::{
    Action, CycleState, Failure, Filter, Hint, PostBind, PostFiltered, PreEnqueue, PreFilter,
    PreFiltered, PreScore, PreScored, Row, Score, StateSlot,
};

use super::*;
use crate::guard::quiet_caught_panics;

/// Panics where the pod's label `panic` says, and counts in its state for how many pods it reserved.
struct Nervous {
    n_reserved: StateSlot<u32>,
}

const NERVOUS: PluginDef = PluginDef { name: "Nervous", build: build_nervous, args: None };

fn build_nervous(points: &mut Points, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Nervous { n_reserved: points.state(0) });
    points.pre_enqueue = Some(plugin.clone());
    points.queue_sort = Some(plugin.clone());
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.post_filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin.clone());
    points.pre_bind = Some(plugin.clone());
    points.bind = Some(plugin.clone());
    points.post_bind = Some(plugin.clone());
    points.prepare = Some(plugin);
    let hint = |question: &loadmaster_framework::event::HintQuestion<'_>| {
        tremble(question.pod, "hint");
        Ok(Hint::Skip)
    };
    let added = ClusterEvent::new(loadmaster_framework::EventResource::Node, Action::ADD);
    points.wake_on(added, Some(Arc::new(hint)));
    Ok(())
}

fn tremble(pod: &PodInfo, point: &str) {
    assert!(told(pod, "panic") != point, "a mouse");
}

impl PreEnqueue for Nervous {
    fn pre_enqueue(&self, _: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        tremble(pod, "pre-enqueue");
        Ok(())
    }
}

impl QueueSort for Nervous {
    fn compare(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        tremble(&a.pod, "sort");
        b.pod.name.cmp(&a.pod.name)
    }
}

impl PreFilter for Nervous {
    fn pre_filter(&self, _: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        tremble(pod, "pre-filter");
        Ok(PreFiltered::All)
    }
    fn add_pod(
        &self,
        _: &mut CycleState,
        _: &World,
        pod: &PodInfo,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        tremble(pod, "add-pod");
        Ok(())
    }
    fn remove_pod(
        &self,
        _: &mut CycleState,
        _: &World,
        pod: &PodInfo,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        tremble(pod, "remove-pod");
        Ok(())
    }
}

impl Filter for Nervous {
    fn filter(&self, _: Cx<'_>, pod: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        tremble(pod, "filter");
        if told(pod, "hint-first") == "yes" {
            return Err(Rejection::unschedulable("not yet"));
        }
        Ok(())
    }
}

impl PostFilter for Nervous {
    fn post_filter(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: Unfit<'_>,
        _: &mut Rng,
        _: Input<'_>,
    ) -> Step<PostFiltered> {
        tremble(pod, "post-filter");
        Step::Fail(Rejection::unschedulable("no room"))
    }
}

impl PreScore for Nervous {
    fn pre_score(
        &self,
        _: SerialCx<'_>,
        pod: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScored, Failure> {
        tremble(pod, "pre-score");
        Ok(PreScored::Ready)
    }
}

impl Score for Nervous {
    fn score(&self, _: Cx<'_>, pod: &PodInfo, _: NodeInfo<'_>) -> Result<i64, Failure> {
        tremble(pod, "score");
        Ok(0)
    }
    fn normalize(&self, _: Cx<'_>, pod: &PodInfo, _: &mut [NodeScore]) -> Result<(), Failure> {
        tremble(pod, "normalize");
        Ok(())
    }
}

impl Reserve for Nervous {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        if let Some(n) = cx.states.get_mut(self.n_reserved) {
            *n += 1;
        }
        tremble(pod, "reserve");
        Ok(())
    }
    fn unreserve(&self, _: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        tremble(pod, "unreserve");
    }
}

impl Permit for Nervous {
    fn permit(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<Permitted, Rejection> {
        tremble(pod, "permit");
        match told(pod, "panic") {
            "unreserve" => Err(Rejection::unschedulable("not today")),
            _ => Ok(Permitted::Allow),
        }
    }
}

impl PreBind for Nervous {
    fn pre_flight(&self, _: Cx<'_>, pod: &PodInfo, _: &str) -> Result<PreFlight, Rejection> {
        tremble(pod, "pre-flight");
        Ok(PreFlight::Work { parallel: true })
    }
    fn pre_bind(&self, _: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str, _: Input<'_>) -> Step<()> {
        tremble(pod, "pre-bind");
        Step::Done(())
    }
}

impl Bind for Nervous {
    fn bind(&self, _: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str, _: Input<'_>) -> Step<Bound> {
        tremble(pod, "bind");
        Step::Done(Bound::Done)
    }
}

impl PostBind for Nervous {
    fn post_bind(&self, _: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        tremble(pod, "post-bind");
    }
}

impl Prepare for Nervous {
    fn prepare(&self, _: &mut World, pod: &PodInfo) -> Prepared {
        tremble(pod, "prepare");
        match told(pod, "panic") {
            "" => Prepared::Skip,
            "run-filter" | "run-score" | "run-words" | "release" => {
                Prepared::Run(Box::new(NervousRun(told(pod, "panic").to_owned())))
            }
            _ => Prepared::OneByOne,
        }
    }
}

/// Panics at one of its methods.
struct NervousRun(String);

impl Run for NervousRun {
    fn reads(&self) -> Reads {
        let pods = Some(RowPart::Pods);
        Reads { filter: pods, score: pods, class: pods, node_set: false }
    }
    fn filter_row(&self, _: &NodeTable, _: Row) -> bool {
        assert!(self.0 != "run-filter", "a mouse");
        true
    }
    fn score_row(&self, _: &NodeTable, _: Row) -> i64 {
        assert!(self.0 != "run-score", "a mouse");
        0
    }
    fn class_row(&self, _: &World, _: Row, out: &mut loadmaster_framework::prepare::Words) {
        assert!(self.0 != "run-words", "a mouse");
        out.push(0);
    }
    fn n_words(&self) -> usize {
        1
    }
    fn release(&mut self, _: &mut World) {
        assert!(self.0 != "release", "a mouse");
    }
}

fn bench(queue_sort: &str) -> Bench {
    quiet_caught_panics();
    let profile = json!({"plugins": {
        "multiPoint": {"enabled": [{"name": "Nervous"}], "disabled": [{"name": "DefaultBinder"}]},
        "queueSort": {"enabled": [{"name": queue_sort}], "disabled": [{"name": "*"}]},
        // Before the one of the tree, which would end the round.
        "postFilter": {"enabled": [{"name": "Nervous"}, {"name": "DefaultPreemption"}], "disabled": [{"name": "*"}]},
    }});
    let mut bench = Bench::of(Options::default(), NERVOUS, &profile, json!([]));
    bench.node("b", "1");
    bench.said.clear();
    bench
}

/// The plugin's state is the only one of the profile.
fn reserved(bench: &Bench) -> u32 {
    let slot = loadmaster_framework::PluginStates::default().add(0u32);
    *bench.engine.seats[0].scheduler.states().get(slot).unwrap()
}

/// One pod with the label, and one after it without: what becomes of both.
#[track_caller]
fn check(point: &str, want: &Expect) {
    let mut bench = bench("PrioritySort");
    bench.pod("quiet-0", json!({}));
    assert_eq!(bench.cycle(), Cycled::Ran);
    bench.said.clear();
    bench.pod("nervous", json!({"panic": point}));
    bench.cycle();
    let said = std::mem::take(&mut bench.said);
    assert!(bench.engine.n_assumed() <= 2, "{said:?}");
    bench.pod("quiet-1", json!({}));
    bench.cycle();
    let other = bench.said.iter().any(|line| line.starts_with("Scheduled quiet-1"));
    let other = if other { "the next pod is bound" } else { "the next pod is not bound" };
    let got = [said, vec![format!("{other}; reserved {}", reserved(&bench))]].concat();
    want.assert_eq(&got.join("\n"));
}

#[test]
fn every_point() {
    check(
        "none",
        &expect![[r#"
        call pods/nervous/status {"nominatedNodeName":"a"}
        Scheduled nervous: Successfully assigned default/nervous to a
        the next pod is bound; reserved 3"#]],
    );
    check(
        "pre-enqueue",
        &expect![[r#"
            panic of Nervous in PreEnqueue, 1x: a mouse
            the next pod is bound; reserved 2"#]],
    );
    check(
        "pre-filter",
        &expect![[r#"
            FailedScheduling nervous: running PreFilter plugin "Nervous": plugin "Nervous" panicked in PreFilter: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running PreFilter plugin \"Nervous\": plugin \"Nervous\" panicked in PreFilter: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in PreFilter, 1x: a mouse
            the next pod is bound; reserved 1"#]],
    );
    check(
        "filter",
        &expect![[r#"
            FailedScheduling nervous: plugin "Nervous" panicked in Filter: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Nervous\" panicked in Filter: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in Filter, 1x: a mouse
            the next pod is bound; reserved 2"#]],
    );
    check(
        "pre-score",
        &expect![[r#"
            FailedScheduling nervous: running PreScore plugin "Nervous": plugin "Nervous" panicked in PreScore: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running PreScore plugin \"Nervous\": plugin \"Nervous\" panicked in PreScore: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in PreScore, 1x: a mouse
            the next pod is bound; reserved 1"#]],
    );
    check(
        "score",
        &expect![[r#"
            FailedScheduling nervous: plugin "Nervous" panicked in Score: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Nervous\" panicked in Score: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in Score, 1x: a mouse
            the next pod is bound; reserved 2"#]],
    );
    check(
        "normalize",
        &expect![[r#"
            FailedScheduling nervous: plugin "Nervous" panicked in ScoreExtensionNormalize: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Nervous\" panicked in ScoreExtensionNormalize: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in ScoreExtensionNormalize, 1x: a mouse
            the next pod is bound; reserved 2"#]],
    );
    check(
        "reserve",
        &expect![[r#"
            FailedScheduling nervous: running Reserve plugin "Nervous": plugin "Nervous" panicked in Reserve: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running Reserve plugin \"Nervous\": plugin \"Nervous\" panicked in Reserve: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in Reserve, 1x: a mouse
            the next pod is bound; reserved 1"#]],
    );
    check(
        "unreserve",
        &expect![[r#"
            FailedScheduling nervous: 0/1 nodes are available: 1 not today.
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 not today.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            panic of Nervous in Unreserve, 1x: a mouse
            the next pod is bound; reserved 1"#]],
    );
    check(
        "permit",
        &expect![[r#"
            FailedScheduling nervous: running Permit plugin "Nervous": plugin "Nervous" panicked in Permit: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running Permit plugin \"Nervous\": plugin \"Nervous\" panicked in Permit: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in Permit, 1x: a mouse
            the next pod is bound; reserved 1"#]],
    );
    check(
        "pre-flight",
        &expect![[r#"
            FailedScheduling nervous: running PreBindPreFlight "Nervous": plugin "Nervous" panicked in PreBindPreFlight: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running PreBindPreFlight \"Nervous\": plugin \"Nervous\" panicked in PreBindPreFlight: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in PreBindPreFlight, 1x: a mouse
            the next pod is bound; reserved 3"#]],
    );
    check(
        "pre-bind",
        &expect![[r#"
            call pods/nervous/status {"nominatedNodeName":"a"}
            FailedScheduling nervous: running PreBind plugin "Nervous": plugin "Nervous" panicked in PreBind: a mouse
            panic of Nervous in PreBind, 1x: a mouse
            the next pod is bound; reserved 1"#]],
    );
    check(
        "bind",
        &expect![[r#"
            call pods/nervous/status {"nominatedNodeName":"a"}
            FailedScheduling nervous: running Bind plugin "Nervous": plugin "Nervous" panicked in Bind: a mouse
            panic of Nervous in Bind, 1x: a mouse
            the next pod is bound; reserved 1"#]],
    );
    check(
        "post-bind",
        &expect![[r#"
            call pods/nervous/status {"nominatedNodeName":"a"}
            Scheduled nervous: Successfully assigned default/nervous to a
            panic of Nervous in PostBind, 1x: a mouse
            the next pod is bound; reserved 1"#]],
    );
    check(
        "prepare",
        &expect![[r#"
            FailedScheduling nervous: plugin "Nervous" panicked in Prepare: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Nervous\" panicked in Prepare: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in Prepare, 1x: a mouse
            the next pod is bound; reserved 2"#]],
    );
    check(
        "run-filter",
        &expect![[r#"
            FailedScheduling nervous: plugin "Nervous" panicked in Filter: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Nervous\" panicked in Filter: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in Filter, 1x: a mouse
            the next pod is bound; reserved 2"#]],
    );
    check(
        "run-score",
        &expect![[r#"
            FailedScheduling nervous: plugin "Nervous" panicked in Score: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Nervous\" panicked in Score: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in Score, 1x: a mouse
            the next pod is bound; reserved 2"#]],
    );
    check(
        "run-words",
        &expect![[r#"
            FailedScheduling nervous: plugin "Nervous" panicked in Prepare: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Nervous\" panicked in Prepare: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Nervous in Prepare, 1x: a mouse
            the next pod is bound; reserved 2"#]],
    );
}

/// Fits nowhere unless another pod goes.
#[track_caller]
fn check_preempting(point: &str, want: &Expect) {
    let mut bench = bench("PrioritySort");
    for name in ["one", "two", "three"] {
        bench.pod(name, json!({}));
        bench.cycle();
    }
    bench.said.clear();
    bench.set_pod("nervous", json!({"panic": point}), json!({"priority": 10}), json!({}));
    bench.cycle();
    want.assert_eq(&bench.said.join("\n"));
}

#[test]
fn making_room() {
    check_preempting(
        "post-filter",
        &expect![[r#"
            FailedScheduling nervous: 0/2 nodes are available: 2 Insufficient cpu. plugin "Nervous" panicked in PostFilter: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. plugin \"Nervous\" panicked in PostFilter: a mouse","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            panic of Nervous in PostFilter, 1x: a mouse"#]],
    );
    check_preempting(
        "remove-pod",
        &expect![[r#"
            FailedScheduling nervous: 0/2 nodes are available: 2 Insufficient cpu. preemption: running RemovePod on PreFilter plugin "Nervous": plugin "Nervous" panicked in PreFilterExtensionRemovePod: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. preemption: running RemovePod on PreFilter plugin \"Nervous\": plugin \"Nervous\" panicked in PreFilterExtensionRemovePod: a mouse","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            panic of Nervous in PreFilterExtensionRemovePod, 2x: a mouse"#]],
    );
    check_preempting(
        "add-pod",
        &expect![[r#"
            FailedScheduling nervous: 0/2 nodes are available: 2 Insufficient cpu. preemption: running AddPod on PreFilter plugin "Nervous": plugin "Nervous" panicked in PreFilterExtensionAddPod: a mouse
            call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. preemption: running AddPod on PreFilter plugin \"Nervous\": plugin \"Nervous\" panicked in PreFilterExtensionAddPod: a mouse","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            panic of Nervous in PreFilterExtensionAddPod, 2x: a mouse"#]],
    );
}

#[test]
fn a_hint_that_panics_wakes_the_pod() {
    let mut bench = bench("PrioritySort");
    bench.pod("nervous", json!({"panic": "hint", "hint-first": "yes"}));
    bench.cycle();
    bench.said.clear();
    bench.node("c", "1");
    bench.check(&expect![[r#"
        panic of Nervous in QueueingHint, 1x: a mouse
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn an_order_that_panics_is_that_of_arrival() {
    let mut bench = bench("Nervous");
    for name in ["a", "b", "c"] {
        bench.pod(name, json!({"panic": "sort"}));
    }
    let popped: Vec<String> = std::iter::from_fn(|| {
        bench.said.clear();
        bench.cycle();
        let line = bench.said.iter().find(|line| line.starts_with("Scheduled"))?;
        Some(line.clone())
    })
    .collect();
    expect![[r#"
        Scheduled a: Successfully assigned default/a to a
        Scheduled b: Successfully assigned default/b to a
        Scheduled c: Successfully assigned default/c to b"#]]
    .assert_eq(&popped.join("\n"));
    // Otherwise the plugin's order is the other way round.
    let mut bench = self::bench("Nervous");
    bench.pod("a", json!({}));
    bench.pod("b", json!({}));
    bench.said.clear();
    bench.cycle();
    assert!(bench.said.iter().any(|line| line.starts_with("Scheduled b")), "{:?}", bench.said);
}

#[test]
fn a_pod_that_pre_enqueue_failed_for_is_tried_again_by_the_flush() {
    let mut bench = bench("PrioritySort");
    bench.pod("nervous", json!({"panic": "pre-enqueue"}));
    bench.said.clear();
    bench.pass(331);
    bench.check(&expect![[r#"
        panic of Nervous in PreEnqueue, 1x: a mouse
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn what_is_kept_is_dropped() {
    let mut bench = bench("PrioritySort");
    // Twice, so that an index would be kept.
    for name in ["one", "two"] {
        bench.pod(name, json!({"panic": "release"}));
        bench.cycle();
    }
    bench.said.clear();
    bench.pod("nervous", json!({"panic": "filter"}));
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling nervous: plugin "Nervous" panicked in Filter: a mouse
        call pods/nervous/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Nervous\" panicked in Filter: a mouse","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        panic of Nervous in Filter, 1x: a mouse
        panic of Nervous in Prepare, 1x: a mouse
        0 active, 1 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}
