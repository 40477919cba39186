//! Protects storage in use from deletion: a claim while a pod on a node uses it, a volume while it is bound, a VolumeAttributesClass while
//! a claim or volume names it. The finalizer is set by admission and removed here.
//!
//! | | |
//! | --- | --- |
//! | writes | finalizers of PersistentVolumeClaims, PersistentVolumes and VolumeAttributesClasses |
//! | upstream | `pkg/controller/volume/{pvcprotection,pvprotection,vacprotection}`, 1.36 |
//! | deviations | pods are searched in the cache only; upstream also lists them from the server |

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use serde_json::json;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind, Object, Typed};
use crate::meta::{is_controlled_by, is_terminating};
use crate::result_builder::ReconcileResultBuilder;
use crate::storage_objects::{claim_name, volumes_of};

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";
const CLASS: &str = "kubernetes.io/vac-protection";

/// The controller of claims and volumes.
#[derive(Debug)]
pub(crate) struct VolumeProtectionController;

impl Controller for VolumeProtectionController {
    fn name(&self) -> &'static str {
        "storage-protection-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::PersistentVolumeClaim, Kind::PersistentVolume, Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        if object.kind() != Kind::Pod {
            return change.new.into_iter().map(Object::key).collect();
        }
        // A terminating claim waits for its last pod.
        let claims = cache.store::<PersistentVolumeClaim>();
        let mut keys = Vec::new();
        for pod in [change.old::<Pod>(), change.new::<Pod>()].into_iter().flatten() {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let named = volumes_of(pod)
                .filter_map(|volume| claims.get(namespace, &claim_name(pod, volume)?));
            let waiting = named.filter(|claim| is_terminating(&claim.metadata));
            keys.extend(waiting.map(|claim| Key::from_object(&**claim)));
        }
        keys
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        if let Some(claim) = cache.get::<PersistentVolumeClaim>(&key.namespace, &key.name)
            && key.kind == Kind::PersistentVolumeClaim
        {
            let is_used =
                || cache.store::<Pod>().in_namespace(&key.namespace).any(|pod| uses(pod, claim));
            hold(&**claim, CLAIM, is_used, &mut writes);
        }
        if let Some(volume) = cache.get::<PersistentVolume>("", &key.name)
            && key.kind == Kind::PersistentVolume
        {
            let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            hold(&**volume, VOLUME, || phase == Some("Bound"), &mut writes);
        }
        writes.build()
    }
}

/// The controller of VolumeAttributesClasses. Separate, because older servers do not have this kind.
#[derive(Debug)]
pub(crate) struct VolumeAttributesClassProtectionController;

impl Controller for VolumeAttributesClassProtectionController {
    fn name(&self) -> &'static str {
        "volumeattributesclass-protection-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::VolumeAttributesClass, Kind::PersistentVolumeClaim, Kind::PersistentVolume]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _cache: &Cache) -> Vec<Key> {
        let key = |name: &str| Key::new(Kind::VolumeAttributesClass, "", name);
        match change.new_or_old().map(Object::kind) {
            Some(Kind::VolumeAttributesClass) => change.new.into_iter().map(Object::key).collect(),
            Some(Kind::PersistentVolumeClaim) => {
                let claim = change.old::<PersistentVolumeClaim>();
                claim.into_iter().flat_map(classes_of_claim).map(key).collect()
            }
            _ => {
                let volume = change.old::<PersistentVolume>();
                volume.and_then(class_of_volume).map(key).into_iter().collect()
            }
        }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(class) = cache.get::<VolumeAttributesClass>("", &key.name) else {
            return ReconcileResult::none();
        };
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        let is_used = || {
            let (claims, volumes) =
                (cache.store::<PersistentVolumeClaim>(), cache.store::<PersistentVolume>());
            volumes.iter().any(|volume| class_of_volume(volume) == Some(&*key.name))
                || claims.iter().any(|claim| classes_of_claim(claim).any(|name| name == &*key.name))
        };
        hold(&**class, CLASS, is_used, &mut writes);
        writes.build()
    }
}

/// Removes the finalizer of a terminating object that is not in use, and adds it to one that is not terminating, which may have been created while
/// admission did not set it.
fn hold<K: Typed>(
    object: &K,
    finalizer: &str,
    is_used: impl Fn() -> bool,
    writes: &mut ReconcileResultBuilder,
) {
    let known = object.metadata().finalizers.as_deref().unwrap_or_default();
    let is_held = known.iter().any(|one| one == finalizer);
    let others = known.iter().filter(|one| *one != finalizer).map(String::as_str);
    match (is_terminating(object.metadata()), is_held) {
        (true, true) if !is_used() => {
            let left: Vec<&str> = others.collect();
            writes.patch_meta(object, json!({"finalizers": left}));
        }
        (false, false) => {
            let all: Vec<&str> = others.chain([finalizer]).collect();
            writes.patch_meta(object, json!({"finalizers": all}));
        }
        _ => {}
    }
}

/// Whether a pod uses a claim, be it that it has ended. One without a node does not: no kubelet starts it with a claim that is to go.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    if node.is_none_or(str::is_empty) {
        return false;
    }
    let is_shut_down =
        is_terminating(&pod.metadata) && pod.metadata.deletion_grace_period_seconds == Some(0);
    let is_own = || {
        is_controlled_by(&claim.metadata, pod.metadata.uid.as_deref().unwrap_or_default())
            && !is_shut_down
    };
    volumes_of(pod).any(|volume| {
        claim_name(pod, volume) == claim.metadata.name
            && (volume.persistent_volume_claim.is_some() || is_own())
    })
}

/// The classes that a claim wants, has, and is about to get.
fn classes_of_claim(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &str> {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let target = status.and_then(|status| {
        status.modify_volume_status.as_ref()?.target_volume_attributes_class_name.as_deref()
    });
    [wanted, current, target].into_iter().flatten().filter(|name| !name.is_empty())
}

fn class_of_volume(volume: &PersistentVolume) -> Option<&str> {
    let name = volume.spec.as_ref()?.volume_attributes_class_name.as_deref();
    name.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::request::{ControllerRequest, DeleteOptions, Patch};
    use crate::testkit::ControllerBench;

    fn start() -> ControllerBench {
        ControllerBench::new(vec![
            Box::new(VolumeProtectionController),
            Box::new(VolumeAttributesClassProtectionController),
        ])
    }

    fn claim(bench: &mut ControllerBench, name: &str, more: Value) {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        bench.create(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec}));
    }

    fn pod(bench: &mut ControllerBench, node: &str, volume: Value) {
        bench.create(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}], "volumes": [volume]}}));
    }

    fn kill(bench: &mut ControllerBench) {
        let options = DeleteOptions { grace_period_seconds: Some(0), ..Default::default() };
        bench.send_as_client(&ControllerRequest::Delete {
            key: Key::new(Kind::Pod, "default", "p"),
            options,
        });
    }

    fn is_there<K: Typed>(bench: &mut ControllerBench, namespace: &str, name: &str) -> bool {
        bench.run_until_idle();
        bench.get::<K>(namespace, name).is_some()
    }

    #[test]
    fn a_claim_in_use_is_protected() {
        let named = || json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}});
        for (node, phase, stays) in
            [("n", None, true), ("n", Some("Succeeded"), true), ("", None, false)]
        {
            let mut bench = start();
            claim(&mut bench, "data", json!({}));
            pod(&mut bench, node, named());
            if let Some(phase) = phase {
                bench.set_phase("p", phase);
            }
            bench.run_until_idle();
            bench.delete(Kind::PersistentVolumeClaim, "data");
            let found = is_there::<PersistentVolumeClaim>(&mut bench, "default", "data");
            assert_eq!(found, stays, "{node} {phase:?}");
            kill(&mut bench);
            assert!(!is_there::<PersistentVolumeClaim>(&mut bench, "default", "data"));
        }
    }

    #[test]
    fn a_claim_made_for_a_pod() {
        let template = json!({"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
        for (is_owned, stays) in [(true, true), (false, false)] {
            let mut bench = start();
            let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": template}});
            pod(&mut bench, "n", volume);
            claim(&mut bench, "p-v", json!({}));
            if is_owned {
                let uid = bench.get::<Pod>("default", "p").unwrap().metadata.uid;
                let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true});
                let patch = json!({"metadata": {"ownerReferences": [owner]}});
                bench.merge(Kind::PersistentVolumeClaim, "p-v", patch);
            }
            bench.run_until_idle();
            bench.delete(Kind::PersistentVolumeClaim, "p-v");
            let found = is_there::<PersistentVolumeClaim>(&mut bench, "default", "p-v");
            assert_eq!(found, stays);
        }
    }

    #[test]
    fn a_bound_volume_is_protected() {
        let mut bench = start();
        bench.create(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}}));
        let key = || Key::new(Kind::PersistentVolume, "", "disk");
        let phase = |phase: &str| {
            ControllerRequest::patch_status(
                key(),
                Patch::Merge(json!({"status": {"phase": phase}})),
            )
        };
        bench.send_as_client(&phase("Bound"));
        bench.run_until_idle();
        bench
            .send_as_client(&ControllerRequest::Delete { key: key(), options: Default::default() });
        assert!(is_there::<PersistentVolume>(&mut bench, "", "disk"));
        bench.send_as_client(&phase("Released"));
        assert!(!is_there::<PersistentVolume>(&mut bench, "", "disk"));
    }

    #[test]
    fn a_volume_attributes_class_in_use_is_protected() {
        let mut bench = start();
        bench.create(json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": {"name": "fast"}, "driverName": "example.com", "parameters": {"a": "b"}}));
        claim(&mut bench, "data", json!({"volumeAttributesClassName": "fast"}));
        bench.run_until_idle();
        let key = Key::new(Kind::VolumeAttributesClass, "", "fast");
        bench.send_as_client(&ControllerRequest::Delete { key, options: Default::default() });
        assert!(is_there::<VolumeAttributesClass>(&mut bench, "", "fast"));
        bench.delete(Kind::PersistentVolumeClaim, "data");
        assert!(!is_there::<VolumeAttributesClass>(&mut bench, "", "fast"));
    }

    #[test]
    fn a_missing_finalizer_is_added() {
        let mut bench = start();
        claim(&mut bench, "data", json!({}));
        bench.run_until_idle();
        let n_sent = bench.sent.len();
        assert_eq!(n_sent, 0, "admission has set it");
        bench.merge(
            Kind::PersistentVolumeClaim,
            "data",
            json!({"metadata": {"finalizers": ["a.io/b"]}}),
        );
        bench.run_until_idle();
        let found: PersistentVolumeClaim = bench.get("default", "data").unwrap();
        assert_eq!(found.metadata.finalizers.unwrap(), ["a.io/b", CLAIM]);
    }
}
