//! The command line of `run`: every flag of kube-scheduler 1.36, and those of older versions.
//!
//! ```
//! use loadmaster_daemon::flags::{ParsedCommandLine, parse_command_line};
//! let args = ["kube-scheduler", "--leader-elect=false", "--secure-port", "0", "-v=2"];
//! let Ok(ParsedCommandLine::Run(options)) = parse_command_line(args) else { unreachable!() };
//! assert!(!options.leader_election.leader_elect && options.logs.verbosity == 2);
//! ```
//!
//! Flags are parsed like pflag does: `--flag=value` or `--flag value`, a bool alone or with `=`, `_`
//! instead of `-`, `-v=2` or `-v 2`; the last value wins, lists are appended. The structs of `groups`
//! define the flags; `legacy` has the flags of older versions; `validate` checks combinations.

mod flagz;
mod groups;
mod legacy;
mod pflag;
mod program;
mod validate;
mod versions;

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches as _};

pub use groups::{
    AuthenticationFlags, AuthorizationFlags, DeprecatedFlags, FeatureGateFlags,
    LeaderElectionFlags, LoadmasterFlags, LogFlags, MetricsFlags, MiscFlags, SecureServingFlags,
};
pub use legacy::LegacyFlags;
pub use pflag::NamedCertKey;
pub use program::{Program, hyperkube_scheduler_flags, is_kube_scheduler, program_name};
pub(crate) use validate::is_metric_label;
pub(crate) use versions::platform;
pub use versions::{KUBERNETES_VERSION, Version, Versions, VersionsError};

/// The parsed command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Configuration file and API server address.
    pub misc: MiscFlags,
    /// Flags that kube-scheduler does not have.
    pub loadmaster: LoadmasterFlags,
    /// Secure serving of the endpoints.
    pub serving: SecureServingFlags,
    /// Authentication at the endpoints.
    pub authentication: AuthenticationFlags,
    /// Authorization at the endpoints.
    pub authorization: AuthorizationFlags,
    /// Deprecated flags, replaced by fields of the configuration file.
    pub deprecated: DeprecatedFlags,
    /// Leader election.
    pub leader_election: LeaderElectionFlags,
    /// Feature gates and emulated versions.
    pub features: FeatureGateFlags,
    /// Metrics.
    pub metrics: MetricsFlags,
    /// Logging.
    pub logs: LogFlags,
    /// Values of legacy flags that have no equivalent current flag.
    pub legacy: LegacyFlags,
    /// The version that is reported, such as `v1.36.3`.
    pub reported_version: String,
    /// Warnings about legacy flags that were set, one sentence each.
    pub warnings: Vec<String>,
    /// The names of the flags that were set.
    given: BTreeSet<String>,
    /// Every flag with its value, sorted by name.
    listing: Vec<(String, String)>,
}

/// The result of parsing.
#[derive(Clone, Debug, PartialEq)]
pub enum ParsedCommandLine {
    /// Run the scheduler.
    Run(Box<Options>),
    /// Print this and exit 0: help or version.
    Print(String),
}

/// An invalid command line: the error and the usage, ready to be printed. The exit code is 1.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.trim_end())]
pub struct UsageError(String);

/// Parses the command line of kube-scheduler; the first argument is the program's name.
pub fn parse_command_line(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<ParsedCommandLine, UsageError> {
    parse_flags(&Program::kube_scheduler(), args.into_iter().skip(1))
}

/// Parses kube-scheduler's flags, given to a program.
pub fn parse_flags(
    program: &Program,
    flags: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<ParsedCommandLine, UsageError> {
    let flags: Vec<OsString> =
        flags.into_iter().map(Into::into).map(underscores_to_dashes).collect();
    let command = command().no_binary_name(true).bin_name(&program.name);
    let matches = match command.after_help(program.after_help.clone()).try_get_matches_from(flags) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => return Err(UsageError(error.to_string())),
        Err(help) => return Ok(ParsedCommandLine::Print(help.to_string())),
    };
    if let Some(rest) = matches.get_many::<String>(REST).filter(|rest| rest.len() > 0) {
        let rest: Vec<&String> = rest.filter(|arg| !arg.is_empty()).collect();
        if !rest.is_empty() {
            return Err(UsageError(format!(
                "error: {:?} does not take any arguments, got {rest:?}; bool flags need `=`: --flag=false",
                program.name
            )));
        }
    }
    let version = matches.get_one::<String>(VERSION).map_or("false", String::as_str);
    let reported_version = match versions::parse_version_flag(version).map_err(UsageError)? {
        versions::VersionFlag::Report(version) => version,
        versions::VersionFlag::Print => {
            return Ok(ParsedCommandLine::Print(format!("{}\n", program.version)));
        }
        versions::VersionFlag::PrintRaw(text) => return Ok(ParsedCommandLine::Print(text)),
    };
    let mut options =
        read_matches(&matches, reported_version).map_err(|e| UsageError(e.to_string()))?;
    legacy::apply(&matches, &mut options).map_err(UsageError)?;
    Ok(ParsedCommandLine::Run(Box::new(options)))
}

impl Options {
    /// Whether the flag of this name was set.
    pub fn is_given(&self, flag: &str) -> bool {
        self.given.contains(flag)
    }

    /// Every flag of 1.36 with its value as Go prints it, sorted by name: `/flagz`.
    pub fn all_flag_values(&self) -> &[(String, String)] {
        &self.listing
    }

    /// Checks values and combinations of flags; returns upstream's error messages.
    pub fn validate(&self) -> Vec<String> {
        validate::validate(self)
    }
}

/// The command name of kube-scheduler, which is the component's name whatever the binary is called.
pub const COMMAND_NAME: &str = "kube-scheduler";
/// The description of the command in its help.
const ABOUT: &str = "Runs the scheduler, which assigns pods to nodes: a drop-in replacement for kube-scheduler 1.36 with its flags, \
                     configuration file, endpoints and metrics";
const REST: &str = "rest";
const VERSION: &str = "version";

/// The command with its groups of flags; for help and shell completion too.
pub fn command() -> Command {
    let command = Command::new(COMMAND_NAME).args_override_self(true).disable_version_flag(true);
    let command = MiscFlags::augment_args(command);
    let command = LoadmasterFlags::augment_args(command);
    let command = SecureServingFlags::augment_args(command);
    let command = AuthenticationFlags::augment_args(command);
    let command = AuthorizationFlags::augment_args(command);
    let command = DeprecatedFlags::augment_args(command);
    let command = LeaderElectionFlags::augment_args(command);
    let command = FeatureGateFlags::augment_args(command);
    let command = MetricsFlags::augment_args(command);
    let command = LogFlags::augment_args(command);
    let version = Arg::new(VERSION)
        .long(VERSION)
        .value_name("version")
        .num_args(0..=1)
        .require_equals(true)
        .default_value("false")
        .default_missing_value("true")
        .hide_default_value(true)
        .help("Print version information and quit; --version=raw prints the raw version, --version=vX.Y.Z... sets the reported version")
        .help_heading("Global flags");
    let rest = Arg::new(REST).action(ArgAction::Append).num_args(0..).hide(true);
    // Set last: `augment_args` makes the doc comment of each group the description of the command.
    legacy::augment(command.arg(version).arg(rest))
        .mut_args(parse_like_pflag)
        .about(ABOUT)
        .long_about(None)
}

/// A bool flag stands alone or has a value after `=`; any other flag takes the next argument as its value, even one that starts with `-`.
fn parse_like_pflag(arg: Arg) -> Arg {
    if arg.is_positional() || arg.get_id() == VERSION || arg.get_id() == "help" {
        return arg;
    }
    let is_bool = arg.get_value_names().is_some_and(|names| names.iter().any(|it| it == "bool"));
    if is_bool {
        arg.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        arg.allow_hyphen_values(true).hide_default_value(false)
    }
}

/// Converts `--leader_elect` to `--leader-elect`.
fn underscores_to_dashes(arg: OsString) -> OsString {
    let Some(text) = arg.to_str().filter(|text| text.starts_with("--")) else { return arg };
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    if !name.contains('_') || name.contains(char::is_whitespace) {
        return arg;
    }
    let name = name.replace('_', "-");
    value.map_or_else(|| name.clone(), |value| format!("{name}={value}")).into()
}

fn read_matches(matches: &ArgMatches, reported_version: String) -> Result<Options, clap::Error> {
    let command = command();
    let flags = || command.get_arguments().filter_map(|arg| Some((arg, arg.get_long()?)));
    let is_given =
        |arg: &Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut options = Options {
        misc: MiscFlags::from_arg_matches(matches)?,
        loadmaster: LoadmasterFlags::from_arg_matches(matches)?,
        serving: SecureServingFlags::from_arg_matches(matches)?,
        authentication: AuthenticationFlags::from_arg_matches(matches)?,
        authorization: AuthorizationFlags::from_arg_matches(matches)?,
        deprecated: DeprecatedFlags::from_arg_matches(matches)?,
        leader_election: LeaderElectionFlags::from_arg_matches(matches)?,
        features: FeatureGateFlags::from_arg_matches(matches)?,
        metrics: MetricsFlags::from_arg_matches(matches)?,
        logs: LogFlags::from_arg_matches(matches)?,
        legacy: LegacyFlags::default(),
        reported_version,
        warnings: Vec::new(),
        given: flags().filter(|(arg, _)| is_given(arg)).map(|(_, name)| name.to_owned()).collect(),
        listing: flagz::list(&command, matches),
    };
    options.drop_empty();
    Ok(options)
}

impl Options {
    /// `--list=` is an empty list, not a list of one empty string.
    fn drop_empty(&mut self) {
        let authentication = &mut self.authentication;
        for list in [
            &mut self.serving.tls_cipher_suites,
            &mut authentication.requestheader_allowed_names,
            &mut authentication.requestheader_extra_headers_prefix,
            &mut authentication.requestheader_group_headers,
            &mut authentication.requestheader_uid_headers,
            &mut authentication.requestheader_username_headers,
            &mut self.authorization.authorization_always_allow_paths,
            &mut self.features.emulated_version,
            &mut self.features.min_compatibility_version,
            &mut self.metrics.disabled_metrics,
        ] {
            if list.len() == 1 && list[0].is_empty() {
                list.clear();
            }
        }
        self.logs.vmodule.retain(|(pattern, _)| !pattern.is_empty());
    }
}

#[cfg(test)]
mod tests;
