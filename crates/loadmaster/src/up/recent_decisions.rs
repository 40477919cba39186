//! The most recent decisions, read from the scheduler's Events.

#![expect(clippy::disallowed_types, reason = "Events are received on another thread")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use loadmaster_api::ExtraFieldsByKind;
use loadmaster_api::proto::Object;
use loadmaster_client::reflector::{
    ObjectFormat, ReflectorEvent, ReflectorOptions, Reflectors, start_reflectors,
};
use loadmaster_client::{ApiClients, Cluster, Kind};
use tokio::sync::mpsc;

/// Number of stored decisions.
const N_DECISIONS_MAX: usize = 100;

/// Capacity of the channel of watch events.
const CHANNEL_CAPACITY: usize = 4_096;

/// A scheduling decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecentDecision {
    /// `namespace/name`.
    pub pod: String,
    /// Whether the Event is a warning, such as FailedScheduling.
    pub is_warning: bool,
    /// The Event's message.
    pub note: String,
}

/// The most recent decisions. Events are watched until this is dropped.
pub(super) struct RecentDecisions {
    decisions: Arc<Mutex<VecDeque<RecentDecision>>>,
    _reflectors: Reflectors,
    _reading: tokio::task::JoinSet<()>,
}

impl RecentDecisions {
    /// Watches the Events of a cluster.
    pub fn start(cluster: &Cluster, seed: u64) -> RecentDecisions {
        let (sender, mut changes) = mpsc::channel(CHANNEL_CAPACITY);
        let what = ReflectorOptions {
            kinds: vec![Kind::dynamic("events.k8s.io", "v1", "events", false)],
            use_watch_list: true,
            format: ObjectFormat::Json,
            keep_raw: false,
            needs: ExtraFieldsByKind::default(),
            seed,
        };
        let clients = ApiClients::new(cluster);
        let reflectors = start_reflectors(&clients.watch, &what, &sender);
        let decisions = Arc::new(Mutex::new(VecDeque::new()));
        let shared = decisions.clone();
        let mut reading = tokio::task::JoinSet::new();
        reading.spawn(async move {
            while let Some(change) = changes.recv().await {
                let Some(recent) = read(&change) else { continue };
                let mut decisions = shared.lock().unwrap_or_else(PoisonError::into_inner);
                decisions.push_back(recent);
                if decisions.len() > N_DECISIONS_MAX {
                    decisions.pop_front();
                }
            }
        });
        RecentDecisions { decisions, _reflectors: reflectors, _reading: reading }
    }

    /// The most recent decisions, newest first.
    pub fn newest(&self, n: usize) -> Vec<RecentDecision> {
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        decisions.iter().rev().take(n).cloned().collect()
    }
}

/// Decodes an Event of a scheduler about a pod.
fn read(change: &ReflectorEvent) -> Option<RecentDecision> {
    let ReflectorEvent::Upsert { object: Object::Other(event), .. } = change else { return None };
    let event = &event.value;
    let of = &event["regarding"];
    let reason = event["reason"].as_str()?;
    let is_ours =
        of["kind"] == "Pod" && ["Scheduled", "FailedScheduling", "Preempted"].contains(&reason);
    is_ours.then(|| RecentDecision {
        pod: format!(
            "{}/{}",
            of["namespace"].as_str().unwrap_or_default(),
            of["name"].as_str().unwrap_or_default()
        ),
        is_warning: event["type"] == "Warning",
        note: event["note"].as_str().unwrap_or_default().to_owned(),
    })
}
