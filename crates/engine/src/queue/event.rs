//! What happened in the cluster, with its objects; and how the update of an object is split into events.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use loadmaster_api::{Namespace, Node};
use loadmaster_framework::{Action, ClusterEvent, EventObject, EventResource, ObjectInfo, PodInfo};
use smallvec::SmallVec;

/// An object before or after an event.
#[derive(Clone, Debug)]
pub enum Object {
    Pod(Arc<PodInfo>),
    Node(Arc<Node>),
    Namespace(Arc<Namespace>),
    /// Of a kind that only plugins know.
    Other(Arc<ObjectInfo>),
}

impl Object {
    /// As hints see it.
    pub fn as_event_object(&self) -> EventObject<'_> {
        match self {
            Object::Pod(pod) => EventObject::Pod(pod),
            Object::Node(node) => EventObject::Node(node),
            Object::Namespace(namespace) => EventObject::Namespace(namespace),
            Object::Other(object) => EventObject::Other(object),
        }
    }
}

/// Something happened that may make waiting pods schedulable.
#[derive(Clone, Debug)]
pub struct Happened {
    pub event: ClusterEvent,
    /// Absent when the object is new.
    pub old: Option<Object>,
    /// Absent when the object is gone.
    pub new: Option<Object>,
    /// Only pods of at most this priority are woken: room that a nominated pod leaves is no news to more urgent ones. Pods in
    /// flight learn of it whatever their priority, as upstream does it.
    pub max_priority: Option<i32>,
    /// A pod that is not woken: the one whose own failure this is.
    pub except: Option<Box<str>>,
}

impl Happened {
    /// An event that concerns pods of every priority.
    pub fn new(event: ClusterEvent, old: Option<Object>, new: Option<Object>) -> Happened {
        Happened { event, old, new, max_priority: None, except: None }
    }

    /// A pod came to a node, or the engine assumes so.
    pub fn assigned_pod_added(pod: Arc<PodInfo>) -> Happened {
        let event = ClusterEvent::new(EventResource::AssignedPod, Action::ADD);
        Happened::new(event, None, Some(Object::Pod(pod)))
    }

    /// A pod left its node, was forgotten, or gave up its nomination.
    pub fn assigned_pod_deleted(pod: Arc<PodInfo>) -> Happened {
        let event = ClusterEvent::new(EventResource::AssignedPod, Action::DELETE);
        Happened::new(event, Some(Object::Pod(pod)), None)
    }

    /// The same, for pods of at most this priority only.
    #[must_use]
    pub fn up_to_priority(self, priority: i32) -> Happened {
        Happened { max_priority: Some(priority), ..self }
    }

    /// The same, for all pods but this one.
    #[must_use]
    pub fn to_others_than(self, uid: &str) -> Happened {
        Happened { except: Some(uid.into()), ..self }
    }
}

/// Why a pod came into a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    Event(ClusterEvent),
    /// An attempt failed.
    ScheduleAttemptFailure,
    BackoffComplete,
    PopFromBackoffQ,
    /// A plugin asked for it.
    ForceActivate,
    /// It waited too long.
    UnschedulableTimeout,
}

/// Upstream's label, as metrics show it: `NodeAdd`, `AssignedPodDelete`, `ScheduleAttemptFailure`.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Event(event) => write!(f, "{}{}", event.resource.name(), event.action),
            Cause::ScheduleAttemptFailure => f.write_str("ScheduleAttemptFailure"),
            Cause::BackoffComplete => f.write_str("BackoffComplete"),
            Cause::PopFromBackoffQ => f.write_str("PopFromBackoffQ"),
            Cause::ForceActivate => f.write_str("ForceActivate"),
            Cause::UnschedulableTimeout => f.write_str("UnschedulableTimeout"),
        }
    }
}

/// Events of one update.
pub type Events = SmallVec<[ClusterEvent; 2]>;

/// What changed about a pod as far as it can matter for scheduling (upstream's `PodSchedulingPropertiesChange`): about itself
/// while it waits, about others once it is assigned. Never empty: an update that is none of the specific ones is a general one.
pub fn pod_update_events(old: &PodInfo, new: &PodInfo) -> Events {
    let resource = if new.node_name.is_empty() {
        EventResource::UnschedulablePod
    } else {
        EventResource::AssignedPod
    };
    let (before, after) = (&old.template, &new.template);
    let gates = |spec: &loadmaster_api::PodSpec| spec.scheduling_gates.len();
    let tolerations = |spec: &loadmaster_api::PodSpec| spec.tolerations.len();
    let changes = [
        (before.labels != after.labels, Action::UPDATE_POD_LABEL),
        (is_scaled_down(old, new), Action::UPDATE_POD_SCALE_DOWN),
        (
            gates(&before.spec) > 0 && gates(&after.spec) == 0,
            Action::UPDATE_POD_SCHEDULING_GATES_ELIMINATED,
        ),
        // The API server lets users add tolerations, not change them: their number tells.
        (tolerations(&before.spec) != tolerations(&after.spec), Action::UPDATE_POD_TOLERATION),
    ];
    let changed = changes.into_iter().filter(|(changed, _)| *changed);
    let mut events: Events =
        changed.map(|(_, action)| ClusterEvent::new(resource.clone(), action)).collect();
    if events.is_empty() {
        events.push(ClusterEvent::new(resource, Action::UPDATE));
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

/// Only where a plugin needs them.
fn annotations(node: &Node) -> Option<&BTreeMap<Box<str>, Box<str>>> {
    node.extra.as_ref().map(|extra| &extra.annotations)
}

/// What changed about a node as far as it can matter for scheduling (upstream's `NodeSchedulingPropertiesChange`); often
/// nothing. Cordoning is no event: it makes no pod schedulable.
pub fn node_update_events(old: &Node, new: &Node) -> Events {
    let uncordoned = old.spec.unschedulable && !new.spec.unschedulable;
    let changes = [
        (uncordoned, Action::UPDATE_NODE_TAINT),
        (old.status.allocatable != new.status.allocatable, Action::UPDATE_NODE_ALLOCATABLE),
        (old.metadata.labels != new.metadata.labels, Action::UPDATE_NODE_LABEL),
        (annotations(old) != annotations(new), Action::UPDATE_NODE_ANNOTATION),
        (!uncordoned && old.spec.taints != new.spec.taints, Action::UPDATE_NODE_TAINT),
    ];
    let changed = changes.into_iter().filter(|(changed, _)| *changed);
    changed.map(|(_, action)| ClusterEvent::new(EventResource::Node, action)).collect()
}
