//! From the objects of a cluster to a world, a profile and the pod that is asked about.
//!
//! The rules are those of `conformance/README.md`, so that the same objects mean the same to kube-scheduler and to us:
//!
//! - Pods with `spec.nodeName` are on their node. Pods that have ended are not there.
//! - Waiting pods with `status.nominatedNodeName` hold their node, unless no profile has their scheduler name or a PreEnqueue
//!   plugin holds them back. Other waiting pods do not matter.
//! - The asked pod is never in the world. If it names a node and its status says that it was scheduled, the name is cleared: the
//!   question is where it would go now. Without such a status the name is a wish, and up to the NodeName plugin.

use std::sync::Arc;

use loadmaster_api::snapshot::{Snapshot, Sourced};
use loadmaster_api::{ObjectMeta, Pod, Str};
use loadmaster_config::{Checked, Gates, check_default};
use loadmaster_engine::{Profile, ProfileError};
use loadmaster_framework::{
    Cx, CycleState, FeatureGates, FieldError, PodInfo, Registry, TemplateError, World,
};
use loadmaster_stdx::Map;

/// A pod, the profile that decides it, and the world as it is without the pod.
pub struct Loaded<'p> {
    pub world: World,
    pub profile: &'p Profile,
    pub pod: Arc<PodInfo>,
}

/// Why there is nothing to ask.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The pod is not among the objects.
    #[error("pod {pod:?} is not among the {n_pods} pods")]
    NoPod { pod: String, n_pods: usize },
    /// Nobody decides pods of this scheduler name.
    #[error("pod {pod:?}: profile not found for scheduler name {scheduler_name:?}, there is {}", known.join(", "))]
    NoProfile { pod: String, scheduler_name: String, known: Vec<String> },
    /// A pod is on a node that does not exist.
    #[error("pod {pod:?}: node {node:?} does not exist")]
    NoNode { pod: String, node: String },
    /// A selector in a pod does not parse.
    #[error("pod {pod:?}")]
    Pod {
        pod: String,
        #[source]
        source: TemplateError,
    },
}

/// The registry's plugins do not make up the default profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DefaultProfileError {
    /// The defaults name a plugin that the registry lacks, or one refuses its default arguments.
    #[error("default configuration: {}", .0.iter().map(FieldError::to_string).collect::<Vec<_>>().join("; "))]
    Config(Vec<FieldError>),
    /// A plugin could not be made.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

/// Builds every profile of a configuration.
pub fn profiles(
    checked: &Checked,
    registry: &Registry,
    gates: &FeatureGates,
) -> Result<Vec<Profile>, ProfileError> {
    checked.profiles.iter().map(|profile| Profile::new(profile, registry, gates)).collect()
}

/// Builds the profile that an empty configuration gives, under the default gates.
pub fn default_profile(registry: &Registry) -> Result<Profile, DefaultProfileError> {
    let gates = Gates::default();
    let checked = check_default(registry, &gates).map_err(DefaultProfileError::Config)?;
    let mut profiles = profiles(&checked, registry, &gates.framework())?;
    Ok(profiles.swap_remove(0))
}

/// The world that the objects make, for deciding the pod called `asked` (`namespace/name`).
pub fn load<'p>(
    snapshot: &Snapshot,
    profiles: &'p [Profile],
    gates: &FeatureGates,
    asked: &str,
) -> Result<Loaded<'p>, LoadError> {
    let found = snapshot.pods.iter().find(|pod| pod.full_name() == asked);
    let found = found
        .ok_or_else(|| LoadError::NoPod { pod: asked.to_owned(), n_pods: snapshot.pods.len() })?;
    load_for(snapshot, profiles, gates, found)
}

/// The same for a pod that need not be among the objects; one of its name is not in the world.
pub fn load_for<'p>(
    snapshot: &Snapshot,
    profiles: &'p [Profile],
    gates: &FeatureGates,
    asked: &Pod,
) -> Result<Loaded<'p>, LoadError> {
    let mut world = surroundings(snapshot, gates);
    let pod = Arc::new(parse(&mut world, &as_if_new(asked))?);
    let profile = profile_of(profiles, &pod).ok_or_else(|| LoadError::NoProfile {
        pod: asked.full_name(),
        scheduler_name: pod.template.scheduler_name().to_owned(),
        known: profiles.iter().map(|profile| profile.scheduler_name.clone()).collect(),
    })?;
    let is_other = |pod: &&Sourced<Pod>| {
        pod.metadata.name != asked.metadata.name
            || pod.metadata.namespace != asked.metadata.namespace
    };
    let others = snapshot.pods.iter().filter(is_other);
    place(&mut world, profiles, others)?;
    Ok(Loaded { world, profile, pod })
}

/// The world that the objects make, with all pods that are on a node or nominated to one.
pub fn world(
    snapshot: &Snapshot,
    profiles: &[Profile],
    gates: &FeatureGates,
) -> Result<World, LoadError> {
    let mut world = surroundings(snapshot, gates);
    place(&mut world, profiles, snapshot.pods.iter())?;
    Ok(world)
}

/// The pod without a placement that a scheduler made before.
pub fn as_if_new(pod: &Pod) -> Pod {
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

/// Everything but pods.
fn surroundings(snapshot: &Snapshot, gates: &FeatureGates) -> World {
    let mut world = World::new(gates.clone());
    for namespace in &snapshot.namespaces {
        world.set_namespace(Arc::new(namespace.object.clone()));
    }
    world.change_cluster(|cluster| {
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
        world.set_node(Arc::new(node.object.clone()));
    }
    world
}

fn by_namespace<T: Clone>(
    objects: &[Sourced<T>],
    metadata: impl Fn(&T) -> &ObjectMeta,
) -> Map<Str, Vec<Arc<T>>> {
    let mut all: Map<Str, Vec<Arc<T>>> = Map::default();
    for sourced in objects {
        let namespace = metadata(&sourced.object).namespace.clone();
        all.entry(namespace).or_default().push(Arc::new(sourced.object.clone()));
    }
    all
}

/// Puts pods where they are, and remembers the nodes that are promised to others.
fn place<'s>(
    world: &mut World,
    profiles: &[Profile],
    pods: impl Iterator<Item = &'s Sourced<Pod>>,
) -> Result<(), LoadError> {
    for pod in pods {
        if !pod.spec.node_name.is_empty() {
            let row = world.nodes().row(&pod.spec.node_name).ok_or_else(|| LoadError::NoNode {
                pod: pod.full_name(),
                node: pod.spec.node_name.to_string(),
            })?;
            let info = parse(world, pod)?;
            world.add_pod(row, Arc::new(info));
        } else if !pod.status.nominated_node_name.is_empty() {
            let info = parse(world, pod)?;
            if may_enter_the_queue(world, profiles, &info) {
                world.nominate(info.nominated_node_name.clone(), Arc::new(info));
            }
        }
    }
    Ok(())
}

/// Only a pod in the queue can be nominated.
fn may_enter_the_queue(world: &World, profiles: &[Profile], pod: &PodInfo) -> bool {
    let Some(profile) = profile_of(profiles, pod) else { return false };
    let cycle = CycleState::default();
    let cx = Cx { world, cycle: &cycle, states: &profile.states };
    profile.pre_enqueue.iter().all(|member| member.point.pre_enqueue(cx, pod).is_ok())
}

fn profile_of<'p>(profiles: &'p [Profile], pod: &PodInfo) -> Option<&'p Profile> {
    profiles.iter().find(|profile| profile.scheduler_name == pod.template.scheduler_name())
}

fn parse(world: &mut World, pod: &Pod) -> Result<PodInfo, LoadError> {
    world.parse(pod).map_err(|source| LoadError::Pod { pod: pod.full_name(), source })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_api::document::Document;
    use loadmaster_stdx::Chain;

    use super::*;

    /// What becomes of a node `a`, these pods, and the pod that is asked about.
    #[track_caller]
    fn check(pods: &str, asked: &str, want: &Expect) {
        let registry = loadmaster_plugins::in_tree();
        let gates = Gates::default();
        let checked = check_default(&registry, &gates).unwrap();
        let gates = gates.framework();
        let profiles = profiles(&checked, &registry, &gates).unwrap();
        let node = "{apiVersion: v1, kind: Node, metadata: {name: a}}";
        let pods = pods.lines().map(|pod| format!("{{apiVersion: v1, kind: Pod, {}}}", pod.trim()));
        let text: Vec<String> = [node.to_owned()].into_iter().chain(pods).collect();
        let document = Document::new("x.yaml", text.join("\n---\n"));
        let snapshot = Snapshot::read(&[document]).unwrap();
        let found = match load(&snapshot, &profiles, &gates, asked) {
            Ok(Loaded { world, profile, pod }) => {
                let names = |pods: &[Arc<PodInfo>]| {
                    pods.iter().map(|pod| pod.full_name()).collect::<Vec<_>>().join(" ")
                };
                let assigned = world.nodes().row("a").map(|row| names(world.nodes().pods(row)));
                format!(
                    "{} by {} on {:?}, on a: {}, promised a: {}",
                    pod.full_name(),
                    profile.scheduler_name,
                    pod.node_name.as_str(),
                    assigned.unwrap_or_default(),
                    names(world.nominated("a")),
                )
            }
            Err(error) => Chain(&error).to_string(),
        };
        want.assert_eq(&found);
    }

    #[test]
    fn pods_are_where_they_are() {
        check(
            "metadata: {name: web}
             metadata: {name: runs}, spec: {nodeName: a}
             metadata: {name: ended}, spec: {nodeName: a}, status: {phase: Failed}
             metadata: {name: promised}, status: {nominatedNodeName: a}
             metadata: {name: gated}, spec: {schedulingGates: [{name: x}]}, status: {nominatedNodeName: a}
             metadata: {name: foreign}, spec: {schedulerName: other}, status: {nominatedNodeName: a}
             metadata: {name: waits}",
            "default/web",
            &expect![[
                r#"default/web by default-scheduler on "", on a: default/runs, promised a: default/promised"#
            ]],
        );
    }

    #[test]
    fn the_asked_pod_is_not_in_the_world() {
        check(
            "metadata: {name: web}, spec: {nodeName: a}",
            "default/web",
            &expect![[r#"default/web by default-scheduler on "a", on a: , promised a: "#]],
        );
        for status in [
            "phase: Running",
            "startTime: 2026-01-31T12:00:00Z",
            "conditions: [{type: PodScheduled, status: 'True'}]",
        ] {
            check(
                &format!("metadata: {{name: web}}, spec: {{nodeName: a}}, status: {{{status}}}"),
                "default/web",
                &expect![[r#"default/web by default-scheduler on "", on a: , promised a: "#]],
            );
        }
    }

    #[test]
    fn nothing_to_ask() {
        check("metadata: {name: web}", "web", &expect![[r#"pod "web" is not among the 1 pods"#]]);
        check(
            "metadata: {name: web}, spec: {schedulerName: other}",
            "default/web",
            &expect![[
                r#"pod "default/web": profile not found for scheduler name "other", there is default-scheduler"#
            ]],
        );
    }
}
