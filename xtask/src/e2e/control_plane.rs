//! A real control plane on loopback: etcd and kube-apiserver, without other components.

#![expect(clippy::disallowed_types, reason = "waiting for a process needs a clock")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
pub use loadmaster_stdx::free_port;

use super::api_client::ApiClient;
use super::credentials::{Credentials, UserIdentity};
use super::process::{Process, Usage};
use super::programs::{self, Program};
use super::run_folder::RunFolder;

/// The startup timeout of etcd and the API server; they take about five seconds on an idle machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Options of a control plane.
#[derive(Clone, Debug)]
pub struct ControlPlaneOptions {
    /// The port of the API server; a free port if `None`.
    pub port: Option<u16>,
    /// The folder for files, which is kept; a temporary folder if `None`.
    pub folder: Option<PathBuf>,
    /// The users with a token, besides the administrator.
    pub identities: Vec<UserIdentity>,
    /// The audit policy (a JSON object); no audit log if `None`.
    pub audit_policy: Option<serde_json::Value>,
    /// Whether the admission plugin `ServiceAccount` is enabled. It rejects pods whose service account does not exist, and no controller
    /// creates accounts: [`load_objects::namespace`](super::load_objects::namespace) creates the one called `default`.
    pub service_account_admission: bool,
    /// Additional flags of the API server.
    pub apiserver_flags: Vec<String>,
}

impl ControlPlaneOptions {
    /// Without the admission plugin `ServiceAccount`, like the embedded API server's default.
    pub fn without_service_account_admission() -> ControlPlaneOptions {
        ControlPlaneOptions { service_account_admission: false, ..ControlPlaneOptions::default() }
    }
}

impl Default for ControlPlaneOptions {
    fn default() -> ControlPlaneOptions {
        let identities = vec![
            UserIdentity::new("system:kube-scheduler", &[]),
            UserIdentity::new("system:kube-controller-manager", &[]),
        ];
        ControlPlaneOptions {
            port: None,
            folder: None,
            identities,
            audit_policy: None,
            service_account_admission: true,
            apiserver_flags: Vec::new(),
        }
    }
}

/// A running control plane. Dropping it stops it; its logs are kept unless [`ControlPlane::finish`] is called.
pub struct ControlPlane {
    // In the order in which they are stopped.
    apiserver: Process,
    etcd: Process,
    _etcd_data: RunFolder,
    folder: RunFolder,
    credentials: Credentials,
    port: u16,
    url: String,
    audit_log: PathBuf,
    started_in: Duration,
}

impl ControlPlane {
    /// Starts a control plane and waits until it is ready. The programs are built first if necessary.
    pub async fn start(options: &ControlPlaneOptions) -> Result<ControlPlane> {
        programs::build(&[Program::Etcd, Program::KubeApiserver])?;
        let folder = match &options.folder {
            Some(path) => RunFolder::named(path)?,
            None => RunFolder::temporary(&std::env::temp_dir())?,
        };
        // In memory if possible, so that benchmarks do not measure the disk.
        let memory = Path::new("/dev/shm");
        let etcd_data = if memory.is_dir() {
            RunFolder::temporary(memory)?
        } else {
            RunFolder::temporary(&std::env::temp_dir())?
        };
        let credentials = Credentials::create(folder.path())?;
        let start = Instant::now();
        let (etcd, etcd_url) = start_etcd(etcd_data.path(), &folder.path().join("etcd.log"))?;
        let port = match options.port {
            Some(port) => port,
            None => free_port()?,
        };
        let url = format!("https://127.0.0.1:{port}");
        let mut identities = vec![UserIdentity::admin()];
        identities.extend_from_slice(&options.identities);
        credentials.issue_tokens(&identities, &url)?;
        let audit_log = folder.path().join("audit.log");
        let mut command = apiserver_command(&credentials, &etcd_url, port)?;
        // No controller removes the taint of new nodes.
        command.arg("--disable-admission-plugins=TaintNodesByCondition");
        if !options.service_account_admission {
            command.arg("--disable-admission-plugins=ServiceAccount");
        }
        command.args(&options.apiserver_flags);
        if let Some(policy) = &options.audit_policy {
            let path = folder.path().join("audit-policy.json");
            std::fs::write(&path, policy.to_string()).context("writing the audit policy")?;
            command.arg(format!("--audit-policy-file={}", path.display()));
            command.arg(format!("--audit-log-path={}", audit_log.display()));
        }
        let log = folder.path().join("kube-apiserver.log");
        let apiserver = Process::start("kube-apiserver", &mut command, &log)?;
        let mut plane = ControlPlane {
            apiserver,
            etcd,
            _etcd_data: etcd_data.remove_on_drop(),
            folder,
            credentials,
            port,
            url,
            audit_log,
            started_in: Duration::ZERO,
        };
        plane.wait_until_ready().await?;
        plane.started_in = start.elapsed();
        Ok(plane)
    }

    /// The port of the API server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the API server: `https://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The folder with kubeconfig files and logs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The kubeconfig file of one of the identities.
    pub fn kubeconfig(&self, identity: &UserIdentity) -> PathBuf {
        self.credentials.path(&format!("{}.kubeconfig", identity.file_stem()))
    }

    /// The kubeconfig file of the administrator.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.kubeconfig(&UserIdentity::admin())
    }

    /// The token of the administrator.
    pub fn admin_token(&self) -> Result<String> {
        self.credentials.token(&UserIdentity::admin().file_stem())
    }

    /// Writes a kubeconfig file for another token, such as a service account's.
    pub fn kubeconfig_for_token(&self, stem: &str, token: &str) -> Result<PathBuf> {
        self.kubeconfig_for_url(stem, &self.url, token)
    }

    /// The same for a proxy of the API server.
    pub fn kubeconfig_for_url(&self, stem: &str, url: &str, token: &str) -> Result<PathBuf> {
        self.credentials.write_kubeconfig(stem, url, token)
    }

    /// Issues a client certificate of a user that is valid for this long; returns the kubeconfig file that names it. An earlier certificate is
    /// replaced in its file.
    pub fn kubeconfig_for_certificate(
        &self,
        identity: &UserIdentity,
        lifetime: Duration,
    ) -> Result<PathBuf> {
        self.credentials.issue_certificate(identity, lifetime)?;
        self.credentials.write_certificate_kubeconfig(&identity.file_stem(), &self.url)
    }

    /// The path of the audit log.
    pub fn audit_log(&self) -> &Path {
        &self.audit_log
    }

    /// The resource usage of the API server so far.
    pub fn apiserver_usage(&self) -> Result<Usage> {
        self.apiserver.usage()
    }

    /// The resource usage of etcd so far.
    pub fn etcd_usage(&self) -> Result<Usage> {
        self.etcd.usage()
    }

    /// The time from the start of etcd until the API server was ready.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// Stops it and removes its temporary folder.
    pub fn finish(self) {
        drop(self.apiserver);
        drop(self.folder.remove_on_drop());
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let api = ApiClient::new(&self.admin_kubeconfig()).await?;
        let since = Instant::now();
        loop {
            self.apiserver.check_running()?;
            self.etcd.check_running()?;
            let ready = api.request(Method::GET, "/readyz", Vec::new()).await;
            if ready.is_ok_and(|response| response.status == 200) {
                return Ok(());
            }
            if since.elapsed() > READY_TIMEOUT {
                bail!("kube-apiserver was not ready within {} s", READY_TIMEOUT.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn start_etcd(data: &Path, log: &Path) -> Result<(Process, String)> {
    let clients = format!("http://127.0.0.1:{}", free_port()?);
    let peers = format!("http://127.0.0.1:{}", free_port()?);
    let mut command = Command::new(Program::Etcd.path()?);
    command.arg(format!("--data-dir={}", data.join("etcd").display()));
    command.args(["--name=e2e", "--unsafe-no-fsync", "--log-level=warn"]);
    command.arg(format!("--listen-client-urls={clients}"));
    command.arg(format!("--advertise-client-urls={clients}"));
    command.arg(format!("--listen-peer-urls={peers}"));
    command.arg(format!("--initial-advertise-peer-urls={peers}"));
    command.arg(format!("--initial-cluster=e2e={peers}"));
    Ok((Process::start("etcd", &mut command, log)?, clients))
}

fn apiserver_command(credentials: &Credentials, etcd_url: &str, port: u16) -> Result<Command> {
    let mut command = Command::new(Program::KubeApiserver.path()?);
    command.arg(format!("--etcd-servers={etcd_url}"));
    command.arg(format!("--secure-port={port}"));
    // The reconciler would publish the address as an endpoint, and endpoints may not be on loopback.
    command.args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"]);
    command.args(["--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16"]);
    command.args(["--authorization-mode=RBAC", "--delete-collection-workers=16"]);
    // The front proxy configuration for other servers, as in kubeadm.
    command.arg("--requestheader-allowed-names=front-proxy-client");
    command.arg("--requestheader-username-headers=X-Remote-User");
    command.arg("--requestheader-group-headers=X-Remote-Group");
    command.arg("--requestheader-extra-headers-prefix=X-Remote-Extra-");
    command.arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local");
    for (flag, file) in [
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
        ("client-ca-file", "ca.crt"),
        ("requestheader-client-ca-file", "ca.crt"),
        ("token-auth-file", "tokens.csv"),
        ("service-account-key-file", "service-accounts.pub"),
        ("service-account-signing-key-file", "service-accounts.key"),
    ] {
        command.arg(format!("--{flag}={}", credentials.path(file).display()));
    }
    Ok(command)
}
