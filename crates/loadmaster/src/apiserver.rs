//! `loadmaster apiserver`: the embedded API server without a scheduler.

use std::io::Write;

use crate::embedded::{HistoryLimits, ServerArgs};
use crate::exit::{CommandResult, Exit};

/// Run an embedded Kubernetes API server for kubectl, client libraries and schedulers.
///
/// The server listens on the loopback address and behaves like kube-apiserver 1.36. Data is stored in memory, or on disk with --data-dir.
/// No controllers, scheduler or kubelets run; start them separately, for example `loadmaster kubelets`. Stop the server with Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster apiserver
  loadmaster apiserver --port 6443 --kubeconfig test.kubeconfig --data-dir data
  loadmaster apiserver --faults drop=0.01,error=0.02,late=0.1 --fault-seed 7
  kube-scheduler --kubeconfig test.kubeconfig --leader-elect=false")]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> CommandResult<Exit> {
    let embedded = args.server.start_api_server(HistoryLimits::default())?;
    let stop_signal = embedded.stop_signal();
    let shown = embedded.kubeconfig().display();
    writeln!(out, "API server on {}", embedded.url())?;
    writeln!(out, "kubeconfig:  {shown}")?;
    writeln!(out, "try:         kubectl --kubeconfig {shown} get namespaces")?;
    out.flush()?;
    embedded.serve_until(stop_signal)?;
    Ok(Exit::Done)
}
