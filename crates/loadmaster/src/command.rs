//! The command line.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use loadmaster_daemon::flags::{
    Program, hyperkube_scheduler_flags, is_kube_scheduler, program_name,
};
use loadmaster_daemon::run::service::{Service, ServiceHandle, ServiceResult};
use loadmaster_framework::{PluginDef, Registry};
use loadmaster_stdx::HashSeed;

use crate::exit::{CommandResult, Exit, Failure, print_to_stderr, run_command};
#[cfg(feature = "cluster")]
use crate::{apiserver, kubelets, new_plugin, simulate, up};
use crate::{
    completion, config_check, config_convert, config_rbac, controllers, crds, explain, help,
    replay, run,
};

/// The command line of a scheduler with a set of plugins.
///
/// It is that of kube-scheduler: `pool-scheduler --config=scheduler.yaml --v=3`. Loadmaster's commands are available as well:
/// `pool-scheduler explain web`, and `pool-scheduler run --config=scheduler.yaml` is the same as without `run`. The name of the program
/// may be repeated as the first argument, as in the manifests of schedulers whose image has no entry point; so may `kube-scheduler`.
pub struct SchedulerCommand {
    registry: Registry,
    services: Vec<Service>,
    name_and_version: Option<(&'static str, &'static str)>,
    is_command_required: bool,
}

#[cfg_attr(
    feature = "cluster",
    doc = "A Kubernetes scheduler that is compatible with kube-scheduler 1.36, with tools to run, explain, record and simulate it."
)]
#[cfg_attr(
    not(feature = "cluster"),
    doc = "A Kubernetes scheduler that is compatible with kube-scheduler 1.36, with tools to explain and record it."
)]
#[derive(Parser)]
#[command(name = PROGRAM, version = VERSION, propagate_version = true, after_help = after_help())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const PROGRAM: &str = "loadmaster";
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes 1.36)");

/// Examples of commands, a line each.
const EXAMPLES: &[&str] = &[
    "loadmaster run --config scheduler.yaml             run the scheduler, with kube-scheduler's flags",
    #[cfg(feature = "cluster")]
    "loadmaster up                                      run a cluster in one process",
    #[cfg(feature = "cluster")]
    "loadmaster up -f deployment.yaml --nodes 50        run a cluster with your own manifests",
    "loadmaster explain web-7d9c5 --from cluster.json   explain why a pod is pending",
    #[cfg(feature = "cluster")]
    "loadmaster apiserver                               run an API server for kubectl and schedulers",
    #[cfg(feature = "cluster")]
    "loadmaster kubelets --kubeconfig F --nodes 100     run simulated kubelets for any API server",
    "loadmaster crds | kubectl apply -f -               install PodGroup and ElasticQuota",
    "loadmaster controllers                             write the status of PodGroups",
    "loadmaster replay run.log                          replay a recorded run and compare its decisions",
    #[cfg(feature = "cluster")]
    "loadmaster simulate --runs 1000                    run the scheduler under fault injection",
    "loadmaster config check scheduler.yaml             validate a configuration",
    "loadmaster config convert policy.json              write an older configuration or a Policy in v1",
    "loadmaster config rbac scheduler.yaml              print the roles that it needs",
    #[cfg(feature = "cluster")]
    "loadmaster new plugin pool-scheduler               write a scheduler with your plugin",
];

const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 a negative result (unschedulable pods, a replay that differs), 2 usage error or invalid input, 70 internal error.";

fn after_help() -> String {
    format!("Examples:\n  {}\n\n{EXIT_CODES}", EXAMPLES.join("\n  "))
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    #[cfg(feature = "cluster")]
    Up(Box<up::Args>),
    Explain(Box<explain::Args>),
    #[cfg(feature = "cluster")]
    Apiserver(Box<apiserver::Args>),
    #[cfg(feature = "cluster")]
    Kubelets(kubelets::Args),
    Controllers(controllers::Args),
    Crds(crds::Args),
    Replay(replay::Args),
    #[cfg(feature = "cluster")]
    Simulate(simulate::Args),
    /// Work with KubeSchedulerConfiguration files.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Write the files of a new project.
    #[cfg(feature = "cluster")]
    #[command(subcommand)]
    New(NewCommand),
    /// Generate a completion script for the given shell. It completes commands, flags, files, and names of pods.
    #[command(after_help = "Example:\n  source <(loadmaster completion bash)")]
    Completion {
        /// The shell to generate the script for.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands.
    #[command(hide = true, after_help = "Example:\n  loadmaster man /usr/local/share/man/man1")]
    Man {
        /// The directory to write to; it is created if it does not exist.
        directory: PathBuf,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    Check(config_check::Args),
    Convert(config_convert::Args),
    Rbac(config_rbac::Args),
}

#[cfg(feature = "cluster")]
#[derive(Subcommand)]
enum NewCommand {
    Plugin(new_plugin::Args),
}

impl Default for SchedulerCommand {
    fn default() -> Self {
        SchedulerCommand::new()
    }
}

impl SchedulerCommand {
    /// A command line with the in-tree plugins, and those that older configurations can enable.
    pub fn new() -> Self {
        let in_tree = loadmaster_plugins::in_tree_registry();
        SchedulerCommand {
            registry: loadmaster_legacy_plugins::with_legacy_plugins(in_tree),
            services: Vec::new(),
            name_and_version: None,
            is_command_required: false,
        }
    }

    /// The command line of Loadmaster's own program. It has the same commands and the plugins of kubernetes-sigs/scheduler-plugins, but
    /// `run` can be omitted only if the program is called kube-scheduler: `loadmaster --help` and `--version` are about the tool.
    pub fn loadmaster() -> Self {
        let command = SchedulerCommand::new().with_scheduler_plugins();
        SchedulerCommand { is_command_required: true, ..command }
    }

    /// Adds the plugins of kubernetes-sigs/scheduler-plugins, so that configurations can enable them by their names.
    #[must_use]
    pub fn with_scheduler_plugins(self) -> Self {
        let registry = loadmaster_scheduler_plugins::with_scheduler_plugins(self.registry);
        SchedulerCommand { registry, ..self }
    }

    /// Sets the name and version that `--version`, help and errors show, such as `env!("CARGO_PKG_NAME")` and
    /// `env!("CARGO_PKG_VERSION")`. Without it they show the name of the file, and only Loadmaster's version. A program that is
    /// called kube-scheduler shows kube-scheduler's name and version in any case, because other programs parse them.
    #[must_use]
    pub fn with_name(self, name: &'static str, version: &'static str) -> Self {
        SchedulerCommand { name_and_version: Some((name, version)), ..self }
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
        match completion::complete(Cli::command) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => self.run_from(std::env::args_os()),
            Err(error) => {
                print_to_stderr(&format!("error: {error}"));
                ExitCode::FAILURE
            }
        }
    }

    /// Runs the command in these arguments; the first one is the name of the program.
    pub fn run_from(self, args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
        // Objects of a cluster, whoever wrote them, are the keys of hash maps in most commands.
        HashSeed::random().set_for_thread();
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        if let Some(flags) = hyperkube_scheduler_flags(&args) {
            return self.run_scheduler(&Program::kube_scheduler(), flags);
        }
        let (called_as, args) = self.split_program_name(&args);
        let program = self.program(called_as);
        let is_kubectl_plugin = kubectl_plugin(called_as).is_some();
        let runs_without_command =
            !self.is_command_required && !is_kubectl_plugin || is_kube_scheduler(called_as);
        let moved = if is_kubectl_plugin { flags_after_command(args) } else { None };
        let args = moved.as_deref().unwrap_or(args);
        if runs_without_command && args.first().is_none_or(|first| is_flag(first)) {
            return self.run_scheduler(&program, args);
        }
        let mut cli = help::with_program_name(Cli::command(), &program.name);
        if runs_without_command {
            cli = cli.override_usage(help::usage_without_command(&program.name));
        }
        let matches = cli.no_binary_name(true).try_get_matches_from(args);
        let command = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(cli) => cli.command,
            Err(error) if error.kind() == ErrorKind::DisplayVersion => {
                // A closed pipe is not an error, here and below.
                let _ = writeln!(io::stdout(), "{}", program.version);
                return ExitCode::SUCCESS;
            }
            Err(error) => {
                // Help is printed here as well.
                let _ = error.print();
                #[cfg(feature = "cluster")]
                if let Some(tip) = up::tip_for_error(args, &error) {
                    print_to_stderr(&tip);
                }
                return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
            }
        };
        if let Command::Run(args) = command {
            let kube_scheduler = Program::kube_scheduler();
            let program = if runs_without_command { &program } else { &kube_scheduler };
            return self.run_scheduler(program, args.flags());
        }
        run_command(|| {
            self.registry.validate().map_err(Failure::invalid_input)?;
            let mut out = BufWriter::new(io::stdout().lock());
            let exit = dispatch(command, &self, &program.name, &mut out)?;
            out.flush()?;
            Ok(exit)
        })
    }

    /// The name by which the program was called, and the arguments after it. The name may be repeated as the first argument; it is the
    /// file's, the author's, or `kube-scheduler`.
    fn split_program_name<'a>(&self, args: &'a [OsString]) -> (&'a OsStr, &'a [OsString]) {
        let Some((program, args)) = args.split_first() else { return (OsStr::new(PROGRAM), &[]) };
        let Some((first, rest)) = args.split_first() else { return (program, args) };
        if is_kube_scheduler(first) {
            return (first, rest);
        }
        let author = self.name_and_version.map(|(name, _)| OsStr::new(name));
        let is_repeated = program_name(first)
            .is_some_and(|name| Some(name) == program_name(program) || Some(name) == author);
        // A program may have the name of a command.
        if is_repeated && !is_command(first) { (program, rest) } else { (program, args) }
    }

    /// What the program shows as its name and version if it is called by this name.
    fn program(&self, called_as: &OsStr) -> Program {
        let mut program = Program::kube_scheduler();
        if !is_kube_scheduler(called_as) {
            let loadmaster = concat!("Loadmaster ", env!("CARGO_PKG_VERSION"), ", Kubernetes 1.36");
            (program.name, program.version) = match self.name_and_version {
                _ if self.is_command_required => {
                    (PROGRAM.to_owned(), format!("{PROGRAM} {VERSION}"))
                }
                Some((name, version)) => {
                    (name.to_owned(), format!("{name} {version} ({loadmaster})"))
                }
                None => {
                    let name = program_name(called_as).unwrap_or(OsStr::new(PROGRAM));
                    let name = name.to_string_lossy().into_owned();
                    let version = format!("{name} ({loadmaster})");
                    (name, version)
                }
            };
        }
        if let Some(name) = kubectl_plugin(called_as) {
            program.name = name;
        }
        program.after_help = help::list_of_commands(&Cli::command(), &program.name);
        program
    }

    /// Runs the scheduler; exit codes and messages are those of kube-scheduler.
    fn run_scheduler(&self, program: &Program, flags: &[OsString]) -> ExitCode {
        if let Err(error) = self.registry.validate() {
            print_to_stderr(&format!("error: {error}"));
            return ExitCode::FAILURE;
        }
        run::run(program, flags, &self.registry, &self.services)
    }
}

/// `kubectl loadmaster` for a program that is called `kubectl-loadmaster`, as kubectl calls its plugins. In file names, underscores stand
/// for the dashes of the plugin's name.
fn kubectl_plugin(called_as: &OsStr) -> Option<String> {
    let name = program_name(called_as)?.to_str()?.strip_prefix("kubectl-")?;
    Some(format!("kubectl {}", name.replace('_', "-")))
}

/// kubectl's global flags that commands have, too.
const KUBECTL_FLAGS: [&str; 4] = ["--context", "--kubeconfig", "--namespace", "-n"];

/// The arguments with kubectl's global flags after the command, if they are before it: `--context c explain web`.
fn flags_after_command(args: &[OsString]) -> Option<Vec<OsString>> {
    let mut n_flags = 0;
    while let Some(flag) = args.get(n_flags).and_then(|arg| arg.to_str())
        && flag.starts_with('-')
    {
        let name = flag.split_once('=').map_or(flag, |(name, _)| name);
        if !KUBECTL_FLAGS.contains(&name) {
            return None;
        }
        n_flags += if name == flag { 2 } else { 1 };
    }
    let (flags, rest) = args.split_at_checked(n_flags)?;
    let (command, rest) = rest.split_first()?;
    Some([std::slice::from_ref(command), flags, rest].concat())
}

/// Whether an argument is a flag of kube-scheduler, and not a command. kube-scheduler ignores empty arguments.
fn is_flag(arg: &OsStr) -> bool {
    arg.is_empty() || arg.as_encoded_bytes().starts_with(b"-")
}

fn is_command(arg: &OsStr) -> bool {
    Cli::command().get_subcommands().any(|command| arg == command.get_name())
}

fn dispatch(
    command: Command,
    with: &SchedulerCommand,
    program: &str,
    out: &mut dyn Write,
) -> CommandResult<Exit> {
    let registry = &with.registry;
    match command {
        // Handled in `run_from`, with kube-scheduler's exit codes.
        Command::Run(_) => Ok(Exit::Done),
        #[cfg(feature = "cluster")]
        Command::Up(args) => up::run(&args, registry, &with.services, out),
        Command::Explain(args) => explain::run(&args, registry, out),
        #[cfg(feature = "cluster")]
        Command::Apiserver(args) => apiserver::run(&args, out),
        #[cfg(feature = "cluster")]
        Command::Kubelets(args) => kubelets::run(&args, out),
        Command::Controllers(args) => controllers::run(&args, out),
        Command::Crds(args) => crds::run(&args, out),
        Command::Replay(args) => replay::run(&args, registry, out),
        #[cfg(feature = "cluster")]
        Command::Simulate(args) => simulate::run(&args, registry, out),
        Command::Config(ConfigCommand::Check(args)) => config_check::run(&args, registry, out),
        Command::Config(ConfigCommand::Convert(args)) => config_convert::run(&args, registry, out),
        #[cfg(feature = "cluster")]
        Command::New(NewCommand::Plugin(args)) => new_plugin::run(&args, registry, out),
        Command::Config(ConfigCommand::Rbac(args)) => config_rbac::run(&args, registry, out),
        Command::Completion { shell } => {
            out.write_all(&completion::script(shell, program)?)?;
            Ok(Exit::Done)
        }
        Command::Man { directory } => {
            let cli = help::with_program_name(Cli::command(), program);
            let written = std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(cli, &directory));
            let failed =
                |error| Failure::invalid_input(format!("{}: {error}", directory.display()));
            written.map_err(failed)?;
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
    fn program_names_are_split_from_the_arguments() {
        #[track_caller]
        fn check(line: &str, want: (&str, &str)) {
            let command = SchedulerCommand::new().with_name("pool-scheduler", "2.1");
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let (called_as, rest) = command.split_program_name(&args);
            let rest: Vec<_> = rest.iter().map(|arg| arg.to_string_lossy()).collect();
            let program = command.program(called_as);
            assert_eq!((program.name.as_str(), rest.join(" ").as_str()), want, "{line}");
        }
        let (pool, kube) = ("pool-scheduler", "kube-scheduler");
        check("/bin/pool-scheduler --v=3", (pool, "--v=3"));
        check("pool --v=3", (pool, "--v=3"));
        check("pool-scheduler pool-scheduler --v=3", (pool, "--v=3"));
        check("pool pool-scheduler --v=3", (pool, "--v=3"));
        check("/bin/pool pool --v=3", (pool, "--v=3"));
        check("pool /bin/pool run --v=3", (pool, "run --v=3"));
        check("pool pool pool", (pool, "pool"));
        check("pool other --v=3", (pool, "other --v=3"));
        check("pool --config pool", (pool, "--config pool"));
        check("pool kube-scheduler --v=3", (kube, "--v=3"));
        check("kube-scheduler --v=3", (kube, "--v=3"));
        check("kube-scheduler pool-scheduler --v=3", (kube, "--v=3"));
        check("kube-scheduler kube-scheduler explain web", (kube, "explain web"));
        check("explain explain web", (pool, "explain web"));
    }

    #[test]
    fn kubectl_plugins() {
        #[track_caller]
        fn check(line: &str, want: (Option<&str>, &str)) {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let moved = flags_after_command(&args[1..]).unwrap_or_else(|| args[1..].to_vec());
            let rest: Vec<_> = moved.iter().map(|arg| arg.to_string_lossy()).collect();
            let name = kubectl_plugin(&args[0]);
            assert_eq!((name.as_deref(), rest.join(" ").as_str()), want, "{line}");
        }
        let ours = Some("kubectl loadmaster");
        check("/bin/kubectl-loadmaster explain web", (ours, "explain web"));
        check(
            "kubectl-loadmaster --context c -n x explain a",
            (ours, "explain --context c -n x a"),
        );
        check("kubectl-loadmaster --kubeconfig=f explain a", (ours, "explain --kubeconfig=f a"));
        check("kubectl-loadmaster --help", (ours, "--help"));
        check("kubectl-loadmaster -n", (ours, "-n"));
        check("kubectl-pool_scheduler explain", (Some("kubectl pool-scheduler"), "explain"));
        check("loadmaster explain", (None, "explain"));
    }

    #[test]
    fn versions() {
        #[track_caller]
        fn check(command: SchedulerCommand, called_as: &str, want: &str) {
            let version = command.program(OsStr::new(called_as)).version;
            assert_eq!(version.replace(env!("CARGO_PKG_VERSION"), "L"), want);
        }
        let named = || SchedulerCommand::new().with_name("pool-scheduler", "2.1");
        check(named(), "x", "pool-scheduler 2.1 (Loadmaster L, Kubernetes 1.36)");
        check(named(), "kube-scheduler", "Kubernetes v1.36.3+loadmaster.L");
        check(SchedulerCommand::new(), "/bin/pool", "pool (Loadmaster L, Kubernetes 1.36)");
        check(SchedulerCommand::loadmaster(), "/bin/lm", "loadmaster L (Kubernetes 1.36)");
        check(SchedulerCommand::loadmaster(), "kube-scheduler", "Kubernetes v1.36.3+loadmaster.L");
    }

    #[test]
    fn commands_and_flags_that_do_not_exist_are_usage_errors() {
        #[track_caller]
        fn check(command: SchedulerCommand, args: &[&str], want: u8) {
            let code = command.run_from(args);
            assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(want)), "{args:?}");
        }
        // kube-scheduler exits with 1 after an error in its flags, other commands with 2.
        check(SchedulerCommand::new(), &["pool", "--nope"], 1);
        check(SchedulerCommand::new(), &["pool", "pool", "--nope"], 1);
        check(SchedulerCommand::new(), &["pool", "run", "--nope"], 1);
        check(SchedulerCommand::new(), &["pool", "--v=3", "explain"], 1);
        check(SchedulerCommand::new(), &["pool", "", "--nope"], 1);
        check(SchedulerCommand::new(), &["pool", "nope"], 2);
        check(SchedulerCommand::new(), &["pool", "explain", "--nope"], 2);
        check(SchedulerCommand::new(), &["kube-scheduler", "nope"], 2);
        check(SchedulerCommand::loadmaster(), &["loadmaster"], 2);
        check(SchedulerCommand::loadmaster(), &["loadmaster", "--v=3"], 2);
        check(SchedulerCommand::loadmaster(), &["loadmaster", "nope"], 2);
        check(SchedulerCommand::loadmaster(), &["loadmaster", "kube-scheduler", "--nope"], 1);
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
        let complete = ["mine", "completion", "bash"];
        for names in [["Mine", "Mine"], ["Mine", "NodeName"]] {
            assert_eq!(code(names, &complete), exit(2));
            assert_eq!(code(names, &["mine", "run"]), exit(1));
            assert_eq!(code(names, &["mine"]), exit(1));
            assert_eq!(code(names, &["kube-scheduler"]), exit(1));
        }
        assert_eq!(code(["Mine", "Yours"], &complete), exit(0));
    }
}
