//! The thread that runs the engine loop.

use std::time::Duration;

use loadmaster_stdx::HashSeed;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::RunError;
use super::engine_loop::EngineLoop;

/// The thread that runs the engine loop.
pub(super) struct EngineThread {
    thread: std::thread::JoinHandle<()>,
    ended: mpsc::Receiver<()>,
}

impl EngineThread {
    pub(super) fn start(engine_loop: EngineLoop) -> Result<EngineThread, RunError> {
        let (ended_sender, ended) = mpsc::channel(1);
        let hash_seed = HashSeed::of_thread();
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            // Dropped when the engine ends, even by a panic.
            let _ended = ended_sender;
            hash_seed.set_for_thread();
            engine_loop.run();
        });
        Ok(EngineThread { thread: thread.map_err(RunError::Runtime)?, ended })
    }

    /// Waits until the thread has ended.
    pub(super) async fn ended(&mut self) {
        let _ = self.ended.recv().await;
    }

    /// Waits for the thread to end; false on timeout.
    pub(super) async fn join(self, at_most: Duration) -> bool {
        let joined = tokio::task::spawn_blocking(move || self.thread.join());
        let has_ended = timeout(at_most, joined).await.is_ok();
        if !has_ended {
            tracing::error!("The engine thread did not stop in time: a plugin is stuck");
        }
        has_ended
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "threads that end, and one that does not")]

    use super::super::{JOIN_TIMEOUT, runtime};
    use super::*;

    #[test]
    fn a_stuck_plugin_does_not_prevent_the_process_from_ending() {
        let (never, waits) = std::sync::mpsc::channel::<()>();
        let runtime = runtime(HashSeed::FIXED).unwrap();
        let join = |thread, at_most| {
            let (_, ended) = mpsc::channel(1);
            runtime.block_on(EngineThread { thread, ended }.join(at_most))
        };
        let stuck = std::thread::spawn(move || waits.recv().unwrap_or_default());
        assert!(!join(stuck, Duration::from_millis(50)));
        assert!(join(std::thread::spawn(|| {}), JOIN_TIMEOUT));
        runtime.shutdown_background();
        drop(never);
    }
}
