//! The time in every context, and one deadline for several waits.

use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::testkit::{PluginTestBench, node, pod};
use loadmaster_framework::{
    ActionType, CycleStateSlot, EventResource, Filter, PreEnqueue, PreFilter, PreFilterResult,
    QueueingHint,
};

use super::*;

/// Waits in PreBind until the claim is bound, at most ten seconds in all, however often the claim changes.
struct Provision {
    deadline: CycleStateSlot<MonoTime>,
}

const PROVISION: PluginDef = PluginDef { name: "Provision", build: build_provision, args: None };

fn build_provision(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.pre_bind = Some(Arc::new(Provision { deadline: points.cycle_state_slot() }));
    points.register_no_events();
    Ok(())
}

impl PreBind for Provision {
    fn pre_flight(&self, _: Cx<'_>, _: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        Ok(PreBindPreFlight::Work { parallel: false })
    }

    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        match input {
            PluginStepInput::Start => {
                let deadline = cx.now().mono.after(Duration::from_secs(10));
                cx.cycle.set(self.deadline, deadline);
            }
            PluginStepInput::Changed(Some(claim)) if claim["bound"] == true => {
                return PluginStep::Done(());
            }
            PluginStepInput::Deadline => {
                return PluginStep::Fail(Rejection::unschedulable("binding volumes: timed out"));
            }
            _ => {}
        }
        let until = cx.cycle.get(self.deadline).copied().unwrap_or_default();
        PluginStep::Wait { on: vec![claim()], until }
    }
}

fn provision_bench() -> Bench {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Provision"}]}}});
    let mut bench = Bench::of(EngineOptions::default(), PROVISION, &profile, json!([]));
    bench.pod("web", json!({}));
    bench.cycle();
    bench.lines.clear();
    bench
}

fn claim_changed(bound: bool) -> EngineEvent {
    EngineEvent::ObjectChanged { object: claim(), value: Some(json!({"bound": bound})) }
}

#[test]
fn several_waits_share_one_deadline() {
    let mut bench = provision_bench();
    let deadline = Some(MonoTime(20 * SECOND));
    assert_eq!(bench.engine.next_timeout(), deadline);
    for _ in 0..3 {
        bench.advance(3);
        bench.apply(claim_changed(false));
        assert_eq!(bench.engine.next_timeout(), deadline, "a change does not extend the deadline");
    }
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"]);
    bench.advance(1);
    bench.check(&expect![[r#"
        FailedScheduling web: binding volumes: timed out
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn a_wait_ends_before_the_deadline() {
    let mut bench = provision_bench();
    bench.apply(claim_changed(false));
    bench.advance(9);
    bench.apply(claim_changed(true));
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.advance(1);
    assert!(bench.lines.is_empty(), "the old deadline is gone: {:?}", bench.lines);
}

#[test]
fn the_bench_of_a_plugin_has_a_clock() {
    let mut bench = PluginTestBench::new(&PROVISION, json!({})).unwrap();
    bench.node(node("a")).unwrap();
    bench.advance_time(Duration::from_secs(5));
    let mut cycle = bench.start_cycle(pod("web"), "a").unwrap();
    for (seconds, input) in [(0, PluginStepInput::Start), (4, PluginStepInput::Changed(None))] {
        bench.advance_time(Duration::from_secs(seconds));
        match bench.pre_bind(&mut cycle, input) {
            PluginStep::Wait { until, .. } => assert_eq!(until, MonoTime(15 * SECOND)),
            other => panic!("expected a wait: {other:?}"),
        }
    }
    let last = bench.pre_bind(&mut cycle, PluginStepInput::Deadline);
    assert!(matches!(last, PluginStep::Fail(_)), "{last:?}");
}

/// Rejects pods before second 30, in the extension point that the pod's label `until-30` names.
struct Late;

const LATE: PluginDef = PluginDef { name: "Late", build: build_late, args: None };

fn build_late(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Late);
    points.pre_enqueue = Some(plugin.clone());
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.reserve = Some(plugin);
    let hint = |args: &QueueingHintArgs<'_>| {
        Ok(if args.now().mono < THIRTY { QueueingHint::Skip } else { QueueingHint::Queue })
    };
    let any_node = ClusterEvent::new(EventResource::Node, ActionType::ADD);
    points.register_event(any_node, Some(Arc::new(hint)));
    Ok(())
}

const THIRTY: MonoTime = MonoTime(30 * SECOND);

fn check_time(now: Now, pod: &PodInfo, point: &str) -> Result<(), Rejection> {
    if label_of(pod, "until-30") == point && now.mono < THIRTY {
        return Err(Rejection::unschedulable("too early"));
    }
    Ok(())
}

impl PreEnqueue for Late {
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        check_time(cx.now(), pod, "pre-enqueue")
    }
}

impl PreFilter for Late {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        check_time(cx.now(), pod, "pre-filter").map(|()| PreFilterResult::All)
    }
}

impl Filter for Late {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        check_time(cx.now(), pod, "filter")
    }
}

impl Reserve for Late {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        check_time(cx.now(), pod, "reserve")
    }
    fn unreserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {}
}

/// Whether a pod that the plugin rejects at this point is bound after a node is added at 20 s and another at 32 s.
#[track_caller]
fn check_late(point: &str) {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Late"}]}}});
    let mut bench = Bench::of(EngineOptions::default(), LATE, &profile, json!([]));
    bench.pod("web", json!({"until-30": point}));
    bench.cycle();
    assert_eq!(bench.engine.n_assumed_pods(), 0, "{point}");
    bench.advance(10);
    bench.node("b", "1");
    bench.cycle();
    assert_eq!(bench.engine.n_assumed_pods(), 0, "{point}: the hint and the plugin see 20 s");
    bench.advance(12);
    bench.node("c", "1");
    bench.cycle();
    assert_eq!(bench.engine.n_assumed_pods(), 1, "{point}: the hint and the plugin see 32 s");
}

#[test]
fn every_extension_point_and_hint_sees_the_time() {
    for point in ["pre-enqueue", "pre-filter", "filter", "reserve"] {
        check_late(point);
    }
}
