//! How the engine of a log was built.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::Options;

/// What is needed to build the engine again. Gates and plugins are named where they differ from the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Of the program that wrote the log.
    pub version: String,
    /// The KubeSchedulerConfiguration with all defaults, as YAML.
    pub configuration: String,
    /// As `--feature-gates` takes them: `Name=true`.
    pub feature_gates: Vec<String>,
    /// Plugins that the program had beside the in-tree ones.
    pub plugins: Vec<String>,
    /// [`Options::seed`], and so on; durations in nanoseconds.
    pub seed: u64,
    pub initial_backoff: u64,
    pub max_backoff: u64,
    pub max_in_unschedulable: u64,
    pub bind_window: usize,
    pub shadow: bool,
    pub check_every: u64,
}

impl Header {
    /// Of an engine with these options; version, configuration, gates and plugins are left empty.
    pub fn of(options: &Options) -> Header {
        let nanos = |it: Duration| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX);
        Header {
            version: String::new(),
            configuration: String::new(),
            feature_gates: Vec::new(),
            plugins: Vec::new(),
            seed: options.seed,
            initial_backoff: nanos(options.initial_backoff),
            max_backoff: nanos(options.max_backoff),
            max_in_unschedulable: nanos(options.max_in_unschedulable),
            bind_window: options.bind_window,
            shadow: options.shadow,
            check_every: options.check_every,
        }
    }

    /// The options of the engine, with a stopwatch that stands still.
    pub fn options(&self) -> Options {
        Options {
            seed: self.seed,
            initial_backoff: Duration::from_nanos(self.initial_backoff),
            max_backoff: Duration::from_nanos(self.max_backoff),
            max_in_unschedulable: Duration::from_nanos(self.max_in_unschedulable),
            bind_window: self.bind_window,
            shadow: self.shadow,
            check_every: self.check_every,
            ..Options::default()
        }
    }
}
