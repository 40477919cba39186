//! The objects of a history, in two worlds.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::{Namespace, Node, Pod, Str};
use loadmaster_framework::{FeatureGates, NodeRow, PodInfo, World};
use serde_json::Value;

use super::ReferenceBug;
use super::objects::ObjectChange;

/// All objects of a history.
///
/// `world` is that of the scheduler under test. `reference` has the same nodes and assigned pods, but no nominations; nothing is cached
/// for it, and from time to time it is built again from the objects. The rows of a node may differ, so that results are compared by
/// node name.
pub(super) struct Cluster {
    pub world: World,
    pub reference: World,
    nodes: BTreeMap<Str, Arc<Node>>,
    /// Names of the nodes.
    pub node_names: Vec<Str>,
    pub zones: ZoneLists,
    /// Assigned pods.
    pub assigned: Vec<Pod>,
    /// Nominated nodes and pods, in the order in which the nominations were added.
    pub nominated: Vec<(Str, Pod)>,
    bug: Option<ReferenceBug>,
}

impl Cluster {
    pub fn new(bug: Option<ReferenceBug>) -> Cluster {
        Cluster {
            world: World::new(FeatureGates::default()),
            reference: World::new(FeatureGates::default()),
            nodes: BTreeMap::new(),
            node_names: Vec::new(),
            zones: ZoneLists::default(),
            assigned: Vec::new(),
            nominated: Vec::new(),
            bug,
        }
    }

    /// Builds the reference world from the objects.
    pub fn rebuild_reference(&mut self) {
        let old = std::mem::replace(&mut self.reference, World::new(FeatureGates::default()));
        self.reference.update_cluster_objects(|objects| *objects = old.cluster_objects().clone());
        for node in self.nodes.values() {
            self.reference.upsert_node(node.clone());
        }
        for pod in &self.assigned {
            assign(&mut self.reference, pod);
        }
    }

    pub fn set_node(&mut self, node: Node) {
        let node = Arc::new(node);
        let name = Str::new(node.name());
        self.zones.set(&name, &node);
        self.world.upsert_node(node.clone());
        self.reference.upsert_node(node.clone());
        if self.nodes.insert(name.clone(), node).is_none() {
            self.node_names.push(name);
        }
    }

    /// Removes a node with its pods.
    pub fn remove_node(&mut self, name: &Str) {
        self.nodes.remove(name);
        self.node_names.retain(|known| known != name);
        self.zones.remove(name);
        self.world.remove_node(name);
        self.reference.remove_node(name);
        self.assigned.retain(|pod| pod.spec.node_name != *name);
    }

    pub fn set_namespace(&mut self, namespace: Namespace) {
        let namespace = Arc::new(namespace);
        self.world.upsert_namespace(namespace.clone());
        self.reference.upsert_namespace(namespace);
    }

    /// Adds, replaces or deletes a Service or a controller: in the scheduler's world as the engine does, in the reference with all that may
    /// have been computed before.
    pub fn change_object(&mut self, change: ObjectChange, object: &Value) {
        change.apply_to_world(&mut self.world, object);
        if self.bug != Some(ReferenceBug::IgnoresClusterObjects) {
            self.reference.update_cluster_objects(|objects| change.apply(objects, object));
        }
    }

    /// Adds a pod that has a node.
    pub fn assign_pod(&mut self, pod: Pod) {
        self.clear_nomination(&pod.metadata.uid);
        assign(&mut self.world, &pod);
        assign(&mut self.reference, &pod);
        self.assigned.push(pod);
    }

    pub fn remove_pod(&mut self, at: usize) {
        let pod = self.assigned.swap_remove(at);
        self.world.remove_pod(&pod.metadata.uid);
        self.reference.remove_pod(&pod.metadata.uid);
    }

    /// Updates an assigned pod as the engine does.
    pub fn update_pod(&mut self, at: usize, change: impl FnOnce(&mut Pod)) {
        self.update_pod_of_scheduler(at, change);
        assign(&mut self.reference, &self.assigned[at]);
    }

    /// The same in the world of the scheduler only.
    pub fn update_pod_of_scheduler(&mut self, at: usize, change: impl FnOnce(&mut Pod)) {
        let pod = &mut self.assigned[at];
        change(pod);
        if let Ok(info) = self.world.parse_pod(pod) {
            let info = Arc::new(info);
            if !self.world.refresh_pod(&info) {
                assign(&mut self.world, pod);
            }
        }
    }

    /// Moves an assigned pod to another node in the world of the scheduler only; [`Cluster::rebuild_reference`] must follow.
    pub fn move_pod(&mut self, at: usize, node: &Str) {
        let pod = &mut self.assigned[at];
        let known = self.world.assigned_pod(&pod.metadata.uid).cloned();
        let (Some(known), Some(row)) = (known, self.world.nodes().row(node)) else { return };
        pod.spec.node_name = node.clone();
        let moved = PodInfo { node_name: node.clone(), ..(*known).clone() };
        self.world.add_pod(row, Arc::new(moved));
    }

    pub fn nominate(&mut self, node: Str, mut pod: Pod) {
        pod.status.nominated_node_name = node.clone();
        let Ok(info) = self.world.parse_pod(&pod) else { return };
        self.clear_nomination(&pod.metadata.uid);
        self.world.add_nominated_pod(node.clone(), Arc::new(info));
        self.nominated.push((node, pod));
    }

    pub fn clear_nomination(&mut self, uid: &str) {
        self.nominated.retain(|(_, pod)| *pod.metadata.uid != *uid);
        self.world.delete_nominated_pod(uid);
    }

    pub fn node_name(&self, row: NodeRow) -> Str {
        self.world.node(row).map_or(Str::default(), |node| Str::new(node.name()))
    }
}

/// Adds a pod to its node, or replaces it.
fn assign(world: &mut World, pod: &Pod) {
    if let Ok(info) = world.parse_pod(pod)
        && let Some(row) = world.nodes().row(&pod.spec.node_name)
    {
        world.add_pod(row, Arc::new(info));
    }
}

/// The nodes of each zone (upstream's `nodeTree`, with plain lists). Regions do not occur in histories.
#[derive(Default)]
pub(super) struct ZoneLists(Vec<(Str, Vec<Str>)>);

impl ZoneLists {
    fn set(&mut self, name: &Str, node: &Node) {
        let zone = node.metadata.labels.get("topology.kubernetes.io/zone");
        let zone = zone.cloned().unwrap_or_default();
        let is_there = |(known, names): &(Str, Vec<Str>)| *known == zone && names.contains(name);
        if self.0.iter().any(is_there) {
            return;
        }
        self.remove(name);
        match self.0.iter_mut().find(|(known, _)| *known == zone) {
            Some((_, names)) => names.push(name.clone()),
            None => self.0.push((zone, vec![name.clone()])),
        }
    }

    fn remove(&mut self, name: &Str) {
        for (_, names) in &mut self.0 {
            names.retain(|known| known != name);
        }
        self.0.retain(|(_, names)| !names.is_empty());
    }

    /// The first node of each zone, then the second of each, and so on.
    pub fn search_order(&self) -> Vec<Str> {
        let mut left: Vec<_> = self.0.iter().map(|(_, names)| names.iter()).collect();
        let mut order = Vec::new();
        loop {
            let before = order.len();
            order.extend(left.iter_mut().filter_map(Iterator::next).cloned());
            if order.len() == before {
                return order;
            }
        }
    }
}
