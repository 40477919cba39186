//! Leader election: who leads is told to the engine, the log, metrics and Events.

use std::sync::Arc;

use loadmaster_client::ApiClients;
use loadmaster_client::event_recorder::{EventRecorder, NewEvent, ObjectReference};
use loadmaster_client::leader_election::{
    LeaderElectionOptions, LeaderElectionTiming, LeaderElector, LeadershipStatus,
    start_leader_election,
};
use tokio::sync::{mpsc, watch};

use super::engine_loop::Command;
use super::missing_kinds::Lease;
use super::{Daemon, clock};
use crate::metrics::Metrics;

impl Daemon {
    /// Starts leader election. In shadow mode there is none, because a shadow writes nothing.
    pub(super) fn elect_leader(&self, clients: &ApiClients) -> Option<LeaderElector> {
        let election = &self.ready.loaded.config.leader_election;
        if !election.leader_elect || self.ready.options.loadmaster.shadow {
            return None;
        }
        let options = LeaderElectionOptions {
            namespace: election.resource_namespace.clone(),
            name: election.resource_name.clone(),
            identity: LeaderElectionOptions::identity(&clock::hostname()),
            timing: LeaderElectionTiming {
                lease_duration: election.lease_duration.to_std().unwrap_or_default(),
                renew_deadline: election.renew_deadline.to_std().unwrap_or_default(),
                retry_period: election.retry_period.to_std().unwrap_or_default(),
            },
        };
        tracing::info!(
            lease = format!("{}/{}", options.namespace, options.name),
            "Attempting to acquire leader lease"
        );
        Some(start_leader_election(&clients.lease, options))
    }

    /// A reference to the Lease, without its uid.
    fn lease_reference(&self) -> ObjectReference {
        let election = &self.ready.loaded.config.leader_election;
        ObjectReference {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            namespace: election.resource_namespace.as_str().into(),
            name: election.resource_name.as_str().into(),
            ..ObjectReference::default()
        }
    }

    /// The Lease with its status; `None` without leader election.
    pub(super) fn lease(&self, elector: Option<&LeaderElector>) -> Option<Lease> {
        elector.map(|elector| Lease { name: self.lease_reference(), status: elector.status() })
    }

    /// Lets the engine schedule while this replica is the leader.
    pub(super) fn watch_leadership(
        &self,
        elector: Option<&LeaderElector>,
        recorder: &Arc<EventRecorder>,
        metrics: &Arc<Metrics>,
    ) -> LeadershipLoss {
        let Some(elector) = elector else {
            let _ = self.commands.send(Command::SetLeading(!self.ready.options.loadmaster.shadow));
            return LeadershipLoss(None);
        };
        let (lost_sender, lost) = mpsc::channel(1);
        let observer = LeadershipObserver {
            lease: self.lease_reference(),
            commands: self.commands.clone(),
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            lost: lost_sender,
        };
        tokio::spawn(observer.run(elector.status()));
        LeadershipLoss(Some(lost))
    }
}

/// Resolves when leadership is lost; never without leader election.
pub(super) struct LeadershipLoss(Option<mpsc::Receiver<()>>);

impl LeadershipLoss {
    /// Waits for it.
    pub async fn wait(&mut self) {
        match &mut self.0 {
            Some(lost) => drop(lost.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Forwards changes of leadership to the engine, the log, metrics and Events.
struct LeadershipObserver {
    lease: ObjectReference,
    commands: mpsc::UnboundedSender<Command>,
    recorder: Arc<EventRecorder>,
    metrics: Arc<Metrics>,
    lost: mpsc::Sender<()>,
}

impl LeadershipObserver {
    async fn run(self, mut status: watch::Receiver<LeadershipStatus>) {
        let name = self.lease.name.clone();
        let mut was_leading = false;
        let mut leader = String::new();
        loop {
            let now = status.borrow_and_update().clone();
            if now.leader != leader && !now.leader.is_empty() {
                tracing::info!(identity = now.leader, "New leader elected");
                leader.clone_from(&now.leader);
            }
            if now.is_leading && !was_leading {
                tracing::info!(lease = &*name, "Successfully acquired lease");
                self.record_event(&leader, &now.uid, "became leader");
                let _ = self.commands.send(Command::SetLeading(true));
            }
            if was_leading && !now.is_leading || now.has_stopped {
                let _ = self.commands.send(Command::SetLeading(false));
                self.metrics.election.set_leading(&name, false);
                let _ = self.lost.send(()).await;
                return;
            }
            self.metrics.election.set_leading(&name, now.is_leading);
            was_leading = now.is_leading;
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    fn record_event(&self, identity: &str, uid: &str, note: &str) {
        let lease = ObjectReference { uid: uid.into(), ..self.lease.clone() };
        self.recorder.record(NewEvent::leader_election(lease, identity, note, "kube-scheduler"));
    }
}
