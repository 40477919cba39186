//! Counts of what the controllers do.

/// Counts for logs, metrics and tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunnerStats {
    /// Requests in flight or waiting to be sent.
    pub n_requests: usize,
    /// Kinds that have not been listed yet.
    pub n_unsynced: usize,
    /// By controller, in their order.
    pub controllers: Vec<ControllerStats>,
}

/// What a controller has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStats {
    /// The controller's name.
    pub name: &'static str,
    /// Number of its panics.
    pub n_panics: u64,
    /// Number of keys reconciled.
    pub n_reconciled: u64,
    /// Number of requests that failed.
    pub n_failed_requests: u64,
}

impl RunnerStats {
    /// Number of panics of all controllers so far.
    pub fn n_panics(&self) -> u64 {
        self.controllers.iter().map(|stats| stats.n_panics).sum()
    }
}
