//! A pod's claims: resolved to all that the plugin's results depend on (upstream's `podHasPVCs` and `GetPodVolumeClaims`).

use std::sync::Arc;

use loadmaster_api::storage::{PersistentVolumeClaim, TopologySelectorTerm};
use loadmaster_api::{
    CsiDriver, LabelSelector, NodeSelector, PersistentVolume, Quantity, StorageClass, Str,
};
use loadmaster_framework::{
    ClaimName, EvaluatorCx, Failure, ObjectSlot, PodInfo, Reason, Rejection,
};

use super::assume_cache::{AssumeCache, UnboundVolume, claim_id, mode_or_filesystem};
use crate::csi_migration::{migrated_plugin, translated_node_affinity};
use crate::volumes::{NotFound, check_is_for_pod, is_delay_binding};

/// A pod's claims as the key of its evaluators: pods with equal claims get equal results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PodClaims {
    /// The volumes of bound claims, without those that are accessible from every node.
    pub bound: Vec<BoundVolume>,
    /// The claims that are bound when the pod is scheduled.
    pub delayed: Vec<DelayedClaim>,
}

/// The volume of a bound claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum BoundVolume {
    /// It does not exist.
    Missing,
    /// It has a node affinity.
    Restricted(NodeSelector),
    /// On nodes where the CSI driver serves the volumes of the in-tree plugin, the affinity is the translated one.
    InTree {
        plugin: &'static str,
        affinity: Option<NodeSelector>,
        translated: Result<Option<NodeSelector>, String>,
    },
}

/// An unbound claim of a class that waits for the first consumer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DelayedClaim {
    /// The class, which exists.
    pub class: Str,
    pub request: Option<Quantity>,
    pub access_modes: Vec<Str>,
    pub selector: Option<Box<LabelSelector>>,
    pub volume_mode: Str,
    pub attributes_class: Str,
    /// The node for which a volume is to be provisioned.
    pub selected_node: Option<Str>,
    /// The volumes of the class that are reserved for this claim, in the order of their names.
    pub reserved: Vec<Arc<UnboundVolume>>,
    pub provisioner: Str,
    pub allowed_topologies: Vec<TopologySelectorTerm>,
    /// Whether the capacity that is left must be respected.
    pub tracks_capacity: bool,
}

/// PreFilter rejects the pod, or fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClaimError {
    Unresolvable(String),
    Failed(String),
}

impl From<ClaimError> for Rejection {
    fn from(error: ClaimError) -> Rejection {
        match error {
            ClaimError::Unresolvable(text) => Rejection::unresolvable(Reason::from(text)),
            ClaimError::Failed(text) => Rejection::Failed(Failure::new(text)),
        }
    }
}

/// The slots of the kinds that are read.
pub(super) struct ClaimSlots {
    pub claims: ObjectSlot<PersistentVolumeClaim>,
    pub volumes: ObjectSlot<PersistentVolume>,
    pub classes: ObjectSlot<StorageClass>,
    pub drivers: ObjectSlot<CsiDriver>,
}

pub(super) const REASON_IMMEDIATE: &str = "pod has unbound immediate PersistentVolumeClaims";

/// The claims of a pod, by volume of the pod.
pub(super) type ClaimsOfPod<'a> = Vec<&'a PersistentVolumeClaim>;

impl ClaimSlots {
    /// The claims of all volumes of a pod that have one.
    pub fn claims_of_pod<'a>(
        &self,
        cx: EvaluatorCx<'a>,
        pod: &PodInfo,
    ) -> Result<ClaimsOfPod<'a>, ClaimError> {
        let all = cx.objects(&self.claims);
        let find = |ClaimName { name, is_ephemeral }: ClaimName| {
            let Some(claim) = all.get(&pod.template.namespace, &name) else {
                return Err(if is_ephemeral {
                    format!(
                        "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
                    )
                } else {
                    NotFound { resource: "persistentvolumeclaim", name: &name }.to_string()
                });
            };
            if claim.status.phase == "Lost" {
                let volume = claim.spec.volume_name.as_str();
                return Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                ));
            }
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            if is_ephemeral {
                check_is_for_pod(pod, claim)?;
            }
            Ok(claim)
        };
        pod.claim_names().map(|name| find(name).map_err(ClaimError::Unresolvable)).collect()
    }

    /// Resolves claims, and returns those that are bound when the pod is scheduled, in the order of [`PodClaims::delayed`].
    pub fn resolve<'a>(
        &self,
        cx: EvaluatorCx<'a>,
        cache: &AssumeCache,
        claims: &[&'a PersistentVolumeClaim],
    ) -> Result<(PodClaims, ClaimsOfPod<'a>), ClaimError> {
        let classes = cx.objects(&self.classes);
        let (mut resolved, mut delayed) = (PodClaims::default(), Vec::new());
        let mut has_immediate = false;
        for claim in claims {
            if claim.is_fully_bound() {
                resolved.bound.extend(self.bound_volume(cx, claim));
                continue;
            }
            let waits = is_delay_binding(claim, &classes).map_err(ClaimError::Failed)?;
            // A claim for a volume that the user chose is bound by the controller.
            if waits && claim.spec.volume_name.is_empty() {
                resolved.delayed.extend(self.delayed_claim(cx, cache, claim));
                delayed.push(*claim);
            } else {
                has_immediate = true;
            }
        }
        if has_immediate {
            return Err(ClaimError::Unresolvable(REASON_IMMEDIATE.to_owned()));
        }
        Ok((resolved, delayed))
    }

    /// `None` for a volume that is accessible from every node.
    fn bound_volume(
        &self,
        cx: EvaluatorCx<'_>,
        claim: &PersistentVolumeClaim,
    ) -> Option<BoundVolume> {
        let Some(volume) = cx.objects(&self.volumes).get("", &claim.spec.volume_name) else {
            return Some(BoundVolume::Missing);
        };
        let affinity = volume.spec.required_node_affinity.as_deref().cloned();
        if let Some(plugin) = volume.spec.disk.as_deref().and_then(migrated_plugin) {
            let translated = translated_node_affinity(volume);
            if translated.as_ref() != Ok(&affinity) {
                return Some(BoundVolume::InTree { plugin, affinity, translated });
            }
        }
        affinity.map(BoundVolume::Restricted)
    }

    /// `None` if the class does not exist, which [`is_delay_binding`] excludes.
    fn delayed_claim(
        &self,
        cx: EvaluatorCx<'_>,
        cache: &AssumeCache,
        claim: &PersistentVolumeClaim,
    ) -> Option<DelayedClaim> {
        let class = cx.objects(&self.classes).get("", claim.class())?;
        let class_name = class.metadata.name.clone();
        let volumes = cx.objects(&self.volumes);
        let names = cache.reserved_for(&claim_id(claim)).iter();
        let reserved = names.filter_map(|name| {
            let volume = volumes.get("", name)?;
            let reserved_uid = &*cache.claim_of(volume)?.uid;
            let is_own = reserved_uid.is_empty() || *reserved_uid == *claim.metadata.uid;
            let is_usable = is_own
                && *volume.class() == class_name
                && volume.metadata.deletion_timestamp.is_none();
            is_usable.then(|| Arc::new(UnboundVolume::new(volume)))
        });
        let spec = &claim.spec;
        let driver = cx.objects(&self.drivers).get("", &class.provisioner);
        Some(DelayedClaim {
            request: claim.request(),
            access_modes: spec.access_modes.clone(),
            selector: spec.selector.clone(),
            volume_mode: mode_or_filesystem(spec.volume_mode.as_ref()),
            attributes_class: spec.volume_attributes_class_name.clone().unwrap_or_default(),
            selected_node: cache.selected_node(claim).cloned(),
            reserved: reserved.collect(),
            provisioner: class.provisioner.clone(),
            allowed_topologies: class.allowed_topologies.clone(),
            tracks_capacity: claim.request().is_some()
                && driver.is_some_and(|driver| driver.spec.storage_capacity),
            class: class_name,
        })
    }
}
