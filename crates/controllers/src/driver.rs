//! Connects a [`ControllerRunner`] to an API server: watches feed it events, its requests are sent, and a timer calls it.

mod discovery;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use loadmaster_api::{ExtraFieldsByKind, proto};
use loadmaster_client as client;
use loadmaster_client::api_client::ConnectionLimits;
use loadmaster_client::flowcontrol::TokenBucket;
use loadmaster_client::reflector::{
    self, ObjectFormat, ReflectorOptions, Reflectors, start_reflectors,
};
use loadmaster_client::status::decode_status;
use loadmaster_client::{ApiClient, Cluster};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::controller::Controller;
use crate::kind::{Key, Kind, Object};
use crate::request::{ControllerRequest, ControllerResponse};
use crate::runner::{ControllerEvent, ControllerRunner, OutgoingRequest, RunnerStats};

/// Options of [`run_controllers`].
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// Maximum number of requests in flight.
    pub n_calls_max: usize,
    /// Limits the rate of requests, without watches.
    pub rate_limit: TokenBucket,
    /// Seed of the random number generator for backoff jitter.
    pub seed: u64,
    /// Receives the runner's counts whenever they may have changed.
    pub stats: Option<watch::Sender<RunnerStats>>,
}

impl Default for DriverOptions {
    /// 64 requests in flight, at any rate.
    fn default() -> DriverOptions {
        let rate_limit = TokenBucket::new(-1.0, 1);
        DriverOptions { n_calls_max: 64, rate_limit, seed: 0, stats: None }
    }
}

/// Capacity of the channel from the watches.
const EVENT_CHANNEL_CAPACITY: usize = 4096;

/// Maximum number of events that are handled before requests are sent again.
const BATCH: usize = 1024;

/// How long shutdown waits for the requests in flight.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs controllers on a cluster until `stop` completes. Must be called within a tokio runtime.
pub async fn run_controllers(
    cluster: &Cluster,
    controllers: Vec<Box<dyn Controller>>,
    mut options: DriverOptions,
    stop: impl Future<Output = ()>,
) {
    let limits = ConnectionLimits { http2_connections_max: 4, http1_connections_max: 64 };
    let mut runner = ControllerRunner::new(controllers);
    let (events_tx, mut events) = mpsc::channel(EVENT_CHANNEL_CAPACITY);
    let mut watches = Watches {
        // Over HTTP/1.1 each watch has a connection, and there are as many as kinds.
        api_client: cluster
            .client("watch", ConnectionLimits { http1_connections_max: 1024, ..limits }),
        events_tx,
        seed: options.seed,
        reflectors: BTreeMap::new(),
        kinds: BTreeMap::new(),
        definitions: Arc::new(Notify::new()),
    };
    watches.set_watched_kinds(&runner.kinds());
    let api_client = cluster.client("write", limits);
    let (found, mut served) = mpsc::channel(1);
    let mut finding = JoinSet::new();
    if runner.watches_all_kinds() {
        finding.spawn(discovery::poll_served_kinds(
            api_client.clone(),
            watches.definitions.clone(),
            found,
        ));
    }
    let mut stop = std::pin::pin!(stop);
    let mut calls = JoinSet::new();
    let mut batch = Vec::new();
    let started = Instant::now();
    loop {
        let now = Timestamp::now();
        let room = options.n_calls_max.saturating_sub(calls.len());
        for call in runner.run(room, now) {
            let wait = options.rate_limit.reserve(started.elapsed());
            calls.spawn(send_request(api_client.clone(), call, wait));
        }
        if let Some(stats) = &options.stats {
            stats.send_replace(runner.stats());
        }
        let has_room = calls.len() < options.n_calls_max;
        tokio::select! {
            () = &mut stop => break,
            n = events.recv_many(&mut batch, BATCH) => {
                let now = Timestamp::now();
                batch.drain(..n).filter_map(|change| watches.to_controller_event(change)).for_each(|it| runner.handle_event(it, now));
            }
            Some(served) = served.recv() => {
                runner.handle_event(ControllerEvent::Served(served), Timestamp::now());
                watches.set_watched_kinds(&runner.kinds());
            }
            Some(ended) = calls.join_next() => handle_response(&mut runner, ended),
            () = sleep_until(runner.next_wakeup()), if has_room => {}
        }
    }
    let rest = async { while calls.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, rest).await.is_err() {
        tracing::warn!("shutdown timed out before all requests completed");
    }
}

/// The watches of all watched kinds; kinds may be added and removed.
struct Watches {
    api_client: ApiClient,
    events_tx: mpsc::Sender<reflector::ReflectorEvent>,
    seed: u64,
    reflectors: BTreeMap<Kind, Reflectors>,
    /// Kinds by the client's kind. Each is leaked once; there are few.
    kinds: BTreeMap<client::Kind, Kind>,
    /// Notified when the served kinds may have changed.
    definitions: Arc<Notify>,
}

/// Resources whose objects define kinds.
const DEFINITIONS: [(&str, &str); 2] = [
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "apiservices"),
];

impl Watches {
    /// Starts and stops watches so that exactly these kinds are watched.
    fn set_watched_kinds(&mut self, kinds: &BTreeSet<Kind>) {
        self.reflectors.retain(|kind, _| kinds.contains(kind));
        self.kinds.retain(|_, kind| kinds.contains(kind));
        for kind in kinds {
            if self.reflectors.contains_key(kind) {
                continue;
            }
            let info = kind.info();
            let name = client::Kind::dynamic(info.group, info.version, info.resource, true);
            self.kinds.insert(name, *kind);
            let what = ReflectorOptions {
                kinds: vec![name],
                use_watch_list: true,
                // Only JSON has all fields.
                format: if let Kind::Other(_) = kind {
                    ObjectFormat::Metadata
                } else {
                    ObjectFormat::Json
                },
                keep_raw: false,
                needs: ExtraFieldsByKind::default(),
                seed: self.seed,
            };
            self.reflectors
                .insert(*kind, start_reflectors(&self.api_client, &what, &self.events_tx));
        }
    }

    fn to_controller_event(&self, change: reflector::ReflectorEvent) -> Option<ControllerEvent> {
        match change {
            reflector::ReflectorEvent::Upsert {
                kind,
                object: proto::Object::Other(object),
                ..
            } => {
                let kind = *self.kinds.get(&kind)?;
                self.notify_if_definition(kind);
                let name = object.metadata.name.clone();
                match Object::from_json(kind, object.value) {
                    Ok(object) => Some(ControllerEvent::Upsert(object)),
                    Err(error) => {
                        tracing::warn!(?kind, %name, %error, "failed to decode an object");
                        None
                    }
                }
            }
            reflector::ReflectorEvent::Delete { kind, namespace, name, .. } => {
                let kind = *self.kinds.get(&kind)?;
                self.notify_if_definition(kind);
                Some(ControllerEvent::Delete(Key::new(kind, &*namespace, name)))
            }
            reflector::ReflectorEvent::Synced(kind) => {
                Some(ControllerEvent::Synced(*self.kinds.get(&kind)?))
            }
            reflector::ReflectorEvent::Unavailable { kind, why } => {
                tracing::warn!(
                    resource = kind.resource().resource,
                    ?why,
                    "resource cannot be listed or watched"
                );
                Some(ControllerEvent::Unavailable(*self.kinds.get(&kind)?))
            }
            reflector::ReflectorEvent::Available(kind) => {
                tracing::info!(
                    resource = kind.resource().resource,
                    "resource can be listed and watched again"
                );
                None
            }
            _ => None,
        }
    }

    fn notify_if_definition(&self, kind: Kind) {
        let info = kind.info();
        if DEFINITIONS.contains(&(info.group, info.resource)) {
            self.definitions.notify_one();
        }
    }
}

async fn send_request(
    api_client: ApiClient,
    call: OutgoingRequest,
    wait: Duration,
) -> (u64, ControllerResponse) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    (call.id, call_api_server(&api_client, &call.request).await)
}

async fn call_api_server(
    api_client: &ApiClient,
    request: &ControllerRequest,
) -> ControllerResponse {
    let encoded = match request.encode() {
        Ok(encoded) => encoded,
        Err(error) => {
            return ControllerResponse::NoResponse {
                message: format!("encoding the request as JSON: {error}"),
            };
        }
    };
    let sent = client::Request {
        content_type: encoded.content_type,
        ..client::Request::with_body(encoded.method, encoded.path, encoded.body)
    };
    match api_client.call(&sent).await {
        Ok(reply) if reply.is_success() => request.parse_success_body(&reply.body),
        Ok(reply) => {
            let proto::Status { reason, message, .. } = decode_status(reply.status, &reply.body);
            ControllerResponse::Rejected {
                status: reply.status,
                reason,
                message,
                retry_after: reply.retry_after,
            }
        }
        Err(error) => ControllerResponse::NoResponse { message: error.to_string() },
    }
}

fn handle_response(
    runner: &mut ControllerRunner,
    ended: Result<(u64, ControllerResponse), tokio::task::JoinError>,
) {
    match ended {
        Ok((id, response)) => runner.handle_response(id, &response, Timestamp::now()),
        Err(error) => tracing::error!(%error, "request task failed without a response"),
    }
}

/// Never completes without a time.
async fn sleep_until(moment: Option<Timestamp>) {
    match moment {
        Some(at) if at < Timestamp::MAX => {
            let left = Timestamp::now().duration_until(at).max(SignedDuration::ZERO);
            tokio::time::sleep(left.unsigned_abs()).await;
        }
        _ => std::future::pending().await,
    }
}
