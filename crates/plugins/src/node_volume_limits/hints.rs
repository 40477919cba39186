//! Queueing hints.

use loadmaster_api::PersistentVolumeClaim;
use loadmaster_api::storage::{CsiNode, CsiNodeDriver, VolumeAttachment};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::{EventObject, Failure, QueueingHint};

use super::pod_volumes::may_count;
use crate::{csi_migration, volumes};

/// The limit of a driver increased; an absent limit counts as 0.
pub(super) fn after_csi_node_updated(
    hint_args: &QueueingHintArgs<'_>,
) -> Result<QueueingHint, Failure> {
    let old = hint_args.old.and_then(EventObject::watched_object::<CsiNode>);
    let new = hint_args.new.and_then(EventObject::watched_object::<CsiNode>);
    let (Some(old), Some(new)) = (old, new) else {
        return Err(Failure::new("expected a CSINode before and after the event"));
    };
    let count = |driver: &CsiNodeDriver| driver.allocatable.count.unwrap_or(0);
    Ok(QueueingHint::queue_if(new.spec.drivers.iter().any(|driver| {
        let known = old.spec.drivers.iter().rev().find(|old| old.name == driver.name);
        count(driver) > known.map_or(0, count)
    })))
}

pub(super) fn after_pod_deleted(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let deleted = hint_args.old_pod()?;
    let had_node = !deleted.node_name.is_empty() || !deleted.nominated_node_name.is_empty();
    Ok(QueueingHint::queue_if(had_node && deleted.template.spec.volumes.iter().any(may_count)))
}

pub(super) fn after_claim_added(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let added = hint_args.new.and_then(EventObject::watched_object::<PersistentVolumeClaim>);
    let added = added.ok_or_else(|| Failure::new("expected a claim after the event"))?;
    Ok(QueueingHint::queue_if(volumes::uses_claim(hint_args.pod, added)))
}

pub(super) fn after_attachment_deleted(
    hint_args: &QueueingHintArgs<'_>,
) -> Result<QueueingHint, Failure> {
    let deleted = hint_args.old.and_then(EventObject::watched_object::<VolumeAttachment>);
    let deleted = deleted.ok_or_else(|| Failure::new("expected an attachment before the event"))?;
    for volume in &hint_args.pod.template.spec.volumes {
        if volume.persistent_volume_claim.is_some() {
            return Ok(QueueingHint::Queue);
        }
        let Some(disk) = volume.disk.as_deref() else { continue };
        csi_migration::csi_volume(disk, None).map_err(|why| {
            Failure::new(format!("converting volume({}) from inline to csi: {why}", volume.name))
        })?;
        let driver =
            csi_migration::in_tree_plugin(disk).and_then(csi_migration::driver_of_in_tree_plugin);
        if driver.is_some_and(|driver| deleted.spec.attacher == *driver) {
            return Ok(QueueingHint::Queue);
        }
    }
    Ok(QueueingHint::Skip)
}
