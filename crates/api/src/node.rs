//! `v1` Node.

use serde::Deserialize;

use crate::ResourceList;
use crate::meta::{ObjectMeta, nullable};
use crate::text::Str;

/// A machine pods run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: ObjectMeta,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    pub unschedulable: bool,
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
}

/// Keeps pods away that do not tolerate it. Effects: NoSchedule, PreferNoSchedule, NoExecute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Taint {
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
    #[serde(deserialize_with = "nullable")]
    pub images: Vec<ContainerImage>,
}

/// An image that a node holds, under all its names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerImage {
    #[serde(deserialize_with = "nullable")]
    pub names: Vec<Str>,
    pub size_bytes: i64,
}

impl Node {
    /// The node's name.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}
