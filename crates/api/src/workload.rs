//! The kinds around pods: what owns them, selects them, guards them, names them.

use serde::Deserialize;

use crate::go_json::{nullable, object, optional_object};
use crate::interned_str::Str;
use crate::meta::{Labels, ObjectMeta};
use crate::pod_spec::PodSpec;
use crate::selector::LabelSelector;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: MapSelectorSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReplicationController {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: MapSelectorSpec,
}

/// A spec that selects pods by plain pairs; empty selects none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MapSelectorSpec {
    #[serde(deserialize_with = "nullable")]
    pub selector: Labels,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: ReplicasSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: ReplicasSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: ReplicasSpec,
}

/// What ReplicaSet, StatefulSet and Deployment have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReplicasSpec {
    /// 1 when absent.
    pub replicas: Option<i32>,
    #[serde(deserialize_with = "optional_object")]
    pub selector: Option<LabelSelector>,
    #[serde(deserialize_with = "object")]
    pub template: PodTemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Job {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: JobSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobSpec {
    /// 1 when absent.
    pub parallelism: Option<i32>,
    pub completions: Option<i32>,
    #[serde(deserialize_with = "object")]
    pub template: PodTemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodTemplateSpec {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: PodSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: PodDisruptionBudgetSpec,
    #[serde(deserialize_with = "object")]
    pub status: PodDisruptionBudgetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudgetSpec {
    #[serde(deserialize_with = "optional_object")]
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodDisruptionBudgetStatus {
    #[serde(deserialize_with = "nullable")]
    pub disruptions_allowed: i32,
    /// Names of pods whose eviction is under way.
    #[serde(deserialize_with = "nullable")]
    pub disrupted_pods: Labels,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PriorityClass {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "nullable")]
    pub value: i32,
    #[serde(deserialize_with = "nullable")]
    pub global_default: bool,
    pub preemption_policy: Option<Str>,
}
