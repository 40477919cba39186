//! `cargo xtask e2e deployments`: applies manifests to a real control plane, and runs their pods as processes from images.
//!
//! kube-controller-manager makes the pods, kube-scheduler assigns them, and [`process_kubelet`](super::process_kubelet) runs them with the images,
//! arguments, mounts and accounts of the manifests. Their scheduler must then bind every pod once, with no request denied; and when the leader of
//! several replicas is killed, another one goes on.

mod cases;
mod work;

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Parser;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions, free_port};
use super::credentials::UserIdentity;
use super::process::Process;
use super::process_kubelet::{API_SERVICE, Images, Kubelets};
use super::programs::{self, Program};
use super::run_folder::RunFolder;
use super::special_pods::wait_for_path;
use super::{audit, controller_manager, gangs, manifest, workload};
use crate::image::{self, Unpacked};
use crate::oracle::process::Stopwatch;
use cases::{CASES, Case, More};
use work::Work;

/// The namespace of the pods that are bound.
const PODS: &str = "e2e";
/// The label of the nodes for them, which have no kubelet.
const FOR_PODS: &str = "e2e";
/// Nodes with a kubelet: one of the control plane for each of three replicas, and one that is not.
const N_KUBELETS: u32 = 4;
const N_NODES: u32 = 4;

/// Run the manifests of deploy/, and those of others, with our images on a real control plane.
#[derive(Parser)]
pub struct Args {
    /// Names of manifests; all by default.
    names: Vec<String>,
    /// Only a few of them, and the leader of one is killed.
    #[arg(long, conflicts_with = "names")]
    quick: bool,
    /// The folder with the programs of the images; by default that of the release profile.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// The loadmaster binary, in place of the one in that folder.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// Returns whether all manifests work.
pub async fn run(args: &Args) -> Result<bool> {
    for name in &args.names {
        let is_known = CASES.iter().any(|case| case.name == name);
        let known = || CASES.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
        ensure!(is_known, "there is no manifest {name:?}; the manifests are {}", known());
    }
    let is_chosen = |case: &&Case| {
        let is_named = args.names.is_empty() || args.names.iter().any(|name| case.name == name);
        is_named && (!args.quick || case.is_quick)
    };
    let cases: Vec<&Case> = CASES.iter().filter(is_chosen).collect();
    let release = programs::loadmaster(None);
    let folder = match &args.programs {
        Some(folder) => folder.clone(),
        None => release?.parent().context("finding the release profile")?.to_owned(),
    };
    let program = |package: &str| match &args.loadmaster {
        Some(loadmaster) if package == "loadmaster" => loadmaster.clone(),
        _ => folder.join(package),
    };
    let scratch = RunFolder::temporary(&std::env::temp_dir())?;
    let stopwatch = Stopwatch::start();
    let images = image::finished(program, scratch.path())?;
    println!("{} images: {:.1} s", images.len(), stopwatch.seconds());
    let is_good = run_cases(&cases, &images, args.quick).await?;
    drop(scratch.remove_on_drop());
    Ok(is_good)
}

/// Runs some manifests with these images; each image must be in one of them.
pub async fn check(images: &[(&'static str, Unpacked)]) -> Result<bool> {
    const OF_IMAGES: [&str; 4] = [
        "kustomize-with-controllers",
        "kustomize-with-extender",
        "kustomize-gpushare",
        "sample-plugin",
    ];
    let has = |name: &str| images.iter().any(|(image, _)| *image == name);
    let mut cases = Vec::new();
    for case in CASES.iter().filter(|case| OF_IMAGES.contains(&case.name)) {
        let names = case.images(&case.objects()?);
        if names
            .iter()
            .all(|name| image::names().iter().any(|it| case.reference(it) == *name && has(it)))
        {
            cases.push(case);
        }
    }
    run_cases(&cases, images, false).await
}

async fn run_cases(
    cases: &[&Case],
    images: &[(&'static str, Unpacked)],
    is_quick: bool,
) -> Result<bool> {
    use Program::{Etcd, KubeApiserver, KubeControllerManager, KubeScheduler};
    programs::build(&[Etcd, KubeApiserver, KubeControllerManager, KubeScheduler])?;
    let mut is_good = true;
    for case in cases {
        let stopwatch = Stopwatch::start();
        let tagged =
            images.iter().map(|(name, image)| (case.reference(name), image.clone())).collect();
        // Until another one leads, the time of a Lease passes.
        let kills_leader = !is_quick || case.more == More::Gpus;
        let faults = run_case(case, tagged, kills_leader).await.with_context(|| case.name)?;
        faults.iter().for_each(|fault| println!("{}: {fault}", case.name));
        println!("{}: {:.1} s", case.name, stopwatch.seconds());
        is_good &= faults.is_empty();
    }
    println!("{} manifests ran with our images: {is_good}", cases.len());
    Ok(is_good)
}

/// Returns what was wrong with bindings and roles; everything else is an error.
async fn run_case(case: &Case, images: Images, kills_leader: bool) -> Result<Vec<String>> {
    let plane = ControlPlane::start(&ControlPlaneOptions {
        audit_policy: Some(audit::policy_for_bindings_and_accounts()),
        // As kubeadm has it.
        apiserver_flags: vec!["--allow-privileged=true".to_owned()],
        ..ControlPlaneOptions::default()
    })
    .await?;
    let objects = case.objects()?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    prepare(&api, &objects).await?;
    let mut kubelets = Kubelets::new(&plane, images).await?;
    for i in 0..N_KUBELETS {
        let root = kubelets.register(kubelet_node(i, case.taint)).await?;
        write_kubeadm_files(&plane, &root)?;
    }
    let controllers = start_controllers(&plane)?;
    let kube_scheduler = start_kube_scheduler(&plane)?;
    for object in &objects {
        manifest::create(&api, object).await?;
    }
    let mut work = Work::new(case, &plane, &api, &objects, kube_scheduler)?;
    tokio::select! {
        failed = kubelets.run() => match failed? {},
        done = work.run(kills_leader) => done?,
    }
    drop(controllers);
    let entries = audit::read(plane.audit_log())?;
    let of_pods: Vec<_> = entries.iter().filter(|it| it.namespace == PODS).cloned().collect();
    let mut faults = audit::binding_faults(&of_pods, &[], work.bound_pods());
    for object in objects.iter().filter(|object| object["kind"] == "ServiceAccount") {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let user = format!("system:serviceaccount:kube-system:{name}");
        for (request, n) in audit::denied_requests(&entries, &user) {
            if !case.works_without(&request) {
                faults.push(format!("{name}: denied: {n} x {request}"));
            }
        }
    }
    drop(kubelets);
    if faults.is_empty() {
        plane.finish();
    }
    Ok(faults)
}

/// What the manifests assume in a cluster, and the nodes of the pods.
async fn prepare(api: &ApiClient, objects: &[Value]) -> Result<()> {
    for namespace in ["kube-system", "kube-node-lease"] {
        wait_for_path(api, &format!("/api/v1/namespaces/{namespace}")).await?;
    }
    if objects.iter().all(|object| object["kind"] != "CustomResourceDefinition") {
        // Helm installs them first.
        for definition in manifest::read("deploy/helm/loadmaster/crds/crds.yaml")? {
            manifest::create(api, &definition).await?;
        }
    }
    gangs::objects::allow_schedulers_to_read(api).await?;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "batch-critical"}, "value": 1000});
    manifest::create(api, &class).await?;
    let namespace = json!({"metadata": {"name": PODS}});
    api.create("/api/v1/namespaces", &namespace).await?;
    for i in 0..N_NODES {
        api.create("/api/v1/nodes", &node_for_pods(i)).await.context("a node")?;
    }
    Ok(())
}

/// A node whose pods are run.
fn kubelet_node(i: u32, taint: Option<(&str, &str)>) -> Value {
    let mut node = workload::node(i);
    let is_worker = i + 1 == N_KUBELETS;
    let name = if is_worker { "worker".to_owned() } else { format!("control-plane-{i}") };
    node["metadata"]["name"] = json!(name);
    let labels = &mut node["metadata"]["labels"];
    labels["kubernetes.io/hostname"] = json!(name);
    if is_worker {
        return node;
    }
    for role in ["control-plane", "master"] {
        labels[format!("node-role.kubernetes.io/{role}")] = json!("");
    }
    labels["pool"] = json!("control");
    if let Some((key, value)) = taint {
        node["spec"]["taints"] = json!([{"key": key, "value": value, "effect": "NoSchedule"}]);
    }
    node
}

/// A node without a kubelet. The last one has neither a tier nor the label of the sample plugin.
fn node_for_pods(i: u32) -> Value {
    let mut node = workload::node(i);
    let labels = &mut node["metadata"]["labels"];
    labels[FOR_PODS] = json!("pods");
    if i + 1 < N_NODES {
        labels["example.com/tier"] = json!(i.to_string());
        labels["test"] = json!("test");
    }
    for amounts in ["capacity", "allocatable"] {
        node["status"][amounts]["aliyun.com/gpu-mem"] = json!("160");
        node["status"][amounts]["aliyun.com/gpu-count"] = json!("10");
    }
    // No pod of a Deployment, for which there are nodes with a kubelet.
    node["spec"]["taints"] = json!([{"key": FOR_PODS, "effect": "NoSchedule"}]);
    node
}

/// Files as kubeadm has them, and a configuration of the scheduler. They belong to the user of our images, who could not read them otherwise.
fn write_kubeadm_files(plane: &ControlPlane, root: &Path) -> Result<()> {
    const USER: u32 = 65532;
    let folder = root.join("etc/kubernetes");
    fs::create_dir_all(folder.join("configs"))?;
    let identity = UserIdentity::new("system:kube-scheduler", &[]);
    let text = fs::read_to_string(plane.kubeconfig(&identity)).context("reading a kubeconfig")?;
    let mut kubeconfig: Value = serde_json::from_str(&text).context("reading a kubeconfig")?;
    let authority = fs::read(plane.folder().join("ca.crt")).context("reading the authority")?;
    kubeconfig["clusters"][0]["cluster"] = json!({
        "server": format!("https://{}:{}", API_SERVICE.0, API_SERVICE.1),
        "certificate-authority-data": STANDARD.encode(authority)});
    for (name, content) in [
        ("scheduler.conf", kubeconfig),
        ("configs/scheduler-config.yaml", cases::node_configuration()),
    ] {
        let path = folder.join(name);
        fs::write(&path, content.to_string())?;
        chown(&path, Some(USER), Some(USER))?;
    }
    Ok(())
}

/// The controllers that make pods of Deployments, and what their accounts need.
fn start_controllers(plane: &ControlPlane) -> Result<Process> {
    const NAMES: &str = "deployment-controller,replicaset-controller,serviceaccount-controller,\
        root-ca-certificate-publisher-controller,garbage-collector-controller,endpointslice-controller,\
        disruption-controller";
    let file = |name: &str| plane.folder().join(name).display().to_string();
    let flags = [
        format!("--controllers={}", NAMES.replace(char::is_whitespace, "")),
        format!("--root-ca-file={}", file("ca.crt")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    controller_manager::start(&plane.admin_kubeconfig(), plane.folder(), &flags)
}

/// The cluster's scheduler before ours.
fn start_kube_scheduler(plane: &ControlPlane) -> Result<Process> {
    let mut command = Command::new(Program::KubeScheduler.path()?);
    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    command.arg(format!("--kubeconfig={}", kubeconfig.display()));
    command
        .args(["--bind-address=127.0.0.1".to_owned(), format!("--secure-port={}", free_port()?)]);
    let log = plane.folder().join("kube-scheduler.log");
    Process::start("kube-scheduler", &mut command, &log)
}
