//! Services: an author's own async tasks beside the engine, which do what plugins may not: talk, wait, read a clock.
//!
//! Every service runs on every replica from start to end, so that what it publishes is there when this replica begins to lead;
//! [`ServiceHandle::leading`] waits for that. One that ends or panics is logged, counted and started again after a pause. What it asks
//! of the engine are [`Event`]s, like all other news.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_client::recorder::{Notice, Reference};
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

/// An Event about any object, which need not exist any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectEvent {
    /// Of the object, such as `v1` or `example.com/v1`.
    pub api_version: String,
    /// Such as `Node`.
    pub kind: String,
    /// Empty for kinds without namespaces: the Event is then in `default`.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's uid, by which `kubectl describe` finds its Events; may be empty.
    pub uid: String,
    /// `Warning` instead of `Normal`.
    pub is_warning: bool,
    /// In one word, such as `LoadUnknown`.
    pub reason: String,
    /// What was being done, in one word, such as `Polling`.
    pub action: String,
    /// For people. Cut after 1,024 bytes, which is what the API server takes.
    pub note: String,
}

/// An Event that the API server would not take.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TellError {
    /// A field must not be empty.
    #[error("an Event without {field}")]
    Empty {
        /// Which one.
        field: &'static str,
    },
    /// Reason and action have at most 128 bytes.
    #[error("the {field} of an Event has {len} bytes, more than {WORD_LEN_MAX}")]
    TooLong {
        /// Which one.
        field: &'static str,
        /// How long it is.
        len: usize,
    },
}

/// Limits of the API server, in bytes.
const WORD_LEN_MAX: usize = 128;
const NOTE_LEN_MAX: usize = 1024;

/// Who writes Events, without waiting.
pub(super) type Teller = Arc<dyn Fn(Notice) + Send + Sync>;

/// How many wishes of one service may wait for the engine; the next one waits to be sent.
const N_WAITING_MAX: usize = 64;

/// What a service can do.
#[derive(Clone)]
pub struct ServiceHandle {
    commands: UnboundedSender<Command>,
    room: Arc<Semaphore>,
    leading: watch::Receiver<bool>,
    tell: Teller,
    /// A schedulerName, in whose name Events are written.
    controller: Str,
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

    /// Writes an Event, with the scheduler's others: as many a second as `clientConnection` says, repetitions as a series. It does not
    /// wait; Events are lost when far too many do, or the API server is away for long. Every replica's service writes its own: ask
    /// [`ServiceHandle::is_leading`] if one is enough.
    ///
    /// # Errors
    ///
    /// When the API server would not take it: without kind, name, reason or action, or with very long ones.
    pub fn tell(&self, event: ObjectEvent) -> Result<(), TellError> {
        let words = [("reason", &event.reason), ("action", &event.action)];
        let all = [("a kind", &event.kind), ("a name", &event.name)];
        if let Some((field, _)) = all.iter().chain(&words).find(|(_, text)| text.is_empty()) {
            return Err(TellError::Empty { field });
        }
        if let Some((field, text)) = words.iter().find(|(_, text)| text.len() > WORD_LEN_MAX) {
            return Err(TellError::TooLong { field, len: text.len() });
        }
        let end = event.note.floor_char_boundary(NOTE_LEN_MAX);
        (self.tell)(Notice {
            regarding: Reference {
                api_version: event.api_version.into(),
                kind: event.kind.into(),
                namespace: event.namespace.into(),
                name: event.name.into(),
                uid: event.uid.into(),
            },
            related: None,
            is_warning: event.is_warning,
            reason: event.reason.into(),
            action: event.action.into(),
            note: event.note[..end].to_owned(),
            controller: self.controller.clone(),
        });
        Ok(())
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
    (tell, controller): (Teller, &Str),
    metrics: &Arc<Metrics>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for service in services {
        let handle = ServiceHandle {
            commands: commands.clone(),
            room: Arc::new(Semaphore::new(N_WAITING_MAX)),
            leading: leading.clone(),
            tell: tell.clone(),
            controller: controller.clone(),
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
        let (tell, controller): (Teller, _) = (Arc::new(|_| {}), "mine".into());
        (ServiceHandle { commands, room, leading, tell, controller }, heard, lead)
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

    #[tokio::test]
    async fn it_writes_events_about_any_object() {
        let (told_in, mut told) = mpsc::unbounded_channel();
        let (handle, _heard, _lead) = handle();
        let tell: Teller = Arc::new(move |notice| told_in.send(notice).unwrap());
        let handle = ServiceHandle { tell, ..handle };
        let event = ObjectEvent {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: "a".to_owned(),
            is_warning: true,
            reason: format!("Load{}", "Unknown"),
            action: "Polling".to_owned(),
            note: "ä".repeat(600),
            ..ObjectEvent::default()
        };
        assert_eq!(handle.tell(event.clone()), Ok(()));
        let notice = told.recv().await.unwrap();
        assert_eq!((&*notice.regarding.kind, &*notice.regarding.name), ("Node", "a"));
        assert_eq!((&*notice.reason, &*notice.controller), ("LoadUnknown", "mine"));
        assert_eq!((notice.is_warning, notice.note.len()), (true, 1024));
        let check = |change: &dyn Fn(&mut ObjectEvent), want: &str| {
            let mut event = event.clone();
            change(&mut event);
            assert_eq!(handle.tell(event).unwrap_err().to_string(), want);
        };
        check(&|event| event.kind.clear(), "an Event without a kind");
        check(&|event| event.name.clear(), "an Event without a name");
        check(&|event| event.reason.clear(), "an Event without reason");
        check(&|event| event.action.clear(), "an Event without action");
        let long = "the reason of an Event has 129 bytes, more than 128";
        check(&|event| event.reason = "r".repeat(129), long);
        assert!(told.try_recv().is_err(), "nothing else was written");
    }
}
