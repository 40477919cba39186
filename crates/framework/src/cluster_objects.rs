//! Objects other than nodes and pods that in-tree plugins read.

use std::sync::Arc;

use loadmaster_api::{
    Labels, Namespace, PodDisruptionBudget, PriorityClass, ReplicaSet, ReplicationController,
    Service, StatefulSet, Str,
};
use loadmaster_stdx::Map;

/// Namespaces, controllers of pods, PodDisruptionBudgets and priority classes.
#[derive(Clone, Debug, Default)]
pub struct ClusterObjects {
    /// By name.
    pub namespaces: Map<Str, Arc<Namespace>>,
    /// By namespace, in the order in which they were added.
    pub services: Map<Str, Vec<Arc<Service>>>,
    /// By namespace, in the order in which they were added.
    pub replication_controllers: Map<Str, Vec<Arc<ReplicationController>>>,
    /// By namespace, in the order in which they were added.
    pub replica_sets: Map<Str, Vec<Arc<ReplicaSet>>>,
    /// By namespace, in the order in which they were added.
    pub stateful_sets: Map<Str, Vec<Arc<StatefulSet>>>,
    /// By namespace, in the order in which they were added.
    pub disruption_budgets: Map<Str, Vec<Arc<PodDisruptionBudget>>>,
    /// By name.
    pub priority_classes: Map<Str, Arc<PriorityClass>>,
    no_labels: Labels,
}

impl ClusterObjects {
    /// The labels of a namespace; empty if the namespace does not exist.
    pub fn namespace_labels(&self, name: &str) -> &Labels {
        self.namespaces.get(name).map_or(&self.no_labels, |namespace| &namespace.metadata.labels)
    }
}
