//! Acting on other pods: which of them Permit holds, and what a plugin asks for them.
//!
//! What is asked for are values. The engine carries them out, in order, once the step in which they were asked for is over:
//! nothing a plugin sees changes under it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::pod::PodInfo;

/// A pod that has a node in our books and is held by Permit.
#[derive(Clone, Debug)]
pub struct WaitingPod {
    /// The pod; [`PodInfo::node_name`] is where it will be.
    pub pod: Arc<PodInfo>,
    /// Plugins that hold it, in the order in which they were asked.
    pub plugins: SmallVec<[&'static str; 2]>,
}

/// All such pods, ordered by uid.
#[derive(Clone, Debug, Default)]
pub struct WaitingPods(BTreeMap<Box<str>, WaitingPod>);

impl WaitingPods {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &WaitingPod> {
        self.0.values()
    }

    /// The pod of this uid, if it is held.
    pub fn get(&self, uid: &str) -> Option<&WaitingPod> {
        self.0.get(uid)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A pod is held by these plugins; by none, it is not held.
    pub fn set(&mut self, pod: &Arc<PodInfo>, plugins: impl Iterator<Item = &'static str>) {
        let plugins: SmallVec<[&'static str; 2]> = plugins.collect();
        if plugins.is_empty() {
            self.0.remove(&pod.uid);
        } else {
            self.0.insert(pod.uid.clone(), WaitingPod { pod: pod.clone(), plugins });
        }
    }

    /// A pod is not held any more.
    pub fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

/// What a plugin asks for some pod.
#[derive(Clone, Debug)]
pub enum Intervention {
    /// A pod that Permit holds may go on, as far as one plugin is concerned.
    Allow {
        /// Which pod.
        uid: Box<str>,
        /// On whose behalf.
        plugin: &'static str,
    },
    /// A pod that Permit holds gives its node up.
    Reject {
        /// Which pod.
        uid: Box<str>,
        /// On whose behalf: events that this plugin registered wake the pod.
        plugin: &'static str,
        /// What people read about it.
        why: Cow<'static, str>,
    },
    /// Pods that wait for an event should be tried now.
    Activate(Vec<Box<str>>),
    /// People should know something about a pod: an Event object.
    Tell(PodEvent),
}

/// An Event about a pod.
#[derive(Clone, Debug)]
pub struct PodEvent {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// `Warning` instead of `Normal`.
    pub is_warning: bool,
    /// In one word, such as `GangIncomplete`.
    pub reason: &'static str,
    /// What was being done, in one word, such as `Scheduling`.
    pub action: &'static str,
    /// For people.
    pub note: String,
}
