//! Events of pods and nodes on the bench.

use std::sync::Arc;

use loadmaster_api::Node;

use crate::extension_points::{NodeChange, PodChange, SerialCx};
use crate::pod_info::PodInfo;
use crate::state::{CycleState, PluginStateSlot};
use crate::waiting_pods::PluginAction;

use super::PluginTestBench;

impl PluginTestBench {
    /// Deletes a pod that was added to the bench, if it exists, and calls the plugin's [`PodEventHandler`](crate::PodEventHandler).
    pub fn delete_pod(&mut self, uid: &str) {
        self.world.delete_pending_pod(uid);
        self.world.remove_pod(uid);
        if let Some(old) = self.pods.remove(uid) {
            self.on_pod_change(Some(old), None);
        }
    }

    /// Deletes a node, if it exists, and calls the plugin's [`NodeEventHandler`](crate::NodeEventHandler).
    pub fn delete_node(&mut self, name: &str) {
        let row = self.world.nodes().row(name);
        let Some(old) = row.and_then(|row| self.world.nodes().node(row)).cloned() else { return };
        self.world.remove_node(name);
        self.on_node_change(Some(old), None);
    }

    /// The plugin's state across cycles, for a slot that the test keeps or the plugin makes public.
    pub fn state<T: 'static>(&self, slot: PluginStateSlot<T>) -> Option<&T> {
        self.states.get(slot)
    }

    /// Invalidates keys and evaluators as the plugin requested, as the engine does after each step. Other actions have no effect here.
    pub(super) fn apply_invalidations(&mut self) {
        for action in self.states.take_requested_actions() {
            match action {
                PluginAction::InvalidateKeys(namespace) => self.world.invalidate_keys(&namespace),
                PluginAction::InvalidateNode(name) => {
                    if let Some(row) = self.world.nodes().row(&name) {
                        self.world.invalidate_node(row);
                    }
                }
                PluginAction::InvalidateEvaluators { .. } => self.world.invalidate_evaluators(),
                _ => {}
            }
        }
    }

    pub(super) fn on_pod_change(&mut self, old: Option<Arc<PodInfo>>, new: Option<Arc<PodInfo>>) {
        let Some(point) = &self.points.pod_event_handler else { return };
        let (cycle, states) = (&mut CycleState::default(), &mut self.states);
        let cx = SerialCx { world: &self.world, cycle, states };
        point.on_pod_change(cx, &PodChange { old, new });
        self.apply_invalidations();
    }

    pub(super) fn on_node_change(&mut self, old: Option<Arc<Node>>, new: Option<Arc<Node>>) {
        if old == new {
            return;
        }
        let Some(point) = &self.points.node_event_handler else { return };
        let (cycle, states) = (&mut CycleState::default(), &mut self.states);
        let cx = SerialCx { world: &self.world, cycle, states };
        point.on_node_change(cx, &NodeChange { old, new });
        self.apply_invalidations();
    }
}
