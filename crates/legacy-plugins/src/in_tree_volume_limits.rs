//! What EBSLimits, GCEPDLimits, AzureDiskLimits and CinderLimits have in common: how many volumes of an in-tree volume plugin a node can
//! have (upstream's `plugins/nodevolumelimits/non_csi.go`, 1.25).
//!
//! The volumes that the pods of a node and the incoming pod use are counted, each once: disks that they name themselves, and those of
//! their claims. A claim without a known PersistentVolume counts as a volume of its own if its class is of the in-tree plugin. The limit
//! is the allocatable amount of a resource of the node, such as `attachable-volumes-aws-ebs`, else the number for all nodes that the
//! arguments give, else a default. On nodes where a CSI driver serves the volumes of the in-tree plugin, according to an annotation of
//! their CSINode, they count in NodeVolumeLimits instead.

use std::collections::BTreeSet;
use std::sync::Arc;

use loadmaster_api::storage::CsiNode;
use loadmaster_api::{
    DiskSource, Labels, Node, PersistentVolume, PersistentVolumeClaim, Quantity, StorageClass, Str,
    Volume,
};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::plugin_args::{self, PluginArgs};
use loadmaster_framework::{
    ActionType, ClaimName, ClusterEvent, Cx, EvaluatorCx, EventObject, EventResource,
    ExtensionPoints, Failure, FieldError, Filter, Incremental, NodeInfo, ObjectSlot, PluginError,
    PodInfo, PrepareCx, PrepareResult, QueueingHint, Rejection, World,
};
use loadmaster_plugins::volumes::{self, NotFound, check_is_for_pod};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const REASON: &str = "node(s) exceed max volume count";

/// An in-tree volume plugin whose volumes are limited.
pub(crate) struct InTreeVolumePlugin {
    /// The name of the scheduler's plugin.
    pub name: &'static str,
    /// The name of the volume plugin, which is also the provisioner of its classes.
    pub in_tree_name: &'static str,
    /// The resource of nodes that limits the volumes.
    pub limit_resource: &'static str,
    /// What identifies a disk; `None` for one of another volume plugin.
    pub disk_id: fn(&DiskSource) -> Option<&Str>,
    /// The limit of a node with these labels if nothing else limits its volumes.
    pub default_limit: fn(&Labels) -> i64,
}

/// The arguments of each of these plugins. Upstream has none: it reads the environment variable `KUBE_MAX_PD_VOLS`, which plugins cannot do
/// here; the daemon passes it on.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct LimitArgs {
    /// The limit of nodes that do not have one themselves, instead of the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_volumes: Option<i64>,
}

impl PluginArgs for LimitArgs {
    fn validate(&self) -> Vec<FieldError> {
        let invalid = self.max_volumes.filter(|max| *max <= 0);
        let error = |max| FieldError::invalid("maxVolumes", max, "must be greater than 0");
        invalid.map(error).into_iter().collect()
    }
}

/// Registers the plugin's extension points.
pub(crate) fn build(
    volume_plugin: &'static InTreeVolumePlugin,
    points: &mut ExtensionPoints,
    args: &Value,
) -> Result<(), PluginError> {
    let args: LimitArgs = plugin_args::decode_plugin_args(volume_plugin.name, args)?;
    let (claims, volumes, classes) = volumes::watch_volumes(points);
    let plugin = Arc::new(InTreeVolumeLimits {
        volume_plugin,
        max_volumes: args.max_volumes,
        claims,
        volumes,
        classes,
        csi_nodes: volumes::watch_csi_nodes(points),
    });
    points.filter = Some(plugin.clone());
    points.incremental = Some(plugin);
    register_events(volume_plugin, points);
    Ok(())
}

/// Upstream registers added nodes and deleted pods only; limits that grow and a CSI migration that begins help as well.
fn register_events(volume_plugin: &'static InTreeVolumePlugin, points: &mut ExtensionPoints) {
    let limits = ActionType::ADD | ActionType::UPDATE_NODE_ALLOCATABLE;
    points.register_event(
        ClusterEvent::new(EventResource::Node, limits),
        Some(Arc::new(move |hint_args| after_node_change(volume_plugin, hint_args))),
    );
    points.register_event(
        ClusterEvent::new(EventResource::Pod, ActionType::DELETE),
        Some(Arc::new(move |hint_args| after_pod_deleted(volume_plugin, hint_args))),
    );
    let migrated = ActionType::ADD | ActionType::UPDATE;
    points.register_event(
        ClusterEvent::new(EventResource::CsiNode, migrated),
        Some(Arc::new(move |hint_args| after_csi_node_change(volume_plugin, hint_args))),
    );
}

struct InTreeVolumeLimits {
    volume_plugin: &'static InTreeVolumePlugin,
    max_volumes: Option<i64>,
    claims: ObjectSlot<PersistentVolumeClaim>,
    volumes: ObjectSlot<PersistentVolume>,
    classes: ObjectSlot<StorageClass>,
    csi_nodes: ObjectSlot<CsiNode>,
}

/// A volume that counts. Equal ones count once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CountedVolume {
    /// A disk, by what identifies it.
    Disk(Str),
    /// The unknown volume of a claim.
    OfClaim { namespace: Str, name: Str },
}

/// Whether a claim of the pod must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodState {
    /// The pod cannot run without its claims.
    Incoming,
    /// The claim may have been deleted.
    Assigned,
}

impl Filter for InTreeVolumeLimits {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let mut volumes = self.volumes(cx.world, pod, PodState::Incoming)?;
        if volumes.is_empty() || self.is_migrated(cx.world, node.name()) {
            return Ok(());
        }
        for other in node.pods() {
            volumes.extend(self.volumes(cx.world, other, PodState::Assigned)?);
        }
        if volumes.len() as i64 > self.limit(node) {
            return Err(Rejection::unschedulable(REASON));
        }
        Ok(())
    }
}

impl InTreeVolumeLimits {
    /// The volumes of a pod that count.
    ///
    /// # Errors
    ///
    /// Upstream's text if a claim cannot be used.
    fn volumes(
        &self,
        world: &World,
        pod: &PodInfo,
        state: PodState,
    ) -> Result<BTreeSet<CountedVolume>, Failure> {
        let mut counted = BTreeSet::new();
        for volume in &pod.template.spec.volumes {
            counted.extend(self.volume(world, pod, volume, state)?);
        }
        Ok(counted)
    }

    fn volume(
        &self,
        world: &World,
        pod: &PodInfo,
        volume: &Volume,
        state: PodState,
    ) -> Result<Option<CountedVolume>, Failure> {
        let disk_id = volume.disk.as_deref().and_then(self.volume_plugin.disk_id);
        if let Some(id) = disk_id {
            return Ok(Some(CountedVolume::Disk(id.clone())));
        }
        let Some(ClaimName { name, is_ephemeral }) = pod.claim_name(volume) else {
            return Ok(None);
        };
        if name.is_empty() {
            return Err(Failure::new("PersistentVolumeClaim had no name"));
        }
        let namespace = &pod.template.namespace;
        let claims = world.watched_objects().lister(&self.claims);
        let Some(claim) = claims.get(namespace, &name) else {
            let error = NotFound { resource: "persistentvolumeclaim", name: &name };
            return match state {
                PodState::Incoming => {
                    Err(Failure::new(format!("looking up PVC {namespace}/{name}: {error}")))
                }
                PodState::Assigned => Ok(None),
            };
        };
        if is_ephemeral {
            check_is_for_pod(pod, claim).map_err(Failure::new)?;
        }
        Ok(self.volume_of_claim(world, claim))
    }

    fn volume_of_claim(
        &self,
        world: &World,
        claim: &PersistentVolumeClaim,
    ) -> Option<CountedVolume> {
        let name = &claim.spec.volume_name;
        let volumes = world.watched_objects().lister(&self.volumes);
        if let Some(volume) = volumes.get("", name).filter(|_| !name.is_empty()) {
            let id = volume.spec.disk.as_deref().and_then(self.volume_plugin.disk_id);
            return id.map(|id| CountedVolume::Disk(id.clone()));
        }
        let (namespace, name) = (claim.metadata.namespace.clone(), claim.metadata.name.clone());
        self.is_of_plugin(world, claim).then_some(CountedVolume::OfClaim { namespace, name })
    }

    /// Whether the in-tree plugin provisions the volumes of the claim's class (upstream's `matchProvisioner`, which does not read the
    /// deprecated annotation).
    fn is_of_plugin(&self, world: &World, claim: &PersistentVolumeClaim) -> bool {
        let Some(class) = &claim.spec.storage_class_name else { return false };
        let class = world.watched_objects().lister(&self.classes).get("", class);
        class.is_some_and(|class| class.provisioner == *self.volume_plugin.in_tree_name)
    }

    /// Whether a CSI driver serves the volumes on this node.
    fn is_migrated(&self, world: &World, node: &str) -> bool {
        let csi_node = world.watched_objects().lister(&self.csi_nodes).get("", node);
        csi_node.is_some_and(|csi_node| csi_node.is_migrated(self.volume_plugin.in_tree_name))
    }

    fn limit(&self, node: NodeInfo<'_>) -> i64 {
        limit_in_status(self.volume_plugin, node.node())
            .or(self.max_volumes)
            .unwrap_or_else(|| (self.volume_plugin.default_limit)(node.labels()))
    }
}

fn limit_in_status(volume_plugin: &InTreeVolumePlugin, node: &Node) -> Option<i64> {
    node.status.allocatable.get(volume_plugin.limit_resource).map(Quantity::value)
}

fn after_node_change(
    volume_plugin: &InTreeVolumePlugin,
    hint_args: &QueueingHintArgs<'_>,
) -> Result<QueueingHint, Failure> {
    let (old, new) = hint_args.old_and_new_node()?;
    let limit = |node: &Node| limit_in_status(volume_plugin, node);
    Ok(QueueingHint::queue_if(old.is_none_or(|old| limit(old) != limit(new))))
}

/// A pod that was on a node, or nominated to one, may have used a volume that counted.
fn after_pod_deleted(
    volume_plugin: &InTreeVolumePlugin,
    hint_args: &QueueingHintArgs<'_>,
) -> Result<QueueingHint, Failure> {
    let deleted = hint_args.old_pod()?;
    let had_node = !deleted.node_name.is_empty() || !deleted.nominated_node_name.is_empty();
    let may_count = |volume: &Volume| {
        let is_disk = volume.disk.as_deref().and_then(volume_plugin.disk_id).is_some();
        is_disk || volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    };
    Ok(QueueingHint::queue_if(had_node && deleted.template.spec.volumes.iter().any(may_count)))
}

fn after_csi_node_change(
    volume_plugin: &InTreeVolumePlugin,
    hint_args: &QueueingHintArgs<'_>,
) -> Result<QueueingHint, Failure> {
    let csi_node = hint_args.new.and_then(EventObject::watched_object::<CsiNode>);
    let csi_node = csi_node.ok_or_else(|| Failure::new("expected a CSINode after the event"))?;
    Ok(QueueingHint::queue_if(csi_node.is_migrated(volume_plugin.in_tree_name)))
}

/// Pods without volumes that count share one key and are not filtered; the others are evaluated per node.
impl Incremental for InTreeVolumeLimits {
    type Key = ();

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<()> {
        self.volumes(cx.world, pod, PodState::Incoming).ok()?.is_empty().then_some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Skip
    }
}

#[cfg(test)]
mod tests;
