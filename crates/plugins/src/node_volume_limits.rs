//! NodeVolumeLimits: a node has at most as many volumes of a CSI driver as its CSINode says can be attached.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, Sign |
//! | woken by | CSINode added or a limit in it increased, pod with such volumes deleted, claim of the pod added, VolumeAttachment deleted |
//! | upstream | `plugins/nodevolumelimits`, 1.36 |
//! | deviations | of several missing drivers, the first one is named; upstream names a random one (gate VolumeLimitScaling) |
//! | cost | O(volumes of the pods on the node) per node |
//!
//! A volume counts once per node, however many pods use it. In-tree volumes count as those of the CSI driver that serves them. A claim
//! that is not bound yet counts as a new volume of the driver of its class. VolumeAttachments count, too, if no pod on the node uses
//! their volume: the volume of a pod that was deleted stays attached for a while.
//!
//! Pods share evaluations if their volumes are not attached to any node, which is usual: then only the number of volumes per driver
//! matters. While assigned pods name disks themselves or have ephemeral volumes, pods with claims are evaluated per node, because
//! such volumes can fail to be counted, which fails the attempt.

mod attached;
mod explain;
mod hints;
mod index;
mod pod_volumes;

use std::sync::Arc;

use loadmaster_api::storage::{CsiDriver, CsiNode, VolumeAttachment};
use loadmaster_api::{PersistentVolume, PersistentVolumeClaim, SharedPodSpec, StorageClass};
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{ResultDependencies, RowDependency};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, CycleStateSlot, EvaluatorCx, EventResource,
    ExtensionPoints, Filter, Incremental, NodeInfo, NodeRow, ObjectSlot, PluginDef, PluginError,
    PluginEvaluator, PluginStateSlot, PluginStates, PodInfo, PreFilter, PreFilterResult, PrepareCx,
    PrepareResult, Rejection, SerialCx, Sign, WatchRequirement, World,
};
use serde_json::Value;

use crate::DeclaredReasons;
use crate::volumes::{self, StorageKind};
use index::VolumeIndex;
use pod_volumes::{CountedVolume, PodVolume, VolumeError};

pub const NAME: &str = "NodeVolumeLimits";

const REASON: &str = "node(s) exceed max volume count";

/// The reasons with which this plugin rejects nodes. A claim that does not exist is rejected by VolumeRestrictions before.
pub(crate) const REASONS: DeclaredReasons = &[(Code::Unschedulable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

/// The objects that the plugin reads; shared by the plugin and its evaluators.
#[derive(Clone)]
struct Slots {
    claims: ObjectSlot<PersistentVolumeClaim>,
    volumes: ObjectSlot<PersistentVolume>,
    classes: ObjectSlot<StorageClass>,
    csi_nodes: ObjectSlot<CsiNode>,
    attachments: ObjectSlot<VolumeAttachment>,
    /// With the gate VolumeLimitScaling.
    drivers: Option<ObjectSlot<CsiDriver>>,
    index: PluginStateSlot<Arc<VolumeIndex>>,
}

struct NodeVolumeLimits {
    slots: Slots,
    /// The volumes of the pod to schedule.
    state: CycleStateSlot<Arc<[PodVolume]>>,
}

/// What the plugin reads in one call.
#[derive(Clone, Copy)]
struct View<'a> {
    slots: &'a Slots,
    world: &'a World,
    states: &'a PluginStates,
}

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let required = WatchRequirement::Required;
    let scales = points.gates.volume_limit_scaling;
    let (claims, volumes, classes) = volumes::watch_volumes(points);
    let slots = Slots {
        claims,
        volumes,
        classes,
        csi_nodes: volumes::watch_csi_nodes(points),
        // Roles of older versions do not have it, which did not read it either: only volumes of pods count then.
        attachments: points.watch_per_node(
            StorageKind::VolumeAttachment.gvr(),
            WatchRequirement::Optional,
            |attachment: &VolumeAttachment| vec![attachment.spec.node_name.clone()],
        ),
        drivers: scales.then(|| points.watch(StorageKind::CsiDriver.gvr(), required)),
        index: points.plugin_state_slot(Arc::new(VolumeIndex::default())),
    };
    let plugin = Arc::new(NodeVolumeLimits { slots, state: points.cycle_state_slot() });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.object_event_handler = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin);
    register_events(points);
    Ok(())
}

fn register_events(points: &mut ExtensionPoints) {
    let mut register = |resource, action, hint| {
        points.register_event(ClusterEvent::new(resource, action), hint);
    };
    register(EventResource::CsiNode, ActionType::ADD, None);
    register(
        EventResource::CsiNode,
        ActionType::UPDATE,
        Some(Arc::new(hints::after_csi_node_updated)),
    );
    register(EventResource::Pod, ActionType::DELETE, Some(Arc::new(hints::after_pod_deleted)));
    register(
        EventResource::PersistentVolumeClaim,
        ActionType::ADD,
        Some(Arc::new(hints::after_claim_added)),
    );
    register(
        EventResource::VolumeAttachment,
        ActionType::DELETE,
        Some(Arc::new(hints::after_attachment_deleted)),
    );
}

impl PreFilter for NodeVolumeLimits {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        if !pod_volumes::has_any(pod) {
            return Ok(PreFilterResult::Skip);
        }
        let volumes = View { slots: &self.slots, world: cx.world, states: cx.states }.volumes(pod);
        cx.cycle.set(self.state, volumes);
        Ok(PreFilterResult::All)
    }
}

impl Filter for NodeVolumeLimits {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let view = View { slots: &self.slots, world: cx.world, states: cx.states };
        let volumes = cx.cycle.get(self.state).cloned();
        let volumes = volumes.unwrap_or_else(|| view.volumes(pod));
        let has_csi_node = view.csi_node(node.name()).is_some();
        let mut new = Vec::new();
        for volume in &*volumes {
            match volume {
                Ok(volume) => new.extend(Some(volume.clone())),
                // Without a CSINode nothing is translated.
                Err(VolumeError::Translation(_)) if !has_csi_node => {}
                Err(error) => return Err(error.rejection(pod)),
            }
        }
        view.check_node(node.name(), node.pods(), &new)
    }
}

impl Sign for NodeVolumeLimits {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        Ok(vec![volumes::volumes_fragment(pod)])
    }
}

impl Incremental for NodeVolumeLimits {
    /// The volumes of the pod, sorted; those that cannot be attached to a node yet have no handle.
    type Key = Box<[CountedVolume]>;

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Self::Key> {
        let view = View { slots: &self.slots, world: cx.world, states: cx.states };
        if pod_volumes::has_any(pod) && cx.world.n_volumes_outside_claims() > 0 {
            return None;
        }
        view.volume_key(pod)
    }

    fn key_is_of_spec(&self, spec: &SharedPodSpec) -> bool {
        spec.volumes.is_empty()
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, _cx: &mut PrepareCx<'_>, volumes: &Self::Key) -> PrepareResult {
        if volumes.is_empty() {
            return PrepareResult::Skip;
        }
        let (slots, volumes) = (self.slots.clone(), volumes.clone());
        PrepareResult::Evaluator(Box::new(LimitEvaluator { slots, volumes }))
    }
}

struct LimitEvaluator {
    slots: Slots,
    volumes: Box<[CountedVolume]>,
}

impl PluginEvaluator for LimitEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { filter: Some(RowDependency::Pods), ..ResultDependencies::default() }
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let view = View { slots: &self.slots, world: cx.world, states: cx.states };
        let Some(node) = cx.world.node(row) else { return false };
        view.check_node(node.name(), node.pods(), &self.volumes).is_ok()
    }
}

#[cfg(test)]
mod tests;
