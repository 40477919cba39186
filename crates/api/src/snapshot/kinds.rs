//! Which kinds a snapshot contains, skips or rejects.

/// Kinds that a snapshot contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SnapshotKind {
    Node,
    Pod,
    Namespace,
    Service,
    ReplicationController,
    ReplicaSet,
    StatefulSet,
    Deployment,
    Job,
    PodDisruptionBudget,
    PriorityClass,
}

/// What to do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KindHandling {
    Keep(SnapshotKind),
    /// A list of anything, or of the kind its name begins with.
    List,
    /// Scheduling does not read it.
    Skip {
        /// Named by kind and group instead of kind alone.
        is_custom: bool,
    },
    /// The kind is supported in this API version only.
    WrongVersion {
        expected: &'static str,
    },
    Unknown,
}

const SNAPSHOT_KINDS: [(&str, &str, SnapshotKind); 11] = [
    ("Node", "v1", SnapshotKind::Node),
    ("Pod", "v1", SnapshotKind::Pod),
    ("Namespace", "v1", SnapshotKind::Namespace),
    ("Service", "v1", SnapshotKind::Service),
    ("ReplicationController", "v1", SnapshotKind::ReplicationController),
    ("ReplicaSet", "apps/v1", SnapshotKind::ReplicaSet),
    ("StatefulSet", "apps/v1", SnapshotKind::StatefulSet),
    ("Deployment", "apps/v1", SnapshotKind::Deployment),
    ("Job", "batch/v1", SnapshotKind::Job),
    ("PodDisruptionBudget", "policy/v1", SnapshotKind::PodDisruptionBudget),
    ("PriorityClass", "scheduling.k8s.io/v1", SnapshotKind::PriorityClass),
];

/// Kinds of the groups that Kubernetes itself serves (1.36) and scheduling does not read; what storage and
/// device plugins read of them is not part of a snapshot yet. The core group has no name.
const SKIPPED: [(&str, &[&str]); 22] = [
    (
        "",
        &[
            "Binding",
            "ComponentStatus",
            "ConfigMap",
            "Endpoints",
            "Event",
            "LimitRange",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "PodTemplate",
            "ResourceQuota",
            "Secret",
            "ServiceAccount",
        ],
    ),
    (
        "admissionregistration.k8s.io",
        &[
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ],
    ),
    ("apiextensions.k8s.io", &["CustomResourceDefinition"]),
    ("apiregistration.k8s.io", &["APIService"]),
    ("apps", &["ControllerRevision", "DaemonSet"]),
    ("autoscaling", &["HorizontalPodAutoscaler", "Scale"]),
    ("batch", &["CronJob"]),
    (
        "certificates.k8s.io",
        &["CertificateSigningRequest", "ClusterTrustBundle", "PodCertificateRequest"],
    ),
    ("coordination.k8s.io", &["Lease", "LeaseCandidate"]),
    ("discovery.k8s.io", &["EndpointSlice"]),
    ("events.k8s.io", &["Event"]),
    ("extensions", &["Ingress"]),
    ("flowcontrol.apiserver.k8s.io", &["FlowSchema", "PriorityLevelConfiguration"]),
    ("internal.apiserver.k8s.io", &["StorageVersion"]),
    (
        "networking.k8s.io",
        &["IPAddress", "Ingress", "IngressClass", "NetworkPolicy", "ServiceCIDR"],
    ),
    ("node.k8s.io", &["RuntimeClass"]),
    ("policy", &["PodSecurityPolicy"]),
    ("rbac.authorization.k8s.io", &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
    (
        "resource.k8s.io",
        &[
            "DeviceClass",
            "DeviceTaintRule",
            "ResourceClaim",
            "ResourceClaimTemplate",
            "ResourcePoolStatusRequest",
            "ResourceSlice",
        ],
    ),
    ("scheduling.k8s.io", &["PodGroup", "Workload"]),
    (
        "storage.k8s.io",
        &[
            "CSIDriver",
            "CSINode",
            "CSIStorageCapacity",
            "StorageClass",
            "VolumeAttachment",
            "VolumeAttributesClass",
        ],
    ),
    ("storagemigration.k8s.io", &["StorageVersionMigration"]),
];

/// The group of an `apiVersion`.
pub(super) fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Whether this is not a group that Kubernetes itself serves. Those without a dot are reserved for it.
pub(super) fn is_custom(api_version: &str) -> bool {
    let group = group_of(api_version);
    group.contains('.') && SKIPPED.iter().all(|(name, _)| *name != group)
}

/// The kinds of an `apiVersion` that Kubernetes itself serves.
pub(super) fn kinds_of(api_version: &str) -> impl Iterator<Item = &'static str> {
    let kept = SNAPSHOT_KINDS.iter().filter(move |(_, version, _)| *version == api_version);
    let skipped = SKIPPED.iter().filter(move |(group, _)| *group == group_of(api_version));
    kept.map(|(kind, ..)| *kind).chain(skipped.flat_map(|(_, kinds)| kinds.iter().copied()))
}

/// What to do with objects of this kind.
pub(super) fn class_of(api_version: &str, kind: &str) -> KindHandling {
    // By far the most frequent ones first.
    if api_version == "v1" && kind == "Pod" {
        return KindHandling::Keep(SnapshotKind::Pod);
    }
    if is_custom(api_version) {
        let is_list = kind.len() > "List".len() && kind.ends_with("List");
        return if is_list { KindHandling::List } else { KindHandling::Skip { is_custom: true } };
    }
    if let Some((_, expected, kept)) = SNAPSHOT_KINDS.iter().find(|(name, ..)| *name == kind) {
        return match api_version == *expected {
            true => KindHandling::Keep(*kept),
            false => KindHandling::WrongVersion { expected },
        };
    }
    let group = group_of(api_version);
    match SKIPPED.iter().find(|(name, _)| *name == group) {
        Some((_, kinds)) if kinds.contains(&kind) => KindHandling::Skip { is_custom: false },
        _ if kind == "List" && api_version != "v1" => KindHandling::WrongVersion { expected: "v1" },
        Some(_) if kind.ends_with("List") => KindHandling::List,
        _ => KindHandling::Unknown,
    }
}

/// The kind of the items of a list, if its name says so.
pub(super) fn item_kind(list_kind: &str) -> Option<&str> {
    list_kind.strip_suffix("List").filter(|kind| !kind.is_empty())
}
