//! PodGroup: the custom resource of a gang, in the group `scheduling.x-k8s.io` and in the older group `scheduling.sigs.k8s.io`.

use std::fmt;

use loadmaster_api::meta::nullable;
use loadmaster_api::{Labels, ResourceList, Str, Timestamp};
use loadmaster_framework::Gvr;
use serde::{Deserialize, Serialize};

/// The API group.
pub const GROUP: &str = "scheduling.x-k8s.io";

/// The API version.
pub const VERSION: &str = "v1alpha1";

/// The label with the name of a pod's PodGroup. An annotation of this name has no effect.
pub const LABEL: &str = "scheduling.x-k8s.io/pod-group";

/// The API group until version 0.23 of scheduler-plugins.
pub const OLD_GROUP: &str = "scheduling.sigs.k8s.io";

/// The label of that time.
pub const OLD_LABEL: &str = "pod-group.scheduling.sigs.k8s.io";

/// A PodGroup, as far as a scheduler reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodGroup {
    pub metadata: PodGroupMeta,
    #[serde(deserialize_with = "nullable")]
    pub spec: PodGroupSpec,
}

/// The part of its metadata that matters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodGroupMeta {
    pub creation_timestamp: Option<Timestamp>,
}

/// `spec` of a PodGroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodGroupSpec {
    /// So many members must have a node before any of them is bound. 0 and negative numbers mean 1.
    #[serde(deserialize_with = "nullable")]
    pub min_member: i32,
    /// So much must be free in the cluster, for all members together, before any member is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_resources: Option<ResourceList>,
    /// How long a member waits at Permit for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_timeout_seconds: Option<i32>,
}

/// `status` of a PodGroup, which its controller writes. Plugins do not read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// `Pending`, `Scheduling`, `Running`, `Finished` or `Failed`; empty until the controller has seen it.
    #[serde(deserialize_with = "nullable")]
    pub phase: String,
    /// The owners of its pods, as `namespace/name`, separated by commas.
    #[serde(deserialize_with = "nullable")]
    pub occupied_by: String,
    /// Number of running pods.
    #[serde(deserialize_with = "nullable")]
    pub running: i32,
    /// Number of pods that have succeeded.
    #[serde(deserialize_with = "nullable")]
    pub succeeded: i32,
    /// Number of pods that have failed.
    #[serde(deserialize_with = "nullable")]
    pub failed: i32,
    /// When the group began to be scheduled. Nobody writes it.
    pub schedule_start_time: Option<String>,
}

impl PodGroupSpec {
    /// [`PodGroupSpec::min_member`] as a number of pods.
    pub fn n_min(&self) -> usize {
        usize::try_from(self.min_member).unwrap_or(0).max(1)
    }
}

/// Identifies a group of pods: the PodGroup that their label names, whether or not it exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey {
    /// The namespace of the PodGroup and of its pods.
    pub namespace: Str,
    /// The name of the PodGroup.
    pub name: Str,
    /// Whether it is a PodGroup of the older API group.
    pub is_old: bool,
}

impl GroupKey {
    /// The group of the pods with these labels in a namespace. The current label comes before the old one.
    pub fn of_labels(namespace: &Str, labels: &Labels) -> Option<GroupKey> {
        let named = |label: &str| labels.get(label).filter(|name| !name.is_empty());
        let (name, is_old) = match named(LABEL) {
            Some(name) => (name, false),
            None => (named(OLD_LABEL)?, true),
        };
        Some(GroupKey { namespace: namespace.clone(), name: name.clone(), is_old })
    }
}

/// `namespace/name`.
impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The kind of PodGroups.
pub fn pod_groups() -> Gvr {
    Gvr::new(GROUP, VERSION, "podgroups")
}

/// The kind of PodGroups of the older API group.
pub fn old_pod_groups() -> Gvr {
    Gvr::new(OLD_GROUP, VERSION, "podgroups")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_current_label_comes_before_the_old_one() {
        #[track_caller]
        fn check(labels: serde_json::Value, want: Option<(&str, bool)>) {
            let labels: Labels = serde_json::from_value(labels).unwrap();
            let key = GroupKey::of_labels(&"ns".into(), &labels);
            assert_eq!(key.as_ref().map(|key| (&*key.name, key.is_old)), want);
        }
        check(json!({}), None);
        check(json!({LABEL: ""}), None);
        check(json!({LABEL: "a"}), Some(("a", false)));
        check(json!({OLD_LABEL: "b"}), Some(("b", true)));
        check(json!({LABEL: "a", OLD_LABEL: "b"}), Some(("a", false)));
    }

    #[test]
    fn absent_fields_and_null_are_defaults() {
        #[track_caller]
        fn check(spec: serde_json::Value, n_min: usize) {
            let group: PodGroup = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(group.spec.n_min(), n_min);
        }
        check(json!(null), 1);
        check(json!({"minMember": null}), 1);
        check(json!({"minMember": -3}), 1);
        check(json!({"minMember": 8, "scheduleTimeoutSeconds": 10}), 8);
    }
}
