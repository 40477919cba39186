//! The invariants. Each returns an error message that says what is violated.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::{Node, Str};
use loadmaster_engine::engine::EventRecord;
use loadmaster_engine::evaluate::per_node;
use loadmaster_engine::{Engine, Profile};
use loadmaster_framework::{NodeInfo, NodeRow, PluginStates, PodInfo, World};
use loadmaster_stdx::Set;

use super::SimulatedSchedulerConfig;
use super::out_of_tree;
use super::plugin_calls;
use super::reference_model::ReferenceModel;
use super::volumes::{check_reserved, claim_names};

pub(super) type CheckResult = Result<(), String>;

/// The engine may bind a pod only if it is pending, only once, and only to a node that passes every Filter in a world that is built
/// from scratch without the pod.
pub(super) fn check_bind(
    setup: &SimulatedSchedulerConfig,
    model: &ReferenceModel,
    engine: &Engine,
    uid: &str,
    node: &Str,
) -> CheckResult {
    let Some(pod) = model.pods.get(uid) else {
        return Err(format!("pod {uid} is bound to {node}, but does not exist"));
    };
    let name = pod.full_name();
    if !pod.spec.node_name.is_empty() || model.bound.contains(uid) {
        return Err(format!("pod {name} is bound to {node}, but it is bound already"));
    }
    if model.binds.contains_key(uid) {
        return Err(format!("pod {name} is bound to {node}, but another bind of it is in flight"));
    }
    let Some(configured) = model.configuration.profile_of(pod) else {
        return Err(format!("pod {name} is bound to {node}, but no profile is responsible for it"));
    };
    if pod.metadata.deletion_timestamp.is_some() || !pod.spec.scheduling_gates.is_empty() {
        return Err(format!("pod {name} is bound to {node}, but it is gated or being deleted"));
    }
    let mut world = model.world(&setup.gates, uid);
    add_nominated_pods(&mut world, model, uid);
    let Some(row) = world.nodes().row(node) else {
        return Err(format!("pod {name} is bound to {node}, but that node does not exist"));
    };
    let Ok(info) = world.parse_pod(pod) else { return Ok(()) };
    let has_claims = model.plugins.volumes.is_some() && claim_names(pod).next().is_some();
    if has_claims {
        check_reserved(model, pod, node)?;
    }
    let profile = &configured.checked;
    let mut states = match &setup.out_of_tree {
        None => model.plugins.add_to(profile, has_claims, &mut world),
        Some(_) => {
            let pending = model.pending_pods();
            let plugins = &model.plugins;
            plugins.out_of_tree.add_to(profile, &plugins.objects, engine, pending, &mut world)
        }
    };
    // Unreserve may end more than the reservation, such as the attempt of a gang: then the states in which the pod is reserved count.
    let mut reserved = states.clone();
    if setup.out_of_tree.is_some() {
        out_of_tree::unreserve(profile, &world, &mut states, &info, node);
    }
    let mut fits = |states: &mut PluginStates| {
        let results =
            per_node::filter_rows_with_nominated_pods(profile, &mut world, states, &info, &[row]);
        // What the test plugins saw in this world.
        plugin_calls::take_recorded();
        match results {
            Ok(verdicts) if verdicts.iter().all(Result::is_ok) => Ok(()),
            other => {
                Err(format!("pod {name} is bound to {node}, but does not fit there: {other:?}"))
            }
        }
    };
    match fits(&mut states) {
        Err(_) if setup.out_of_tree.is_some() => fits(&mut reserved)?,
        result => result?,
    }
    let reloaded = model.configuration.reloaded.filter(|it| !it.has_extenders);
    let is_nominated = !pod.status.nominated_node_name.is_empty() || !model.nominated.is_empty();
    if reloaded.is_none() || is_nominated || has_claims {
        return Ok(());
    }
    check_best_node(profile, &mut world, &mut states, &info, row)
}

/// A decision is made by the scores of the profile, not by those of an earlier configuration.
fn check_best_node(
    profile: &Profile,
    world: &mut World,
    states: &mut PluginStates,
    pod: &PodInfo,
    row: NodeRow,
) -> CheckResult {
    let found = per_node::evaluate_per_node(profile, world, states, pod);
    plugin_calls::take_recorded();
    let best = found.best_nodes();
    if best.contains(&row) || found.single_feasible_node() == Some(row) {
        return Ok(());
    }
    let total = |row: NodeRow| found.nodes.iter().find(|it| it.row == row).and_then(|it| it.total);
    let (mine, most) = (total(row), best.first().copied().and_then(total));
    Err(format!(
        "pod {} is bound to a node with the score {mine:?}, but another one has {most:?}",
        pod.full_name()
    ))
}

/// Nominated pods, by uid, and their nodes.
pub(super) fn nominated_pods(engine: &Engine) -> Vec<(Box<str>, Str)> {
    let world = engine.world();
    let pods = world.nominated_nodes().flat_map(|node| {
        world.nominated_pods_for_node(node).iter().map(|pod| (pod.uid.clone(), node.clone()))
    });
    pods.collect()
}

/// Adds the nominated pods that the attempt saw, which Filters take into account.
fn add_nominated_pods(world: &mut World, model: &ReferenceModel, without: &str) {
    for (uid, node) in &model.nominated {
        if **uid != *without
            && let Some(object) = model.pods.get(uid)
            && let Ok(info) = world.parse_pod(object)
        {
            world.add_nominated_pod(node.clone(), Arc::new(info));
        }
    }
}

/// A victim has a lower priority than some pod that is nominated to its node.
pub(super) fn check_victim(model: &ReferenceModel, engine: &Engine, uid: &str) -> CheckResult {
    let on = model.assumed.get(uid).map(|(_, node)| node.clone());
    let on = on.or_else(|| model.pods.get(uid).map(|pod| pod.spec.node_name.clone()));
    let Some(node) = on.filter(|node| !node.is_empty()) else {
        return Err(format!("pod {uid} is evicted, but is not assigned"));
    };
    let priority = model.priorities.get(uid).copied().unwrap_or(0);
    let mut preemptors = engine.world().nominated_pods_for_node(&node).iter();
    if preemptors.any(|pod| pod.template.priority() > priority) {
        return Ok(());
    }
    Err(format!("pod {uid} of priority {priority} is evicted from {node} without a preemptor"))
}

/// The Preempted event names a preemptor of higher priority.
pub(super) fn check_preempted_event(model: &ReferenceModel, record: &EventRecord) -> CheckResult {
    let Some(preemptor) = &record.related else { return Ok(()) };
    let priority = |uid: &str| model.priorities.get(uid).copied().unwrap_or(0);
    let (victim, preemptor) = (&record.regarding.uid, &preemptor.uid);
    if priority(preemptor) > priority(victim) {
        return Ok(());
    }
    Err(format!("pod {victim} was evicted for {preemptor}, whose priority is not higher"))
}

/// Every pending pod is exactly one of: in the scheduling queue, in flight, assumed or being bound. Nothing else is in the queue.
pub(super) fn check_queue(model: &ReferenceModel, engine: &Engine) -> CheckResult {
    let mut queued: BTreeMap<&str, usize> = BTreeMap::new();
    for (pod, _) in engine.queue().iter() {
        *queued.entry(&pod.info.pod.uid).or_default() += 1;
    }
    let has_profile = |uid: &str| {
        model.pods.get(uid).is_none_or(|pod| model.configuration.profile_of(pod).is_some())
    };
    if let Some(uid) = queued.keys().find(|uid| !has_profile(uid)) {
        return Err(format!("pod {uid} is in the queue, but no profile is responsible for it"));
    }
    for pod in engine.queue().in_flight_pods() {
        *queued.entry(&pod.uid).or_default() += 1;
    }
    for (uid, pod) in &model.pods {
        if !model.is_pending(pod) {
            continue;
        }
        let n_queued = queued.remove(&**uid).unwrap_or(0);
        let is_on_its_way = model.assumed.contains_key(uid) || model.binds.contains_key(uid);
        // A pod that waits at Permit is assumed and still in flight.
        let is_held = model.plugins.is_held(uid) && n_queued == 1;
        let n = n_queued + usize::from(is_on_its_way && !is_held);
        // A pod that is being deleted is dropped when it is popped from the queue.
        let ends = pod.metadata.deletion_timestamp.is_some();
        if n > 1 || (n == 0 && !ends) {
            let name = pod.full_name();
            return Err(format!(
                "pod {name} is {n_queued} times in the queue, assumed or being bound: {is_on_its_way}"
            ));
        }
    }
    // Another scheduler bound it while Permit holds it, or its profile was removed while it is in flight.
    queued.retain(|uid, _| !model.plugins.is_held(uid) && has_profile(uid));
    match queued.first_key_value() {
        None => Ok(()),
        Some((uid, n)) => Err(format!("pod {uid} is {n} times in the queue, but is not pending")),
    }
}

/// The engine's nodes, pods and requested resources equal those of a world that is built from scratch.
pub(super) fn check_same_world(engine: &World, other: &World) -> CheckResult {
    let names = |world: &World| -> Set<Str> {
        world.node_infos().map(|node| Str::new(node.name())).collect()
    };
    if names(engine) != names(other) {
        return Err("the engine's nodes differ from the watch events it received".to_owned());
    }
    for node in other.node_infos() {
        let row = engine.nodes().row(node.name());
        let mine = row.and_then(|row| engine.node(row)).map(|node| node_sums(&node));
        let theirs = node_sums(&node);
        if mine.as_ref() != Some(&theirs) {
            let name = node.name();
            return Err(format!("node {name}: the engine has {mine:?}, expected {theirs:?}"));
        }
    }
    Ok(())
}

/// A node with its pods and the sums over them.
#[derive(Debug, PartialEq)]
struct NodeSums {
    node: Arc<Node>,
    pods: Vec<(Box<str>, bool)>,
    n_pods: i64,
    requested: [i64; 5],
    ports: Vec<String>,
}

fn node_sums(node: &NodeInfo<'_>) -> NodeSums {
    let mut pods: Vec<_> = node.pods().map(|pod| (pod.uid.clone(), pod.terminating)).collect();
    pods.sort_unstable();
    let mut ports: Vec<String> = node.host_ports().map(|port| format!("{port:?}")).collect();
    ports.sort_unstable();
    NodeSums {
        node: node.node().clone(),
        pods,
        n_pods: node.n_pods(),
        requested: [
            node.requested("cpu"),
            node.requested("memory"),
            node.requested("ephemeral-storage"),
            node.nonzero_requested_cpu(),
            node.nonzero_requested_memory(),
        ],
        ports,
    }
}

/// Only pending pods are nominated.
pub(super) fn check_nominations(model: &ReferenceModel, engine: &Engine) -> CheckResult {
    let world = engine.world();
    for pod in world.nominated_nodes().flat_map(|node| world.nominated_pods_for_node(node)) {
        let waits = model.pods.get(&pod.uid).is_some_and(|object| {
            let is_pending = model.is_pending(object) || engine.queue().is_in_flight(&pod.uid);
            is_pending && !model.assumed.contains_key(&pod.uid)
        });
        if !waits {
            return Err(format!("pod {} is nominated, but is not pending", pod.full_name()));
        }
    }
    Ok(())
}

/// When nothing is in flight any more, no pod is assumed or being bound, except pods that wait at Permit.
pub(super) fn check_nothing_in_flight(engine: &Engine) -> CheckResult {
    let waiting = engine.world().waiting_pods();
    let (n_assumed, n_binding) = (engine.n_assumed_pods() - waiting.len(), engine.n_binding_pods());
    let mut binding = engine.binding_pods();
    binding.retain(|uid| waiting.get(uid).is_none());
    if n_assumed > 0 || n_binding > 0 || !binding.is_empty() {
        return Err(format!(
            "after everything has settled {n_assumed} pods are assumed and {n_binding} are being bound: {binding:?}"
        ));
    }
    match engine.queue().in_flight_pods().find(|pod| waiting.get(&pod.uid).is_none()) {
        None => Ok(()),
        Some(pod) => {
            Err(format!("after everything has settled pod {} is in flight", pod.full_name()))
        }
    }
}
