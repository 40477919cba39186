//! A scheduler as a process: kube-scheduler or Loadmaster, started with the same flags and the same configuration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use http::Method;
use serde_json::json;

use super::api::Api;
use super::control_plane::free_port;
use super::process::Process;
use super::programs::{self, Program};

/// Requests a second of both: the client's limit is not what is measured.
const QPS: u32 = 5_000;
/// How long one may take to fill its cache.
const READY: Duration = Duration::from_secs(60);

/// Which scheduler.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    KubeScheduler,
    Loadmaster,
}

impl Kind {
    /// Its name in reports and file names.
    pub fn name(self) -> &'static str {
        match self {
            Kind::KubeScheduler => "kube-scheduler",
            Kind::Loadmaster => "loadmaster",
        }
    }
}

/// What a run may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Choice {
    KubeScheduler,
    Loadmaster,
    Both,
}

/// Which schedulers run, and where Loadmaster is.
#[derive(Parser, Clone, Debug)]
pub struct Chosen {
    /// Whom to run.
    #[arg(long, default_value = "both")]
    scheduler: Choice,
    /// Loadmaster's binary; that of the release profile when not given.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

impl Chosen {
    /// Only Loadmaster, or a scheduler made from it.
    pub fn only(loadmaster: PathBuf) -> Chosen {
        Chosen { scheduler: Choice::Loadmaster, loadmaster: Some(loadmaster) }
    }

    /// The chosen ones, after a look whether they can be started.
    pub fn kinds(&self) -> Result<Vec<Kind>> {
        let kinds = match self.scheduler {
            Choice::KubeScheduler => vec![Kind::KubeScheduler],
            Choice::Loadmaster => vec![Kind::Loadmaster],
            Choice::Both => vec![Kind::KubeScheduler, Kind::Loadmaster],
        };
        for &kind in &kinds {
            if kind == Kind::KubeScheduler {
                programs::build(&[Program::KubeScheduler])?;
            }
            self.binary(kind)?;
        }
        Ok(kinds)
    }

    /// Where it is.
    pub fn binary(&self, kind: Kind) -> Result<PathBuf> {
        match kind {
            Kind::KubeScheduler => Program::KubeScheduler.path(),
            Kind::Loadmaster => programs::loadmaster(self.loadmaster.as_deref()),
        }
    }

    /// Starts one.
    pub fn start(&self, kind: Kind, setup: &Setup<'_>) -> Result<Scheduler> {
        self.start_with(kind, setup, &[])
    }

    /// Starts one with more flags.
    pub fn start_with(&self, kind: Kind, setup: &Setup<'_>, flags: &[String]) -> Result<Scheduler> {
        let stem = setup.folder.join(setup.name);
        let config = stem.with_extension("config");
        let text = format!("{:#}\n", configuration(setup));
        std::fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let secure_port = free_port()?;
        let mut command = Command::new(self.binary(kind)?);
        if kind == Kind::Loadmaster {
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

/// How one is started.
pub struct Setup<'a> {
    /// For its files; unique in the folder.
    pub name: &'a str,
    /// Where its configuration and its log go.
    pub folder: &'a Path,
    /// Who it is.
    pub kubeconfig: &'a Path,
    /// Whether it takes part in leader election, with upstream's default times.
    pub leader_elect: bool,
    /// `extenders` of its configuration.
    pub extenders: &'a [serde_json::Value],
    /// Whose pods it places.
    pub scheduler_name: &'a str,
    /// More fields of its configuration, which go before those made here.
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl<'a> Setup<'a> {
    /// One that leads at once, with the default profile.
    pub fn new(name: &'a str, folder: &'a Path, kubeconfig: &'a Path) -> Setup<'a> {
        Setup {
            name,
            folder,
            kubeconfig,
            leader_elect: false,
            extenders: &[],
            scheduler_name: "default-scheduler",
            more: serde_json::Map::new(),
        }
    }
}

fn configuration(setup: &Setup<'_>) -> serde_json::Value {
    let mut configuration = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": setup.kubeconfig, "qps": QPS, "burst": QPS},
        "leaderElection": {"leaderElect": setup.leader_elect},
        "extenders": setup.extenders,
        "profiles": [{"schedulerName": setup.scheduler_name}],
    });
    for (field, value) in &setup.more {
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
    /// Where it serves its health and metrics, with a certificate that nobody signed.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.secure_port)
    }

    /// Until `/readyz` says so; a standby's is ready when its cache is filled.
    pub async fn wait_until_ready(&mut self) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(100);
        let api = Api::unverified(&self.url(), None)?;
        for _ in 0..READY.as_millis() / PAUSE.as_millis() {
            self.process.check_running()?;
            let ready = api.ask(Method::GET, "/readyz", Vec::new()).await;
            if ready.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        bail!("{} was not ready within {} s", self.url(), READY.as_secs())
    }
}
