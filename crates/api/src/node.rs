//! `v1` Node.

use std::sync::Arc;

use serde::Deserialize;

use crate::ResourceList;
use crate::extra_fields::ExtraFields;
use crate::go_json::{list, nullable, object, objects};
use crate::interned_str::Str;
use crate::meta::ObjectMeta;

/// A machine pods run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(deserialize_with = "object")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "object")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "object")]
    pub status: NodeStatus,
    /// Extra fields, if requested.
    #[serde(skip)]
    pub extra: Option<Arc<ExtraFields>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(deserialize_with = "nullable")]
    pub unschedulable: bool,
    #[serde(deserialize_with = "objects")]
    pub taints: Vec<Taint>,
}

/// Keeps pods away that do not tolerate it. Effects: NoSchedule, PreferNoSchedule, NoExecute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Taint {
    #[serde(deserialize_with = "nullable")]
    pub key: Str,
    #[serde(deserialize_with = "nullable")]
    pub value: Str,
    #[serde(deserialize_with = "nullable")]
    pub effect: Str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    #[serde(deserialize_with = "nullable")]
    pub capacity: ResourceList,
    #[serde(deserialize_with = "nullable")]
    pub allocatable: ResourceList,
    #[serde(deserialize_with = "objects")]
    pub images: Vec<ContainerImage>,
    /// The features of the kubelet that pods may need, in order.
    #[serde(deserialize_with = "list")]
    pub declared_features: Vec<Str>,
}

/// An image that a node holds, under all its names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerImage {
    #[serde(deserialize_with = "list")]
    pub names: Vec<Str>,
    #[serde(deserialize_with = "nullable")]
    pub size_bytes: i64,
}

impl Node {
    /// The node's name.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}
