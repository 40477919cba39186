//! A test plugin that is in every simulated profile, and reports which pods are reserved: the reference model follows it.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::{
    ExtensionPoints, NodeInfo, PluginDef, PluginError, PodInfo, Registry, Rejection, Reserve,
    SerialCx,
};
use serde_json::{Value, json};

use super::plugin_calls::{self, PluginCall};

const NAME: &str = "Reporting";
const REPORTING: PluginDef = PluginDef { name: NAME, build, args: None };

struct ReportingPlugin;

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.reserve = Some(Arc::new(ReportingPlugin));
    points.register_no_events();
    Ok(())
}

/// A registry with the plugin, too.
pub(super) fn with_reporting_plugin(registry: &Registry) -> Registry {
    registry.clone().with(REPORTING)
}

/// Enables the plugin in a profile of a configuration, before others.
pub(super) fn enable(profile: &mut Value) {
    let enabled = &mut profile["plugins"]["multiPoint"]["enabled"];
    let others = enabled.as_array().cloned().unwrap_or_default();
    *enabled = [json!({"name": NAME})].into_iter().chain(others).collect();
}

impl Reserve for ReportingPlugin {
    fn reserve(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        let node = Str::new(node.name());
        plugin_calls::record(PluginCall::Reserved { uid: pod.uid.clone(), node });
        Ok(())
    }

    fn unreserve(&self, _: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        plugin_calls::record(PluginCall::Unreserved { uid: pod.uid.clone() });
    }
}
