//! The objects that the steps create.

use serde_json::{Value, json};

/// The files: name and objects.
pub(super) fn files() -> Vec<(&'static str, Vec<Value>)> {
    let mut tick = job(&json!({}));
    tick = json!({"schedule": "* * * * *", "successfulJobsHistoryLimit": 1, "jobTemplate": {"spec": tick}});
    let late = vec![
        class("late", "WaitForFirstConsumer"),
        volume("lost", 1, "late", "Delete"),
        volume("spare", 2, "late", "Retain"),
        object("v1", "PersistentVolumeClaim", "late", claim("late")),
    ];
    let claimed = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "late"}}]);
    let consumer = object("v1", "Pod", "consumer", pod(&json!({"volumes": claimed})));
    let mut note = object("e2e.loadmaster.io/v1", "Note", "held", json!({}));
    note["metadata"]["finalizers"] = json!(["e2e.loadmaster.io/hold"]);
    vec![
        ("before.json", before()),
        ("first.json", first()),
        ("tick.json", vec![object("batch/v1", "CronJob", "tick", tick)]),
        ("late.json", late),
        ("consumer.json", vec![consumer]),
        ("definition.json", vec![definition()]),
        ("note.json", vec![note]),
    ]
}

fn object(version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Adds fields to a spec.
fn with(mut spec: Value, more: &Value) -> Value {
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

fn pod(more: &Value) -> Value {
    let spec =
        json!({"containers": [{"name": "c", "image": "v1"}], "terminationGracePeriodSeconds": 0});
    with(spec, more)
}

/// Its pods terminate after a second, on a node that is not tainted later, so that evictions do not depend on the scheduler.
fn job(more: &Value) -> Value {
    let soon = json!({"annotations": {"loadmaster.io/run-seconds": "1"}});
    let pod = pod(&json!({"restartPolicy": "Never", "nodeSelector": node("node-2")}));
    with(json!({"template": {"metadata": soon, "spec": pod}}), more)
}

fn node(name: &str) -> Value {
    json!({"kubernetes.io/hostname": name})
}

fn class(name: &str, mode: &str) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode})
}

fn claim(class: &str) -> Value {
    let size = json!({"requests": {"storage": "1Gi"}});
    json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": size})
}

/// A path that does not exist: kube-controller-manager deletes the folder of a volume.
fn volume(name: &str, gigabytes: u32, class: &str, reclaim: &str) -> Value {
    let path = json!({"path": "/tmp/loadmaster-e2e/none"});
    object(
        "v1",
        "PersistentVolume",
        name,
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": format!("{gigabytes}Gi")},
            "storageClassName": class, "persistentVolumeReclaimPolicy": reclaim, "hostPath": path}),
    )
}

fn definition() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let names = json!({"kind": "Note", "plural": "notes", "singular": "note"});
    object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "notes.e2e.loadmaster.io",
        json!({"group": "e2e.loadmaster.io", "scope": "Namespaced", "names": names, "versions": [version]}),
    )
}

/// Objects that must be synced before they are used. The claims of a StatefulSet are created one after the other and have their own storage class, so that
/// the assignment of volumes is deterministic.
fn before() -> Vec<Value> {
    let disk = |i: u32| volume(&format!("disk-{i}"), i + 1, "disks", "Retain");
    let hard = json!({"persistentvolumeclaims": "10", "requests.storage": "10Gi",
        "disks.storageclass.storage.k8s.io/requests.storage": "5Gi",
        "count/deployments.apps": "5", "count/jobs.batch": "20"});
    let mut all: Vec<Value> = (0..3).map(disk).collect();
    all.extend([
        class("disks", "Immediate"),
        class("own", "Immediate"),
        volume("own", 1, "own", "Retain"),
        object("v1", "ResourceQuota", "all", json!({"hard": hard})),
    ]);
    all
}

/// The workloads.
fn first() -> Vec<Value> {
    let template =
        |app: &str| json!({"metadata": {"labels": {"app": app}}, "spec": pod(&json!({}))});
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    let data = claim("disks");
    let mut slow = job(&json!({"parallelism": 2, "completions": 2}));
    slow["template"]["spec"]["nodeSelector"] = node("node-1");
    slow["template"]["metadata"] = json!({"annotations": {"loadmaster.io/run-seconds": "3600"}});
    vec![
        object("v1", "PersistentVolumeClaim", "alone", claim("own")),
        object(
            "apps/v1",
            "Deployment",
            "web",
            json!({"replicas": 3, "selector": selector("web"), "template": template("web")}),
        ),
        object(
            "apps/v1",
            "StatefulSet",
            "db",
            json!({"replicas": 2, "serviceName": "db", "selector": selector("db"),
            "template": template("db"), "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": data}]}),
        ),
        object(
            "apps/v1",
            "DaemonSet",
            "log",
            json!({"selector": selector("log"), "template": template("log")}),
        ),
        object("batch/v1", "Job", "sum", job(&json!({"completions": 3, "parallelism": 2}))),
        object(
            "batch/v1",
            "Job",
            "each",
            job(&json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed"})),
        ),
        object("batch/v1", "Job", "slow", slow),
        object(
            "policy/v1",
            "PodDisruptionBudget",
            "web",
            json!({"maxUnavailable": 1, "selector": selector("web")}),
        ),
        object(
            "policy/v1",
            "PodDisruptionBudget",
            "db",
            json!({"minAvailable": "50%", "selector": selector("db")}),
        ),
    ]
}
