//! Whether the limits of a node admit more volumes, and the keys by which pods share that result.

use std::sync::Arc;

use loadmaster_api::storage::CsiNode;
use loadmaster_api::{DiskSource, PersistentVolumeClaim, Str};
use loadmaster_framework::{PodInfo, Rejection};

use super::pod_volumes::{CountedVolume, Handle, VolumeError};
use super::{REASON, View};

/// The volumes of a driver on a node.
pub(super) struct DriverUsage<'v> {
    pub driver: &'v Str,
    /// Those of the pod that are not attached yet.
    pub n_new: usize,
    pub n_attached: usize,
    /// How many the node can have, if that is limited.
    pub limit: Option<i64>,
}

impl DriverUsage<'_> {
    /// Volumes that are attached already are no reason to reject a pod that uses only them.
    fn exceeds_limit(&self) -> bool {
        let n = (self.n_new + self.n_attached) as i64;
        self.n_new > 0 && self.limit.is_some_and(|limit| n > limit)
    }
}

impl<'a> View<'a> {
    /// The node's CSINode.
    pub fn csi_node(&self, name: &str) -> Option<&'a CsiNode> {
        self.world.watched_objects().lister(&self.slots.csi_nodes).get("", name)
    }

    /// Whether these volumes of a pod can be attached to a node with these pods.
    pub fn check_node<'p>(
        &self,
        node: &str,
        pods: impl Iterator<Item = &'p Arc<PodInfo>>,
        volumes: &[CountedVolume],
    ) -> Result<(), Rejection> {
        let csi_node = self.csi_node(node);
        let new: Vec<&CountedVolume> =
            volumes.iter().filter(|volume| csi_node.is_some() || !volume.is_translated).collect();
        if new.is_empty() {
            return Ok(());
        }
        for volume in &new {
            self.check_driver(&volume.driver, csi_node)?;
        }
        let Some(csi_node) = csi_node else { return Ok(()) };
        if csi_node.spec.drivers.iter().all(|driver| driver.allocatable.count.is_none()) {
            return Ok(());
        }
        let usage = self.usage(csi_node, pods, new)?;
        if usage.iter().any(DriverUsage::exceeds_limit) {
            return Err(Rejection::unschedulable(REASON));
        }
        Ok(())
    }

    /// By driver of these volumes of a pod: the volumes on a node with these pods.
    pub fn usage<'v, 'p>(
        &self,
        csi_node: &CsiNode,
        pods: impl Iterator<Item = &'p Arc<PodInfo>>,
        mut new: Vec<&'v CountedVolume>,
    ) -> Result<Vec<DriverUsage<'v>>, Rejection> {
        let attached = self.attached_by_pods(pods)?;
        new.sort_unstable();
        // Volumes of a key without a handle are different ones.
        new.dedup_by(|one, other| {
            one.handle.is_some() && (&one.driver, &one.handle) == (&other.driver, &other.handle)
        });
        let by_attachments = self.attached_by_attachments(&csi_node.metadata.name, &attached);
        let of_driver = |volumes: &[&'v CountedVolume]| {
            let driver = &volumes.first()?.driver;
            let n_new = volumes.iter().filter(|volume| !is_among(&attached, volume)).count();
            let known = attached.iter().chain(&by_attachments);
            let n_attached = known.filter(|volume| volume.driver == *driver).count();
            Some(DriverUsage { driver, n_new, n_attached, limit: limit(csi_node, driver) })
        };
        Ok(new.chunk_by(|one, other| one.driver == other.driver).filter_map(of_driver).collect())
    }

    /// The volumes that the pods on a node use, each once.
    fn attached_by_pods<'p>(
        &self,
        pods: impl Iterator<Item = &'p Arc<PodInfo>>,
    ) -> Result<Vec<CountedVolume>, Rejection> {
        let mut attached: Vec<CountedVolume> = Vec::new();
        for pod in pods {
            for volume in &pod.template.spec.volumes {
                match self.volume(pod, volume) {
                    Ok(Some(volume)) if !is_among(&attached, &volume) => attached.push(volume),
                    // A claim that does not exist need not be one of this node's driver.
                    Ok(_) | Err(VolumeError::ClaimNotFound(_)) => {}
                    Err(error) => return Err(error.rejection(pod)),
                }
            }
        }
        Ok(attached)
    }

    /// The volumes that VolumeAttachments say are attached to the node, except of those that its pods use.
    fn attached_by_attachments(&self, node: &str, by_pods: &[CountedVolume]) -> Vec<CountedVolume> {
        let Some(index) = self.states.get(self.slots.index) else { return Vec::new() };
        let volumes = self.world.watched_objects().lister(&self.slots.volumes);
        let mut attached: Vec<CountedVolume> = Vec::new();
        for (attacher, volume) in index.attachments(node) {
            let disk = volumes.get("", volume).and_then(|volume| volume.spec.disk.as_deref());
            let Some(DiskSource::Csi(csi)) = disk else { continue };
            let volume = CountedVolume {
                driver: attacher.clone(),
                handle: Some(Handle::Volume(csi.volume_handle.clone())),
                is_translated: false,
            };
            if !is_among(by_pods, &volume) && !is_among(&attached, &volume) {
                attached.push(volume);
            }
        }
        attached
    }

    /// Whether the node has the driver, if the driver demands it.
    fn check_driver(&self, driver: &Str, csi_node: Option<&CsiNode>) -> Result<(), Rejection> {
        let Some(drivers) = &self.slots.drivers else { return Ok(()) };
        let demands = self.world.watched_objects().lister(drivers).get("", driver);
        let is_installed =
            || csi_node.is_some_and(|node| node.spec.drivers.iter().any(|it| it.name == *driver));
        if demands.is_none_or(|it| !it.spec.prevent_pod_scheduling_if_missing) || is_installed() {
            return Ok(());
        }
        let text = format!("{driver} CSI driver is not installed on the node");
        Err(Rejection::unschedulable(text))
    }

    /// The pod's volumes for its key; `None` if one of them cannot be counted.
    pub fn volume_key(&self, pod: &PodInfo) -> Option<Box<[CountedVolume]>> {
        let mut all: Vec<(CountedVolume, bool)> = Vec::new();
        for volume in &pod.template.spec.volumes {
            let Some(counted) = self.volume(pod, volume).ok()? else { continue };
            if all.iter().any(|(known, _)| *known == counted) {
                continue;
            }
            let is_unused = pod.claim_name(volume).is_some_and(|claim| {
                let claims = self.world.watched_objects().lister(&self.slots.claims);
                let claim = claims.get(&pod.template.namespace, &claim.name);
                claim.is_some_and(|claim| self.is_unused(claim, &counted))
            });
            all.push((counted, is_unused));
        }
        let without_handle = all.into_iter().map(|(volume, is_unused)| match is_unused {
            true => CountedVolume { handle: None, ..volume },
            false => volume,
        });
        let mut key: Vec<CountedVolume> = without_handle.collect();
        key.sort_unstable();
        Some(key.into())
    }

    /// Whether no assigned pod uses the volume of this claim. Only a volume that no other claim can have is found to be unused, so that
    /// this changes with the users of the claim alone.
    fn is_unused(&self, claim: &PersistentVolumeClaim, volume: &CountedVolume) -> bool {
        let index = self.states.get(self.slots.index);
        let is_own = match &volume.handle {
            Some(Handle::Volume(_)) => {
                index.is_some_and(|index| index.has_one_claim(&claim.spec.volume_name, volume))
            }
            _ => true,
        };
        let (namespace, name) = (&claim.metadata.namespace, &claim.metadata.name);
        is_own && self.world.claim_users(namespace, name).is_empty()
    }
}

/// Whether the volume is one of these. Where it comes from does not matter.
fn is_among(volumes: &[CountedVolume], volume: &CountedVolume) -> bool {
    volume.handle.is_some()
        && volumes.iter().any(|it| it.driver == volume.driver && it.handle == volume.handle)
}

/// How many volumes of the driver the node can have, if that is limited.
fn limit(csi_node: &CsiNode, driver: &str) -> Option<i64> {
    let mut drivers = csi_node.spec.drivers.iter().rev().filter(|it| it.name == *driver);
    drivers.find_map(|it| it.allocatable.count).map(i64::from)
}
