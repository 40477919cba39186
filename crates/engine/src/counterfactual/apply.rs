//! Applies changes and asks the Filter plugins.

use std::cmp::Reverse;
use std::sync::Arc;

use loadmaster_api::pod::ContainerResources;
use loadmaster_api::{
    Labels, Node, ObjectMeta, Pod, Quantity, ResourceList, SharedPodSpec, Str, Toleration,
};
use loadmaster_framework::pod_requests::is_pod_level;
use loadmaster_framework::resources::RESOURCE_CPU;
use loadmaster_framework::world::Trial;
use loadmaster_framework::{FeatureGates, PluginStates, PodInfo, World};
use loadmaster_stdx::SortCompactly as _;

use super::Cut;
use super::candidates::{CONDITION_TAINTS, HOSTNAME};
use super::change::Change;
use crate::evaluate::per_node;
use crate::plugin_events::states_from_world;
use crate::profile::Profile;
use crate::world_loader::SchedulingInput;

/// Tries changes, until as many nodes have been evaluated as are allowed.
pub(super) struct Trials<'s, 'p> {
    input: &'s mut SchedulingInput<'p>,
    /// Whether plugins keep a state up to date with pods, nodes and objects, so that it depends on the changes.
    has_handlers: bool,
    /// How many more nodes may be evaluated.
    pub n_left: usize,
}

impl<'s, 'p> Trials<'s, 'p> {
    pub fn new(input: &'s mut SchedulingInput<'p>) -> Self {
        let has_handlers = input.profile.plugins.iter().any(|plugin| {
            plugin.pod_event_handler.is_some()
                || plugin.node_event_handler.is_some()
                || plugin.object_event_handler.is_some()
        });
        Trials { input, has_handlers, n_left: 0 }
    }

    /// The first node on which the pod fits after these changes; `None` if there is none, also if a plugin fails. Evaluations that are
    /// free do not count.
    pub fn feasible_node(
        &mut self,
        changes: &[Change],
        is_free: bool,
    ) -> Result<Option<String>, Cut> {
        let n_nodes = self.input.world.nodes().len();
        if !is_free {
            self.n_left = self.n_left.checked_sub(n_nodes).ok_or(Cut)?;
        }
        let Some(pod) = changed_pod(&mut self.input.world, &self.input.pod, changes) else {
            return Ok(None);
        };
        let added: Vec<Arc<Node>> =
            changes.iter().filter_map(|change| added_node(&self.input.world, change)).collect();
        for node in &added {
            self.input.world.upsert_node(node.clone());
        }
        let found = self.evaluate(&pod, changes);
        for node in &added {
            self.input.world.remove_node(node.name());
        }
        Ok(found)
    }

    /// The node that is found in a trial without the pods of the workloads that are scaled down.
    fn evaluate(&mut self, pod: &Arc<PodInfo>, changes: &[Change]) -> Option<String> {
        let has_handlers = self.has_handlers;
        let SchedulingInput { world, profile, pending, .. } = &mut *self.input;
        let profile: &Profile = profile;
        let uids: Vec<Box<str>> = changes.iter().flat_map(|change| uids(world, change)).collect();
        let mut trial = Trial::new(world);
        for uid in &uids {
            trial.evict(uid);
        }
        let mut states: PluginStates = match has_handlers {
            true => {
                let assigned = trial.node_infos().flat_map(|node| node.pods());
                let pods = assigned.chain(pending.iter()).chain([pod]);
                states_from_world(profile, &trial, pods)
            }
            false => profile.states.clone(),
        };
        let row = per_node::first_feasible_node(profile, trial.world_mut(), &mut states, pod)?;
        trial.node(row).map(|node| node.name().to_owned())
    }
}

/// The uids of the pods that a change removes.
fn uids(world: &World, change: &Change) -> Vec<Box<str>> {
    let Change::ScaleDown { kind, namespace, name, pods } = change else { return Vec::new() };
    let is_controlled =
        |pod: &PodInfo| {
            pod.template.namespace == *namespace.as_str()
                && pod.template.controller.as_ref().is_some_and(|owner| {
                    owner.kind == *kind.as_str() && owner.name == *name.as_str()
                })
        };
    let assigned = world.node_infos().flat_map(|node| node.pods());
    let removed = assigned.filter(|pod| is_controlled(pod) && pods.contains(&pod.full_name()));
    removed.map(|pod| pod.uid.clone()).collect()
}

/// The node that a change adds.
fn added_node(world: &World, change: &Change) -> Option<Arc<Node>> {
    let Change::AddNode { like } = change else { return None };
    let mut node: Node = (**world.nodes().node(world.nodes().row(like)?)?).clone();
    let mut name = format!("{like}-copy");
    while world.nodes().row(&name).is_some() {
        name.push_str("-copy");
    }
    let labels = std::mem::take(&mut node.metadata.labels);
    node.metadata.labels = match labels.contains_key(HOSTNAME) {
        true => labels.with(HOSTNAME, Str::new(&name)),
        false => labels,
    };
    node.metadata.name = name.into();
    node.spec.unschedulable = false;
    node.spec.taints.retain(|taint| !taint.key.starts_with(CONDITION_TAINTS));
    Some(Arc::new(node))
}

/// The pod after these changes. `None` if it has a selector that is not valid then.
fn changed_pod(world: &mut World, pod: &Arc<PodInfo>, changes: &[Change]) -> Option<Arc<PodInfo>> {
    let template = &pod.template;
    let mut spec = SharedPodSpec::clone(&template.spec);
    let mut changes: Vec<&Change> = changes.iter().collect();
    // Backwards, so that the indexes of the others remain valid.
    changes.sort_compactly_by_key(|change| Reverse(index(change)));
    changes.into_iter().for_each(|change| apply(change, world.gates(), &mut spec));
    if spec == **template.spec {
        return Some(pod.clone());
    }
    let metadata = ObjectMeta {
        name: pod.name.clone(),
        namespace: template.namespace.clone(),
        uid: pod.uid.clone(),
        labels: template.labels.clone(),
        owner_references: template.controller.iter().cloned().collect(),
        ..ObjectMeta::default()
    };
    let changed = Pod { metadata, spec: spec.into(), ..Pod::default() };
    let template = world.parse_pod(&changed).ok()?.template;
    Some(Arc::new(PodInfo { template, ..(**pod).clone() }))
}

/// The index of what a change removes from a list.
fn index(change: &Change) -> usize {
    match change {
        Change::RemoveSpreadConstraint { index, .. }
        | Change::RemovePodAffinityTerm { index, .. }
        | Change::RemovePodAntiAffinityTerm { index, .. } => *index,
        Change::RemoveNodeAffinityRequirement { requirement, .. } => *requirement,
        _ => 0,
    }
}

fn apply(change: &Change, gates: &FeatureGates, spec: &mut SharedPodSpec) {
    match change {
        Change::LowerRequest { resource, to, .. } => set_request(spec, gates, resource, *to),
        Change::AddToleration { key, value, effect } => spec.tolerations.push(Toleration {
            key: Str::new(key),
            operator: Str::new("Equal"),
            value: Str::new(value),
            effect: Str::new(effect),
            toleration_seconds: None,
        }),
        Change::RemoveNodeSelector { key, .. } => {
            let labels = spec.node_selector.iter().filter(|(known, _)| known.as_str() != key);
            let labels: Labels = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
            spec.node_selector = labels;
        }
        Change::RemoveSpreadConstraint { index, .. } => {
            remove(&mut spec.topology_spread_constraints, *index);
        }
        Change::RemoveNodeAffinityRequirement { .. }
        | Change::RemoveNodeAffinity {}
        | Change::RemovePodAffinityTerm { .. }
        | Change::RemovePodAntiAffinityTerm { .. } => apply_to_affinity(change, spec),
        Change::ScaleDown { .. } | Change::AddNode { .. } => {}
    }
}

fn apply_to_affinity(change: &Change, spec: &mut SharedPodSpec) {
    let Some(affinity) = spec.affinity.as_deref_mut() else { return };
    let required = affinity.node_affinity.as_mut().map(|affinity| &mut affinity.required);
    match (change, required) {
        (Change::RemoveNodeAffinity {}, Some(required)) => *required = None,
        (Change::RemoveNodeAffinityRequirement { term, requirement, .. }, Some(Some(required))) => {
            let Some(term) = required.node_selector_terms.get_mut(*term) else { return };
            match requirement.checked_sub(term.match_expressions.len()) {
                None => remove(&mut term.match_expressions, *requirement),
                Some(at) => remove(&mut term.match_fields, at),
            }
        }
        (Change::RemovePodAffinityTerm { index, .. }, _) => {
            affinity.pod_affinity.iter_mut().for_each(|it| remove(&mut it.required, *index));
        }
        (Change::RemovePodAntiAffinityTerm { index, .. }, _) => {
            affinity.pod_anti_affinity.iter_mut().for_each(|it| remove(&mut it.required, *index));
        }
        _ => {}
    }
}

fn remove<T>(list: &mut Vec<T>, at: usize) {
    if at < list.len() {
        list.remove(at);
    }
}

/// Makes the pod request so much of a resource in total: at the level of the pod if it is requested there and counts there, else by its
/// first container.
fn set_request(spec: &mut SharedPodSpec, gates: &FeatureGates, resource: &str, amount: i64) {
    let are_pod_level = gates.pod_level_resources && is_pod_level(resource);
    let quantity = match resource {
        RESOURCE_CPU => Quantity::from_milli(amount),
        _ => Quantity::from_value(amount),
    };
    let of_pod = spec.resources.as_mut().map(|it| &mut it.requests);
    let is_of_pod = are_pod_level && of_pod.as_ref().is_some_and(|it| it.contains_key(resource));
    let containers = spec.containers.iter_mut().chain(&mut spec.init_containers);
    let requests =
        containers.map(|it| &mut it.resources).map(|ContainerResources { requests, .. }| requests);
    for list in requests.chain(of_pod).chain([&mut spec.overhead]) {
        *list = without(list, resource);
    }
    let first = spec.containers.first_mut().map(|it| &mut it.resources.requests);
    let of_pod = spec.resources.as_mut().filter(|_| is_of_pod).map(|it| &mut it.requests);
    if let Some(list) = of_pod.or(first) {
        *list = std::mem::take(list).with(resource, quantity);
    }
}

fn without(list: &ResourceList, resource: &str) -> ResourceList {
    let others = list.iter().filter(|(name, _)| **name != *resource);
    others.map(|(name, quantity)| (name.clone(), *quantity)).collect()
}
