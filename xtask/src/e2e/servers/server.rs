//! The two servers as processes.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use http::Method;

use crate::e2e::api::Api;
use crate::e2e::control_plane::{ControlPlane, Options, free_port};
use crate::e2e::credentials::Identity;
use crate::e2e::folder::Folder;
use crate::e2e::process::{Process, Usage};

const SCHEDULER: &str = "system:kube-scheduler";

/// Which server.
pub enum Which {
    /// kube-apiserver with etcd.
    Real,
    /// That of this binary.
    Embedded(PathBuf),
}

impl Which {
    pub fn name(&self) -> &'static str {
        match self {
            Which::Real => "kube-apiserver + etcd",
            Which::Embedded(_) => "embedded",
        }
    }
}

/// A server that runs.
pub enum Server {
    Real(Box<ControlPlane>),
    Embedded { process: Process, folder: Folder },
}

const START: Duration = Duration::from_secs(60);

impl Server {
    /// Starts it; the time is from its process' start until it says that it is ready.
    pub async fn start(which: &Which) -> Result<(Server, Duration)> {
        match which {
            Which::Real => {
                let plane = ControlPlane::start(&Options::default()).await?;
                let took = plane.started_in();
                Ok((Server::Real(Box::new(plane)), took))
            }
            Which::Embedded(binary) => start_embedded(binary).await,
        }
    }

    pub fn admin_kubeconfig(&self) -> PathBuf {
        match self {
            Server::Real(plane) => plane.admin_kubeconfig(),
            Server::Embedded { folder, .. } => folder.path().join("admin.kubeconfig"),
        }
    }

    pub fn scheduler_kubeconfig(&self) -> PathBuf {
        match self {
            Server::Real(plane) => plane.kubeconfig(&Identity::new(SCHEDULER, &[])),
            Server::Embedded { folder, .. } => folder.path().join("scheduler.kubeconfig"),
        }
    }

    /// What all its processes have used so far.
    pub fn usage(&self) -> Result<Usage> {
        match self {
            Server::Real(plane) => Ok(plane.apiserver_usage()? + plane.etcd_usage()?),
            Server::Embedded { process, .. } => process.usage(),
        }
    }

    /// Ends it and removes its files.
    pub fn finish(self) {
        match self {
            Server::Real(plane) => plane.finish(),
            Server::Embedded { process, folder } => {
                drop(process);
                drop(folder.removed());
            }
        }
    }
}

async fn start_embedded(binary: &Path) -> Result<(Server, Duration)> {
    const PAUSE: Duration = Duration::from_millis(1);
    let folder = Folder::temporary(&std::env::temp_dir())?;
    let file = |name: &str| folder.path().join(name);
    let port = free_port()?;
    let api = Api::unverified(&format!("https://127.0.0.1:{port}"), None)?;
    let mut command = Command::new(binary);
    command.args(["apiserver", "--port", &port.to_string()]);
    command.arg("--kubeconfig").arg(file("admin.kubeconfig"));
    let scheduler = file("scheduler.kubeconfig");
    command.arg(format!("--kubeconfig-as={SCHEDULER}={}", scheduler.display()));
    let start = Instant::now();
    let mut process = Process::start("loadmaster", &mut command, &file("server.log"))?;
    while start.elapsed() < START {
        process.check_running()?;
        let ready = api.ask(Method::GET, "/readyz", Vec::new()).await;
        if ready.is_ok_and(|answer| answer.status == 200) {
            return Ok((Server::Embedded { process, folder }, start.elapsed()));
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("the embedded API server was not ready within {} s", START.as_secs())
}
