//! The values that the fields of a pod are changed to.

use std::collections::BTreeSet;

use loadmaster_api::{Labels, ObjectMeta};
use serde_json::Value;

use crate::pod_info::PodInfo;
use crate::world::World;

/// Strings and labels of the objects in a world and of pods.
#[derive(Clone, Debug, Default)]
pub struct PodVocabulary {
    /// Names, namespaces, label keys and values, taint keys and values, images.
    pub(super) words: BTreeSet<String>,
    /// Labels of nodes, pods and namespaces, and pairs of selectors.
    pub(super) pairs: BTreeSet<(String, String)>,
    /// Controllers: API version, kind and name.
    pub(super) owners: BTreeSet<(&'static str, &'static str, String)>,
}

impl PodVocabulary {
    /// The vocabulary of the objects and assigned pods of a world, and of a pod.
    pub fn new(world: &World, pod: &Value) -> PodVocabulary {
        let mut vocabulary = PodVocabulary::default();
        // An empty string, and one that no object has.
        vocabulary.words.extend([String::new(), "unknown".into()]);
        vocabulary.add_strings(pod);
        for row in world.nodes().rows() {
            let Some(node) = world.nodes().node(row) else { continue };
            vocabulary.add_object(&node.metadata);
            for taint in &node.spec.taints {
                vocabulary.add_words([taint.key.as_str(), taint.value.as_str()]);
            }
            let images = node.status.images.iter().flat_map(|image| &image.names);
            vocabulary.add_words(images.map(|name| name.as_str()));
        }
        for pod in world.node_infos().flat_map(|node| node.pods()) {
            vocabulary.add_pod(pod);
        }
        vocabulary.add_cluster_objects(world);
        vocabulary
    }

    /// Adds the namespace and the labels of a pod, for example of a pending one.
    pub fn add_pod(&mut self, pod: &PodInfo) {
        self.add_words([pod.template.namespace.as_str()]);
        self.add_pairs(&pod.template.labels);
    }

    #[expect(clippy::disallowed_methods, reason = "collected into ordered sets")]
    fn add_cluster_objects(&mut self, world: &World) {
        let cluster = world.cluster_objects();
        cluster.namespaces.values().for_each(|namespace| self.add_object(&namespace.metadata));
        for service in cluster.services.values().flatten() {
            self.add_pairs(&service.spec.selector);
        }
        for controller in cluster.replication_controllers.values().flatten() {
            self.add_pairs(&controller.spec.selector);
            self.add_owner("v1", "ReplicationController", &controller.metadata);
        }
        for set in cluster.replica_sets.values().flatten() {
            self.add_owner("apps/v1", "ReplicaSet", &set.metadata);
        }
        for set in cluster.stateful_sets.values().flatten() {
            self.add_owner("apps/v1", "StatefulSet", &set.metadata);
        }
    }

    fn add_owner(&mut self, version: &'static str, kind: &'static str, metadata: &ObjectMeta) {
        self.owners.insert((version, kind, metadata.name.to_string()));
    }

    fn add_object(&mut self, metadata: &ObjectMeta) {
        self.add_words([&*metadata.name]);
        self.add_pairs(&metadata.labels);
    }

    fn add_pairs(&mut self, labels: &Labels) {
        for (key, value) in labels.iter() {
            self.add_words([key.as_str(), value.as_str()]);
            self.pairs.insert((key.to_string(), value.to_string()));
        }
    }

    fn add_words<'a>(&mut self, words: impl IntoIterator<Item = &'a str>) {
        self.words.extend(words.into_iter().map(str::to_owned));
    }

    /// Adds the strings of a JSON value.
    fn add_strings(&mut self, value: &Value) {
        match value {
            Value::String(word) => self.add_words([word.as_str()]),
            Value::Array(items) => items.iter().for_each(|item| self.add_strings(item)),
            Value::Object(members) => members.values().for_each(|member| self.add_strings(member)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
