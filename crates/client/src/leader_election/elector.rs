//! The task that reads and writes the Lease as an [`Election`] decides.

use std::time::Duration;

use loadmaster_stdx::Rng;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::{
    ClockReading, Election, ElectionAction, LeaderElectionEvent, LeaderElectionRecord,
    LeaderElectionTiming, LeaseReply,
};
use crate::api_client::{ApiClient, Request};
use crate::flowcontrol::random_seed;
use crate::status::decode_status;

/// A request times out after half of the renew deadline, but not before this; as upstream's leader election client.
const REQUEST_MIN: Duration = Duration::from_secs(1);

const GROUP: &str = "/apis/coordination.k8s.io/v1";

/// The lease, the identity of this replica, and durations.
#[derive(Clone, Debug)]
pub struct LeaderElectionOptions {
    /// `leaderElection.resourceNamespace`.
    pub namespace: String,
    /// `leaderElection.resourceName`.
    pub name: String,
    /// Unique to this replica: see [`identity`](LeaderElectionOptions::identity).
    pub identity: String,
    /// `leaseDuration`, `renewDeadline` and `retryPeriod`.
    pub timing: LeaderElectionTiming,
}

impl LeaderElectionOptions {
    /// An identity as upstream's: the host name and a random UUID.
    pub fn identity(hostname: &str) -> String {
        let (high, low) = (random_seed(), random_seed());
        // UUID version 4, variant 1.
        let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, 0x4000 | (high & 0x0fff));
        let (d, e) = (0x8000 | ((low >> 48) & 0x3fff), low & 0xffff_ffff_ffff);
        format!("{hostname}_{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
    }
}

/// The state of the leader election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeadershipStatus {
    /// Whether this replica is the leader.
    pub is_leading: bool,
    /// Whether the lease was lost or released. The state does not change any more.
    pub has_stopped: bool,
    /// The identity of the leader last observed; empty if there is none.
    pub leader: String,
    /// When the record was last observed to change, by the clock of this process.
    pub renewed_at: Option<Instant>,
    /// The uid of the Lease, for Events about it; empty until the lease was read.
    pub uid: String,
}

impl LeadershipStatus {
    /// Whether this replica believes to lead, although its lease expired more than `grace` ago: the condition of upstream's health
    /// check, whose grace period is 20 s.
    pub fn is_lease_expired(
        &self,
        now: Instant,
        lease_duration: Duration,
        grace: Duration,
    ) -> bool {
        let since = self.renewed_at.map(|at| now.saturating_duration_since(at));
        self.is_leading && since.is_some_and(|since| since > lease_duration + grace)
    }
}

/// Acquires, holds and renews a lease until it is dropped.
pub struct LeaderElector {
    standing: watch::Receiver<LeadershipStatus>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    release_timeout: Duration,
}

impl LeaderElector {
    /// The current state, and its changes.
    pub fn status(&self) -> watch::Receiver<LeadershipStatus> {
        self.standing.clone()
    }

    /// Releases the lease if this replica holds it. Everything that only the leader may do must have stopped.
    pub async fn release(mut self) {
        self.stop.send_replace(true);
        // The requests have timeouts of their own; this is an upper limit.
        let _ = timeout(self.release_timeout, &mut self.task).await;
    }
}

impl Drop for LeaderElector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts to acquire a lease, and to hold and renew it. Must be called within a tokio runtime.
pub fn start_leader_election(client: &ApiClient, options: LeaderElectionOptions) -> LeaderElector {
    let (standing_in, standing) = watch::channel(LeadershipStatus::default());
    let (stop, stop_out) = watch::channel(false);
    let release_timeout = options.timing.renew_deadline * 2;
    let rng = Rng::new(random_seed());
    let task = ElectorTask {
        client: client.clone(),
        election: Election::new(options.identity.clone(), options.timing, rng),
        options,
        lease: Value::Null,
        started: Instant::now(),
        standing: standing_in,
        stop: stop_out,
    };
    LeaderElector { standing, stop, task: tokio::spawn(task.run()), release_timeout }
}

struct ElectorTask {
    client: ApiClient,
    options: LeaderElectionOptions,
    election: Election,
    /// As last read or written.
    lease: Value,
    started: Instant,
    standing: watch::Sender<LeadershipStatus>,
    stop: watch::Receiver<bool>,
}

impl ElectorTask {
    async fn run(mut self) {
        let mut events = Vec::new();
        loop {
            if *self.stop.borrow() {
                self.election.release();
            }
            let action = self.election.next_action(self.now(), &mut events);
            self.publish_events(&mut events, action == ElectionAction::Stop);
            let reply = match action {
                ElectionAction::Stop => return,
                ElectionAction::Wait(wait) => {
                    tokio::select! {
                        () = sleep(wait) => {}
                        // The elector was dropped.
                        changed = self.stop.changed() => if changed.is_err() { return },
                    }
                    continue;
                }
                ElectionAction::Get => self.get().await,
                ElectionAction::Create(record) => self.create(&record).await,
                ElectionAction::Update(record) => self.update(&record).await,
            };
            self.election.handle_reply(self.now(), reply, &mut events);
            self.publish_events(&mut events, false);
        }
    }

    fn now(&self) -> ClockReading {
        let wall_us = jiff::Timestamp::now().as_microsecond();
        ClockReading { mono: self.started.elapsed(), wall_us }
    }

    fn publish_events(&self, events: &mut Vec<LeaderElectionEvent>, has_stopped: bool) {
        let lease = format!("{}/{}", self.options.namespace, self.options.name);
        for event in events.drain(..) {
            match event {
                LeaderElectionEvent::StartedLeading => tracing::info!(lease, "Lease acquired"),
                LeaderElectionEvent::StoppedLeading => {
                    tracing::info!(lease, "Lease lost or released")
                }
                LeaderElectionEvent::NewLeader(leader) => {
                    tracing::info!(lease, leader, "Lease holder changed");
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
                || standing.has_stopped != has_stopped
                || standing.uid != uid;
            (standing.is_leading, standing.has_stopped) = (is_leading, has_stopped);
            uid.clone_into(&mut standing.uid);
            is_changed
        });
    }

    async fn get(&mut self) -> LeaseReply {
        let path = self.path(&self.options.name);
        self.send(Request::get(path)).await
    }

    async fn create(&mut self, record: &LeaderElectionRecord) -> LeaseReply {
        let LeaderElectionOptions { namespace, name, .. } = &self.options;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": name, "namespace": namespace },
            "spec": record.to_spec(),
        });
        let path = self.path("");
        self.send(Request::with_body(http::Method::POST, path, lease.to_string())).await
    }

    /// Replaces the spec of the lease last read, and leaves its other fields unchanged.
    async fn update(&mut self, record: &LeaderElectionRecord) -> LeaseReply {
        let mut lease = self.lease.clone();
        lease["spec"] = record.to_spec();
        let path = self.path(&self.options.name);
        self.send(Request::with_body(http::Method::PUT, path, lease.to_string())).await
    }

    fn path(&self, name: &str) -> String {
        let mut path = format!("{GROUP}/namespaces/{}/leases", self.options.namespace);
        if !name.is_empty() {
            path.push('/');
            path.push_str(name);
        }
        path
    }

    async fn send(&mut self, mut request: Request) -> LeaseReply {
        request.timeout = (self.options.timing.renew_deadline / 2).max(REQUEST_MIN);
        if self.election.is_leading() {
            let left = self.election.give_up_at().saturating_sub(self.started.elapsed());
            request.timeout = request.timeout.min(left);
        }
        let is_get = request.method == http::Method::GET;
        let reply = match self.client.call(&request).await {
            Ok(reply) => reply,
            Err(error) => {
                tracing::warn!(%error, method = %request.method, "Request for the lease failed");
                return LeaseReply::Failed;
            }
        };
        if reply.status == 404 && is_get {
            return LeaseReply::NotFound;
        }
        if !reply.is_success() {
            let message = decode_status(reply.status, &reply.body).message;
            // On a conflict another replica was faster.
            if reply.status == 409 {
                tracing::debug!(message, "Failed to update lease: conflict");
            } else {
                tracing::warn!(
                    status = reply.status,
                    message,
                    "The server refused a request for the lease"
                );
            }
            return LeaseReply::Failed;
        }
        let Ok(lease) = loadmaster_stdx::json::from_slice::<Value>(&reply.body) else {
            tracing::warn!("Failed to decode the lease");
            return LeaseReply::Failed;
        };
        self.lease = lease;
        if is_get {
            LeaseReply::Found(LeaderElectionRecord::from_lease(&self.lease))
        } else {
            LeaseReply::Written
        }
    }
}
