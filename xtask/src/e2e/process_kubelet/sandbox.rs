//! What the containers of a pod have in common: a network namespace with the pod's address, a host name, and a process that keeps both.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::network::{Forwarder, NetworkNamespace, Target};
use crate::e2e::process::Process;

/// The Service `kubernetes`: the first address of the range of kube-apiserver, and its port.
pub const API_SERVICE: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 1), 443);

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Gives the namespace its addresses, and tells the id of this process, which is the first one of its PID namespace: when it ends, the kernel ends
/// the others. It waits for nothing.
const SCRIPT: &str = r#"
echo "$1" >/proc/sys/kernel/hostname
pid_file=$2
shift 2
[ $# -eq 0 ] || ip link set lo up
for address; do ip address add "$address/32" dev lo; done
read -r pid rest </proc/self/stat
echo "$pid" >"$pid_file.new"
mv "$pid_file.new" "$pid_file"
exec sleep infinity
"#;

/// The namespaces of a pod, or of a node for its pods with `hostNetwork`.
pub struct Sandbox {
    process: Process,
    /// The process that keeps the namespaces.
    pid: u32,
    address: Ipv4Addr,
    namespace: NetworkNamespace,
    /// From the address of the API server's Service to the API server.
    _api: Option<Forwarder>,
}

impl Sandbox {
    /// With a network of its own, from which the API server is reached at [`API_SERVICE`].
    pub async fn start(
        host_name: &str,
        address: Ipv4Addr,
        folder: &Path,
        api_server: &Target,
    ) -> Result<Sandbox> {
        let mut command = isolated();
        command.arg("--net");
        let addresses = [address.to_string(), API_SERVICE.0.to_string()];
        let (process, pid) = run(command, host_name, folder, &addresses).await?;
        let namespace = NetworkNamespace::of_process(pid)?;
        let service = SocketAddr::new(IpAddr::V4(API_SERVICE.0), API_SERVICE.1);
        let from = Target { namespace: namespace.clone(), address: service };
        let api = Some(Forwarder::to(&from, api_server.clone())?);
        Ok(Sandbox { process, pid, address, namespace, _api: api })
    }

    /// With the network of a node.
    pub async fn in_network_of(node: &Sandbox, host_name: &str, folder: &Path) -> Result<Sandbox> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", node.pid)).arg("--");
        let isolated = isolated();
        command.arg(isolated.get_program()).args(isolated.get_args());
        let (process, pid) = run(command, host_name, folder, &[]).await?;
        let (address, namespace) = (node.address, node.namespace.clone());
        Ok(Sandbox { process, pid, address, namespace, _api: None })
    }

    /// The process that keeps the namespaces.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The address of the pod or the node.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A port of the pod.
    pub fn port(&self, port: u16) -> Target {
        let address = SocketAddr::new(IpAddr::V4(self.address), port);
        Target { namespace: self.namespace.clone(), address }
    }

    /// A port of its loopback.
    pub fn loopback(&self, port: u16) -> Target {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Target { namespace: self.namespace.clone(), address }
    }

    /// An error if the process has ended.
    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }
}

/// `unshare` without a network of its own; it and its processes end with the thread that starts it.
fn isolated() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--uts", "--ipc", "--pid", "--fork"]);
    command.arg("--kill-child");
    command
}

async fn run(
    mut command: Command,
    host_name: &str,
    folder: &Path,
    addresses: &[String],
) -> Result<(Process, u32)> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let pid_file = folder.join("sandbox.pid");
    command.args(["sh", "-euc", SCRIPT, "sh", host_name]).arg(&pid_file).args(addresses);
    let mut process = Process::start("sandbox", &mut command, &folder.join("sandbox.log"))?;
    let pid = read_pid(&pid_file, &mut process).await;
    let pid = pid.context("the namespaces (of the packages util-linux and iproute2, as root)")?;
    Ok((process, pid))
}

/// Waits until a process has written its id to a file.
pub async fn read_pid(file: &Path, process: &mut Process) -> Result<u32> {
    const PAUSE: Duration = Duration::from_millis(5);
    for _ in 0..START_TIMEOUT.as_millis() / PAUSE.as_millis() {
        match std::fs::read_to_string(file) {
            Ok(text) => return text.trim().parse().context("reading a process id"),
            Err(_) => process.check_running()?,
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("{} was not written within {} s", file.display(), START_TIMEOUT.as_secs())
}
