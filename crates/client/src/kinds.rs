//! What is read of a cluster, and what a ClusterRole must say for it.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A kind that is followed. Which of its fields are read is `loadmaster-api`'s matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Pods that have not ended.
    Pod,
    /// Nodes.
    Node,
    /// Namespaces.
    Namespace,
    /// Services.
    Service,
    /// ReplicationControllers.
    ReplicationController,
    /// ReplicaSets.
    ReplicaSet,
    /// StatefulSets.
    StatefulSet,
    /// PodDisruptionBudgets.
    PodDisruptionBudget,
    /// PriorityClasses.
    PriorityClass,
    /// Any other kind, read as JSON.
    Other(OtherKind),
}

/// A kind that is known only while the program runs: what plugins watch.
#[derive(Clone, Copy)]
pub struct OtherKind(&'static Resource);

impl OtherKind {
    fn key(&self) -> (&str, &str, &str) {
        (self.0.group, self.0.version, self.0.resource)
    }
}

impl PartialEq for OtherKind {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for OtherKind {}

impl PartialOrd for OtherKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OtherKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Hash for OtherKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for OtherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, version, resource) = self.key();
        write!(f, "{resource}.{version}.{group}")
    }
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::Pod,
        Kind::Node,
        Kind::Namespace,
        Kind::Service,
        Kind::ReplicationController,
        Kind::ReplicaSet,
        Kind::StatefulSet,
        Kind::PodDisruptionBudget,
        Kind::PriorityClass,
    ];

    /// What a running scheduler follows: what upstream's role `system:kube-scheduler` allows. Priorities come with the pods.
    pub const SCHEDULING: [Kind; 8] = [
        Kind::Pod,
        Kind::Node,
        Kind::Namespace,
        Kind::Service,
        Kind::ReplicationController,
        Kind::ReplicaSet,
        Kind::StatefulSet,
        Kind::PodDisruptionBudget,
    ];

    /// A kind that is not among [`Kind::ALL`]. It is remembered for as long as the program runs: make each once.
    pub fn other(group: &str, version: &str, resource: &str, required: bool) -> Kind {
        fn keep(text: &str) -> &'static str {
            Box::leak(text.into())
        }
        Kind::Other(OtherKind(Box::leak(Box::new(Resource {
            group: keep(group),
            version: keep(version),
            resource: keep(resource),
            field_selector: None,
            required,
            without: "plugins that watch it see no objects",
        }))))
    }

    /// Where it is found on the server.
    pub fn resource(self) -> &'static Resource {
        let at = match self {
            Kind::Pod => 0,
            Kind::Node => 1,
            Kind::Namespace => 2,
            Kind::Service => 3,
            Kind::ReplicationController => 4,
            Kind::ReplicaSet => 5,
            Kind::StatefulSet => 6,
            Kind::PodDisruptionBudget => 7,
            Kind::PriorityClass => 8,
            Kind::Other(OtherKind(resource)) => return resource,
        };
        &RESOURCES[at]
    }
}

/// How a kind is asked for.
#[derive(Debug)]
pub struct Resource {
    /// The group, empty for core.
    pub group: &'static str,
    /// Such as `v1`.
    pub version: &'static str,
    /// The plural name.
    pub resource: &'static str,
    /// Only objects that pass are asked for.
    pub field_selector: Option<&'static str>,
    /// Without it no pod can be scheduled.
    pub required: bool,
    /// What is missing without it.
    pub without: &'static str,
}

const fn optional(group: &'static str, resource: &'static str, without: &'static str) -> Resource {
    Resource { group, version: "v1", resource, field_selector: None, required: false, without }
}

const OWN_SPREADING: &str = "default spreading of pods over zones may be scored differently";

/// Pods before nodes: a pod's node is older than the pod, so that it is among those listed later. In the order of [`Kind`].
pub(crate) const RESOURCES: [Resource; 9] = [
    Resource {
        group: "",
        version: "v1",
        resource: "pods",
        field_selector: Some("status.phase!=Succeeded,status.phase!=Failed"),
        required: true,
        without: "",
    },
    Resource {
        group: "",
        version: "v1",
        resource: "nodes",
        field_selector: None,
        required: true,
        without: "",
    },
    optional("", "namespaces", "affinity terms with a namespaceSelector match no namespace"),
    optional("", "services", OWN_SPREADING),
    optional("", "replicationcontrollers", OWN_SPREADING),
    optional("apps", "replicasets", OWN_SPREADING),
    optional("apps", "statefulsets", OWN_SPREADING),
    optional("policy", "poddisruptionbudgets", "preemption would not know what is protected"),
    optional("scheduling.k8s.io", "priorityclasses", "priorities are read from the pods alone"),
];

impl Resource {
    /// The path of the list over all namespaces.
    pub fn path(&self) -> String {
        let Resource { group, version, resource, .. } = self;
        match *group {
            "" => format!("/api/{version}/{resource}"),
            group => format!("/apis/{group}/{version}/{resource}"),
        }
    }

    /// What a ClusterRole must say for a list.
    pub fn rule(&self) -> String {
        format!("{{apiGroups: [{:?}], resources: [{}], verbs: [list]}}", self.group, self.resource)
    }

    /// A permission in words, such as `list pods in core at cluster scope`.
    pub fn permission(&self, verb: &str) -> String {
        let group = if self.group.is_empty() { "core" } else { self.group };
        format!("{verb} {} in {group} at cluster scope", self.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_follows_all_but_priority_classes() {
        let followed = Kind::ALL.into_iter().filter(|kind| *kind != Kind::PriorityClass);
        assert!(followed.eq(Kind::SCHEDULING));
    }

    #[test]
    fn the_table_is_in_the_order_of_the_kinds() {
        for (kind, resource) in Kind::ALL.into_iter().zip(&RESOURCES) {
            assert_eq!(kind.resource().path(), resource.path());
            let name = format!("{kind:?}").to_lowercase();
            assert!(resource.resource.starts_with(&name), "{name}: {}", resource.resource);
        }
        let pods = Kind::Pod.resource();
        assert_eq!(pods.permission("list"), "list pods in core at cluster scope");
        let budgets = Kind::PodDisruptionBudget.resource();
        assert_eq!(
            budgets.permission("watch"),
            "watch poddisruptionbudgets in policy at cluster scope"
        );
    }

    #[test]
    fn kinds_that_only_plugins_know() {
        let foos = Kind::other("example.com", "v1beta1", "foos", true);
        assert_eq!(foos.resource().path(), "/apis/example.com/v1beta1/foos");
        assert_eq!(foos, Kind::other("example.com", "v1beta1", "foos", false));
        assert_ne!(foos, Kind::other("example.com", "v1", "foos", true));
        assert_eq!(
            Kind::other("", "v1", "configmaps", true).resource().path(),
            "/api/v1/configmaps"
        );
        assert_eq!(format!("{foos:?}"), "Other(foos.v1beta1.example.com)");
        assert_eq!(foos.resource().permission("list"), "list foos in example.com at cluster scope");
    }
}
