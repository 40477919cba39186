//! `cargo xtask e2e kubernetes-tests`: Kubernetes' own end-to-end tests of the scheduler (`[sig-scheduling]`) on simulated nodes.
//!
//! Each scheduler has a control plane of its own, with kube-controller-manager and simulated kubelets. The results must be the recorded ones:
//! with kube-scheduler all of them, with Loadmaster those of the tests that pass. A test that was not run, or that is not recorded, is a fault.

mod recorded;
mod report;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions, free_port};
use super::credentials::UserIdentity;
use super::process::Process;
use super::programs::{self, Program};
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::special_pods::{STEP_TIMEOUT, wait_until};
use recorded::RecordedTest;
use report::TestResult;

/// Run Kubernetes' own end-to-end tests of the scheduler on simulated nodes.
#[derive(Parser)]
pub struct Args {
    /// Only tests whose name contains one of these texts.
    tests: Vec<String>,
    /// Only tests that are recorded as quick.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    chosen: SchedulerArgs,
}

const N_NODES: usize = 4;
/// Some tests need nodes in two zones.
const NODE_TEMPLATES: &str = "\
apiVersion: v1
kind: Node
metadata: {labels: {topology.kubernetes.io/zone: a}}
---
apiVersion: v1
kind: Node
metadata: {labels: {topology.kubernetes.io/zone: b}}
";
/// Many tests wait a minute for pods with such names on each node, and continue without them.
const SYSTEM_PODS: [&str; 3] = ["kube-proxy", "fluentd-elasticsearch", "node-problem-detector"];
/// The timeout of all tests; Ginkgo has one of an hour.
const TESTS_TIMEOUT: Duration = Duration::from_secs(4_000);

/// Returns whether all results are the recorded ones.
pub async fn run(args: &Args) -> Result<bool> {
    use Program::{E2eTests, Etcd, KubeApiserver, KubeControllerManager};
    programs::build(&[Etcd, KubeApiserver, KubeControllerManager, E2eTests])?;
    let recorded = recorded::read()?;
    let chosen: Vec<&RecordedTest> = recorded.iter().filter(|test| args.chooses(test)).collect();
    ensure!(!chosen.is_empty(), "no test of {} is selected", recorded::FILE);
    let mut kinds = args.chosen.kinds()?.into_iter();
    // Concurrently, because the tests mostly wait.
    let (first, second) = tokio::try_join!(
        has_recorded_results(args, &recorded, &chosen, kinds.next()),
        has_recorded_results(args, &recorded, &chosen, kinds.next())
    )?;
    Ok(first && second)
}

impl Args {
    fn chooses(&self, test: &RecordedTest) -> bool {
        let is_named = self.tests.is_empty()
            || self.tests.iter().any(|text| test.name.contains(text.as_str()));
        is_named && (test.is_quick() || !self.quick)
    }
}

/// The components of a cluster, in the order in which they are stopped.
struct Cluster {
    scheduler: Scheduler,
    kubelets: Process,
    manager: Process,
    plane: ControlPlane,
}

/// Runs the chosen tests with a scheduler, if there is one, on a cluster of its own, and prints their results and every difference from the
/// recorded ones.
async fn has_recorded_results(
    args: &Args,
    recorded: &[RecordedTest],
    chosen: &[&RecordedTest],
    kind: Option<SchedulerKind>,
) -> Result<bool> {
    let Some(kind) = kind else { return Ok(true) };
    let name = kind.name();
    let mut cluster = Cluster::start(args, kind).await.context(name)?;
    let results = run_tests(&cluster.plane, chosen).await.context(name)?;
    cluster.check_running()?;
    let has_passed = |result: &&TestResult| result.state == report::PASSED;
    println!(
        "{name}: {} of {} tests passed",
        results.iter().filter(has_passed).count(),
        chosen.len()
    );
    for result in results.iter().filter(|result| result.state != report::NOT_CHOSEN) {
        println!("  {result}");
    }
    let faults = recorded::faults(kind, recorded, chosen, &results);
    faults.iter().for_each(|fault| println!("{name}: {fault}"));
    if faults.is_empty() {
        cluster.finish();
    }
    Ok(faults.is_empty())
}

impl Cluster {
    async fn start(args: &Args, kind: SchedulerKind) -> Result<Cluster> {
        let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
        let folder = plane.folder();
        let user = |name: &str| plane.kubeconfig(&UserIdentity::new(name, &[]));
        let manager = start_manager(&plane, &user("system:kube-controller-manager"))?;
        let templates = folder.join("nodes.yaml");
        std::fs::write(&templates, NODE_TEMPLATES).context("writing the node templates")?;
        let mut command = Command::new(args.chosen.binary(SchedulerKind::Loadmaster)?);
        command.arg("kubelets").arg("--kubeconfig").arg(plane.admin_kubeconfig());
        command.args(["--nodes", &N_NODES.to_string()]).arg("--node-template").arg(&templates);
        let kubelets = Process::start("loadmaster", &mut command, &folder.join("kubelets.log"))?;
        let kubeconfig = user("system:kube-scheduler");
        let setup = SchedulerSetup::new(kind.name(), folder, &kubeconfig);
        let mut scheduler = args.chosen.start(kind, &setup)?;
        scheduler.wait_until_ready().await?;
        let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
        wait_until("the nodes", STEP_TIMEOUT, async || {
            Ok(api.list("/api/v1/nodes").await?.len() == N_NODES)
        })
        .await?;
        for name in SYSTEM_PODS {
            api.create("/apis/apps/v1/namespaces/kube-system/daemonsets", &system_pods(name))
                .await?;
        }
        Ok(Cluster { scheduler, kubelets, manager, plane })
    }

    /// An error if a component has exited.
    fn check_running(&mut self) -> Result<()> {
        self.scheduler.process.check_running()?;
        self.kubelets.check_running()?;
        self.manager.check_running()
    }

    fn finish(self) {
        drop((self.scheduler, self.kubelets, self.manager));
        self.plane.finish();
    }
}

/// A DaemonSet whose pods request nothing and are never preempted.
fn system_pods(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"priorityClassName": "system-node-critical",
                "containers": [{"name": name, "image": "registry.example/system:v1"}]}}}})
}

/// kube-controller-manager with all its controllers, each with its own role, as in kubeadm.
fn start_manager(plane: &ControlPlane, kubeconfig: &Path) -> Result<Process> {
    let file = |name: &str| plane.folder().join(name);
    let mut command = Command::new(Program::KubeControllerManager.path()?);
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
    command.arg(format!("--secure-port={}", free_port()?));
    command.arg("--use-service-account-credentials=true");
    // Every test waits for the certificate and the account of its namespace.
    command.arg("--root-ca-file").arg(file("ca.crt"));
    command.arg("--service-account-private-key-file").arg(file("service-accounts.key"));
    Process::start("kube-controller-manager", &mut command, &file("kube-controller-manager.log"))
}

/// Runs the chosen tests, one after another; returns the results of all.
async fn run_tests(plane: &ControlPlane, chosen: &[&RecordedTest]) -> Result<Vec<TestResult>> {
    let (log, report) = (plane.folder().join("e2e.log"), plane.folder().join("e2e.json"));
    let names: Vec<String> = chosen.iter().map(|test| regex::escape(&test.name)).collect();
    let mut command = Command::new(Program::E2eTests.path()?);
    command.arg("--kubeconfig").arg(plane.admin_kubeconfig());
    // After a failure, upstream would ask the kubelets for logs of containers.
    command.args(["--provider=skeleton", "--dump-logs-on-failure=false"]);
    // The same order with each scheduler.
    command.args(["--ginkgo.seed=1", "--ginkgo.v", "--ginkgo.no-color"]);
    command.arg(format!("--ginkgo.focus=({})$", names.join("|")));
    command.arg(format!("--ginkgo.json-report={}", report.display()));
    let mut process = Process::start("e2e", &mut command, &log)?;
    // It is 1 after a failure, too: the report says which.
    process.wait(TESTS_TIMEOUT).await?;
    let text = std::fs::read_to_string(&report);
    let text = text.with_context(|| format!("the tests wrote no report; see {}", log.display()))?;
    report::parse(&text)
}
