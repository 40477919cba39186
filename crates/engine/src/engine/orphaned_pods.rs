//! Assigned pods whose node is not known: pods are often listed before their nodes. They are not in the world, but count in the sums
//! of plugins ([`World::sum_orphaned_pod`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::{PodInfo, World};
use loadmaster_stdx::Map;

/// Assigned pods whose node is not known (yet). A pod is found by its uid without a scan, since every change of a pod looks for it.
#[derive(Default)]
pub(super) struct OrphanedPods {
    /// By node name, and uid.
    by_node: BTreeMap<Str, BTreeMap<Box<str>, Arc<PodInfo>>>,
    node_of: Map<Box<str>, Str>,
}

impl OrphanedPods {
    pub fn insert(&mut self, world: &mut World, node: &Str, pod: Arc<PodInfo>) {
        self.remove(world, &pod.uid);
        world.sum_orphaned_pod(&pod, 1);
        self.node_of.insert(pod.uid.clone(), node.clone());
        self.by_node.entry(node.clone()).or_default().insert(pod.uid.clone(), pod);
    }

    pub fn get(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.by_node.get(self.node_of.get(uid)?)?.get(uid)
    }

    pub fn remove(&mut self, world: &mut World, uid: &str) -> Option<Arc<PodInfo>> {
        let node = self.node_of.remove(uid)?;
        let pods = self.by_node.get_mut(&node)?;
        let pod = pods.remove(uid)?;
        if pods.is_empty() {
            self.by_node.remove(&node);
        }
        world.sum_orphaned_pod(&pod, -1);
        Some(pod)
    }

    /// Removes and returns the pods of a node, by uid.
    pub fn take_node(
        &mut self,
        world: &mut World,
        node: &Str,
    ) -> impl Iterator<Item = Arc<PodInfo>> + use<> {
        let pods = self.by_node.remove(node).unwrap_or_default();
        for (uid, pod) in &pods {
            self.node_of.remove(uid);
            world.sum_orphaned_pod(pod, -1);
        }
        pods.into_values()
    }

    /// All pods, by node name and uid.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.by_node.values().flat_map(BTreeMap::values)
    }

    /// The node names with their pods.
    pub fn by_node(&self) -> impl Iterator<Item = (&Str, Vec<Arc<PodInfo>>)> {
        self.by_node.iter().map(|(node, pods)| (node, pods.values().cloned().collect()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str) -> Arc<PodInfo> {
        let object = json!({"metadata": {"name": uid, "uid": uid}});
        let pod = serde_json::from_value(object).unwrap();
        Arc::new(World::default().parse_pod(&pod).unwrap())
    }

    fn uids<'a>(pods: impl Iterator<Item = &'a Arc<PodInfo>>) -> Vec<&'a str> {
        pods.map(|pod| &*pod.uid).collect()
    }

    #[test]
    fn pods_are_found_by_uid_and_by_node() {
        let (a, b) = (Str::new("a"), Str::new("b"));
        let mut orphaned = OrphanedPods::default();
        let world = &mut World::default();
        for (node, uid) in [(&b, "1"), (&a, "3"), (&a, "2")] {
            orphaned.insert(world, node, pod(uid));
        }
        assert_eq!(uids(orphaned.iter()), ["2", "3", "1"]);
        orphaned.insert(world, &b, pod("2"));
        assert_eq!(uids(orphaned.iter()), ["3", "1", "2"], "a pod is on one node only");
        assert!(orphaned.get("2").is_some() && orphaned.get("4").is_none());
        assert_eq!(orphaned.remove(world, "3").map(|pod| pod.uid.clone()).as_deref(), Some("3"));
        assert!(orphaned.remove(world, "3").is_none());
        assert_eq!(orphaned.by_node().count(), 1, "a node without pods is forgotten");
        let taken: Vec<Arc<PodInfo>> = orphaned.take_node(world, &b).collect();
        assert_eq!(uids(taken.iter()), ["1", "2"]);
        assert!(orphaned.get("1").is_none() && orphaned.iter().next().is_none());
    }
}
