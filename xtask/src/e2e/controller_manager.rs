//! Runs kube-controller-manager.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::control_plane::free_port;
use super::process::Process;
use super::programs::{self, Program};

/// Starts it with additional flags, as the user of this kubeconfig file, with its log in `folder`. It is built first if necessary.
pub fn start(kubeconfig: &Path, folder: &Path, flags: &[&str]) -> Result<Process> {
    programs::build(&[Program::KubeControllerManager])?;
    let mut command = Command::new(Program::KubeControllerManager.path()?);
    command.arg(format!("--kubeconfig={}", kubeconfig.display()));
    command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
    command.arg(format!("--secure-port={}", free_port()?)).args(flags);
    let log = folder.join("kube-controller-manager.log");
    Process::start("kube-controller-manager", &mut command, &log)
}
