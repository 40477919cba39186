//! Runs the embedded API server as a separate process, with its files in a folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::control_plane::free_port;
use super::process::Process;
use super::special_pods::wait_until;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts it with these flags and waits until it serves; returns the process and the path of the administrator's kubeconfig.
pub async fn start(
    loadmaster: &Path,
    folder: &Path,
    flags: &[String],
) -> Result<(Process, PathBuf)> {
    let kubeconfig = folder.join("admin.kubeconfig");
    let mut command = Command::new(loadmaster);
    command.arg("apiserver").arg(format!("--port={}", free_port()?));
    command.arg("--kubeconfig").arg(&kubeconfig).args(flags);
    let mut server = Process::start("loadmaster", &mut command, &folder.join("apiserver.log"))?;
    wait_until("the embedded API server to be ready", START_TIMEOUT, async || {
        server.check_running()?;
        Ok(kubeconfig.exists())
    })
    .await?;
    Ok((server, kubeconfig))
}
