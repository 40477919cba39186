//! The selector of default constraints: it selects the pods of the same services and of the same
//! controller.

use std::sync::Arc;

use loadmaster_api::selector::SetOperator;
use loadmaster_api::{LabelSelector, Labels, Selector, Str};
use loadmaster_framework::PodTemplate;
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_stdx::Map;

/// The merged selectors of a pod's services and of the ReplicationController, ReplicaSet or
/// StatefulSet that owns it (upstream's `DefaultSelector`); empty when there is none of them.
pub fn default_selector(cluster: &ClusterObjects, pod: &PodTemplate) -> Selector {
    let mut pairs = service_pairs(cluster, pod);
    let of_owner = match owner_selector(cluster, pod) {
        Some(OwnerSelector::Pairs(of_owner)) => {
            pairs.extend(of_owner.iter().map(|(key, value)| (key.clone(), value.clone())));
            None
        }
        Some(OwnerSelector::Selector(of_owner)) => Some(of_owner),
        None => None,
    };
    merged(&pairs.into_iter().collect(), of_owner)
}

/// The keys of the labels that decide which of the namespace's services select a pod of this owner, and whether the pod matches the merged
/// selector.
pub fn default_selector_label_keys(cluster: &ClusterObjects, pod: &PodTemplate) -> Vec<Str> {
    let services = cluster.services.get(&pod.namespace).into_iter().flatten();
    let mut keys: Vec<Str> = Vec::new();
    let mut add = |key: &Str| {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    };
    services.flat_map(|service| service.spec.selector.iter()).for_each(|(key, _)| add(key));
    match owner_selector(cluster, pod) {
        Some(OwnerSelector::Pairs(pairs)) => pairs.iter().for_each(|(key, _)| add(key)),
        Some(OwnerSelector::Selector(selector)) => selector.label_keys().for_each(add),
        None => {}
    }
    keys
}

/// The selector of the object that owns a pod.
enum OwnerSelector<'a> {
    Pairs(&'a Labels),
    Selector(&'a LabelSelector),
}

fn owner_selector<'a>(cluster: &'a ClusterObjects, pod: &PodTemplate) -> Option<OwnerSelector<'a>> {
    let owner = pod.controller.as_ref()?;
    let selector = match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("v1", "ReplicationController") => {
            let known =
                find(&cluster.replication_controllers, pod, |rc| *rc.metadata.name == *owner.name);
            return known.map(|controller| OwnerSelector::Pairs(&controller.spec.selector));
        }
        ("apps/v1", "ReplicaSet") => {
            let known = find(&cluster.replica_sets, pod, |set| *set.metadata.name == *owner.name);
            known?.spec.selector.as_ref()
        }
        ("apps/v1", "StatefulSet") => {
            let known = find(&cluster.stateful_sets, pod, |set| *set.metadata.name == *owner.name);
            known?.spec.selector.as_ref()
        }
        _ => None,
    };
    selector.map(OwnerSelector::Selector)
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
