//! The tasks that list and watch as a [`ReflectorState`] decides, one per kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use loadmaster_api::ExtraFieldsByKind;
use loadmaster_api::proto::Status;
use loadmaster_stdx::Rng;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::decode::{DecodeOptions, ListPage, WatchDecoder};
use super::{
    ListWatchError, ReflectorAction, ReflectorEvent, ReflectorInput, ReflectorState, WatchEnd,
};
use crate::api_client::{
    ApiClient, JSON_MEDIA_TYPE, PROTOBUF_MEDIA_TYPES, Request, ResponseStream, SendError,
};
use crate::kinds::Kind;
use crate::status::{decode_status, percent_encode};

/// Timeouts for the head of a watch response, and for a page.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const PAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Size limit of a list: one of all pods may be large.
const LIST_BYTES_MAX: usize = 4 << 30;

/// Size limit of an error response.
const ERROR_BYTES_MAX: usize = 1 << 20;

/// A watch that the server does not end after `timeoutSeconds` is ended by the client, so much later.
const GRACE: Duration = Duration::from_secs(30);

/// The format in which objects are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectFormat {
    /// JSON, with all fields.
    Json,
    /// Protobuf if the server supports it; JSON for kinds that are not among [`Kind::ALL`].
    Protobuf,
    /// `PartialObjectMetadata` in JSON. Only for kinds that are not among [`Kind::ALL`].
    Metadata,
}

impl ObjectFormat {
    /// The Accept headers of a list and of a watch.
    fn accept(self, kind: Kind) -> (&'static str, &'static str) {
        match (self, kind) {
            // Custom resources are not served as protobuf.
            (ObjectFormat::Json, _) | (ObjectFormat::Protobuf, Kind::Dynamic(_)) => {
                (JSON_MEDIA_TYPE, JSON_MEDIA_TYPE)
            }
            (ObjectFormat::Protobuf, _) => (PROTOBUF_MEDIA_TYPES, PROTOBUF_STREAM),
            (ObjectFormat::Metadata, _) => (METADATA_LIST, METADATA),
        }
    }
}

const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// What is listed and watched, and how.
#[derive(Clone, Debug)]
pub struct ReflectorOptions {
    /// The kinds.
    pub kinds: Vec<Kind>,
    /// Request lists as streams first (WatchList), as client-go does since 1.35.
    pub use_watch_list: bool,
    /// The format of the objects.
    pub format: ObjectFormat,
    /// Whether [`ReflectorEvent::Upsert`] has the bytes of the object: they are copied once.
    pub keep_raw: bool,
    /// Additional parts of pods and nodes to decode ([`loadmaster_api::ExtraFields`]). Whole objects require JSON.
    pub needs: ExtraFieldsByKind,
    /// Seed of the random backoff, which should differ between replicas.
    pub seed: u64,
}

/// Counters of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReflectorStats {
    /// List requests (pages).
    pub n_pages: u64,
    /// Watch requests.
    pub n_watches: u64,
    /// Watch events received, bookmarks included.
    pub n_events: u64,
    /// Lists and watches that failed.
    pub n_failures: u64,
    /// Number of objects.
    pub n_objects: u64,
}

#[derive(Default)]
struct Counters {
    n_pages: AtomicU64,
    n_watches: AtomicU64,
    n_events: AtomicU64,
    n_failures: AtomicU64,
    n_objects: AtomicU64,
}

/// Running reflectors. Dropping it stops them.
pub struct Reflectors {
    _tasks: JoinSet<()>,
    counters: Vec<(Kind, Arc<Counters>)>,
}

impl Reflectors {
    /// The counters of each kind.
    pub fn stats(&self) -> impl Iterator<Item = (Kind, ReflectorStats)> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.counters.iter().map(move |(kind, counters)| {
            let counts = ReflectorStats {
                n_pages: read(&counters.n_pages),
                n_watches: read(&counters.n_watches),
                n_events: read(&counters.n_events),
                n_failures: read(&counters.n_failures),
                n_objects: read(&counters.n_objects),
            };
            (*kind, counts)
        })
    }
}

/// Starts a reflector for each kind. Must be called within a tokio runtime. When `out` is full, reflectors stop reading.
pub fn start_reflectors(
    client: &ApiClient,
    options: &ReflectorOptions,
    out: &mpsc::Sender<ReflectorEvent>,
) -> Reflectors {
    let rng = Rng::new(options.seed);
    let mut tasks = JoinSet::new();
    let mut all_counters = Vec::new();
    for kind in &options.kinds {
        let counters = Arc::new(Counters::default());
        all_counters.push((*kind, counters.clone()));
        let state = ReflectorState::new(
            *kind,
            options.use_watch_list,
            &rng.split(kind.resource().resource),
        );
        let (accept, accept_stream) = options.format.accept(*kind);
        let task = ReflectorTask {
            kind: *kind,
            client: client.clone(),
            accept,
            decode_options: DecodeOptions { raw: options.keep_raw, needs: options.needs },
            accept_stream,
            state,
            started: Instant::now(),
            counters,
            out: out.clone(),
            events: Vec::new(),
        };
        tasks.spawn(async move {
            // It ends only when the receiver is closed.
            let _ = task.run().await;
        });
    }
    Reflectors { _tasks: tasks, counters: all_counters }
}

/// A watch in protobuf has its own media type.
const PROTOBUF_STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch,application/json";

struct ReflectorTask {
    kind: Kind,
    client: ApiClient,
    accept: &'static str,
    accept_stream: &'static str,
    decode_options: DecodeOptions,
    state: ReflectorState,
    started: Instant,
    counters: Arc<Counters>,
    out: mpsc::Sender<ReflectorEvent>,
    events: Vec<ReflectorEvent>,
}

/// The receiver of events was closed.
struct ReceiverClosed;

impl ReflectorTask {
    async fn run(mut self) -> Result<(), ReceiverClosed> {
        loop {
            match self.state.next_action() {
                ReflectorAction::Backoff(pause) => {
                    tokio::time::sleep(pause).await;
                    self.handle_input(ReflectorInput::BackoffElapsed).await?;
                }
                ReflectorAction::List { resource_version, continue_token, limit } => {
                    self.counters.n_pages.fetch_add(1, Ordering::Relaxed);
                    let path = list_path(self.kind, &resource_version, &continue_token, limit);
                    if let Err(failure) = self.list(path).await? {
                        self.record_failure(&failure, "list");
                        self.handle_input(ReflectorInput::ListFailed(failure)).await?;
                    }
                }
                ReflectorAction::Watch { resource_version, initial_events, timeout_seconds } => {
                    self.counters.n_watches.fetch_add(1, Ordering::Relaxed);
                    let path =
                        watch_path(self.kind, &resource_version, initial_events, timeout_seconds);
                    let limit = Duration::from_secs(timeout_seconds) + GRACE;
                    let opened = Instant::now();
                    let failure = self.watch(path, opened + limit).await?.err();
                    if let Some(failure) = &failure {
                        self.record_failure(failure, "watch");
                    }
                    let ended = WatchEnd { open_for: opened.elapsed(), failure };
                    self.handle_input(ReflectorInput::WatchEnded(ended)).await?;
                }
            }
        }
    }

    async fn list(&mut self, path: String) -> Result<Result<(), ListWatchError>, ReceiverClosed> {
        let (accept, timeout, response_bytes_max) = (self.accept, PAGE_TIMEOUT, LIST_BYTES_MAX);
        let request = Request { accept, timeout, response_bytes_max, ..Request::get(path) };
        let reply = match self.client.call(&request).await {
            Ok(reply) => reply,
            Err(error) => return Ok(Err(ListWatchError::Connection(error.to_string()))),
        };
        if !reply.is_success() {
            let status = decode_status(reply.status, &reply.body);
            return Ok(Err(error_status(status, reply.retry_after)));
        }
        let page = match ListPage::parse(reply.is_protobuf, &reply.body) {
            Ok(page) => page,
            Err(text) => return Ok(Err(ListWatchError::Decode(text))),
        };
        for item in page.items(self.kind, self.decode_options) {
            match item {
                Ok(item) => self.handle_input(ReflectorInput::ListItem(item)).await?,
                Err(text) => return Ok(Err(ListWatchError::Decode(text))),
            };
        }
        let resource_version = page.resource_version().to_owned();
        let continue_token = page.continue_token().to_owned();
        self.handle_input(ReflectorInput::PageEnd { resource_version, continue_token }).await?;
        Ok(Ok(()))
    }

    async fn watch(
        &mut self,
        path: String,
        deadline: Instant,
    ) -> Result<Result<(), ListWatchError>, ReceiverClosed> {
        let (accept, timeout) = (self.accept_stream, HEAD_TIMEOUT);
        let request = Request { accept, timeout, ..Request::get(path) };
        let connection_lost =
            |error: SendError| Ok(Err(ListWatchError::Connection(error.to_string())));
        let mut stream = match self.client.open_stream(&request).await {
            Ok(stream) if stream.status == 200 => stream,
            Ok(stream) => return Ok(Err(read_error_status(stream).await)),
            Err(error) => return connection_lost(error),
        };
        self.handle_input(ReflectorInput::WatchOpened).await?;
        let mut decoder = WatchDecoder::new(self.kind, stream.is_protobuf, self.decode_options);
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            match stream.next(remaining).await {
                Ok(None) => return Ok(Ok(())),
                Ok(Some(chunk)) => decoder.push(&chunk),
                Err(error) => return connection_lost(error),
            }
            loop {
                match decoder.next() {
                    Ok(Some(event)) => {
                        self.counters.n_events.fetch_add(1, Ordering::Relaxed);
                        if !self.handle_input(ReflectorInput::WatchEvent(event)).await? {
                            return Ok(Ok(()));
                        }
                    }
                    Ok(None) => break,
                    Err(text) => return Ok(Err(ListWatchError::Decode(text))),
                }
            }
        }
    }

    /// Passes an input to the state machine, and sends the resulting events.
    async fn handle_input(&mut self, input: ReflectorInput) -> Result<bool, ReceiverClosed> {
        let keep_open = self.state.handle_input(self.started.elapsed(), input, &mut self.events);
        self.counters.n_objects.store(self.state.n_objects() as u64, Ordering::Relaxed);
        for event in self.events.drain(..) {
            self.out.send(event).await.map_err(|_| ReceiverClosed)?;
        }
        Ok(keep_open)
    }

    fn record_failure(&self, failure: &ListWatchError, verb: &str) {
        self.counters.n_failures.fetch_add(1, Ordering::Relaxed);
        let resource = self.kind.resource().resource;
        match failure {
            ListWatchError::Status(status) => {
                let (code, message) = (status.code, &status.message);
                tracing::debug!(
                    resource,
                    verb,
                    code,
                    message,
                    "Failed to list or watch: the server refused the request"
                );
            }
            ListWatchError::Connection(error) => tracing::debug!(
                resource,
                verb,
                error,
                "Failed to list or watch: the connection was lost"
            ),
            ListWatchError::Decode(error) => {
                tracing::warn!(resource, verb, error, "Failed to decode a list or watch response");
            }
        }
    }
}

async fn read_error_status(stream: ResponseStream) -> ListWatchError {
    let (code, retry_after) = (stream.status, stream.retry_after);
    let collected = tokio::time::timeout(HEAD_TIMEOUT, stream.collect(ERROR_BYTES_MAX)).await;
    let body = collected.ok().and_then(Result::ok).unwrap_or_default();
    error_status(decode_status(code, &body), retry_after)
}

/// The Retry-After header has precedence over the number in the body.
fn error_status(mut status: Status, retry_after: Option<Duration>) -> ListWatchError {
    if let Some(pause) = retry_after {
        status.retry_after_seconds = i32::try_from(pause.as_secs()).unwrap_or(i32::MAX);
    }
    ListWatchError::Status(status)
}

pub(crate) fn list_path(
    kind: Kind,
    resource_version: &str,
    continue_token: &str,
    limit: u32,
) -> String {
    let mut path = path_with_query(kind);
    if limit > 0 {
        path.push_str(&format!("limit={limit}&"));
    }
    if continue_token.is_empty() {
        push_parameter(&mut path, "resourceVersion", resource_version);
    } else {
        push_parameter(&mut path, "continue", continue_token);
    }
    trim_query(path)
}

fn watch_path(
    kind: Kind,
    resource_version: &str,
    initial_events: bool,
    timeout_seconds: u64,
) -> String {
    let mut path = path_with_query(kind);
    path.push_str("watch=true&allowWatchBookmarks=true&");
    if initial_events {
        path.push_str("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&");
    }
    push_parameter(&mut path, "resourceVersion", resource_version);
    path.push_str(&format!("timeoutSeconds={timeout_seconds}"));
    path
}

fn path_with_query(kind: Kind) -> String {
    let resource = kind.resource();
    let mut path = resource.list_path();
    path.push('?');
    push_parameter(&mut path, "fieldSelector", resource.field_selector.unwrap_or_default());
    path
}

/// Appends a query parameter, unless it is empty.
fn push_parameter(path: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        path.push_str(name);
        path.push('=');
        percent_encode(value, path);
        path.push('&');
    }
}

fn trim_query(mut path: String) -> String {
    path.truncate(path.trim_end_matches(['&', '?']).len());
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_retry_after_header_has_precedence() {
        #[track_caller]
        fn check(header_s: Option<u64>, want_s: i32) {
            let status = Status { retry_after_seconds: 3, ..Status::default() };
            let ListWatchError::Status(status) =
                error_status(status, header_s.map(Duration::from_secs))
            else {
                unreachable!()
            };
            assert_eq!(status.retry_after_seconds, want_s);
        }
        check(None, 3);
        check(Some(9), 9);
    }

    #[test]
    fn list_and_watch_paths() {
        assert_eq!(
            list_path(Kind::Pod, "0", "", 500),
            "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed\
             &limit=500&resourceVersion=0"
        );
        assert_eq!(list_path(Kind::Node, "7", "", 0), "/api/v1/nodes?resourceVersion=7");
        assert_eq!(list_path(Kind::Node, "", "", 0), "/api/v1/nodes");
        assert_eq!(list_path(Kind::Node, "", "a=", 5), "/api/v1/nodes?limit=5&continue=a%3D");
        assert_eq!(
            watch_path(Kind::ReplicaSet, "9", false, 300),
            "/apis/apps/v1/replicasets?watch=true&allowWatchBookmarks=true&resourceVersion=9&timeoutSeconds=300"
        );
        assert_eq!(
            watch_path(Kind::Node, "", true, 301),
            "/api/v1/nodes?watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
             &resourceVersionMatch=NotOlderThan&timeoutSeconds=301"
        );
    }
}
