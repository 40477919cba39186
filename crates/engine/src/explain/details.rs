//! Details that plugins add to an explanation.

use loadmaster_framework::{Cx, Detail, DetailValue, NodeInfo, PodInfo};

use super::CowName;
use crate::guard::ExtensionPoint;
use crate::profile::{Profile, ProfilePlugin};

/// The details of one plugin, by name.
pub type DetailsByName = Vec<(CowName, DetailValue)>;

/// The details of the plugins that gave any, in the order of plugins.
pub type DetailsByPlugin = Vec<(CowName, DetailsByName)>;

/// The plugins' details about the pod.
pub(super) fn of_pod(profile: &Profile, cx: Cx<'_>, pod: &PodInfo) -> DetailsByPlugin {
    collect(profile, |plugin| plugin.explain.as_ref().map(|point| point.pod_details(cx, pod)))
}

/// The plugins' details about a node.
pub(super) fn of_node(
    profile: &Profile,
    cx: Cx<'_>,
    pod: &PodInfo,
    node: NodeInfo<'_>,
) -> DetailsByPlugin {
    collect(profile, |plugin| {
        plugin.explain.as_ref().map(|point| point.node_details(cx, pod, node))
    })
}

fn collect(
    profile: &Profile,
    details: impl Fn(&ProfilePlugin) -> Option<Vec<Detail>>,
) -> DetailsByPlugin {
    let each = profile.plugins.iter().filter_map(|plugin| {
        let plugin_ref = profile.plugin_ref(plugin.name);
        // The details of a plugin that panics are left out.
        let found = plugin_ref.call(ExtensionPoint::Explain, || details(plugin)).ok()??;
        let named = found.into_iter().map(|Detail { name, value }| (name.into(), value));
        let named: DetailsByName = named.collect();
        (!named.is_empty()).then(|| (plugin.name.into(), named))
    });
    each.collect()
}
