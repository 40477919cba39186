//! The embedded API server as a process of its own, with its files in a folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::control_plane::free_port;
use super::process::Process;
use super::special::until;

const START: Duration = Duration::from_secs(30);

/// Starts it with these flags, and waits until it serves; with the path of its administrator's kubeconfig.
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
    until("the embedded API server to be up", START, async || {
        server.check_running()?;
        Ok(kubeconfig.exists())
    })
    .await?;
    Ok((server, kubeconfig))
}
