//! What to ask next, and what an answer means.

use std::time::Duration;

use loadmaster_api::proto::{Object, Status, WatchEvent};
use loadmaster_api::{Raw, Str};
use loadmaster_stdx::{Map, Rng};

use super::{Change, Unavailable};
use crate::kinds::Kind;
use crate::limit::Backoff;

/// Objects a page, as client-go.
const PAGE_LEN: u32 = 500;

/// A watch is asked to last so long, at random so that not all end at once; as client-go.
const WATCH_SECONDS_MIN: u64 = 300;
const WATCH_SECONDS_MAX: u64 = 600;

/// A watch that ends sooner and told nothing is followed by a pause, as client-go.
const SHORT: Duration = Duration::from_secs(1);

/// So many watches in a row that failed, without one event between them, and the picture is taken anew.
const N_BROKEN_MAX: u32 = 4;

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Do {
    /// Ask for a page of a list.
    List {
        /// At least this version; empty means the newest.
        resource_version: String,
        /// Where the last page ended; empty for the first.
        continue_token: String,
        /// Objects a page; 0 for all.
        limit: u32,
    },
    /// Open a watch.
    Watch {
        /// From here on; may be empty with `initial_events`.
        resource_version: String,
        /// Begin with all objects there are, and say when that is done.
        initial_events: bool,
        /// The server ends it after so long.
        timeout_seconds: u64,
    },
    /// Wait.
    Pause(Duration),
}

/// Why something that was asked for did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server answered with an error.
    Status(Status),
    /// The connection failed.
    Connection(String),
    /// The answer could not be understood.
    Decode(String),
}

/// An object as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// What it says.
    pub object: Object,
    /// Its bytes, if they are kept.
    pub raw: Option<Raw>,
}

impl From<Object> for Read {
    fn from(object: Object) -> Read {
        Read { object, raw: None }
    }
}

/// An object, and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The object.
    pub object: Read,
    /// Its `metadata.resourceVersion`.
    pub resource_version: String,
}

/// What came of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// An object of a page.
    Listed(Item),
    /// The end of a page.
    Page {
        /// Version of the list.
        resource_version: String,
        /// Asks for the next page; empty on the last one.
        continue_token: String,
    },
    /// There was no page.
    NoPage(Failure),
    /// The watch is open.
    Opened,
    /// An event of the watch.
    Event(WatchEvent<Read>),
    /// There was no watch, or it ended.
    End(Ended),
    /// The pause is over.
    Woke,
}

/// The end of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// So long it was open.
    pub open_for: Duration,
    /// Without a failure it ended in good order.
    pub failure: Option<Failure>,
}

/// An object that has been told.
#[derive(Clone, Debug)]
struct Known {
    uid: Box<str>,
    version: u64,
    /// The list in which it was seen last.
    seen_in: u32,
}

/// Namespace and name.
type Key = (Str, Box<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Take the picture by a stream.
    Stream,
    /// Take it page by page.
    Pages,
    /// Follow what changes.
    Follow,
}

/// The state of one kind's list and watch.
#[derive(Debug)]
pub struct Machine {
    kind: Kind,
    /// Whether streaming lists are tried at all.
    streams: bool,
    known: Map<Key, Known>,
    stage: Stage,
    /// The newest version that was heard of; empty at first.
    version: String,
    /// That version is of no use any more: ask for the newest.
    is_expired: bool,
    continue_token: String,
    /// Counts lists.
    list: u32,
    pause: Option<Duration>,
    n_broken: u32,
    n_events: u64,
    /// The watch at hand ended with an error event, which has been dealt with.
    has_failed: bool,
    unavailable: Option<Unavailable>,
    /// That is because of a watch.
    is_watch_unavailable: bool,
    backoff: Backoff,
    rng: Rng,
}

impl Machine {
    /// Nothing is known yet. With `streams` lists are asked for as streams first.
    pub fn new(kind: Kind, streams: bool, rng: &Rng) -> Machine {
        Machine {
            kind,
            streams,
            known: Map::default(),
            stage: if streams { Stage::Stream } else { Stage::Pages },
            version: String::new(),
            is_expired: false,
            continue_token: String::new(),
            list: 1,
            pause: None,
            n_broken: 0,
            n_events: 0,
            has_failed: false,
            unavailable: None,
            is_watch_unavailable: false,
            backoff: Backoff::new(rng.split("backoff")),
            rng: rng.split("watch"),
        }
    }

    /// Number of objects that have been told and are not gone.
    pub fn n_known(&self) -> usize {
        self.known.len()
    }

    /// What is to be done now. Asked again it says the same, but for the length of a watch.
    pub fn ask(&mut self) -> Do {
        if let Some(pause) = self.pause {
            return Do::Pause(pause);
        }
        let timeout_seconds =
            WATCH_SECONDS_MIN + self.rng.below(WATCH_SECONDS_MAX - WATCH_SECONDS_MIN + 1);
        match self.stage {
            Stage::Pages if !self.continue_token.is_empty() => Do::List {
                resource_version: String::new(),
                continue_token: self.continue_token.clone(),
                limit: PAGE_LEN,
            },
            Stage::Pages => {
                let resource_version = match (self.is_expired, &*self.version) {
                    (true, _) => String::new(),
                    (false, "") => "0".to_owned(),
                    (false, version) => version.to_owned(),
                };
                // A list that may be served from the cache would ignore the limit or, with a version, leave the cache for it.
                let limit = match &*resource_version {
                    "" | "0" => PAGE_LEN,
                    _ => 0,
                };
                Do::List { resource_version, continue_token: String::new(), limit }
            }
            Stage::Stream => {
                let resource_version =
                    if self.is_expired { String::new() } else { self.version.clone() };
                Do::Watch { resource_version, initial_events: true, timeout_seconds }
            }
            Stage::Follow => Do::Watch {
                resource_version: self.version.clone(),
                initial_events: false,
                timeout_seconds,
            },
        }
    }

    /// Takes news of what was asked for. Answers false when the watch at hand must be closed.
    pub fn hear(&mut self, now: Duration, news: News, out: &mut Vec<Change>) -> bool {
        match news {
            News::Listed(item) => self.found(item, out),
            News::Page { resource_version, continue_token } => {
                self.page(resource_version, continue_token, out);
            }
            News::NoPage(failure) => self.no_page(now, failure, out),
            // A stream has to prove itself by its end.
            News::Opened if self.stage == Stage::Follow => self.available(out),
            News::Opened => {}
            News::Event(event) => return self.event(now, event, out),
            News::End(ended) => self.ended(now, ended, out),
            News::Woke => self.pause = None,
        }
        true
    }

    /// An object is there.
    fn found(&mut self, item: Item, out: &mut Vec<Change>) {
        let Read { object, raw } = item.object;
        let Some(metadata) = object.metadata() else { return };
        let key = (metadata.namespace.clone(), metadata.name.clone());
        let version = number(&item.resource_version);
        let seen_in = self.list;
        if let Some(known) = self.known.get_mut(&key) {
            if known.uid == metadata.uid {
                known.seen_in = seen_in;
                // An older state, from a list that lags behind the watch, must not undo a newer one.
                if version <= known.version && version != 0 {
                    return;
                }
                known.version = version;
                out.push(Change::Set { kind: self.kind, object, raw });
                return;
            }
            let uid = std::mem::replace(&mut known.uid, metadata.uid.clone());
            (known.version, known.seen_in) = (version, seen_in);
            let (namespace, name) = key;
            out.push(Change::Gone { kind: self.kind, namespace, name, uid });
        } else {
            let uid = metadata.uid.clone();
            self.known.insert(key, Known { uid, version, seen_in });
        }
        out.push(Change::Set { kind: self.kind, object, raw });
    }

    fn deleted(&mut self, object: &Object, out: &mut Vec<Change>) {
        let Some(metadata) = object.metadata() else { return };
        let key = (metadata.namespace.clone(), metadata.name.clone());
        let Some(known) = self.known.remove(&key) else { return };
        let (namespace, name) = key;
        out.push(Change::Gone { kind: self.kind, namespace, name, uid: known.uid });
    }

    fn page(&mut self, resource_version: String, continue_token: String, out: &mut Vec<Change>) {
        self.continue_token = continue_token;
        if self.continue_token.is_empty() {
            self.complete(resource_version, out);
        }
    }

    /// A list is complete: what was not in it is gone.
    fn complete(&mut self, resource_version: String, out: &mut Vec<Change>) {
        let (kind, list) = (self.kind, self.list);
        let mut gone: Vec<(Key, Known)> =
            self.known.extract_if(|_, known| known.seen_in != list).collect();
        gone.sort_by(|(a, _), (b, _)| a.cmp(b));
        out.extend(gone.into_iter().map(|((namespace, name), known)| Change::Gone {
            kind,
            namespace,
            name,
            uid: known.uid,
        }));
        self.version = resource_version;
        self.is_expired = false;
        self.n_broken = 0;
        // A list does not show that a watch, which failed, will work.
        if self.stage == Stage::Stream || !self.is_watch_unavailable {
            self.available(out);
        }
        self.stage = Stage::Follow;
        out.push(Change::Synced(kind));
    }

    /// Takes the picture anew.
    fn relist(&mut self) {
        self.stage = if self.streams { Stage::Stream } else { Stage::Pages };
        self.continue_token.clear();
        self.list = self.list.wrapping_add(1);
        self.n_broken = 0;
    }

    fn no_page(&mut self, now: Duration, failure: Failure, out: &mut Vec<Change>) {
        let was_in_the_middle = !self.continue_token.is_empty();
        let was_newest = self.is_expired;
        self.relist();
        // Streams have been refused, or pages would not be asked for.
        self.stage = Stage::Pages;
        if is_expired(&failure) {
            // From the newest version on at once; if that does not help, with pauses.
            self.is_expired = true;
            if !was_newest || was_in_the_middle {
                return;
            }
        }
        self.unavailable(failure, "list", out);
        self.pause = Some(self.backoff.next(now));
    }

    fn event(&mut self, now: Duration, event: WatchEvent<Read>, out: &mut Vec<Change>) -> bool {
        self.n_events += 1;
        match event {
            WatchEvent::Added { object, resource_version }
            | WatchEvent::Modified { object, resource_version } => {
                // The initial events are in no order: only their end says how far they go.
                if self.stage == Stage::Follow {
                    self.version.clone_from(&resource_version);
                }
                self.found(Item { object, resource_version }, out);
            }
            WatchEvent::Deleted { object, resource_version } => {
                if self.stage == Stage::Follow {
                    self.version = resource_version;
                }
                self.deleted(&object.object, out);
            }
            WatchEvent::Bookmark { resource_version, ends_initial_events } => {
                if self.stage == Stage::Stream && ends_initial_events {
                    self.complete(resource_version, out);
                } else if self.stage == Stage::Follow {
                    self.version = resource_version;
                }
            }
            WatchEvent::Error(status) => {
                self.has_failed = true;
                self.failed(now, Failure::Status(status), out);
                return false;
            }
        }
        if self.stage == Stage::Follow {
            self.n_broken = 0;
        }
        true
    }

    fn ended(&mut self, now: Duration, ended: Ended, out: &mut Vec<Change>) {
        let n_events = std::mem::take(&mut self.n_events);
        if std::mem::take(&mut self.has_failed) {
            return;
        }
        match ended.failure {
            Some(failure) => self.failed(now, failure, out),
            None if self.stage == Stage::Stream => {
                // It ended before all was told; what was told stays told.
                self.relist();
                self.pause = Some(self.backoff.next(now));
            }
            None if ended.open_for < SHORT && n_events == 0 => {
                self.pause = Some(self.backoff.next(now));
            }
            None => {}
        }
    }

    /// A watch could not be opened, or broke.
    fn failed(&mut self, now: Duration, failure: Failure, out: &mut Vec<Change>) {
        self.n_events = 0;
        if self.stage == Stage::Stream {
            return self.stream_failed(now, failure, out);
        }
        if is_expired(&failure) {
            self.is_expired = true;
            self.relist();
            self.pause = Some(self.backoff.next(now));
            return;
        }
        let is_garbled = matches!(failure, Failure::Decode(_));
        let was_busy = code(&failure) == 429;
        self.unavailable(failure, "watch", out);
        if is_garbled {
            // Something was missed. What is known of it is of no use.
            self.relist();
        } else if !was_busy {
            self.n_broken += 1;
            if self.n_broken >= N_BROKEN_MAX {
                self.relist();
            }
        }
        self.pause = Some(self.backoff.next(now));
    }

    fn stream_failed(&mut self, now: Duration, failure: Failure, out: &mut Vec<Change>) {
        let was_newest = self.is_expired;
        self.relist();
        if is_expired(&failure) && !was_newest {
            self.is_expired = true;
            return;
        }
        match code(&failure) {
            // The server has no such thing: 400 and 422 say so, and old servers ignore the parameter and complain about others.
            400 | 422 => self.stage = Stage::Pages,
            403 | 404 => {
                // A list says it better, and may be allowed where a watch is not.
                self.stage = Stage::Pages;
            }
            _ => {
                self.unavailable(failure, "watch", out);
                self.pause = Some(self.backoff.next(now));
            }
        }
    }

    fn unavailable(&mut self, failure: Failure, verb: &str, out: &mut Vec<Change>) {
        let why = match (code(&failure), failure) {
            (403, _) => Unavailable::Forbidden { rule: self.kind.resource().permission(verb) },
            (404, _) => Unavailable::Absent,
            (code, Failure::Status(status)) => {
                Unavailable::Failing { text: format!("{code} {}", status.message) }
            }
            (_, Failure::Connection(text) | Failure::Decode(text)) => Unavailable::Failing { text },
        };
        self.is_watch_unavailable = verb == "watch";
        if self.unavailable.as_ref() != Some(&why) {
            self.unavailable = Some(why.clone());
            out.push(Change::Unavailable { kind: self.kind, why });
        }
    }

    fn available(&mut self, out: &mut Vec<Change>) {
        if self.unavailable.take().is_some() {
            out.push(Change::Available(self.kind));
        }
    }
}

fn code(failure: &Failure) -> i32 {
    match failure {
        Failure::Status(status) => status.code,
        Failure::Connection(_) | Failure::Decode(_) => 0,
    }
}

/// Whether a version is too old for the server, or newer than the one this server has reached: the newest it has must do.
fn is_expired(failure: &Failure) -> bool {
    let Failure::Status(status) = failure else { return false };
    let is_too_new = || status.message.contains("Too large resource version");
    status.code == 410 || matches!(&*status.reason, "Expired" | "Gone") || is_too_new()
}

/// Versions are numbers on every server there is. From one where they are not, nothing is held to be known.
fn number(resource_version: &str) -> u64 {
    resource_version.parse().unwrap_or(0)
}
