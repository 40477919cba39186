//! What the engine must know and do under the configuration, by the reference model.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use loadmaster_api::{Pod, Str};
use loadmaster_engine::Engine;
use loadmaster_engine::queue::SubQueue;
use loadmaster_stdx::CollectByInsertion as _;

use super::counting_plugin::Counts;
use crate::simulate::invariants::CheckResult;
use crate::simulate::reference_model::ReferenceModel;
use crate::simulate::run_configuration::{QueueOrder, RunConfiguration};

/// The states of the plugin that counts.
#[derive(Default)]
pub(in crate::simulate) struct CountingModel {
    /// By schedulerName: the plugin's last arguments, and the number of the state that it has with them.
    states: BTreeMap<String, (u64, u64)>,
    n_states: u64,
    /// Pods between Reserve and Unreserve or PostBind, with the number of the state that has them.
    reserved: BTreeMap<Box<str>, u64>,
}

impl CountingModel {
    /// A configuration takes effect: a state stays if the arguments are the same, also if the profile was removed meanwhile.
    pub fn handle_configuration(&mut self, configuration: &RunConfiguration) {
        for profile in &configuration.profiles {
            let (name, args) = (&profile.profile.scheduler_name, profile.counter_args);
            if self.states.get(name).is_none_or(|(known, _)| *known != args) {
                self.n_states += 1;
                self.states.insert(name.clone(), (args, self.n_states));
            }
        }
    }

    /// A pod is reserved under this profile.
    pub fn reserve(&mut self, uid: &str, scheduler_name: &str) {
        if let Some((_, state)) = self.states.get(scheduler_name) {
            self.reserved.insert(uid.into(), *state);
        }
    }

    /// A pod is unreserved, or bound.
    pub fn end_reservation(&mut self, uid: &str) {
        self.reserved.remove(uid);
    }

    fn reserved_under(&self, scheduler_name: &str) -> BTreeSet<Box<str>> {
        let state = self.states.get(scheduler_name).map(|(_, state)| *state);
        let reserved = self.reserved.iter().filter(|(_, of)| Some(**of) == state);
        reserved.map(|(uid, _)| uid.clone()).collect()
    }
}

/// The engine has exactly the pending pods that a profile is responsible for, and those without a profile that are still in flight.
pub(in crate::simulate) fn check_pending_pods(
    model: &ReferenceModel,
    engine: &Engine,
) -> CheckResult {
    let known: BTreeSet<&str> = engine.pending_pods().into_iter().map(|pod| &*pod.uid).collect();
    let is_pending = |pod: &&Pod| pod.spec.node_name.is_empty();
    for pod in model.pods.values().filter(is_pending) {
        let uid = &pod.metadata.uid;
        let has_profile = model.configuration.profile_of(pod).is_some();
        if has_profile && !known.contains(&**uid) {
            return Err(format!("pod {} is pending, but the engine lost it", pod.full_name()));
        }
        let is_in_flight = model.assumed.contains_key(uid)
            || model.binds.contains_key(uid)
            || model.bound.contains(uid)
            || engine.queue().is_in_flight(uid);
        if !has_profile && known.contains(&**uid) && !is_in_flight {
            return Err(format!("pod {} is pending, but has no profile", pod.full_name()));
        }
    }
    let is_known = |uid: &str| model.pods.get(uid).is_some_and(|pod| is_pending(&pod));
    match known.into_iter().find(|uid| !is_known(uid)) {
        None => Ok(()),
        Some(uid) => Err(format!("the engine has the pending pod {uid}, which does not exist")),
    }
}

/// The plugin that counts was told of all pods and nodes, and has the pods that were reserved with its state.
pub(in crate::simulate) fn check_counts(model: &ReferenceModel, engine: &Engine) -> CheckResult {
    let pending = engine.pending_pods().into_iter().map(|pod| (pod.uid.clone(), Str::default()));
    let assigned = model.pods.iter().filter(|(_, pod)| !pod.spec.node_name.is_empty());
    let assigned = assigned.map(|(uid, pod)| (uid.clone(), pod.spec.node_name.clone()));
    let pods: BTreeMap<Box<str>, Str> = pending.chain(assigned).collect_by_insertion();
    let nodes: BTreeSet<Str> = model.nodes.keys().cloned().collect();
    for (at, profile) in model.configuration.profiles.iter().enumerate() {
        let name = &profile.profile.scheduler_name;
        let counts = engine.plugin_states(at).and_then(|states| states.find::<Counts>());
        let counts = counts.cloned().unwrap_or_default();
        let reserved = model.counting.reserved_under(name);
        if counts.reserved != reserved {
            return Err(format!(
                "a plugin of {name} has reserved {:?}, expected {reserved:?}",
                counts.reserved
            ));
        }
        if counts.pods != pods || counts.nodes != nodes {
            return Err(format!(
                "a plugin of {name} knows {counts:?}, expected {pods:?}, {nodes:?}"
            ));
        }
    }
    Ok(())
}

/// The pods of activeQ of which one is popped next, with their numbers of attempts; none if the order is not known.
pub(in crate::simulate) fn first_pods(order: QueueOrder, engine: &Engine) -> Vec<(Box<str>, u32)> {
    let mut first = Vec::new();
    let active = engine.queue().iter().filter(|(_, at)| *at == SubQueue::Active);
    for (pod, _) in active {
        let known = first.first().copied();
        match known.map_or(Some(Ordering::Equal), |known| order.compare(&pod.info, known)) {
            None => return Vec::new(),
            Some(Ordering::Less) => first = vec![&pod.info],
            Some(Ordering::Equal) => first.push(&pod.info),
            Some(Ordering::Greater) => {}
        }
    }
    first.into_iter().map(|info| (info.pod.uid.clone(), info.attempts)).collect()
}

/// One of these pods was popped.
pub(in crate::simulate) fn check_popped(first: &[(Box<str>, u32)], engine: &Engine) -> CheckResult {
    let is_left = |(uid, attempts): &(Box<str>, u32)| {
        let queued = engine.queue().get(uid);
        queued.is_some_and(|(pod, at)| at == SubQueue::Active && pod.info.attempts == *attempts)
    };
    match first.iter().all(is_left) && !first.is_empty() {
        false => Ok(()),
        true => Err(format!("another pod was popped than the first ones, {first:?}")),
    }
}
