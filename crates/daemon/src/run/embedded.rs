//! A scheduler embedded in another process, such as `loadmaster up`.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use loadmaster_engine::Engine;
use tokio::sync::{mpsc, oneshot};

use super::engine_loop::Command;
use super::engine_queries::QUERY_PAUSE_FACTOR;
use super::service::Service;
use super::{PreparedScheduler, RunError, clock, runtime};
use crate::CompletedConfig;

/// A scheduler that runs on its own threads until [`EmbeddedScheduler::stop`]. Dropping it also stops it, without waiting.
pub struct EmbeddedScheduler {
    commands: mpsc::UnboundedSender<Command>,
    /// When the next query may run, on the engine's clock.
    next_query_at: u64,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), RunError>>,
}

/// The outcome of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryOutcome<T> {
    /// The result.
    Completed(T),
    /// The pause after the last query is not over, or the engine did not run the query within a second.
    Busy,
    /// The scheduler has stopped.
    Ended,
}

/// How long a query waits: a stuck plugin may block the engine forever.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

impl EmbeddedScheduler {
    /// Starts a scheduler. Its secure port is that of `listener`, whatever the flags say.
    ///
    /// # Errors
    ///
    /// If the recording cannot be started, or threads cannot be created. Later errors are returned by
    /// [`EmbeddedScheduler::stop`].
    pub fn start(
        ready: CompletedConfig,
        services: &[Service],
        out_of_tree: &[String],
        listener: TcpListener,
    ) -> Result<EmbeddedScheduler, RunError> {
        let mut prepared = PreparedScheduler::new(ready, services, out_of_tree)?;
        prepared.daemon.listener = Some(listener);
        let commands = prepared.daemon.commands.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let hash_seed = prepared.daemon.hash_seed;
        let runtime = runtime(hash_seed)?;
        let thread = std::thread::Builder::new().name("scheduler".to_owned()).spawn(move || {
            hash_seed.set_for_thread();
            let stop_signal = async move { drop(stopped.await) };
            let ended = runtime.block_on(prepared.run(stop_signal, None));
            runtime.shutdown_background();
            ended
        });
        let thread = thread.map_err(RunError::Runtime)?;
        Ok(EmbeddedScheduler { commands, next_query_at: 0, stop, thread })
    }

    /// Runs a query on the engine's thread; no pod is scheduled meanwhile. However often this is called, queries take at most a
    /// twentieth of the engine's time.
    pub fn query<T: Send + 'static>(
        &mut self,
        query: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> QueryOutcome<T> {
        if clock::ticks() < self.next_query_at {
            return QueryOutcome::Busy;
        }
        let (result_sender, result_receiver) = sync_channel(1);
        let request = Arc::new(());
        let requester = Arc::downgrade(&request);
        let command = Command::Query(Box::new(move |engine| {
            if requester.strong_count() > 0 {
                let began = clock::ticks();
                let result = query(engine);
                let _ = result_sender.send((result, clock::ticks() - began));
            }
        }));
        if self.commands.send(command).is_err() {
            return QueryOutcome::Ended;
        }
        match result_receiver.recv_timeout(QUERY_TIMEOUT) {
            Ok((result, nanos)) => {
                let rest = nanos.saturating_mul(QUERY_PAUSE_FACTOR.into());
                self.next_query_at = clock::ticks().saturating_add(rest);
                QueryOutcome::Completed(result)
            }
            Err(RecvTimeoutError::Timeout) => QueryOutcome::Busy,
            Err(RecvTimeoutError::Disconnected) => QueryOutcome::Ended,
        }
    }

    /// Stops the scheduler as SIGTERM would, and returns its result.
    ///
    /// # Errors
    ///
    /// The error that stopped the scheduler before.
    pub fn stop(self) -> Result<(), RunError> {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or(Err(RunError::EngineEnded))
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::disallowed_methods,
        reason = "the test blocks the engine thread and measures time"
    )]

    use super::super::testkit;
    use super::*;

    #[test]
    fn queries_take_a_small_share_of_the_engines_time() {
        let (stop, _) = oneshot::channel();
        let mut scheduler = EmbeddedScheduler {
            commands: testkit::spawn_engine_thread(testkit::engine(&["a"], &[])),
            next_query_at: 0,
            stop,
            thread: std::thread::spawn(|| Ok(())),
        };
        let took = Duration::from_millis(20);
        let long = |engine: &mut Engine| {
            std::thread::sleep(Duration::from_millis(20));
            engine.world().nodes().len()
        };
        let before = clock::ticks();
        assert_eq!(scheduler.query(long), QueryOutcome::Completed(1));
        assert_eq!(scheduler.query(|_| ()), QueryOutcome::Busy);
        let rest = Duration::from_nanos(scheduler.next_query_at - before);
        assert!(rest >= took * (QUERY_PAUSE_FACTOR + 1), "{rest:?}");
        scheduler.next_query_at = 0;
        assert_eq!(scheduler.query(|_| ()), QueryOutcome::Completed(()));
        // A stuck plugin: a query that timed out is not run later.
        let stuck = |_: &mut Engine| std::thread::sleep(QUERY_TIMEOUT * 2);
        let _ = scheduler.commands.send(Command::Query(Box::new(stuck)));
        let (ran_sender, ran) = std::sync::mpsc::channel();
        assert_eq!(scheduler.query(move |_| ran_sender.send(())), QueryOutcome::Busy);
        assert!(ran.recv().is_err());
        let _ = scheduler.commands.send(Command::Stop);
        // The engine's thread may need longer than the timeout to end.
        let ended = (0..60).any(|_| {
            scheduler.next_query_at = 0;
            scheduler.query(|_| ()) == QueryOutcome::Ended
        });
        assert!(ended);
    }
}
