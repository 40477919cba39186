//! The kinds that are listed and watched, and the RBAC rules that this needs.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A kind that is listed and watched. `loadmaster-api` defines which of its fields are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Pods that are not Succeeded or Failed.
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
    /// Any other kind, decoded from JSON.
    Dynamic(DynamicKind),
}

/// A kind that is not known at compile time, such as those that plugins watch.
#[derive(Clone, Copy)]
pub struct DynamicKind(&'static ApiResource);

impl DynamicKind {
    fn key(&self) -> (&str, &str, &str) {
        (self.0.group, self.0.version, self.0.resource)
    }
}

impl PartialEq for DynamicKind {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for DynamicKind {}

impl PartialOrd for DynamicKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DynamicKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Hash for DynamicKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for DynamicKind {
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

    /// The kinds that a scheduler watches: what upstream's role `system:kube-scheduler` allows. Pods carry their priorities.
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

    /// A kind that is not among [`Kind::ALL`]. It is never freed: create each kind once.
    pub fn dynamic(group: &str, version: &str, resource: &str, required: bool) -> Kind {
        fn leak(text: &str) -> &'static str {
            Box::leak(text.into())
        }
        Kind::Dynamic(DynamicKind(Box::leak(Box::new(ApiResource {
            group: leak(group),
            version: leak(version),
            resource: leak(resource),
            field_selector: None,
            required,
            effect_if_missing: "plugins that watch it see no objects",
        }))))
    }

    /// Its resource on the API server.
    pub fn resource(self) -> &'static ApiResource {
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
            Kind::Dynamic(DynamicKind(resource)) => return resource,
        };
        &RESOURCES[at]
    }
}

/// The API resource of a kind.
#[derive(Debug)]
pub struct ApiResource {
    /// The API group, empty for core.
    pub group: &'static str,
    /// The version, such as `v1`.
    pub version: &'static str,
    /// The plural name of the resource.
    pub resource: &'static str,
    /// The field selector of lists and watches.
    pub field_selector: Option<&'static str>,
    /// Without this kind no pod can be scheduled.
    pub required: bool,
    /// What does not work when this kind cannot be read.
    pub effect_if_missing: &'static str,
}

const fn optional(
    group: &'static str,
    resource: &'static str,
    without: &'static str,
) -> ApiResource {
    ApiResource {
        group,
        version: "v1",
        resource,
        field_selector: None,
        required: false,
        effect_if_missing: without,
    }
}

const DEFAULT_SPREADING: &str = "default spreading of pods over zones may be scored differently";

/// In the order of [`Kind`]. Pods before nodes: the node of a pod is older than the pod, so that the later list contains it.
pub(crate) const RESOURCES: [ApiResource; 9] = [
    ApiResource {
        group: "",
        version: "v1",
        resource: "pods",
        field_selector: Some("status.phase!=Succeeded,status.phase!=Failed"),
        required: true,
        effect_if_missing: "",
    },
    ApiResource {
        group: "",
        version: "v1",
        resource: "nodes",
        field_selector: None,
        required: true,
        effect_if_missing: "",
    },
    optional("", "namespaces", "affinity terms with a namespaceSelector match no namespace"),
    optional("", "services", DEFAULT_SPREADING),
    optional("", "replicationcontrollers", DEFAULT_SPREADING),
    optional("apps", "replicasets", DEFAULT_SPREADING),
    optional("apps", "statefulsets", DEFAULT_SPREADING),
    optional("policy", "poddisruptionbudgets", "preemption ignores PodDisruptionBudgets"),
    optional("scheduling.k8s.io", "priorityclasses", "priorities are read from the pods only"),
];

impl ApiResource {
    /// The path of the list in all namespaces.
    pub fn list_path(&self) -> String {
        let ApiResource { group, version, resource, .. } = self;
        match *group {
            "" => format!("/api/{version}/{resource}"),
            group => format!("/apis/{group}/{version}/{resource}"),
        }
    }

    /// The ClusterRole rule that allows the list.
    pub fn cluster_role_rule(&self) -> String {
        list_rule(self.group, self.resource)
    }

    /// A permission as text, such as `list pods in core at cluster scope`.
    pub fn permission_text(&self, verb: &str) -> String {
        let group = if self.group.is_empty() { "core" } else { self.group };
        format!("{verb} {} in {group} at cluster scope", self.resource)
    }
}

/// The ClusterRole rule that allows lists of resources, whose names are separated by commas.
fn list_rule(group: &str, resources: &str) -> String {
    format!("{{apiGroups: [{group:?}], resources: [{resources}], verbs: [list]}}")
}

/// Why an optional kind could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnreadCause {
    /// The API server does not serve it.
    NotServed,
    /// RBAC does not allow it.
    Forbidden,
}

impl UnreadCause {
    /// The cause as text, for resources of one API group.
    pub fn text(self, group: &str, resources: &[&str]) -> String {
        let resources = resources.join(", ");
        match self {
            UnreadCause::NotServed => format!("this cluster has no {resources}"),
            UnreadCause::Forbidden => {
                let rule = list_rule(group, &resources);
                format!("not allowed to list {resources} (missing rule: {rule})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_watches_all_kinds_but_priority_classes() {
        let watched = Kind::ALL.into_iter().filter(|kind| *kind != Kind::PriorityClass);
        assert!(watched.eq(Kind::SCHEDULING));
    }

    #[test]
    fn the_table_is_in_the_order_of_the_kinds() {
        for (kind, resource) in Kind::ALL.into_iter().zip(&RESOURCES) {
            assert_eq!(kind.resource().list_path(), resource.list_path());
            let name = format!("{kind:?}").to_lowercase();
            assert!(resource.resource.starts_with(&name), "{name}: {}", resource.resource);
        }
        let pods = Kind::Pod.resource();
        assert_eq!(pods.permission_text("list"), "list pods in core at cluster scope");
        let budgets = Kind::PodDisruptionBudget.resource();
        assert_eq!(
            budgets.permission_text("watch"),
            "watch poddisruptionbudgets in policy at cluster scope"
        );
    }

    #[test]
    fn kinds_registered_by_plugins() {
        let foos = Kind::dynamic("example.com", "v1beta1", "foos", true);
        assert_eq!(foos.resource().list_path(), "/apis/example.com/v1beta1/foos");
        assert_eq!(foos, Kind::dynamic("example.com", "v1beta1", "foos", false));
        assert_ne!(foos, Kind::dynamic("example.com", "v1", "foos", true));
        assert_eq!(
            Kind::dynamic("", "v1", "configmaps", true).resource().list_path(),
            "/api/v1/configmaps"
        );
        assert_eq!(format!("{foos:?}"), "Dynamic(foos.v1beta1.example.com)");
        assert_eq!(
            foos.resource().permission_text("list"),
            "list foos in example.com at cluster scope"
        );
    }
}
