//! Services: custom async tasks next to the engine, which may do what plugins may not: use the network, wait, read a clock.
//!
//! Every service runs on every replica from start to end, so that the values it publishes are present when this replica becomes leader;
//! [`ServiceHandle::wait_until_leading`] waits for that. A service that ends or panics is logged, counted and restarted after a delay. Its
//! requests to the engine are [`EngineEvent`]s, like all other input. Its log lines are those of `tracing`, and show its name.

mod lifecycle;
mod without_scheduler;

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_client::event_recorder::{NewEvent, ObjectReference};
use loadmaster_client::kube;
use loadmaster_engine::engine::{Engine, EngineEvent, PermitDecision};
use loadmaster_framework::plugin_metrics::{
    MetricDef, MetricError, PluginCounter, PluginGauge, PluginHistogram,
};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::engine_loop::Command;
use crate::metrics::Metrics;
pub(super) use lifecycle::RunningServices;
pub use without_scheduler::ServiceHandleControl;

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
    stopping: watch::Receiver<bool>,
    /// Whether the service has asked for the end of the scheduler, and therefore gets time to end itself.
    awaits_stop: Arc<AtomicBool>,
    client: kube::Client,
    metrics: Arc<Metrics>,
    event_sink: EventSink,
    /// The schedulerName that Events name as their reporting controller.
    controller: Str,
}

/// What the handles of all services share.
#[derive(Clone)]
pub(super) struct ServiceContext {
    pub commands: UnboundedSender<Command>,
    /// Whether this replica is the leader.
    pub leading: watch::Receiver<bool>,
    pub client: kube::Client,
    pub metrics: Arc<Metrics>,
    pub event_sink: EventSink,
    /// The schedulerName that Events name as their reporting controller.
    pub controller: Str,
}

impl ServiceContext {
    fn handle(&self, stopping: &watch::Receiver<bool>) -> ServiceHandle {
        ServiceHandle {
            commands: self.commands.clone(),
            free_requests: Arc::new(Semaphore::new(N_PENDING_REQUESTS_MAX)),
            leading: self.leading.clone(),
            stopping: stopping.clone(),
            awaits_stop: Arc::default(),
            client: self.client.clone(),
            metrics: self.metrics.clone(),
            event_sink: self.event_sink.clone(),
            controller: self.controller.clone(),
        }
    }
}

impl ServiceHandle {
    /// A kube-rs client of the API server: get, list, watch, create, update, patch, patch a subresource and delete, with types
    /// (`kube::Api<Pod>`) or without (`kube::api::DynamicObject`). It uses the scheduler's own kubeconfig, credentials and user agent,
    /// connections of its own, and the rate of `clientConnection` (`qps`, `burst`), which all services share and which the scheduler's
    /// other requests do not count against.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// A counter that `/metrics` shows. If it has been declared before, as by the previous run of the service, the same counter.
    ///
    /// # Errors
    ///
    /// If the name or a label is invalid, or a plugin or the scheduler has another metric of that name.
    pub fn counter<const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
    ) -> Result<PluginCounter<N>, MetricError> {
        let (_, metric) = MetricDef { name, help, labels, constant: None }.counter()?;
        let metric = self.metrics.get_or_register_service_metric(metric)?;
        metric.as_counter().ok_or_else(|| MetricError::new(name, "it is not a counter"))
    }

    /// A gauge that `/metrics` shows; see [`ServiceHandle::counter`].
    ///
    /// # Errors
    ///
    /// As [`ServiceHandle::counter`].
    pub fn gauge<const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
    ) -> Result<PluginGauge<N>, MetricError> {
        let (_, metric) = MetricDef { name, help, labels, constant: None }.gauge()?;
        let metric = self.metrics.get_or_register_service_metric(metric)?;
        metric.as_gauge().ok_or_else(|| MetricError::new(name, "it is not a gauge"))
    }

    /// A histogram that `/metrics` shows, with these upper bounds of its buckets; see [`ServiceHandle::counter`].
    ///
    /// # Errors
    ///
    /// As [`ServiceHandle::counter`], or if the bounds are not in ascending order.
    pub fn histogram<const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        buckets: &[f64],
    ) -> Result<PluginHistogram<N>, MetricError> {
        let (_, metric) = MetricDef { name, help, labels, constant: None }.histogram(buckets)?;
        let metric = self.metrics.get_or_register_service_metric(metric)?;
        metric.as_histogram().ok_or_else(|| MetricError::new(name, "it is not a histogram"))
    }

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

    /// Whether this replica is the leader, as a channel that also reports changes. A leader that loses its lease ends, as kube-scheduler
    /// does, and its services are aborted at once; one that is stopped reports `false` first, and releases its lease when its services
    /// have ended.
    pub fn leadership(&self) -> watch::Receiver<bool> {
        self.leading.clone()
    }

    /// Resolves when the scheduler is being stopped. A service that has called this has five seconds to finish its work and return; it is
    /// then aborted. Services that have not are aborted at once.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        self.awaits_stop.store(true, Ordering::Relaxed);
        let mut stopping = self.stopping.clone();
        async move {
            // Closed: the scheduler has stopped.
            let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
        }
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::metrics::MetricsSettings;

    pub(super) fn context()
    -> (ServiceContext, mpsc::UnboundedReceiver<Command>, watch::Sender<bool>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let (lead, leading) = watch::channel(false);
        let unreachable = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<String>, _>(std::io::Error::other("no API server"))
        });
        let context = ServiceContext {
            commands,
            leading,
            client: kube::Client::new(unreachable, "default"),
            metrics: Arc::new(Metrics::new(&MetricsSettings::default()).unwrap()),
            event_sink: Arc::new(|_| {}),
            controller: "mine".into(),
        };
        (context, receiver, lead)
    }

    fn handle() -> (ServiceHandle, mpsc::UnboundedReceiver<Command>, watch::Sender<bool>) {
        let (context, receiver, lead) = context();
        (context.handle(&watch::channel(false).1), receiver, lead)
    }

    #[tokio::test]
    async fn a_metric_is_declared_once_and_found_again() {
        let (handle, _receiver, _lead) = handle();
        for _ in 0..2 {
            let polls = handle.counter("load_polls_total", "Number of polls.", ["result"]);
            polls.unwrap().inc(["ok"]);
        }
        handle.gauge("load_age_seconds", "Age.", []).unwrap().set([], 1.5);
        handle.histogram("load_poll_seconds", "Duration.", [], &[1.0]).unwrap().observe([], 0.5);
        let text = handle.metrics.text();
        for line in [
            "# HELP load_polls_total Number of polls.",
            r#"load_polls_total{result="ok"} 2"#,
            "load_age_seconds 1.5",
            r#"load_poll_seconds_bucket{le="1"} 1"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        let other = handle.gauge("load_polls_total", "Number of polls.", ["result"]).unwrap_err();
        assert!(other.to_string().contains("declared differently"), "{other}");
        let taken = handle.counter("scheduler_pending_pods", "Help.", []).unwrap_err();
        assert!(taken.to_string().contains("reserved for kube-scheduler"), "{taken}");
        handle.metrics.reset();
        assert!(!handle.metrics.text().contains("load_polls_total{"));
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
