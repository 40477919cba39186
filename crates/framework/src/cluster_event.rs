//! Cluster events and queueing hints: whether a change in the cluster may make an unschedulable pod schedulable.

use std::fmt;
use std::ops::BitOr;
use std::sync::Arc;

use loadmaster_api::{Namespace, Node};

use crate::context::readers;
use crate::pod_info::PodInfo;
use crate::result::Failure;
use crate::state::PluginStates;
use crate::watched_objects::ObjectInfo;
use crate::world::World;

pub use crate::event_resource::EventResource;

/// A set of actions, as upstream's `ActionType` bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActionType(pub u32);

/// Upstream's names, bit by bit.
const ACTION_NAMES: [&str; 13] = [
    "Add",
    "Delete",
    "UpdateNodeAllocatable",
    "UpdateNodeLabel",
    "UpdateNodeTaint",
    "UpdateNodeCondition",
    "UpdateNodeAnnotation",
    "UpdateNodeDeclaredFeature",
    "UpdatePodLabel",
    "UpdatePodScaleDown",
    "UpdatePodToleration",
    "UpdatePodSchedulingGatesEliminated",
    "UpdatePodGeneratedResourceClaim",
];

impl ActionType {
    /// The object was added; for an assigned pod, it was bound.
    pub const ADD: ActionType = ActionType(1);
    /// The object was deleted.
    pub const DELETE: ActionType = ActionType(1 << 1);
    /// `status.allocatable` of a node changed.
    pub const UPDATE_NODE_ALLOCATABLE: ActionType = ActionType(1 << 2);
    /// A node's labels changed.
    pub const UPDATE_NODE_LABEL: ActionType = ActionType(1 << 3);
    /// A node's taints, or whether it is unschedulable, changed.
    pub const UPDATE_NODE_TAINT: ActionType = ActionType(1 << 4);
    /// `status.conditions` of a node changed.
    pub const UPDATE_NODE_CONDITION: ActionType = ActionType(1 << 5);
    /// A node's annotations changed.
    pub const UPDATE_NODE_ANNOTATION: ActionType = ActionType(1 << 6);
    /// `status.declaredFeatures` of a node changed.
    pub const UPDATE_NODE_DECLARED_FEATURE: ActionType = ActionType(1 << 7);
    /// A pod's labels changed.
    pub const UPDATE_POD_LABEL: ActionType = ActionType(1 << 8);
    /// A pod's resource requests were reduced.
    pub const UPDATE_POD_SCALE_DOWN: ActionType = ActionType(1 << 9);
    /// A pod's tolerations changed.
    pub const UPDATE_POD_TOLERATION: ActionType = ActionType(1 << 10);
    /// The last scheduling gate of a pod was removed.
    pub const UPDATE_POD_SCHEDULING_GATES_ELIMINATED: ActionType = ActionType(1 << 11);
    /// The ResourceClaims that were generated for a pod were added to its status.
    pub const UPDATE_POD_GENERATED_RESOURCE_CLAIM: ActionType = ActionType(1 << 12);
    /// All update bits.
    pub const UPDATE: ActionType = ActionType(((1 << 13) - 1) & !0b11);
    /// Every action.
    pub const ALL: ActionType = ActionType((1 << 13) - 1);

    /// Whether the two sets share an action.
    pub fn intersects(self, other: ActionType) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all of `other` is in this set.
    pub fn contains(self, other: ActionType) -> bool {
        self.0 & other.0 == other.0
    }

    /// The action with this name, `Update` and `All` included.
    pub fn from_name(name: &str) -> Option<ActionType> {
        match name {
            "Update" => Some(ActionType::UPDATE),
            "All" => Some(ActionType::ALL),
            _ => {
                ACTION_NAMES.iter().position(|known| *known == name).map(|bit| ActionType(1 << bit))
            }
        }
    }
}

impl BitOr for ActionType {
    type Output = ActionType;
    fn bitor(self, other: ActionType) -> ActionType {
        ActionType(self.0 | other.0)
    }
}

impl fmt::Display for ActionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == ActionType::ALL {
            return f.write_str("All");
        }
        let update = self.contains(ActionType::UPDATE);
        let mut names: Vec<&str> = Vec::new();
        for (bit, name) in ACTION_NAMES.iter().enumerate() {
            let named_by_update = update && bit >= 2;
            if self.0 & (1 << bit) != 0 && !named_by_update {
                names.push(name);
            }
        }
        if update {
            names.push("Update");
        }
        f.write_str(&names.join("|"))
    }
}

impl fmt::Debug for ActionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A change of an object in the cluster, or the registration of a plugin for such changes (upstream's `ClusterEvent`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterEvent {
    /// The kind of object.
    pub resource: EventResource,
    /// The action, or in a registration, all actions that match.
    pub action: ActionType,
}

impl ClusterEvent {
    /// An event.
    pub fn new(resource: EventResource, action: ActionType) -> Self {
        ClusterEvent { resource, action }
    }

    /// Any action on any resource. As an event it requeues a pod whichever plugins rejected it.
    pub fn wildcard() -> Self {
        ClusterEvent::new(EventResource::WildCard, ActionType::ALL)
    }

    /// A service published a value to this plugin.
    pub fn published_to_plugin(plugin: &str) -> Self {
        let name = format!("{plugin}.published");
        ClusterEvent::new(EventResource::Other(name.into()), ActionType::UPDATE)
    }

    /// Whether it is [`ClusterEvent::wildcard`].
    pub fn is_wildcard(&self) -> bool {
        self.resource == EventResource::WildCard && self.action == ActionType::ALL
    }

    /// Whether a plugin that registered this event is interested in `incoming` (upstream's `Match`).
    pub fn matches(&self, incoming: &ClusterEvent) -> bool {
        if self.is_wildcard() {
            return true;
        }
        let pods = [EventResource::AssignedPod, EventResource::UnschedulablePod];
        let resource = self.resource == EventResource::WildCard
            || self.resource == incoming.resource
            || self.resource == EventResource::Pod && pods.contains(&incoming.resource);
        resource && self.action.intersects(incoming.action) && incoming.action <= self.action
    }
}

/// The result of a queueing hint (upstream's `QueueingHint`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueingHint {
    /// The event may make the pod schedulable.
    Queue,
    /// The event cannot make the pod schedulable.
    Skip,
}

impl QueueingHint {
    /// `Queue` if the event may help, else `Skip`.
    pub fn queue_if(may_help: bool) -> QueueingHint {
        if may_help { QueueingHint::Queue } else { QueueingHint::Skip }
    }
}

/// An object before or after an event.
#[derive(Clone, Copy, Debug)]
pub enum EventObject<'a> {
    /// A pod, assigned or pending.
    Pod(&'a PodInfo),
    /// A node.
    Node(&'a Node),
    /// A namespace.
    Namespace(&'a Namespace),
    /// An object of a kind that plugins watch.
    Other(&'a ObjectInfo),
}

impl<'a> EventObject<'a> {
    /// The pod, if it is one.
    pub fn pod(self) -> Option<&'a PodInfo> {
        if let EventObject::Pod(pod) = self { Some(pod) } else { None }
    }

    /// The node, if it is one.
    pub fn node(self) -> Option<&'a Node> {
        if let EventObject::Node(node) = self { Some(node) } else { None }
    }

    /// The object of a kind that the plugin watches, if it is one, decoded into the type that the plugin requested.
    pub fn watched_object<T: 'static>(self) -> Option<&'a T> {
        if let EventObject::Other(info) = self { info.decoded_as() } else { None }
    }
}

/// The arguments of a queueing hint: an unschedulable pod, and an object before and after an event.
pub struct QueueingHintArgs<'a> {
    /// The unschedulable pod.
    pub pod: &'a PodInfo,
    /// The event.
    pub event: &'a ClusterEvent,
    /// The object before the event; `None` when it was added.
    pub old: Option<EventObject<'a>>,
    /// The object after the event; `None` when it was deleted.
    pub new: Option<EventObject<'a>>,
    /// The world after the event.
    pub world: &'a World,
    /// The plugins' states across cycles, after the event.
    pub states: &'a PluginStates,
}

impl<'a> QueueingHintArgs<'a> {
    readers!('a);

    /// The node before the event, if it was not added, and after it.
    ///
    /// # Errors
    ///
    /// When the event is not about a node, or the node was deleted.
    pub fn old_and_new_node(&self) -> Result<(Option<&'a Node>, &'a Node), Failure> {
        let new = self.new.and_then(EventObject::node);
        let new = new.ok_or_else(|| Failure::new("expected a node after the event"))?;
        Ok((self.old.and_then(EventObject::node), new))
    }

    /// The pod after the event.
    ///
    /// # Errors
    ///
    /// When the event is not about a pod, or the pod was deleted.
    pub fn new_pod(&self) -> Result<&'a PodInfo, Failure> {
        let new = self.new.and_then(EventObject::pod);
        new.ok_or_else(|| Failure::new("expected a pod after the event"))
    }

    /// The pod before the event.
    ///
    /// # Errors
    ///
    /// When the event is not about a pod, or the pod was added.
    pub fn old_pod(&self) -> Result<&'a PodInfo, Failure> {
        let old = self.old.and_then(EventObject::pod);
        old.ok_or_else(|| Failure::new("expected a pod before the event"))
    }
}

/// A queueing hint function (upstream's `QueueingHintFn`). An error is treated as [`QueueingHint::Queue`].
pub type QueueingHintFn =
    Arc<dyn Fn(&QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> + Send + Sync>;

/// An event that may make pods schedulable that a plugin rejected (upstream's `ClusterEventWithHint`).
#[derive(Clone)]
pub struct ClusterEventWithHint {
    /// The registered event.
    pub event: ClusterEvent,
    /// Called for each matching event; `None`: every matching event requeues the pod.
    pub hint: Option<QueueingHintFn>,
    /// When a pod loses its nominated node, this also requeues pods of a higher priority. Upstream requeues only pods of at most its
    /// priority, because nominated pods take no node from the others; they may take something else from them.
    pub ignores_priority: bool,
}
