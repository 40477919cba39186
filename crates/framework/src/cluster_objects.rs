//! Objects other than nodes and pods that in-tree plugins read.

use std::sync::Arc;

use loadmaster_api::{
    Labels, Namespace, ObjectMeta, PodDisruptionBudget, PriorityClass, ReplicaSet,
    ReplicationController, Selector, Service, StatefulSet, Str,
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

type ByNamespace<T> = Map<Str, Vec<Arc<T>>>;

/// A kind whose objects plugins list by namespace.
pub trait ListedObject: Sized {
    /// The kind's name if the [keys](crate::Incremental::key) of the pods that an object selects or owns may be resolved from it.
    const KIND_FOR_KEYS: Option<&'static str>;

    /// The objects of the kind.
    fn list_mut(cluster: &mut ClusterObjects) -> &mut ByNamespace<Self>;

    /// The object's metadata.
    fn metadata(&self) -> &ObjectMeta;

    /// The pods that it selects; `None` if its selector is invalid.
    fn selector(&self) -> Option<Selector>;

    /// Whether plugins read the same fields in both. A ReplicaSet's status changes with each of its pods; its selector never does.
    fn is_equivalent(&self, other: &Self) -> bool;
}

macro_rules! listed {
    ($kind:ty, $list:ident, $name:expr, |$it:ident| $selector:expr, |$a:ident, $b:ident| $same:expr) => {
        impl ListedObject for $kind {
            const KIND_FOR_KEYS: Option<&'static str> = $name;
            fn list_mut(cluster: &mut ClusterObjects) -> &mut ByNamespace<Self> {
                &mut cluster.$list
            }
            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn selector(&self) -> Option<Selector> {
                let $it = self;
                $selector
            }
            fn is_equivalent(&self, other: &Self) -> bool {
                let ($a, $b) = (self, other);
                $same
            }
        }
    };
}

listed!(
    Service,
    services,
    Some("Service"),
    |it| Some(Selector::from_pairs(&it.spec.selector)),
    |a, b| a.spec == b.spec
);
listed!(
    ReplicationController,
    replication_controllers,
    Some("ReplicationController"),
    |it| Some(Selector::from_pairs(&it.spec.selector)),
    |a, b| a.spec == b.spec
);
listed!(
    ReplicaSet,
    replica_sets,
    Some("ReplicaSet"),
    |it| Selector::new(it.spec.selector.as_ref()).ok(),
    |a, b| a.spec.selector == b.spec.selector
);
listed!(
    StatefulSet,
    stateful_sets,
    Some("StatefulSet"),
    |it| Selector::new(it.spec.selector.as_ref()).ok(),
    |a, b| a.spec.selector == b.spec.selector
);
listed!(PodDisruptionBudget, disruption_budgets, None, |_it| None, |a, b| a.spec == b.spec
    && a.status == b.status);
