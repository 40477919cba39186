//! The command line.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use loadmaster_daemon::is_kube_scheduler;
use loadmaster_daemon::run::service::{Service, ServiceHandle, ServiceResult};
use loadmaster_framework::{PluginDef, Registry};

use crate::exit::{Answer, Exit, Failure, complain, guard};
use crate::{apiserver, config_check, explain, kubelets, replay, run, simulate, up};

/// The command line of a scheduler with a set of plugins.
pub struct SchedulerCommand {
    registry: Registry,
    services: Vec<Service>,
}

/// Places Kubernetes pods as kube-scheduler 1.36 does, and says why.
#[derive(Parser)]
#[command(name = "loadmaster", version = VERSION, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes 1.36)");

const EXAMPLES: &str = "\
Examples:
  loadmaster run --config scheduler.yaml             the scheduler, with kube-scheduler's flags
  loadmaster up                                      a cluster in this process, before your eyes
  loadmaster up -f deployment.yaml --nodes 50        the same with your own manifests
  loadmaster explain web-7d9c5 --from cluster.json   why a pod is where it is, or pending
  loadmaster apiserver                               an API server for kubectl and schedulers
  loadmaster kubelets --kubeconfig F --nodes 100     fake kubelets for any API server
  loadmaster replay run.log                          make a recorded run's decisions again
  loadmaster config check scheduler.yaml             is this configuration right?

Exit codes: 0 done, 1 a finding (pods that fit nowhere, a replay that differs), 2 usage or bad input, 70 a bug.";

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Up(Box<up::Args>),
    Explain(Box<explain::Args>),
    Apiserver(Box<apiserver::Args>),
    Kubelets(kubelets::Args),
    Replay(replay::Args),
    Simulate(simulate::Args),
    /// Work with KubeSchedulerConfiguration files.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  source <(loadmaster completion bash)")]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    Check(config_check::Args),
}

impl Default for SchedulerCommand {
    fn default() -> Self {
        SchedulerCommand::new()
    }
}

impl SchedulerCommand {
    /// With the in-tree plugins.
    pub fn new() -> Self {
        SchedulerCommand { registry: loadmaster_plugins::in_tree(), services: Vec::new() }
    }

    /// With one more plugin, for configurations to name. Its name must be new: every command fails where it is not.
    #[must_use]
    pub fn with_plugin(self, plugin: PluginDef) -> Self {
        SchedulerCommand { registry: self.registry.with(plugin), ..self }
    }

    /// With a task of the author's own beside the scheduler: it may talk, wait and read clocks, publishes values to plugins, and
    /// allows, rejects and activates pods. `run` starts it on every replica, whoever leads, and starts it again when it ends or
    /// panics; so does `up`. The other commands do not run it.
    #[must_use]
    pub fn with_service<F, R>(mut self, name: &'static str, start: F) -> Self
    where
        F: Fn(ServiceHandle) -> R + Send + Sync + 'static,
        R: Future<Output = ServiceResult> + Send + 'static,
    {
        self.services.push(Service::new(name, start));
        self
    }

    /// Does what the process's arguments say.
    pub fn run(self) -> ExitCode {
        self.run_from(std::env::args_os())
    }

    /// Does what these arguments say; the first is the program's name.
    pub fn run_from(self, args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        if args.first().is_some_and(|program| is_kube_scheduler(program)) {
            return self.run_scheduler(&args);
        }
        let command = match Cli::try_parse_from(args) {
            Ok(cli) => cli.command,
            Err(error) => {
                // Help and version come this way, too. A pipe that is closed early is no reason to complain.
                let _ = error.print();
                return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
            }
        };
        if let Command::Run(args) = command {
            return self.run_scheduler(&args.with_program());
        }
        guard(|| {
            self.registry.check().map_err(Failure::input)?;
            let mut out = BufWriter::new(io::stdout().lock());
            let exit = dispatch(command, &self, &mut out)?;
            out.flush()?;
            Ok(exit)
        })
    }

    /// Ends as kube-scheduler does.
    fn run_scheduler(&self, args: &[OsString]) -> ExitCode {
        if let Err(error) = self.registry.check() {
            complain(&format!("error: {error}"));
            return ExitCode::FAILURE;
        }
        run::run(args, &self.registry, &self.services)
    }
}

fn dispatch(command: Command, with: &SchedulerCommand, out: &mut dyn Write) -> Answer<Exit> {
    let registry = &with.registry;
    match command {
        // It has kube-scheduler's own way of ending.
        Command::Run(_) => Ok(Exit::Done),
        Command::Up(args) => up::run(&args, registry, &with.services, out),
        Command::Explain(args) => explain::run(&args, registry, out),
        Command::Apiserver(args) => apiserver::run(&args, out),
        Command::Kubelets(args) => kubelets::run(&args, out),
        Command::Replay(args) => replay::run(&args, registry, out),
        Command::Simulate(args) => simulate::run(&args, registry, out),
        Command::Config(ConfigCommand::Check(args)) => config_check::run(&args, registry, out),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "loadmaster", &mut script);
            out.write_all(&script)?;
            Ok(Exit::Done)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_name_belongs_to_one_plugin() {
        let named = |name| PluginDef { name, build: |_, _| Ok(()), args: None };
        let code = |names: [&'static str; 2], args: &[&str]| {
            let command = names
                .into_iter()
                .map(named)
                .fold(SchedulerCommand::new(), |all, it| all.with_plugin(it));
            format!("{:?}", command.run_from(args))
        };
        let exit = |code: u8| format!("{:?}", ExitCode::from(code));
        let complete = ["loadmaster", "completion", "bash"];
        for names in [["Mine", "Mine"], ["Mine", "NodeName"]] {
            assert_eq!(code(names, &complete), exit(2));
            assert_eq!(code(names, &["loadmaster", "run"]), exit(1));
            assert_eq!(code(names, &["kube-scheduler"]), exit(1));
        }
        assert_eq!(code(["Mine", "Yours"], &complete), exit(0));
    }
}
