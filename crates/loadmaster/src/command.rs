//! The command line.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use loadmaster_daemon::is_kube_scheduler;
use loadmaster_daemon::run::service::{Service, ServiceHandle, ServiceResult};
use loadmaster_framework::{PluginDef, Registry};

use crate::exit::{CommandResult, Exit, Failure, print_to_stderr, run_command};
use crate::{apiserver, config_check, explain, kubelets, replay, run, simulate, up};

/// The command line of a scheduler with a set of plugins.
pub struct SchedulerCommand {
    registry: Registry,
    services: Vec<Service>,
}

/// A Kubernetes scheduler that is compatible with kube-scheduler 1.36, with tools to run, explain, record and simulate it.
#[derive(Parser)]
#[command(name = "loadmaster", version = VERSION, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes 1.36)");

const EXAMPLES: &str = "\
Examples:
  loadmaster run --config scheduler.yaml             run the scheduler, with kube-scheduler's flags
  loadmaster up                                      run a cluster in one process, with a live dashboard
  loadmaster up -f deployment.yaml --nodes 50        run a cluster with your own manifests
  loadmaster explain web-7d9c5 --from cluster.json   explain where a pod is feasible, and why it is pending
  loadmaster apiserver                               run an API server for kubectl and schedulers
  loadmaster kubelets --kubeconfig F --nodes 100     run simulated kubelets for any API server
  loadmaster replay run.log                          replay a recorded run and compare its decisions
  loadmaster simulate --runs 1000                    run the scheduler under fault injection
  loadmaster config check scheduler.yaml             validate a configuration

Exit codes: 0 success, 1 a negative result (unschedulable pods, a replay that differs), 2 usage error or invalid input, 70 internal error.";

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
    /// Generate a completion script for the given shell.
    #[command(after_help = "Example:\n  source <(loadmaster completion bash)")]
    Completion {
        /// The shell to generate the script for.
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
    /// A command line with the in-tree plugins.
    pub fn new() -> Self {
        SchedulerCommand { registry: loadmaster_plugins::in_tree_registry(), services: Vec::new() }
    }

    /// Registers an out-of-tree plugin, so that configurations can enable it. If its name is already registered, every command fails.
    #[must_use]
    pub fn with_plugin(self, plugin: PluginDef) -> Self {
        SchedulerCommand { registry: self.registry.with(plugin), ..self }
    }

    /// Registers a background service: an async task that may use the network, timers and clocks, publishes values to plugins, and
    /// allows, rejects and activates pods. `run` and `up` start it, on every replica and not only on the leader, and restart it when
    /// it returns or panics. Other commands do not run it.
    #[must_use]
    pub fn with_service<F, R>(mut self, name: &'static str, start: F) -> Self
    where
        F: Fn(ServiceHandle) -> R + Send + Sync + 'static,
        R: Future<Output = ServiceResult> + Send + 'static,
    {
        self.services.push(Service::new(name, start));
        self
    }

    /// Runs the command in the arguments of the process.
    pub fn run(self) -> ExitCode {
        self.run_from(std::env::args_os())
    }

    /// Runs the command in these arguments; the first one is the name of the program.
    pub fn run_from(self, args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        if args.first().is_some_and(|program| is_kube_scheduler(program)) {
            return self.run_scheduler(&args);
        }
        let command = match Cli::try_parse_from(args) {
            Ok(cli) => cli.command,
            Err(error) => {
                // Help and version are printed here as well. A closed pipe is not an error.
                let _ = error.print();
                return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
            }
        };
        if let Command::Run(args) = command {
            return self.run_scheduler(&args.with_program_name());
        }
        run_command(|| {
            self.registry.validate().map_err(Failure::invalid_input)?;
            let mut out = BufWriter::new(io::stdout().lock());
            let exit = dispatch(command, &self, &mut out)?;
            out.flush()?;
            Ok(exit)
        })
    }

    /// Runs the scheduler; exit codes and messages are those of kube-scheduler.
    fn run_scheduler(&self, args: &[OsString]) -> ExitCode {
        if let Err(error) = self.registry.validate() {
            print_to_stderr(&format!("error: {error}"));
            return ExitCode::FAILURE;
        }
        run::run(args, &self.registry, &self.services)
    }
}

fn dispatch(command: Command, with: &SchedulerCommand, out: &mut dyn Write) -> CommandResult<Exit> {
    let registry = &with.registry;
    match command {
        // Handled in `run_from`, with kube-scheduler's exit codes.
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
    fn the_command_line_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn plugin_names_are_unique() {
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
