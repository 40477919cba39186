//! Cluster events with their objects, and the split of an object's update into events.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use loadmaster_api::{Namespace, Node};
use loadmaster_framework::{
    ActionType, ClusterEvent, EventObject, EventResource, FeatureGates, ObjectInfo, PodInfo,
};
use smallvec::SmallVec;

/// An object before or after an event.
#[derive(Clone, Debug)]
pub enum OwnedEventObject {
    Pod(Arc<PodInfo>),
    Node(Arc<Node>),
    Namespace(Arc<Namespace>),
    /// Of a kind that only plugins use.
    Other(Arc<ObjectInfo>),
}

impl OwnedEventObject {
    /// As hints see it.
    pub fn as_event_object(&self) -> EventObject<'_> {
        match self {
            OwnedEventObject::Pod(pod) => EventObject::Pod(pod),
            OwnedEventObject::Node(node) => EventObject::Node(node),
            OwnedEventObject::Namespace(namespace) => EventObject::Namespace(namespace),
            OwnedEventObject::Other(object) => EventObject::Other(object),
        }
    }
}

/// An event that may make unschedulable pods schedulable, with its objects.
#[derive(Clone, Debug)]
pub struct ClusterEventOccurrence {
    pub event: ClusterEvent,
    /// `None` if the object was added.
    pub old: Option<OwnedEventObject>,
    /// `None` if the object was deleted.
    pub new: Option<OwnedEventObject>,
    /// Only pods of at most this priority are requeued: resources that a nominated pod releases were already available to pods of higher
    /// priority. So are pods that a plugin rejected that registered the event for every priority. For pods in flight the event is recorded whatever their priority, as upstream does.
    pub max_priority: Option<i32>,
    /// Pods that are not requeued: those whose own failure caused the event.
    pub except: SmallVec<[Box<str>; 1]>,
}

impl ClusterEventOccurrence {
    /// An event that concerns pods of every priority.
    pub fn new(
        event: ClusterEvent,
        old: Option<OwnedEventObject>,
        new: Option<OwnedEventObject>,
    ) -> ClusterEventOccurrence {
        ClusterEventOccurrence { event, old, new, max_priority: None, except: SmallVec::new() }
    }

    /// A pod was assigned or assumed.
    pub fn assigned_pod_added(pod: Arc<PodInfo>) -> ClusterEventOccurrence {
        let event = ClusterEvent::new(EventResource::AssignedPod, ActionType::ADD);
        ClusterEventOccurrence::new(event, None, Some(OwnedEventObject::Pod(pod)))
    }

    /// An assigned pod was deleted, an assumed pod was forgotten, or a pod lost its nomination.
    pub fn assigned_pod_deleted(pod: Arc<PodInfo>) -> ClusterEventOccurrence {
        let event = ClusterEvent::new(EventResource::AssignedPod, ActionType::DELETE);
        ClusterEventOccurrence::new(event, Some(OwnedEventObject::Pod(pod)), None)
    }

    /// The same event, only for pods of at most this priority.
    #[must_use]
    pub fn up_to_priority(self, priority: i32) -> ClusterEventOccurrence {
        ClusterEventOccurrence { max_priority: Some(priority), ..self }
    }

    /// The same event, not for this pod.
    #[must_use]
    pub fn except_pod(mut self, uid: &str) -> ClusterEventOccurrence {
        self.except.push(uid.into());
        self
    }
}

/// Why a pod was added to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnqueueCause {
    Event(ClusterEvent),
    /// An attempt failed.
    ScheduleAttemptFailure,
    BackoffComplete,
    PopFromBackoffQ,
    /// A plugin activated it.
    ForceActivate,
    /// It stayed too long in unschedulablePods.
    UnschedulableTimeout,
    /// Another configuration took effect.
    ConfigurationChange,
}

/// Upstream's label, as metrics show it: `NodeAdd`, `AssignedPodDelete`, `ScheduleAttemptFailure`.
impl fmt::Display for EnqueueCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnqueueCause::Event(event) => write!(f, "{}{}", event.resource.name(), event.action),
            EnqueueCause::ScheduleAttemptFailure => f.write_str("ScheduleAttemptFailure"),
            EnqueueCause::BackoffComplete => f.write_str("BackoffComplete"),
            EnqueueCause::PopFromBackoffQ => f.write_str("PopFromBackoffQ"),
            EnqueueCause::ForceActivate => f.write_str("ForceActivate"),
            EnqueueCause::UnschedulableTimeout => f.write_str("UnschedulableTimeout"),
            EnqueueCause::ConfigurationChange => f.write_str("ConfigurationChange"),
        }
    }
}

/// Events of one update.
pub type ClusterEvents = SmallVec<[ClusterEvent; 2]>;

/// The events of a pod's update (upstream's `PodSchedulingPropertiesChange`): `UnschedulablePod` events while it is pending, `AssignedPod`
/// events once it is assigned. Never empty: an update that is none of the specific ones is a general one.
pub fn pod_update_events(old: &PodInfo, new: &PodInfo) -> ClusterEvents {
    let resource = if new.node_name.is_empty() {
        EventResource::UnschedulablePod
    } else {
        EventResource::AssignedPod
    };
    let (before, after) = (&old.template, &new.template);
    let gates = |spec: &loadmaster_api::SharedPodSpec| spec.scheduling_gates.len();
    let tolerations = |spec: &loadmaster_api::SharedPodSpec| spec.tolerations.len();
    let changes = [
        (before.labels != after.labels, ActionType::UPDATE_POD_LABEL),
        (is_scaled_down(old, new), ActionType::UPDATE_POD_SCALE_DOWN),
        (
            gates(&before.spec) > 0 && gates(&after.spec) == 0,
            ActionType::UPDATE_POD_SCHEDULING_GATES_ELIMINATED,
        ),
        // The API server lets users add tolerations but not change them, so comparing their number is enough.
        (tolerations(&before.spec) != tolerations(&after.spec), ActionType::UPDATE_POD_TOLERATION),
    ];
    let changed = changes.into_iter().filter(|(changed, _)| *changed);
    let mut events: ClusterEvents =
        changed.map(|(_, action)| ClusterEvent::new(resource.clone(), action)).collect();
    if events.is_empty() {
        events.push(ClusterEvent::new(resource, ActionType::UPDATE));
    }
    events
}

fn is_scaled_down(old: &PodInfo, new: &PodInfo) -> bool {
    let (old, new) = (&old.requests().resources, &new.requests().resources);
    let now = |name: &str| new.scalars.iter().find(|(known, _)| known.as_str() == name);
    old.cpu_milli > new.cpu_milli
        || old.memory_bytes > new.memory_bytes
        || old.ephemeral_storage_bytes > new.ephemeral_storage_bytes
        || old.scalars.iter().any(|(name, amount)| now(name).is_none_or(|(_, now)| amount > now))
}

/// The annotations, if a plugin needs them.
fn annotations(node: &Node) -> Option<&BTreeMap<Box<str>, Box<str>>> {
    node.extra.as_ref().map(|extra| &extra.annotations)
}

/// The events of a node's update (upstream's `NodeSchedulingPropertiesChange`); often none. Cordoning is no event: it makes no pod
/// schedulable. Changed features are one if the gate NodeDeclaredFeatures is on.
pub fn node_update_events(old: &Node, new: &Node, gates: &FeatureGates) -> ClusterEvents {
    let has_features = gates.node_declared_features;
    let features_changed =
        has_features && old.status.declared_features != new.status.declared_features;
    let uncordoned = old.spec.unschedulable && !new.spec.unschedulable;
    let changes = [
        (uncordoned, ActionType::UPDATE_NODE_TAINT),
        (old.status.allocatable != new.status.allocatable, ActionType::UPDATE_NODE_ALLOCATABLE),
        (old.metadata.labels != new.metadata.labels, ActionType::UPDATE_NODE_LABEL),
        (annotations(old) != annotations(new), ActionType::UPDATE_NODE_ANNOTATION),
        (!uncordoned && old.spec.taints != new.spec.taints, ActionType::UPDATE_NODE_TAINT),
        (features_changed, ActionType::UPDATE_NODE_DECLARED_FEATURE),
    ];
    let changed = changes.into_iter().filter(|(changed, _)| *changed);
    changed.map(|(_, action)| ClusterEvent::new(EventResource::Node, action)).collect()
}
