//! A reflector as a state machine without I/O and clock.

use std::time::Duration;

use loadmaster_api::proto::{Object, Status, WatchEvent};
use loadmaster_api::{RawObject, Str};
use loadmaster_stdx::{Map, Rng, SortCompactly as _};

use super::{KindUnavailableReason, ReflectorEvent};
use crate::flowcontrol::{Backoff, RETRY_AFTER_MAX};
use crate::kinds::Kind;

/// Objects per page, as in client-go.
const PAGE_LEN: u32 = 500;

/// `timeoutSeconds` of a watch, random so that not all end at once; as in client-go.
const WATCH_SECONDS_MIN: u64 = 300;
const WATCH_SECONDS_MAX: u64 = 600;

/// A watch that ends sooner and without an event is followed by a backoff, as in client-go.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// So many watches in a row that the server refused for another reason than being unavailable, without an event between them, lead to a
/// relist. While it is unavailable, a relist could only make that worse: a watch misses nothing as long as its resourceVersion is not gone.
const N_REFUSED_WATCHES_MAX: u32 = 4;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReflectorAction {
    /// List a page.
    List {
        /// The resourceVersion that the list must have reached; empty for the most recent.
        resource_version: String,
        /// The continue token of the last page; empty for the first page.
        continue_token: String,
        /// Objects per page; 0 for all.
        limit: u32,
    },
    /// Open a watch.
    Watch {
        /// The resourceVersion after which the watch begins; may be empty with `initial_events`.
        resource_version: String,
        /// `sendInitialEvents`: begin with all existing objects and a bookmark.
        initial_events: bool,
        /// After this the server ends the watch.
        timeout_seconds: u64,
    },
    /// Wait.
    Backoff(Duration),
}

/// A list or watch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListWatchError {
    /// The server responded with an error.
    Status(Status),
    /// The connection failed.
    Connection(String),
    /// The response could not be decoded.
    Decode(String),
}

/// A decoded object, with its bytes if requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedObject {
    /// The object.
    pub object: Object,
    /// Its bytes, if they were requested.
    pub raw: Option<RawObject>,
}

impl From<Object> for DecodedObject {
    fn from(object: Object) -> DecodedObject {
        DecodedObject { object, raw: None }
    }
}

/// An object with its resourceVersion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedObject {
    /// The object.
    pub object: DecodedObject,
    /// Its `metadata.resourceVersion`.
    pub resource_version: String,
}

/// The result of an action, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReflectorInput {
    /// An object of a page.
    ListItem(VersionedObject),
    /// The end of a page.
    PageEnd {
        /// The resourceVersion of the list.
        resource_version: String,
        /// The token for the next page; empty on the last page.
        continue_token: String,
    },
    /// The list request failed.
    ListFailed(ListWatchError),
    /// The watch is open.
    WatchOpened,
    /// An event of the watch.
    WatchEvent(WatchEvent<DecodedObject>),
    /// The watch failed or ended.
    WatchEnded(WatchEnd),
    /// The backoff has elapsed.
    BackoffElapsed,
}

/// The end of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEnd {
    /// How long it was open.
    pub open_for: Duration,
    /// None if the server ended the watch regularly.
    pub failure: Option<ListWatchError>,
}

/// An object that has been sent.
#[derive(Clone, Debug)]
struct KnownObject {
    uid: Box<str>,
    version: u64,
    /// The last list that contained it.
    seen_in: u32,
}

/// Namespace and name.
type Key = (Str, Box<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// List with a watch stream (WatchList).
    WatchList,
    /// List page by page.
    List,
    /// Watch.
    Watch,
}

/// The state of the reflector of one kind.
#[derive(Debug)]
pub struct ReflectorState {
    kind: Kind,
    /// Whether WatchList is tried.
    streams: bool,
    known: Map<Key, KnownObject>,
    stage: Stage,
    /// The last observed resourceVersion; empty at first.
    version: String,
    /// Whether that resourceVersion has expired: the most recent one is requested.
    is_expired: bool,
    continue_token: String,
    /// The number of the current list.
    list: u32,
    pause: Option<Duration>,
    n_refused_watches: u32,
    n_events: u64,
    /// The current watch ended with an error event, which was handled.
    has_failed: bool,
    unavailable: Option<KindUnavailableReason>,
    /// Whether the reason is a failed watch.
    is_watch_unavailable: bool,
    backoff: Backoff,
    rng: Rng,
}

impl ReflectorState {
    /// A reflector that has no objects yet. With `streams` lists are requested as streams first (WatchList).
    pub fn new(kind: Kind, streams: bool, rng: &Rng) -> ReflectorState {
        ReflectorState {
            kind,
            streams,
            known: Map::default(),
            stage: if streams { Stage::WatchList } else { Stage::List },
            version: String::new(),
            is_expired: false,
            continue_token: String::new(),
            list: 1,
            pause: None,
            n_refused_watches: 0,
            n_events: 0,
            has_failed: false,
            unavailable: None,
            is_watch_unavailable: false,
            backoff: Backoff::new(rng.split("backoff")),
            rng: rng.split("watch"),
        }
    }

    /// Number of objects that exist as far as observed.
    pub fn n_objects(&self) -> usize {
        self.known.len()
    }

    /// What to do now. Repeated calls return the same, except for the timeout of a watch.
    pub fn next_action(&mut self) -> ReflectorAction {
        if let Some(pause) = self.pause {
            return ReflectorAction::Backoff(pause);
        }
        let timeout_seconds =
            WATCH_SECONDS_MIN + self.rng.below(WATCH_SECONDS_MAX - WATCH_SECONDS_MIN + 1);
        match self.stage {
            Stage::List if !self.continue_token.is_empty() => ReflectorAction::List {
                resource_version: String::new(),
                continue_token: self.continue_token.clone(),
                limit: PAGE_LEN,
            },
            Stage::List => {
                let resource_version = match (self.is_expired, &*self.version) {
                    (true, _) => String::new(),
                    (false, "") => "0".to_owned(),
                    (false, version) => version.to_owned(),
                };
                // With resourceVersion 0 the server's cache ignores the limit; with another one a limit would bypass the cache.
                let limit = match &*resource_version {
                    "" | "0" => PAGE_LEN,
                    _ => 0,
                };
                ReflectorAction::List { resource_version, continue_token: String::new(), limit }
            }
            Stage::WatchList => {
                let resource_version =
                    if self.is_expired { String::new() } else { self.version.clone() };
                ReflectorAction::Watch { resource_version, initial_events: true, timeout_seconds }
            }
            Stage::Watch => ReflectorAction::Watch {
                resource_version: self.version.clone(),
                initial_events: false,
                timeout_seconds,
            },
        }
    }

    /// Handles an input. Returns false when the current watch must be closed.
    pub fn handle_input(
        &mut self,
        now: Duration,
        input: ReflectorInput,
        out: &mut Vec<ReflectorEvent>,
    ) -> bool {
        match input {
            ReflectorInput::ListItem(item) => self.upsert(item, out),
            ReflectorInput::PageEnd { resource_version, continue_token } => {
                self.handle_page_end(resource_version, continue_token, out);
            }
            ReflectorInput::ListFailed(failure) => self.handle_list_failure(now, failure, out),
            // A WatchList counts as available when it is complete.
            ReflectorInput::WatchOpened if self.stage == Stage::Watch => self.mark_available(out),
            ReflectorInput::WatchOpened => {}
            ReflectorInput::WatchEvent(event) => return self.handle_watch_event(now, event, out),
            ReflectorInput::WatchEnded(ended) => self.handle_watch_end(now, ended, out),
            ReflectorInput::BackoffElapsed => self.pause = None,
        }
        true
    }

    /// An object exists in this version.
    fn upsert(&mut self, item: VersionedObject, out: &mut Vec<ReflectorEvent>) {
        let DecodedObject { object, raw } = item.object;
        let Some(metadata) = object.metadata() else { return };
        let key = (metadata.namespace.clone(), metadata.name.clone());
        let version = parse_resource_version(&item.resource_version);
        let seen_in = self.list;
        if let Some(known) = self.known.get_mut(&key) {
            if known.uid == metadata.uid {
                known.seen_in = seen_in;
                // An older version, from a stale list, must not replace a newer one.
                if version <= known.version && version != 0 {
                    return;
                }
                known.version = version;
                out.push(ReflectorEvent::Upsert { kind: self.kind, object, raw });
                return;
            }
            let uid = std::mem::replace(&mut known.uid, metadata.uid.clone());
            (known.version, known.seen_in) = (version, seen_in);
            let (namespace, name) = key;
            out.push(ReflectorEvent::Delete { kind: self.kind, namespace, name, uid });
        } else {
            let uid = metadata.uid.clone();
            self.known.insert(key, KnownObject { uid, version, seen_in });
        }
        out.push(ReflectorEvent::Upsert { kind: self.kind, object, raw });
    }

    fn delete(&mut self, object: &Object, out: &mut Vec<ReflectorEvent>) {
        let Some(metadata) = object.metadata() else { return };
        let key = (metadata.namespace.clone(), metadata.name.clone());
        let Some(known) = self.known.remove(&key) else { return };
        let (namespace, name) = key;
        out.push(ReflectorEvent::Delete { kind: self.kind, namespace, name, uid: known.uid });
    }

    fn handle_page_end(
        &mut self,
        resource_version: String,
        continue_token: String,
        out: &mut Vec<ReflectorEvent>,
    ) {
        self.continue_token = continue_token;
        if self.continue_token.is_empty() {
            self.finish_list(resource_version, out);
        }
    }

    /// A list is complete: objects that it did not contain were deleted.
    fn finish_list(&mut self, resource_version: String, out: &mut Vec<ReflectorEvent>) {
        let (kind, list) = (self.kind, self.list);
        let mut deleted: Vec<(Key, KnownObject)> =
            self.known.extract_if(|_, known| known.seen_in != list).collect();
        deleted.sort_compactly_by(|(a, _), (b, _)| a.cmp(b));
        out.extend(deleted.into_iter().map(|((namespace, name), known)| ReflectorEvent::Delete {
            kind,
            namespace,
            name,
            uid: known.uid,
        }));
        self.version = resource_version;
        self.is_expired = false;
        self.n_refused_watches = 0;
        // A successful list does not mean that a failed watch will succeed.
        if self.stage == Stage::WatchList || !self.is_watch_unavailable {
            self.mark_available(out);
        }
        self.stage = Stage::Watch;
        out.push(ReflectorEvent::Synced(kind));
    }

    /// Starts a relist.
    fn relist(&mut self) {
        self.stage = if self.streams { Stage::WatchList } else { Stage::List };
        self.continue_token.clear();
        self.list = self.list.wrapping_add(1);
        self.n_refused_watches = 0;
    }

    fn handle_list_failure(
        &mut self,
        now: Duration,
        failure: ListWatchError,
        out: &mut Vec<ReflectorEvent>,
    ) {
        let was_in_the_middle = !self.continue_token.is_empty();
        let was_newest = self.is_expired;
        self.relist();
        // Pages are listed only when WatchList is not supported or not used.
        self.stage = Stage::List;
        if is_expired(&failure) {
            // Restarts at once from the most recent resourceVersion; if that expires, too, with backoff.
            self.is_expired = true;
            if !was_newest || was_in_the_middle {
                return;
            }
        }
        let pause = self.next_pause(now, &failure);
        self.mark_unavailable(failure, "list", out);
        self.pause = Some(pause);
    }

    /// The backoff, but not less than the server asks for.
    fn next_pause(&mut self, now: Duration, failure: &ListWatchError) -> Duration {
        let asked_s = match failure {
            ListWatchError::Status(status) => status.retry_after_seconds,
            ListWatchError::Connection(_) | ListWatchError::Decode(_) => 0,
        };
        let asked = Duration::from_secs(u64::try_from(asked_s).unwrap_or_default());
        self.backoff.next_delay(now).max(asked.min(RETRY_AFTER_MAX))
    }

    fn handle_watch_event(
        &mut self,
        now: Duration,
        event: WatchEvent<DecodedObject>,
        out: &mut Vec<ReflectorEvent>,
    ) -> bool {
        self.n_events += 1;
        match event {
            WatchEvent::Added { object, resource_version }
            | WatchEvent::Modified { object, resource_version } => {
                // Initial events are in no order: only the bookmark at their end has the resourceVersion.
                if self.stage == Stage::Watch {
                    self.version.clone_from(&resource_version);
                }
                self.upsert(VersionedObject { object, resource_version }, out);
            }
            WatchEvent::Deleted { object, resource_version } => {
                if self.stage == Stage::Watch {
                    self.version = resource_version;
                }
                self.delete(&object.object, out);
            }
            WatchEvent::Bookmark { resource_version, ends_initial_events } => {
                if self.stage == Stage::WatchList && ends_initial_events {
                    self.finish_list(resource_version, out);
                } else if self.stage == Stage::Watch {
                    self.version = resource_version;
                }
            }
            WatchEvent::Error(status) => {
                self.has_failed = true;
                self.handle_watch_failure(now, ListWatchError::Status(status), out);
                return false;
            }
        }
        if self.stage == Stage::Watch {
            self.n_refused_watches = 0;
        }
        true
    }

    fn handle_watch_end(&mut self, now: Duration, ended: WatchEnd, out: &mut Vec<ReflectorEvent>) {
        let n_events = std::mem::take(&mut self.n_events);
        if std::mem::take(&mut self.has_failed) {
            return;
        }
        match ended.failure {
            Some(failure) => self.handle_watch_failure(now, failure, out),
            None if self.stage == Stage::WatchList => {
                // The stream ended before the bookmark; objects sent so far remain.
                self.relist();
                self.pause = Some(self.backoff.next_delay(now));
            }
            None if ended.open_for < SHORT_WATCH && n_events == 0 => {
                self.pause = Some(self.backoff.next_delay(now));
            }
            None => {}
        }
    }

    /// A watch could not be opened, or was lost.
    fn handle_watch_failure(
        &mut self,
        now: Duration,
        failure: ListWatchError,
        out: &mut Vec<ReflectorEvent>,
    ) {
        self.n_events = 0;
        if self.stage == Stage::WatchList {
            return self.handle_watch_list_failure(now, failure, out);
        }
        if is_expired(&failure) {
            self.is_expired = true;
            self.relist();
            self.pause = Some(self.backoff.next_delay(now));
            return;
        }
        let pause = self.next_pause(now, &failure);
        let is_decode_error = matches!(failure, ListWatchError::Decode(_));
        let was_unavailable = is_unavailable(&failure);
        self.mark_unavailable(failure, "watch", out);
        if is_decode_error {
            // An event is missing.
            self.relist();
        } else if !was_unavailable {
            self.n_refused_watches += 1;
            if self.n_refused_watches >= N_REFUSED_WATCHES_MAX {
                self.relist();
            }
        }
        self.pause = Some(pause);
    }

    fn handle_watch_list_failure(
        &mut self,
        now: Duration,
        failure: ListWatchError,
        out: &mut Vec<ReflectorEvent>,
    ) {
        let was_newest = self.is_expired;
        self.relist();
        if is_expired(&failure) && !was_newest {
            self.is_expired = true;
            return;
        }
        match status_code(&failure) {
            // The server does not support WatchList: 400 and 422 say so, or an old server rejects other parameters.
            400 | 422 => self.stage = Stage::List,
            403 | 404 => {
                // The list reports the error, or is allowed although a watch is not.
                self.stage = Stage::List;
            }
            _ => {
                let pause = self.next_pause(now, &failure);
                self.mark_unavailable(failure, "watch", out);
                self.pause = Some(pause);
            }
        }
    }

    fn mark_unavailable(
        &mut self,
        failure: ListWatchError,
        verb: &str,
        out: &mut Vec<ReflectorEvent>,
    ) {
        let why = match (status_code(&failure), failure) {
            (403, _) => KindUnavailableReason::Forbidden {
                rule: self.kind.resource().permission_text(verb),
            },
            (404, _) => KindUnavailableReason::NotServed,
            (code, ListWatchError::Status(status)) => {
                KindUnavailableReason::Failing { text: format!("{code} {}", status.message) }
            }
            (_, ListWatchError::Connection(text) | ListWatchError::Decode(text)) => {
                KindUnavailableReason::Failing { text }
            }
        };
        self.is_watch_unavailable = verb == "watch";
        if self.unavailable.as_ref() != Some(&why) {
            self.unavailable = Some(why.clone());
            out.push(ReflectorEvent::Unavailable { kind: self.kind, why });
        }
    }

    fn mark_available(&mut self, out: &mut Vec<ReflectorEvent>) {
        if self.unavailable.take().is_some() {
            out.push(ReflectorEvent::Available(self.kind));
        }
    }
}

fn status_code(failure: &ListWatchError) -> i32 {
    match failure {
        ListWatchError::Status(status) => status.code,
        ListWatchError::Connection(_) | ListWatchError::Decode(_) => 0,
    }
}

/// Whether the server could not be reached, did not accept the credentials, or was too busy: the same request may succeed later. A load
/// balancer in front of servers that are down responds with 502, 503 or 504.
fn is_unavailable(failure: &ListWatchError) -> bool {
    match failure {
        ListWatchError::Connection(_) => true,
        ListWatchError::Status(status) => matches!(status.code, 401 | 429 | 502..=504),
        ListWatchError::Decode(_) => false,
    }
}

/// Whether the resourceVersion is too old for the server, or newer than the one that this server has reached.
fn is_expired(failure: &ListWatchError) -> bool {
    let ListWatchError::Status(status) = failure else { return false };
    let is_too_new = || status.message.contains("Too large resource version");
    status.code == 410 || matches!(&*status.reason, "Expired" | "Gone") || is_too_new()
}

/// A resourceVersion as a number; 0 when it is none: then no version is regarded as observed.
fn parse_resource_version(resource_version: &str) -> u64 {
    resource_version.parse().unwrap_or(0)
}
