//! A sample of the plugin calls is timed.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::*;
use crate::guard::PluginExecutionDuration;

/// A stopwatch that advances by a microsecond with each reading.
fn ticking() -> u64 {
    thread_local! {
        static NANOS: Cell<u64> = const { Cell::new(0) };
    }
    NANOS.set(NANOS.get() + 1000);
    NANOS.get()
}

/// The number of timed calls by plugin, extension point and code, while pods are added and bound.
fn timed(stopwatch: fn() -> u64) -> BTreeMap<String, usize> {
    let mut bench = Bench::with(EngineOptions { stopwatch, ..EngineOptions::default() });
    bench.node("b", "64");
    let mut calls: Vec<PluginExecutionDuration> = Vec::new();
    for nth in 0..60u64 {
        let name = format!("p{nth}");
        let labels = if nth % 2 == 0 { json!({"pre-bind": "call"}) } else { json!({}) };
        let mut effects = Effects::new();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": if nth % 7 == 4 { "100" } else { "100m" }}}}]},
        }))
        .unwrap();
        bench.engine.apply_event(
            bench.now,
            EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))),
            &mut effects,
        );
        bench.engine.cycle(bench.now, &mut effects);
        while let Some(at) = effects.iter().position(|effect| matches!(effect, Effect::Call(_))) {
            let Effect::Call(call) = effects.remove(at) else { continue };
            bench.now.mono = MonoTime(bench.now.mono.0 + 5_000);
            let reply = EngineEvent::Replied { call: call.id, reply: Ok(Value::Null) };
            bench.engine.apply_event(bench.now, reply, &mut effects);
        }
        // A node that may help unschedulable pods.
        if nth % 3 == 0 {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": format!("n{nth}")},
                "status": {"allocatable": {"cpu": "1", "memory": "8Gi", "pods": "10"}},
            }))
            .unwrap();
            bench.engine.apply_event(
                bench.now,
                EngineEvent::Upsert(ApiObject::Node(Arc::new(node))),
                &mut effects,
            );
        }
        for effect in effects {
            if let Effect::Observe(Observation::PluginExecutions(timed)) = effect {
                calls.extend(timed);
            }
        }
    }
    let mut counts = BTreeMap::new();
    for PluginExecutionDuration { plugin, extension_point, code, nanos, event } in calls {
        // Steps that wait for the API server are timed by the engine's clock.
        assert!(
            nanos > 0 || matches!(extension_point.name(), "PreBind" | "Bind"),
            "{plugin:?} {extension_point:?}"
        );
        let event = event.map(|event| format!(" of {event}")).unwrap_or_default();
        let line = format!("{} {} {}{event}", plugin.name, extension_point.name(), code.name());
        *counts.entry(line).or_insert(0) += 1;
    }
    counts
}

#[test]
fn plugin_calls_and_hints_are_timed_in_one_of_ten_engine_calls() {
    let lines = timed(ticking).into_iter().map(|(line, n)| format!("{n} {line}"));
    expect![[r#"
        9  Filter Success
        5 DefaultBinder Bind Success
        2 DefaultPreemption PostFilter Unschedulable
        4 DefaultPreemption PreEnqueue Success
        2 DynamicResources PreFilter Skip
        2 InterPodAffinity PreFilter Skip
        5 LabelDriven Bind Skip
        7 LabelDriven Permit Success
        4 LabelDriven PreBindPreFlight Skip
        3 LabelDriven PreBindPreFlight Success
        7 LabelDriven Reserve Success
        2 NodeAffinity PreFilter Skip
        2 NodeDeclaredFeatures PreFilter Skip
        19 NodeName Filter Success
        2 NodePorts PreFilter Skip
        19 NodeResourcesFit Filter UnschedulableAndUnresolvable
        2 NodeResourcesFit PreFilter Success
        19 NodeResourcesFit QueueingHint Skip of NodeAdd
        19 NodeUnschedulable Filter Success
        2 NodeVolumeLimits PreFilter Skip
        2 PodTopologySpread PreFilter Skip
        4 SchedulingGates PreEnqueue Success
        19 TaintToleration Filter Success
        7 VolumeBinding PreBindPreFlight Skip
        9 VolumeBinding PreFilter Skip
        7 VolumeBinding Reserve Success
        2 VolumeRestrictions PreFilter Skip
        2 VolumeZone PreFilter Skip"#]]
    .assert_eq(&lines.collect::<Vec<_>>().join("\n"));
}
