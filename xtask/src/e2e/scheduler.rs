//! Runs a scheduler process: kube-scheduler or Loadmaster, with the same flags and configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use http::Method;
use serde_json::json;

use super::api_client::ApiClient;
use super::control_plane::free_port;
use super::process::Process;
use super::programs::{self, Program};

/// Requests per second of both schedulers, so that client-side rate limiting does not affect benchmarks.
const QPS: u32 = 5_000;
/// The timeout until the cache is synced.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The kind of scheduler.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SchedulerKind {
    KubeScheduler,
    /// kube-scheduler with the plugins of scheduler-plugins.
    SchedulerPlugins,
    Loadmaster,
}

impl SchedulerKind {
    /// Its name in reports and file names.
    pub fn name(self) -> &'static str {
        match self {
            SchedulerKind::KubeScheduler => "kube-scheduler",
            SchedulerKind::SchedulerPlugins => "scheduler-plugins",
            SchedulerKind::Loadmaster => "loadmaster",
        }
    }
}

/// The schedulers of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum SchedulerChoice {
    KubeScheduler,
    Loadmaster,
    Both,
}

/// Flags that select the schedulers of a run, and the path of the loadmaster binary.
#[derive(Parser, Clone, Debug)]
pub struct SchedulerArgs {
    /// The schedulers to run.
    #[arg(long, default_value = "both")]
    scheduler: SchedulerChoice,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

impl SchedulerArgs {
    /// Only Loadmaster, or a scheduler built with it.
    pub fn only(loadmaster: PathBuf) -> SchedulerArgs {
        SchedulerArgs { scheduler: SchedulerChoice::Loadmaster, loadmaster: Some(loadmaster) }
    }

    /// The selected schedulers; an error if one of them cannot be started.
    pub fn kinds(&self) -> Result<Vec<SchedulerKind>> {
        let kinds = match self.scheduler {
            SchedulerChoice::KubeScheduler => vec![SchedulerKind::KubeScheduler],
            SchedulerChoice::Loadmaster => vec![SchedulerKind::Loadmaster],
            SchedulerChoice::Both => vec![SchedulerKind::KubeScheduler, SchedulerKind::Loadmaster],
        };
        for &kind in &kinds {
            if kind == SchedulerKind::KubeScheduler {
                programs::build(&[Program::KubeScheduler])?;
            }
            self.binary(kind)?;
        }
        Ok(kinds)
    }

    /// The path of the binary.
    pub fn binary(&self, kind: SchedulerKind) -> Result<PathBuf> {
        match kind {
            SchedulerKind::KubeScheduler => Program::KubeScheduler.path(),
            SchedulerKind::SchedulerPlugins => Program::SchedulerPlugins.path(),
            SchedulerKind::Loadmaster => programs::loadmaster(self.loadmaster.as_deref()),
        }
    }

    /// Starts a scheduler.
    pub fn start(&self, kind: SchedulerKind, setup: &SchedulerSetup<'_>) -> Result<Scheduler> {
        self.start_with(kind, setup, &[])
    }

    /// Starts a scheduler with additional flags.
    pub fn start_with(
        &self,
        kind: SchedulerKind,
        setup: &SchedulerSetup<'_>,
        flags: &[String],
    ) -> Result<Scheduler> {
        let stem = setup.folder.join(setup.name);
        let config = stem.with_extension("config");
        let text = format!("{:#}\n", configuration(setup));
        std::fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let secure_port = free_port()?;
        let mut command = Command::new(self.binary(kind)?);
        if kind == SchedulerKind::Loadmaster {
            command.arg("run");
        }
        command.arg(format!("--config={}", config.display()));
        let kubeconfig = setup.kubeconfig.display();
        command.arg(format!("--authentication-kubeconfig={kubeconfig}"));
        command.arg(format!("--authorization-kubeconfig={kubeconfig}"));
        command.arg("--bind-address=127.0.0.1");
        command.arg(format!("--secure-port={secure_port}"));
        command.args(flags);
        let process = Process::start(kind.name(), &mut command, &stem.with_extension("log"))?;
        Ok(Scheduler { process, secure_port })
    }
}

/// Options of a scheduler process.
pub struct SchedulerSetup<'a> {
    /// The stem of its file names; unique in the folder.
    pub name: &'a str,
    /// The folder of its configuration and log.
    pub folder: &'a Path,
    /// Its credentials.
    pub kubeconfig: &'a Path,
    /// Whether leader election is enabled, with upstream's default durations.
    pub leader_elect: bool,
    /// `extenders` of its configuration.
    pub extenders: &'a [serde_json::Value],
    /// The schedulerName of its profile.
    pub scheduler_name: &'a str,
    /// Additional fields of its configuration, which override the generated ones.
    pub extra_config: serde_json::Map<String, serde_json::Value>,
}

impl<'a> SchedulerSetup<'a> {
    /// Without leader election, with the default profile.
    pub fn new(name: &'a str, folder: &'a Path, kubeconfig: &'a Path) -> SchedulerSetup<'a> {
        SchedulerSetup {
            name,
            folder,
            kubeconfig,
            leader_elect: false,
            extenders: &[],
            scheduler_name: "default-scheduler",
            extra_config: serde_json::Map::new(),
        }
    }
}

fn configuration(setup: &SchedulerSetup<'_>) -> serde_json::Value {
    let mut configuration = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": setup.kubeconfig, "qps": QPS, "burst": QPS},
        "leaderElection": {"leaderElect": setup.leader_elect},
        "extenders": setup.extenders,
        "profiles": [{"schedulerName": setup.scheduler_name}],
    });
    for (field, value) in &setup.extra_config {
        configuration[field] = value.clone();
    }
    configuration
}

/// A running scheduler. Dropping it kills it.
pub struct Scheduler {
    pub process: Process,
    secure_port: u16,
}

impl Scheduler {
    /// The URL of its health and metrics endpoints, with a self-signed certificate.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.secure_port)
    }

    /// Where its endpoints are.
    pub fn secure_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.secure_port))
    }

    /// Waits until `/readyz` succeeds; a standby is ready when its cache is synced.
    pub async fn wait_until_ready(&mut self) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(100);
        let api = ApiClient::insecure(&self.url(), None)?;
        for _ in 0..READY_TIMEOUT.as_millis() / PAUSE.as_millis() {
            self.process.check_running()?;
            let ready = api.request(Method::GET, "/readyz", Vec::new()).await;
            if ready.is_ok_and(|response| response.status == 200) {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        bail!("{} was not ready within {} s", self.url(), READY_TIMEOUT.as_secs())
    }

    /// Sends a liveness probe over a new connection, as a kubelet does, with the kubelet's default timeout.
    pub async fn probe_liveness(&self) -> Result<()> {
        const TIMEOUT: Duration = Duration::from_secs(1);
        let api = ApiClient::insecure(&self.url(), None)?;
        let probe = tokio::time::timeout(TIMEOUT, api.request(Method::GET, "/livez", Vec::new()));
        let response = probe.await.context("the liveness probe was not answered in time")??;
        ensure!(response.status == 200, "the liveness probe got {}", response.status);
        Ok(())
    }
}
