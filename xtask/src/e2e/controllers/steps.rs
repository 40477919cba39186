//! The steps: kubectl commands that change the cluster.

mod manifests;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{StatesAfterSteps, list, summary};
use crate::e2e::api_client::ApiClient;
use crate::e2e::programs::Program;
use crate::e2e::special_pods::wait_until;

/// A step is complete when nothing has changed for this time.
const SETTLE_TIME: Duration = Duration::from_secs(4);
/// The timeout of a step.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The steps: a name, and the arguments of each kubectl command. File names refer to `manifests`.
const STEPS: &[(&str, &[&str])] = &[
    // A claim that is observed before its volume would get an Event that there is no volume; objects created before a quota is synced may not be counted.
    (
        "before",
        &[
            "apply --validate=false -f before.json",
            "wait --for=jsonpath={.status.phase}=Available --timeout=60s pv --all",
            "wait --for=jsonpath={.status.used.persistentvolumeclaims}=0 --timeout=60s quota/all",
        ],
    ),
    (
        "create",
        &[
            "apply --validate=false -f first.json",
            "wait --for=jsonpath={.status.phase}=Bound --timeout=60s pvc/alone",
        ],
    ),
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
    // The Job's pods are recreated after a backoff, and wait for their node.
    (
        "taint",
        &[
            "taint nodes node-1 a=b:NoExecute",
            "wait --for=jsonpath={.status.failed}=2 --timeout=60s job/slow",
            "wait --for=jsonpath={.status.active}=2 --timeout=90s job/slow",
        ],
    ),
    ("untaint", &["taint nodes node-1 a-"]),
    ("shrink", &["scale deployment/web --replicas=1", "scale statefulset/db --replicas=1"]),
    // Runs once, at the beginning of the next minute.
    (
        "tick",
        &[
            "apply --validate=false -f tick.json",
            "wait --for=jsonpath={.status.lastSuccessfulTime} --timeout=120s cronjob/tick",
            "patch cronjob/tick -p {\"spec\":{\"suspend\":true}}",
        ],
    ),
    ("untick", &["delete cronjob/tick --wait=false"]),
    ("late claim", &["apply --validate=false -f late.json"]),
    ("first consumer", &["apply --validate=false -f consumer.json"]),
    ("claim in use", &["delete pvc/late --wait=false"]),
    ("claim out of use", &["delete pod/consumer --wait=false"]),
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
    (
        "custom",
        &[
            "apply -f definition.json",
            "wait --for=condition=Established --timeout=30s crd/notes.e2e.loadmaster.io",
            "apply -f note.json",
        ],
    ),
    ("namespace", &["delete namespace/play --wait=false"]),
    ("let go", &["patch note/held --type=merge -p {\"metadata\":{\"finalizers\":null}}"]),
];

/// Runs the steps and collects the objects after each.
pub(super) async fn run_steps(
    api: &ApiClient,
    kubeconfig: &Path,
    folder: &Path,
) -> Result<StatesAfterSteps> {
    for (name, items) in manifests::files() {
        let file = folder.join(name);
        std::fs::write(&file, list(&items))
            .with_context(|| format!("writing {}", file.display()))?;
    }
    kubectl(kubeconfig, &["create", "namespace", "play"]).await?;
    until_nodes_are_ready(api).await?;
    let mut states = StatesAfterSteps::new();
    for (name, calls) in STEPS {
        for call in *calls {
            let is_file = |word: &str| word.ends_with(".json");
            let path = |word: &str| folder.join(word).display().to_string();
            let word = |word: &str| if is_file(word) { path(word) } else { word.to_owned() };
            let words: Vec<String> = call.split(' ').map(word).collect();
            let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
            words.push("--namespace=play");
            kubectl(kubeconfig, &words).await.with_context(|| (*name).to_owned())?;
        }
        states.push((name, settled(api).await?));
    }
    Ok(states)
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

async fn until_nodes_are_ready(api: &ApiClient) -> Result<()> {
    let is_ready = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
            && node["spec"]["taints"].is_null()
    };
    wait_until("nodes that are ready", TIMEOUT, async || {
        let nodes = api.list("/api/v1/nodes").await?;
        Ok(nodes.len() == super::N_NODES && nodes.iter().all(is_ready))
    })
    .await
}

/// The objects after nothing has changed for a while.
async fn settled(api: &ApiClient) -> Result<std::collections::BTreeSet<String>> {
    let mut last = summary::read_summary(api).await?;
    let (mut quiet, mut all) = (Duration::ZERO, Duration::ZERO);
    let pause = Duration::from_secs(1);
    while quiet < SETTLE_TIME && all < TIMEOUT {
        tokio::time::sleep(pause).await;
        let next = summary::read_summary(api).await?;
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
