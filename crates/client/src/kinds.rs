//! What is read of a cluster, and what a ClusterRole must say for it.

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

    /// Where it is found on the server.
    pub fn resource(self) -> &'static Resource {
        &RESOURCES[self as usize]
    }
}

/// How a kind is asked for.
#[derive(Debug)]
pub struct Resource {
    /// The kind.
    pub kind: Kind,
    /// The group, empty for core. The version is `v1` throughout.
    pub group: &'static str,
    /// The plural name.
    pub resource: &'static str,
    /// Only objects that pass are asked for.
    pub field_selector: Option<&'static str>,
    /// Without it no pod can be scheduled.
    pub required: bool,
    /// What is missing without it.
    pub without: &'static str,
}

const fn optional(
    kind: Kind,
    group: &'static str,
    resource: &'static str,
    without: &'static str,
) -> Resource {
    Resource { kind, group, resource, field_selector: None, required: false, without }
}

const OWN_SPREADING: &str = "default spreading of pods over zones may be scored differently";

/// Pods before nodes: a pod's node is older than the pod, so that it is among those listed later. In the order of [`Kind`].
pub(crate) const RESOURCES: [Resource; 9] = [
    Resource {
        kind: Kind::Pod,
        group: "",
        resource: "pods",
        field_selector: Some("status.phase!=Succeeded,status.phase!=Failed"),
        required: true,
        without: "",
    },
    Resource {
        kind: Kind::Node,
        group: "",
        resource: "nodes",
        field_selector: None,
        required: true,
        without: "",
    },
    optional(
        Kind::Namespace,
        "",
        "namespaces",
        "affinity terms with a namespaceSelector match no namespace",
    ),
    optional(Kind::Service, "", "services", OWN_SPREADING),
    optional(Kind::ReplicationController, "", "replicationcontrollers", OWN_SPREADING),
    optional(Kind::ReplicaSet, "apps", "replicasets", OWN_SPREADING),
    optional(Kind::StatefulSet, "apps", "statefulsets", OWN_SPREADING),
    optional(
        Kind::PodDisruptionBudget,
        "policy",
        "poddisruptionbudgets",
        "preemption would not know what is protected",
    ),
    optional(
        Kind::PriorityClass,
        "scheduling.k8s.io",
        "priorityclasses",
        "priorities are read from the pods alone",
    ),
];

impl Resource {
    /// The path of the list over all namespaces.
    pub fn path(&self) -> String {
        match self.group {
            "" => format!("/api/v1/{}", self.resource),
            group => format!("/apis/{group}/v1/{}", self.resource),
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
        for kind in Kind::ALL {
            assert_eq!(kind.resource().kind, kind);
        }
        let pods = Kind::Pod.resource();
        assert_eq!(pods.permission("list"), "list pods in core at cluster scope");
        let budgets = Kind::PodDisruptionBudget.resource();
        assert_eq!(
            budgets.permission("watch"),
            "watch poddisruptionbudgets in policy at cluster scope"
        );
    }
}
