//! From the arguments to a process that is ready to run: what comes before any connection.
//!
//! ```no_run
//! # use std::process::ExitCode;
//! # fn run(_: loadmaster_daemon::Ready) -> ExitCode { ExitCode::SUCCESS }
//! fn main() -> ExitCode {
//!     match loadmaster_daemon::prepare(std::env::args_os(), &loadmaster_plugins::in_tree()) {
//!         Ok(plan) => match plan.begin() {
//!             Ok(ready) => run(ready),
//!             Err(stop) => stop.end(),
//!         },
//!         Err(stop) => stop.end(),
//!     }
//! }
//! ```

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use loadmaster_framework::Registry;
use loadmaster_stdx::Chain;
use tracing::subscriber::SetGlobalDefaultError;

use crate::flags::{KUBERNETES_VERSION, NAME, Options, Parsed, parse};
use crate::load::Loaded;
use crate::logs::{LogSettings, Logs};
use crate::metrics::{Metrics, Settings};

/// Whether a program of this name stands in for kube-scheduler, so that its arguments are those of
/// `run`.
pub fn is_kube_scheduler(program: &OsStr) -> bool {
    let name = Path::new(program).file_stem();
    name.is_some_and(|name| name == NAME)
}

/// The end before the beginning.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// What was asked for is done: print this, exit 0.
    Done(String),
    /// It cannot be done: print this to standard error, exit 1.
    Failed(String),
}

impl Stop {
    /// Prints and gives upstream's exit code.
    pub fn end(self) -> ExitCode {
        // A pipe that is closed early is no reason to complain.
        match self {
            Stop::Done(text) => {
                let _ = write!(io::stdout(), "{text}");
                ExitCode::SUCCESS
            }
            Stop::Failed(text) => {
                let _ = writeln!(io::stderr(), "{}", text.trim_end());
                ExitCode::FAILURE
            }
        }
    }
}

/// What is going to be done; nothing of the process has changed yet.
pub struct Plan {
    /// The command line.
    pub options: Options,
    /// The configuration.
    pub loaded: Loaded,
    /// How it is logged.
    pub log_settings: LogSettings,
    /// All metrics.
    pub metrics: Arc<Metrics>,
}

/// A process that logs and counts; now it can connect.
pub struct Ready {
    /// The command line.
    pub options: Options,
    /// The configuration.
    pub loaded: Loaded,
    /// The logs.
    pub logs: Logs,
    /// All metrics.
    pub metrics: Arc<Metrics>,
}

/// Reads the arguments, of which the first is the program's name, and the files they name; does what
/// `--help`, `--version` and `--write-config-to` ask for.
pub fn prepare(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    registry: &Registry,
) -> Result<Plan, Stop> {
    let failed = |text: String| Stop::Failed(text);
    let options = match parse(args).map_err(|error| failed(error.to_string()))? {
        Parsed::Run(options) => *options,
        Parsed::Print(text) => return Err(Stop::Done(text)),
    };
    let loaded = options.load(registry).map_err(|error| failed(Chain(&error).to_string()))?;
    let log_settings = LogSettings::from_flags(&options.logs, &loaded.gates)
        .map_err(|errors| failed(errors.join("\n")))?;
    let version = &options.reported_version;
    let settings = Settings::from_flags(&options.metrics, &loaded.gates, loaded.versions, version)
        .map_err(|error| failed(Chain(&error).to_string()))?;
    let metrics = Metrics::new(&settings).map_err(|error| failed(error.to_string()))?;
    let file = &options.misc.write_config_to;
    if !file.is_empty() {
        let yaml = loaded.config.to_v1_yaml().map_err(|error| failed(Chain(&error).to_string()))?;
        std::fs::write(file, yaml)
            .map_err(|error| failed(format!("writing the configuration to {file}: {error}")))?;
        return Err(Stop::Done(String::new()));
    }
    Ok(Plan { options, loaded, log_settings, metrics: Arc::new(metrics) })
}

impl Plan {
    /// Starts logging, and says first what is about to run.
    pub fn begin(self) -> Result<Ready, Stop> {
        let logs = Logs::init(&self.log_settings);
        self.begin_with(logs)
    }

    /// The same, with the log in a file or whatever else takes lines.
    pub fn begin_logging_into(self, sink: Box<dyn io::Write + Send>) -> Result<Ready, Stop> {
        let logs = Logs::init_into(&self.log_settings, sink);
        self.begin_with(logs)
    }

    fn begin_with(self, logs: Result<Logs, SetGlobalDefaultError>) -> Result<Ready, Stop> {
        let Plan { options, loaded, log_settings: _, metrics } = self;
        let logs = logs.map_err(|error| Stop::Failed(format!("starting to log: {error}")))?;
        for (name, value) in options.listing() {
            tracing::info!(v = 1, "FLAG: --{name}={value:?}");
        }
        for note in &loaded.notes {
            tracing::warn!("{note}");
        }
        let version = &options.reported_version;
        tracing::info!(
            version,
            loadmaster = env!("CARGO_PKG_VERSION"),
            "Starting Kubernetes Scheduler"
        );
        if version != KUBERNETES_VERSION {
            tracing::info!(
                version = KUBERNETES_VERSION,
                "The reported version was given by --version"
            );
        }
        if let Ok(config) = loaded.config.to_v1_yaml() {
            tracing::info!(v = 2, config, "Using component config");
        }
        Ok(Ready { options, loaded, logs, metrics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(args: &[&str]) -> Stop {
        let args = ["kube-scheduler"].iter().chain(args);
        prepare(args, &loadmaster_plugins::in_tree()).err().expect("stops")
    }

    #[test]
    fn names() {
        for (program, want) in [
            ("kube-scheduler", true),
            ("/usr/local/bin/kube-scheduler", true),
            ("kube-scheduler.exe", true),
            ("loadmaster", false),
            ("/kube-scheduler/loadmaster", false),
            ("", false),
        ] {
            assert_eq!(is_kube_scheduler(OsStr::new(program)), want, "{program}");
        }
    }

    #[test]
    fn what_ends_at_once() {
        assert_eq!(stop(&["--version"]), Stop::Done(format!("Kubernetes {KUBERNETES_VERSION}\n")));
        for (args, want) in [
            (["--nope"], "unexpected argument"),
            (["--logging-format=xml"], "format: Invalid value: \"xml\": Unsupported log format"),
            (["--secure-port=99999"], "--secure-port 99999 must be between"),
            (["--config=/nope/nope"], "/nope/nope"),
            (["--allow-metric-labels-manifest=/nope/nope"], "the allow list of metric labels"),
        ] {
            let Stop::Failed(text) = stop(&args) else { panic!("{args:?} is done") };
            assert!(text.contains(want), "{args:?}: {text}");
        }
    }

    #[test]
    fn the_configuration_is_written_with_all_defaults() {
        let path =
            std::env::temp_dir().join(format!("loadmaster-written-{}.yaml", std::process::id()));
        let flag = format!("--write-config-to={}", path.display());
        assert_eq!(
            stop(&[&flag, "--kubeconfig=/k", "--leader-elect-retry-period=3s"]),
            Stop::Done(String::new())
        );
        let written = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(
            written.starts_with("apiVersion: kubescheduler.config.k8s.io/v1\nclientConnection:\n"),
            "{written}"
        );
        assert!(
            written.contains("  kubeconfig: /k\n") && written.contains("  retryPeriod: 3s\n"),
            "{written}"
        );
    }
}
