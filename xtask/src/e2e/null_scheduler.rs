//! A scheduler that decides nothing: the upper limit of a benchmark.
//!
//! It watches nodes and pods, assigns pending pods to the nodes in turn, and sends the binding and then the Event of each. With claims, it reads
//! pending pods, their claims and free volumes once, assigns the volumes in turn, and sends the writes that a scheduler sends for
//! such a pod: the nomination, the volume with its claim, and, when the claim is bound, the binding and the Event. It uses Loadmaster's
//! connections. Then it waits until it is killed, so that its resource usage can be read.

mod round_robin;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use http::Method;
use http_body_util::BodyExt as _;
use loadmaster_client::{ApiClients, Cluster, ClusterOptions, Request};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use super::api_client::ApiClient;
use super::bound_pods::whole_lines;

/// Pods whose writes are in flight at a time, as Loadmaster's.
const N_PODS_MAX: usize = 500;
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";

/// Send the writes of a scheduler without deciding anything.
#[derive(Parser)]
pub struct Args {
    /// The credentials.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Bind the pods of this namespace, each of which has a claim of a static volume, in place of all pods.
    #[arg(long, value_name = "NAMESPACE")]
    claims_in: Option<String>,
}

/// A pod.
struct PodId {
    namespace: String,
    name: String,
    uid: String,
}

/// A pod, its claim, a volume for it, and the volume's node.
struct Assignment {
    pod: Value,
    claim: Value,
    volume: Value,
    node: String,
    /// Completes when the claim is bound.
    bound: oneshot::Receiver<()>,
}

/// Binds all pods, then never returns unless something fails.
pub async fn run(args: &Args) -> Result<bool> {
    let options = ClusterOptions {
        kubeconfig: Some(args.kubeconfig.clone()),
        context: None,
        master: None,
        user_agent: "null-scheduler".to_owned(),
    };
    let cluster = Cluster::from_options(&options).await.context("finding the cluster")?;
    let clients = Arc::new(ApiClients::new(&cluster));
    match &args.claims_in {
        None => round_robin::run(&clients).await?,
        Some(namespace) => {
            let api = ApiClient::new(&args.kubeconfig).await?;
            bind_with_claims(api, &clients, namespace).await?;
        }
    }
    std::future::pending().await
}

async fn bind_with_claims(
    api: ApiClient,
    clients: &Arc<ApiClients>,
    namespace: &str,
) -> Result<()> {
    let claims_path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
    let pods = api.list(&format!("/api/v1/namespaces/{namespace}/pods")).await?;
    let volumes = api.list("/api/v1/persistentvolumes").await?;
    let claims = api.get_json(&claims_path).await?;
    let version = claims["metadata"]["resourceVersion"].as_str();
    let version = version.context("a list without a resource version")?.to_owned();
    let (assignments, waiting) = assign(pods, claims, volumes)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(notify_bound_claims(
        api,
        format!("{claims_path}?watch=1&resourceVersion={version}"),
        waiting,
    ));
    let permits = Arc::new(Semaphore::new(N_PODS_MAX));
    for assignment in assignments {
        let (clients, permits) = (Arc::clone(clients), Arc::clone(&permits));
        tasks.spawn(async move {
            let permit = permits.acquire_owned().await.context("waiting for other pods")?;
            // As in Loadmaster, pods that wait for their claims do not count.
            nominate_and_reserve(&clients, &assignment).await?;
            drop(permit);
            let Assignment { pod, node, bound, .. } = assignment;
            bound.await.context("the watch of claims has ended")?;
            bind(&clients, &PodId::of(&pod), &node).await
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a task panicked")??;
    }
    Ok(())
}

type WaitingClaims = BTreeMap<String, oneshot::Sender<()>>;

/// Gives each pod a volume, in the order of the lists.
fn assign(
    pods: Vec<Value>,
    mut claims: Value,
    volumes: Vec<Value>,
) -> Result<(Vec<Assignment>, WaitingClaims)> {
    let claims = claims["items"].take();
    let mut claims: BTreeMap<String, Value> = claims
        .as_array()
        .into_iter()
        .flatten()
        .map(|claim| (text(&claim["metadata"]["name"]), claim.clone()))
        .collect();
    let mut volumes = volumes.into_iter().filter(|volume| volume["spec"]["claimRef"].is_null());
    let (mut assignments, mut waiting) = (Vec::new(), BTreeMap::new());
    for pod in pods.into_iter().filter(|pod| pod["spec"]["nodeName"].is_null()) {
        let mut used = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let name = used.find_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
        let name = name.context("a pod without a claim")?.to_owned();
        let claim = claims.remove(&name).with_context(|| format!("no claim {name:?}"))?;
        let volume = volumes.next().context("there are fewer free volumes than pods")?;
        let term = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
        let node = text(&term["matchExpressions"][0]["values"][0]);
        ensure!(!node.is_empty(), "a volume without a node: {volume}");
        let (sender, bound) = oneshot::channel();
        waiting.insert(name, sender);
        assignments.push(Assignment { pod, claim, volume, node, bound });
    }
    Ok((assignments, waiting))
}

/// Completes the waits for claims that a controller has bound.
async fn notify_bound_claims(
    api: ApiClient,
    path: String,
    mut waiting: WaitingClaims,
) -> Result<()> {
    let response = api.send(&Method::GET, &path, Vec::new(), "application/json").await?;
    ensure!(response.status() == 200, "GET {path}: status {}", response.status());
    let (mut body, mut rest) = (response.into_body(), Vec::new());
    while !waiting.is_empty() {
        let Some(frame) = body.frame().await else { bail!("the watch of claims was closed") };
        let frame = frame.map_err(|error| anyhow::anyhow!("watching claims: {error}"))?;
        rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        for line in whole_lines(&mut rest) {
            let event: Value = serde_json::from_slice(&line).context("reading a watch event")?;
            let claim = &event["object"];
            let is_bound = claim["spec"]["volumeName"].is_string()
                && claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"].is_string();
            let name = claim["metadata"]["name"].as_str().unwrap_or_default();
            if let Some(sender) = is_bound.then(|| waiting.remove(name)).flatten() {
                // Its pod may have failed.
                let _ = sender.send(());
            }
        }
    }
    Ok(())
}

async fn nominate_and_reserve(clients: &ApiClients, assignment: &Assignment) -> Result<()> {
    let Assignment { pod, claim, volume, node, .. } = assignment;
    let path = format!("{}/status", PodId::of(pod).path());
    let body = json!({"status": {"nominatedNodeName": node}});
    let patch = Request {
        content_type: STRATEGIC_MERGE_PATCH,
        ..Request::with_body(Method::PATCH, path, body.to_string())
    };
    call(&clients.other, &patch).await?;
    let (meta, mut volume) = (&claim["metadata"], volume.clone());
    volume["spec"]["claimRef"] = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"],
        "resourceVersion": meta["resourceVersion"]});
    volume["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] = json!("yes");
    if let Some(metadata) = volume["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    let path = format!("/api/v1/persistentvolumes/{}", text(&volume["metadata"]["name"]));
    call(&clients.other, &Request::with_body(Method::PUT, path, volume.to_string())).await
}

async fn bind(clients: &ApiClients, pod: &PodId, node: &str) -> Result<()> {
    let PodId { namespace, name, uid } = pod;
    let binding = json!({"apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let path = format!("{}/binding", pod.path());
    call(&clients.bind, &Request::with_body(Method::POST, path, binding.to_string())).await?;
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": format!("{name}.null"), "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "default-scheduler", "reportingInstance": "default-scheduler-null",
        "action": "Binding", "reason": "Scheduled", "type": "Normal",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "note": format!("Successfully assigned {namespace}/{name} to {node}")});
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    call(&clients.events, &Request::with_body(Method::POST, path, event.to_string())).await
}

impl PodId {
    fn of(pod: &Value) -> PodId {
        let [namespace, name, uid] =
            ["namespace", "name", "uid"].map(|field| text(&pod["metadata"][field]));
        PodId { namespace, name, uid }
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

async fn call(client: &loadmaster_client::ApiClient, request: &Request) -> Result<()> {
    let what = || format!("{} {}", request.method, request.path);
    let reply = client.call_with_retries(request).await.with_context(what)?;
    let body = || String::from_utf8_lossy(&reply.body).into_owned();
    ensure!(reply.is_success(), "{}: status {}: {}", what(), reply.status, body());
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pending_pod_gets_a_free_volume() {
        let pod = |name: &str, node: Value| {
            json!({"metadata": {"name": name},
            "spec": {"nodeName": node, "volumes": [{"name": "token"},
                {"persistentVolumeClaim": {"claimName": format!("claim-{name}")}}]}})
        };
        let claims = || json!({"items": [{"metadata": {"name": "claim-a"}}, {"metadata": {"name": "claim-b"}}]});
        let volume = |name: &str, reference: Value| {
            let term = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [format!("node-{name}")]}]});
            json!({"metadata": {"name": name}, "spec": {"claimRef": reference,
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}})
        };
        let pods = || vec![pod("a", json!(null)), pod("x", json!("n")), pod("b", json!(null))];
        let volumes = || {
            vec![
                volume("u", json!({"name": "c"})),
                volume("v", json!(null)),
                volume("w", json!(null)),
            ]
        };
        let (assignments, waiting) = assign(pods(), claims(), volumes()).unwrap();
        let shown = assignments.iter().map(|it| {
            format!(
                "{} {} {}",
                text(&it.pod["metadata"]["name"]),
                text(&it.claim["metadata"]["name"]),
                it.node
            )
        });
        assert_eq!(shown.collect::<Vec<_>>(), ["a claim-a node-v", "b claim-b node-w"]);
        assert_eq!(waiting.len(), 2);
        assert!(assign(pods(), claims(), volumes()[..2].to_vec()).is_err());
        assert!(assign(pods(), json!({}), volumes()).is_err());
    }
}
