//! What is read of a cluster.

/// A kind that is listed.
pub(crate) struct Kind {
    /// The group, empty for core.
    pub group: &'static str,
    pub resource: &'static str,
    /// Only objects that pass are asked for.
    pub field_selector: Option<&'static str>,
    /// Without it there is nothing to explain.
    pub required: bool,
    /// What is missing without it.
    pub without: &'static str,
}

const fn optional(group: &'static str, resource: &'static str, without: &'static str) -> Kind {
    Kind { group, resource, field_selector: None, required: false, without }
}

const OWN_SPREADING: &str = "default spreading of pods over zones may be scored differently";

/// Pods before nodes: a pod's node is older than the pod, so that it is among those listed later.
pub(crate) const KINDS: [Kind; 9] = [
    Kind {
        group: "",
        resource: "pods",
        field_selector: Some("status.phase!=Succeeded,status.phase!=Failed"),
        required: true,
        without: "",
    },
    Kind { group: "", resource: "nodes", field_selector: None, required: true, without: "" },
    optional("", "namespaces", "affinity terms with a namespaceSelector match no namespace"),
    optional("", "services", OWN_SPREADING),
    optional("", "replicationcontrollers", OWN_SPREADING),
    optional("apps", "replicasets", OWN_SPREADING),
    optional("apps", "statefulsets", OWN_SPREADING),
    optional("policy", "poddisruptionbudgets", "preemption would not know what is protected"),
    optional("scheduling.k8s.io", "priorityclasses", "priorities are read from the pods alone"),
];

impl Kind {
    /// The path of the list over all namespaces.
    pub fn path(&self) -> String {
        match self.group {
            "" => format!("/api/v1/{}", self.resource),
            group => format!("/apis/{group}/v1/{}", self.resource),
        }
    }

    /// What a ClusterRole must say.
    pub fn rule(&self) -> String {
        format!("{{apiGroups: [{:?}], resources: [{}], verbs: [list]}}", self.group, self.resource)
    }
}
