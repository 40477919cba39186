//! Reads and writes the Lease on behalf of an [`Election`].

use std::time::Duration;

use loadmaster_stdx::Rng;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::{Ask, Election, LeaseNews, Now, Record, Timing, Told};
use crate::answer::status_of;
use crate::lane::{Lane, Request};
use crate::limit::random_seed;

/// A request takes half of the renew deadline at most, but a second at least; as upstream's client for the lease.
const REQUEST_MIN: Duration = Duration::from_secs(1);

const GROUP: &str = "/apis/coordination.k8s.io/v1";

/// Which lease, and who wants it.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// `leaderElection.resourceNamespace`.
    pub namespace: String,
    /// `leaderElection.resourceName`.
    pub name: String,
    /// Ours alone: see [`identity`](LeaseOptions::identity).
    pub identity: String,
    /// The three times.
    pub timing: Timing,
}

impl LeaseOptions {
    /// An identity as upstream makes it: the host's name and a random uuid.
    pub fn identity(hostname: &str) -> String {
        let (high, low) = (random_seed(), random_seed());
        // Version 4, variant 1.
        let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, 0x4000 | (high & 0x0fff));
        let (d, e) = (0x8000 | ((low >> 48) & 0x3fff), low & 0xffff_ffff_ffff);
        format!("{hostname}_{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
    }
}

/// Who leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// We do.
    pub is_leading: bool,
    /// It is over: lost, or given back. Nothing follows.
    pub is_over: bool,
    /// The identity of who does, as last seen; empty if nobody does.
    pub leader: String,
    /// When the record changed last by our own clock.
    pub renewed_at: Option<Instant>,
    /// The uid of the Lease, for Events about it; empty until it was read.
    pub uid: String,
}

impl Standing {
    /// Whether a leader has not renewed for so much longer than its lease that it should have ended: upstream's health check, with
    /// 20 s of grace.
    pub fn is_stuck(&self, now: Instant, lease_duration: Duration, grace: Duration) -> bool {
        let since = self.renewed_at.map(|at| now.saturating_duration_since(at));
        self.is_leading && since.is_some_and(|since| since > lease_duration + grace)
    }
}

/// A lease that is sought, held and renewed as long as this lives.
pub struct Held {
    standing: watch::Receiver<Standing>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    patience: Duration,
}

impl Held {
    /// Who leads, now and whenever that changes.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Gives the lease back, if we have it. Whatever only a leader may do must have stopped.
    pub async fn release(mut self) {
        self.stop.send_replace(true);
        // Its own requests are limited; this is for the worst.
        let _ = timeout(self.patience, &mut self.task).await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Seeks a lease, and holds it. Must be called within a tokio runtime.
pub fn hold(lane: &Lane, options: LeaseOptions) -> Held {
    let (standing_in, standing) = watch::channel(Standing::default());
    let (stop, stop_out) = watch::channel(false);
    let patience = options.timing.renew_deadline * 2;
    let rng = Rng::new(random_seed());
    let holder = Holder {
        lane: lane.clone(),
        election: Election::new(options.identity.clone(), options.timing, rng),
        options,
        lease: Value::Null,
        started: Instant::now(),
        standing: standing_in,
        stop: stop_out,
    };
    Held { standing, stop, task: tokio::spawn(holder.run()), patience }
}

struct Holder {
    lane: Lane,
    options: LeaseOptions,
    election: Election,
    /// As it was read or written last.
    lease: Value,
    started: Instant,
    standing: watch::Sender<Standing>,
    stop: watch::Receiver<bool>,
}

impl Holder {
    async fn run(mut self) {
        let mut news = Vec::new();
        loop {
            if *self.stop.borrow() {
                self.election.release();
            }
            let ask = self.election.next(self.now(), &mut news);
            self.tell(&mut news, ask == Ask::Over);
            let told = match ask {
                Ask::Over => return,
                Ask::Wait(wait) => {
                    tokio::select! {
                        () = sleep(wait) => {}
                        // Without a sender there is nobody to lead for.
                        changed = self.stop.changed() => if changed.is_err() { return },
                    }
                    continue;
                }
                Ask::Get => self.get().await,
                Ask::Create(record) => self.create(&record).await,
                Ask::Update(record) => self.update(&record).await,
            };
            self.election.told(self.now(), told, &mut news);
            self.tell(&mut news, false);
        }
    }

    fn now(&self) -> Now {
        let wall_us = jiff::Timestamp::now().as_microsecond();
        Now { mono: self.started.elapsed(), wall_us }
    }

    fn tell(&self, news: &mut Vec<LeaseNews>, is_over: bool) {
        let lease = format!("{}/{}", self.options.namespace, self.options.name);
        for news in news.drain(..) {
            match news {
                LeaseNews::Leading => tracing::info!(lease, "acquired the lease"),
                LeaseNews::Lost => tracing::info!(lease, "no longer leading"),
                LeaseNews::NewLeader(leader) => {
                    tracing::info!(lease, leader, "a new leader");
                    self.standing.send_modify(|standing| standing.leader = leader);
                }
            }
        }
        let (is_leading, observed_at) =
            (self.election.is_leading(), self.started + self.election.observed_at());
        let uid = self.lease["metadata"]["uid"].as_str().unwrap_or_default();
        self.standing.send_if_modified(|standing| {
            standing.renewed_at = Some(observed_at);
            let is_changed = standing.is_leading != is_leading
                || standing.is_over != is_over
                || standing.uid != uid;
            (standing.is_leading, standing.is_over) = (is_leading, is_over);
            uid.clone_into(&mut standing.uid);
            is_changed
        });
    }

    async fn get(&mut self) -> Told {
        let path = self.path(&self.options.name);
        self.ask(Request::get(path)).await
    }

    async fn create(&mut self, record: &Record) -> Told {
        let LeaseOptions { namespace, name, .. } = &self.options;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": name, "namespace": namespace },
            "spec": record.spec(),
        });
        let path = self.path("");
        self.ask(Request::with(http::Method::POST, path, lease.to_string())).await
    }

    /// Replaces the spec, and leaves to the rest what others have written there.
    async fn update(&mut self, record: &Record) -> Told {
        let mut lease = self.lease.clone();
        lease["spec"] = record.spec();
        let path = self.path(&self.options.name);
        self.ask(Request::with(http::Method::PUT, path, lease.to_string())).await
    }

    fn path(&self, name: &str) -> String {
        let mut path = format!("{GROUP}/namespaces/{}/leases", self.options.namespace);
        if !name.is_empty() {
            path.push('/');
            path.push_str(name);
        }
        path
    }

    async fn ask(&mut self, mut request: Request) -> Told {
        request.timeout = (self.options.timing.renew_deadline / 2).max(REQUEST_MIN);
        if self.election.is_leading() {
            let left = self.election.give_up_at().saturating_sub(self.started.elapsed());
            request.timeout = request.timeout.min(left);
        }
        let is_get = request.method == http::Method::GET;
        let reply = match self.lane.call(&request).await {
            Ok(reply) => reply,
            Err(error) => {
                tracing::warn!(%error, method = %request.method, "the lease");
                return Told::Failed;
            }
        };
        if reply.status == 404 && is_get {
            return Told::Missing;
        }
        if !reply.is_success() {
            let message = status_of(reply.status, &reply.body).message;
            // A conflict is somebody else's luck.
            if reply.status == 409 {
                tracing::debug!(message, "the lease was changed meanwhile");
            } else {
                tracing::warn!(status = reply.status, message, "the lease");
            }
            return Told::Failed;
        }
        let Ok(lease) = serde_json::from_slice::<Value>(&reply.body) else {
            tracing::warn!("the lease could not be understood");
            return Told::Failed;
        };
        self.lease = lease;
        if is_get { Told::Found(Record::of(&self.lease)) } else { Told::Written }
    }
}
