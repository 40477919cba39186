//! StatefulSets with claim templates, scaled down and up.
//!
//! The pods of one have a disk of their node and a provisioned volume, which they keep when they are deleted. Those of the other have a
//! provisioned volume, which is deleted with them.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::cases::{DYNAMIC, NO_PROVISIONER, claim, class, volume};
use super::cluster::{CLAIMS, NAMESPACE, PODS, VOLUMES, VolumeCluster};
use super::reservations;
use crate::e2e::api_client::ApiClient;
use crate::e2e::manifest;
use crate::e2e::scheduler::{SchedulerArgs, SchedulerKind};
use crate::e2e::special_pods::{STEP_TIMEOUT, wait_until};

const SETS: [&str; 2] = ["keeping", "deleting"];
const DISKS: &str = "disks";
/// Disks are on `node-0` to `node-9`, two more on each than the pods need.
const N_NODES_WITH_DISKS: u32 = 10;

/// Pods per node and per zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    pub per_node: BTreeMap<String, usize>,
    pub per_zone: BTreeMap<String, usize>,
}

impl PodCounts {
    /// Whether no node and no zone has more pods than the fullest one of `other`, except for one: the pods of both sets are created at the same
    /// time, in another order in each run, and take each other's resources.
    pub fn is_as_even_as(&self, other: &PodCounts) -> bool {
        let most = |counts: &BTreeMap<String, usize>| counts.values().copied().max().unwrap_or(0);
        most(&self.per_node) <= most(&other.per_node) + 1
            && most(&self.per_zone) <= most(&other.per_zone) + 1
    }
}

impl fmt::Display for PodCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sorted = |counts: &BTreeMap<String, usize>| {
            let mut counts: Vec<usize> = counts.values().copied().collect();
            counts.sort_by(|a, b| b.cmp(a));
            counts
        };
        let (nodes, zones) = (sorted(&self.per_node), sorted(&self.per_zone));
        write!(f, "{nodes:?} pods per node, {zones:?} per zone")
    }
}

/// The result with one scheduler.
#[derive(Default)]
pub struct SetsResult {
    /// Where the pods of each set were at first, and after they were scaled down and up.
    pub counts: Vec<(String, PodCounts)>,
    pub faults: Vec<String>,
}

/// Creates the StatefulSets, scales them, deletes them, and checks after each step that nothing is left reserved.
pub async fn run_sets(
    cluster: &VolumeCluster,
    chosen: &SchedulerArgs,
    kind: SchedulerKind,
    n: u32,
) -> Result<SetsResult> {
    let api = &cluster.api;
    let name = format!("{}-sets", kind.name());
    let mut scheduler = cluster.start_scheduler(chosen, kind, &name)?;
    for object in objects(n) {
        manifest::create(api, &object).await?;
    }
    let mut result = SetsResult::default();
    wait_for_pods(api, SETS.map(|set| (set, n))).await?;
    let disks_before = disks_by_pod(api).await?;
    result.record_counts(api, "created").await?;

    let n_fewer = n * 2 / 5;
    scale(api, n_fewer).await?;
    wait_for_pods(api, SETS.map(|set| (set, n_fewer))).await?;
    wait_for_claims(api, "keeping", 2 * n).await?;
    wait_for_claims(api, "deleting", n_fewer).await?;
    result.faults.extend(reservations::faults(api).await?);

    scale(api, n).await?;
    wait_for_pods(api, SETS.map(|set| (set, n))).await?;
    result.record_counts(api, "scaled down and up").await?;
    if disks_by_pod(api).await? != disks_before {
        result.faults.push("pods have other disks or nodes after scaling down and up".to_owned());
    }
    result.faults.extend(unreachable_volumes(api).await?);

    delete_while_binding(api, n).await?;
    result.faults.extend(reservations::faults(api).await?);

    for set in SETS {
        delete(api, &format!("{}/{set}", sets_path())).await?;
    }
    delete(api, &format!("{CLAIMS}?labelSelector=app%3Dkeeping")).await?;
    wait_until("all claims of the StatefulSets to be deleted", STEP_TIMEOUT, async || {
        let claims = api.list(CLAIMS).await?;
        Ok(!claims.iter().any(|claim| SETS.iter().any(|set| is_of(claim, set))))
    })
    .await?;
    result.faults.extend(reservations::faults(api).await?);
    scheduler.process.check_running()?;
    Ok(result)
}

/// The class and the disks, and the sets.
fn objects(n: u32) -> Vec<Value> {
    let per_node = n.div_ceil(N_NODES_WITH_DISKS) + 2;
    let disk = |i: u32| {
        let node = format!("node-{}", i % N_NODES_WITH_DISKS);
        volume(&format!("disk-{i}"), DISKS, "10Gi", &node)
    };
    let mut all = vec![class(DISKS, NO_PROVISIONER, "WaitForFirstConsumer")];
    all.extend((0..per_node * N_NODES_WITH_DISKS).map(disk));
    let template = |name: &str, class: &str| {
        let object = claim(name, class, "1Gi");
        json!({"metadata": {"name": name}, "spec": object["spec"]})
    };
    let set = |name: &str, templates: Value, policy: &str| {
        let labels = json!({"app": name});
        let container = json!({"name": "main", "image": "registry.example/app-0:v1",
            "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}});
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"replicas": n, "serviceName": name, "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels}, "volumeClaimTemplates": templates,
                "persistentVolumeClaimRetentionPolicy": {"whenScaled": policy, "whenDeleted": policy},
                "template": {"metadata": {"labels": labels},
                    "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}}})
    };
    let data = template("data", DYNAMIC);
    all.push(set(SETS[0], json!([template("disk", DISKS), data]), "Retain"));
    all.push(set(SETS[1], json!([data]), "Delete"));
    all
}

impl SetsResult {
    async fn record_counts(&mut self, api: &ApiClient, step: &str) -> Result<()> {
        let nodes = api.list("/api/v1/nodes").await?;
        let zone = |name: &Value| {
            let node = nodes.iter().find(|node| node["metadata"]["name"] == *name);
            node.map(|node| text(&node["metadata"]["labels"]["topology.kubernetes.io/zone"]))
        };
        for set in SETS {
            let mut counts = PodCounts::default();
            for pod in pods_of(api, set).await? {
                let node = &pod["spec"]["nodeName"];
                *counts.per_node.entry(text(node)).or_default() += 1;
                *counts.per_zone.entry(zone(node).unwrap_or_default()).or_default() += 1;
            }
            self.counts.push((format!("{set} {step}"), counts));
        }
        Ok(())
    }
}

/// Scales the second set up from nothing, and down again while claims have a selected node but no volume.
async fn delete_while_binding(api: &ApiClient, n: u32) -> Result<()> {
    scale(api, 0).await?;
    wait_for_pods(api, SETS.map(|set| (set, 0))).await?;
    scale(api, n).await?;
    wait_until("a claim with a selected node", STEP_TIMEOUT, async || {
        let claims = api.list(CLAIMS).await?;
        let has_node = |it: &&Value| {
            is_of(it, SETS[1])
                && it["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].is_string()
        };
        Ok(claims.iter().any(|it| has_node(&it)))
    })
    .await?;
    scale(api, 0).await?;
    wait_for_pods(api, SETS.map(|set| (set, 0))).await
}

/// The node of each pod with a disk, and its disk.
async fn disks_by_pod(api: &ApiClient) -> Result<BTreeMap<String, (String, String)>> {
    let claims = api.list(CLAIMS).await?;
    let mut disks = BTreeMap::new();
    for pod in pods_of(api, SETS[0]).await? {
        let name = text(&pod["metadata"]["name"]);
        let claim = claims.iter().find(|it| it["metadata"]["name"] == format!("disk-{name}"));
        let claim = claim.with_context(|| format!("{name} has no claim for a disk"))?;
        disks.insert(name, (text(&pod["spec"]["nodeName"]), text(&claim["spec"]["volumeName"])));
    }
    Ok(disks)
}

/// Pods on nodes from which one of their volumes is not accessible.
pub async fn unreachable_volumes(api: &ApiClient) -> Result<Vec<String>> {
    let by_name = |objects: Vec<Value>| -> BTreeMap<String, Value> {
        objects.into_iter().map(|it| (text(&it["metadata"]["name"]), it)).collect()
    };
    let claims = by_name(api.list(CLAIMS).await?);
    let volumes = by_name(api.list(VOLUMES).await?);
    let nodes = by_name(api.list("/api/v1/nodes").await?);
    let mut faults = Vec::new();
    for pod in api.list(PODS).await? {
        let (name, node) = (&pod["metadata"]["name"], &pod["spec"]["nodeName"]);
        let Some(node) = nodes.get(&text(node)) else { continue };
        for used in pod["spec"]["volumes"].as_array().into_iter().flatten() {
            let Some(claim) = used["persistentVolumeClaim"]["claimName"].as_str() else { continue };
            let volume =
                claims.get(claim).and_then(|it| volumes.get(&text(&it["spec"]["volumeName"])));
            match volume {
                None => faults.push(format!("{name} is bound, but its claim {claim} is not")),
                Some(volume) if !is_accessible(volume, node) => faults.push(format!(
                    "{name} is on {}, from which the volume of {claim} is not accessible",
                    node["metadata"]["name"]
                )),
                Some(_) => {}
            }
        }
    }
    Ok(faults)
}

/// Whether a node has the label values of one of the volume's node selector terms, all of whose operators are In.
fn is_accessible(volume: &Value, node: &Value) -> bool {
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let Some(terms) = terms.as_array() else { return true };
    terms.iter().any(|term| {
        let mut expressions = term["matchExpressions"].as_array().into_iter().flatten();
        expressions.all(|it| {
            let label = &node["metadata"]["labels"][it["key"].as_str().unwrap_or_default()];
            it["values"].as_array().is_some_and(|values| values.contains(label))
        })
    })
}

/// Waits until each set has as many pods, all running.
async fn wait_for_pods(api: &ApiClient, sets: [(&str, u32); 2]) -> Result<()> {
    let mut last = Vec::new();
    let done = wait_until("the pods of the StatefulSets", 2 * STEP_TIMEOUT, async || {
        last.clear();
        for (set, n) in sets {
            let pods = pods_of(api, set).await?;
            let n_running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
            last.push((set, n, pods.len(), n_running));
        }
        Ok(last
            .iter()
            .all(|&(_, n, n_pods, n_running)| n_pods == n as usize && n_running == n_pods))
    })
    .await;
    done.with_context(|| format!("set, wanted, pods, running: {last:?}"))
}

async fn wait_for_claims(api: &ApiClient, set: &str, n: u32) -> Result<()> {
    wait_until("the claims of a StatefulSet", STEP_TIMEOUT, async || {
        let claims = api.list(CLAIMS).await?;
        Ok(claims.iter().filter(|claim| is_of(claim, set)).count() == n as usize)
    })
    .await
    .with_context(|| format!("{set} with {n} claims"))
}

async fn pods_of(api: &ApiClient, set: &str) -> Result<Vec<Value>> {
    let mut pods = api.list(PODS).await?;
    pods.retain(|pod| is_of(pod, set));
    Ok(pods)
}

/// Whether a pod or a claim is of this set: kube-controller-manager gives claims the set's labels.
fn is_of(object: &Value, set: &str) -> bool {
    object["metadata"]["labels"]["app"] == set
}

async fn scale(api: &ApiClient, n: u32) -> Result<()> {
    for set in SETS {
        let path = format!("{}/{set}/scale", sets_path());
        let body = json!({"spec": {"replicas": n}}).to_string().into_bytes();
        let headers =
            [("content-type", "application/merge-patch+json"), ("accept", "application/json")];
        let response = api.request_with_headers(Method::PATCH, &path, body, &headers).await?;
        ensure!(response.status == 200, "scaling {set}: status {}", response.status);
    }
    Ok(())
}

async fn delete(api: &ApiClient, path: &str) -> Result<()> {
    let response = api.request(Method::DELETE, path, Vec::new()).await?;
    ensure!(response.status == 200, "DELETE {path}: status {}", response.status);
    Ok(())
}

fn sets_path() -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuller_nodes_and_zones_are_less_even() {
        let counts = |per_node: &[usize], per_zone: &[usize]| {
            let map = |counts: &[usize]| {
                let named = counts.iter().enumerate().map(|(i, &n)| (i.to_string(), n));
                named.collect()
            };
            PodCounts { per_node: map(per_node), per_zone: map(per_zone) }
        };
        let other = counts(&[3, 2, 2], &[4, 3]);
        let check = |ours: PodCounts, want| assert_eq!(ours.is_as_even_as(&other), want, "{ours}");
        check(counts(&[2, 3, 2], &[3, 4]), true);
        check(counts(&[3, 3, 1], &[4, 3]), true);
        check(counts(&[4, 2, 1], &[5, 2]), true);
        check(counts(&[5, 1, 1], &[4, 3]), false);
        check(counts(&[3, 2, 2], &[6, 1]), false);
    }

    #[test]
    fn accessible_nodes_have_the_values_of_a_term() {
        let node = json!({"metadata": {"labels": {"zone": "a"}}});
        let check = |affinity: Value, want: bool| {
            let volume = json!({"spec": {"nodeAffinity": affinity}});
            assert_eq!(is_accessible(&volume, &node), want, "{volume}");
        };
        let term = |zone: &str| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
        check(json!(null), true);
        check(json!({"required": {"nodeSelectorTerms": [term("a")]}}), true);
        check(json!({"required": {"nodeSelectorTerms": [term("b")]}}), false);
        check(json!({"required": {"nodeSelectorTerms": [term("b"), term("a")]}}), true);
    }
}
