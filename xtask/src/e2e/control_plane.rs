//! A real control plane on loopback: etcd and kube-apiserver, with nobody else in it.

#![expect(clippy::disallowed_types, reason = "waiting for a process needs a clock")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;

use super::api::Api;
use super::credentials::{Credentials, Identity};
use super::folder::Folder;
use super::process::{Process, Usage};
use super::programs::{self, Program};

/// How long etcd and the API server may take to get ready; about five seconds when the machine is idle.
const READY: Duration = Duration::from_secs(120);

/// What a control plane is to be like.
#[derive(Clone, Debug)]
pub struct Options {
    /// The API server's port; a free one if there is none.
    pub port: Option<u16>,
    /// Where files go and stay; a temporary folder if there is none.
    pub folder: Option<PathBuf>,
    /// Who has a token, besides the admin.
    pub identities: Vec<Identity>,
    /// An audit policy (a JSON object) when there is to be an audit log.
    pub audit_policy: Option<serde_json::Value>,
}

impl Default for Options {
    fn default() -> Options {
        let identities = vec![
            Identity::new("system:kube-scheduler", &[]),
            Identity::new("system:kube-controller-manager", &[]),
        ];
        Options { port: None, folder: None, identities, audit_policy: None }
    }
}

/// A running control plane. Dropping it ends it; its logs stay unless it was [finished](ControlPlane::finish).
pub struct ControlPlane {
    // In the order in which they end.
    apiserver: Process,
    etcd: Process,
    _etcd_data: Folder,
    folder: Folder,
    credentials: Credentials,
    url: String,
    audit_log: PathBuf,
    started_in: Duration,
}

impl ControlPlane {
    /// Starts one and waits until it is ready. The programs are built first where needed.
    pub async fn start(options: &Options) -> Result<ControlPlane> {
        programs::build(&[Program::Etcd, Program::KubeApiserver])?;
        let folder = match &options.folder {
            Some(path) => Folder::named(path)?,
            None => Folder::temporary(&std::env::temp_dir())?,
        };
        // In memory where possible: what is measured is not a disk.
        let memory = Path::new("/dev/shm");
        let etcd_data = if memory.is_dir() {
            Folder::temporary(memory)?
        } else {
            Folder::temporary(&std::env::temp_dir())?
        };
        let credentials = Credentials::create(folder.path())?;
        let start = Instant::now();
        let (etcd, etcd_url) = start_etcd(etcd_data.path(), &folder.path().join("etcd.log"))?;
        let port = match options.port {
            Some(port) => port,
            None => free_port()?,
        };
        let url = format!("https://127.0.0.1:{port}");
        let mut identities = vec![Identity::admin()];
        identities.extend_from_slice(&options.identities);
        credentials.issue_tokens(&identities, &url)?;
        let audit_log = folder.path().join("audit.log");
        let mut command = apiserver_command(&credentials, &etcd_url, port)?;
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
            _etcd_data: etcd_data.removed(),
            folder,
            credentials,
            url,
            audit_log,
            started_in: Duration::ZERO,
        };
        plane.wait_until_ready().await?;
        plane.started_in = start.elapsed();
        Ok(plane)
    }

    /// Where the API server listens, as `https://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The folder with kubeconfig files and logs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The kubeconfig file of one of the identities.
    pub fn kubeconfig(&self, identity: &Identity) -> PathBuf {
        self.credentials.path(&format!("{}.kubeconfig", identity.file_stem()))
    }

    /// The kubeconfig file of the one who may do everything.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.kubeconfig(&Identity::admin())
    }

    /// The token of the one who may do everything.
    pub fn admin_token(&self) -> Result<String> {
        self.credentials.token(&Identity::admin().file_stem())
    }

    /// Writes a kubeconfig file for a token that came from elsewhere, such as a service account's.
    pub fn kubeconfig_for_token(&self, stem: &str, token: &str) -> Result<PathBuf> {
        self.credentials.write_kubeconfig(stem, &self.url, token)
    }

    /// Where the audit log is when there is one.
    pub fn audit_log(&self) -> &Path {
        &self.audit_log
    }

    /// What the API server has used so far.
    pub fn apiserver_usage(&self) -> Result<Usage> {
        self.apiserver.usage()
    }

    /// What etcd has used so far.
    pub fn etcd_usage(&self) -> Result<Usage> {
        self.etcd.usage()
    }

    /// From the start of etcd until the API server was ready.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// Ends it and removes its temporary folder.
    pub fn finish(self) {
        drop(self.apiserver);
        drop(self.folder.removed());
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let api = Api::new(&self.admin_kubeconfig()).await?;
        let since = Instant::now();
        loop {
            self.apiserver.check_running()?;
            self.etcd.check_running()?;
            let ready = api.ask(Method::GET, "/readyz", Vec::new()).await;
            if ready.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            if since.elapsed() > READY {
                bail!("kube-apiserver was not ready within {} s", READY.as_secs());
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
    // Nobody makes the service account that pods would get, nor takes the taint of new nodes away.
    command.arg("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition");
    // Whom other servers are told to trust as the API server's proxy; as kubeadm has it.
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

/// A port that nobody listens on at the moment.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("looking for a free port")?;
    Ok(listener.local_addr().context("looking for a free port")?.port())
}
