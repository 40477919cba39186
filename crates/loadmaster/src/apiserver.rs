//! `loadmaster apiserver`: the embedded API server alone.

use std::io::Write;

use crate::embedded::{History, ServerArgs};
use crate::exit::{Answer, Exit};

/// Run a Kubernetes API server in this process, for kubectl, client libraries and schedulers.
///
/// It keeps everything in memory, or in a folder with --data-dir, and answers on the loopback address as kube-apiserver 1.36 does. There are no kubelets and no
/// controllers behind it; whatever runs against it is its cluster, such as `loadmaster kubelets`. It ends with Ctrl-C.
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

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Answer<Exit> {
    let embedded = args.server.start(History::default())?;
    let shown = embedded.kubeconfig().display();
    writeln!(out, "API server on {}", embedded.url())?;
    writeln!(out, "kubeconfig:  {shown}")?;
    writeln!(out, "try:         kubectl --kubeconfig {shown} get namespaces")?;
    out.flush()?;
    embedded.serve()?;
    Ok(Exit::Done)
}
