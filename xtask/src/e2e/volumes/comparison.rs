//! The cases with one scheduler: which requests it sent, and what they led to.

use std::time::Duration;

use anyhow::{Context as _, Result};
use http::Method;
use serde_json::Value;

use super::cases::{self, Outcome, VolumeCase};
use super::cluster::{CLAIMS, DRIVER, PODS, VOLUMES, VolumeCluster};
use super::writes::{WritesByObject, without_run_values};
use crate::e2e::api_client::ApiClient;
use crate::e2e::manifest;
use crate::e2e::scheduler::{SchedulerArgs, SchedulerKind};
use crate::e2e::special_pods::{STEP_TIMEOUT, wait_until};

const N_ZONES: usize = 3;
/// Requests that should not be sent may follow the expected ones.
const SETTLING_TIME: Duration = Duration::from_secs(3);

/// What a scheduler wrote, and the resulting objects.
pub struct CasesResult {
    pub writes: WritesByObject,
    /// Pods, claims and volumes, one line each.
    pub state: Vec<String>,
}

/// Creates the objects of all cases, starts the scheduler, and waits for the outcomes.
pub async fn run_cases(
    cluster: &VolumeCluster,
    chosen: &SchedulerArgs,
    kind: SchedulerKind,
) -> Result<CasesResult> {
    let api = &cluster.api;
    let cases = cases::cases();
    let objects = cases.iter().flat_map(|case| &case.objects);
    for object in cases::shared_objects().iter().chain(objects) {
        manifest::create(api, object).await?;
    }
    wait_until("the controllers to bind claims", STEP_TIMEOUT, async || {
        are_controllers_done(api, &cases).await
    })
    .await?;
    for case in &cases {
        manifest::create(api, &case.pod).await?;
    }
    wait_until("the claim of an ephemeral volume", STEP_TIMEOUT, async || {
        let path = format!("{CLAIMS}/{}", cases::EPHEMERAL_CLAIM);
        Ok(api.request(Method::GET, &path, Vec::new()).await?.status == 200)
    })
    .await?;
    let mut scheduler = cluster.start_scheduler(chosen, kind, kind.name())?;
    wait_for_outcomes(api, &cases, false).await?;
    for object in cases.iter().flat_map(|case| &case.later) {
        manifest::create(api, object).await?;
    }
    wait_for_outcomes(api, &cases, true).await?;
    tokio::time::sleep(SETTLING_TIME).await;
    scheduler.process.check_running()?;
    drop(scheduler);
    let writes = WritesByObject::new(&cluster.scheduler_writes()?);
    Ok(CasesResult { writes, state: state(api).await? })
}

/// Whether the controllers have nothing left to do before the scheduler starts: an update of theirs would conflict with the scheduler's.
async fn are_controllers_done(api: &ApiClient, cases: &[VolumeCase]) -> Result<bool> {
    let volumes = api.list(VOLUMES).await?;
    let claims = api.list(CLAIMS).await?;
    let capacities = api.list("/apis/storage.k8s.io/v1/csistoragecapacities").await?;
    let registered = api.list("/apis/storage.k8s.io/v1/csinodes").await?;
    let is_known = |object: &Value| {
        object["metadata"]["finalizers"].is_array() && object["status"]["phase"].is_string()
    };
    let is_done = |case: &VolumeCase| {
        let immediate = ["immediate", "chosen-volume", "wrong-node", "second-user", "preemptor"];
        let names = case.objects.iter().filter(|it| it["kind"] == "PersistentVolumeClaim");
        !immediate.contains(&case.name)
            || names.map(|it| &it["metadata"]["name"]).all(|name| {
                claims
                    .iter()
                    .any(|it| it["metadata"]["name"] == *name && it["status"]["phase"] == "Bound")
            })
    };
    let is_settled = |it: &&Value| it["status"]["phase"] != "Pending";
    let n_capacities = |class: &Value| {
        capacities.iter().filter(|capacity| capacity["storageClassName"] == *class).count()
    };
    let shared = cases::shared_objects();
    let mut classes = shared
        .iter()
        .chain(cases.iter().flat_map(|case| &case.objects))
        .filter(|object| object["kind"] == "StorageClass" && object["provisioner"] == DRIVER);
    Ok(volumes.iter().all(|it| is_known(it) && is_settled(&it))
        && claims.iter().all(is_known)
        && cases.iter().all(is_done)
        && registered.len() == cases::N_NODES as usize
        && classes.all(|class| n_capacities(&class["metadata"]["name"]) > 0)
        && n_capacities(&cases::DYNAMIC.into()) == N_ZONES)
}

/// Waits until every pod has its outcome: the first one, or that after the later objects were created.
async fn wait_for_outcomes(api: &ApiClient, cases: &[VolumeCase], is_later: bool) -> Result<()> {
    let mut missing = Vec::new();
    let done = wait_until("the outcome of every case", STEP_TIMEOUT, async || {
        let pods = api.list(PODS).await?;
        let has_outcome = |case: &&VolumeCase| {
            let pod = pods.iter().find(|pod| pod["metadata"]["name"] == case.name);
            pod.is_some_and(|pod| has_outcome(pod, case.outcome, is_later))
        };
        missing = cases.iter().filter(|case| !has_outcome(case)).map(|case| case.name).collect();
        Ok(missing.is_empty())
    })
    .await;
    let mut shown = Vec::new();
    for name in &missing {
        let path = format!("{PODS}/{name}");
        let found = api.request(Method::GET, &path, Vec::new()).await?;
        let pod: Value = serde_json::from_slice(&found.body).unwrap_or_default();
        shown.push(format!("{name}: {} {}", pod["spec"]["nodeName"], pod["status"]["conditions"]));
    }
    done.with_context(|| shown.join("\n"))
}

fn has_outcome(pod: &Value, outcome: Outcome, is_later: bool) -> bool {
    let is_on = |node: &str| pod["spec"]["nodeName"] == node;
    let is_rejected = |text: &str| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|it| {
            it["type"] == "PodScheduled"
                && it["status"] == "False"
                && it["message"].as_str().is_some_and(|message| message.contains(text))
        })
    };
    match outcome {
        Outcome::Bound(node) => is_on(node),
        Outcome::Rejected(text) => is_rejected(text),
        Outcome::BoundLater(_, node) if is_later => is_on(node),
        Outcome::BoundLater(text, _) => is_rejected(text),
    }
}

/// What users see of pods, claims and volumes.
async fn state(api: &ApiClient) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for pod in api.list(PODS).await? {
        let (spec, status) = (&pod["spec"], &pod["status"]);
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let conditions: Vec<String> = conditions
            .map(|it| {
                let fields = ["type", "status", "reason", "message"];
                fields.map(|field| it[field].as_str().unwrap_or_default()).join(" ")
            })
            .collect();
        lines.push(format!(
            "pod {} on {}, nominated to {}: {conditions:?}",
            pod["metadata"]["name"], spec["nodeName"], status["nominatedNodeName"]
        ));
    }
    for claim in api.list(CLAIMS).await?.into_iter().map(without_run_values) {
        let (spec, annotations) = (&claim["spec"], &claim["metadata"]["annotations"]);
        lines.push(format!(
            "claim {} with {}, {}: {annotations}",
            claim["metadata"]["name"], spec["volumeName"], claim["status"]["phase"]
        ));
    }
    for volume in api.list(VOLUMES).await?.into_iter().map(without_run_values) {
        let (spec, annotations) = (&volume["spec"], &volume["metadata"]["annotations"]);
        lines.push(format!(
            "volume {} of {}, {}: {annotations}",
            volume["metadata"]["name"], spec["claimRef"], volume["status"]["phase"]
        ));
    }
    lines.sort();
    Ok(lines)
}
