//! Cluster events and queueing hints: what happened, and whether it may make a rejected pod schedulable.

use std::fmt;
use std::ops::BitOr;
use std::sync::Arc;

use loadmaster_api::{Namespace, Node, Str};

use crate::objects::ObjectInfo;
use crate::pod::PodInfo;
use crate::result::Failure;

/// What kind of object an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventResource {
    /// Registered for both of the next two.
    Pod,
    /// A pod that is on a node.
    AssignedPod,
    /// A pending pod.
    UnschedulablePod,
    /// A node.
    Node,
    /// A volume of the cluster.
    PersistentVolume,
    /// A claim on a volume.
    PersistentVolumeClaim,
    /// What the storage drivers of a node can do.
    CsiNode,
    /// A storage driver.
    CsiDriver,
    /// A volume attached to a node, or meant to be.
    VolumeAttachment,
    /// How much a storage class has left in a topology.
    CsiStorageCapacity,
    /// A storage class.
    StorageClass,
    /// A claim on devices.
    ResourceClaim,
    /// Devices that a driver offers.
    ResourceSlice,
    /// A class of devices.
    DeviceClass,
    /// Pods that are scheduled together.
    PodGroup,
    /// `<plural>.<version>.<group>`.
    Other(Str),
    /// Every kind of object.
    WildCard,
}

impl EventResource {
    /// Upstream's name.
    pub fn name(&self) -> &str {
        match self {
            EventResource::Pod => "Pod",
            EventResource::AssignedPod => "AssignedPod",
            EventResource::UnschedulablePod => "UnschedulablePod",
            EventResource::Node => "Node",
            EventResource::PersistentVolume => "PersistentVolume",
            EventResource::PersistentVolumeClaim => "PersistentVolumeClaim",
            EventResource::CsiNode => "storage.k8s.io/CSINode",
            EventResource::CsiDriver => "storage.k8s.io/CSIDriver",
            EventResource::VolumeAttachment => "storage.k8s.io/VolumeAttachment",
            EventResource::CsiStorageCapacity => "storage.k8s.io/CSIStorageCapacity",
            EventResource::StorageClass => "storage.k8s.io/StorageClass",
            EventResource::ResourceClaim => "resource.k8s.io/ResourceClaim",
            EventResource::ResourceSlice => "resource.k8s.io/ResourceSlice",
            EventResource::DeviceClass => "resource.k8s.io/DeviceClass",
            EventResource::PodGroup => "scheduling.k8s.io/PodGroup",
            EventResource::Other(name) => name,
            EventResource::WildCard => "*",
        }
    }
}

/// A set of actions, as upstream's `ActionType` bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action(pub u32);

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

impl Action {
    /// The object appeared; for an assigned pod, it was bound.
    pub const ADD: Action = Action(1);
    /// The object is gone.
    pub const DELETE: Action = Action(1 << 1);
    /// `status.allocatable` of a node changed.
    pub const UPDATE_NODE_ALLOCATABLE: Action = Action(1 << 2);
    /// A node's labels changed.
    pub const UPDATE_NODE_LABEL: Action = Action(1 << 3);
    /// A node's taints, or whether it is unschedulable, changed.
    pub const UPDATE_NODE_TAINT: Action = Action(1 << 4);
    /// `status.conditions` of a node changed.
    pub const UPDATE_NODE_CONDITION: Action = Action(1 << 5);
    /// A node's annotations changed.
    pub const UPDATE_NODE_ANNOTATION: Action = Action(1 << 6);
    /// `status.declaredFeatures` of a node changed.
    pub const UPDATE_NODE_DECLARED_FEATURE: Action = Action(1 << 7);
    /// A pod's labels changed.
    pub const UPDATE_POD_LABEL: Action = Action(1 << 8);
    /// A pod asks for less than before.
    pub const UPDATE_POD_SCALE_DOWN: Action = Action(1 << 9);
    /// A pod's tolerations changed.
    pub const UPDATE_POD_TOLERATION: Action = Action(1 << 10);
    /// The last scheduling gate of a pod was taken away.
    pub const UPDATE_POD_SCHEDULING_GATES_ELIMINATED: Action = Action(1 << 11);
    /// The claims that were generated for a pod became known in its status.
    pub const UPDATE_POD_GENERATED_RESOURCE_CLAIM: Action = Action(1 << 12);
    /// All update bits.
    pub const UPDATE: Action = Action(((1 << 13) - 1) & !0b11);
    /// Every action.
    pub const ALL: Action = Action((1 << 13) - 1);

    /// Whether the two sets share an action.
    pub fn intersects(self, other: Action) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all of `other` is in this set.
    pub fn contains(self, other: Action) -> bool {
        self.0 & other.0 == other.0
    }

    /// The action with this name, `Update` and `All` included.
    pub fn from_name(name: &str) -> Option<Action> {
        match name {
            "Update" => Some(Action::UPDATE),
            "All" => Some(Action::ALL),
            _ => ACTION_NAMES.iter().position(|known| *known == name).map(|bit| Action(1 << bit)),
        }
    }
}

impl BitOr for Action {
    type Output = Action;
    fn bitor(self, other: Action) -> Action {
        Action(self.0 | other.0)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Action::ALL {
            return f.write_str("All");
        }
        let update = self.contains(Action::UPDATE);
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

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Something happened to objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterEvent {
    /// The kind of object.
    pub resource: EventResource,
    /// What happened, or in a registration, all that counts.
    pub action: Action,
}

impl ClusterEvent {
    /// An event.
    pub fn new(resource: EventResource, action: Action) -> Self {
        ClusterEvent { resource, action }
    }

    /// Any action on any resource. As something that happened it means: look at the pod again, whoever rejected it.
    pub fn wildcard() -> Self {
        ClusterEvent::new(EventResource::WildCard, Action::ALL)
    }

    /// A service published something to this plugin.
    pub fn published(plugin: &str) -> Self {
        let name = format!("{plugin}.published");
        ClusterEvent::new(EventResource::Other(name.into()), Action::UPDATE)
    }

    /// Whether it is [`ClusterEvent::wildcard`].
    pub fn is_wildcard(&self) -> bool {
        self.resource == EventResource::WildCard && self.action == Action::ALL
    }

    /// Whether a plugin registered for this event is asked about `incoming` (upstream's `Match`).
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

/// A plugin's answer to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The event may make the pod schedulable.
    Queue,
    /// It cannot.
    Skip,
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
    /// An object of a kind that only plugins know.
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

    /// The object of a kind that the plugin watches, if it is one, in the type in which the plugin reads it.
    pub fn object<T: 'static>(self) -> Option<&'a T> {
        if let EventObject::Other(info) = self { info.get() } else { None }
    }
}

/// What a hint is asked: about this rejected pod, an object that was `old` is `new`. One of the two may be absent.
pub struct HintQuestion<'a> {
    /// The rejected pod.
    pub pod: &'a PodInfo,
    /// What happened.
    pub event: &'a ClusterEvent,
    /// The object before the event; `None` when it is new.
    pub old: Option<EventObject<'a>>,
    /// The object after the event; `None` when it is gone.
    pub new: Option<EventObject<'a>>,
    /// Everything as it is after the event.
    pub world: &'a crate::world::World,
}

impl<'a> HintQuestion<'a> {
    /// The node as it was, if it is not new, and as it is.
    pub fn node_change(&self) -> Result<(Option<&'a Node>, &'a Node), Failure> {
        let new = self.new.and_then(EventObject::node);
        let new = new.ok_or_else(|| Failure::new("expected a node after the event"))?;
        Ok((self.old.and_then(EventObject::node), new))
    }

    /// The pod as it is, of an event that added or changed one.
    pub fn pod_now(&self) -> Result<&'a PodInfo, Failure> {
        let new = self.new.and_then(EventObject::pod);
        new.ok_or_else(|| Failure::new("expected a pod after the event"))
    }

    /// The pod as it was, of an event that changed or deleted one.
    pub fn pod_before(&self) -> Result<&'a PodInfo, Failure> {
        let old = self.old.and_then(EventObject::pod);
        old.ok_or_else(|| Failure::new("expected a pod before the event"))
    }
}

/// A queueing hint. An error counts as [`Hint::Queue`].
pub type HintFn = Arc<dyn Fn(&HintQuestion<'_>) -> Result<Hint, Failure> + Send + Sync>;

/// An event that may wake pods a plugin rejected; without a function it always does.
#[derive(Clone)]
pub struct EventWithHint {
    /// What is registered.
    pub event: ClusterEvent,
    /// Asked when it happens.
    pub hint: Option<HintFn>,
}
