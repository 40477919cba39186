//! Details that plugins add to an explanation.

use loadmaster_framework::{Cx, Detail, DetailValue, Explain, NodeInfo, PodInfo};

use super::CowName;
use crate::guard::ExtensionPoint;
use crate::profile::{Profile, ProfilePlugin};

/// The details of one plugin, by name.
pub type DetailsByName = Vec<(CowName, DetailValue)>;

/// The details of the plugins that gave any, in the order of plugins.
pub type DetailsByPlugin = Vec<(CowName, DetailsByName)>;

/// The plugins' details about the pod.
pub(super) fn of_pod(profile: &Profile, cx: Cx<'_>, pod: &PodInfo) -> DetailsByPlugin {
    let plugins = profile.plugins.iter();
    let each = plugins
        .filter_map(|plugin| named(plugin, call(profile, plugin, |it| it.pod_details(cx, pod))?));
    each.collect()
}

/// The plugins' details about these nodes, in their order.
pub(super) fn of_nodes(
    profile: &Profile,
    cx: Cx<'_>,
    pod: &PodInfo,
    nodes: &[NodeInfo<'_>],
) -> Vec<DetailsByPlugin> {
    let mut all = vec![DetailsByPlugin::new(); nodes.len()];
    for plugin in &profile.plugins {
        let Some(found) = call(profile, plugin, |it| it.details_of_nodes(cx, pod, nodes)) else {
            continue;
        };
        for (of_node, details) in all.iter_mut().zip(found) {
            of_node.extend(named(plugin, details));
        }
    }
    all
}

/// `None` if the plugin gives no details. The details of a plugin that panics are left out.
fn call<T>(
    profile: &Profile,
    plugin: &ProfilePlugin,
    details: impl FnOnce(&dyn Explain) -> T,
) -> Option<T> {
    let point = plugin.explain.as_deref()?;
    profile.plugin_ref(plugin.name).call(ExtensionPoint::Explain, || details(point)).ok()
}

/// The details of a plugin with its name, if there are any.
fn named(plugin: &ProfilePlugin, details: Vec<Detail>) -> Option<(CowName, DetailsByName)> {
    let named = details.into_iter().map(|Detail { name, value }| (name.into(), value));
    let named: DetailsByName = named.collect();
    (!named.is_empty()).then(|| (plugin.name.into(), named))
}
