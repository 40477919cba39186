//! `loadmaster run`: kube-scheduler's command line.

use std::ffi::OsString;
use std::process::ExitCode;

use loadmaster_daemon::flags::Program;
use loadmaster_daemon::load_startup_config;
use loadmaster_daemon::run::service::Service;
use loadmaster_framework::Registry;

use crate::controllers;

/// Run the scheduler in a cluster, with kube-scheduler's flags; see `loadmaster run --help`.
///
/// If the program is called kube-scheduler, `run` may be omitted.
#[derive(clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Args {
    /// Flags of kube-scheduler, and of Loadmaster: `--shadow`, `--shadow-report`, `--record`, `--record-max-size`,
    /// `--check-every`, `--with-controllers`, `--watch-config`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    flags: Vec<OsString>,
}

impl Args {
    /// The flags, without `run`.
    pub fn flags(&self) -> &[OsString] {
        &self.flags
    }
}

/// Runs the scheduler until SIGTERM or Ctrl-C.
pub(crate) fn run(
    program: &Program,
    flags: &[OsString],
    registry: &Registry,
    services: &[Service],
) -> ExitCode {
    match load_startup_config(program, flags, registry).and_then(|plan| plan.start_logging()) {
        Ok(ready) => {
            let mut services = services.to_vec();
            if ready.options.loadmaster.with_controllers {
                services.push(controllers::service(&ready));
            }
            let out_of_tree = out_of_tree(registry);
            loadmaster_daemon::run::run_scheduler(ready, &services, &out_of_tree, registry)
        }
        Err(stop) => stop.report(),
    }
}

/// Names of the out-of-tree plugins.
fn out_of_tree(registry: &Registry) -> Vec<String> {
    let in_tree = loadmaster_plugins::in_tree_registry();
    let in_tree = loadmaster_legacy_plugins::with_legacy_plugins(in_tree);
    let others = registry.iter().filter(|plugin| in_tree.get(plugin.name).is_none());
    others.map(|plugin| plugin.name.to_owned()).collect()
}
