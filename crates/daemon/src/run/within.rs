//! A scheduler as a part of another process.

use std::thread::JoinHandle;

use loadmaster_engine::Engine;
use loadmaster_framework::Registry;
use tokio::sync::{mpsc, oneshot};

use super::service::Service;
use super::shell::Command;
use super::{Prepared, RunError, runtime};
use crate::Ready;

/// A scheduler that runs on threads of its own until it is told to stop. Dropping it stops it, too, without waiting.
pub struct Scheduler {
    commands: mpsc::UnboundedSender<Command>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), RunError>>,
}

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
        Ok(Scheduler { commands, stop, thread: thread.map_err(RunError::Runtime)? })
    }

    /// Asks the engine something, on its thread: nothing is decided meanwhile, so the question should be short. Nothing comes
    /// back once the scheduler has ended.
    pub fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let asked = Command::Ask(Box::new(move |engine| {
            let _ = answer.send(question(engine));
        }));
        self.commands.send(asked).ok()?;
        answered.blocking_recv().ok()
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
