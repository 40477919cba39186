//! The last decisions, as the scheduler's Events tell them.

#![expect(clippy::disallowed_types, reason = "a shell: Events come on another thread")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use loadmaster_api::Needs;
use loadmaster_api::proto::Object;
use loadmaster_client::watch::{Change, Follow, Following, Form, follow};
use loadmaster_client::{Cluster, Kind, Lanes};
use tokio::sync::mpsc;

/// How many are kept.
const N_KEPT: usize = 100;

/// News that wait to be read.
const NEWS_MAX: usize = 4_096;

/// What became of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recent {
    /// `namespace/name`.
    pub pod: String,
    /// Turned down, or something else that is not as it should be.
    pub is_warning: bool,
    /// The Event's message.
    pub note: String,
}

/// The last decisions. Reading goes on until this is dropped.
pub(super) struct Recents {
    kept: Arc<Mutex<VecDeque<Recent>>>,
    _following: Following,
    _reading: tokio::task::JoinSet<()>,
}

impl Recents {
    /// Follows the Events of a cluster.
    pub fn follow(cluster: &Cluster, seed: u64) -> Recents {
        let (news, mut changes) = mpsc::channel(NEWS_MAX);
        let what = Follow {
            kinds: vec![Kind::other("events.k8s.io", "v1", "events", false)],
            streams: true,
            form: Form::Json,
            keep_raw: false,
            needs: Needs::default(),
            seed,
        };
        let lanes = Lanes::new(cluster);
        let following = follow(&lanes.watch, &what, &news);
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let shared = kept.clone();
        let mut reading = tokio::task::JoinSet::new();
        reading.spawn(async move {
            while let Some(change) = changes.recv().await {
                let Some(recent) = read(&change) else { continue };
                let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                kept.push_back(recent);
                if kept.len() > N_KEPT {
                    kept.pop_front();
                }
            }
        });
        Recents { kept, _following: following, _reading: reading }
    }

    /// The last ones, newest first.
    pub fn newest(&self, n: usize) -> Vec<Recent> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().take(n).cloned().collect()
    }
}

/// An Event about a pod that a scheduler tells.
fn read(change: &Change) -> Option<Recent> {
    let Change::Set { object: Object::Other(event), .. } = change else { return None };
    let event = &event.value;
    let of = &event["regarding"];
    let reason = event["reason"].as_str()?;
    let is_ours =
        of["kind"] == "Pod" && ["Scheduled", "FailedScheduling", "Preempted"].contains(&reason);
    is_ours.then(|| Recent {
        pod: format!(
            "{}/{}",
            of["namespace"].as_str().unwrap_or_default(),
            of["name"].as_str().unwrap_or_default()
        ),
        is_warning: event["type"] == "Warning",
        note: event["note"].as_str().unwrap_or_default().to_owned(),
    })
}
