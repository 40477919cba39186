//! The selector of default constraints: it selects the pods of the same services and of the same
//! controller.

use std::sync::Arc;

use loadmaster_api::selector::SetOperator;
use loadmaster_api::{LabelSelector, Labels, OwnerReference, Selector, Str};
use loadmaster_framework::PodTemplate;
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_stdx::Map;

/// The merged selectors of a pod's services and of the ReplicationController, ReplicaSet or
/// StatefulSet that owns it (upstream's `DefaultSelector`); empty when there is none of them.
pub fn default_selector(cluster: &ClusterObjects, pod: &PodTemplate) -> Selector {
    let mut pairs = service_pairs(cluster, pod);
    let of_owner = match pod.controller.as_ref() {
        Some(owner) => match (owner.api_version.as_str(), owner.kind.as_str()) {
            ("v1", "ReplicationController") => {
                pairs = pairs.into_iter().chain(controller_pairs(cluster, pod, owner)).collect();
                None
            }
            ("apps/v1", "ReplicaSet") => {
                let known =
                    find(&cluster.replica_sets, pod, |set| *set.metadata.name == *owner.name);
                known.and_then(|set| set.spec.selector.as_ref())
            }
            ("apps/v1", "StatefulSet") => {
                let known =
                    find(&cluster.stateful_sets, pod, |set| *set.metadata.name == *owner.name);
                known.and_then(|set| set.spec.selector.as_ref())
            }
            _ => None,
        },
        None => None,
    };
    merged(&pairs.into_iter().collect(), of_owner)
}

/// The selectors of the services that select the pod. They do not conflict, as all their pairs are
/// labels of the pod.
fn service_pairs(cluster: &ClusterObjects, pod: &PodTemplate) -> Vec<(Str, Str)> {
    let services = cluster.services.get(&pod.namespace).into_iter().flatten();
    let selectors = services.map(|service| &service.spec.selector);
    let matching = selectors
        .filter(|pairs| pairs.iter().all(|(key, value)| pod.labels.get(key) == Some(value)));
    matching.flat_map(Labels::iter).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn controller_pairs(
    cluster: &ClusterObjects,
    pod: &PodTemplate,
    owner: &OwnerReference,
) -> Vec<(Str, Str)> {
    let named = find(&cluster.replication_controllers, pod, |rc| *rc.metadata.name == *owner.name);
    let pairs = named.into_iter().flat_map(|controller| controller.spec.selector.iter());
    pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn find<'a, T>(
    by_namespace: &'a Map<Str, Vec<Arc<T>>>,
    pod: &PodTemplate,
    wanted: impl Fn(&T) -> bool,
) -> Option<&'a T> {
    by_namespace.get(&pod.namespace)?.iter().find(|object| wanted(object)).map(Arc::as_ref)
}

/// Merges both. A controller's selector that is absent or invalid adds no requirement.
fn merged(pairs: &Labels, of_owner: Option<&LabelSelector>) -> Selector {
    match of_owner.map(|selector| Selector::new(Some(selector))) {
        Some(Ok(selector)) => pairs.iter().fold(selector, |selector, (key, value)| {
            selector.with_requirement(key.clone(), SetOperator::In, [value.clone()])
        }),
        _ => Selector::from_pairs(pairs),
    }
}
