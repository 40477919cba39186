use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;
use crate::disk_source::Csi;

fn volume(spec: Value) -> PersistentVolume {
    serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap()
}

#[test]
fn a_volume_as_a_csi_provisioner_makes_it() {
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "pvc-1", "uid": "u1", "resourceVersion": "17", "labels": {"a": "b"}, "finalizers": ["kubernetes.io/pv-protection"],
            "annotations": {"pv.kubernetes.io/provisioned-by": "csi.example.com", BOUND_BY_CONTROLLER: "yes", "x": null}},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Delete", "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": "data", "uid": "u2"},
            "csi": {"driver": "csi.example.com", "volumeHandle": "h1", "volumeAttributes": {"k": "v"}},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
        "status": {"phase": "Bound"},
    }))
    .unwrap();
    assert_eq!(volume.class(), "fast");
    assert_eq!(volume.capacity().value(), 1 << 30);
    assert_eq!(&*volume.metadata.resource_version, "17");
    let annotations: Vec<&str> =
        volume.metadata.annotations.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(annotations, [BOUND_BY_CONTROLLER], "only those that are read");
    let spec = &volume.spec;
    let claim = spec.claim_ref.as_deref().unwrap();
    assert_eq!((claim.namespace.as_str(), claim.name.as_str(), &*claim.uid), ("ns", "data", "u2"));
    let terms = &spec.required_node_affinity.as_ref().unwrap().node_selector_terms;
    assert_eq!(terms[0].match_expressions[0].key, "zone");
    let want = Csi { driver: "csi.example.com".into(), volume_handle: "h1".into() };
    assert_eq!(spec.disk.as_deref(), Some(&DiskSource::Csi(want)));
    assert_eq!(volume.status.phase, "Bound");
}

#[test]
fn disks() {
    #[track_caller]
    fn check(source: Value, want: &Expect) {
        want.assert_eq(&format!("{:?}", volume(source).spec.disk));
    }
    check(json!({"hostPath": {"path": "/tmp"}}), &expect!["None"]);
    check(json!({"csi": null, "rbd": null}), &expect!["None"]);
    check(
        json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true, "fsType": "ext4"}}),
        &expect![r#"Some(GcePersistentDisk(GcePersistentDisk { pd_name: "d", read_only: true }))"#],
    );
    check(
        json!({"awsElasticBlockStore": {"volumeID": "v"}}),
        &expect![[r#"Some(AwsElasticBlockStore(VolumeId { volume_id: "v" }))"#]],
    );
    check(
        json!({"azureDisk": {"diskURI": "u", "kind": "Managed"}}),
        &expect![[r#"Some(AzureDisk(AzureDisk { disk_uri: "u", kind: Some("Managed") }))"#]],
    );
    check(
        json!({"rbd": {"monitors": ["m"], "image": "i", "pool": "p"}}),
        &expect![[
            r#"Some(Rbd(Rbd { monitors: ["m"], pool: "p", image: "i", read_only: false }))"#
        ]],
    );
    check(
        json!({"iscsi": {"iqn": "q", "targetPortal": "t"}}),
        &expect![[r#"Some(Iscsi(Iscsi { iqn: "q", read_only: false }))"#]],
    );
}

#[test]
fn the_class_in_the_annotation_comes_first() {
    let mut volume = volume(json!({"storageClassName": "fast"}));
    let old: Labels = [(Str::new(BETA_STORAGE_CLASS), Str::new("slow"))].into_iter().collect();
    volume.metadata.annotations = old.clone();
    assert_eq!(volume.class(), "slow");
    let mut claim = PersistentVolumeClaim::default();
    assert_eq!(claim.class(), "");
    claim.spec.storage_class_name = Some("fast".into());
    assert_eq!(claim.class(), "fast");
    claim.metadata.annotations = old;
    assert_eq!(claim.class(), "slow");
}

#[test]
fn a_claim_is_bound_when_the_controller_says_so() {
    let claim = |annotations: Value, volume: &str| -> PersistentVolumeClaim {
        let claim =
            json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}});
        serde_json::from_value(claim).unwrap()
    };
    assert!(claim(json!({BIND_COMPLETED: ""}), "pv").is_fully_bound());
    assert!(!claim(json!({BIND_COMPLETED: "yes"}), "").is_fully_bound());
    assert!(!claim(Value::Null, "pv").is_fully_bound());
}

#[test]
fn the_other_kinds() {
    let node: CsiNode = serde_json::from_value(json!({
        "metadata": {"name": "a", "annotations": {MIGRATED_PLUGINS: "kubernetes.io/aws-ebs,kubernetes.io/gce-pd"}},
        "spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": 3}}, {"name": "e", "allocatable": null}]}}))
    .unwrap();
    assert!(node.is_migrated("kubernetes.io/gce-pd") && !node.is_migrated("kubernetes.io/gce"));
    let limits: Vec<Option<i32>> =
        node.spec.drivers.iter().map(|driver| driver.allocatable.count).collect();
    assert_eq!(limits, [Some(3), None]);
    let capacity = |more: Value| -> Option<i64> {
        let capacity: CsiStorageCapacity = serde_json::from_value(more).unwrap();
        capacity.volume_limit().map(|limit| limit.value())
    };
    assert_eq!(capacity(json!({"capacity": "2Gi", "maximumVolumeSize": "1Gi"})), Some(1 << 30));
    assert_eq!(capacity(json!({"capacity": "2Gi"})), Some(2 << 30));
    assert_eq!(capacity(json!({})), None);
    let driver: CsiDriver =
        serde_json::from_value(json!({"spec": {"storageCapacity": true}})).unwrap();
    assert!(driver.spec.storage_capacity && !driver.spec.prevent_pod_scheduling_if_missing);
    let class: StorageClass =
        serde_json::from_value(json!({"provisioner": "p", "volumeBindingMode": "Immediate",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}))
        .unwrap();
    assert_eq!(class.allowed_topologies[0].match_label_expressions[0].values, ["a"]);
    let attachment: VolumeAttachment = serde_json::from_value(
        json!({"spec": {"attacher": "d", "nodeName": "a", "source": {"persistentVolumeName": "pv"}}}),
    )
    .unwrap();
    assert_eq!(attachment.spec.source.persistent_volume_name.as_deref(), Some("pv"));
}

#[test]
fn nulls_are_zero_values_and_lists_are_no_objects() {
    let read = |spec: Value| serde_json::from_value::<PersistentVolume>(json!({"spec": spec}));
    let nulls = json!({"capacity": null, "accessModes": null, "claimRef": null, "nodeAffinity": null, "volumeMode": null});
    assert_eq!(read(nulls).unwrap(), PersistentVolume::default());
    for field in ["claimRef", "nodeAffinity", "csi"] {
        assert!(read(json!({field: []})).is_err(), "{field}");
    }
    assert!(read(json!({"capacity": {"storage": "much"}})).is_err());
}
