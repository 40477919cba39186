//! `cargo xtask e2e gpushare`: tests a scheduler with the example extenders sample-extender and gpushare-extender.
//!
//! gpushare-extender has only the roles of its manifest. 100 pods share 50 devices of 10 nodes; an additional pod would fit on every
//! node, but on no device.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use http::Method;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions, free_port};
use super::credentials::UserIdentity;
use super::process::Process;
use super::scheduler::{SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::{load_objects, manifest, programs, special_pods, workload};

const NAMESPACE: &str = "e2e";
const ACCOUNT: &str = "gpushare-extender";
const N_NODES: u32 = 10;
const N_PODS: usize = 100;
/// Devices per node. Two pods fit on each device, and memory 1 is left.
const N_DEVICES: u64 = 5;
const DEVICE_MEMORY: u64 = 7;
const POD_MEMORY: u64 = 3;
/// The messages of the extenders for the additional pod.
const REASONS: [&str; 2] = ["1 node(s) had no tier", "10 Insufficient GPU Memory in one device"];

/// Test GPU sharing with the example extenders.
#[derive(Parser)]
pub struct Args {
    #[command(flatten)]
    chosen: SchedulerArgs,
}

/// Runs the tests; a failed check is an error.
pub async fn run(args: &Args) -> Result<bool> {
    programs::examples(&["sample-extender", "gpushare-extender"])?;
    for kind in args.chosen.kinds()? {
        run_one(args, kind).await.with_context(|| kind.name())?;
        println!("{}: {N_PODS} pods share {} devices", kind.name(), u64::from(N_NODES) * N_DEVICES);
    }
    Ok(true)
}

async fn run_one(args: &Args, kind: SchedulerKind) -> Result<()> {
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    load_objects::namespace(&api, NAMESPACE).await?;
    for i in 0..=N_NODES {
        // One more node, which the first extender rejects.
        let tier = (i < N_NODES).then(|| i.to_string());
        api.create("/api/v1/nodes", &gpu_node(i, tier.as_deref())).await.context("a node")?;
    }
    let kubeconfig =
        apply_manifest(&api, &plane).await.context("the roles of gpushare-extender")?;
    let sample = Extender::start("sample-extender", plane.folder(), None).await?;
    let gpushare = Extender::start("gpushare-extender", plane.folder(), Some(&kubeconfig)).await?;

    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    for i in 0..N_PODS {
        api.create(&path, &gpu_pod(&format!("gpu-{i}"))).await.context("a pod")?;
    }
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    let setup = SchedulerSetup {
        extenders: &configuration(&sample, &gpushare),
        ..SchedulerSetup::new(kind.name(), plane.folder(), &kubeconfig)
    };
    let mut scheduler = args.chosen.start(kind, &setup)?;
    let all = bound.wait_for(N_PODS, special_pods::STEP_TIMEOUT).await?;
    scheduler.process.check_running()?;
    ensure!(all, "only {} of {N_PODS} pods were bound", bound.bound_at().len());
    check_devices(&api.list(&path).await?)?;

    api.create(&path, &gpu_pod("one-too-many")).await?;
    let what = format!("a condition with {REASONS:?}");
    special_pods::wait_for_pod(&api, NAMESPACE, "one-too-many", &what, |pod| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut messages = conditions.filter_map(|condition| condition["message"].as_str());
        messages.any(|message| REASONS.iter().all(|reason| message.contains(reason)))
    })
    .await?;
    let pod = api.get_json(&format!("{path}/one-too-many")).await?;
    ensure!(pod["metadata"]["annotations"].is_null(), "it has annotations: {}", pod["metadata"]);

    // Some bindings are rejected: filter does not see the pods that are being bound.
    let n_binds = gpushare.count(r#"extender_requests_total{code="200",verb="bind"}"#).await?;
    ensure!(n_binds >= N_PODS as u64, "only {n_binds} bind calls");
    gpushare.stop().await?;
    sample.stop().await?;
    plane.finish();
    Ok(())
}

/// A running extender.
pub struct Extender {
    process: Process,
    url: String,
}

impl Extender {
    /// Starts it and waits until it is ready.
    pub async fn start(name: &str, folder: &Path, kubeconfig: Option<&Path>) -> Result<Extender> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let mut command = Command::new(programs::folder()?.join(name));
        match kubeconfig {
            None => command.arg(&address),
            Some(path) => command.args(["--listen", &address, "--kubeconfig"]).arg(path),
        };
        let log = folder.join(format!("{name}.log"));
        let process = Process::start(name, &mut command, &log)?;
        let mut extender = Extender { process, url: format!("http://{address}") };
        let api = ApiClient::insecure(&extender.url, None)?;
        for _ in 0..600 {
            extender.process.check_running()?;
            let ready = api.request(Method::GET, "/readyz", Vec::new()).await;
            if ready.is_ok_and(|response| response.status == 200) {
                return Ok(extender);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("{name} was not ready in time")
    }

    /// Its URL without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The value of one of its metrics.
    pub async fn count(&self, metric: &str) -> Result<u64> {
        let metrics = ApiClient::insecure(&self.url, None)?.get("/metrics").await?;
        let metrics = String::from_utf8_lossy(&metrics);
        let value = metrics.lines().find_map(|line| line.strip_prefix(metric));
        let value = value.with_context(|| format!("there is no {metric} in\n{metrics}"))?;
        value.trim().parse().with_context(|| format!("reading {metric}{value}"))
    }

    /// Stops it as a kubelet does, with SIGTERM.
    pub async fn stop(mut self) -> Result<()> {
        self.process.terminate()?;
        let status = self.process.wait(special_pods::STEP_TIMEOUT).await?;
        ensure!(status.success(), "{} ended with {status} after SIGTERM", self.url);
        Ok(())
    }
}

/// The configuration of the examples' `scheduler.yaml`, with other ports.
fn configuration(sample: &Extender, gpushare: &Extender) -> [Value; 2] {
    [
        json!({"urlPrefix": sample.url, "filterVerb": "filter", "prioritizeVerb": "prioritize",
            "weight": 1, "nodeCacheCapable": false}),
        json!({"urlPrefix": format!("{}/gpushare-scheduler", gpushare.url), "filterVerb": "filter",
            "bindVerb": "bind", "nodeCacheCapable": true,
            "managedResources": [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": false}]}),
    ]
}

/// Creates the service account and its roles from the example's manifest; returns the kubeconfig of that account.
async fn apply_manifest(api: &ApiClient, plane: &ControlPlane) -> Result<PathBuf> {
    for object in manifest::read("examples/gpushare-extender/deploy/gpushare-extender.yaml")? {
        // The extender runs as a process, not in a pod.
        if object["kind"] != "Deployment" && object["kind"] != "Service" {
            manifest::create(api, &object).await?;
        }
    }
    plane.kubeconfig_for_token(ACCOUNT, &manifest::account_token(api, ACCOUNT).await?)
}

fn gpu_node(i: u32, tier: Option<&str>) -> Value {
    let mut node = workload::node(i);
    if let Some(tier) = tier {
        node["metadata"]["labels"]["example.com/tier"] = tier.into();
    }
    for amounts in ["capacity", "allocatable"] {
        let memory = N_DEVICES * DEVICE_MEMORY;
        node["status"][amounts]["aliyun.com/gpu-mem"] = memory.to_string().into();
        node["status"][amounts]["aliyun.com/gpu-count"] = N_DEVICES.to_string().into();
    }
    node
}

fn gpu_pod(name: &str) -> Value {
    let limits = json!({"aliyun.com/gpu-mem": POD_MEMORY.to_string()});
    let container = json!({
        "name": "main", "image": "registry.example/app", "resources": {"limits": limits}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}})
}

/// Checks that each pod has a device in its annotations, and that no device exceeds its memory.
fn check_devices(pods: &[Value]) -> Result<()> {
    let mut used: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for pod in pods {
        let name = &pod["metadata"]["name"];
        let annotation = |which: &str| {
            let key = format!("ALIYUN_COM_GPU_MEM_{which}");
            let value = pod["metadata"]["annotations"][&key].as_str();
            let value = value.with_context(|| format!("{name} has no annotation {key}"))?;
            Ok::<_, anyhow::Error>(value)
        };
        let number = |which| {
            let value = annotation(which)?;
            value.parse::<u64>().with_context(|| format!("{name} has {which} {value}"))
        };
        let node = pod["spec"]["nodeName"].as_str();
        let node = node.with_context(|| format!("{name} has no node"))?;
        ensure!(node != format!("node-{N_NODES}"), "{name} is on a node without a tier");
        ensure!(annotation("ASSIGNED")? == "false", "{name} is assigned");
        ensure!(number("DEV")? == DEVICE_MEMORY, "{name} has the wrong device memory");
        ensure!(number("POD")? == POD_MEMORY, "{name} has the wrong memory");
        ensure!(number("ASSUME_TIME")? > 0, "{name} has no time");
        *used.entry((node, number("IDX")?)).or_default() += POD_MEMORY;
    }
    ensure!(pods.len() == N_PODS, "there are {} pods", pods.len());
    for ((node, device), used) in used {
        ensure!(device < N_DEVICES, "{node} has no device {device}");
        ensure!(used <= DEVICE_MEMORY, "device {device} of {node} has {used} of {DEVICE_MEMORY}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: &str, device: &str) -> Value {
        let mut pod = gpu_pod("p");
        pod["spec"]["nodeName"] = node.into();
        let fields = [("IDX", device), ("DEV", "7"), ("POD", "3"), ("ASSIGNED", "false")];
        for (field, value) in fields.into_iter().chain([("ASSUME_TIME", "1")]) {
            pod["metadata"]["annotations"][format!("ALIYUN_COM_GPU_MEM_{field}")] = value.into();
        }
        pod
    }

    #[test]
    fn a_device_over_its_memory_is_found() {
        let good: Vec<Value> =
            (0..100).map(|i| pod(&format!("node-{}", i / 10), &(i % 5).to_string())).collect();
        assert_eq!(check_devices(&good).map_err(|error| error.to_string()), Ok(()));
        let check = |change: Value, want: &str| {
            let mut pods = good.clone();
            pods[0] = change;
            let error = check_devices(&pods).unwrap_err().to_string();
            assert_eq!(error, want);
        };
        check(pod("node-1", "0"), "device 0 of node-1 has 9 of 7");
        check(pod("node-0", "5"), "node-0 has no device 5");
        check(pod("node-10", "0"), "\"p\" is on a node without a tier");
        check(gpu_pod("q"), "\"q\" has no node");
        let error = check_devices(&good[1..]).unwrap_err().to_string();
        assert_eq!(error, "there are 99 pods");
    }
}
