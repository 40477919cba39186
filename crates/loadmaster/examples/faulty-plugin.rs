//! For `cargo xtask e2e observing`: a scheduler with a plugin that panics at pods whose name begins with `panic`, does not finish with pods
//! whose name begins with `stuck`, and watches a kind that it may not read, so that its metrics have the series of these faults.

use std::sync::Arc;

use loadmaster::SchedulerCommand;
use loadmaster::framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster::framework::extension_points::PreBindPreFlight;
use loadmaster::framework::*;
use loadmaster::serde_json::Value;

const DEF: PluginDef = PluginDef { name: "Faulty", build, args: None };

struct Faulty {
    /// Watched, but not read.
    _quotas: ObjectSlot<Value>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let kind = Gvr::new("example.com", "v1", "quotas");
    let plugin = Arc::new(Faulty { _quotas: points.watch(kind, WatchRequirement::Optional) });
    points.pre_filter = Some(plugin.clone());
    points.pre_bind = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl PreFilter for Faulty {
    #[expect(clippy::panic, reason = "this is what the plugin is for")]
    fn pre_filter(&self, _: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        if pod.name.starts_with("panic") {
            panic!("the pod is called {}", pod.name);
        }
        Ok(PreFilterResult::Skip)
    }
}

impl PreBind for Faulty {
    fn pre_flight(&self, _: Cx<'_>, pod: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        let work = PreBindPreFlight::Work { parallel: true };
        Ok(if pod.name.starts_with("stuck") { work } else { PreBindPreFlight::Skip })
    }

    fn pre_bind(
        &self,
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        match input {
            PluginStepInput::Cancelled => PluginStep::Done(()),
            _ => PluginStep::Wait { on: Vec::new(), until: MonoTime(u64::MAX) },
        }
    }
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new().with_plugin(DEF).run()
}
