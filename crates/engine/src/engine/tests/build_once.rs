//! A plugin is built once for each profile that enables it, from reading the configuration to a running engine.

use std::cell::Cell;

use loadmaster_framework::PluginStateSlot;

use super::*;

thread_local! {
    static N_BUILT: Cell<u32> = const { Cell::new(0) };
}

/// Counts the pods that it reserved.
struct Counted {
    n_reserved: PluginStateSlot<u32>,
}

const COUNTED: PluginDef = PluginDef { name: "Counted", build: build_counted, args: None };

fn build_counted(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    N_BUILT.set(N_BUILT.get() + 1);
    points.reserve = Some(Arc::new(Counted { n_reserved: points.plugin_state_slot(0) }));
    points.register_no_events();
    Ok(())
}

impl Reserve for Counted {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        *cx.states.get_mut(self.n_reserved).unwrap() += 1;
        Ok(())
    }
    fn unreserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {}
}

#[test]
fn build_runs_once_per_profile() {
    let registry = loadmaster_plugins::in_tree_registry().with(COUNTED);
    let profile = |name: &str, plugin: &str| json!({"schedulerName": name, "plugins": {"multiPoint": {"enabled": [{"name": plugin}]}}});
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            profile("one", "Counted"),
            profile("two", "Counted"),
            profile("three", "NodeName"),
        ],
    });
    let gates = AllFeatureGates::default();
    let checked = check_configuration_value(config, &registry, &gates).unwrap();
    let gates = gates.framework_gates();
    let engine = || {
        let profiles = checked.profiles.iter().map(|it| Arc::new(Profile::new(it, &gates)));
        Engine::new(profiles.collect(), gates.clone(), EngineOptions::default())
    };
    let mut bench = Bench::new();
    bench.engine = engine();
    bench.node("a", "4");
    for (pod, scheduler) in [("p1", "one"), ("p2", "one"), ("p3", "two")] {
        bench.set_pod(pod, json!({}), json!({"schedulerName": scheduler}), json!({}));
        bench.cycle();
    }
    assert_eq!(N_BUILT.get(), 2, "for profiles one and two");
    let n_reserved = |engine: &Engine, at: usize| {
        plugin_state::<u32>(engine.profiles[at].scheduler.plugin_states()).copied()
    };
    assert_eq!([0, 1].map(|at| n_reserved(&bench.engine, at)), [Some(2), Some(1)]);
    // Another engine shares the plugins, but not their state.
    assert_eq!((n_reserved(&engine(), 0), N_BUILT.get()), (Some(0), 2));
}
