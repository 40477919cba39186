use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use super::{CsiDriver, VolumeAttachmentController, VolumeProvisioner};
use crate::controller::Controller;
use crate::ephemeral_volume::EphemeralVolumeController;
use crate::kind::{Key, Kind};
use crate::kubelet::{CsiNodeController, ManagedNodes};
use crate::persistent_volume::PersistentVolumeController;
use crate::request::{ControllerRequest, ControllerResponse};
use crate::storage_protection::VolumeProtectionController;
use crate::test_kubelet::bench;
use crate::testkit::ControllerBench;

const ZONE: &str = "topology.kubernetes.io/zone";

fn controllers() -> Vec<Box<dyn Controller>> {
    let driver = CsiDriver { segment_bytes: 10 << 30, ..CsiDriver::default() };
    let managed = ManagedNodes { selector: Some(LabelSelector::default()) };
    vec![
        Box::<PersistentVolumeController>::default(),
        Box::new(VolumeProtectionController),
        Box::<EphemeralVolumeController>::default(),
        Box::new(CsiNodeController::new(driver.clone(), managed)),
        Box::new(VolumeProvisioner::new(Some(driver))),
        Box::<VolumeAttachmentController>::default(),
    ]
}

/// Two zones with a node each, of 10Gi each.
fn start() -> ControllerBench {
    prepared(bench(controllers()))
}

fn prepared(mut bench: ControllerBench) -> ControllerBench {
    for (name, zone) in [("a", "zone-a"), ("b", "zone-b")] {
        bench.create(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {ZONE: zone}}}));
    }
    class(&mut bench, "now", json!({}));
    class(&mut bench, "late", json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    bench.wait(2);
    bench
}

fn class(bench: &mut ControllerBench, name: &str, more: Value) {
    let mut class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name}, "provisioner": CsiDriver::default().name});
    class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    bench.create(class);
}

fn allowed(zones: &[&str]) -> Value {
    json!([{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}])
}

fn new_claim(bench: &mut ControllerBench, name: &str, class: &str, size: &str) {
    bench.create(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": size}}}}));
}

fn claim(bench: &mut ControllerBench, name: &str, class: &str, size: &str) {
    new_claim(bench, name, class, size);
    bench.run_until_idle();
}

/// What the scheduler writes.
fn select(bench: &mut ControllerBench, claim: &str, node: &str) {
    let selected =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
    bench.merge(Kind::PersistentVolumeClaim, claim, selected);
    bench.run_until_idle();
}

/// Each claim with its phase, its selected node, and the values in the node affinity of its volume.
fn claims(bench: &ControllerBench) -> String {
    let volumes = bench.list::<PersistentVolume>();
    let shown = bench.list::<PersistentVolumeClaim>().into_iter().map(|claim| {
        let metadata = claim.metadata;
        let notes = metadata.annotations.unwrap_or_default();
        let node = notes.get("volume.kubernetes.io/selected-node").map(|it| format!(" on {it}"));
        let name = claim.spec.unwrap().volume_name.unwrap_or_default();
        let volume = volumes.iter().find(|it| it.metadata.name.as_ref() == Some(&name));
        let volume = volume.map(|it| format!(" in {}", places(it)));
        let phase = claim.status.unwrap().phase.unwrap();
        let (node, volume) = (node.unwrap_or_default(), volume.unwrap_or_default());
        format!("{} {phase}{node}{volume}", metadata.name.unwrap())
    });
    shown.collect::<Vec<String>>().join(", ")
}

fn places(volume: &PersistentVolume) -> String {
    let value = serde_json::to_value(&volume.spec.as_ref().unwrap().node_affinity).unwrap();
    let terms = &value["required"]["nodeSelectorTerms"];
    let terms = terms.as_array().cloned().unwrap_or_default();
    let values = terms.iter().flat_map(|term| term["matchExpressions"].as_array().unwrap().clone());
    let values: Vec<String> =
        values.map(|it| it["values"][0].as_str().unwrap().to_owned()).collect();
    if values.is_empty() { "any".to_owned() } else { values.join("+") }
}

/// Class, segment and free capacity.
fn capacities(bench: &mut ControllerBench) -> Vec<String> {
    bench.wait(2);
    let shown = bench.list::<CSIStorageCapacity>().into_iter().map(|it| {
        let topology = it.node_topology.unwrap().match_labels.unwrap_or_default();
        let zones: Vec<String> = topology.into_values().collect();
        format!("{} {} {}", it.storage_class_name, zones.join("+"), it.capacity.unwrap().0)
    });
    let mut shown: Vec<String> = shown.collect();
    shown.sort_unstable();
    shown
}

/// The messages of failed provisioning.
fn failures(bench: &ControllerBench) -> Vec<String> {
    let events = bench.events().into_iter();
    events.filter_map(|it| it.strip_prefix("ProvisioningFailed: ").map(str::to_owned)).collect()
}

#[test]
fn the_driver_is_registered_on_simulated_nodes() {
    let mut bench = start();
    let found: CSINode = bench.get("", "a").unwrap();
    let driver = json!({"name": "disk.csi.loadmaster.io", "nodeID": "a", "topologyKeys": [ZONE],
        "allocatable": {"count": 24}});
    assert_eq!(serde_json::to_value(&found.spec).unwrap()["drivers"], json!([driver]));
    assert_eq!(found.metadata.owner_references.unwrap()[0].name, "a");

    // One that exists gets it in addition; a node without the label has no topology.
    let other = json!({"name": "other", "nodeID": "x", "topologyKeys": ["t"]});
    bench.create(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": "c"}, "spec": {"drivers": [other]}}));
    bench.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "c"}}));
    bench.run_until_idle();
    let found: CSINode = bench.get("", "c").unwrap();
    let added =
        json!({"name": "disk.csi.loadmaster.io", "nodeID": "c", "allocatable": {"count": 24}});
    let mut drivers = serde_json::to_value(&found.spec.drivers).unwrap();
    drivers[1].as_object_mut().unwrap().retain(|_, value| !value.is_null());
    assert_eq!(drivers, json!([other, added]));

    let key = Key::new(Kind::CSINode, "", "a");
    bench.send_as_client(&ControllerRequest::Delete { key, options: Default::default() });
    bench.run_until_idle();
    assert!(bench.get::<CSINode>("", "a").is_some());
}

#[test]
fn a_volume_is_provisioned_where_the_scheduler_selects_a_node() {
    let mut bench = start();
    claim(&mut bench, "data", "late", "4Gi");
    assert_eq!(claims(&bench), "data Pending");
    select(&mut bench, "data", "b");
    assert_eq!(claims(&bench), "data Bound on b in zone-b");
    let want = ["late zone-a 10Gi", "late zone-b 6Gi", "now zone-a 10Gi", "now zone-b 6Gi"];
    assert_eq!(capacities(&mut bench), want);
    let n_sent = bench.sent.len();
    bench.wait(3600);
    assert_eq!(bench.sent.len(), n_sent, "it is idle");

    bench.delete(Kind::PersistentVolumeClaim, "data");
    bench.run_until_idle();
    assert!(bench.list::<PersistentVolume>().is_empty());
    let want = ["late zone-a 10Gi", "late zone-b 10Gi", "now zone-a 10Gi", "now zone-b 10Gi"];
    assert_eq!(capacities(&mut bench), want);
}

#[test]
fn a_retained_volume_still_uses_capacity() {
    let mut bench = start();
    class(
        &mut bench,
        "keep",
        json!({"reclaimPolicy": "Retain", "allowedTopologies": allowed(&["zone-a"])}),
    );
    claim(&mut bench, "data", "keep", "4Gi");
    bench.delete(Kind::PersistentVolumeClaim, "data");
    bench.run_until_idle();
    let phase = bench.list::<PersistentVolume>()[0].status.as_ref().unwrap().phase.clone();
    assert_eq!(phase.as_deref(), Some("Released"));
    assert!(capacities(&mut bench).contains(&"now zone-a 6Gi".to_owned()));
}

#[test]
fn failed_provisioning_clears_the_selected_node() {
    #[track_caller]
    fn check(class_name: &str, size: &str, node: &str, want: &str) {
        let mut bench = start();
        class(
            &mut bench,
            "in-b",
            json!({"volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": allowed(&["zone-b", "zone-c"])}),
        );
        claim(&mut bench, "data", class_name, size);
        select(&mut bench, "data", node);
        assert_eq!(claims(&bench), "data Pending");
        assert_eq!(failures(&bench), [want]);
        // The scheduler selects a node again.
        new_claim(&mut bench, "other", class_name, "1Gi");
        select(&mut bench, "other", "b");
        assert_eq!(claims(&bench), "data Pending, other Bound on b in zone-b");
    }
    check(
        "late",
        "11Gi",
        "a",
        "failed to provision volume with StorageClass \"late\": rpc error: code = ResourceExhausted desc = not enough capacity for 11Gi: 10Gi free in topology.kubernetes.io/zone=zone-a",
    );
    check(
        "in-b",
        "1Gi",
        "a",
        "failed to provision volume with StorageClass \"in-b\": error generating accessibility requirements: topology topology.kubernetes.io/zone=zone-a of the selected node \"a\" is not in the allowed topologies of the class",
    );
    check(
        "late",
        "1Gi",
        "z",
        "failed to provision volume with StorageClass \"late\": failed to get target node: nodes \"z\" not found",
    );
}

#[test]
fn immediate_volumes_are_spread_over_segments_with_capacity() {
    let mut bench = start();
    for (name, size) in
        [("d-0", "6Gi"), ("d-1", "6Gi"), ("d-2", "4Gi"), ("d-3", "3Gi"), ("d-4", "2Gi")]
    {
        new_claim(&mut bench, name, "now", size);
    }
    // All at once: what was just created counts, although the cache does not show it yet.
    bench.run_until_idle();
    let found = claims(&bench);
    let n = |zone: &str| found.matches(zone).count();
    assert_eq!((n("in zone-a"), n("in zone-b"), n("Pending")), (2, 2, 1), "{found}");
    let failed = failures(&bench);
    assert!(failed.len() == 1 && failed[0].contains("ResourceExhausted"), "{failed:#?}");
    let pending = found.split(", ").find_map(|it| it.strip_suffix(" Pending")).unwrap();
    bench.delete(Kind::PersistentVolumeClaim, if pending == "d-0" { "d-1" } else { "d-0" });
    bench.wait(15);
    assert!(!claims(&bench).contains("Pending"), "{}", claims(&bench));
}

#[test]
fn a_volume_that_could_not_be_created_uses_no_capacity() {
    let mut n_failed = 0;
    let faults = move |request: &ControllerRequest| {
        let is_volume = matches!(request, ControllerRequest::Create(_))
            && request.kind() == Kind::PersistentVolume;
        let fails = is_volume && n_failed < 3;
        n_failed += i32::from(fails);
        fails.then(|| ControllerResponse::NoResponse { message: "lost".to_owned() })
    };
    let mut bench = prepared(bench(controllers()).with_faults(faults));
    claim(&mut bench, "data", "late", "6Gi");
    select(&mut bench, "data", "a");
    bench.wait(10);
    assert_eq!(claims(&bench), "data Bound on a in zone-a");
    assert!(capacities(&mut bench).contains(&"now zone-a 4Gi".to_owned()));
}

#[test]
fn allowed_topologies() {
    let mut bench = start();
    class(&mut bench, "b", json!({"allowedTopologies": allowed(&["zone-b"])}));
    class(&mut bench, "z", json!({"allowedTopologies": allowed(&["zone-z"])}));
    claim(&mut bench, "one", "b", "1Gi");
    claim(&mut bench, "two", "z", "1Gi");
    assert_eq!(claims(&bench), "one Bound in zone-b, two Pending");
    assert_eq!(
        failures(&bench),
        [
            "failed to provision volume with StorageClass \"z\": error generating accessibility requirements: no available topology found"
        ]
    );
}

#[test]
fn other_drivers_have_no_limit() {
    let mut bench = start();
    let driver = json!({"provisioner": "ebs.csi.aws.com"});
    let with = |more: Value| {
        let mut class = driver.clone();
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        class
    };
    class(&mut bench, "any", with(json!({})));
    class(&mut bench, "there", with(json!({"allowedTopologies": allowed(&["zone-x"])})));
    let late = json!({"volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": allowed(&["zone-a", "zone-b"])});
    class(&mut bench, "selected", with(late));
    for name in ["any", "there", "selected"] {
        claim(&mut bench, name, name, "1Ti");
    }
    select(&mut bench, "selected", "b");
    assert_eq!(
        claims(&bench),
        "any Bound in any, selected Bound on b in zone-b, there Bound in zone-x"
    );
}

/// Claim and node of each attachment.
fn attachments(bench: &ControllerBench) -> Vec<String> {
    let volumes = bench.list::<PersistentVolume>();
    let shown = bench.list::<VolumeAttachment>().into_iter().map(|it| {
        assert!(it.status.unwrap().attached);
        let volume = it.spec.source.persistent_volume_name;
        let volume = volumes.iter().find(|one| one.metadata.name == volume).unwrap();
        let claim = volume.spec.as_ref().unwrap().claim_ref.as_ref().unwrap().name.clone().unwrap();
        format!("{claim} {}", it.spec.node_name)
    });
    let mut shown: Vec<String> = shown.collect();
    shown.sort_unstable();
    shown
}

fn pod(bench: &mut ControllerBench, name: &str, node: &str, volumes: Value) {
    bench.create(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "volumes": volumes,
            "containers": [{"name": "c", "image": "i"}]}}));
    bench.run_until_idle();
}

#[test]
fn volumes_of_pods_are_attached_to_their_nodes() {
    let mut bench = start();
    let volumes =
        |claim: &str| json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
    claim(&mut bench, "one", "now", "1Gi");
    pod(&mut bench, "p", "a", volumes("one"));
    pod(&mut bench, "q", "a", volumes("one"));
    assert_eq!(attachments(&bench), ["one a"]);
    // A claim may be bound after a pod that uses it was assigned by hand.
    pod(&mut bench, "r", "b", volumes("two"));
    claim(&mut bench, "two", "now", "1Gi");
    bench.wait(2);
    assert_eq!(attachments(&bench), ["one a", "two b"]);
    bench.delete(Kind::Pod, "p");
    bench.run_until_idle();
    assert_eq!(attachments(&bench), ["one a", "two b"]);
    bench.set_phase("q", "Succeeded");
    bench.run_until_idle();
    assert_eq!(attachments(&bench), ["two b"]);
    let key = Key::new(Kind::Node, "", "b");
    bench.send_as_client(&ControllerRequest::Delete { key, options: Default::default() });
    bench.run_until_idle();
    assert_eq!(attachments(&bench), [""; 0]);
}

#[test]
fn volumes_of_some_drivers_are_not_attached() {
    let mut bench = start();
    bench.create(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": CsiDriver::default().name}, "spec": {"attachRequired": false}}));
    claim(&mut bench, "one", "now", "1Gi");
    pod(
        &mut bench,
        "p",
        "a",
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": "one"}}]),
    );
    bench.wait(5);
    assert_eq!(attachments(&bench), [""; 0]);
}

#[test]
fn an_ephemeral_volume_gets_a_claim_of_its_pod() {
    let mut bench = start();
    claim(&mut bench, "p-taken", "now", "1Gi");
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": "now", "resources": {"requests": {"storage": "1Gi"}}}});
    let volume = |name: &str| json!({"name": name, "ephemeral": {"volumeClaimTemplate": template}});
    pod(&mut bench, "p", "a", json!([volume("v"), volume("taken")]));
    let made: PersistentVolumeClaim = bench.get("default", "p-v").unwrap();
    assert_eq!(made.metadata.labels.unwrap()["app"], "a");
    let owner = &made.metadata.owner_references.unwrap()[0];
    assert_eq!((&*owner.kind, &*owner.name, owner.controller), ("Pod", "p", Some(true)));
    assert!(claims(&bench).contains("p-v Bound"), "{}", claims(&bench));
    let warning = "FailedBinding: ephemeral volume taken: PVC default/p-taken was not created for pod default/p (pod is not owner)";
    let events = bench.events();
    assert_eq!(events.iter().filter(|it| *it == warning).count(), 1, "{events:#?}");
}
