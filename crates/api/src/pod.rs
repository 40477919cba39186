//! `v1` Pod: the fields that scheduling reads.

use std::sync::Arc;

use serde::Deserialize;

use crate::ResourceList;
use crate::disk_source::{DiskSource, struct_with_disk_fields};
use crate::extra_fields::ExtraFields;
use crate::go_json::{list, nullable, object, objects, optional_object};
use crate::interned_str::Str;
use crate::meta::{ObjectMeta, Timestamp};
use crate::pod_spec::PodSpec;
use crate::selector::{LabelSelector, NodeSelector, NodeSelectorTerm};

/// A group of containers that is placed as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: PodSpec,
    #[serde(deserialize_with = "object")]
    pub status: PodStatus,
    /// Extra fields, if requested.
    #[serde(skip)]
    pub extra: Option<Arc<ExtraFields>>,
}

impl Pod {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }
}

/// An entry of which only the name matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct NamedItem {
    #[serde(deserialize_with = "nullable")]
    pub name: Str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    #[serde(deserialize_with = "nullable")]
    pub name: Str,
    #[serde(deserialize_with = "nullable")]
    pub image: Str,
    #[serde(deserialize_with = "object")]
    pub resources: ContainerResources,
    #[serde(deserialize_with = "objects")]
    pub ports: Vec<ContainerPort>,
    /// `Always` on an init container makes it a sidecar.
    pub restart_policy: Option<Str>,
    #[serde(deserialize_with = "objects")]
    pub restart_policy_rules: Vec<ContainerRestartRule>,
}

/// What happens when a container exits with some codes, of which only the action matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ContainerRestartRule {
    /// `Restart` or `RestartAllContainers`.
    #[serde(deserialize_with = "nullable")]
    pub action: Str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ContainerResources {
    #[serde(deserialize_with = "nullable")]
    pub limits: ResourceList,
    #[serde(deserialize_with = "nullable")]
    pub requests: ResourceList,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    #[serde(deserialize_with = "nullable")]
    pub container_port: i32,
    #[serde(deserialize_with = "nullable")]
    pub host_port: i32,
    #[serde(rename = "hostIP", deserialize_with = "nullable")]
    pub host_ip: Str,
    /// TCP when empty.
    #[serde(deserialize_with = "nullable")]
    pub protocol: Str,
}

/// A volume, as far as it decides where a pod can go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "VolumeFields")]
pub struct Volume {
    pub name: Str,
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A claim that a controller makes for this pod.
    pub ephemeral: Option<EphemeralSource>,
    pub image: Option<ImageSource>,
    /// `None` for the sources that no plugin reads, such as `projected` or `configMap`.
    pub disk: Option<Box<DiskSource>>,
}

struct_with_disk_fields! {
    /// [`Volume`] as it is written.
    struct VolumeFields {
        #[serde(deserialize_with = "nullable")]
        name: Str,
        #[serde(deserialize_with = "optional_object")]
        persistent_volume_claim: Option<ClaimSource>,
        #[serde(deserialize_with = "optional_object")]
        ephemeral: Option<EphemeralSource>,
        #[serde(deserialize_with = "optional_object")]
        image: Option<ImageSource>,
    }
}

impl Volume {
    /// Whether it decides where a pod can go.
    pub(crate) fn is_read(&self) -> bool {
        let Volume { name: _, persistent_volume_claim, ephemeral, image, disk } = self;
        persistent_volume_claim.is_some()
            || ephemeral.is_some()
            || image.is_some()
            || disk.is_some()
    }
}

impl From<VolumeFields> for Volume {
    fn from(mut fields: VolumeFields) -> Self {
        Volume {
            disk: fields.take_disk(),
            name: fields.name,
            persistent_volume_claim: fields.persistent_volume_claim,
            ephemeral: fields.ephemeral,
            image: fields.image,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSource {
    #[serde(deserialize_with = "nullable")]
    pub claim_name: Str,
}

/// Present or not is all that matters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub struct EphemeralSource {}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ImageSource {
    #[serde(deserialize_with = "nullable")]
    pub reference: Str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Toleration {
    #[serde(deserialize_with = "nullable")]
    pub key: Str,
    /// `Equal` when empty; also `Exists`.
    #[serde(deserialize_with = "nullable")]
    pub operator: Str,
    #[serde(deserialize_with = "nullable")]
    pub value: Str,
    /// All effects when empty.
    #[serde(deserialize_with = "nullable")]
    pub effect: Str,
    /// How long a NoExecute taint is tolerated; part of the pod's signature only.
    pub toleration_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    #[serde(deserialize_with = "optional_object")]
    pub node_affinity: Option<NodeAffinity>,
    #[serde(deserialize_with = "optional_object")]
    pub pod_affinity: Option<PodAffinity>,
    #[serde(deserialize_with = "optional_object")]
    pub pod_anti_affinity: Option<PodAffinity>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "optional_object"
    )]
    pub required: Option<NodeSelector>,
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "objects"
    )]
    pub preferred: Vec<PreferredSchedulingTerm>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct PreferredSchedulingTerm {
    #[serde(deserialize_with = "nullable")]
    pub weight: i32,
    #[serde(deserialize_with = "object")]
    pub preference: NodeSelectorTerm,
}

/// Affinity or anti-affinity between pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct PodAffinity {
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "objects"
    )]
    pub required: Vec<PodAffinityTerm>,
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "objects"
    )]
    pub preferred: Vec<WeightedPodAffinityTerm>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WeightedPodAffinityTerm {
    #[serde(deserialize_with = "nullable")]
    pub weight: i32,
    #[serde(deserialize_with = "object")]
    pub pod_affinity_term: PodAffinityTerm,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodAffinityTerm {
    /// Absent matches no pod.
    #[serde(deserialize_with = "optional_object")]
    pub label_selector: Option<LabelSelector>,
    #[serde(deserialize_with = "list")]
    pub namespaces: Vec<Str>,
    #[serde(deserialize_with = "nullable")]
    pub topology_key: Str,
    /// Absent means none; empty matches every namespace.
    #[serde(deserialize_with = "optional_object")]
    pub namespace_selector: Option<LabelSelector>,
    #[serde(deserialize_with = "list")]
    pub match_label_keys: Vec<Str>,
    #[serde(deserialize_with = "list")]
    pub mismatch_label_keys: Vec<Str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopologySpreadConstraint {
    #[serde(deserialize_with = "nullable")]
    pub max_skew: i32,
    #[serde(deserialize_with = "nullable")]
    pub topology_key: Str,
    /// `DoNotSchedule` or `ScheduleAnyway`.
    #[serde(deserialize_with = "nullable")]
    pub when_unsatisfiable: Str,
    #[serde(deserialize_with = "optional_object")]
    pub label_selector: Option<LabelSelector>,
    pub min_domains: Option<i32>,
    /// `Honor` when absent; also `Ignore`.
    pub node_affinity_policy: Option<Str>,
    /// `Ignore` when absent; also `Honor`.
    pub node_taints_policy: Option<Str>,
    #[serde(deserialize_with = "list")]
    pub match_label_keys: Vec<Str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    #[serde(deserialize_with = "nullable")]
    pub phase: Str,
    #[serde(deserialize_with = "nullable")]
    pub nominated_node_name: Str,
    pub start_time: Option<Timestamp>,
    #[serde(deserialize_with = "objects")]
    pub conditions: Vec<PodCondition>,
    #[serde(deserialize_with = "objects")]
    pub container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "objects")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Pod-level resources in force, while an in-place resize is under way.
    #[serde(deserialize_with = "optional_object")]
    pub resources: Option<ContainerResources>,
    #[serde(deserialize_with = "nullable")]
    pub allocated_resources: ResourceList,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodCondition {
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: Str,
    #[serde(deserialize_with = "nullable")]
    pub status: Str,
    #[serde(deserialize_with = "nullable")]
    pub reason: Str,
    #[serde(deserialize_with = "nullable")]
    pub message: Box<str>,
    /// When its status changed last.
    pub last_transition_time: Option<Timestamp>,
}

/// What runs now, where it differs from the spec (in-place resize).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    #[serde(deserialize_with = "nullable")]
    pub name: Str,
    #[serde(deserialize_with = "optional_object")]
    pub resources: Option<ContainerResources>,
    #[serde(deserialize_with = "nullable")]
    pub allocated_resources: ResourceList,
}
