//! A plugin whose state comes from everything that a plugin may read, and which decides by it: a replay that missed or reordered one
//! input would make other decisions.

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster_framework::PrepareCx;
use loadmaster_framework::incremental::{Incremental, PrepareResult};
use loadmaster_framework::{
    Cx, EvaluatorCx, ExtensionPoints, Filter, NodeChange, NodeEventHandler, NodeInfo,
    NodeStateSlot, PluginDef, PluginError, PluginStateSlot, PodChange, PodEventHandler, PodIndex,
    PodIndexKey, PodInfo, QueueSort, QueuedPodInfo, Rejection, Reserve, SerialCx,
};
use serde_json::Value;

pub const STATEFUL: PluginDef = PluginDef { name: "Stateful", build, args: None };

struct Stateful {
    state: PluginStateSlot<State>,
    found: NodeStateSlot<u64>,
    apps: PodIndex,
}

#[derive(Clone, Default)]
struct State {
    n_pod_events: u64,
    n_node_events: u64,
    sum: u64,
}

impl State {
    fn is_reversed(&self) -> bool {
        self.n_pod_events / 8 % 2 == 1
    }
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Stateful {
        state: points.plugin_state_slot(State::default()),
        found: points.node_state_slot(),
        apps: points.pod_index(PodIndexKey::Label("app".into())),
    });
    points.queue_sort = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.pod_event_handler = Some(plugin.clone());
    points.node_event_handler = Some(plugin.clone());
    points.incremental = Some(plugin);
    Ok(())
}

impl PodEventHandler for Stateful {
    fn on_pod_change(&self, mut cx: SerialCx<'_>, _: &PodChange) {
        let Some(state) = cx.states.get_mut(self.state) else { return };
        let before = state.is_reversed();
        state.n_pod_events += 1;
        if state.is_reversed() != before {
            cx.sort_queue();
        }
    }
}

impl NodeEventHandler for Stateful {
    fn on_node_change(&self, cx: SerialCx<'_>, _: &NodeChange) {
        let Some(state) = cx.states.get_mut(self.state) else { return };
        state.n_node_events += 1;
    }
}

impl QueueSort for Stateful {
    fn compare(&self, cx: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let key = |queued: &QueuedPodInfo| (queued.pod.template.priority(), queued.initial_attempt);
        let order = key(b).cmp(&key(a));
        if cx.states.get(self.state).is_some_and(State::is_reversed) {
            order.reverse()
        } else {
            order
        }
    }
}

impl Filter for Stateful {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let siblings = cx.sibling_pods(&self.apps, pod);
        let n_siblings = (siblings.n_pending() + 2 * siblings.n_assigned()) as u64;
        let seconds = cx.now().mono.0 / 1_000_000_000;
        cx.cycle.set_for_node(self.found, node.row(), seconds + n_siblings);
        Ok(())
    }
}

/// Filter rejects no node.
impl Incremental for Stateful {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Skip
    }
}

impl Reserve for Stateful {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        let Some(found) = cx.cycle.get_for_selected_node(self.found).copied() else {
            return Err(Rejection::unresolvable("Filter has not run on the selected node"));
        };
        let Some(state) = cx.states.get_mut(self.state) else { return Ok(()) };
        state.sum += found + state.n_pod_events + 3 * state.n_node_events;
        if state.sum.is_multiple_of(7) {
            return Err(Rejection::unschedulable(format!("the sum is {}", state.sum)));
        }
        Ok(())
    }

    fn unreserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {}
}
