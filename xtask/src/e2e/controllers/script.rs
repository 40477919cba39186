//! What is done to the cluster: calls of kubectl, one step after the other.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{Story, list, summary};
use crate::e2e::api::Api;
use crate::e2e::programs::Program;

/// Nothing may change for so long before a step counts as done.
const QUIET: Duration = Duration::from_secs(4);
/// At most so long.
const PATIENCE: Duration = Duration::from_secs(90);

/// The steps: a name, and the arguments of each call.
const STEPS: &[(&str, &[&str])] = &[
    ("create", &["apply --validate=false -f FILE"]),
    ("scale", &["scale deployment/web --replicas=5", "scale statefulset/db --replicas=3"]),
    (
        "update",
        &[
            "set image deployment/web c=v2",
            "set image statefulset/db c=v2",
            "set image daemonset/log c=v2",
        ],
    ),
    (
        "undo",
        &[
            "rollout undo deployment/web",
            "rollout undo statefulset/db",
            "rollout undo daemonset/log",
        ],
    ),
    (
        "pause",
        &[
            "rollout pause deployment/web",
            "set image deployment/web c=v3",
            "scale deployment/web --replicas=4",
        ],
    ),
    ("resume", &["rollout resume deployment/web"]),
    ("taint", &["taint nodes node-1 a=b:NoExecute"]),
    ("untaint", &["taint nodes node-1 a-"]),
    ("shrink", &["scale deployment/web --replicas=1", "scale statefulset/db --replicas=1"]),
    ("suspend", &["patch job/slow -p {\"spec\":{\"suspend\":true}}"]),
    ("orphan", &["delete deployment/web --cascade=orphan --wait=false"]),
    ("foreground", &["delete daemonset/log --cascade=foreground --wait=false"]),
    (
        "delete",
        &[
            "delete job/slow job/sum --wait=false",
            "delete pvc/alone --wait=false",
            "delete statefulset/db --wait=false",
        ],
    ),
    ("namespace", &["delete namespace/play --wait=false"]),
];

/// Makes the steps and notes what each comes to.
pub(super) async fn play(api: &Api, kubeconfig: &Path, folder: &Path) -> Result<Story> {
    let file = folder.join("objects.json");
    std::fs::write(&file, list(&objects()))
        .with_context(|| format!("writing {}", file.display()))?;
    kubectl(kubeconfig, &["create", "namespace", "play"]).await?;
    until_nodes_are_ready(api).await?;
    let mut story = Story::new();
    for (name, calls) in STEPS {
        for call in *calls {
            let file = file.display().to_string();
            let words: Vec<String> =
                call.split(' ').map(|word| word.replace("FILE", &file)).collect();
            let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
            words.push("--namespace=play");
            kubectl(kubeconfig, &words).await.with_context(|| (*name).to_owned())?;
        }
        story.push((name, settled(api).await?));
    }
    Ok(story)
}

async fn kubectl(kubeconfig: &Path, words: &[&str]) -> Result<()> {
    let mut command = Command::new(Program::Kubectl.path()?);
    command.arg(format!("--kubeconfig={}", kubeconfig.display())).args(words);
    let done = tokio::task::spawn_blocking(move || command.output());
    let output = done.await.context("waiting for kubectl")?.context("running kubectl")?;
    if !output.status.success() {
        bail!("kubectl {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

async fn until_nodes_are_ready(api: &Api) -> Result<()> {
    for _ in 0..PATIENCE.as_secs() {
        let nodes = api.list("/api/v1/nodes").await?;
        let is_ready = |node: &Value| {
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
                && node["spec"]["taints"].is_null()
        };
        if nodes.len() == super::N_NODES && nodes.iter().all(is_ready) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    bail!("the nodes were not ready within {} s", PATIENCE.as_secs())
}

/// The objects once nothing changes any more.
async fn settled(api: &Api) -> Result<std::collections::BTreeSet<String>> {
    let mut last = summary::take(api).await?;
    let (mut quiet, mut all) = (Duration::ZERO, Duration::ZERO);
    let pause = Duration::from_secs(1);
    while quiet < QUIET && all < PATIENCE {
        tokio::time::sleep(pause).await;
        let next = summary::take(api).await?;
        let is_going = |line: &String| {
            line.contains("\"isGoing\":true") || line.contains("\"phase\":\"Terminating\"")
        };
        let is_quiet = next == last && !next.iter().any(is_going);
        quiet = if is_quiet { quiet + pause } else { Duration::ZERO };
        all += pause;
        last = next;
    }
    Ok(last)
}

fn objects() -> Vec<Value> {
    let object = |version: &str, kind: &str, name: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    let pod = |more: Value| {
        let mut spec = json!({"containers": [{"name": "c", "image": "v1"}], "terminationGracePeriodSeconds": 0});
        if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
            spec.extend(more.clone());
        }
        spec
    };
    let template =
        |app: &str| json!({"metadata": {"labels": {"app": app}}, "spec": pod(json!({}))});
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    let job = |more: Value| {
        let soon = json!({"annotations": {"loadmaster.io/run-seconds": "1"}});
        let pod = pod(json!({"restartPolicy": "Never"}));
        let mut spec = json!({"template": {"metadata": soon, "spec": pod}});
        if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
            spec.extend(more.clone());
        }
        spec
    };
    let size = json!({"requests": {"storage": "1Gi"}});
    let claim =
        json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "disks", "resources": size});
    let volume = |i: u32| {
        object(
            "v1",
            "PersistentVolume",
            &format!("disk-{i}"),
            json!({"accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": format!("{}Gi", i + 1)}, "storageClassName": "disks",
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/tmp"}}),
        )
    };
    let mut slow = job(json!({"parallelism": 2, "completions": 2}));
    slow["template"]["metadata"] = json!({"annotations": {"loadmaster.io/run-seconds": "3600"}});
    let mut all: Vec<Value> = (0..4).map(volume).collect();
    all.extend([
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disks"},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "Immediate"}),
        object("v1", "PersistentVolumeClaim", "alone", claim.clone()),
        object("apps/v1", "Deployment", "web", json!({"replicas": 3, "selector": selector("web"), "template": template("web")})),
        object("apps/v1", "StatefulSet", "db", json!({"replicas": 2, "serviceName": "db", "selector": selector("db"),
            "template": template("db"), "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}]})),
        object("apps/v1", "DaemonSet", "log", json!({"selector": selector("log"), "template": template("log")})),
        object("batch/v1", "Job", "sum", job(json!({"completions": 3, "parallelism": 2}))),
        object("batch/v1", "Job", "each", job(json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed"}))),
        object("batch/v1", "Job", "slow", slow),
        object("policy/v1", "PodDisruptionBudget", "web", json!({"maxUnavailable": 1, "selector": selector("web")})),
        object("policy/v1", "PodDisruptionBudget", "db", json!({"minAvailable": "50%", "selector": selector("db")})),
    ]);
    all
}
