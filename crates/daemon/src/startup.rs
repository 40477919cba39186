//! Startup: parses flags, loads the configuration, starts logging and metrics; everything before the first connection.
//!
//! ```no_run
//! # use std::process::ExitCode;
//! # fn run(_: loadmaster_daemon::CompletedConfig) -> ExitCode { ExitCode::SUCCESS }
//! fn main() -> ExitCode {
//!     let (program, registry) = (loadmaster_daemon::flags::Program::kube_scheduler(), loadmaster_plugins::in_tree_registry());
//!     match loadmaster_daemon::load_startup_config(&program, std::env::args_os().skip(1), &registry) {
//!         Ok(startup) => match startup.start_logging() {
//!             Ok(config) => run(config),
//!             Err(exit) => exit.report(),
//!         },
//!         Err(exit) => exit.report(),
//!     }
//! }
//! ```

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use loadmaster_api::document::Document;
use loadmaster_framework::Registry;
use loadmaster_stdx::ErrorChain;
use tracing::subscriber::SetGlobalDefaultError;

use crate::flags::{KUBERNETES_VERSION, Options, ParsedCommandLine, Program, parse_flags};
use crate::load_config::LoadedConfig;
use crate::logs::{LogSettings, Logs};
use crate::metrics::{Metrics, MetricsSettings};

/// The process exits without running the scheduler.
#[derive(Debug, PartialEq, Eq)]
pub enum EarlyExit {
    /// Help, version or `--write-config-to`: print this, exit 0.
    Done(String),
    /// An error: print this to standard error, exit 1.
    Failed(String),
}

impl EarlyExit {
    /// Prints the text and returns upstream's exit code.
    pub fn report(self) -> ExitCode {
        // Ignore errors such as a closed pipe.
        match self {
            EarlyExit::Done(text) => {
                let _ = write!(io::stdout(), "{text}");
                ExitCode::SUCCESS
            }
            EarlyExit::Failed(text) => {
                let _ = writeln!(io::stderr(), "{}", text.trim_end());
                ExitCode::FAILURE
            }
        }
    }
}

/// The parsed command line and configuration, before logging is started.
pub struct StartupConfig {
    /// The command line.
    pub options: Options,
    /// The configuration.
    pub loaded: LoadedConfig,
    /// The log settings.
    pub log_settings: LogSettings,
    /// All metrics.
    pub metrics: Arc<Metrics>,
}

/// All that is needed to run the scheduler, with logging started (upstream's `CompletedConfig`).
pub struct CompletedConfig {
    /// The command line.
    pub options: Options,
    /// The configuration.
    pub loaded: LoadedConfig,
    /// The logs.
    pub logs: Logs,
    /// All metrics.
    pub metrics: Arc<Metrics>,
}

/// Parses the flags given to a program, without its name, and reads the files they name; handles `--help`, `--version`
/// and `--write-config-to`.
pub fn load_startup_config(
    program: &Program,
    flags: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    registry: &Registry,
) -> Result<StartupConfig, EarlyExit> {
    load_startup_config_or(program, flags, registry, None)
}

/// The same, with a configuration that counts as the file of `--config` if the flag is not set.
///
/// # Errors
///
/// As [`load_startup_config`].
pub fn load_startup_config_or(
    program: &Program,
    flags: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    registry: &Registry,
    default_config: Option<&Document>,
) -> Result<StartupConfig, EarlyExit> {
    let failed = |text: String| EarlyExit::Failed(text);
    let options = match parse_flags(program, flags) {
        Ok(ParsedCommandLine::Run(options)) => *options,
        Ok(ParsedCommandLine::Print(text)) => return Err(EarlyExit::Done(text)),
        Err(error) => return Err(failed(error.to_string())),
    };
    let loaded = options
        .load_config_or(registry, default_config)
        .map_err(|error| failed(ErrorChain(&error).to_string()))?;
    let log_settings = LogSettings::from_flags(&options.logs, &loaded.gates)
        .map_err(|errors| failed(errors.join("\n")))?;
    let version = &options.reported_version;
    let settings =
        MetricsSettings::from_flags(&options.metrics, &loaded.gates, loaded.versions, version)
            .map_err(|error| failed(ErrorChain(&error).to_string()))?;
    let metrics = Metrics::new(&settings).map_err(|error| failed(error.to_string()))?;
    let file = &options.misc.write_config_to;
    if !file.is_empty() {
        let yaml =
            loaded.config.to_v1_yaml().map_err(|error| failed(ErrorChain(&error).to_string()))?;
        std::fs::write(file, yaml)
            .map_err(|error| failed(format!("writing the configuration to {file}: {error}")))?;
        return Err(EarlyExit::Done(String::new()));
    }
    Ok(StartupConfig { options, loaded, log_settings, metrics: Arc::new(metrics) })
}

impl StartupConfig {
    /// Starts logging, and logs flags, version and configuration.
    pub fn start_logging(self) -> Result<CompletedConfig, EarlyExit> {
        let logs = Logs::init(&self.log_settings);
        self.start_with(logs)
    }

    /// The same, but logs are written to `sink`.
    pub fn start_logging_to(
        self,
        sink: Box<dyn io::Write + Send>,
    ) -> Result<CompletedConfig, EarlyExit> {
        let logs = Logs::init_to(&self.log_settings, sink);
        self.start_with(logs)
    }

    fn start_with(
        self,
        logs: Result<Logs, SetGlobalDefaultError>,
    ) -> Result<CompletedConfig, EarlyExit> {
        let StartupConfig { options, loaded, log_settings: _, metrics } = self;
        let logs =
            logs.map_err(|error| EarlyExit::Failed(format!("initializing the log: {error}")))?;
        for (name, value) in options.all_flag_values() {
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
                "The reported version was set by --version"
            );
        }
        if let Ok(config) = loaded.config.redacted().to_v1_yaml() {
            tracing::info!(v = 2, config, "Using component config");
        }
        Ok(CompletedConfig { options, loaded, logs, metrics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(args: &[&str]) -> EarlyExit {
        let registry = loadmaster_plugins::in_tree_registry();
        load_startup_config(&Program::kube_scheduler(), args, &registry).err().expect("stops")
    }

    #[test]
    fn help_version_and_invalid_flags_exit_early() {
        assert_eq!(
            stop(&["--version"]),
            EarlyExit::Done(format!("Kubernetes {KUBERNETES_VERSION}\n"))
        );
        for (args, want) in [
            (["--nope"], "unexpected argument"),
            (["--logging-format=xml"], "format: Invalid value: \"xml\": Unsupported log format"),
            (["--secure-port=99999"], "--secure-port 99999 must be between"),
            (["--config=/nope/nope"], "/nope/nope"),
            (["--allow-metric-labels-manifest=/nope/nope"], "the allow list of metric labels"),
        ] {
            let EarlyExit::Failed(text) = stop(&args) else { panic!("{args:?} did not fail") };
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
            EarlyExit::Done(String::new())
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
