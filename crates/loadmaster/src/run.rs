//! `loadmaster run`: kube-scheduler's command line.

use std::ffi::OsString;
use std::process::ExitCode;

use loadmaster_daemon::prepare;
use loadmaster_daemon::run::Extra;
use loadmaster_framework::Registry;

/// Run the scheduler on a cluster, with kube-scheduler's flags; `loadmaster run --help` lists them.
///
/// A binary that is called kube-scheduler does this without being asked.
#[derive(clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Args {
    /// Flags of kube-scheduler, and `--shadow`: decide nothing, judge what the scheduler that is there does.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    flags: Vec<OsString>,
}

impl Args {
    /// As a program's arguments.
    pub fn with_program(&self) -> Vec<OsString> {
        [OsString::from("kube-scheduler")].into_iter().chain(self.flags.iter().cloned()).collect()
    }
}

/// Runs until it is told to stop; the first argument is the program's name.
pub(crate) fn run(args: &[OsString], registry: &Registry) -> ExitCode {
    let is_shadow = |arg: &&OsString| **arg == "--shadow" || **arg == "--shadow=true";
    let extra = Extra { shadow: args.iter().any(|arg| is_shadow(&arg)) };
    let flags = args.iter().filter(|arg| !is_shadow(arg));
    let ready = prepare(flags, registry).and_then(|plan| plan.begin());
    match ready {
        Ok(ready) => loadmaster_daemon::run::run(ready, registry, extra),
        Err(stop) => stop.end(),
    }
}
