//! A test plugin whose state counts pods, nodes and reservations, so that a state that was lost, doubled or mixed up is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::{
    ExtensionPoints, NodeChange, NodeEventHandler, NodeInfo, PluginDef, PluginError,
    PluginStateSlot, PodChange, PodEventHandler, PodInfo, PostBind, Rejection, Reserve, SerialCx,
};
use serde_json::Value;

use crate::simulate::plugin_calls::{self, PluginCall};

pub(super) const NAME: &str = "Counting";
pub(super) const COUNTING: PluginDef = PluginDef { name: NAME, build, args: None };

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The pods that the plugin was told of, by uid, with their nodes.
    pub pods: BTreeMap<Box<str>, Str>,
    pub nodes: BTreeSet<Str>,
    /// Pods between Reserve and Unreserve or PostBind.
    pub reserved: BTreeSet<Box<str>>,
}

struct CountingPlugin {
    counts: PluginStateSlot<Counts>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(CountingPlugin { counts: points.plugin_state_slot(Counts::default()) });
    points.reserve = Some(plugin.clone());
    points.post_bind = Some(plugin.clone());
    points.pod_event_handler = Some(plugin.clone());
    points.node_event_handler = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl CountingPlugin {
    fn change(&self, cx: SerialCx<'_>, change: impl FnOnce(&mut Counts)) {
        if let Some(counts) = cx.states.get_mut(self.counts) {
            change(counts);
        }
    }
}

impl Reserve for CountingPlugin {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        self.change(cx, |counts| {
            counts.reserved.insert(pod.uid.clone());
        });
        Ok(())
    }

    fn unreserve(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        self.change(cx, |counts| {
            counts.reserved.remove(&pod.uid);
        });
    }
}

impl PostBind for CountingPlugin {
    fn post_bind(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        self.change(cx, |counts| {
            counts.reserved.remove(&pod.uid);
        });
        plugin_calls::record(PluginCall::Bound { uid: pod.uid.clone() });
    }
}

impl PodEventHandler for CountingPlugin {
    fn on_pod_change(&self, cx: SerialCx<'_>, change: &PodChange) {
        self.change(cx, |counts| {
            if let Some(old) = &change.old {
                counts.pods.remove(&old.uid);
            }
            if let Some(new) = &change.new {
                counts.pods.insert(new.uid.clone(), new.node_name.clone());
            }
        });
    }
}

impl NodeEventHandler for CountingPlugin {
    fn on_node_change(&self, cx: SerialCx<'_>, change: &NodeChange) {
        self.change(cx, |counts| {
            if let Some(old) = &change.old {
                counts.nodes.remove(old.name());
            }
            if let Some(new) = &change.new {
                counts.nodes.insert(Str::new(new.name()));
            }
        });
    }
}
