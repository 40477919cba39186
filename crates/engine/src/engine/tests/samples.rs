//! Some calls of plugins are timed.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::*;
use crate::guard::Timed;

/// A stopwatch that shows a microsecond more each time.
fn ticking() -> u64 {
    thread_local! {
        static NANOS: Cell<u64> = const { Cell::new(0) };
    }
    NANOS.set(NANOS.get() + 1000);
    NANOS.get()
}

/// The calls that are timed while pods come and go, by plugin, point and code: how many.
fn timed(ticks: fn() -> u64) -> BTreeMap<String, usize> {
    let mut bench = Bench::with(Options { ticks, ..Options::default() });
    bench.node("b", "64");
    let mut calls: Vec<Timed> = Vec::new();
    for nth in 0..60u64 {
        let name = format!("p{nth}");
        let labels = if nth % 2 == 0 { json!({"pre-bind": "call"}) } else { json!({}) };
        let mut effects = Effects::new();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": if nth % 7 == 4 { "100" } else { "100m" }}}}]},
        }))
        .unwrap();
        bench.engine.apply(bench.now, Event::Set(Object::Pod(Box::new(pod))), &mut effects);
        bench.engine.cycle(bench.now, &mut effects);
        while let Some(at) = effects.iter().position(|effect| matches!(effect, Effect::Call(_))) {
            let Effect::Call(call) = effects.remove(at) else { continue };
            bench.now.mono = Mono(bench.now.mono.0 + 5_000);
            let reply = Event::Replied { call: call.id, reply: Ok(Value::Null) };
            bench.engine.apply(bench.now, reply, &mut effects);
        }
        // Room that may help those who wait.
        if nth % 3 == 0 {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": format!("n{nth}")},
                "status": {"allocatable": {"cpu": "1", "memory": "8Gi", "pods": "10"}},
            }))
            .unwrap();
            bench.engine.apply(bench.now, Event::Set(Object::Node(Arc::new(node))), &mut effects);
        }
        for effect in effects {
            if let Effect::Observe(Observation::Timed(timed)) = effect {
                calls.extend(timed);
            }
        }
    }
    let mut counts = BTreeMap::new();
    for Timed { who, site, code, nanos, event } in calls {
        // Steps that wait for the API server are timed by the engine's time.
        assert!(nanos > 0 || matches!(site.name(), "PreBind" | "Bind"), "{who:?} {site:?}");
        let event = event.map(|event| format!(" of {event}")).unwrap_or_default();
        let line = format!("{} {} {}{event}", who.plugin, site.name(), code.name());
        *counts.entry(line).or_insert(0) += 1;
    }
    counts
}

#[test]
fn points_and_hints_are_timed_in_one_turn_of_ten() {
    let lines = timed(ticking).into_iter().map(|(line, n)| format!("{n} {line}"));
    expect![[r#"
        9  Filter Success
        5 DefaultBinder Bind Success
        2 DefaultPreemption PostFilter Unschedulable
        4 DefaultPreemption PreEnqueue Success
        2 DynamicResources PreFilter Skip
        2 InterPodAffinity PreFilter Skip
        2 NodeAffinity PreFilter Skip
        19 NodeName Filter Success
        2 NodePorts PreFilter Skip
        19 NodeResourcesFit Filter UnschedulableAndUnresolvable
        2 NodeResourcesFit PreFilter Success
        19 NodeResourcesFit QueueingHint Skip of NodeAdd
        19 NodeUnschedulable Filter Success
        5 Obedient Bind Skip
        7 Obedient Permit Success
        4 Obedient PreBindPreFlight Skip
        3 Obedient PreBindPreFlight Success
        7 Obedient Reserve Success
        2 PodTopologySpread PreFilter Skip
        4 SchedulingGates PreEnqueue Success
        19 TaintToleration Filter Success
        2 VolumeBinding PreFilter Skip"#]]
    .assert_eq(&lines.collect::<Vec<_>>().join("\n"));
}
