//! Services: custom async tasks next to the engine, which may do what plugins may not: use the network, wait, read a clock.
//!
//! Every service runs on every replica from start to end, so that the values it publishes are present when this replica becomes leader;
//! [`ServiceHandle::wait_until_leading`] waits for that. A service that ends or panics is logged, counted and restarted after a delay. Its
//! requests to the engine are [`EngineEvent`]s, like all other input.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_client::event_recorder::{NewEvent, ObjectReference};
use loadmaster_engine::engine::{Engine, EngineEvent, PermitDecision};
use loadmaster_stdx::ErrorChain;
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::engine_loop::Command;
use crate::metrics::Metrics;

/// The result of a service. It is restarted in both cases.
pub type ServiceResult = Result<(), Box<dyn Error + Send + Sync>>;

type ServiceFuture = Pin<Box<dyn Future<Output = ServiceResult> + Send>>;

/// A custom task with a name.
#[derive(Clone)]
pub struct Service {
    name: &'static str,
    start: Arc<dyn Fn(ServiceHandle) -> ServiceFuture + Send + Sync>,
}

impl Service {
    /// A service that runs `start`, and runs it again when it has ended.
    pub fn new<F, R>(name: &'static str, start: F) -> Service
    where
        F: Fn(ServiceHandle) -> R + Send + Sync + 'static,
        R: Future<Output = ServiceResult> + Send + 'static,
    {
        Service { name, start: Arc::new(move |handle| Box::pin(start(handle)) as ServiceFuture) }
    }

    /// Its name in logs and metrics.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// The scheduler has stopped, and the service should stop as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scheduler has ended")]
pub struct SchedulerEnded;

/// A value cannot be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The value cannot be serialized.
    #[error("serializing the value as JSON")]
    Value(#[source] serde_json::Error),
    /// The scheduler has stopped.
    #[error(transparent)]
    Ended(#[from] SchedulerEnded),
}

/// A pod that waits at Permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPod {
    /// `metadata.uid`.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The node that is reserved for it.
    pub node: String,
    /// Plugins that it waits for.
    pub plugins: Vec<String>,
}

/// An Event about any object, even one that has been deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectEvent {
    /// The apiVersion of the object, such as `v1` or `example.com/v1`.
    pub api_version: String,
    /// The kind of the object, such as `Node`.
    pub kind: String,
    /// The object's namespace; empty for cluster-scoped kinds: the Event is then in `default`.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's uid, by which `kubectl describe` finds its Events; may be empty.
    pub uid: String,
    /// Whether the type of the Event is `Warning` instead of `Normal`.
    pub is_warning: bool,
    /// The reason, one CamelCase word such as `LoadUnknown`.
    pub reason: String,
    /// The action, one CamelCase word such as `Polling`.
    pub action: String,
    /// The message for users. Truncated to 1,024 bytes, the limit of the API server.
    pub note: String,
}

/// An Event that the API server would reject.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordEventError {
    /// A field must not be empty.
    #[error("an Event without {field}")]
    Empty {
        /// The name of the field.
        field: &'static str,
    },
    /// Reason and action have at most 128 bytes.
    #[error("the {field} of an Event has {len} bytes, more than {REASON_LEN_MAX}")]
    TooLong {
        /// The name of the field.
        field: &'static str,
        /// Its length in bytes.
        len: usize,
    },
}

/// Limits of the API server, in bytes.
const REASON_LEN_MAX: usize = 128;
const NOTE_LEN_MAX: usize = 1024;

/// Passes an Event to the event recorder, without waiting.
pub(super) type EventSink = Arc<dyn Fn(NewEvent) + Send + Sync>;

/// How many requests of one service may wait for the engine; sending the next one waits.
const N_PENDING_REQUESTS_MAX: usize = 64;

/// The interface of a service to the scheduler.
#[derive(Clone)]
pub struct ServiceHandle {
    commands: UnboundedSender<Command>,
    free_requests: Arc<Semaphore>,
    leading: watch::Receiver<bool>,
    event_sink: EventSink,
    /// The schedulerName that Events name as their reporting controller.
    controller: Str,
}

impl ServiceHandle {
    /// Publishes a value to the plugins of this name that registered for it (`ExtensionPoints::published_value_slot`). It replaces the
    /// previous value and expires after `ttl`, so that a service that has stopped leaves no outdated data behind.
    pub async fn publish(
        &self,
        plugin: &str,
        value: &impl Serialize,
        ttl: Duration,
    ) -> Result<(), PublishError> {
        let value = serde_json::to_value(value).map_err(PublishError::Value)?;
        self.send(EngineEvent::Published { plugin: plugin.into(), value, ttl }).await?;
        Ok(())
    }

    /// Allows a pod that waits at Permit for the plugin.
    pub async fn allow(&self, plugin: &str, uid: &str) -> Result<(), SchedulerEnded> {
        self.send(permit_event(plugin, uid, PermitDecision::Allow)).await
    }

    /// Rejects a pod that waits at Permit, on behalf of the plugin.
    pub async fn reject(&self, plugin: &str, uid: &str, why: &str) -> Result<(), SchedulerEnded> {
        self.send(permit_event(plugin, uid, PermitDecision::Reject(why.to_owned()))).await
    }

    /// Moves pods from unschedulablePods and backoffQ to activeQ.
    pub async fn activate(&self, uids: &[&str]) -> Result<(), SchedulerEnded> {
        self.send(EngineEvent::Activate(uids.iter().map(|uid| (*uid).into()).collect())).await
    }

    /// Records an Event, together with those of the scheduler: rate-limited by `clientConnection`, repetitions as an Event series. It does
    /// not wait; Events are dropped if too many are queued or the API server is unavailable for long. The service of every replica
    /// records its own: check [`ServiceHandle::is_leading`] if one is enough.
    ///
    /// # Errors
    ///
    /// If the API server would reject it: kind, name, reason or action is empty, or reason or action is too long.
    pub fn record_event(&self, event: ObjectEvent) -> Result<(), RecordEventError> {
        let limited = [("reason", &event.reason), ("action", &event.action)];
        let required = [("a kind", &event.kind), ("a name", &event.name)];
        if let Some((field, _)) = required.iter().chain(&limited).find(|(_, text)| text.is_empty())
        {
            return Err(RecordEventError::Empty { field });
        }
        if let Some((field, text)) = limited.iter().find(|(_, text)| text.len() > REASON_LEN_MAX) {
            return Err(RecordEventError::TooLong { field, len: text.len() });
        }
        let end = event.note.floor_char_boundary(NOTE_LEN_MAX);
        (self.event_sink)(NewEvent {
            regarding: ObjectReference {
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

    /// The pods that wait at Permit, sorted by uid.
    pub async fn waiting_pods(&self) -> Result<Vec<WaitingPod>, SchedulerEnded> {
        let (result_sender, result) = oneshot::channel();
        let query = move |engine: &mut Engine| {
            let _ = result_sender.send(waiting_pods_of_engine(engine));
        };
        self.commands.send(Command::Query(Box::new(query))).map_err(|_| SchedulerEnded)?;
        result.await.map_err(|_| SchedulerEnded)
    }

    /// Whether this replica is the leader.
    pub fn is_leading(&self) -> bool {
        *self.leading.borrow()
    }

    /// Waits until this replica is the leader.
    pub async fn wait_until_leading(&mut self) -> Result<(), SchedulerEnded> {
        self.leading.wait_for(|is_leading| *is_leading).await.map_err(|_| SchedulerEnded)?;
        Ok(())
    }

    async fn send(&self, event: EngineEvent) -> Result<(), SchedulerEnded> {
        let permit =
            self.free_requests.clone().acquire_owned().await.map_err(|_| SchedulerEnded)?;
        let request = ServiceRequest { event, _permit: permit };
        self.commands.send(Command::ServiceRequest(Box::new(request))).map_err(|_| SchedulerEnded)
    }
}

/// A request of a service to the engine.
pub(super) struct ServiceRequest {
    pub event: EngineEvent,
    /// Released when the engine has handled the request.
    _permit: OwnedSemaphorePermit,
}

fn permit_event(plugin: &str, uid: &str, verdict: PermitDecision) -> EngineEvent {
    EngineEvent::Permit { uid: uid.into(), plugin: Some(plugin.into()), decision: verdict }
}

fn waiting_pods_of_engine(engine: &Engine) -> Vec<WaitingPod> {
    let waiting = engine.world().waiting_pods().iter().map(|waiting| WaitingPod {
        uid: waiting.pod.uid.to_string(),
        namespace: waiting.pod.template.namespace.to_string(),
        name: waiting.pod.name.to_string(),
        node: waiting.pod.node_name.to_string(),
        plugins: waiting.plugins.iter().map(|plugin| (*plugin).to_owned()).collect(),
    });
    waiting.collect()
}

/// Delays before a restart of a service: doubled each time, and reset after a run of at least `STABLE_RUN_MIN`.
const RESTART_DELAY_MIN: Duration = Duration::from_secs(1);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(60);
const STABLE_RUN_MIN: Duration = Duration::from_secs(600);

/// Starts the services. Dropping the returned set stops them.
pub(super) fn start(
    services: &[Service],
    commands: &UnboundedSender<Command>,
    leading: &watch::Receiver<bool>,
    (event_sink, controller): (EventSink, &Str),
    metrics: &Arc<Metrics>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for service in services {
        let handle = ServiceHandle {
            commands: commands.clone(),
            free_requests: Arc::new(Semaphore::new(N_PENDING_REQUESTS_MAX)),
            leading: leading.clone(),
            event_sink: event_sink.clone(),
            controller: controller.clone(),
        };
        tasks.spawn(run_with_restarts(service.clone(), handle, metrics.clone()));
    }
    tasks
}

async fn run_with_restarts(service: Service, handle: ServiceHandle, metrics: Arc<Metrics>) {
    let mut delay = RESTART_DELAY_MIN;
    loop {
        let began = Instant::now();
        // In a separate task, so that a panic ends only the run; it is aborted together with this task.
        let mut run = JoinSet::new();
        let (start, handle) = (service.start.clone(), handle.clone());
        run.spawn(async move { start(handle).await });
        let why = match run.join_next().await {
            Some(Ok(Ok(()))) | None => "it returned".to_owned(),
            Some(Ok(Err(error))) => ErrorChain(&*error).to_string(),
            Some(Err(error)) => error.to_string(),
        };
        if began.elapsed() >= STABLE_RUN_MIN {
            delay = RESTART_DELAY_MIN;
        }
        let name = service.name;
        tracing::error!(service = name, delay = ?delay, "A service ended and will be restarted: {why}");
        metrics.loadmaster.service_ended(name);
        sleep(delay).await;
        delay = (2 * delay).min(RESTART_DELAY_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::mpsc;

    use super::*;
    use crate::metrics::MetricsSettings;

    fn handle() -> (ServiceHandle, mpsc::UnboundedReceiver<Command>, watch::Sender<bool>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let (lead, leading) = watch::channel(false);
        let free_requests = Arc::new(Semaphore::new(N_PENDING_REQUESTS_MAX));
        let (event_sink, controller): (EventSink, _) = (Arc::new(|_| {}), "mine".into());
        (ServiceHandle { commands, free_requests, leading, event_sink, controller }, receiver, lead)
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_ends_fails_or_panics_is_restarted() {
        let (handle, _receiver, _lead) = handle();
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
        let metrics = Arc::new(Metrics::new(&MetricsSettings::default()).unwrap());
        let task = tokio::spawn(run_with_restarts(service, handle, metrics.clone()));
        let began = Instant::now();
        while n_runs.load(Ordering::Relaxed) < 4 {
            sleep(Duration::from_millis(100)).await;
        }
        // Delays of 1, 2 and 4 seconds.
        assert_eq!(began.elapsed().as_secs(), 7);
        let text = metrics.text();
        assert!(text.contains(r#"loadmaster_service_ends_total{service="flaky"} 3"#), "{text}");
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_engine_events_and_their_number_is_limited() {
        let (handle, mut receiver, lead) = handle();
        handle.publish("Load", &[1, 2], Duration::from_secs(30)).await.unwrap();
        let Some(Command::ServiceRequest(request)) = receiver.recv().await else {
            panic!("no request")
        };
        let EngineEvent::Published { plugin, value, .. } = &request.event else {
            panic!("{:?}", request.event)
        };
        assert_eq!((&**plugin, value), ("Load", &serde_json::json!([1, 2])));
        drop(request);
        for _ in 0..N_PENDING_REQUESTS_MAX {
            handle.allow("Gang", "u").await.unwrap();
        }
        let full = tokio::time::timeout(Duration::from_secs(1), handle.allow("Gang", "u")).await;
        assert!(full.is_err(), "the queue is full");
        drop(receiver.recv().await);
        assert_eq!(handle.reject("Gang", "u", "why").await, Ok(()));
        let mut leader = handle.clone();
        assert!(!leader.is_leading());
        lead.send_replace(true);
        assert_eq!(leader.wait_until_leading().await, Ok(()));
        drop(receiver);
        assert_eq!(handle.waiting_pods().await, Err(SchedulerEnded));
    }

    #[tokio::test]
    async fn a_service_records_events_about_any_object() {
        let (event_sender, mut events) = mpsc::unbounded_channel();
        let (handle, _receiver, _lead) = handle();
        let event_sink: EventSink = Arc::new(move |event| event_sender.send(event).unwrap());
        let handle = ServiceHandle { event_sink, ..handle };
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
        assert_eq!(handle.record_event(event.clone()), Ok(()));
        let recorded = events.recv().await.unwrap();
        assert_eq!((&*recorded.regarding.kind, &*recorded.regarding.name), ("Node", "a"));
        assert_eq!((&*recorded.reason, &*recorded.controller), ("LoadUnknown", "mine"));
        assert_eq!((recorded.is_warning, recorded.note.len()), (true, 1024));
        let check = |change: &dyn Fn(&mut ObjectEvent), want: &str| {
            let mut event = event.clone();
            change(&mut event);
            assert_eq!(handle.record_event(event).unwrap_err().to_string(), want);
        };
        check(&|event| event.kind.clear(), "an Event without a kind");
        check(&|event| event.name.clear(), "an Event without a name");
        check(&|event| event.reason.clear(), "an Event without reason");
        check(&|event| event.action.clear(), "an Event without action");
        let long = "the reason of an Event has 129 bytes, more than 128";
        check(&|event| event.reason = "r".repeat(129), long);
        assert!(events.try_recv().is_err(), "nothing else was written");
    }
}
