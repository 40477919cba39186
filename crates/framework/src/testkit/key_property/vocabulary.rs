//! The values that the fields of a pod are changed to.

use std::collections::BTreeSet;

use loadmaster_api::{Labels, ObjectMeta};
use serde_json::Value;

use crate::testkit::PluginTestBench;

/// Strings and labels of the objects in a world and of one pod.
#[derive(Default)]
pub(super) struct Vocabulary {
    /// Names, namespaces, label keys and values, taint keys and values, images.
    pub words: BTreeSet<String>,
    /// Labels of nodes, pods and namespaces, and pairs of selectors.
    pub pairs: BTreeSet<(String, String)>,
    /// Controllers: API version, kind and name.
    pub owners: BTreeSet<(&'static str, &'static str, String)>,
}

impl Vocabulary {
    /// The vocabulary of the bench's world and of a pod.
    pub fn new(bench: &PluginTestBench, pod: &Value) -> Vocabulary {
        let mut vocabulary = Vocabulary::default();
        // An empty string, and one that no object has.
        vocabulary.words.extend([String::new(), "unknown".into()]);
        vocabulary.add_strings(pod);
        for row in bench.world.nodes().rows() {
            let Some(node) = bench.world.nodes().node(row) else { continue };
            vocabulary.add_object(&node.metadata);
            for taint in &node.spec.taints {
                vocabulary.add_words([taint.key.as_str(), taint.value.as_str()]);
            }
            let images = node.status.images.iter().flat_map(|image| &image.names);
            vocabulary.add_words(images.map(|name| name.as_str()));
        }
        for pod in bench.pods.values() {
            vocabulary.add_words([pod.template.namespace.as_str()]);
            vocabulary.add_pairs(&pod.template.labels);
        }
        vocabulary.add_cluster_objects(bench);
        vocabulary
    }

    #[expect(clippy::disallowed_methods, reason = "collected into ordered sets")]
    fn add_cluster_objects(&mut self, bench: &PluginTestBench) {
        let cluster = bench.world.cluster_objects();
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
