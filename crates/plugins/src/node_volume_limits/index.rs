//! What the plugin looks up the other way round: the claims of a volume, the volumes with a handle, the attachments of a node.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::storage::VolumeAttachment;
use loadmaster_api::{PersistentVolume, PersistentVolumeClaim, StorageClass, Str};
use loadmaster_framework::SerialCx;
use loadmaster_framework::extension_points::ObjectEventHandler;
use loadmaster_framework::watched_objects::{ObjectChange, ObjectInfo};
use loadmaster_stdx::Map;
use smallvec::SmallVec;

use super::pod_volumes::{CountedVolume, Handle, counted_volume};
use super::{NAME, NodeVolumeLimits};

/// Kept up to date by the events of the objects.
#[derive(Clone, Default)]
pub(super) struct VolumeIndex {
    /// By volume: namespace and name of the claims that name it.
    claims: Map<Str, SmallVec<[(Str, Str); 1]>>,
    /// Number of PersistentVolumes that are this volume of a CSI driver.
    n_volumes: Map<(Str, Str), usize>,
    /// By node and name: attacher and PersistentVolume.
    attachments: Map<Str, BTreeMap<Str, (Str, Str)>>,
    /// By PersistentVolume: the nodes that it is attached to, once for each attachment.
    attached_nodes: Map<Str, Vec<Str>>,
}

impl VolumeIndex {
    /// Attacher and PersistentVolume of the attachments of a node.
    pub fn attachments(&self, node: &str) -> impl Iterator<Item = &(Str, Str)> {
        self.attachments.get(node).into_iter().flat_map(BTreeMap::values)
    }

    /// Whether only one claim names the PersistentVolume, and no other one is the same volume of the driver.
    pub fn has_one_claim(&self, name: &Str, volume: &CountedVolume) -> bool {
        let n_volumes = handle(volume).and_then(|key| self.n_volumes.get(&key));
        n_volumes == Some(&1) && self.claims.get(name).is_some_and(|claims| claims.len() == 1)
    }

    fn add_volume(&mut self, volume: &CountedVolume) {
        if let Some(key) = handle(volume) {
            *self.n_volumes.entry(key).or_default() += 1;
        }
    }

    fn remove_volume(&mut self, volume: &CountedVolume) {
        let Some(key) = handle(volume) else { return };
        if let Some(n) = self.n_volumes.get_mut(&key) {
            *n -= 1;
            if *n == 0 {
                self.n_volumes.remove(&key);
            }
        }
    }

    /// Whether the volume has another claim now, or no other any more.
    fn add_claim(&mut self, volume: &Str, claim: (Str, Str)) -> bool {
        let claims = self.claims.entry(volume.clone()).or_default();
        let is_new = !claims.contains(&claim);
        if is_new {
            claims.push(claim);
        }
        is_new && claims.len() == 2
    }

    fn remove_claim(&mut self, volume: &Str, claim: &(Str, Str)) -> bool {
        let Some(claims) = self.claims.get_mut(volume) else { return false };
        let n_before = claims.len();
        claims.retain(|known| known != claim);
        let n = claims.len();
        if n == 0 {
            self.claims.remove(volume);
        }
        n == 1 && n_before == 2
    }

    fn add_attachment(&mut self, name: &Str, attachment: &VolumeAttachment) {
        let Some((node, attacher, volume)) = parts(attachment) else { return };
        let of_node = self.attachments.entry(node.clone()).or_default();
        of_node.insert(name.clone(), (attacher.clone(), volume.clone()));
        self.attached_nodes.entry(volume.clone()).or_default().push(node.clone());
    }

    fn remove_attachment(&mut self, name: &Str, attachment: &VolumeAttachment) {
        let Some((node, _, volume)) = parts(attachment) else { return };
        if let Some(of_node) = self.attachments.get_mut(node) {
            of_node.remove(name);
            if of_node.is_empty() {
                self.attachments.remove(node);
            }
        }
        if let Some(nodes) = self.attached_nodes.get_mut(volume) {
            if let Some(at) = nodes.iter().position(|known| known == node) {
                nodes.swap_remove(at);
            }
            if nodes.is_empty() {
                self.attached_nodes.remove(volume);
            }
        }
    }
}

/// Driver and handle of a volume that has one.
fn handle(volume: &CountedVolume) -> Option<(Str, Str)> {
    match &volume.handle {
        Some(Handle::Volume(handle)) => Some((volume.driver.clone(), handle.clone())),
        _ => None,
    }
}

/// Node, attacher and PersistentVolume of an attachment that counts.
fn parts(attachment: &VolumeAttachment) -> Option<(&Str, &Str, &Str)> {
    let spec = &attachment.spec;
    let volume = spec.source.persistent_volume_name.as_ref()?;
    (!spec.attacher.is_empty()).then_some((&spec.node_name, &spec.attacher, volume))
}

/// The object before and after a change.
fn sides<T: 'static>(change: &ObjectChange) -> (Option<&T>, Option<&T>) {
    (side(&change.old), side(&change.new))
}

fn side<T: 'static>(info: &Option<Arc<ObjectInfo>>) -> Option<&T> {
    info.as_deref().and_then(ObjectInfo::decoded_as)
}

impl ObjectEventHandler for NodeVolumeLimits {
    fn on_object_change(&self, mut cx: SerialCx<'_>, change: &ObjectChange) {
        let slots = &self.slots;
        if change.kind == *slots.claims.kind() {
            let (old, new) = sides(change);
            self.claim_changed(&mut cx, old, new);
        } else if change.kind == *slots.volumes.kind() {
            let (old, new) = sides(change);
            self.volume_changed(&mut cx, old, new);
        } else if change.kind == *slots.classes.kind() {
            let (old, new) = sides::<StorageClass>(change);
            if old.map(|class| &class.provisioner) != new.map(|class| &class.provisioner) {
                cx.invalidate_evaluators(NAME);
            }
        } else if change.kind == *slots.attachments.kind() {
            let Some(index) = cx.states.get_mut(slots.index).map(Arc::make_mut) else { return };
            if let (Some(info), Some(old)) = (&change.old, side(&change.old)) {
                index.remove_attachment(&info.name, old);
            }
            if let (Some(info), Some(new)) = (&change.new, side(&change.new)) {
                index.add_attachment(&info.name, new);
            }
        }
    }
}

impl NodeVolumeLimits {
    fn claim_changed(
        &self,
        cx: &mut SerialCx<'_>,
        old: Option<&PersistentVolumeClaim>,
        new: Option<&PersistentVolumeClaim>,
    ) {
        fn read(claim: &PersistentVolumeClaim) -> (&Str, &str) {
            (&claim.spec.volume_name, claim.class())
        }
        let Some(claim) = new.or(old) else { return };
        let owners = |claim: &PersistentVolumeClaim| claim.metadata.owner_references.clone();
        if old.map(read) == new.map(read) && old.map(owners) == new.map(owners) {
            return;
        }
        let Some(index) = cx.states.get_mut(self.slots.index).map(Arc::make_mut) else { return };
        let name = (claim.metadata.namespace.clone(), claim.metadata.name.clone());
        let volume = |claim: &&PersistentVolumeClaim| !claim.spec.volume_name.is_empty();
        let mut is_shared_otherwise = false;
        if let Some(old) = old.filter(volume) {
            is_shared_otherwise |= index.remove_claim(&old.spec.volume_name, &name);
        }
        if let Some(new) = new.filter(volume) {
            is_shared_otherwise |= index.add_claim(&new.spec.volume_name, name.clone());
        }
        if is_shared_otherwise {
            cx.invalidate_keys(&Str::default());
        }
        invalidate_users(cx, &name);
    }

    fn volume_changed(
        &self,
        cx: &mut SerialCx<'_>,
        old: Option<&PersistentVolume>,
        new: Option<&PersistentVolume>,
    ) {
        let Some(name) = new.or(old).map(|volume| volume.metadata.name.clone()) else { return };
        let exists = (old.is_some(), new.is_some());
        let (old, new) = (old.and_then(counted_volume), new.and_then(counted_volume));
        if old == new && exists == (true, true) {
            return;
        }
        let Some(index) = cx.states.get_mut(self.slots.index).map(Arc::make_mut) else { return };
        old.iter().for_each(|volume| index.remove_volume(volume));
        new.iter().for_each(|volume| index.add_volume(volume));
        let claims: Vec<(Str, Str)> =
            index.claims.get(&name).into_iter().flatten().cloned().collect();
        let nodes = index.attached_nodes.get(&name).cloned().unwrap_or_default();
        nodes.iter().for_each(|node| cx.invalidate_node(node));
        claims.iter().for_each(|claim| invalidate_users(cx, claim));
    }
}

/// Makes the nodes of the pods that use a claim be evaluated again.
fn invalidate_users(cx: &mut SerialCx<'_>, (namespace, name): &(Str, Str)) {
    let rows = cx.world.claim_users(namespace, name).iter().map(|user| user.row);
    let nodes: Vec<Str> =
        rows.filter_map(|row| cx.world.node(row)).map(|node| Str::new(node.name())).collect();
    nodes.iter().for_each(|node| cx.invalidate_node(node));
}
