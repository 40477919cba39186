//! A panic of a plugin fails only the attempt of one pod, whatever the extension point.

use std::cmp::Ordering;

use loadmaster_framework::extension_points::{FitError, NodeScore, PostFilter, PostFilterCx};
use loadmaster_framework::incremental::{EvaluatorCx, PrepareCx};
use loadmaster_framework::incremental::{
    Incremental, PluginEvaluator, PrepareResult, ResultDependencies, RowDependency,
};
use loadmaster_framework::{
    ActionType, CycleState, Failure, Filter, NodeRow, PluginStateSlot, PostBind, PostFilterResult,
    PreEnqueue, PreFilter, PreFilterResult, PreScore, PreScoreResult, QueueSort, QueuedPodInfo,
    QueueingHint, Score,
};

use super::*;
use crate::guard::silence_caught_panics;

/// Panics at the extension point in the pod's label `panic`, and counts in its state for how many pods it reserved.
struct Panicking {
    n_reserved: PluginStateSlot<u32>,
}

const PANICKING: PluginDef = PluginDef { name: "Panicking", build: build_panicking, args: None };

fn build_panicking(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Panicking { n_reserved: points.plugin_state_slot(0) });
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
    points.incremental = Some(plugin);
    let hint = |question: &loadmaster_framework::cluster_event::QueueingHintArgs<'_>| {
        panic_if_labelled(question.pod, "hint");
        Ok(QueueingHint::Skip)
    };
    let added = ClusterEvent::new(loadmaster_framework::EventResource::Node, ActionType::ADD);
    points.register_event(added, Some(Arc::new(hint)));
    Ok(())
}

fn panic_if_labelled(pod: &PodInfo, point: &str) {
    assert!(label_of(pod, "panic") != point, "injected");
}

impl PreEnqueue for Panicking {
    fn pre_enqueue(&self, _: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        panic_if_labelled(pod, "pre-enqueue");
        Ok(())
    }
}

impl QueueSort for Panicking {
    fn compare(&self, _: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        panic_if_labelled(&a.pod, "sort");
        b.pod.name.cmp(&a.pod.name)
    }
}

impl PreFilter for Panicking {
    fn pre_filter(&self, _: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        panic_if_labelled(pod, "pre-filter");
        Ok(PreFilterResult::All)
    }
    fn add_pod(
        &self,
        _: &mut CycleState,
        _: &World,
        pod: &PodInfo,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        panic_if_labelled(pod, "add-pod");
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
        panic_if_labelled(pod, "remove-pod");
        Ok(())
    }
}

impl Filter for Panicking {
    fn filter(&self, _: Cx<'_>, pod: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        panic_if_labelled(pod, "filter");
        if label_of(pod, "hint-first") == "yes" {
            return Err(Rejection::unschedulable("not yet"));
        }
        Ok(())
    }
}

impl PostFilter for Panicking {
    fn post_filter(
        &self,
        _: PostFilterCx<'_>,
        pod: &Arc<PodInfo>,
        _: FitError<'_>,
        _: &mut Rng,
        _: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        panic_if_labelled(pod, "post-filter");
        PluginStep::Fail(Rejection::unschedulable("no room"))
    }
}

impl PreScore for Panicking {
    fn pre_score(
        &self,
        _: SerialCx<'_>,
        pod: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        panic_if_labelled(pod, "pre-score");
        Ok(PreScoreResult::Ready)
    }
}

impl Score for Panicking {
    fn score(&self, _: Cx<'_>, pod: &PodInfo, _: NodeInfo<'_>) -> Result<i64, Failure> {
        panic_if_labelled(pod, "score");
        Ok(0)
    }
    fn normalize(&self, _: Cx<'_>, pod: &PodInfo, _: &mut [NodeScore]) -> Result<(), Failure> {
        panic_if_labelled(pod, "normalize");
        Ok(())
    }
}

impl Reserve for Panicking {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        if let Some(n) = cx.states.get_mut(self.n_reserved) {
            *n += 1;
        }
        panic_if_labelled(pod, "reserve");
        Ok(())
    }
    fn unreserve(&self, _: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        panic_if_labelled(pod, "unreserve");
    }
}

impl Permit for Panicking {
    fn permit(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        panic_if_labelled(pod, "permit");
        match label_of(pod, "panic") {
            "unreserve" => Err(Rejection::unschedulable("not today")),
            _ => Ok(PermitResult::Allow),
        }
    }
}

impl PreBind for Panicking {
    fn pre_flight(&self, _: Cx<'_>, pod: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        panic_if_labelled(pod, "pre-flight");
        Ok(PreBindPreFlight::Work { parallel: true })
    }
    fn pre_bind(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: &str,
        _: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        panic_if_labelled(pod, "pre-bind");
        PluginStep::Done(())
    }
}

impl Bind for Panicking {
    fn bind(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: &str,
        _: PluginStepInput<'_>,
    ) -> PluginStep<BindResult> {
        panic_if_labelled(pod, "bind");
        PluginStep::Done(BindResult::Done)
    }
}

impl PostBind for Panicking {
    fn post_bind(&self, _: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        panic_if_labelled(pod, "post-bind");
    }
}

impl Incremental for Panicking {
    /// The label that says where to panic.
    type Key = String;

    fn key(&self, _: EvaluatorCx<'_>, pod: &PodInfo) -> Option<String> {
        panic_if_labelled(pod, "key");
        Some(label_of(pod, "panic").to_owned())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, label: &String) -> PrepareResult {
        assert!(label != "prepare", "injected");
        match label.as_str() {
            "" => PrepareResult::Skip,
            "evaluator-filter" | "evaluator-score" | "class-key" | "evaluator" => {
                PrepareResult::Evaluator(Box::new(PanickingEvaluator(label.clone())))
            }
            _ => PrepareResult::PerNode,
        }
    }
}

/// Panics at one of its methods.
struct PanickingEvaluator(String);

impl PluginEvaluator for PanickingEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        let pods = Some(RowDependency::Pods);
        ResultDependencies {
            filter: pods,
            score: pods,
            class: pods,
            ..ResultDependencies::default()
        }
    }
    fn filter_row(&self, _: EvaluatorCx<'_>, _: NodeRow) -> bool {
        assert!(self.0 != "evaluator-filter", "injected");
        true
    }
    fn score_row(&self, _: EvaluatorCx<'_>, _: NodeRow) -> i64 {
        assert!(self.0 != "evaluator-score", "injected");
        0
    }
    fn class_key(
        &self,
        _: EvaluatorCx<'_>,
        _: NodeRow,
        out: &mut loadmaster_framework::incremental::ClassKey,
    ) {
        assert!(self.0 != "class-key", "injected");
        out.push(0);
    }
    fn class_key_len(&self) -> usize {
        1
    }
}

fn bench(queue_sort: &str) -> Bench {
    silence_caught_panics();
    let profile = json!({"plugins": {
        "multiPoint": {"enabled": [{"name": "Panicking"}], "disabled": [{"name": "DefaultBinder"}]},
        "queueSort": {"enabled": [{"name": queue_sort}], "disabled": [{"name": "*"}]},
        // Before DefaultPreemption, after which no other plugin runs.
        "postFilter": {"enabled": [{"name": "Panicking"}, {"name": "DefaultPreemption"}], "disabled": [{"name": "*"}]},
    }});
    let mut bench = Bench::of(EngineOptions::default(), PANICKING, &profile, json!([]));
    bench.node("b", "1");
    bench.lines.clear();
    bench
}

/// The plugin's state.
fn reserved(bench: &Bench) -> u32 {
    *plugin_state::<u32>(bench.engine.profiles[0].scheduler.plugin_states()).unwrap()
}

/// Schedules one pod with the label and one without, and checks the effects of both.
#[track_caller]
fn check(point: &str, want: &Expect) {
    let mut bench = bench("PrioritySort");
    bench.pod("quiet-0", json!({}));
    assert_eq!(bench.cycle(), CycleResult::Ran);
    bench.lines.clear();
    bench.pod("panicking", json!({"panic": point}));
    bench.cycle();
    let lines = std::mem::take(&mut bench.lines);
    assert!(bench.engine.n_assumed_pods() <= 2, "{lines:?}");
    bench.pod("quiet-1", json!({}));
    bench.cycle();
    let other = bench.lines.iter().any(|line| line.starts_with("Scheduled quiet-1"));
    let other = if other { "the next pod is bound" } else { "the next pod is not bound" };
    let got = [lines, vec![format!("{other}; reserved {}", reserved(&bench))]].concat();
    want.assert_eq(&got.join("\n"));
}

#[test]
fn a_panic_at_every_extension_point() {
    check(
        "none",
        &expect![[r#"
        call pods/panicking/status {"nominatedNodeName":"a"}
        Scheduled panicking: Successfully assigned default/panicking to a
        the next pod is bound; reserved 3"#]],
    );
    check(
        "pre-enqueue",
        &expect![[r#"
            panic of Panicking in PreEnqueue, 1x: injected
            the next pod is bound; reserved 2"#]],
    );
    check(
        "pre-filter",
        &expect![[r#"
            FailedScheduling panicking: running PreFilter plugin "Panicking": plugin "Panicking" panicked in PreFilter: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running PreFilter plugin \"Panicking\": plugin \"Panicking\" panicked in PreFilter: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in PreFilter, 1x: injected
            the next pod is bound; reserved 1"#]],
    );
    check(
        "filter",
        &expect![[r#"
            FailedScheduling panicking: plugin "Panicking" panicked in Filter: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Panicking\" panicked in Filter: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in Filter, 1x: injected
            the next pod is bound; reserved 2"#]],
    );
    check(
        "pre-score",
        &expect![[r#"
            FailedScheduling panicking: running PreScore plugin "Panicking": plugin "Panicking" panicked in PreScore: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running PreScore plugin \"Panicking\": plugin \"Panicking\" panicked in PreScore: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in PreScore, 1x: injected
            the next pod is bound; reserved 1"#]],
    );
    check(
        "score",
        &expect![[r#"
            FailedScheduling panicking: plugin "Panicking" panicked in Score: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Panicking\" panicked in Score: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in Score, 1x: injected
            the next pod is bound; reserved 2"#]],
    );
    check(
        "normalize",
        &expect![[r#"
            FailedScheduling panicking: plugin "Panicking" panicked in ScoreExtensionNormalize: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Panicking\" panicked in ScoreExtensionNormalize: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in ScoreExtensionNormalize, 1x: injected
            the next pod is bound; reserved 2"#]],
    );
    check(
        "reserve",
        &expect![[r#"
            FailedScheduling panicking: running Reserve plugin "Panicking": plugin "Panicking" panicked in Reserve: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running Reserve plugin \"Panicking\": plugin \"Panicking\" panicked in Reserve: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in Reserve, 1x: injected
            the next pod is bound; reserved 1"#]],
    );
    check(
        "unreserve",
        &expect![[r#"
            FailedScheduling panicking: 0/1 nodes are available: 1 not today.
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 not today.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            panic of Panicking in Unreserve, 1x: injected
            the next pod is bound; reserved 1"#]],
    );
    check(
        "permit",
        &expect![[r#"
            FailedScheduling panicking: running Permit plugin "Panicking": plugin "Panicking" panicked in Permit: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running Permit plugin \"Panicking\": plugin \"Panicking\" panicked in Permit: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in Permit, 1x: injected
            the next pod is bound; reserved 1"#]],
    );
    check(
        "pre-flight",
        &expect![[r#"
            FailedScheduling panicking: running PreBindPreFlight "Panicking": plugin "Panicking" panicked in PreBindPreFlight: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running PreBindPreFlight \"Panicking\": plugin \"Panicking\" panicked in PreBindPreFlight: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in PreBindPreFlight, 1x: injected
            the next pod is bound; reserved 3"#]],
    );
    check(
        "pre-bind",
        &expect![[r#"
            call pods/panicking/status {"nominatedNodeName":"a"}
            FailedScheduling panicking: running PreBind plugin "Panicking": plugin "Panicking" panicked in PreBind: injected
            panic of Panicking in PreBind, 1x: injected
            the next pod is bound; reserved 1"#]],
    );
    check(
        "bind",
        &expect![[r#"
            call pods/panicking/status {"nominatedNodeName":"a"}
            FailedScheduling panicking: running Bind plugin "Panicking": plugin "Panicking" panicked in Bind: injected
            panic of Panicking in Bind, 1x: injected
            the next pod is bound; reserved 1"#]],
    );
    check(
        "post-bind",
        &expect![[r#"
            call pods/panicking/status {"nominatedNodeName":"a"}
            Scheduled panicking: Successfully assigned default/panicking to a
            panic of Panicking in PostBind, 1x: injected
            the next pod is bound; reserved 1"#]],
    );
    check(
        "prepare",
        &expect![[r#"
            FailedScheduling panicking: plugin "Panicking" panicked in Prepare: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Panicking\" panicked in Prepare: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in Prepare, 1x: injected
            the next pod is bound; reserved 2"#]],
    );
    check(
        "evaluator-filter",
        &expect![[r#"
            FailedScheduling panicking: plugin "Panicking" panicked in Filter: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Panicking\" panicked in Filter: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in Filter, 1x: injected
            the next pod is bound; reserved 2"#]],
    );
    check(
        "evaluator-score",
        &expect![[r#"
            FailedScheduling panicking: plugin "Panicking" panicked in Score: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Panicking\" panicked in Score: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in Score, 1x: injected
            the next pod is bound; reserved 2"#]],
    );
    check(
        "class-key",
        &expect![[r#"
            FailedScheduling panicking: plugin "Panicking" panicked in Prepare: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Panicking\" panicked in Prepare: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
            panic of Panicking in Prepare, 1x: injected
            the next pod is bound; reserved 2"#]],
    );
}

/// A pod that needs preemption.
#[track_caller]
fn check_preempting(point: &str, want: &Expect) {
    let mut bench = bench("PrioritySort");
    for name in ["one", "two", "three"] {
        bench.pod(name, json!({}));
        bench.cycle();
    }
    bench.lines.clear();
    bench.set_pod("panicking", json!({"panic": point}), json!({"priority": 10}), json!({}));
    bench.cycle();
    want.assert_eq(&bench.lines.join("\n"));
}

#[test]
fn a_panic_during_preemption() {
    check_preempting(
        "post-filter",
        &expect![[r#"
            FailedScheduling panicking: 0/2 nodes are available: 2 Insufficient cpu. plugin "Panicking" panicked in PostFilter: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. plugin \"Panicking\" panicked in PostFilter: injected","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            panic of Panicking in PostFilter, 1x: injected"#]],
    );
    check_preempting(
        "remove-pod",
        &expect![[r#"
            FailedScheduling panicking: 0/2 nodes are available: 2 Insufficient cpu. preemption: running RemovePod on PreFilter plugin "Panicking": plugin "Panicking" panicked in PreFilterExtensionRemovePod: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. preemption: running RemovePod on PreFilter plugin \"Panicking\": plugin \"Panicking\" panicked in PreFilterExtensionRemovePod: injected","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            panic of Panicking in PreFilterExtensionRemovePod, 2x: injected"#]],
    );
    check_preempting(
        "add-pod",
        &expect![[r#"
            FailedScheduling panicking: 0/2 nodes are available: 2 Insufficient cpu. preemption: running AddPod on PreFilter plugin "Panicking": plugin "Panicking" panicked in PreFilterExtensionAddPod: injected
            call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/2 nodes are available: 2 Insufficient cpu. preemption: running AddPod on PreFilter plugin \"Panicking\": plugin \"Panicking\" panicked in PreFilterExtensionAddPod: injected","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            panic of Panicking in PreFilterExtensionAddPod, 2x: injected"#]],
    );
}

#[test]
fn a_panicking_hint_requeues_the_pod() {
    let mut bench = bench("PrioritySort");
    bench.pod("panicking", json!({"panic": "hint", "hint-first": "yes"}));
    bench.cycle();
    bench.lines.clear();
    bench.node("c", "1");
    bench.check(&expect![[r#"
        panic of Panicking in QueueingHint, 1x: injected
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn a_panicking_queue_sort_orders_by_arrival() {
    let mut bench = bench("Panicking");
    for name in ["a", "b", "c"] {
        bench.pod(name, json!({"panic": "sort"}));
    }
    let popped: Vec<String> = std::iter::from_fn(|| {
        bench.lines.clear();
        bench.cycle();
        let line = bench.lines.iter().find(|line| line.starts_with("Scheduled"))?;
        Some(line.clone())
    })
    .collect();
    expect![[r#"
        Scheduled a: Successfully assigned default/a to a
        Scheduled b: Successfully assigned default/b to a
        Scheduled c: Successfully assigned default/c to b"#]]
    .assert_eq(&popped.join("\n"));
    // Without panics the plugin's order is reversed.
    let mut bench = self::bench("Panicking");
    bench.pod("a", json!({}));
    bench.pod("b", json!({}));
    bench.lines.clear();
    bench.cycle();
    assert!(bench.lines.iter().any(|line| line.starts_with("Scheduled b")), "{:?}", bench.lines);
}

#[test]
fn a_pod_gated_by_a_panic_is_requeued_by_the_flush() {
    let mut bench = bench("PrioritySort");
    bench.pod("panicking", json!({"panic": "pre-enqueue"}));
    bench.lines.clear();
    bench.advance(331);
    bench.check(&expect![[r#"
        panic of Panicking in PreEnqueue, 1x: injected
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn a_panic_drops_cached_evaluations() {
    let mut bench = bench("PrioritySort");
    // Twice, so that the score index would be cached.
    for name in ["one", "two"] {
        bench.pod(name, json!({"panic": "evaluator"}));
        bench.cycle();
    }
    let cached = |bench: &Bench| bench.engine.profiles[0].scheduler.cache_size().combinations;
    assert_eq!(cached(&bench), 1);
    bench.lines.clear();
    bench.pod("panicking", json!({"panic": "filter"}));
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling panicking: plugin "Panicking" panicked in Filter: injected
        call pods/panicking/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"plugin \"Panicking\" panicked in Filter: injected","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        panic of Panicking in Filter, 1x: injected
        0 active, 1 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    assert_eq!(cached(&bench), 0);
}
