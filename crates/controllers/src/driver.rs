//! Moves a [`Runner`]: watches tell it what there is, its requests go out over connections of their own, and a clock wakes it.

mod discovery;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use loadmaster_api::{Needs, proto};
use loadmaster_client as client;
use loadmaster_client::answer::status_of;
use loadmaster_client::lane::LaneLimits;
use loadmaster_client::watch::{self, Follow, Following, Form, follow};
use loadmaster_client::{Cluster, Lane};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::controller::Controller;
use crate::kind::{Key, Kind, Object};
use crate::request::{Answer, Request};
use crate::runner::{Call, News, Runner};

/// How much is asked at a time.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Requests under way at a time.
    pub n_calls_max: usize,
    /// For pauses, which should differ between programs.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { n_calls_max: 64, seed: 0 }
    }
}

/// What the watches have read and nobody has taken yet.
const N_CHANGES_MAX: usize = 4096;

/// So many changes are taken in before requests are handed out again.
const BATCH: usize = 1024;

/// Requests under way when it is to stop are given so long.
const STOPPING: Duration = Duration::from_secs(10);

/// Runs controllers on a cluster until `stop` is over. Must be called within a tokio runtime.
pub async fn run(
    cluster: &Cluster,
    controllers: Vec<Box<dyn Controller>>,
    options: Options,
    stop: impl Future<Output = ()>,
) {
    let limits = LaneLimits { http2_connections_max: 4, http1_connections_max: 64 };
    let mut runner = Runner::new(controllers);
    let (told, mut changes) = mpsc::channel(N_CHANGES_MAX);
    let mut watches = Watches {
        // Over HTTP/1.1 each watch has a connection, and there are as many as kinds.
        lane: cluster.lane("watch", LaneLimits { http1_connections_max: 1024, ..limits }),
        told,
        seed: options.seed,
        following: BTreeMap::new(),
        kinds: BTreeMap::new(),
        definitions: Arc::new(Notify::new()),
    };
    watches.follow(&runner.kinds());
    let lane = cluster.lane("write", limits);
    let (found, mut served) = mpsc::channel(1);
    let mut finding = JoinSet::new();
    if runner.watches_all() {
        finding.spawn(discovery::follow(lane.clone(), watches.definitions.clone(), found));
    }
    let mut stop = std::pin::pin!(stop);
    let mut calls = JoinSet::new();
    let mut batch = Vec::new();
    loop {
        let now = Timestamp::now();
        let room = options.n_calls_max.saturating_sub(calls.len());
        for call in runner.run(room, now) {
            calls.spawn(ask(lane.clone(), call));
        }
        let has_room = calls.len() < options.n_calls_max;
        tokio::select! {
            () = &mut stop => break,
            n = changes.recv_many(&mut batch, BATCH) => {
                let now = Timestamp::now();
                batch.drain(..n).filter_map(|change| watches.news(change)).for_each(|it| runner.hear(it, now));
            }
            Some(served) = served.recv() => {
                runner.hear(News::Served(served), Timestamp::now());
                watches.follow(&runner.kinds());
            }
            Some(ended) = calls.join_next() => answered(&mut runner, ended),
            () = sleep_until(runner.wake_at()), if has_room => {}
        }
    }
    let rest = async { while calls.join_next().await.is_some() {} };
    if tokio::time::timeout(STOPPING, rest).await.is_err() {
        tracing::warn!("stopped before all requests were answered");
    }
}

/// Watches of kinds, which may become more and fewer.
struct Watches {
    lane: Lane,
    told: mpsc::Sender<watch::Change>,
    seed: u64,
    following: BTreeMap<Kind, Following>,
    /// What the client calls them. Each name is remembered for as long as the program runs, as there are few.
    kinds: BTreeMap<client::Kind, Kind>,
    /// Told when what the server serves may have changed.
    definitions: Arc<Notify>,
}

/// What of a cluster's objects changes which kinds there are.
const DEFINITIONS: [(&str, &str); 2] = [
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "apiservices"),
];

impl Watches {
    /// Watches these kinds and no others.
    fn follow(&mut self, kinds: &BTreeSet<Kind>) {
        self.following.retain(|kind, _| kinds.contains(kind));
        self.kinds.retain(|_, kind| kinds.contains(kind));
        for kind in kinds {
            if self.following.contains_key(kind) {
                continue;
            }
            let info = kind.info();
            let name = client::Kind::other(info.group, info.version, info.resource, true);
            self.kinds.insert(name, *kind);
            let what = Follow {
                kinds: vec![name],
                streams: true,
                // Only JSON has all fields.
                form: if let Kind::Other(_) = kind { Form::Metadata } else { Form::Json },
                keep_raw: false,
                needs: Needs::default(),
                seed: self.seed,
            };
            self.following.insert(*kind, follow(&self.lane, &what, &self.told));
        }
    }

    fn news(&self, change: watch::Change) -> Option<News> {
        match change {
            watch::Change::Set { kind, object: proto::Object::Other(object), .. } => {
                let kind = *self.kinds.get(&kind)?;
                self.told_of(kind);
                let name = object.metadata.name.clone();
                match Object::from_json(kind, object.value) {
                    Ok(object) => Some(News::Set(object)),
                    Err(error) => {
                        tracing::warn!(?kind, %name, %error, "an object could not be understood");
                        None
                    }
                }
            }
            watch::Change::Gone { kind, namespace, name, .. } => {
                let kind = *self.kinds.get(&kind)?;
                self.told_of(kind);
                Some(News::Gone(Key::new(kind, &*namespace, name)))
            }
            watch::Change::Synced(kind) => Some(News::Synced(*self.kinds.get(&kind)?)),
            watch::Change::Unavailable { kind, why } => {
                tracing::warn!(resource = kind.resource().resource, ?why, "cannot be read");
                Some(News::Unavailable(*self.kinds.get(&kind)?))
            }
            watch::Change::Available(kind) => {
                tracing::info!(resource = kind.resource().resource, "can be read again");
                None
            }
            _ => None,
        }
    }

    fn told_of(&self, kind: Kind) {
        let info = kind.info();
        if DEFINITIONS.contains(&(info.group, info.resource)) {
            self.definitions.notify_one();
        }
    }
}

async fn ask(lane: Lane, call: Call) -> (u64, Answer) {
    (call.id, answer(&lane, &call.request).await)
}

async fn answer(lane: &Lane, request: &Request) -> Answer {
    let encoded = match request.encode() {
        Ok(encoded) => encoded,
        Err(error) => return Answer::Lost { message: format!("writing it in JSON: {error}") },
    };
    let sent = client::Request {
        content_type: encoded.content_type,
        ..client::Request::with(encoded.method, encoded.path, encoded.body)
    };
    match lane.call(&sent).await {
        Ok(reply) if reply.is_success() => request.done(&reply.body),
        Ok(reply) => {
            let proto::Status { reason, message, .. } = status_of(reply.status, &reply.body);
            Answer::Refused {
                status: reply.status,
                reason,
                message,
                retry_after: reply.retry_after,
            }
        }
        Err(error) => Answer::Lost { message: error.to_string() },
    }
}

fn answered(runner: &mut Runner, ended: Result<(u64, Answer), tokio::task::JoinError>) {
    match ended {
        Ok((id, answer)) => runner.answered(id, &answer, Timestamp::now()),
        Err(error) => tracing::error!(%error, "a request ended without an answer"),
    }
}

/// For ever when there is no moment.
async fn sleep_until(moment: Option<Timestamp>) {
    match moment {
        Some(at) if at < Timestamp::MAX => {
            let left = Timestamp::now().duration_until(at).max(SignedDuration::ZERO);
            tokio::time::sleep(left.unsigned_abs()).await;
        }
        _ => std::future::pending().await,
    }
}
