//! Whether a member of a group that fits on a node may be pending when everything has settled.

use std::sync::Arc;

use loadmaster_api::{Pod, Str};
use loadmaster_engine::Profile;
use loadmaster_engine::evaluate::FilterResult;
use loadmaster_engine::evaluate::per_node::{self, AttemptEvaluation};
use loadmaster_framework::world::Trial;
use loadmaster_framework::{CycleState, NodeRow, PluginStates, PodInfo, SerialCx, World};
use loadmaster_scheduler_plugins::pod_group::GroupKey;
use loadmaster_stdx::Rng;
use serde_json::Value;

use super::{GroupSpec, MemberCounts, group_of, kind};
use crate::fake_api_server::{FakeApiServer, is_pod_terminal};
use crate::simulate::plugin_calls;
use crate::simulate::quotas::Quotas;
use crate::simulate::reference_model::has_scheduler_name;

/// So many random attempts must all succeed before a group has to be scheduled.
const N_ATTEMPTS: usize = 16;

/// Whether a member that fits on a node may be pending: its group lacks members or its PodGroup, or the resources that it requires are not
/// free, or it may happen that an attempt to schedule the group fails. That depends on the order of the members and on the nodes that are
/// chosen for them, unless there is plenty of room. Members beyond `minMember` are scheduled alone.
pub(in crate::simulate) fn may_be_pending(
    profile: &Profile,
    api_server: &FakeApiServer,
    (world, states): (&mut World, &PluginStates),
    quotas: &Quotas,
    pod: &Pod,
) -> bool {
    let Some(key) = group_of(pod) else { return false };
    let Some(pod_group) = api_server.custom_object(kind(key.is_old), &key.to_string()) else {
        return true;
    };
    let spec = GroupSpec::of(pod_group);
    let pods = || api_server.pods().filter(|pod| !is_pod_terminal(pod));
    let counts = MemberCounts::of(&key, pods(), |pod| !pod.spec.node_name.is_empty());
    if !counts.is_enough(spec.n_min) {
        return true;
    }
    if lacks_resources(world, pod_group, &key, spec.n_min) {
        return true;
    }
    if counts.placed >= spec.n_min {
        return false;
    }
    let candidates = pods().filter(|pod| {
        group_of(pod).as_ref() == Some(&key)
            && pod.spec.node_name.is_empty()
            && pod.metadata.deletion_timestamp.is_none()
            && pod.spec.scheduling_gates.is_empty()
            && has_scheduler_name(pod, &profile.scheduler_name)
    });
    let mut candidates: Vec<&Pod> = candidates.collect();
    // A member that fits on no node, whatever becomes of the others, fails no attempt for which there are enough others.
    let mut fits = |pod: &&Pod| {
        let info = world.parse_pod(pod).ok();
        info.is_some_and(|info| {
            per_node::evaluate_per_node(profile, world, &mut states.clone(), &info).is_feasible()
        })
    };
    let fitting: Vec<&Pod> = candidates.iter().copied().filter(|pod| fits(pod)).collect();
    if fitting.len() >= spec.n_min - counts.placed {
        candidates = fitting;
    }
    let mut rng = Rng::new(counts.total as u64).split(&key.to_string());
    let may_fail = (0..N_ATTEMPTS).any(|_| {
        shuffle(&mut rng, &mut candidates);
        let states = states.clone();
        let attempt = Attempt { profile, states, spec, n_placed: counts.placed };
        !attempt.succeeds(world, quotas.clone(), &candidates, &mut rng)
    });
    // The reservations of these attempts.
    plugin_calls::take_recorded();
    may_fail
}

/// Whether some members of a pod's group are bound, but not enough.
pub(in crate::simulate) fn is_partly_bound(api_server: &FakeApiServer, pod: &Pod) -> bool {
    let Some(key) = group_of(pod) else { return false };
    let pod_group = api_server.custom_object(kind(key.is_old), &key.to_string());
    let pods = api_server.pods().filter(|pod| !is_pod_terminal(pod));
    let n_bound = MemberCounts::of(&key, pods, |pod| !pod.spec.node_name.is_empty()).placed;
    n_bound > 0 && pod_group.is_some_and(|it| n_bound < GroupSpec::of(it).n_min)
}

fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for at in (1..items.len()).rev() {
        items.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

/// Whether the cluster has less free than `minResources`, if it was without the members of the group.
fn lacks_resources(world: &World, pod_group: &Value, key: &GroupKey, n_min: usize) -> bool {
    let Some(wanted) = pod_group["spec"]["minResources"].as_object() else { return false };
    let amount = |name: &str| {
        let text = wanted.get(name).and_then(Value::as_str)?;
        let quantity = loadmaster_api::Quantity::parse(text).ok()?;
        Some(if name == "cpu" { quantity.milli_value() } else { quantity.value() })
    };
    let mut free = [0; 3];
    for node in world.node_infos() {
        let members = node.pods().filter(|pod| {
            let labels = &pod.template.labels;
            GroupKey::of_labels(&pod.template.namespace, labels).as_ref() == Some(key)
        });
        let mut here = [
            node.allocatable("cpu") - node.requested("cpu"),
            node.allocatable("memory") - node.requested("memory"),
            node.allocatable_pods() - node.n_pods(),
        ];
        for member in members {
            here[0] += member.requests().resources.amount("cpu");
            here[1] += member.requests().resources.amount("memory");
            here[2] += 1;
        }
        free.iter_mut().zip(here).for_each(|(free, here)| *free += here);
    }
    let needed = [amount("cpu"), amount("memory"), Some(n_min as i64)];
    free.into_iter().zip(needed).any(|(free, needed)| needed.is_some_and(|needed| needed > free))
}

/// An attempt to schedule a group, as Coscheduling makes it.
struct Attempt<'a> {
    profile: &'a Profile,
    /// With what is reserved for the members so far, such as volumes of their claims.
    states: PluginStates,
    spec: GroupSpec,
    n_placed: usize,
}

impl Attempt<'_> {
    /// Whether enough of the candidates find a node, one after the other, each on a random one of those on which it fits.
    fn succeeds(
        mut self,
        world: &mut World,
        mut quotas: Quotas,
        candidates: &[&Pod],
        rng: &mut Rng,
    ) -> bool {
        let mut trial = Trial::new(world);
        for pod in candidates {
            let world = trial.world_mut();
            let Ok(mut info) = world.parse_pod(pod) else { return false };
            let AttemptEvaluation { evaluation, mut cycle, .. } =
                per_node::evaluate_attempt(self.profile, world, &mut self.states, &info);
            let nodes = evaluation.nodes.iter();
            let feasible = nodes.filter(|node| node.filter_result == FilterResult::Feasible);
            let feasible: Vec<_> = feasible.map(|node| node.row).collect();
            if feasible.is_empty() || quotas.exceeded(pod).is_some() {
                let n_missing = self.spec.n_min - self.n_placed;
                match self.spec.tolerates_missing(n_missing) {
                    true => continue,
                    false => return false,
                }
            }
            let row = *rng.pick(&feasible);
            info.node_name = trial.node(row).map(|node| Str::new(node.name())).unwrap_or_default();
            let info = Arc::new(info);
            trial.assume(row, info.clone());
            cycle.select_node(row);
            if !self.reserve(&trial, &mut cycle, &info, row) {
                return false;
            }
            quotas.assume(pod);
            self.n_placed += 1;
            if self.n_placed >= self.spec.n_min {
                return true;
            }
        }
        false
    }

    /// Whether all Reserve plugins reserve what the pod needs on the node.
    fn reserve(
        &mut self,
        world: &World,
        cycle: &mut CycleState,
        pod: &Arc<PodInfo>,
        row: NodeRow,
    ) -> bool {
        let Some(node) = world.node(row) else { return false };
        self.profile.reserve.iter().all(|member| {
            let cx = SerialCx { world, cycle, states: &mut self.states };
            member.point.reserve(cx, pod, node).is_ok()
        })
    }
}
