//! The events that may make pods schedulable that the plugin rejected, and their hints.

use std::sync::Arc;

use loadmaster_api::disk_source::DiskSource;
use loadmaster_api::storage::MIGRATED_PLUGINS;
use loadmaster_api::{CsiDriver, CsiNode, CsiStorageCapacity, PersistentVolumeClaim, StorageClass};
use loadmaster_framework::cluster_event::{QueueingHint, QueueingHintArgs};
use loadmaster_framework::{
    ActionType, ClusterEvent, EventObject, EventResource, ExtensionPoints, Failure,
};

use crate::volumes::uses_claim;

type HintResult = Result<QueueingHint, Failure>;

pub(super) fn register_events(points: &mut ExtensionPoints) {
    let add_or_update = ActionType::ADD | ActionType::UPDATE;
    let hint = |hint: fn(&QueueingHintArgs<'_>) -> HintResult| -> Option<_> {
        Some(Arc::new(hint) as loadmaster_framework::QueueingHintFn)
    };
    let node = ActionType::ADD | ActionType::UPDATE_NODE_LABEL;
    for (resource, action, hint) in [
        (EventResource::StorageClass, add_or_update, hint(after_storage_class_change)),
        (EventResource::PersistentVolumeClaim, add_or_update, hint(after_claim_change)),
        (EventResource::PersistentVolume, add_or_update, None),
        (EventResource::Node, node, None),
        (EventResource::CsiNode, add_or_update, hint(after_csi_node_change)),
        (EventResource::CsiDriver, ActionType::UPDATE, hint(after_csi_driver_change)),
        (EventResource::CsiStorageCapacity, add_or_update, hint(after_capacity_change)),
    ] {
        points.register_event(ClusterEvent::new(resource, action), hint);
    }
}

/// The object before the event, if it was not added, and after it.
fn old_and_new<'a, T: 'static>(
    args: &QueueingHintArgs<'a>,
) -> Result<(Option<&'a T>, &'a T), Failure> {
    let read = |object: EventObject<'a>| object.watched_object::<T>();
    let new = args.new.and_then(read);
    let new =
        new.ok_or_else(|| Failure::new("expected an object of another kind after the event"))?;
    Ok((args.old.and_then(read), new))
}

/// A new class, or other allowed topologies.
fn after_storage_class_change(args: &QueueingHintArgs<'_>) -> HintResult {
    let (old, new) = old_and_new::<StorageClass>(args)?;
    Ok(QueueingHint::queue_if(
        old.is_none_or(|old| old.allowed_topologies != new.allowed_topologies),
    ))
}

/// Any change of a claim that the pod uses.
fn after_claim_change(args: &QueueingHintArgs<'_>) -> HintResult {
    let (_, new) = old_and_new::<PersistentVolumeClaim>(args)?;
    Ok(QueueingHint::queue_if(uses_claim(args.pod, new)))
}

/// A new CSINode, or other migrated plugins.
fn after_csi_node_change(args: &QueueingHintArgs<'_>) -> HintResult {
    let (old, new) = old_and_new::<CsiNode>(args)?;
    let migrated = |node: &CsiNode| {
        node.metadata.annotations.get(MIGRATED_PLUGINS).cloned().unwrap_or_default()
    };
    Ok(QueueingHint::queue_if(old.is_none_or(|old| migrated(old) != migrated(new))))
}

/// The capacity of a driver that the pod names is no longer tracked.
fn after_csi_driver_change(args: &QueueingHintArgs<'_>) -> HintResult {
    let (old, new) = old_and_new::<CsiDriver>(args)?;
    let stops_tracking =
        old.is_some_and(|old| old.spec.storage_capacity) && !new.spec.storage_capacity;
    let is_named = args.pod.template.spec.volumes.iter().any(|volume| {
        matches!(volume.disk.as_deref(), Some(DiskSource::Csi(csi)) if csi.driver == new.metadata.name)
    });
    Ok(QueueingHint::queue_if(stops_tracking && is_named))
}

/// New capacity, or room for larger volumes.
fn after_capacity_change(args: &QueueingHintArgs<'_>) -> HintResult {
    let (old, new) = old_and_new::<CsiStorageCapacity>(args)?;
    let Some(old) = old else { return Ok(QueueingHint::Queue) };
    let limit = |capacity: &CsiStorageCapacity| capacity.volume_limit().map(|it| it.value());
    Ok(QueueingHint::queue_if(limit(new).is_some_and(|new| limit(old).is_none_or(|old| new > old))))
}
