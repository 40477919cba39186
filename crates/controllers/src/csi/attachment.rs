//! Attaches the volumes of pods to their nodes.
//!
//! | | |
//! | --- | --- |
//! | writes | VolumeAttachments |
//! | upstream | `pkg/controller/volume/attachdetach`, 1.36; external-attacher |
//! | deviations | immediate, without waiting for a volume to be unmounted or detached from another node; pods start without waiting for it |

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::result_builder::{ReconcileResultBuilder, fnv64};
use crate::storage_objects::{claim_name, volume_name, volumes_of};
use crate::workload::is_terminal;

/// A pod whose node was not chosen by the scheduler may have claims that are not bound yet: they are looked at again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// The controller of VolumeAttachments. A key is a node.
#[derive(Debug, Default)]
pub(crate) struct VolumeAttachmentController;

impl Controller for VolumeAttachmentController {
    fn name(&self) -> &'static str {
        "attachdetach-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[
            Kind::Node,
            Kind::Pod,
            Kind::PersistentVolumeClaim,
            Kind::PersistentVolume,
            Kind::CSIDriver,
            Kind::VolumeAttachment,
        ]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
        let key = |name: &str| Key::new(Kind::Node, "", name);
        match change.new_or_old().map(|object| object.kind()) {
            Some(Kind::Node) => {
                let is_new = change.old.is_none() || change.new.is_none();
                let node = change.new_or_old().filter(|_| is_new);
                node.into_iter().map(|node| node.key()).collect()
            }
            Some(Kind::Pod) => {
                let pods = [change.old::<Pod>(), change.new::<Pod>()].into_iter().flatten();
                let with_claims =
                    pods.filter(|pod| volumes_of(pod).any(|it| claim_name(pod, it).is_some()));
                let node = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
                let nodes = with_claims.filter_map(node).filter(|name| !name.is_empty());
                nodes.map(|name| key(&name)).collect()
            }
            Some(Kind::VolumeAttachment) => {
                let attachment = change.new_or_old_typed::<VolumeAttachment>();
                attachment.into_iter().map(|it| key(&it.spec.node_name)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        let wanted = match cache.get::<Node>("", &key.name) {
            Some(_) => wanted_attachments(&key.name, cache, &mut writes),
            None => BTreeMap::new(),
        };
        let attachments = cache.store::<VolumeAttachment>();
        for attachment in attachments.by_index_key(&key.name) {
            let name = attachment.metadata.name.as_deref().unwrap_or_default();
            let is_attached = attachment.status.as_ref().is_some_and(|status| status.attached);
            if !wanted.contains_key(name) {
                writes.delete(&**attachment);
            } else if !is_attached {
                let mut changed = VolumeAttachment::clone(attachment);
                changed.status.get_or_insert_default().attached = true;
                writes.update_status(&changed);
            }
        }
        for (name, spec) in wanted {
            if attachments.get("", &name).is_none() {
                let metadata = ObjectMeta { name: Some(name), ..ObjectMeta::default() };
                writes.create(&VolumeAttachment { metadata, spec, status: None });
            }
        }
        writes.build()
    }
}

/// The volumes that the pods of a node use, by the name of their VolumeAttachment.
fn wanted_attachments(
    node: &str,
    cache: &Cache,
    writes: &mut ReconcileResultBuilder,
) -> BTreeMap<String, VolumeAttachmentSpec> {
    let mut wanted = BTreeMap::new();
    for pod in cache.store::<Pod>().by_index_key(node).filter(|pod| !is_terminal(pod)) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        for claim in volumes_of(pod).filter_map(|volume| claim_name(pod, volume)) {
            let claim = cache.get::<PersistentVolumeClaim>(namespace, &claim);
            let volume = claim.and_then(|claim| volume_name(claim));
            let volume = volume.and_then(|name| cache.get::<PersistentVolume>("", name));
            let Some(volume) = volume else {
                writes.requeue_after(RETRY);
                continue;
            };
            let Some(csi) = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) else {
                continue;
            };
            let driver = cache.get::<CSIDriver>("", &csi.driver);
            if driver.and_then(|driver| driver.spec.attach_required) == Some(false) {
                continue;
            }
            let hash = fnv64(format!("{}\n{}\n{node}", csi.volume_handle, csi.driver).as_bytes());
            let spec = VolumeAttachmentSpec {
                attacher: csi.driver.clone(),
                node_name: node.to_owned(),
                source: VolumeAttachmentSource {
                    persistent_volume_name: volume.metadata.name.clone(),
                    inline_volume_spec: None,
                },
            };
            wanted.insert(format!("csi-{hash:016x}"), spec);
        }
    }
    wanted
}
