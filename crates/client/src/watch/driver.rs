//! Asks on behalf of a [`Machine`], for each kind in a task of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use loadmaster_api::Needs;
use loadmaster_stdx::Rng;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::decode::{Events, Keep, Page};
use super::{Change, Do, Ended, Failure, Machine, News};
use crate::answer::{escape, status_of};
use crate::kinds::Kind;
use crate::lane::{JSON, Lane, PROTOBUF, Request, SendError, Stream};

/// Time for the head of a watch, and for a page.
const HEAD: Duration = Duration::from_secs(60);
const PAGE: Duration = Duration::from_secs(120);

/// A list of all pods at once may be large; a page is not.
const LIST_BYTES_MAX: usize = 4 << 30;

/// An error answer is not longer.
const ERROR_BYTES_MAX: usize = 1 << 20;

/// The server ends a watch when it was asked to; if it does not, we do, so much later.
const GRACE: Duration = Duration::from_secs(30);

/// In which form objects are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON, with all fields.
    Json,
    /// Protobuf first; of kinds that are not among [`Kind::ALL`], JSON.
    Protobuf,
    /// Their metadata alone, in JSON. Only for kinds that are not among [`Kind::ALL`].
    Metadata,
}

impl Form {
    /// Media types of a list and of a watch.
    fn accept(self, kind: Kind) -> (&'static str, &'static str) {
        match (self, kind) {
            // Servers have no protobuf for custom resources.
            (Form::Json, _) | (Form::Protobuf, Kind::Other(_)) => (JSON, JSON),
            (Form::Protobuf, _) => (PROTOBUF, PROTOBUF_STREAM),
            (Form::Metadata, _) => (METADATA_LIST, METADATA),
        }
    }
}

const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// What is followed, and how.
#[derive(Clone, Debug)]
pub struct Follow {
    /// The kinds.
    pub kinds: Vec<Kind>,
    /// Ask for lists as streams first, as client-go does since 1.35.
    pub streams: bool,
    /// What is asked for.
    pub form: Form,
    /// Keep the bytes of every object ([`Change::Set`]): each is copied once.
    pub keep_raw: bool,
    /// Parts of pods and nodes to keep ([`loadmaster_api::Extra`]). Whole objects take JSON.
    pub needs: Needs,
    /// For pauses, which should differ between replicas.
    pub seed: u64,
}

/// What has been done for one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages asked for.
    pub n_pages: u64,
    /// Watches asked for.
    pub n_watches: u64,
    /// Events received, bookmarks included.
    pub n_events: u64,
    /// Lists and watches that failed.
    pub n_failures: u64,
    /// Objects there are.
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

/// Lists and watches that go on until this is dropped.
pub struct Following {
    _tasks: JoinSet<()>,
    counters: Vec<(Kind, Arc<Counters>)>,
}

impl Following {
    /// What has been done so far.
    pub fn counts(&self) -> impl Iterator<Item = (Kind, Counts)> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.counters.iter().map(move |(kind, counters)| {
            let counts = Counts {
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

/// Follows kinds. Must be called within a tokio runtime. When `out` is full, reading waits, and so does the server.
pub fn follow(lane: &Lane, what: &Follow, out: &mpsc::Sender<Change>) -> Following {
    let rng = Rng::new(what.seed);
    let mut tasks = JoinSet::new();
    let mut all_counters = Vec::new();
    for kind in &what.kinds {
        let counters = Arc::new(Counters::default());
        all_counters.push((*kind, counters.clone()));
        let machine = Machine::new(*kind, what.streams, &rng.split(kind.resource().resource));
        let (accept, accept_stream) = what.form.accept(*kind);
        let driver = Driver {
            kind: *kind,
            lane: lane.clone(),
            accept,
            keep: Keep { raw: what.keep_raw, needs: what.needs },
            accept_stream,
            machine,
            started: Instant::now(),
            counters,
            out: out.clone(),
            changes: Vec::new(),
        };
        tasks.spawn(async move {
            // It ends only when nobody listens any more.
            let _ = driver.run().await;
        });
    }
    Following { _tasks: tasks, counters: all_counters }
}

/// A watch in protobuf has a media type of its own.
const PROTOBUF_STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch,application/json";

struct Driver {
    kind: Kind,
    lane: Lane,
    accept: &'static str,
    accept_stream: &'static str,
    keep: Keep,
    machine: Machine,
    started: Instant,
    counters: Arc<Counters>,
    out: mpsc::Sender<Change>,
    changes: Vec<Change>,
}

/// Nobody listens any more.
struct Deaf;

impl Driver {
    async fn run(mut self) -> Result<(), Deaf> {
        loop {
            match self.machine.ask() {
                Do::Pause(pause) => {
                    tokio::time::sleep(pause).await;
                    self.hear(News::Woke).await?;
                }
                Do::List { resource_version, continue_token, limit } => {
                    self.counters.n_pages.fetch_add(1, Ordering::Relaxed);
                    let path = list_path(self.kind, &resource_version, &continue_token, limit);
                    if let Err(failure) = self.list(path).await? {
                        self.failed(&failure, "list");
                        self.hear(News::NoPage(failure)).await?;
                    }
                }
                Do::Watch { resource_version, initial_events, timeout_seconds } => {
                    self.counters.n_watches.fetch_add(1, Ordering::Relaxed);
                    let path =
                        watch_path(self.kind, &resource_version, initial_events, timeout_seconds);
                    let limit = Duration::from_secs(timeout_seconds) + GRACE;
                    let opened = Instant::now();
                    let failure = self.watch(path, opened + limit).await?.err();
                    if let Some(failure) = &failure {
                        self.failed(failure, "watch");
                    }
                    let ended = Ended { open_for: opened.elapsed(), failure };
                    self.hear(News::End(ended)).await?;
                }
            }
        }
    }

    async fn list(&mut self, path: String) -> Result<Result<(), Failure>, Deaf> {
        let (accept, timeout, answer_bytes_max) = (self.accept, PAGE, LIST_BYTES_MAX);
        let request = Request { accept, timeout, answer_bytes_max, ..Request::get(path) };
        let reply = match self.lane.call(&request).await {
            Ok(reply) => reply,
            Err(error) => return Ok(Err(Failure::Connection(error.to_string()))),
        };
        if !reply.is_success() {
            return Ok(Err(Failure::Status(status_of(reply.status, &reply.body))));
        }
        let page = match Page::open(reply.is_protobuf, &reply.body) {
            Ok(page) => page,
            Err(text) => return Ok(Err(Failure::Decode(text))),
        };
        for item in page.items(self.kind, self.keep) {
            match item {
                Ok(item) => self.hear(News::Listed(item)).await?,
                Err(text) => return Ok(Err(Failure::Decode(text))),
            };
        }
        let resource_version = page.resource_version().to_owned();
        let continue_token = page.continue_token().to_owned();
        self.hear(News::Page { resource_version, continue_token }).await?;
        Ok(Ok(()))
    }

    async fn watch(
        &mut self,
        path: String,
        deadline: Instant,
    ) -> Result<Result<(), Failure>, Deaf> {
        let (accept, timeout) = (self.accept_stream, HEAD);
        let request = Request { accept, timeout, ..Request::get(path) };
        let lost = |error: SendError| Ok(Err(Failure::Connection(error.to_string())));
        let mut stream = match self.lane.open(&request).await {
            Ok(stream) if stream.status == 200 => stream,
            Ok(stream) => return Ok(Err(refused(stream).await)),
            Err(error) => return lost(error),
        };
        self.hear(News::Opened).await?;
        let mut events = Events::new(self.kind, stream.is_protobuf, self.keep);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match stream.next(left).await {
                Ok(None) => return Ok(Ok(())),
                Ok(Some(piece)) => events.push(&piece),
                Err(error) => return lost(error),
            }
            loop {
                match events.next() {
                    Ok(Some(event)) => {
                        self.counters.n_events.fetch_add(1, Ordering::Relaxed);
                        if !self.hear(News::Event(event)).await? {
                            return Ok(Ok(()));
                        }
                    }
                    Ok(None) => break,
                    Err(text) => return Ok(Err(Failure::Decode(text))),
                }
            }
        }
    }

    /// Tells the machine, and what it says to whoever listens.
    async fn hear(&mut self, news: News) -> Result<bool, Deaf> {
        let go_on = self.machine.hear(self.started.elapsed(), news, &mut self.changes);
        self.counters.n_objects.store(self.machine.n_known() as u64, Ordering::Relaxed);
        for change in self.changes.drain(..) {
            self.out.send(change).await.map_err(|_| Deaf)?;
        }
        Ok(go_on)
    }

    fn failed(&self, failure: &Failure, verb: &str) {
        self.counters.n_failures.fetch_add(1, Ordering::Relaxed);
        let resource = self.kind.resource().resource;
        match failure {
            Failure::Status(status) => {
                let (code, message) = (status.code, &status.message);
                tracing::debug!(resource, verb, code, message, "the server refused");
            }
            Failure::Connection(error) => tracing::debug!(resource, verb, error, "lost"),
            Failure::Decode(error) => {
                tracing::warn!(resource, verb, error, "an answer could not be understood");
            }
        }
    }
}

async fn refused(stream: Stream) -> Failure {
    let code = stream.status;
    let collected = tokio::time::timeout(HEAD, stream.collect(ERROR_BYTES_MAX)).await;
    let body = collected.ok().and_then(Result::ok).unwrap_or_default();
    Failure::Status(status_of(code, &body))
}

pub(crate) fn list_path(
    kind: Kind,
    resource_version: &str,
    continue_token: &str,
    limit: u32,
) -> String {
    let mut path = begin(kind);
    if limit > 0 {
        path.push_str(&format!("limit={limit}&"));
    }
    if continue_token.is_empty() {
        parameter(&mut path, "resourceVersion", resource_version);
    } else {
        parameter(&mut path, "continue", continue_token);
    }
    end(path)
}

fn watch_path(
    kind: Kind,
    resource_version: &str,
    initial_events: bool,
    timeout_seconds: u64,
) -> String {
    let mut path = begin(kind);
    path.push_str("watch=true&allowWatchBookmarks=true&");
    if initial_events {
        path.push_str("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&");
    }
    parameter(&mut path, "resourceVersion", resource_version);
    path.push_str(&format!("timeoutSeconds={timeout_seconds}"));
    path
}

fn begin(kind: Kind) -> String {
    let resource = kind.resource();
    let mut path = resource.path();
    path.push('?');
    parameter(&mut path, "fieldSelector", resource.field_selector.unwrap_or_default());
    path
}

/// Nothing is said of what is empty.
fn parameter(path: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        path.push_str(name);
        path.push('=');
        escape(value, path);
        path.push('&');
    }
}

fn end(mut path: String) -> String {
    path.truncate(path.trim_end_matches(['&', '?']).len());
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
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
