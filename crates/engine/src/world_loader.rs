//! Builds a world from the objects of a cluster, and selects the profile for the pod to schedule.
//!
//! The rules are those of `conformance/README.md`, so that the same objects mean the same to kube-scheduler and to Loadmaster:
//!
//! - Pods with `spec.nodeName` are assigned to their node. Terminal pods are left out.
//! - Pending pods with `status.nominatedNodeName` are nominated to that node, unless no profile has their scheduler name or a
//!   PreEnqueue plugin rejects them. Other pending pods are left out, except of the indexes of pods and the events that plugins see.
//! - The pod to schedule is never in the world. If it has a node and its status says that it was scheduled, the node is cleared: the
//!   result says where it would be scheduled now. Without such a status the node is left to the NodeName plugin.

use std::sync::Arc;

use loadmaster_api::snapshot::{ObjectWithOrigin, Snapshot};
use loadmaster_api::{ObjectMeta, Pod, Str};
use loadmaster_config::{AllFeatureGates, CheckedConfiguration, default_configuration};
use loadmaster_framework::{
    Cx, CycleState, FeatureGates, FieldError, PluginStates, PodInfo, Registry, TemplateError, World,
};
use loadmaster_stdx::{Map, did_you_mean};

use crate::plugin_events::states_from_world;
use crate::profile::Profile;

/// A pod to schedule, its profile, and the world without the pod.
pub struct SchedulingInput<'p> {
    pub world: World,
    pub profile: &'p Profile,
    pub pod: Arc<PodInfo>,
    /// The other pending pods, if a plugin reads them.
    pub pending: Vec<Arc<PodInfo>>,
}

impl SchedulingInput<'_> {
    /// The states of the profile's plugins after their event handlers were told of everything in the world.
    pub fn plugin_states(&self) -> PluginStates {
        let assigned = self.world.node_infos().flat_map(|node| node.pods());
        let pods = assigned.chain(&self.pending).chain([&self.pod]);
        states_from_world(self.profile, &self.world, pods)
    }

    /// Why a PreEnqueue plugin keeps the pod out of the scheduling queue; `None` if none does.
    pub fn pre_enqueue_rejection(&self) -> Option<String> {
        let (cycle, states) = (CycleState::default(), self.plugin_states());
        let cx = Cx { world: &self.world, cycle: &cycle, states: &states };
        let mut points = self.profile.pre_enqueue.iter();
        points.find_map(|it| it.point.pre_enqueue(cx, &self.pod).err()).map(|it| it.message())
    }
}

/// A cluster with all of its pods, in which one pending pod after the other is evaluated.
pub struct Cluster<'p> {
    world: World,
    profiles: &'p [Profile],
    /// The pending pods, if a plugin reads them.
    pending: Vec<Arc<PodInfo>>,
}

impl<'p> Cluster<'p> {
    /// Builds the world with all pods that are assigned or nominated to a node.
    pub fn load(
        snapshot: &Snapshot,
        profiles: &'p [Profile],
        gates: &FeatureGates,
    ) -> Result<Cluster<'p>, SchedulingInputError> {
        let mut world = world_without_pods(snapshot, profiles, gates);
        let pending = add_pods(&mut world, profiles, snapshot.pods.iter())?;
        Ok(Cluster { world, profiles, pending })
    }

    /// Calls `act` with what [`load_scheduling_input`] would return for a pod that has no node.
    pub fn with_pod<R>(
        &mut self,
        target: &Pod,
        act: impl FnOnce(&mut SchedulingInput<'p>) -> R,
    ) -> Result<R, SchedulingInputError> {
        let pod = Arc::new(parse_pod(&mut self.world, target)?);
        let profile = expect_profile(self.profiles, &pod)?;
        self.world.upsert_pending_pod(&pod);
        let nomination = self.world.nominated_node(&pod.uid).cloned();
        self.world.delete_nominated_pod(&pod.uid);
        let empty = World::new(self.world.gates().clone());
        let world = std::mem::replace(&mut self.world, empty);
        let pending = self.pending.iter().filter(|other| other.uid != pod.uid).cloned().collect();
        let mut input = SchedulingInput { world, profile, pod, pending };
        let result = act(&mut input);
        self.world = input.world;
        if let Some(node) = nomination {
            self.world.add_nominated_pod(node, input.pod);
        }
        Ok(result)
    }
}

/// Why a pod cannot be scheduled from these objects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulingInputError {
    /// The pod is not among the objects.
    #[error("pod {pod:?} is not among the {n_pods} pods{suggestion}")]
    PodNotFound {
        pod: String,
        n_pods: usize,
        /// `; did you mean "shop/web"?`, or empty.
        suggestion: String,
    },
    /// No profile has the pod's scheduler name.
    #[error("pod {pod:?}: profile not found for scheduler name {scheduler_name:?}, there is {}", known.join(", "))]
    ProfileNotFound { pod: String, scheduler_name: String, known: Vec<String> },
    /// A pod is assigned to a node that does not exist.
    #[error("pod {pod:?}: node {node:?} does not exist")]
    NodeNotFound { pod: String, node: String },
    /// A selector in a pod is invalid.
    #[error("pod {pod:?}")]
    InvalidPod {
        pod: String,
        #[source]
        source: TemplateError,
    },
}

/// The default profile cannot be built from the registry's plugins.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DefaultProfileError {
    /// The registry lacks a plugin of the default configuration, or a plugin rejects its default arguments.
    #[error("default configuration: {}", .0.iter().map(FieldError::to_string).collect::<Vec<_>>().join("; "))]
    Config(Vec<FieldError>),
}

/// Builds every profile of a configuration.
pub fn build_profiles(checked: &CheckedConfiguration, gates: &FeatureGates) -> Vec<Profile> {
    checked.profiles.iter().map(|profile| Profile::new(profile, gates)).collect()
}

/// Builds the profile of an empty configuration, with the default feature gates.
pub fn default_profile(registry: &Registry) -> Result<Profile, DefaultProfileError> {
    let gates = AllFeatureGates::default();
    let checked = default_configuration(registry, &gates).map_err(DefaultProfileError::Config)?;
    let mut profiles = build_profiles(&checked, &gates.framework_gates());
    Ok(profiles.swap_remove(0))
}

/// Builds the world for scheduling the pod with this full name (`namespace/name`).
pub fn load_scheduling_input<'p>(
    snapshot: &Snapshot,
    profiles: &'p [Profile],
    gates: &FeatureGates,
    target: &str,
) -> Result<SchedulingInput<'p>, SchedulingInputError> {
    let found = snapshot.pods.iter().find(|pod| pod.full_name() == target);
    let found = found.ok_or_else(|| SchedulingInputError::PodNotFound {
        pod: target.to_owned(),
        n_pods: snapshot.pods.len(),
        suggestion: suggest_pod(snapshot, target),
    })?;
    load_scheduling_input_for_pod(snapshot, profiles, gates, found)
}

/// The pod that was probably meant: one of this name in another namespace, or of a similar name in the same one.
fn suggest_pod(snapshot: &Snapshot, target: &str) -> String {
    let (namespace, name) = target.split_once('/').unwrap_or(("", target));
    let mut pods = snapshot.pods.iter();
    if let Some(pod) = pods.find(|pod| *pod.object.metadata.name == *name) {
        return format!("; did you mean {:?}?", pod.full_name());
    }
    let metadata = snapshot.pods.iter().map(|pod| &pod.object.metadata);
    did_you_mean(name, metadata.filter(|it| *it.namespace == *namespace).map(|it| &*it.name))
}

/// The same for a pod that need not be among the objects. A pod with its name is left out of the world.
pub fn load_scheduling_input_for_pod<'p>(
    snapshot: &Snapshot,
    profiles: &'p [Profile],
    gates: &FeatureGates,
    target: &Pod,
) -> Result<SchedulingInput<'p>, SchedulingInputError> {
    let mut world = world_without_pods(snapshot, profiles, gates);
    let pod = Arc::new(parse_pod(&mut world, &pod_without_assigned_node(target))?);
    world.upsert_pending_pod(&pod);
    let profile = expect_profile(profiles, &pod)?;
    let is_other = |pod: &&ObjectWithOrigin<Pod>| {
        pod.metadata.name != target.metadata.name
            || pod.metadata.namespace != target.metadata.namespace
    };
    let others = snapshot.pods.iter().filter(is_other);
    let pending = add_pods(&mut world, profiles, others)?;
    Ok(SchedulingInput { world, profile, pod, pending })
}

/// Builds the world with all pods that are assigned or nominated to a node.
pub fn build_world(
    snapshot: &Snapshot,
    profiles: &[Profile],
    gates: &FeatureGates,
) -> Result<World, SchedulingInputError> {
    let mut world = world_without_pods(snapshot, profiles, gates);
    add_pods(&mut world, profiles, snapshot.pods.iter())?;
    Ok(world)
}

/// The pod without its node, if its status says that a scheduler assigned it.
pub fn pod_without_assigned_node(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if was_scheduled(&pod) {
        pod.spec.node_name = Str::default();
    }
    pod
}

fn was_scheduled(pod: &Pod) -> bool {
    let status = &pod.status;
    status.phase == "Running"
        || status.start_time.is_some()
        || status.conditions.iter().any(|c| c.kind == "PodScheduled" && c.status == "True")
}

/// The world without pods.
fn world_without_pods(snapshot: &Snapshot, profiles: &[Profile], gates: &FeatureGates) -> World {
    let mut world = World::new(gates.clone());
    profiles.iter().flat_map(|it| &it.pod_indexes).for_each(|key| world.index_pods(key));
    profiles.iter().flat_map(|it| &it.pod_sums).for_each(|sums| world.sum_pods(sums));
    for namespace in &snapshot.namespaces {
        world.upsert_namespace(Arc::new(namespace.object.clone()));
    }
    world.update_cluster_objects(|cluster| {
        cluster.services = by_namespace(&snapshot.services, |object| &object.metadata);
        cluster.replication_controllers =
            by_namespace(&snapshot.replication_controllers, |object| &object.metadata);
        cluster.replica_sets = by_namespace(&snapshot.replica_sets, |object| &object.metadata);
        cluster.stateful_sets = by_namespace(&snapshot.stateful_sets, |object| &object.metadata);
        cluster.disruption_budgets =
            by_namespace(&snapshot.disruption_budgets, |object| &object.metadata);
        let classes = snapshot.priority_classes.iter();
        cluster.priority_classes = classes
            .map(|class| (Str::new(&class.metadata.name), Arc::new(class.object.clone())))
            .collect();
    });
    for node in &snapshot.nodes {
        world.upsert_node(Arc::new(node.object.clone()));
    }
    world
}

fn by_namespace<T: Clone>(
    objects: &[ObjectWithOrigin<T>],
    metadata: impl Fn(&T) -> &ObjectMeta,
) -> Map<Str, Vec<Arc<T>>> {
    let mut all: Map<Str, Vec<Arc<T>>> = Map::default();
    for sourced in objects {
        let namespace = metadata(&sourced.object).namespace.clone();
        all.entry(namespace).or_default().push(Arc::new(sourced.object.clone()));
    }
    all
}

/// Adds assigned and nominated pods. Returns the pending pods if a plugin reads them: indexes pods or handles events of pods.
fn add_pods<'s>(
    world: &mut World,
    profiles: &[Profile],
    pods: impl Iterator<Item = &'s ObjectWithOrigin<Pod>>,
) -> Result<Vec<Arc<PodInfo>>, SchedulingInputError> {
    let handles_pods = |it: &Profile| it.plugins.iter().any(|it| it.pod_event_handler.is_some());
    let reads_pending = world.indexes_pods() || profiles.iter().any(handles_pods);
    let (mut nominated, mut pending) = (Vec::new(), Vec::new());
    for pod in pods {
        if !pod.spec.node_name.is_empty() {
            let row = world.nodes().row(&pod.spec.node_name).ok_or_else(|| {
                SchedulingInputError::NodeNotFound {
                    pod: pod.full_name(),
                    node: pod.spec.node_name.to_string(),
                }
            })?;
            let info = parse_pod(world, pod)?;
            world.add_pod(row, Arc::new(info));
            continue;
        }
        let is_nominated = !pod.status.nominated_node_name.is_empty();
        let is_over = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
        if is_nominated || reads_pending && !is_over {
            let info = Arc::new(parse_pod(world, pod)?);
            if !is_over && profile_for_pod(profiles, &info).is_some() {
                world.upsert_pending_pod(&info);
                pending.extend(reads_pending.then(|| info.clone()));
            }
            nominated.extend(is_nominated.then_some(info));
        }
    }
    for pod in nominated {
        // Only pods that pass PreEnqueue can be nominated.
        let profile = profile_for_pod(profiles, &pod);
        if profile.is_some_and(|it| passes_pre_enqueue(it, world, &it.states, &pod)) {
            world.add_nominated_pod(pod.nominated_node_name.clone(), pod);
        }
    }
    Ok(pending)
}

/// Whether no PreEnqueue plugin gates the pod.
pub fn passes_pre_enqueue(
    profile: &Profile,
    world: &World,
    states: &PluginStates,
    pod: &PodInfo,
) -> bool {
    let cx = Cx { world, cycle: &CycleState::default(), states };
    profile.pre_enqueue.iter().all(|member| member.point.pre_enqueue(cx, pod).is_ok())
}

fn profile_for_pod<'p>(profiles: &'p [Profile], pod: &PodInfo) -> Option<&'p Profile> {
    profiles.iter().find(|profile| profile.scheduler_name == pod.template.scheduler_name())
}

fn expect_profile<'p>(
    profiles: &'p [Profile],
    pod: &PodInfo,
) -> Result<&'p Profile, SchedulingInputError> {
    profile_for_pod(profiles, pod).ok_or_else(|| SchedulingInputError::ProfileNotFound {
        pod: pod.full_name(),
        scheduler_name: pod.template.scheduler_name().to_owned(),
        known: profiles.iter().map(|profile| profile.scheduler_name.clone()).collect(),
    })
}

fn parse_pod(world: &mut World, pod: &Pod) -> Result<PodInfo, SchedulingInputError> {
    world
        .parse_pod(pod)
        .map_err(|source| SchedulingInputError::InvalidPod { pod: pod.full_name(), source })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_api::document::Document;
    use loadmaster_stdx::ErrorChain;

    use super::*;

    /// Loads a node `a` and these pods for scheduling `target`.
    #[track_caller]
    fn check(pods: &str, target: &str, want: &Expect) {
        let registry = loadmaster_plugins::in_tree_registry();
        let gates = AllFeatureGates::default();
        let checked = default_configuration(&registry, &gates).unwrap();
        let gates = gates.framework_gates();
        let profiles = build_profiles(&checked, &gates);
        let node = "{apiVersion: v1, kind: Node, metadata: {name: a}}";
        let pods = pods.lines().map(|pod| format!("{{apiVersion: v1, kind: Pod, {}}}", pod.trim()));
        let text: Vec<String> = [node.to_owned()].into_iter().chain(pods).collect();
        let document = Document::new("x.yaml", text.join("\n---\n"));
        let snapshot = Snapshot::read(&[document]).unwrap();
        let found = match load_scheduling_input(&snapshot, &profiles, &gates, target) {
            Ok(SchedulingInput { world, profile, pod, .. }) => {
                let names = |pods: &[Arc<PodInfo>]| {
                    pods.iter().map(|pod| pod.full_name()).collect::<Vec<_>>().join(" ")
                };
                let assigned = world.nodes().row("a").map(|row| names(world.nodes().pods(row)));
                format!(
                    "{} by {} on {:?}, on a: {}, nominated to a: {}",
                    pod.full_name(),
                    profile.scheduler_name,
                    pod.node_name.as_str(),
                    assigned.unwrap_or_default(),
                    names(world.nominated_pods_for_node("a")),
                )
            }
            Err(error) => ErrorChain(&error).to_string(),
        };
        want.assert_eq(&found);
    }

    #[test]
    fn assigned_and_nominated_pods_are_loaded() {
        check(
            "metadata: {name: web}
             metadata: {name: runs}, spec: {nodeName: a}
             metadata: {name: ended}, spec: {nodeName: a}, status: {phase: Failed}
             metadata: {name: nominated}, status: {nominatedNodeName: a}
             metadata: {name: gated}, spec: {schedulingGates: [{name: x}]}, status: {nominatedNodeName: a}
             metadata: {name: foreign}, spec: {schedulerName: other}, status: {nominatedNodeName: a}
             metadata: {name: waits}",
            "default/web",
            &expect![[
                r#"default/web by default-scheduler on "", on a: default/runs, nominated to a: default/nominated"#
            ]],
        );
    }

    #[test]
    fn the_pod_to_schedule_is_not_in_the_world() {
        check(
            "metadata: {name: web}, spec: {nodeName: a}",
            "default/web",
            &expect![[r#"default/web by default-scheduler on "a", on a: , nominated to a: "#]],
        );
        for status in [
            "phase: Running",
            "startTime: 2026-01-31T12:00:00Z",
            "conditions: [{type: PodScheduled, status: 'True'}]",
        ] {
            check(
                &format!("metadata: {{name: web}}, spec: {{nodeName: a}}, status: {{{status}}}"),
                "default/web",
                &expect![[r#"default/web by default-scheduler on "", on a: , nominated to a: "#]],
            );
        }
    }

    #[test]
    fn missing_pods_and_profiles_are_errors() {
        for (pod, want) in [
            ("web", expect![[r#"pod "web" is not among the 1 pods; did you mean "default/web"?"#]]),
            (
                "shop/web",
                expect![[r#"pod "shop/web" is not among the 1 pods; did you mean "default/web"?"#]],
            ),
            (
                "default/wep",
                expect![[r#"pod "default/wep" is not among the 1 pods; did you mean "web"?"#]],
            ),
            ("default/other", expect![[r#"pod "default/other" is not among the 1 pods"#]]),
        ] {
            check("metadata: {name: web}", pod, &want);
        }
        check(
            "metadata: {name: web}, spec: {schedulerName: other}",
            "default/web",
            &expect![[
                r#"pod "default/web": profile not found for scheduler name "other", there is default-scheduler"#
            ]],
        );
    }
}
