use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use super::PersistentVolumeController;
use crate::csi::VolumeProvisioner;
use crate::kind::{Key, Kind};
use crate::request::{ControllerRequest, Patch};
use crate::storage_protection::VolumeProtectionController;
use crate::test_kubelet::bench;
use crate::testkit::ControllerBench;

fn start() -> ControllerBench {
    let mut bench = bench(vec![
        Box::<PersistentVolumeController>::default(),
        Box::new(VolumeProvisioner::new(None)),
        Box::new(VolumeProtectionController),
    ]);
    for (name, provisioner, mode) in [
        ("now", "example.com/disk", "Immediate"),
        ("later", "example.com/disk", "WaitForFirstConsumer"),
        ("local", "kubernetes.io/no-provisioner", "Immediate"),
    ] {
        bench.create(json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": provisioner, "volumeBindingMode": mode, "reclaimPolicy": "Delete"}));
    }
    bench.run_until_idle();
    bench
}

fn claim(bench: &mut ControllerBench, class: &str) {
    bench.create(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}}}));
    bench.run_until_idle();
}

fn volume(bench: &mut ControllerBench, name: &str, more: Value) {
    let mut spec = json!({"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
        "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/tmp"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    bench.create(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}));
    bench.run_until_idle();
}

/// Phase and volume of the claim, phase and claim of each volume.
fn state(bench: &ControllerBench) -> String {
    let claim: Option<PersistentVolumeClaim> = bench.get("default", "data");
    let text = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let claim = claim.map(|one| {
        let volume = text(one.spec.unwrap().volume_name.filter(|name| !name.is_empty()));
        let volume = if volume.starts_with("pvc-") { "made".to_owned() } else { volume };
        format!("{} {volume}", text(one.status.unwrap().phase))
    });
    let volumes = bench.list::<PersistentVolume>().into_iter().map(|one| {
        let claim = text(one.spec.unwrap().claim_ref.and_then(|claim| claim.name));
        format!("{} {claim}", text(one.status.unwrap().phase))
    });
    claim.into_iter().chain(volumes).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_volume_is_provisioned_and_deleted_with_its_claim() {
    let mut bench = start();
    claim(&mut bench, "now");
    assert_eq!(state(&bench), "Bound made, Bound data");
    let found: PersistentVolumeClaim = bench.get("default", "data").unwrap();
    assert_eq!(found.status.unwrap().capacity.unwrap()["storage"].0, "1Gi");
    let notes = found.metadata.annotations.unwrap();
    assert_eq!(notes["pv.kubernetes.io/bind-completed"], "yes");
    assert_eq!(notes["volume.kubernetes.io/storage-provisioner"], "example.com/disk");
    let n_sent = bench.sent.len();
    bench.wait(3600);
    assert_eq!(bench.sent.len(), n_sent);
    bench.delete(Kind::PersistentVolumeClaim, "data");
    bench.run_until_idle();
    assert_eq!(state(&bench), "");
}

#[test]
fn a_claim_waits_for_its_first_consumer() {
    let mut bench = start();
    bench.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
    claim(&mut bench, "later");
    assert_eq!(state(&bench), "Pending -");
    assert_eq!(
        bench.events(),
        ["WaitForFirstConsumer: waiting for first consumer to be created before binding"]
    );
    let note = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}});
    bench.merge(Kind::PersistentVolumeClaim, "data", note);
    bench.run_until_idle();
    assert_eq!(state(&bench), "Bound made, Bound data");
}

#[test]
fn an_existing_volume_is_bound_and_retained() {
    let mut bench = start();
    claim(&mut bench, "local");
    assert_eq!(state(&bench), "Pending -");
    volume(&mut bench, "disk", json!({}));
    assert_eq!(state(&bench), "Bound disk, Bound data");
    bench.delete(Kind::PersistentVolumeClaim, "data");
    bench.run_until_idle();
    assert_eq!(state(&bench), "Released data");
    let free = Patch::Merge(json!({"spec": {"claimRef": null}}));
    bench.send_as_client(&ControllerRequest::patch(
        Key::new(Kind::PersistentVolume, "", "disk"),
        free,
    ));
    bench.run_until_idle();
    assert_eq!(state(&bench), "Available -");
}

#[test]
fn only_a_directory_below_tmp_is_deleted_with_its_claim() {
    for (path, want) in [("/tmp/x", ""), ("/srv/x", "Released data")] {
        let mut bench = start();
        claim(&mut bench, "local");
        let policy = json!({"persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": path}});
        volume(&mut bench, "disk", policy);
        assert_eq!(state(&bench), "Bound disk, Bound data");
        bench.delete(Kind::PersistentVolumeClaim, "data");
        bench.run_until_idle();
        assert_eq!(state(&bench), want, "{path}");
    }
}

#[test]
fn a_volume_may_have_a_claim_ref_before_its_claim_exists() {
    let mut bench = start();
    volume(&mut bench, "any", json!({"capacity": {"storage": "1Gi"}}));
    volume(&mut bench, "mine", json!({"claimRef": {"namespace": "default", "name": "data"}}));
    volume(&mut bench, "other", json!({"claimRef": {"namespace": "other", "name": "data"}}));
    claim(&mut bench, "local");
    assert_eq!(state(&bench), "Bound mine, Available -, Bound data, Available data");
}

#[test]
fn without_class_and_volume() {
    let mut bench = start();
    claim(&mut bench, "");
    bench.wait(60);
    assert_eq!(
        bench.events(),
        [
            "FailedBinding: no persistent volumes available for this claim and no storage class is set"
        ]
    );
}

#[test]
fn a_volume_is_released_when_its_claim_gets_another() {
    let of_claim = |bench: &ControllerBench| {
        let claim: PersistentVolumeClaim = bench.get("default", "data").unwrap();
        json!({"namespace": "default", "name": "data", "uid": claim.metadata.uid})
    };
    let mut bench = start();
    volume(&mut bench, "one", json!({}));
    claim(&mut bench, "local");
    let claim_ref = of_claim(&bench);
    volume(&mut bench, "two", json!({"claimRef": claim_ref}));
    assert_eq!(state(&bench), "Bound one, Bound data, Available data");
    let two: PersistentVolume = bench.get("", "two").unwrap();
    assert_eq!(two.spec.unwrap().claim_ref.unwrap().uid, None, "it stays reserved");

    // The scheduler has bound it, and the claim was then bound to the other one.
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
        "spec": {"claimRef": claim_ref}});
    let key = Key::new(Kind::PersistentVolume, "", "two");
    bench.send_as_client(&ControllerRequest::patch(key, Patch::Merge(bound)));
    bench.run_until_idle();
    assert_eq!(state(&bench), "Bound one, Bound data, Available -");
}

/// Whoever wrote the claimRef has seen a claim that the controller has not.
#[test]
fn a_volume_is_not_released_before_its_claim_is_in_the_cache() {
    let mut bench = start();
    claim(&mut bench, "now");
    bench.delete(Kind::PersistentVolumeClaim, "data");
    bench.run_until_idle();
    let claim =
        json!({"namespace": "default", "name": "data", "uid": "u", "resourceVersion": "1000000"});
    let made = json!({"claimRef": claim, "persistentVolumeReclaimPolicy": "Delete"});
    volume(&mut bench, "disk", made);
    assert_eq!(state(&bench), "Pending data");
    let older = json!({"spec": {"claimRef": {"resourceVersion": "1"}}});
    let key = Key::new(Kind::PersistentVolume, "", "disk");
    bench.send_as_client(&ControllerRequest::patch(key, Patch::Merge(older)));
    bench.run_until_idle();
    assert_eq!(state(&bench), "Released data");
}

#[test]
fn a_claim_that_lost_its_volume() {
    let mut bench = start();
    claim(&mut bench, "now");
    let name = bench.names::<PersistentVolume>().remove(0);
    let key = Key::new(Kind::PersistentVolume, "", name);
    bench.send_as_client(&ControllerRequest::patch(
        key.clone(),
        Patch::Merge(json!({"metadata": {"finalizers": null}})),
    ));
    bench.send_as_client(&ControllerRequest::Delete { key, options: Default::default() });
    bench.run_until_idle();
    assert_eq!(state(&bench), "Lost made");
}
