//! Services: an author's own async tasks beside the engine, which do what plugins may not: talk, wait, read a clock.
//!
//! Every service runs on every replica from start to end, so that what it publishes is there when this replica begins to lead;
//! [`ServiceHandle::leading`] waits for that. One that ends or panics is logged, counted and started again after a pause. What it asks
//! of the engine are [`Event`]s, like all other news.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_engine::engine::{Engine, Event, Verdict};
use loadmaster_stdx::Chain;
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::shell::Command;
use crate::metrics::Metrics;

/// How a service ended. It is started again either way.
pub type ServiceResult = Result<(), Box<dyn Error + Send + Sync>>;

type Running = Pin<Box<dyn Future<Output = ServiceResult> + Send>>;

/// An author's task, by name.
#[derive(Clone)]
pub struct Service {
    name: &'static str,
    start: Arc<dyn Fn(ServiceHandle) -> Running + Send + Sync>,
}

impl Service {
    /// A service that `start` begins, and begins again when it has ended.
    pub fn new<F, R>(name: &'static str, start: F) -> Service
    where
        F: Fn(ServiceHandle) -> R + Send + Sync + 'static,
        R: Future<Output = ServiceResult> + Send + 'static,
    {
        Service { name, start: Arc::new(move |handle| Box::pin(start(handle)) as Running) }
    }

    /// What logs and metrics call it.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// The scheduler ends, and so should the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scheduler has ended")]
pub struct SchedulerEnded;

/// What a service publishes cannot be written as JSON.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The value.
    #[error("writing the value as JSON")]
    Value(#[source] serde_json::Error),
    /// Nobody is there to take it.
    #[error(transparent)]
    Ended(#[from] SchedulerEnded),
}

/// A pod that Permit holds, as a service sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPod {
    /// `metadata.uid`.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The node that it has in the scheduler's books.
    pub node: String,
    /// Plugins that hold it.
    pub plugins: Vec<String>,
}

/// How many wishes of one service may wait for the engine; the next one waits to be sent.
const N_WAITING_MAX: usize = 64;

/// What a service can do.
#[derive(Clone)]
pub struct ServiceHandle {
    commands: UnboundedSender<Command>,
    room: Arc<Semaphore>,
    leading: watch::Receiver<bool>,
}

impl ServiceHandle {
    /// Gives a value to the plugins of this name, which took a place for it (`Points::published`). It replaces the one before,
    /// and is forgotten after `good_for`: a service that fell silent leaves no old data behind.
    pub async fn publish(
        &self,
        plugin: &str,
        value: &impl Serialize,
        good_for: Duration,
    ) -> Result<(), PublishError> {
        let value = serde_json::to_value(value).map_err(PublishError::Value)?;
        self.send(Event::Published { plugin: plugin.into(), value, good_for }).await?;
        Ok(())
    }

    /// Lets a pod go on that the plugin holds at Permit.
    pub async fn allow(&self, plugin: &str, uid: &str) -> Result<(), SchedulerEnded> {
        self.send(verdict(plugin, uid, Verdict::Allow)).await
    }

    /// Takes its node from a pod that Permit holds, on behalf of the plugin.
    pub async fn reject(&self, plugin: &str, uid: &str, why: &str) -> Result<(), SchedulerEnded> {
        self.send(verdict(plugin, uid, Verdict::Reject(why.to_owned()))).await
    }

    /// Has pods tried now that wait for an event.
    pub async fn activate(&self, uids: &[&str]) -> Result<(), SchedulerEnded> {
        self.send(Event::Activate(uids.iter().map(|uid| (*uid).into()).collect())).await
    }

    /// The pods that Permit holds, ordered by uid.
    pub async fn waiting_pods(&self) -> Result<Vec<HeldPod>, SchedulerEnded> {
        let (answer_in, answer) = oneshot::channel();
        let question = move |engine: &Engine| {
            let _ = answer_in.send(held_pods(engine));
        };
        self.commands.send(Command::Ask(Box::new(question))).map_err(|_| SchedulerEnded)?;
        answer.await.map_err(|_| SchedulerEnded)
    }

    /// Whether this replica schedules now.
    pub fn is_leading(&self) -> bool {
        *self.leading.borrow()
    }

    /// Waits until this replica schedules.
    pub async fn leading(&mut self) -> Result<(), SchedulerEnded> {
        self.leading.wait_for(|is_leading| *is_leading).await.map_err(|_| SchedulerEnded)?;
        Ok(())
    }

    async fn send(&self, event: Event) -> Result<(), SchedulerEnded> {
        let place = self.room.clone().acquire_owned().await.map_err(|_| SchedulerEnded)?;
        let wish = Wish { event, _place: place };
        self.commands.send(Command::Wish(Box::new(wish))).map_err(|_| SchedulerEnded)
    }
}

/// What a service wants the engine to hear.
pub(super) struct Wish {
    pub event: Event,
    /// Makes room for the next one when the engine has heard this one.
    _place: OwnedSemaphorePermit,
}

fn verdict(plugin: &str, uid: &str, verdict: Verdict) -> Event {
    Event::Permit { uid: uid.into(), plugin: Some(plugin.into()), verdict }
}

fn held_pods(engine: &Engine) -> Vec<HeldPod> {
    let held = engine.world().waiting_pods().iter().map(|waiting| HeldPod {
        uid: waiting.pod.uid.to_string(),
        namespace: waiting.pod.template.namespace.to_string(),
        name: waiting.pod.name.to_string(),
        node: waiting.pod.node_name.to_string(),
        plugins: waiting.plugins.iter().map(|plugin| (*plugin).to_owned()).collect(),
    });
    held.collect()
}

/// Pauses between two runs of a service: doubled each time, and back to the first after a run of `STEADY`.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
const STEADY: Duration = Duration::from_secs(600);

/// Starts the services. They end when what is returned is dropped.
pub(super) fn start(
    services: &[Service],
    commands: &UnboundedSender<Command>,
    leading: &watch::Receiver<bool>,
    metrics: &Arc<Metrics>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for service in services {
        let handle = ServiceHandle {
            commands: commands.clone(),
            room: Arc::new(Semaphore::new(N_WAITING_MAX)),
            leading: leading.clone(),
        };
        tasks.spawn(keep_running(service.clone(), handle, metrics.clone()));
    }
    tasks
}

async fn keep_running(service: Service, handle: ServiceHandle, metrics: Arc<Metrics>) {
    let mut pause = PAUSE_MIN;
    loop {
        let began = Instant::now();
        // In a task of its own, which a panic ends; and which ends with us.
        let mut run = JoinSet::new();
        let (start, handle) = (service.start.clone(), handle.clone());
        run.spawn(async move { start(handle).await });
        let why = match run.join_next().await {
            Some(Ok(Ok(()))) | None => "it returned".to_owned(),
            Some(Ok(Err(error))) => Chain(&*error).to_string(),
            Some(Err(error)) => error.to_string(),
        };
        if began.elapsed() >= STEADY {
            pause = PAUSE_MIN;
        }
        let name = service.name;
        tracing::error!(service = name, pause = ?pause, "A service ended and is started again: {why}");
        metrics.own.service_ended(name);
        sleep(pause).await;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::mpsc;

    use super::*;
    use crate::metrics::Settings;

    fn handle() -> (ServiceHandle, mpsc::UnboundedReceiver<Command>, watch::Sender<bool>) {
        let (commands, heard) = mpsc::unbounded_channel();
        let (lead, leading) = watch::channel(false);
        let room = Arc::new(Semaphore::new(N_WAITING_MAX));
        (ServiceHandle { commands, room, leading }, heard, lead)
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_ends_fails_or_panics_is_started_again() {
        let (handle, _heard, _lead) = handle();
        let n_runs = Arc::new(AtomicU32::new(0));
        let runs = n_runs.clone();
        let service = Service::new("flaky", move |_| {
            let nth = runs.fetch_add(1, Ordering::Relaxed);
            async move {
                match nth {
                    0 => Ok(()),
                    1 => Err("no route to host".into()),
                    2 => panic!("on purpose"),
                    _ => std::future::pending().await,
                }
            }
        });
        let metrics = Arc::new(Metrics::new(&Settings::default()).unwrap());
        let task = tokio::spawn(keep_running(service, handle, metrics.clone()));
        let began = Instant::now();
        while n_runs.load(Ordering::Relaxed) < 4 {
            sleep(Duration::from_millis(100)).await;
        }
        // Pauses of 1, 2 and 4 seconds.
        assert_eq!(began.elapsed().as_secs(), 7);
        let text = metrics.text();
        assert!(text.contains(r#"loadmaster_service_ends_total{service="flaky"} 3"#), "{text}");
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_it_asks_for_is_news_and_waits_for_room() {
        let (handle, mut heard, lead) = handle();
        handle.publish("Load", &[1, 2], Duration::from_secs(30)).await.unwrap();
        let Some(Command::Wish(wish)) = heard.recv().await else { panic!("a wish") };
        let Event::Published { plugin, value, .. } = &wish.event else {
            panic!("{:?}", wish.event)
        };
        assert_eq!((&**plugin, value), ("Load", &serde_json::json!([1, 2])));
        drop(wish);
        for _ in 0..N_WAITING_MAX {
            handle.allow("Gang", "u").await.unwrap();
        }
        let full = tokio::time::timeout(Duration::from_secs(1), handle.allow("Gang", "u")).await;
        assert!(full.is_err(), "no room");
        drop(heard.recv().await);
        assert_eq!(handle.reject("Gang", "u", "why").await, Ok(()));
        let mut leader = handle.clone();
        assert!(!leader.is_leading());
        lead.send_replace(true);
        assert_eq!(leader.leading().await, Ok(()));
        drop(heard);
        assert_eq!(handle.waiting_pods().await, Err(SchedulerEnded));
    }
}
