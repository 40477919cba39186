//! Pods with volumes of every kind, each with objects of its own, so that a pod's node and volumes follow from its case alone.

use serde_json::{Value, json};

use super::cluster::{DRIVER, NAMESPACE};

/// The number of nodes: `node-0` to `node-11`, in three zones.
pub const N_NODES: u32 = 12;
/// The node with capacity for one volume of the driver.
const SMALL_NODE: &str = "node-11";
/// The node of pods that exist before.
const USED_NODE: &str = "node-10";
/// The class of claims for which the driver provisions a volume on demand.
pub const DYNAMIC: &str = "dynamic";
/// The claim of a generic ephemeral volume, which kube-controller-manager creates after its pod.
pub const EPHEMERAL_CLAIM: &str = "ephemeral-scratch";
/// The provisioner of classes whose volumes are created beforehand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// What happens to a case's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Bound(&'static str),
    /// It gets the condition Unschedulable, whose message contains this.
    Rejected(&'static str),
    /// It is rejected, then bound when the later objects exist.
    BoundLater(&'static str, &'static str),
}

/// A pod and the objects of its claims.
pub struct VolumeCase {
    /// The pod's name, and the prefix of the other objects' names.
    pub name: &'static str,
    /// Created before, in this order.
    pub objects: Vec<Value>,
    pub pod: Value,
    /// Created when every pod is bound or rejected.
    pub later: Vec<Value>,
    pub outcome: Outcome,
}

/// The objects that all cases share.
pub fn shared_objects() -> Vec<Value> {
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": DRIVER}, "spec": {"storageCapacity": true}});
    // The simulated kubelet keeps a registration that it finds.
    let registration = json!({"name": DRIVER, "nodeID": SMALL_NODE,
        "topologyKeys": ["topology.kubernetes.io/zone"], "allocatable": {"count": 1}});
    let small = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": SMALL_NODE}, "spec": {"drivers": [registration]}});
    let high = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "high"}, "value": 1_000});
    vec![driver, small, high, class(DYNAMIC, DRIVER, "WaitForFirstConsumer")]
}

/// All cases.
pub fn cases() -> Vec<VolumeCase> {
    let mut all = static_cases();
    all.extend(dynamic_cases());
    all.extend(bound_cases());
    all.extend(rejected_cases());
    all.extend(read_write_once_pod_cases());
    all
}

fn static_cases() -> Vec<VolumeCase> {
    let local = |name: &str| class(name, NO_PROVISIONER, "WaitForFirstConsumer");
    let selecting = |name: &str, class: &str, tier: &str| {
        let mut object = claim(name, class, "5Gi");
        object["spec"]["selector"] = json!({"matchLabels": {"tier": tier}});
        object
    };
    let labeled = |name: &str, tier: &str, node: &str| {
        let mut object = volume(name, "by-selector", "10Gi", node);
        object["metadata"]["labels"] = json!({"tier": tier});
        object
    };
    let with_class_and_mode = |mut object: Value| {
        object["spec"]["volumeMode"] = json!("Block");
        object["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadOnlyMany"]);
        object["metadata"]["annotations"] = json!({"example.com/disk": "sda"});
        object
    };
    vec![
        VolumeCase {
            name: "one-volume",
            objects: vec![
                local("one"),
                volume("one-volume", "one", "10Gi", "node-1"),
                claim("one-claim", "one", "5Gi"),
            ],
            pod: pod("one-volume", &["one-claim"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Bound("node-1"),
        },
        // The smallest volume that is large enough for each.
        VolumeCase {
            name: "two-volumes",
            objects: vec![
                local("two"),
                volume("two-small", "two", "10Gi", "node-2"),
                volume("two-large", "two", "20Gi", "node-2"),
                volume("two-elsewhere", "two", "10Gi", "node-3"),
                claim("two-large-claim", "two", "15Gi"),
                claim("two-small-claim", "two", "5Gi"),
            ],
            pod: pod("two-volumes", &["two-large-claim", "two-small-claim"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Bound("node-2"),
        },
        VolumeCase {
            name: "selector",
            objects: vec![
                local("by-selector"),
                labeled("silver-volume", "silver", "node-0"),
                labeled("gold-volume", "gold", "node-3"),
                selecting("gold-claim", "by-selector", "gold"),
            ],
            pod: pod("selector", &["gold-claim"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Bound("node-3"),
        },
        VolumeCase {
            name: "block-mode",
            objects: vec![
                local("block"),
                with_class_and_mode(volume("block-volume", "block", "10Gi", "node-4")),
                volume("filesystem-volume", "block", "10Gi", "node-5"),
                with_class_and_mode(claim("block-claim", "block", "10Gi")),
            ],
            pod: pod("block-mode", &["block-claim"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Bound("node-4"),
        },
        VolumeCase {
            name: "volume-comes-later",
            objects: vec![local("later"), claim("later-claim", "later", "5Gi")],
            pod: pod("volume-comes-later", &["later-claim"], json!({})),
            later: vec![volume("later-volume", "later", "10Gi", "node-6")],
            outcome: Outcome::BoundLater(
                "didn't find available persistent volumes to bind",
                "node-6",
            ),
        },
    ]
}

fn dynamic_cases() -> Vec<VolumeCase> {
    let in_zone = |name: &str, zone: &str| {
        let mut object = class(name, DRIVER, "WaitForFirstConsumer");
        object["allowedTopologies"] = json!([{"matchLabelExpressions": [
            {"key": "topology.kubernetes.io/zone", "values": [zone]}]}]);
        object
    };
    let template = json!({"metadata": {"labels": {"app": "scratch"}},
        "spec": claim("", DYNAMIC, "1Gi")["spec"]});
    let scratch = json!({"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}],
        "nodeSelector": {"kubernetes.io/hostname": "node-8"}});
    vec![
        VolumeCase {
            name: "provisioned",
            objects: vec![claim("provisioned-claim", DYNAMIC, "1Gi")],
            pod: pod("provisioned", &["provisioned-claim"], on("node-4")),
            later: Vec::new(),
            outcome: Outcome::Bound("node-4"),
        },
        VolumeCase {
            name: "allowed-topology",
            objects: vec![in_zone("zone-c", "zone-c"), claim("zone-c-claim", "zone-c", "1Gi")],
            pod: pod("allowed-topology", &["zone-c-claim"], on("node-5")),
            later: Vec::new(),
            outcome: Outcome::Bound("node-5"),
        },
        VolumeCase {
            name: "static-and-provisioned",
            objects: vec![
                class("both", NO_PROVISIONER, "WaitForFirstConsumer"),
                volume("both-volume", "both", "10Gi", "node-7"),
                claim("both-static", "both", "5Gi"),
                claim("both-dynamic", DYNAMIC, "5Gi"),
            ],
            pod: pod("static-and-provisioned", &["both-dynamic", "both-static"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Bound("node-7"),
        },
        VolumeCase {
            name: "ephemeral",
            objects: Vec::new(),
            pod: pod("ephemeral", &[], scratch),
            later: Vec::new(),
            outcome: Outcome::Bound("node-8"),
        },
        VolumeCase {
            name: "other-topology",
            objects: vec![in_zone("zone-b", "zone-b"), claim("zone-b-claim", "zone-b", "1Gi")],
            pod: pod("other-topology", &["zone-b-claim"], on("node-6")),
            later: Vec::new(),
            outcome: Outcome::Rejected("didn't find available persistent volumes to bind"),
        },
        VolumeCase {
            name: "too-large",
            objects: vec![claim("too-large-claim", DYNAMIC, "2Ti")],
            pod: pod("too-large", &["too-large-claim"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Rejected("did not have enough free storage"),
        },
    ]
}

/// Claims that are bound before, or should be.
fn bound_cases() -> Vec<VolumeCase> {
    let immediate = |name: &str| class(name, NO_PROVISIONER, "Immediate");
    let mut chosen = claim("chosen-claim", "chosen", "5Gi");
    chosen["spec"]["volumeName"] = json!("chosen-volume");
    vec![
        VolumeCase {
            name: "immediate",
            objects: vec![
                immediate("immediate"),
                volume("immediate-volume", "immediate", "10Gi", "node-9"),
                claim("immediate-claim", "immediate", "5Gi"),
            ],
            pod: pod("immediate", &["immediate-claim"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Bound("node-9"),
        },
        VolumeCase {
            name: "chosen-volume",
            objects: vec![
                class("chosen", NO_PROVISIONER, "WaitForFirstConsumer"),
                volume("chosen-volume", "chosen", "10Gi", "node-0"),
                chosen,
            ],
            pod: pod("chosen-volume", &["chosen-claim"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Bound("node-0"),
        },
        VolumeCase {
            name: "wrong-node",
            objects: vec![
                immediate("wrong"),
                volume("wrong-volume", "wrong", "10Gi", "node-1"),
                claim("wrong-claim", "wrong", "5Gi"),
            ],
            pod: pod("wrong-node", &["wrong-claim"], on("node-2")),
            later: Vec::new(),
            outcome: Outcome::Rejected("didn't match PersistentVolume's node affinity"),
        },
        VolumeCase {
            name: "not-bound-yet",
            objects: vec![immediate("unbound"), claim("unbound-claim", "unbound", "5Gi")],
            pod: pod("not-bound-yet", &["unbound-claim"], json!({})),
            later: vec![volume("unbound-volume", "unbound", "10Gi", "node-3")],
            outcome: Outcome::BoundLater(
                "pod has unbound immediate PersistentVolumeClaims",
                "node-3",
            ),
        },
    ]
}

fn rejected_cases() -> Vec<VolumeCase> {
    let mut lost = claim("lost-claim", "lost", "1Gi");
    lost["spec"]["volumeName"] = json!("lost-volume");
    lost["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    vec![
        VolumeCase {
            name: "no-claim",
            objects: Vec::new(),
            pod: pod("no-claim", &["missing-claim"], on("node-5")),
            later: vec![claim("missing-claim", DYNAMIC, "1Gi")],
            outcome: Outcome::BoundLater(
                "persistentvolumeclaim \"missing-claim\" not found",
                "node-5",
            ),
        },
        VolumeCase {
            name: "no-class",
            objects: vec![claim("no-class-claim", "no-such-class", "1Gi")],
            pod: pod("no-class", &["no-class-claim"], on("node-6")),
            // Without CSIStorageCapacities, which would be published some time after the class.
            later: vec![class("no-such-class", "other.csi.example.com", "WaitForFirstConsumer")],
            outcome: Outcome::BoundLater("", "node-6"),
        },
        VolumeCase {
            name: "lost",
            objects: vec![lost],
            pod: pod("lost", &["lost-claim"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Rejected("bound to non-existent persistentvolume"),
        },
        VolumeCase {
            name: "too-many",
            objects: vec![claim("too-many-0", DYNAMIC, "1Gi"), claim("too-many-1", DYNAMIC, "1Gi")],
            pod: pod("too-many", &["too-many-0", "too-many-1"], on(SMALL_NODE)),
            later: Vec::new(),
            outcome: Outcome::Rejected("exceed max volume count"),
        },
    ]
}

/// Claims that only one pod may use.
fn read_write_once_pod_cases() -> Vec<VolumeCase> {
    let once = |mut object: Value| {
        object["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
        object
    };
    let csi = |name: &str, class: &str| {
        let mut object = once(volume(name, class, "10Gi", ""));
        object["spec"]["csi"] = json!({"driver": DRIVER, "volumeHandle": name});
        object
    };
    let user = |name: &str, claim: &str| pod(name, &[claim], json!({"nodeName": USED_NODE}));
    let objects = |class_name: &str, volume: &str, claim_name: &str, user_name: &str| {
        vec![
            class(class_name, NO_PROVISIONER, "Immediate"),
            csi(volume, class_name),
            once(claim(claim_name, class_name, "5Gi")),
            user(user_name, claim_name),
        ]
    };
    vec![
        VolumeCase {
            name: "second-user",
            objects: objects("used", "used-volume", "used-claim", "first-user"),
            pod: pod("second-user", &["used-claim"], json!({})),
            later: Vec::new(),
            outcome: Outcome::Rejected("ReadWriteOncePod access mode"),
        },
        VolumeCase {
            name: "preemptor",
            objects: objects("taken", "taken-volume", "taken-claim", "victim"),
            pod: pod("preemptor", &["taken-claim"], json!({"priorityClassName": "high"})),
            later: Vec::new(),
            outcome: Outcome::Bound(USED_NODE),
        },
    ]
}

/// A StorageClass.
pub fn class(name: &str, provisioner: &str, binding_mode: &str) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": provisioner, "volumeBindingMode": binding_mode})
}

/// A disk of a node; without a node, a volume whose source is to be set.
pub fn volume(name: &str, class: &str, size: &str, node: &str) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": class}});
    if !node.is_empty() {
        let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        object["spec"]["local"] = json!({"path": format!("/disks/{name}")});
        object["spec"]["nodeAffinity"] =
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}});
    }
    object
}

/// A claim.
pub fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": size}}}})
}

/// A pod with these claims, and with more fields of its spec.
pub fn pod(name: &str, claims: &[&str], more: Value) -> Value {
    let volume =
        |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    let container = json!({"name": "main", "image": "registry.example/app-0:v1",
        "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}});
    let mut spec = json!({"containers": [container], "terminationGracePeriodSeconds": 0,
        "volumes": claims.iter().map(volume).collect::<Vec<Value>>()});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}}, "spec": spec})
}

fn on(node: &str) -> Value {
    json!({"nodeSelector": {"kubernetes.io/hostname": node}})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let cases = cases();
        let all = cases.iter().flat_map(|case| {
            case.objects.iter().chain(&case.later).chain(std::iter::once(&case.pod))
        });
        let names: Vec<String> = shared_objects()
            .iter()
            .chain(all)
            .map(|object| format!("{} {}", object["kind"], object["metadata"]["name"]))
            .collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        for case in &cases {
            assert_eq!(case.pod["metadata"]["name"], case.name);
        }
    }
}
