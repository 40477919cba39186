//! Kills the scheduler while it binds the volumes of pods.
//!
//! kube-controller-manager is slow, so that there are always claims that the scheduler has reserved a volume for, or a node, and that are not
//! bound yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::cases::{DYNAMIC, NO_PROVISIONER, claim, class, pod, volume};
use super::cluster::{CLAIMS, PODS, VOLUMES, VolumeCluster};
use super::{reservations, stateful_sets};
use crate::e2e::api_client::ApiClient;
use crate::e2e::audit::{self, AuditEntry};
use crate::e2e::manifest;
use crate::e2e::scheduler::{SchedulerArgs, SchedulerKind};
use crate::e2e::special_pods::{STEP_TIMEOUT, wait_until};

/// New pods per kill.
const N_PODS: u32 = 16;
/// Disks are on `node-0` to `node-9`.
const N_NODES_WITH_DISKS: u32 = 10;
const DISKS: &str = "kill-disks";
/// The label of a round's claims and volumes.
const ROUND: &str = "kill-round";
/// Requests per second of kube-controller-manager; a claim needs some four to be bound.
const MANAGER_QPS: u32 = 20;
/// The scheduler is killed when it has reserved one to this number of claims of a round.
const N_RESERVED_MAX: usize = 8;
const PAUSE: Duration = Duration::from_millis(2);

/// Kills the scheduler `n_kills` times, and returns the faults of the final state.
pub async fn run_kills(
    cluster: &mut VolumeCluster,
    chosen: &SchedulerArgs,
    kind: SchedulerKind,
    n_kills: u32,
) -> Result<Vec<String>> {
    cluster.restart_manager_with_qps(MANAGER_QPS)?;
    let api = &cluster.api;
    manifest::create(api, &class(DISKS, NO_PROVISIONER, "WaitForFirstConsumer")).await?;
    let mut n_interrupted = 0;
    for round in 0..n_kills {
        for object in objects(round) {
            manifest::create(api, &object).await?;
        }
        let name = format!("{}-{round}", kind.name());
        let mut scheduler = cluster.start_scheduler(chosen, kind, &name)?;
        let n_reserved = 1 + round as usize % N_RESERVED_MAX;
        wait_for_reservations(api, round, n_reserved).await.with_context(|| name.clone())?;
        scheduler.process.check_running()?;
        scheduler.process.kill()?;
        n_interrupted += Reservations::read(api, round).await?.len();
    }
    let name = format!("{}-last", kind.name());
    let mut scheduler = cluster.start_scheduler(chosen, kind, &name)?;
    let n = (n_kills * N_PODS) as usize;
    wait_until("all pods to be bound", 2 * STEP_TIMEOUT, async || {
        let pods = pods(api).await?;
        ensure!(pods.len() == n, "there are {} pods, {n} were created", pods.len());
        Ok(pods.iter().all(is_assigned))
    })
    .await?;
    let mut faults = reservations::faults(api).await?;
    scheduler.process.check_running()?;
    drop(scheduler);
    println!(
        "{}: {n_kills} kills, {n_interrupted} claims were reserved and not bound, {n} pods",
        kind.name()
    );
    if n_interrupted == 0 {
        faults.push("no kill interrupted the binding of a claim".to_owned());
    }
    faults.extend(stateful_sets::unreachable_volumes(api).await?);
    faults.extend(claim_faults(&api.list(CLAIMS).await?, &api.list(VOLUMES).await?));
    let mut entries = cluster.scheduler_writes()?;
    faults.extend(reservation_faults(&entries));
    entries.retain(|entry| entry.name.starts_with("kill-"));
    let pods = pods(api).await?;
    let uids = pods.iter().map(|pod| pod["metadata"]["uid"].as_str().unwrap_or_default());
    faults.extend(audit::binding_faults(&entries, &[], uids.zip(pods.iter().map(is_assigned))));
    Ok(faults)
}

/// Pods with a disk, with a provisioned volume, and with both.
fn objects(round: u32) -> Vec<Value> {
    let labeled = |mut object: Value| {
        object["metadata"]["labels"][ROUND] = json!(round.to_string());
        object
    };
    let mut all = Vec::new();
    for i in round * N_PODS..(round + 1) * N_PODS {
        let (has_disk, has_data) = (i % 2 == 0 || i % 8 == 7, i % 2 == 1);
        let (name, disk, data) =
            (format!("kill-{i}"), format!("kill-disk-{i}"), format!("kill-data-{i}"));
        let mut claims = Vec::new();
        if has_disk {
            let node = format!("node-{}", i % N_NODES_WITH_DISKS);
            all.push(labeled(volume(&disk, DISKS, "10Gi", &node)));
            all.push(labeled(claim(&disk, DISKS, "5Gi")));
            claims.push(disk.as_str());
        }
        if has_data {
            all.push(labeled(claim(&data, DYNAMIC, "1Gi")));
            claims.push(data.as_str());
        }
        all.push(pod(&name, &claims, json!({})));
    }
    all
}

/// The claims of a round for which the scheduler has written a volume or a node, and which are not bound.
struct Reservations;

impl Reservations {
    async fn read(api: &ApiClient, round: u32) -> Result<BTreeSet<String>> {
        let query = format!("?labelSelector={ROUND}%3D{round}");
        let items = async |collection: &str| {
            let mut list = api.get_json(&format!("{collection}{query}")).await?;
            match list["items"].take() {
                Value::Array(items) => Ok(items),
                _ => bail!("a list without items"),
            }
        };
        Ok(reserved(&items(CLAIMS).await?, &items(VOLUMES).await?))
    }
}

fn reserved(claims: &[Value], volumes: &[Value]) -> BTreeSet<String> {
    let is_unbound = |claim: &&Value| claim["status"]["phase"] != "Bound";
    let is_reserved = |claim: &&Value| {
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].is_string()
            || volumes
                .iter()
                .any(|volume| volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"])
    };
    let found = claims.iter().filter(is_unbound).filter(is_reserved);
    found.filter_map(|claim| claim["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

async fn wait_for_reservations(api: &ApiClient, round: u32, n: usize) -> Result<()> {
    for _ in 0..STEP_TIMEOUT.as_millis() / PAUSE.as_millis() {
        if Reservations::read(api, round).await?.len() >= n {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("there were never {n} claims that were reserved and not bound")
}

async fn pods(api: &ApiClient) -> Result<Vec<Value>> {
    let mut pods = api.list(PODS).await?;
    let is_ours = |pod: &Value| {
        pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("kill-"))
    };
    pods.retain(is_ours);
    Ok(pods)
}

fn is_assigned(pod: &Value) -> bool {
    pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty())
}

/// Every claim of the rounds has one volume, which names no other claim.
fn claim_faults(claims: &[Value], volumes: &[Value]) -> Vec<String> {
    let is_ours = |claim: &&Value| claim["metadata"]["labels"][ROUND].is_string();
    let mut faults = Vec::new();
    for claim in claims.iter().filter(is_ours) {
        let name = &claim["metadata"]["name"];
        let names_it =
            |volume: &&Value| volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"];
        let own: Vec<&Value> =
            volumes.iter().filter(names_it).map(|volume| &volume["metadata"]["name"]).collect();
        if claim["status"]["phase"] != "Bound" || own != [&claim["spec"]["volumeName"]] {
            let (volume, phase) = (&claim["spec"]["volumeName"], &claim["status"]["phase"]);
            faults.push(format!(
                "claim {name} has the volume {volume} and is {phase}, and it is named by {own:?}"
            ));
        }
    }
    faults
}

/// No claim was written to two volumes, and no volume was written with two claims. A request whose client died is logged as failed; if it was
/// executed, the final state shows it.
fn reservation_faults(entries: &[AuditEntry]) -> Vec<String> {
    let mut claims: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut volumes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.is_success()) {
        let uid = entry.body["spec"]["claimRef"]["uid"].as_str();
        if let Some(uid) = uid.filter(|_| entry.resource == "persistentvolumes") {
            claims.entry(uid).or_default().insert(&entry.name);
            volumes.entry(&entry.name).or_default().insert(uid);
        }
    }
    let several = |map: BTreeMap<&str, BTreeSet<&str>>, what: &str| {
        let found = map.into_iter().filter(|(_, others)| others.len() > 1);
        found.map(|(one, others)| format!("{what} {one} was written with {others:?}")).collect()
    };
    let mut faults: Vec<String> = several(claims, "the claim with uid");
    faults.extend::<Vec<String>>(several(volumes, "volume"));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim_with(phase: &str, volume: &str, node: Value) -> Value {
        json!({"metadata": {"name": "c", "uid": "1", "labels": {ROUND: "0"},
                "annotations": {"volume.kubernetes.io/selected-node": node}},
            "spec": {"volumeName": volume}, "status": {"phase": phase}})
    }

    fn volume_of(name: &str, uid: &str) -> Value {
        json!({"metadata": {"name": name}, "spec": {"claimRef": {"uid": uid}}})
    }

    #[test]
    fn reserved_claims_are_counted() {
        let check = |claim: Value, volumes: &[Value], want: usize| {
            assert_eq!(reserved(&[claim], volumes).len(), want);
        };
        check(claim_with("Pending", "", json!(null)), &[volume_of("v", "2")], 0);
        check(claim_with("Pending", "", json!("n")), &[], 1);
        check(claim_with("Pending", "", json!(null)), &[volume_of("v", "1")], 1);
        check(claim_with("Bound", "v", json!("n")), &[volume_of("v", "1")], 0);
    }

    #[test]
    fn lost_and_doubled_volumes_are_faults() {
        let check = |phase: &str, volume: &str, volumes: &[Value], n_faults: usize| {
            let claims = [claim_with(phase, volume, json!(null))];
            assert_eq!(claim_faults(&claims, volumes).len(), n_faults, "{phase} {volume}");
        };
        check("Bound", "v", &[volume_of("v", "1"), volume_of("w", "2")], 0);
        check("Pending", "", &[], 1);
        check("Bound", "v", &[volume_of("v", "1"), volume_of("w", "1")], 1);
        check("Bound", "v", &[volume_of("w", "1")], 1);
    }
}
