//! Pods that are created all the time, whatever happens to the scheduler: none may be lost or bound twice.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::api_client::ApiClient;
use super::super::audit::{self, AuditEntry};
use super::super::load_objects;
use super::super::workload::{PodForm, Workload};

pub const NAMESPACE: &str = "shop";
/// Ten pods per second.
const PAUSE: Duration = Duration::from_millis(100);
/// Until the last pods are bound: longer than a Lease of kube-scheduler, 15 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// The task that creates pods.
pub struct SteadyPods {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<u32>>,
}

impl SteadyPods {
    pub async fn start(api: &ApiClient) -> Result<SteadyPods> {
        load_objects::namespace(api, NAMESPACE).await?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(create_until(api.clone(), stopped));
        Ok(SteadyPods { stop, task })
    }

    /// Creates no more pods, and waits until all are bound; returns how many there are.
    pub async fn finish(self, api: &ApiClient) -> Result<u32> {
        // Without a receiver the task has ended with an error, which is returned below.
        let _ = self.stop.send(());
        let n_created = self.task.await.context("the task that creates pods panicked")??;
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let mut n_pending = n_created as usize;
        for _ in 0..PATIENCE.as_secs() {
            let pods = api.list(&path).await?;
            n_pending = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_null()).count();
            if n_pending == 0 {
                return Ok(n_created);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        bail!("{n_pending} of {n_created} pods are not bound")
    }
}

async fn create_until(api: ApiClient, mut stopped: oneshot::Receiver<()>) -> Result<u32> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let mut n_created = 0;
    while stopped.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
        let pod = PodForm::ClusterMade.apply(Workload::Mixed.pod(n_created));
        api.create(&path, &pod).await.context("creating a pod")?;
        n_created += 1;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(n_created)
}

/// How many of these pods each program has bound, by the name in its User-Agent.
pub fn bound_by(entries: &[AuditEntry]) -> BTreeMap<String, u32> {
    let mut n_bound = BTreeMap::new();
    for binding in audit::bindings(entries).filter(|it| is_of_these_pods(it) && it.is_success()) {
        let program = binding.user_agent.split('/').next().unwrap_or_default();
        *n_bound.entry(program.to_owned()).or_default() += 1;
    }
    n_bound
}

/// One message for each of these pods that exists and was not bound exactly once.
pub fn faults(entries: &[AuditEntry], pods: &[Value]) -> Vec<String> {
    let of_these: Vec<AuditEntry> =
        entries.iter().filter(|it| is_of_these_pods(it)).cloned().collect();
    let is_bound = |pod: &Value| !pod["spec"]["nodeName"].is_null();
    let pods =
        pods.iter().filter_map(|pod| Some((pod["metadata"]["uid"].as_str()?, is_bound(pod))));
    audit::binding_faults(&of_these, &[], pods)
}

fn is_of_these_pods(entry: &AuditEntry) -> bool {
    entry.namespace == NAMESPACE
}
