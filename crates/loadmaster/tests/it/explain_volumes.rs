//! `loadmaster explain` of pods with volumes, from saved objects, from a live cluster, and from a running scheduler: all three name the
//! claim, the volume, the zone, the limit and the capacity.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::process::{Client, Folder};
use crate::running_scheduler::TestCluster;

const ZONE: &str = "topology.kubernetes.io/zone";
const DRIVER: &str = "disk.example.com";

fn node(name: &str, zone: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {ZONE: zone}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}})
}

/// A pod with this claim, and a disk of its own.
fn pod(name: &str, node: Option<&str>, claim: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}})
}

fn claim(name: &str, mode: &str, volume: Option<&str>) -> Value {
    let annotations = volume.map(|_| json!({"pv.kubernetes.io/bind-completed": "yes"}));
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"accessModes": [mode], "storageClassName": "fast", "volumeName": volume,
            "resources": {"requests": {"storage": "10Gi"}}}})
}

/// A volume that is accessible from this zone; with a zone label it has no node affinity.
fn volume(name: &str, zone: &str, has_label: bool) -> Value {
    let zones = json!({"key": ZONE, "operator": "In", "values": [zone]});
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [zones]}]}});
    json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": has_label.then(|| json!({ZONE: zone}))},
        "spec": {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "csi": {"driver": DRIVER, "volumeHandle": name}, "nodeAffinity": (!has_label).then_some(affinity)}})
}

fn capacity(zone: &str, free: &str) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {"name": zone, "namespace": "kube-system"}, "storageClassName": "fast",
        "nodeTopology": {"matchLabels": {ZONE: zone}}, "capacity": free})
}

/// Nodes in two zones. `a1` has its one volume attached. No pending pod fits anywhere.
fn objects() -> Vec<Value> {
    let limit = |name: &str, count: u32| {
        let driver = json!({"name": DRIVER, "nodeID": name, "allocatable": {"count": count}, "topologyKeys": [ZONE]});
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": [driver]}})
    };
    vec![
        node("a1", "zone-a"),
        node("b1", "zone-b"),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
            "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"storageCapacity": true}}),
        limit("a1", 1),
        limit("b1", 3),
        capacity("zone-a", "3Gi"),
        capacity("zone-b", "5Gi"),
        volume("disk-a", "zone-a", false),
        volume("disk-used", "zone-a", false),
        volume("disk-labeled", "zone-c", true),
        claim("in-zone-a", "ReadWriteOnce", Some("disk-a")),
        claim("used", "ReadWriteOncePod", Some("disk-used")),
        claim("labeled", "ReadWriteOnce", Some("disk-labeled")),
        claim("new", "ReadWriteOnce", None),
        pod("old", Some("a1"), "used"),
        pod("limited", None, "in-zone-a"),
        pod("zoned", None, "labeled"),
        pod("large", None, "new"),
        pod("second", None, "used"),
    ]
}

/// The path to which an object is posted.
fn path(object: &Value) -> &'static str {
    match object["kind"].as_str().unwrap() {
        "Node" => "/api/v1/nodes",
        "Pod" => "/api/v1/namespaces/default/pods",
        "PersistentVolumeClaim" => "/api/v1/namespaces/default/persistentvolumeclaims",
        "PersistentVolume" => "/api/v1/persistentvolumes",
        "StorageClass" => "/apis/storage.k8s.io/v1/storageclasses",
        "CSIDriver" => "/apis/storage.k8s.io/v1/csidrivers",
        "CSINode" => "/apis/storage.k8s.io/v1/csinodes",
        "CSIStorageCapacity" => {
            "/apis/storage.k8s.io/v1/namespaces/kube-system/csistoragecapacities"
        }
        kind => panic!("{kind}"),
    }
}

/// The pending pods, and what is said about them.
fn expected() -> [(&'static str, Expect); 4] {
    [
        (
            "limited",
            expect![[r#"
                default/limited fits none of 2 nodes
                  0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node
                  affinity, 1 node(s) exceed max volume count.
                  profile default-scheduler
                  VolumeBinding: claims=in-zone-a is bound to volume disk-a in
                    topology.kubernetes.io/zone in (zone-a)

                  NODES  REJECTED BY       PREEMPTION     REASON
                      1  NodeVolumeLimits  does not help  node(s) exceed max volume count
                         a1: attached=disk.example.com: 1 of 1 attached, 1 more needed
                      1  VolumeBinding     cannot help    node(s) didn't match
                                                          PersistentVolume's node affinity
                         b1: volumes=volume disk-a of claim in-zone-a is accessible from
                           topology.kubernetes.io/zone in (zone-a), the node has
                           topology.kubernetes.io/zone=zone-b

                  preemption: 0/2 nodes are available: 1 No preemption victims found for
                  incoming pod, 1 Preemption is not helpful for scheduling.
                exit 1
            "#]],
        ),
        (
            "zoned",
            expect![[r#"
                default/zoned fits none of 2 nodes
                  0/2 nodes are available: 1 node(s) exceed max volume count, 1 node(s) had no
                  available volume zone.
                  profile default-scheduler
                  VolumeBinding: claims=labeled is bound to volume disk-labeled

                  NODES  REJECTED BY       PREEMPTION     REASON
                      1  NodeVolumeLimits  does not help  node(s) exceed max volume count
                         a1: attached=disk.example.com: 1 of 1 attached, 1 more needed
                      1  VolumeZone        cannot help    node(s) had no available volume zone
                         b1: zones=volume disk-labeled of claim labeled is in
                           topology.kubernetes.io/zone in (zone-c), the node has
                           topology.kubernetes.io/zone=zone-b

                  preemption: 0/2 nodes are available: 1 No preemption victims found for
                  incoming pod, 1 Preemption is not helpful for scheduling.
                exit 1
            "#]],
        ),
        (
            "large",
            expect![[r#"
                default/large fits none of 2 nodes
                  0/2 nodes are available: 1 node(s) did not have enough free storage, 1 node(s)
                  exceed max volume count.
                  profile default-scheduler
                  VolumeBinding: claims=new is not bound: 10Gi of class fast
                    (WaitForFirstConsumer)

                  NODES  REJECTED BY       PREEMPTION     REASON
                      1  NodeVolumeLimits  does not help  node(s) exceed max volume count
                         a1: attached=disk.example.com: 1 of 1 attached, 1 more needed
                      1  VolumeBinding     cannot help    node(s) did not have enough free
                                                          storage
                         b1: volumes=claim new: 5Gi free for class fast on the node, 10Gi
                           requested

                  preemption: 0/2 nodes are available: 1 No preemption victims found for
                  incoming pod, 1 Preemption is not helpful for scheduling.
                exit 1
            "#]],
        ),
        (
            "second",
            expect![[r#"
                default/second fits none of 2 nodes
                  0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim
                  with ReadWriteOncePod access mode already in-use by another pod.
                  profile default-scheduler
                  VolumeRestrictions: usedClaims=used (ReadWriteOncePod) is used by pod old on
                    node a1
                  VolumeBinding: claims=used is bound to volume disk-used in
                    topology.kubernetes.io/zone in (zone-a)

                  NODES  REJECTED BY         PREEMPTION     REASON
                      2  VolumeRestrictions  does not help  node(s) unavailable due to
                                                            PersistentVolumeClaim with
                                                            ReadWriteOncePod access mode already
                                                            in-use by another pod
                         a1, b1

                  preemption: 0/2 nodes are available: 2 No preemption victims found for
                  incoming pod.
                exit 1
            "#]],
        ),
    ]
}

fn saved(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// The output without what would make the pod fit, which a running scheduler does not search for.
fn without_changes(text: &str) -> String {
    let (text, _) = text.split_once("\n\n  no one or two changes").unwrap_or((text, ""));
    let (text, _) = text.split_once("\n\n  would fit after").unwrap_or((text, ""));
    format!("{}\nexit 1\n", text.trim_end().trim_end_matches("\nexit 1"))
}

#[test]
fn from_saved_objects() {
    let folder = Folder::new().with("cluster.json", &saved(&objects()));
    for (pod, want) in expected() {
        let text = folder.run(&["explain", pod, "--from", "cluster.json"]);
        let (notes, text): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with("2> "));
        assert_eq!(
            notes,
            [
                "2> note: there are no volumeattachments.storage.k8s.io among the saved objects: plugins that watch them see none"
            ]
        );
        want.assert_eq(&without_changes(&text.join("\n")));
    }
}

#[test]
fn saved_objects_without_the_kinds_around_volumes() {
    let is_core = |object: &Value| ["Node", "Pod"].contains(&object["kind"].as_str().unwrap());
    let core: Vec<Value> = objects().into_iter().filter(is_core).collect();
    let plain = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let folder = Folder::new().with("cluster.json", &saved(&[core, vec![plain]].concat()));
    let text = folder.run(&["explain", "limited", "--from", "cluster.json"]);
    expect![[r#"
        default/limited fits none of 2 nodes
          0/2 nodes are available: persistentvolumeclaim "in-zone-a" not found.
          rejected by VolumeRestrictions before any node was evaluated; preemption
          cannot help
          profile default-scheduler
          VolumeBinding: claims=in-zone-a does not exist

          preemption: 0/2 nodes are available: 2 Preemption is not helpful for
          scheduling.

          no one or two changes were found that would make it fit
        2> note: there are no persistentvolumeclaims, persistentvolumes, csidrivers.storage.k8s.io, csinodes.storage.k8s.io, csistoragecapacities.storage.k8s.io, storageclasses.storage.k8s.io, volumeattachments.storage.k8s.io among the saved objects: plugins that watch them see none
        exit 1
    "#]].assert_eq(&text);
    // The kinds do not matter to a pod without volumes.
    let text = folder.run(&["explain", "plain", "--from", "cluster.json"]);
    assert!(text.contains(" fits 2 of 2 nodes") && !text.contains("2>"), "{text}");
}

#[test]
fn from_a_live_cluster_and_from_a_running_scheduler() {
    let cluster = TestCluster::start(|client: &Client| {
        for object in objects() {
            client.create(path(&object), &object);
        }
    });
    for (pod, want) in expected() {
        let live = cluster.folder.run(&["explain", pod, "--kubeconfig", "kubeconfig"]);
        want.assert_eq(&without_changes(&live));
        cluster.wait_for_attempt(&format!("default/{pod}"));
        want.assert_eq(&without_changes(&cluster.explain(&[&format!("default/{pod}")])));
    }
}
