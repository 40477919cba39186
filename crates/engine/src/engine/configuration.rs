//! The part of a configuration that a running engine can change.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::profile::Profile;

/// What a running engine can change.
pub struct EngineConfiguration {
    /// At least one; all have the same QueueSort plugin.
    pub profiles: Vec<Arc<Profile>>,
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    /// The KubeSchedulerConfiguration with all defaults, as YAML, for recordings.
    pub yaml: String,
}

impl fmt::Debug for EngineConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.profiles.iter().map(|it| &*it.scheduler_name).collect();
        f.debug_struct("EngineConfiguration")
            .field("profiles", &names)
            .field("yaml", &self.yaml)
            .finish_non_exhaustive()
    }
}
