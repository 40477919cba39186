//! What happens while the pods of a manifest run: pods are bound, the leader is killed, and the Deployments are deleted.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::cases::{Case, More};
use super::{FOR_PODS, N_NODES, PODS};
use crate::e2e::api_client::ApiClient;
use crate::e2e::control_plane::ControlPlane;
use crate::e2e::gangs::objects as gang;
use crate::e2e::process::Process;
use crate::e2e::process_kubelet;
use crate::e2e::special_pods::{STEP_TIMEOUT, wait_until};

/// Until all replicas are ready.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
const N_PODS: u32 = 20;
const PATH: &str = "/api/v1/namespaces/e2e/pods";

/// The steps of a case.
pub struct Work<'a> {
    case: &'a Case,
    plane: &'a ControlPlane,
    api: &'a ApiClient,
    /// The namespace, the name and the number of replicas of each Deployment.
    deployments: Vec<(String, String, u64)>,
    /// The namespace and the name of the Lease, if leaders are elected.
    lease: Option<(String, String)>,
    scheduler_name: String,
    kube_scheduler: Process,
    n_created: u32,
    /// The pods in the end.
    pods: Vec<Value>,
}

impl<'a> Work<'a> {
    pub fn new(
        case: &'a Case,
        plane: &'a ControlPlane,
        api: &'a ApiClient,
        objects: &[Value],
        kube_scheduler: Process,
    ) -> Result<Work<'a>> {
        let text = |value: &Value, default: &str| value.as_str().unwrap_or(default).to_owned();
        let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
        let deployments = deployments
            .map(|it| {
                let metadata = &it["metadata"];
                let n_replicas = it["spec"]["replicas"].as_u64().unwrap_or(1);
                (text(&metadata["namespace"], ""), text(&metadata["name"], ""), n_replicas)
            })
            .collect();
        let configuration = case.configuration(objects)?;
        let election = &configuration["leaderElection"];
        let lease = (election["leaderElect"] != false).then(|| {
            (
                text(&election["resourceNamespace"], "kube-system"),
                text(&election["resourceName"], "kube-scheduler"),
            )
        });
        let scheduler_name = &configuration["profiles"][0]["schedulerName"];
        Ok(Work {
            case,
            plane,
            api,
            deployments,
            lease,
            scheduler_name: text(scheduler_name, "default-scheduler"),
            kube_scheduler,
            n_created: 0,
            pods: Vec::new(),
        })
    }

    /// An error if a step fails.
    pub async fn run(&mut self, kills_leader: bool) -> Result<()> {
        self.wait_until_ready().await?;
        if self.scheduler_name == "default-scheduler" {
            self.kube_scheduler.terminate()?;
            self.kube_scheduler.wait(STEP_TIMEOUT).await?;
        }
        self.bind_pods(N_PODS).await?;
        self.more().await?;
        self.check_unread_kinds().await?;
        let lease = self.lease.clone().filter(|_| kills_leader);
        if let Some((namespace, name)) = &lease {
            self.kill_leader(namespace, name).await?;
            self.bind_pods(N_PODS).await?;
            // The killed one is running again.
            self.wait_until_ready().await?;
        }
        self.pods = self.api.list(PATH).await?;
        let is_killed = if lease.is_some() { ", the leader was killed meanwhile" } else { "" };
        println!("{}: {} pods bound{is_killed}", self.case.name, self.pods.len());
        self.delete_deployments().await
    }

    /// The pods' uids, and whether they are bound.
    pub fn bound_pods(&self) -> impl Iterator<Item = (&str, bool)> {
        self.pods.iter().filter_map(|pod| {
            Some((pod["metadata"]["uid"].as_str()?, pod["spec"]["nodeName"].is_string()))
        })
    }

    async fn wait_until_ready(&self) -> Result<()> {
        for (namespace, name, n_replicas) in &self.deployments {
            let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
            let ready = wait_until(name, READY_TIMEOUT, async || {
                let deployment = self.api.get_json(&path).await?;
                Ok(deployment["status"]["readyReplicas"] == *n_replicas)
            });
            if let Err(error) = ready.await {
                for pod in self.api.list(&format!("/api/v1/namespaces/{namespace}/pods")).await? {
                    println!("{}: {}", pod["metadata"]["name"], pod["status"]);
                }
                return Err(error).context("not all replicas are ready");
            }
        }
        Ok(())
    }

    /// Creates pods and waits until they are bound.
    async fn bind_pods(&mut self, n: u32) -> Result<()> {
        for _ in 0..n {
            let pod = self.pod(self.n_created);
            self.api.create(PATH, &pod).await.context("a pod")?;
            self.n_created += 1;
        }
        self.wait_until_bound(n).await
    }

    async fn wait_until_bound(&self, n: u32) -> Result<()> {
        let mut pending = Vec::new();
        let bound = wait_until("all pods to be bound", STEP_TIMEOUT, async || {
            let pods = self.api.list(PATH).await?;
            pending = pods.into_iter().filter(|pod| pod["spec"]["nodeName"].is_null()).collect();
            Ok(pending.is_empty())
        });
        let bound = bound.await;
        let status = || pending.first().map(|pod| pod["status"].to_string());
        bound.with_context(|| {
            format!("{} pods, {n} of them new; a pending one: {:?}", self.n_created, status())
        })
    }

    fn pod(&self, i: u32) -> Value {
        let name = match self.case.more {
            More::SamplePlugin => format!("nginx-{i}"),
            _ => format!("pod-{i}"),
        };
        let resources = match self.case.more {
            More::Gpus => json!({"limits": {"aliyun.com/gpu-mem": "3"}}),
            _ => json!({"requests": {"cpu": "10m"}}),
        };
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "schedulerName": self.scheduler_name,
            "nodeSelector": {FOR_PODS: "pods"},
            "tolerations": [{"key": FOR_PODS, "operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "registry.example/app", "resources": resources}]}})
    }

    /// What the manifest is for, besides a scheduler.
    async fn more(&mut self) -> Result<()> {
        match self.case.more {
            More::Nothing => Ok(()),
            More::PodGroup => self.bind_group().await,
            More::Tiers | More::SamplePlugin => {
                let last = format!("node-{}", N_NODES - 1);
                let pods = self.api.list(PATH).await?;
                let wrong = pods.iter().find(|pod| pod["spec"]["nodeName"] == last.as_str());
                match wrong {
                    None => Ok(()),
                    Some(pod) => bail!("{} is on {last}", pod["metadata"]["name"]),
                }
            }
            More::Gpus => {
                for pod in self.api.list(PATH).await? {
                    let device = &pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"];
                    ensure!(device.is_string(), "{} has no device", pod["metadata"]["name"]);
                }
                Ok(())
            }
        }
    }

    /// A PodGroup whose pods are bound together, and whose status a controller writes.
    async fn bind_group(&mut self) -> Result<()> {
        let path = gang::collection(PODS, "podgroups");
        let group = json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": "group"}, "spec": {"minMember": 3}});
        self.api.create(&path, &group).await?;
        for _ in 0..3 {
            let mut pod = self.pod(self.n_created);
            pod["metadata"]["labels"][gang::LABEL] = json!("group");
            self.api.create(PATH, &pod).await?;
            self.n_created += 1;
        }
        self.wait_until_bound(3).await?;
        wait_until("the status of the PodGroup", STEP_TIMEOUT, async || {
            let group = self.api.get_json(&format!("{path}/group")).await?;
            Ok(group["status"]["phase"].is_string())
        })
        .await
    }

    /// Kills the process of the leader without a chance to give up its Lease; waits until there is another one.
    async fn kill_leader(&self, namespace: &str, lease: &str) -> Result<()> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}");
        let holder = async || {
            let lease = self.api.get_json(&path).await?;
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
            anyhow::Ok(holder)
        };
        let first = holder().await?;
        let host = first.rsplit_once('_').map_or(first.as_str(), |(host, _)| host);
        let pods = self.api.list("/api/v1/namespaces/kube-system/pods").await?;
        // With `hostNetwork` the name of the host is the node's.
        let leader = pods.iter().find(|pod| {
            let is_on_node =
                || pod["spec"]["hostNetwork"] == true && pod["spec"]["nodeName"] == host;
            pod["metadata"]["name"] == host || is_on_node()
        });
        let leader = leader.with_context(|| format!("no pod of the leader {first}"))?;
        let container = leader["spec"]["containers"][0]["name"].as_str().unwrap_or_default();
        let folder = process_kubelet::container_folder(self.plane, leader, container);
        let file = folder.join("pid");
        let pid = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let pid = Pid::from_raw(pid.trim().parse().context("reading a process id")?);
        kill_process(pid.context("no process id")?, Signal::KILL).context("killing the leader")?;
        wait_until("another leader", STEP_TIMEOUT, async || {
            let now = holder().await?;
            Ok(!now.is_empty() && now != first)
        })
        .await?;
        let name = leader["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("/api/v1/namespaces/kube-system/pods/{name}");
        wait_until("a restart of the killed leader", STEP_TIMEOUT, async || {
            let pod = self.api.get_json(&path).await?;
            let status = &pod["status"]["containerStatuses"][0];
            Ok(status["restartCount"] == 1 && status["lastState"]["terminated"]["exitCode"] == 137)
        })
        .await
    }

    /// What the roles do not allow to read is named once.
    async fn check_unread_kinds(&self) -> Result<()> {
        if self.case.unread.is_empty() {
            return Ok(());
        }
        for pod in self.api.list("/api/v1/namespaces/kube-system/pods").await? {
            let container = pod["spec"]["containers"][0]["name"].as_str().unwrap_or_default();
            let log = process_kubelet::container_folder(self.plane, &pod, container).join("0/log");
            let log = fs::read_to_string(&log).with_context(|| log.display().to_string())?;
            for kind in self.case.unread {
                let n = log.matches(&format!("not allowed to list {kind} ")).count();
                ensure!(n == 1, "the log says {n} times that {kind} cannot be listed");
            }
        }
        Ok(())
    }

    /// Deletes the Deployments; their containers end by SIGTERM, and the pods are removed.
    async fn delete_deployments(&self) -> Result<()> {
        for (namespace, name, _) in &self.deployments {
            let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
            let answer = self.api.request(Method::DELETE, &path, Vec::new()).await?;
            ensure!(answer.status == 200, "DELETE {path}: {}", answer.status);
        }
        wait_until("the pods of the Deployments to end", STEP_TIMEOUT, async || {
            let pods = self.api.list("/api/v1/namespaces/kube-system/pods").await?;
            Ok(pods.is_empty())
        })
        .await
    }
}
