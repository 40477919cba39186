//! The invariants. Each answers with what is wrong, in words.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::{Node, Pod, Str};
use loadmaster_engine::Engine;
use loadmaster_engine::engine::Tell;
use loadmaster_engine::evaluate::one_by_one;
use loadmaster_framework::{NodeInfo, Row, World};
use loadmaster_stdx::Set;

use super::Setup;
use super::known::{self, Known};
use crate::truth::{Truth, has_ended};

pub(super) type Checked = Result<(), String>;

/// A bind that the engine wants now: of a pod that waits, once, and onto a node that every Filter accepts, in a world built from
/// nothing without the pod.
pub(super) fn bind(
    setup: &Setup,
    known: &Known,
    engine: &Engine,
    uid: &str,
    node: &Str,
) -> Checked {
    let Some(pod) = known.pods.get(uid) else {
        return Err(format!("pod {uid} is bound to {node}, but is not there"));
    };
    let name = pod.full_name();
    if !pod.spec.node_name.is_empty() || known.bound.contains(uid) {
        return Err(format!("pod {name} is bound to {node}, but it is bound already"));
    }
    if known.binds.contains_key(uid) {
        return Err(format!("pod {name} is bound to {node}, but a bind of it is under way"));
    }
    if pod.metadata.deletion_timestamp.is_some() || !pod.spec.scheduling_gates.is_empty() {
        return Err(format!("pod {name} is bound to {node}, but it is gated or being deleted"));
    }
    let mut world = known.world(&setup.gates, uid);
    nominate(&mut world, known, engine, uid);
    let Some(row) = world.nodes().row(node) else {
        return Err(format!("pod {name} is bound to {node}, but that node is not there"));
    };
    let Ok(info) = world.parse(pod) else { return Ok(()) };
    let mut states = setup.profile.states.clone();
    let said = one_by_one::verdicts(&setup.profile, &world, &mut states, &info, &[row]);
    match said {
        Ok(verdicts) if verdicts.iter().all(Result::is_ok) => Ok(()),
        other => Err(format!("pod {name} is bound to {node}, but does not fit there: {other:?}")),
    }
}

/// The engine's promises, which Filters reckon with.
fn nominate(world: &mut World, known: &Known, engine: &Engine, without: &str) {
    for node in engine.world().nominated_nodes() {
        for pod in engine.world().nominated(node) {
            if *pod.uid != *without
                && let Some(object) = known.pods.get(&pod.uid)
                && let Ok(info) = world.parse(object)
            {
                world.nominate(node.clone(), Arc::new(info));
            }
        }
    }
}

/// A victim that the engine chose just now has less priority than some pod that its node is promised to.
pub(super) fn victim(known: &Known, engine: &Engine, uid: &str) -> Checked {
    let on = known.assumed.get(uid).map(|(_, node)| node.clone());
    let on = on.or_else(|| known.pods.get(uid).map(|pod| pod.spec.node_name.clone()));
    let Some(node) = on.filter(|node| !node.is_empty()) else {
        return Err(format!("pod {uid} is evicted, but is on no node"));
    };
    let priority = known.priorities.get(uid).copied().unwrap_or(0);
    let mut preemptors = engine.world().nominated(&node).iter();
    if preemptors.any(|pod| pod.template.priority() > priority) {
        return Ok(());
    }
    Err(format!("pod {uid} of priority {priority} is evicted from {node} for nobody"))
}

/// What is said about an eviction names a preemptor of higher priority.
pub(super) fn preempted(known: &Known, tell: &Tell) -> Checked {
    let Some(preemptor) = &tell.related else { return Ok(()) };
    let priority = |uid: &str| known.priorities.get(uid).copied().unwrap_or(0);
    let (victim, preemptor) = (&tell.regarding.uid, &preemptor.uid);
    if priority(preemptor) > priority(victim) {
        return Ok(());
    }
    Err(format!("pod {victim} was evicted for {preemptor}, whose priority is not higher"))
}

/// Every pod that waits is in the queue, in flight, or on its way to a node: one of them, and nothing else is there.
pub(super) fn queue(setup: &Setup, known: &Known, engine: &Engine) -> Checked {
    let mut queued: BTreeMap<&str, usize> = BTreeMap::new();
    for (pod, _) in engine.queue().iter() {
        *queued.entry(&pod.info.pod.uid).or_default() += 1;
    }
    for pod in engine.queue().in_flight() {
        *queued.entry(&pod.uid).or_default() += 1;
    }
    for (uid, pod) in &known.pods {
        if !known.is_pending(pod, &setup.profile.scheduler_name) {
            continue;
        }
        let n_queued = queued.remove(&**uid).unwrap_or(0);
        let is_on_its_way = known.assumed.contains_key(uid) || known.binds.contains_key(uid);
        let n = n_queued + usize::from(is_on_its_way);
        // One that is being deleted is dropped when its turn comes.
        let ends = pod.metadata.deletion_timestamp.is_some();
        if n > 1 || (n == 0 && !ends) {
            let name = pod.full_name();
            return Err(format!(
                "pod {name} is {n_queued} times in the queue, on its way: {is_on_its_way}"
            ));
        }
    }
    match queued.first_key_value() {
        None => Ok(()),
        Some((uid, n)) => Err(format!("pod {uid} is {n} times in the queue, but does not wait")),
    }
}

/// The engine's nodes, pods and sums equal those of a world built from nothing.
pub(super) fn same_world(engine: &World, other: &World) -> Checked {
    let names = |world: &World| -> Set<Str> {
        world.node_infos().map(|node| Str::new(node.name())).collect()
    };
    if names(engine) != names(other) {
        return Err("the engine's nodes are not those it was told".to_owned());
    }
    for node in other.node_infos() {
        let row = engine.nodes().row(node.name());
        let mine = row.and_then(|row| engine.node(row)).map(|node| sums(&node));
        let theirs = sums(&node);
        if mine.as_ref() != Some(&theirs) {
            let name = node.name();
            return Err(format!("node {name}: the engine has {mine:?}, counted {theirs:?}"));
        }
    }
    Ok(())
}

/// A node and what is on it.
#[derive(Debug, PartialEq)]
struct Sums {
    node: Arc<Node>,
    pods: Vec<(Box<str>, bool)>,
    n_pods: i64,
    requested: [i64; 5],
    ports: Vec<String>,
}

fn sums(node: &NodeInfo<'_>) -> Sums {
    let mut pods: Vec<_> = node.pods().map(|pod| (pod.uid.clone(), pod.terminating)).collect();
    pods.sort_unstable();
    let mut ports: Vec<String> = node.host_ports().map(|port| format!("{port:?}")).collect();
    ports.sort_unstable();
    Sums {
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

/// Promises are made to pods that wait in the queue only.
pub(super) fn promises(setup: &Setup, known: &Known, engine: &Engine) -> Checked {
    let world = engine.world();
    for pod in world.nominated_nodes().flat_map(|node| world.nominated(node)) {
        let waits = known.pods.get(&pod.uid).is_some_and(|object| {
            known.is_pending(object, &setup.profile.scheduler_name)
                && !known.assumed.contains_key(&pod.uid)
        });
        if !waits {
            return Err(format!("pod {} was promised a node, but does not wait", pod.full_name()));
        }
    }
    Ok(())
}

/// When nothing is under way any more nobody is on the way to a node.
pub(super) fn at_rest(engine: &Engine) -> Checked {
    let (n_assumed, n_binding) = (engine.n_assumed(), engine.n_binding());
    let binding = engine.binding_pods();
    if n_assumed > 0 || n_binding > 0 || !binding.is_empty() {
        return Err(format!(
            "at rest {n_assumed} pods are assumed and {n_binding} are being bound: {binding:?}"
        ));
    }
    match engine.queue().in_flight().next() {
        None => Ok(()),
        Some(pod) => Err(format!("at rest pod {} is in flight", pod.full_name())),
    }
}

/// A node, and whom the engine promised it to.
fn promised(engine: &Engine, world: &World, row: Row) -> String {
    let Some(node) = world.node(row) else { return String::new() };
    let pods = engine.world().nominated(node.name()).iter();
    let pods: Vec<String> = pods.map(|pod| pod.full_name()).collect();
    format!("{}, promised to {pods:?}", node.name())
}

/// In the end the engine's world is that of the API server, and no pod waits that fits somewhere. Answers how many wait.
pub(super) fn settled(setup: &Setup, truth: &Truth, engine: &Engine) -> Result<u64, String> {
    let assigned = truth.pods().filter(|pod| !pod.spec.node_name.is_empty() && !has_ended(pod));
    let assigned = assigned.map(|pod| (pod, pod.spec.node_name.clone()));
    let mut world = known::world(&setup.gates, truth.nodes(), truth.budgets(), assigned);
    same_world(engine.world(), &world)?;
    let mut n_left = 0;
    for pod in waiting(setup, truth) {
        n_left += 1;
        let Ok(info) = world.parse(pod) else { continue };
        let mut states = setup.profile.states.clone();
        let found = one_by_one::evaluate(&setup.profile, &world, &mut states, &info);
        if found.is_feasible() {
            let place = engine.queue().get(&pod.metadata.uid).map(|(_, place)| place);
            let name = pod.full_name();
            let nodes: Vec<String> =
                found.best().into_iter().map(|row| promised(engine, &world, row)).collect();
            let nodes = nodes.join(", ");
            return Err(format!(
                "pod {name} fits, but was not bound; in the queue: {place:?}; on {nodes}"
            ));
        }
    }
    Ok(n_left)
}

/// The status of every pod that waits says so.
pub(super) fn told(setup: &Setup, truth: &Truth) -> Checked {
    let is_told = |pod: &Pod| pod.status.conditions.iter().any(|it| it.kind == "PodScheduled");
    match waiting(setup, truth).find(|pod| !is_told(pod)) {
        None => Ok(()),
        Some(pod) => {
            let name = pod.full_name();
            Err(format!("pod {name} fits nowhere, but its status does not say so"))
        }
    }
}

/// Pods of ours that could be bound.
fn waiting<'a>(setup: &'a Setup, truth: &'a Truth) -> impl Iterator<Item = &'a Pod> {
    truth.pods().filter(|pod| {
        pod.spec.node_name.is_empty()
            && !has_ended(pod)
            && pod.metadata.deletion_timestamp.is_none()
            && pod.spec.scheduling_gates.is_empty()
            && known::is_for(pod, &setup.profile.scheduler_name)
    })
}
