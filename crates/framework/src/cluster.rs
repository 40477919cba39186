//! Objects beside nodes and pods that plugins read.

use std::sync::Arc;

use loadmaster_api::{
    Labels, Namespace, PodDisruptionBudget, PriorityClass, ReplicaSet, ReplicationController,
    Service, StatefulSet, Str,
};
use loadmaster_stdx::Map;

/// Namespaces and the controllers of pods.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// By name.
    pub namespaces: Map<Str, Arc<Namespace>>,
    /// By namespace, in the order in which they became known.
    pub services: Map<Str, Vec<Arc<Service>>>,
    /// By namespace, in the order in which they became known.
    pub replication_controllers: Map<Str, Vec<Arc<ReplicationController>>>,
    /// By namespace, in the order in which they became known.
    pub replica_sets: Map<Str, Vec<Arc<ReplicaSet>>>,
    /// By namespace, in the order in which they became known.
    pub stateful_sets: Map<Str, Vec<Arc<StatefulSet>>>,
    /// By namespace, in the order in which they became known.
    pub disruption_budgets: Map<Str, Vec<Arc<PodDisruptionBudget>>>,
    /// By name.
    pub priority_classes: Map<Str, Arc<PriorityClass>>,
    no_labels: Labels,
}

impl Cluster {
    /// The labels of a namespace; none when it is not known.
    pub fn namespace_labels(&self, name: &str) -> &Labels {
        self.namespaces.get(name).map_or(&self.no_labels, |namespace| &namespace.metadata.labels)
    }
}
