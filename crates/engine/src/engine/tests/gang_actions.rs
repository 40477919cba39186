//! What a plugin requests for a gang: rejecting the members that wait, and trying again at a time.

use loadmaster_framework::{
    FitError, PermitResult, PodChange, PodEventHandler, PostFilter, PostFilterCx, PostFilterResult,
    PreEnqueue, Rejection,
};
use loadmaster_stdx::Rng;

use super::*;

/// Pods with the label `gang` wait at Permit. When one fits on no node, the others are rejected, and it is tried again after half a minute.
struct Gang;

const GANG: PluginDef = PluginDef { name: "Gang", build: build_gang, args: None };

fn build_gang(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Gang);
    points.permit = Some(plugin.clone());
    points.post_filter = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl Permit for Gang {
    fn permit(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        let waits = pod.template.labels.get("gang").is_some();
        Ok(if waits { PermitResult::Wait(Duration::from_secs(600)) } else { PermitResult::Allow })
    }
}

impl PostFilter for Gang {
    fn post_filter(
        &self,
        mut cx: PostFilterCx<'_>,
        pod: &Arc<PodInfo>,
        _: FitError<'_>,
        _: &mut Rng,
        _: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        let mut cx = cx.serial();
        let waiting: Vec<Box<str>> =
            cx.waiting_pods().iter().map(|waiting| waiting.pod.uid.clone()).collect();
        for uid in waiting {
            match label_of(pod, "wants") {
                "room" => cx.reject_waiting_pod("Gang", &uid, "not all fit"),
                _ => cx.reject_waiting_pod_for("Gang", &uid, "not all fit", &pod.uid),
            }
        }
        let half_a_minute = cx.now().mono.after(Duration::from_secs(30));
        cx.activate_at(half_a_minute, [&*pod.uid, "unknown"]);
        PluginStep::Fail(Rejection::unschedulable("gang"))
    }
}

/// Two pods wait on the node, a third one does not fit.
fn bench(labels: Value) -> Bench {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Gang"}]}}});
    let mut bench = Bench::of(EngineOptions::default(), GANG, &profile, json!([]));
    for (name, labels) in [("x", json!({"gang": "g"})), ("y", json!({"gang": "g"})), ("z", labels)]
    {
        bench.pod(name, labels);
        bench.cycle();
    }
    bench.lines.clear();
    bench
}

#[test]
fn the_release_of_a_rejected_pod_requeues_the_unschedulable_pod_unless_excepted() {
    let mut requeued = bench(json!({"wants": "room"}));
    requeued.check(&expect!["0 active, 1 backing off, 2 unschedulable, 0 assumed, 0 on a"]);
    let mut excepted = bench(json!({}));
    excepted.check(&expect!["0 active, 0 backing off, 3 unschedulable, 0 assumed, 0 on a"]);
}

#[test]
fn a_pod_is_activated_at_the_requested_time() {
    let mut bench = bench(json!({}));
    let due = MonoTime(40 * SECOND);
    assert_eq!(bench.engine.next_timeout(), Some(due));
    bench.advance(29);
    bench.check(&expect!["0 active, 0 backing off, 3 unschedulable, 0 assumed, 0 on a"]);
    bench.advance(1);
    bench.check(&expect!["1 active, 0 backing off, 2 unschedulable, 0 assumed, 0 on a"]);
    assert_ne!(bench.engine.next_timeout(), Some(due), "it happens once");
}

#[test]
fn a_pod_that_was_deleted_is_not_activated() {
    let mut bench = bench(json!({}));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("z".into())));
    bench.advance(30);
    bench.check(&expect!["0 active, 0 backing off, 2 unschedulable, 0 assumed, 0 on a"]);
}

/// Gates pods for half a minute.
struct Gate;

const GATE: PluginDef = PluginDef { name: "Gate", build: build_gate, args: None };

fn build_gate(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Gate);
    points.pre_enqueue = Some(plugin.clone());
    points.pod_event_handler = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl PreEnqueue for Gate {
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        let is_gated = label_of(pod, "gated") == "yes" && cx.now().mono < MonoTime(40 * SECOND);
        if is_gated { Err(Rejection::unschedulable("too early")) } else { Ok(()) }
    }
}

impl PodEventHandler for Gate {
    fn on_pod_change(&self, mut cx: SerialCx<'_>, change: &PodChange) {
        if let (None, Some(pod)) = (&change.old, &change.new) {
            cx.check_gates_at(MonoTime(40 * SECOND), [&*pod.uid, "unknown"]);
        }
    }
}

#[test]
fn gates_are_checked_at_the_requested_time_and_other_pods_stay_where_they_are() {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Gate"}]}}});
    let mut bench = Bench::of(EngineOptions::default(), GATE, &profile, json!([]));
    bench.pod("gated", json!({"gated": "yes"}));
    for name in ["x", "y", "without-room"] {
        bench.pod(name, json!({}));
        bench.cycle();
    }
    bench.lines.clear();
    bench.advance(29);
    bench.check(&expect!["0 active, 0 backing off, 1 unschedulable, 2 assumed, 2 on a"]);
    bench.advance(1);
    bench.check(&expect!["1 active, 0 backing off, 1 unschedulable, 2 assumed, 2 on a"]);
}
