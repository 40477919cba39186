//! Pods that wait at Permit, and the actions that plugins request for other pods.
//!
//! Actions are values. The engine performs them in order after the step in which they were requested, so that nothing changes
//! while a plugin runs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Str;
use smallvec::SmallVec;

use crate::pod_info::PodInfo;
use crate::time::MonoTime;

/// An assumed pod that waits at Permit (upstream's `WaitingPod`).
#[derive(Clone, Debug)]
pub struct WaitingPod {
    /// The pod; [`PodInfo::node_name`] is its assumed node.
    pub pod: Arc<PodInfo>,
    /// The Permit plugins that have not allowed it yet, in the order of the profile.
    pub plugins: SmallVec<[&'static str; 2]>,
}

/// All waiting pods, ordered by uid.
#[derive(Clone, Debug, Default)]
pub struct WaitingPods(BTreeMap<Box<str>, WaitingPod>);

impl WaitingPods {
    /// All waiting pods.
    pub fn iter(&self) -> impl Iterator<Item = &WaitingPod> {
        self.0.values()
    }

    /// The waiting pod with this uid.
    pub fn get(&self, uid: &str) -> Option<&WaitingPod> {
        self.0.get(uid)
    }

    /// Number of waiting pods.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no pod waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the plugins that a pod waits for; without any, it does not wait.
    pub fn upsert(&mut self, pod: &Arc<PodInfo>, plugins: impl Iterator<Item = &'static str>) {
        let plugins: SmallVec<[&'static str; 2]> = plugins.collect();
        if plugins.is_empty() {
            self.0.remove(&pod.uid);
        } else {
            self.0.insert(pod.uid.clone(), WaitingPod { pod: pod.clone(), plugins });
        }
    }

    /// Removes a pod that no longer waits.
    pub fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

/// An action that a plugin requests (parts of upstream's `Handle`).
#[derive(Clone, Debug)]
pub enum PluginAction {
    /// Allow a waiting pod on behalf of one plugin.
    Allow {
        /// The waiting pod.
        uid: Box<str>,
        /// The plugin that allows it.
        plugin: &'static str,
    },
    /// Reject a waiting pod.
    Reject {
        /// The waiting pod.
        uid: Box<str>,
        /// The plugin that rejects it; events that this plugin registered requeue the pod.
        plugin: &'static str,
        /// The rejection message.
        message: Cow<'static, str>,
        /// The uid of a pod that the release of the rejected pod's resources does not requeue.
        except: Option<Box<str>>,
    },
    /// Move pods to the activeQ.
    Activate(Vec<Box<str>>),
    /// Move pods to the activeQ at this time.
    ActivateAt(MonoTime, Vec<Box<str>>),
    /// Ask PreEnqueue again at this time about those of the pods that are gated then.
    CheckGatesAt(MonoTime, Vec<Box<str>>),
    /// Sort the scheduling queue again.
    SortQueue,
    /// Record an Event about a pod.
    RecordEvent(PodEventRecord),
    /// Compute again what the plugin's incremental form computed for a node, because its state changed.
    InvalidateNode(Str),
    /// Compute the keys of the pods in a namespace again, because a state changed that they depend on; with an empty name, those of
    /// all pods.
    InvalidateKeys(Str),
    /// Prepare the plugin's evaluators again, because its state changed in a way that concerns all nodes.
    InvalidateEvaluators {
        /// The plugin.
        plugin: &'static str,
    },
}

/// An Event object about a pod.
#[derive(Clone, Debug)]
pub struct PodEventRecord {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// `Warning` instead of `Normal`.
    pub is_warning: bool,
    /// CamelCase reason, such as `GangIncomplete`.
    pub reason: &'static str,
    /// The action that was taken, such as `Scheduling`.
    pub action: &'static str,
    /// The human-readable note.
    pub note: String,
}
