//! The two servers as processes.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use http::Method;

use crate::e2e::api_client::ApiClient;
use crate::e2e::control_plane::{ControlPlane, ControlPlaneOptions, free_port};
use crate::e2e::credentials::UserIdentity;
use crate::e2e::process::{Process, Usage};
use crate::e2e::run_folder::RunFolder;

const SCHEDULER: &str = "system:kube-scheduler";

/// The kind of server.
pub enum ServerKind {
    /// kube-apiserver with etcd.
    Real,
    /// The embedded API server of this binary.
    Embedded(PathBuf),
}

impl ServerKind {
    pub fn name(&self) -> &'static str {
        match self {
            ServerKind::Real => "kube-apiserver + etcd",
            ServerKind::Embedded(_) => "embedded",
        }
    }
}

/// A running server.
pub enum BenchmarkServer {
    Real(Box<ControlPlane>),
    Embedded { process: Process, folder: RunFolder },
}

const START_TIMEOUT: Duration = Duration::from_secs(60);

impl BenchmarkServer {
    /// Starts it; also returns the time from process start until ready.
    pub async fn start(which: &ServerKind) -> Result<(BenchmarkServer, Duration)> {
        match which {
            ServerKind::Real => {
                let options = ControlPlaneOptions::without_service_account_admission();
                let plane = ControlPlane::start(&options).await?;
                let took = plane.started_in();
                Ok((BenchmarkServer::Real(Box::new(plane)), took))
            }
            ServerKind::Embedded(binary) => start_embedded(binary).await,
        }
    }

    pub fn admin_kubeconfig(&self) -> PathBuf {
        match self {
            BenchmarkServer::Real(plane) => plane.admin_kubeconfig(),
            BenchmarkServer::Embedded { folder, .. } => folder.path().join("admin.kubeconfig"),
        }
    }

    pub fn scheduler_kubeconfig(&self) -> PathBuf {
        match self {
            BenchmarkServer::Real(plane) => plane.kubeconfig(&UserIdentity::new(SCHEDULER, &[])),
            BenchmarkServer::Embedded { folder, .. } => folder.path().join("scheduler.kubeconfig"),
        }
    }

    /// The resource usage of all its processes.
    pub fn usage(&self) -> Result<Usage> {
        match self {
            BenchmarkServer::Real(plane) => Ok(plane.apiserver_usage()? + plane.etcd_usage()?),
            BenchmarkServer::Embedded { process, .. } => process.usage(),
        }
    }

    /// Stops it and removes its files.
    pub fn finish(self) {
        match self {
            BenchmarkServer::Real(plane) => plane.finish(),
            BenchmarkServer::Embedded { process, folder } => {
                drop(process);
                drop(folder.remove_on_drop());
            }
        }
    }
}

async fn start_embedded(binary: &Path) -> Result<(BenchmarkServer, Duration)> {
    const PAUSE: Duration = Duration::from_millis(1);
    let folder = RunFolder::temporary(&std::env::temp_dir())?;
    let file = |name: &str| folder.path().join(name);
    let port = free_port()?;
    let api = ApiClient::insecure(&format!("https://127.0.0.1:{port}"), None)?;
    let mut command = Command::new(binary);
    command.args(["apiserver", "--port", &port.to_string()]);
    command.arg("--kubeconfig").arg(file("admin.kubeconfig"));
    let scheduler = file("scheduler.kubeconfig");
    command.arg(format!("--kubeconfig-as={SCHEDULER}={}", scheduler.display()));
    let start = Instant::now();
    let mut process = Process::start("loadmaster", &mut command, &file("server.log"))?;
    while start.elapsed() < START_TIMEOUT {
        process.check_running()?;
        let ready = api.request(Method::GET, "/readyz", Vec::new()).await;
        if ready.is_ok_and(|response| response.status == 200) {
            return Ok((BenchmarkServer::Embedded { process, folder }, start.elapsed()));
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("the embedded API server was not ready within {} s", START_TIMEOUT.as_secs())
}
