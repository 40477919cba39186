//! The engine's thread.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::RunError;
use super::shell::Shell;

/// The thread on which the engine decides.
pub(super) struct EngineThread {
    thread: std::thread::JoinHandle<()>,
    ended: mpsc::Receiver<()>,
}

impl EngineThread {
    pub(super) fn start(shell: Shell) -> Result<EngineThread, RunError> {
        let (ended_in, ended) = mpsc::channel(1);
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            // Dropped when the engine ends, however that comes.
            let _ended = ended_in;
            shell.run();
        });
        Ok(EngineThread { thread: thread.map_err(RunError::Runtime)?, ended })
    }

    /// When it has ended.
    pub(super) async fn ended(&mut self) {
        let _ = self.ended.recv().await;
    }

    /// Waits for its end; whether it came.
    pub(super) async fn join(self, at_most: Duration) -> bool {
        let joined = tokio::task::spawn_blocking(move || self.thread.join());
        let has_ended = timeout(at_most, joined).await.is_ok();
        if !has_ended {
            tracing::error!("The engine does not end: a plugin does not return");
        }
        has_ended
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "threads that end, and one that does not")]

    use super::super::{JOIN_MAX, runtime};
    use super::*;

    #[test]
    fn a_plugin_that_does_not_return_does_not_keep_the_process() {
        let (never, waits) = std::sync::mpsc::channel::<()>();
        let runtime = runtime().unwrap();
        let join = |thread, at_most| {
            let (_, ended) = mpsc::channel(1);
            runtime.block_on(EngineThread { thread, ended }.join(at_most))
        };
        let stuck = std::thread::spawn(move || waits.recv().unwrap_or_default());
        assert!(!join(stuck, Duration::from_millis(50)));
        assert!(join(std::thread::spawn(|| {}), JOIN_MAX));
        runtime.shutdown_background();
        drop(never);
    }
}
