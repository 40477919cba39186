//! The command line of `run`: every flag of kube-scheduler 1.36, and those of older versions.
//!
//! ```
//! use loadmaster_daemon::flags::{Parsed, parse};
//! let args = ["kube-scheduler", "--leader-elect=false", "--secure-port", "0", "-v=2"];
//! let Ok(Parsed::Run(options)) = parse(args) else { unreachable!() };
//! assert!(!options.leader_election.leader_elect && options.logs.verbosity == 2);
//! ```
//!
//! Flags are written in Go's ways: `--flag=value` or `--flag value`, a bool bare or with `=`, `_`
//! for `-`, `-v=2` or `-v 2`; the last one wins, lists grow. The structs of `groups` are the
//! reference; `older` has what other versions had; `validate` what must not be combined.

mod go;
mod groups;
mod listing;
mod older;
mod validate;
mod versions;

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches as _};

pub use go::NamedCertKey;
pub use groups::{
    Authentication, Authorization, Deprecated, Features, LeaderElection, LogFlags, MetricsFlags,
    Misc, Own, SecureServing,
};
pub use older::Older;
pub(crate) use validate::is_metric_label;
pub(crate) use versions::platform;
pub use versions::{KUBERNETES_VERSION, Version, Versions, VersionsError};

/// What the command line says.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What to run.
    pub misc: Misc,
    /// What kube-scheduler does not have.
    pub own: Own,
    /// How the endpoints are served.
    pub serving: SecureServing,
    /// Who asks.
    pub authentication: Authentication,
    /// Who may.
    pub authorization: Authorization,
    /// What a file says in other words.
    pub deprecated: Deprecated,
    /// Which of several schedulers works.
    pub leader_election: LeaderElection,
    /// What is on.
    pub features: Features,
    /// What `/metrics` shows.
    pub metrics: MetricsFlags,
    /// What is logged, and how.
    pub logs: LogFlags,
    /// What flags of older versions say that have no successor among the flags.
    pub older: Older,
    /// The version that is reported, such as `v1.36.3`.
    pub reported_version: String,
    /// Older flags that were given, one sentence each.
    pub warnings: Vec<String>,
    /// The flags that were given, by name.
    given: BTreeSet<String>,
    /// Every flag with its value, sorted by name.
    listing: Vec<(String, String)>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Parsed {
    /// Run.
    Run(Box<Options>),
    /// Print this and exit 0: help or version.
    Print(String),
}

/// A command line that cannot be taken; what is wrong, with the usage, ready to be printed. The exit
/// code is 1.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.trim_end())]
pub struct UsageError(String);

/// Reads the command line; the first argument is the program's name.
pub fn parse(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Parsed, UsageError> {
    let args: Vec<OsString> = args.into_iter().map(Into::into).map(with_dashes).collect();
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => return Err(UsageError(error.to_string())),
        Err(help) => return Ok(Parsed::Print(help.to_string())),
    };
    if let Some(rest) = matches.get_many::<String>(REST).filter(|rest| rest.len() > 0) {
        let rest: Vec<&String> = rest.filter(|arg| !arg.is_empty()).collect();
        if !rest.is_empty() {
            return Err(UsageError(format!(
                "error: {NAME:?} does not take any arguments, got {rest:?}; a bool is given as --flag=false"
            )));
        }
    }
    let version = matches.get_one::<String>(VERSION).map_or("false", String::as_str);
    let reported_version = match versions::asked(version).map_err(UsageError)? {
        versions::Asked::Report(version) => version,
        versions::Asked::Print(text) => return Ok(Parsed::Print(text)),
    };
    let mut options = read(&matches, reported_version).map_err(|e| UsageError(e.to_string()))?;
    older::apply(&matches, &mut options).map_err(UsageError)?;
    Ok(Parsed::Run(Box::new(options)))
}

impl Options {
    /// Whether the flag of this name was given.
    pub fn is_given(&self, flag: &str) -> bool {
        self.given.contains(flag)
    }

    /// Every flag of 1.36 with its value as Go prints it, sorted by name: `/flagz`.
    pub fn listing(&self) -> &[(String, String)] {
        &self.listing
    }

    /// What must not be said together, or not at all; upstream's messages.
    pub fn validate(&self) -> Vec<String> {
        validate::validate(self)
    }
}

/// As upstream calls itself, whatever the binary is called.
pub const NAME: &str = "kube-scheduler";
const REST: &str = "rest";
const VERSION: &str = "version";

/// The command with its groups of flags; for help and shell completion too.
pub fn command() -> Command {
    let command = Command::new(NAME)
        .about("Places pods on nodes, as kube-scheduler 1.36 does.")
        .args_override_self(true)
        .disable_version_flag(true);
    let command = Misc::augment_args(command);
    let command = Own::augment_args(command);
    let command = SecureServing::augment_args(command);
    let command = Authentication::augment_args(command);
    let command = Authorization::augment_args(command);
    let command = Deprecated::augment_args(command);
    let command = LeaderElection::augment_args(command);
    let command = Features::augment_args(command);
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
        .help("Print the version and exit; --version=raw prints more, --version=vX.Y.Z... reports that one")
        .help_heading("Global flags");
    let rest = Arg::new(REST).action(ArgAction::Append).num_args(0..).hide(true);
    older::augment(command.arg(version).arg(rest)).mut_args(in_gos_ways)
}

/// A bool stands alone or with `=`; any other flag takes the next argument, whatever it looks like.
fn in_gos_ways(arg: Arg) -> Arg {
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

/// `--leader_elect` is `--leader-elect`.
fn with_dashes(arg: OsString) -> OsString {
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

fn read(matches: &ArgMatches, reported_version: String) -> Result<Options, clap::Error> {
    let command = command();
    let flags = || command.get_arguments().filter_map(|arg| Some((arg, arg.get_long()?)));
    let is_given =
        |arg: &Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut options = Options {
        misc: Misc::from_arg_matches(matches)?,
        own: Own::from_arg_matches(matches)?,
        serving: SecureServing::from_arg_matches(matches)?,
        authentication: Authentication::from_arg_matches(matches)?,
        authorization: Authorization::from_arg_matches(matches)?,
        deprecated: Deprecated::from_arg_matches(matches)?,
        leader_election: LeaderElection::from_arg_matches(matches)?,
        features: Features::from_arg_matches(matches)?,
        metrics: MetricsFlags::from_arg_matches(matches)?,
        logs: LogFlags::from_arg_matches(matches)?,
        older: Older::default(),
        reported_version,
        warnings: Vec::new(),
        given: flags().filter(|(arg, _)| is_given(arg)).map(|(_, name)| name.to_owned()).collect(),
        listing: listing::list(&command, matches),
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
