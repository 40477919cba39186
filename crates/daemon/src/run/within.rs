//! A scheduler as a part of another process.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use loadmaster_engine::Engine;
use loadmaster_framework::Registry;
use tokio::sync::{mpsc, oneshot};

use super::answers::REST_FACTOR;
use super::service::Service;
use super::shell::Command;
use super::{Prepared, RunError, clock, runtime};
use crate::Ready;

/// A scheduler that runs on threads of its own until it is told to stop. Dropping it stops it, too, without waiting.
pub struct Scheduler {
    commands: mpsc::UnboundedSender<Command>,
    /// When the next question may be asked, on the engine's clock.
    free_from: u64,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), RunError>>,
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<T> {
    /// The answer.
    Answered(T),
    /// The engine has no time: it must have its own after the last answer first, or it did not come to it within a second.
    Busy,
    /// The scheduler has ended.
    Ended,
}

/// Whoever asks may have other things to do, and a plugin that does not return keeps the engine for ever.
const ANSWER_MAX: Duration = Duration::from_secs(1);

impl Scheduler {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// When a plugin cannot be built, a recording not begun, or there are no threads. What goes wrong later is said by
    /// [`Scheduler::stop`].
    pub fn start(
        ready: Ready,
        registry: &Registry,
        services: &[Service],
        out_of_tree: &[String],
    ) -> Result<Scheduler, RunError> {
        let prepared = Prepared::new(ready, registry, services, out_of_tree)?;
        let commands = prepared.daemon.commands.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = runtime()?;
        let thread = std::thread::Builder::new().name("scheduler".to_owned()).spawn(move || {
            let told = async move { drop(stopped.await) };
            let ended = runtime.block_on(prepared.run(told));
            runtime.shutdown_background();
            ended
        });
        let thread = thread.map_err(RunError::Runtime)?;
        Ok(Scheduler { commands, free_from: 0, stop, thread })
    }

    /// Asks the engine something, on its thread, where nothing is decided meanwhile. However often this is called, questions take
    /// at most a twentieth of the engine's time.
    pub fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Asked<T> {
        if clock::ticks() < self.free_from {
            return Asked::Busy;
        }
        let (answer_in, answered) = sync_channel(1);
        let asking = Arc::new(());
        let asker = Arc::downgrade(&asking);
        let asked = Command::Ask(Box::new(move |engine| {
            if asker.strong_count() > 0 {
                let began = clock::ticks();
                let answer = question(engine);
                let _ = answer_in.send((answer, clock::ticks() - began));
            }
        }));
        if self.commands.send(asked).is_err() {
            return Asked::Ended;
        }
        match answered.recv_timeout(ANSWER_MAX) {
            Ok((answer, nanos)) => {
                let rest = nanos.saturating_mul(REST_FACTOR.into());
                self.free_from = clock::ticks().saturating_add(rest);
                Asked::Answered(answer)
            }
            Err(RecvTimeoutError::Timeout) => Asked::Busy,
            Err(RecvTimeoutError::Disconnected) => Asked::Ended,
        }
    }

    /// Ends it as SIGTERM would, and says how it went.
    ///
    /// # Errors
    ///
    /// What ended it before.
    pub fn stop(self) -> Result<(), RunError> {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or(Err(RunError::EngineEnded))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "the engine's thread, and its time")]

    use super::super::testkit;
    use super::*;

    #[test]
    fn questions_leave_the_engine_most_of_its_time() {
        let (stop, _) = oneshot::channel();
        let mut scheduler = Scheduler {
            commands: testkit::on_thread(testkit::engine(&["a"], &[])),
            free_from: 0,
            stop,
            thread: std::thread::spawn(|| Ok(())),
        };
        let took = Duration::from_millis(20);
        let long = |engine: &Engine| {
            std::thread::sleep(Duration::from_millis(20));
            engine.world().nodes().len()
        };
        let before = clock::ticks();
        assert_eq!(scheduler.ask(long), Asked::Answered(1));
        assert_eq!(scheduler.ask(|_| ()), Asked::Busy);
        let rest = Duration::from_nanos(scheduler.free_from - before);
        assert!(rest >= took * (REST_FACTOR + 1), "{rest:?}");
        scheduler.free_from = 0;
        assert_eq!(scheduler.ask(|_| ()), Asked::Answered(()));
        // A plugin that does not return; what is asked meanwhile is not answered later.
        let stuck = |_: &Engine| std::thread::sleep(ANSWER_MAX * 2);
        let _ = scheduler.commands.send(Command::Ask(Box::new(stuck)));
        let (heard_in, heard) = std::sync::mpsc::channel();
        assert_eq!(scheduler.ask(move |_| heard_in.send(())), Asked::Busy);
        assert!(heard.recv().is_err());
        let _ = scheduler.commands.send(Command::Stop);
        scheduler.free_from = 0;
        assert_eq!(scheduler.ask(|_| ()), Asked::Ended);
    }
}
