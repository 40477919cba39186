//! The kinds around pods: what owns them, selects them, guards them, names them.

use serde::Deserialize;

use crate::meta::{Labels, ObjectMeta, nullable};
use crate::pod::PodSpec;
use crate::selector::LabelSelector;
use crate::text::Str;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: ObjectMeta,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: ObjectMeta,
    pub spec: MapSelectorSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReplicationController {
    pub metadata: ObjectMeta,
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
    pub metadata: ObjectMeta,
    pub spec: ReplicasSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    pub metadata: ObjectMeta,
    pub spec: ReplicasSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    pub metadata: ObjectMeta,
    pub spec: ReplicasSpec,
}

/// What ReplicaSet, StatefulSet and Deployment have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReplicasSpec {
    /// 1 when absent.
    pub replicas: Option<i32>,
    pub selector: Option<LabelSelector>,
    pub template: PodTemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Job {
    pub metadata: ObjectMeta,
    pub spec: JobSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobSpec {
    /// 1 when absent.
    pub parallelism: Option<i32>,
    pub completions: Option<i32>,
    pub template: PodTemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodTemplateSpec {
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    pub metadata: ObjectMeta,
    pub spec: PodDisruptionBudgetSpec,
    pub status: PodDisruptionBudgetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudgetSpec {
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodDisruptionBudgetStatus {
    pub disruptions_allowed: i32,
    /// Names of pods whose eviction is under way.
    #[serde(deserialize_with = "nullable")]
    pub disrupted_pods: Labels,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PriorityClass {
    pub metadata: ObjectMeta,
    pub value: i32,
    pub global_default: bool,
    pub preemption_policy: Option<Str>,
}
