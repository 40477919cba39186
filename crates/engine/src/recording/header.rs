//! The header of a recording: the settings of the engine.

use std::time::Duration;

use loadmaster_stdx::HashSeed;
use serde::{Deserialize, Serialize};

use crate::engine::EngineOptions;

/// Everything that is necessary to create the same engine. Feature gates and plugins are listed if they differ from the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordingHeader {
    /// The version of the program that wrote the recording.
    pub version: String,
    /// The KubeSchedulerConfiguration with all defaults, as YAML.
    pub configuration: String,
    /// In the format of `--feature-gates`: `Name=true`.
    pub feature_gates: Vec<String>,
    /// Out-of-tree plugins of the program.
    pub plugins: Vec<String>,
    /// [`EngineOptions::seed`], and so on; durations in nanoseconds.
    pub seed: u64,
    /// The number of [`EngineOptions::hash_seed`]. Recordings of older versions have none: their maps had the fixed seed.
    #[serde(default)]
    pub hash_seed: u64,
    pub initial_backoff: u64,
    pub max_backoff: u64,
    pub max_in_unschedulable: u64,
    pub bind_window: usize,
    pub shadow: bool,
    #[serde(rename = "checkEvery")]
    pub verify_every: u64,
}

impl RecordingHeader {
    /// The header for an engine with these options; version, configuration, feature gates and plugins are left empty.
    pub fn from_engine_options(options: &EngineOptions) -> RecordingHeader {
        let nanos = |it: Duration| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX);
        RecordingHeader {
            version: String::new(),
            configuration: String::new(),
            feature_gates: Vec::new(),
            plugins: Vec::new(),
            seed: options.seed,
            hash_seed: options.hash_seed.number(),
            initial_backoff: nanos(options.initial_backoff),
            max_backoff: nanos(options.max_backoff),
            max_in_unschedulable: nanos(options.max_in_unschedulable),
            bind_window: options.bind_window,
            shadow: options.shadow,
            verify_every: options.verify_every,
        }
    }

    /// The options of the engine, with a stopwatch that always returns zero.
    pub fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            seed: self.seed,
            hash_seed: HashSeed::new(self.hash_seed),
            initial_backoff: Duration::from_nanos(self.initial_backoff),
            max_backoff: Duration::from_nanos(self.max_backoff),
            max_in_unschedulable: Duration::from_nanos(self.max_in_unschedulable),
            bind_window: self.bind_window,
            shadow: self.shadow,
            verify_every: self.verify_every,
            ..EngineOptions::default()
        }
    }
}
