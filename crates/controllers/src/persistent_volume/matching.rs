//! Finds the PersistentVolume for a claim.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
};

use crate::meta::{is_terminating, selector_matches};
use crate::storage_objects::{
    requested_bytes, storage_class_of, storage_class_of_volume, volume_bytes,
};

/// The smallest unbound volume that satisfies a claim.
pub(super) fn find_matching_volume<'a>(
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
    volumes: impl Iterator<Item = &'a PersistentVolume>,
) -> Option<&'a PersistentVolume> {
    let wanted = requested_bytes(claim);
    let fits = |volume: &&PersistentVolume| {
        let Some(of_volume) = &volume.spec else { return false };
        let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
        let attributes_class = |name: &Option<String>| name.clone().unwrap_or_default();
        let modes = of_volume.access_modes.as_deref().unwrap_or_default();
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        of_volume.claim_ref.is_none()
            && phase == Some("Available")
            && !is_terminating(&volume.metadata)
            && storage_class_of_volume(volume) == storage_class_of(claim)
            && attributes_class(&of_volume.volume_attributes_class_name)
                == attributes_class(&spec.volume_attributes_class_name)
            && mode(&of_volume.volume_mode) == mode(&spec.volume_mode)
            && spec.access_modes.iter().flatten().all(|mode| modes.contains(mode))
            && spec
                .selector
                .as_ref()
                .is_none_or(|one| selector_matches(one, volume.metadata.labels.as_ref()))
            && volume_bytes(volume) >= wanted
    };
    volumes.filter(fits).min_by_key(|volume| volume_bytes(volume))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    #[track_caller]
    fn check(claim: Value, want: Option<&str>) {
        let volume = |name: &str, size: &str, more: Value| {
            let mut spec = json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"metadata": {"name": name, "labels": {"disk": name}}, "spec": spec, "status": {"phase": "Available"}})
        };
        let volumes = json!([
            volume("big", "10Gi", json!({})),
            volume("small", "1Gi", json!({})),
            volume("middle", "5Gi", json!({})),
            volume("taken", "1Gi", json!({"claimRef": {"name": "x"}})),
            volume("block", "2Gi", json!({"volumeMode": "Block"})),
            volume("fast", "2Gi", json!({"storageClassName": "fast"})),
            volume("gold", "2Gi", json!({"volumeAttributesClassName": "gold"})),
        ]);
        let volumes: Vec<PersistentVolume> = from_value(volumes).unwrap();
        let claim: PersistentVolumeClaim =
            from_value(json!({"metadata": {}, "spec": claim})).unwrap();
        let found = find_matching_volume(&claim, claim.spec.as_ref().unwrap(), volumes.iter());
        assert_eq!(found.and_then(|one| one.metadata.name.as_deref()), want);
    }

    #[test]
    fn the_smallest_that_fits() {
        let size = |size: &str| json!({"resources": {"requests": {"storage": size}}});
        let with = |more: Value| {
            let mut claim = size("2Gi");
            claim.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            claim
        };
        check(size("1Gi"), Some("small"));
        check(size("1025Mi"), Some("middle"));
        check(size("6Gi"), Some("big"));
        check(size("11Gi"), None);
        check(with(json!({"volumeMode": "Block"})), Some("block"));
        check(with(json!({"storageClassName": "fast"})), Some("fast"));
        check(with(json!({"storageClassName": ""})), Some("middle"));
        check(with(json!({"storageClassName": "slow"})), None);
        check(with(json!({"volumeAttributesClassName": "gold"})), Some("gold"));
        check(with(json!({"accessModes": ["ReadOnlyMany"]})), Some("middle"));
        check(with(json!({"accessModes": ["ReadWriteMany"]})), None);
        check(with(json!({"selector": {"matchLabels": {"disk": "big"}}})), Some("big"));
    }
}
