//! A test plugin that reads objects of a kind that it watches, and a value that its author's service publishes.
//!
//! The object NodePool with the name of a node lists the apps that the node accepts; a node without one accepts all. The published value
//! lists closed nodes, which accept no pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, EventResource, ExtensionPoints, Filter, Gvr, NodeInfo,
    ObjectSlot, PluginDef, PluginError, PodInfo, PreFilter, PreFilterResult, PublishedValueSlot,
    Rejection, SerialCx, WatchRequirement,
};
use loadmaster_stdx::CollectByInsertion as _;
use serde::Deserialize;
use serde_json::Value;

use super::plugin_calls::{self, PluginCall};
use crate::fake_api_server::WatchedKind;

pub(super) const NAME: &str = "Watching";
pub(super) const WATCHING: PluginDef = PluginDef { name: NAME, build, args: None };

#[derive(Clone, Debug, Deserialize)]
pub(super) struct NodePool {
    /// Values of the label `app`.
    pub accepts: Vec<Str>,
}

#[derive(Deserialize)]
pub(super) struct ClosedNodes {
    pub closed: Vec<Str>,
}

struct WatchingPlugin {
    pools: ObjectSlot<NodePool>,
    closed: PublishedValueSlot<ClosedNodes>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let (group, resource) = WatchedKind::NodePool.group_resource();
    let kind = Gvr::new(group, "v1", resource);
    let plugin = Arc::new(WatchingPlugin {
        pools: points.watch(kind.clone(), WatchRequirement::Optional),
        closed: points.published_value_slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin);
    let all = ActionType::ADD | ActionType::UPDATE | ActionType::DELETE;
    points.register_event(ClusterEvent::new(kind.event_resource(), all), None);
    points.register_event(ClusterEvent::new(EventResource::Node, ActionType::ADD), None);
    let labels = ActionType::UPDATE_POD_LABEL;
    points.register_event(ClusterEvent::new(EventResource::UnschedulablePod, labels), None);
    points.register_event(ClusterEvent::published_to_plugin(NAME), None);
    Ok(())
}

impl PreFilter for WatchingPlugin {
    fn pre_filter(&self, cx: SerialCx<'_>, _: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let pools = cx.objects(&self.pools);
        let pools: BTreeMap<Str, Vec<Str>> = pools
            .iter()
            .map(|(info, pool)| (info.name.clone(), pool.accepts.clone()))
            .collect_by_insertion();
        let closed = cx.published_value(self.closed).map(|value| value.closed.clone());
        plugin_calls::record(PluginCall::Saw { pools, closed });
        Ok(PreFilterResult::All)
    }
}

impl Filter for WatchingPlugin {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let is_closed = |value: &ClosedNodes| value.closed.iter().any(|it| *it == node.name());
        if cx.published_value(self.closed).is_some_and(is_closed) {
            return Err(Rejection::unschedulable("the node is closed"));
        }
        let app = pod.template.labels.get("app");
        let accepts = |pool: &NodePool| app.is_some_and(|app| pool.accepts.contains(app));
        match cx.objects(&self.pools).get("", node.name()) {
            Some(pool) if !accepts(pool) => {
                Err(Rejection::unresolvable("the node's pool does not accept the app"))
            }
            _ => Ok(()),
        }
    }
}
