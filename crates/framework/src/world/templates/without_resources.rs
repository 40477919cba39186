//! The ids of templates that differ in nothing but labels, requests and limits.

use std::hash::BuildHasher as _;

use hashbrown::HashTable;
use loadmaster_api::{InternedPodSpec, OwnerReference, Pod, SpecWithoutResources};
use loadmaster_stdx::Set;
use loadmaster_stdx::hash::SeededHashBuilder;

use crate::template::{NamespaceId, WithoutResourcesId, controller};

/// The templates that exist or recently existed, without labels, requests and limits.
#[derive(Default)]
pub(super) struct WithoutResources {
    known: HashTable<Known>,
    last_id: u64,
    hasher: SeededHashBuilder,
}

struct Known {
    id: WithoutResourcesId,
    /// Of the first template with this id.
    hash: u64,
    namespace: NamespaceId,
    controller: Option<OwnerReference>,
    spec: InternedPodSpec,
}

impl WithoutResources {
    /// The id for a pod's template, of a namespace with this id.
    pub fn id_of(&mut self, pod: &Pod, namespace: NamespaceId) -> WithoutResourcesId {
        let (controller, spec) = (controller(pod), &pod.spec.shared);
        let without = SpecWithoutResources(spec);
        let hash = self.hasher.hash_one((namespace, controller, without));
        let is_it = |known: &Known| {
            known.hash == hash
                && known.namespace == namespace
                && known.controller.as_ref() == controller
                && SpecWithoutResources(&known.spec) == without
        };
        if let Some(known) = self.known.find(hash, is_it) {
            return known.id;
        }
        self.last_id += 1;
        let id = WithoutResourcesId(self.last_id);
        let (controller, spec) = (controller.cloned(), spec.clone());
        let known = Known { id, hash, namespace, controller, spec };
        self.known.insert_unique(hash, known, |known| known.hash);
        id
    }

    /// Forgets all other ids.
    pub fn retain(&mut self, used: &Set<WithoutResourcesId>) {
        self.known.retain(|known| used.contains(&known.id));
        if self.known.len() < self.known.capacity() / 4 {
            self.known.shrink_to(2 * self.known.len(), |known| known.hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::World;

    #[test]
    fn templates_that_differ_in_labels_and_requests_have_one_id() {
        let mut world = World::default();
        let mut id = |namespace: &str, owner: &str, image: &str, cpu: &str, app: &str| {
            let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner,
                "controller": true});
            let container =
                json!({"name": "main", "image": image, "resources": {"requests": {"cpu": cpu}}});
            let pod = json!({"metadata": {"name": "pod", "namespace": namespace,
                "labels": {"app": app}, "ownerReferences": [owner]}, "spec": {"containers": [container]}});
            let pod = world.parse_pod(&serde_json::from_value(pod).unwrap()).unwrap();
            (pod.template.without_resources_id, pod.template.shared_id, pod.template.id)
        };
        let first = id("a", "web", "v1", "1", "web");
        assert_eq!(id("a", "web", "v1", "1", "web"), first);
        let other_label = id("a", "web", "v1", "1", "db");
        assert_eq!((other_label.0, other_label.1), (first.0, first.1));
        let other_request = id("a", "web", "v1", "2", "web");
        assert_eq!(other_request.0, first.0);
        assert_ne!(other_request.1, first.1);
        for other in [
            id("b", "web", "v1", "1", "web"),
            id("a", "db", "v1", "1", "web"),
            id("a", "web", "v2", "1", "web"),
        ] {
            assert_ne!(other.0, first.0);
        }
    }
}
