//! Races lost to other schedulers: nobody can keep two schedulers from wanting the same pod or the same room, so that it is counted
//! and said who got it.
//!
//! | race | how it is seen | what people are told |
//! | --- | --- | --- |
//! | [`RaceKind::Bind`] | our bind is refused, and the pod is on a node; whichever of the two is heard first | the answer, in FailedScheduling |
//! | [`RaceKind::Pod`] | a pod that we tried has a node, and we asked for none | an Event if it had a node in our books |
//! | [`RaceKind::Room`] | a pod that we did not place comes to a node, and now our pods on their way there do not fit | an Event on one of these |
//!
//! A replica that does not lead tries no pod, and loses no race.

use std::fmt;

use loadmaster_api::Str;
use loadmaster_framework::{NodeInfo, PodInfo, resources};

use super::binding::{Assumed, Stage};
use super::effect::{Effect, Effects, ObjectName, Observation, Tell};
use super::{Engine, Pending};
use crate::queue::SeatIdx;

/// What was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RaceKind {
    /// Our bind was refused: somebody else's came first.
    Bind,
    /// Somebody else bound the pod while it was waiting, or on its way, here.
    Pod,
    /// Room on a node: somebody else's pod and ours are too much for it together.
    Room,
}

impl RaceKind {
    /// The value of the label `kind`.
    pub fn name(self) -> &'static str {
        match self {
            RaceKind::Bind => "bind",
            RaceKind::Pod => "pod",
            RaceKind::Room => "room",
        }
    }
}

/// A race that another scheduler won.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRace {
    pub kind: RaceKind,
    /// The schedulerName of the profile that lost it.
    pub profile: Str,
    /// Our pod, `namespace/name`.
    pub pod: String,
    /// The node that it had in our books; empty if none.
    pub node: Str,
    /// Where the pod is now; of a race for room, the same node.
    pub bound_to: Str,
    /// Whose pod took the room.
    pub winner: Option<Winner>,
}

/// A pod that we did not place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Winner {
    /// `namespace/name`.
    pub pod: String,
    /// Its schedulerName.
    pub scheduler: Str,
    /// What there is not enough of: `pods` or a resource.
    pub resource: Str,
}

/// A bind that failed as far as we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedBind {
    pub node: Str,
    /// The API server said that something else came first.
    pub is_refused: bool,
}

impl fmt::Display for LostRace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostRace { pod, node, bound_to, .. } = self;
        match &self.winner {
            Some(Winner { pod: other, scheduler, resource }) => write!(
                f,
                "node {node} has too little {resource} for pod {pod}, which was on its way there, and pod {other} of scheduler {scheduler}, which came first"
            ),
            None if node.is_empty() => write!(
                f,
                "pod {pod} was bound to node {bound_to} by somebody else while it waited for a node"
            ),
            None => write!(
                f,
                "pod {pod} was bound to node {bound_to} by somebody else while it was on its way to node {node}"
            ),
        }
    }
}

impl Engine {
    /// A pod that waited here has a node. Whether somebody else gave it that.
    pub(super) fn race_for_pod(&mut self, pending: &Pending, pod: &PodInfo, effects: &mut Effects) {
        let assumed = self.assumed.get_mut(&pod.uid).filter(|assumed| !assumed.confirmed);
        let (kind, node) = match assumed {
            Some(Assumed { binding: Some(binding), .. }) => {
                let sent = matches!(binding.stage, Stage::Bind { .. });
                if sent && binding.node == pod.node_name {
                    // Ours, or else the answer will say so.
                    return;
                }
                binding.lost = true;
                (if sent { RaceKind::Bind } else { RaceKind::Pod }, binding.node.clone())
            }
            Some(_) => return,
            None => match &pending.last_bind {
                Some(bind) if bind.is_refused => (RaceKind::Bind, bind.node.clone()),
                // Carried out, though we did not hear of that.
                Some(bind) if bind.node == pod.node_name => return,
                _ if self.was_tried(pending) => (RaceKind::Pod, Str::default()),
                _ => return,
            },
        };
        self.lost_pod(kind, pending.seat, (pod, node), &pod.node_name, effects);
    }

    fn was_tried(&self, pending: &Pending) -> bool {
        pending.last.is_some() || self.post_filtering.contains_key(&pending.pod.uid)
    }

    /// Our bind failed, perhaps because it was refused. If the pod is known to be on our node then, somebody else put it there; if
    /// nothing is known, the news will say whether anybody did.
    pub(super) fn bind_failed(&mut self, uid: &str, is_refused: bool, effects: &mut Effects) {
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        let Some(binding) = assumed.binding.as_mut().filter(|binding| !binding.lost) else {
            return;
        };
        let node = binding.node.clone();
        if is_refused && assumed.confirmed && !assumed.forgotten {
            binding.lost = true;
            let (pod, seat) = (assumed.pod.clone(), assumed.seat);
            self.lost_pod(RaceKind::Bind, seat, (&pod, node.clone()), &node, effects);
        } else if let Some(pending) = self.pending.get_mut(uid) {
            pending.last_bind = Some(Box::new(FailedBind { node, is_refused }));
        }
    }

    fn lost_pod(
        &self,
        kind: RaceKind,
        seat: SeatIdx,
        (pod, node): (&PodInfo, Str),
        bound_to: &Str,
        effects: &mut Effects,
    ) {
        let lost = LostRace {
            kind,
            profile: self.scheduler_name(seat),
            pod: pod.full_name(),
            node,
            bound_to: bound_to.clone(),
            winner: None,
        };
        // The answer to a bind is told anyway, and who waits without a node has not lost one.
        if kind == RaceKind::Pod && !lost.node.is_empty() {
            effects.push(Effect::Tell(self.told(&lost, pod.into(), None)));
        }
        effects.push(Effect::Observe(Observation::LostRace(Box::new(lost))));
    }

    /// A pod that we did not place came to a node. If that is now too much, and pods of ours are on their way there, one of these
    /// has lost its room.
    pub(super) fn race_for_room(&mut self, winner: &PodInfo, effects: &mut Effects) {
        let row = self.world.nodes().row(&winner.node_name);
        let Some(info) = row.and_then(|row| self.world.node(row)) else { return };
        let short: Vec<Str> = too_little(info, winner).collect();
        if short.is_empty() {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "the greatest is the same in any order")]
        let ours = self.assumed.iter().filter(|(_, it)| {
            !it.confirmed && !it.forgotten && it.pod.node_name == winner.node_name
        });
        let ours = ours.filter_map(|(uid, assumed)| {
            let resource = short.iter().find(|resource| wants(&assumed.pod, resource))?;
            Some((assumed.serial, uid, resource))
        });
        // The one that came last: the others fit.
        let Some((_, uid, resource)) = ours.max() else { return };
        let (uid, resource) = (uid.clone(), resource.clone());
        let Some(assumed) = self.assumed.get_mut(&uid) else { return };
        let is_told = std::mem::replace(&mut assumed.lost_room, true);
        let (pod, seat) = (assumed.pod.clone(), assumed.seat);
        let lost = LostRace {
            kind: RaceKind::Room,
            profile: self.scheduler_name(seat),
            pod: pod.full_name(),
            node: winner.node_name.clone(),
            bound_to: winner.node_name.clone(),
            winner: Some(Winner {
                pod: winner.full_name(),
                scheduler: Str::new(winner.template.scheduler_name()),
                resource,
            }),
        };
        if !is_told {
            effects.push(Effect::Tell(self.told(&lost, (&*pod).into(), Some(winner.into()))));
        }
        effects.push(Effect::Observe(Observation::LostRace(Box::new(lost))));
    }

    fn told(&self, lost: &LostRace, regarding: ObjectName, related: Option<ObjectName>) -> Tell {
        Tell {
            is_warning: true,
            reason: "LostRace",
            action: "Binding",
            note: lost.to_string(),
            regarding,
            related,
            controller: lost.profile.clone(),
        }
    }
}

/// What this pod takes its share of, and the node has too little of.
fn too_little<'a>(node: NodeInfo<'a>, pod: &'a PodInfo) -> impl Iterator<Item = Str> + 'a {
    let pods = (node.n_pods() > node.allocatable_pods()).then(|| Str::new(resources::PODS));
    let native = [resources::CPU, resources::MEMORY, resources::EPHEMERAL_STORAGE].map(Str::new);
    let scalars = pod.requests().resources.scalars.iter().map(|(name, _)| name.clone());
    let wanted = native.into_iter().chain(scalars).filter(|resource| wants(pod, resource));
    let short = wanted.filter(move |name| node.requested(name) > node.allocatable(name));
    pods.into_iter().chain(short)
}

fn wants(pod: &PodInfo, resource: &str) -> bool {
    let wanted = &pod.requests().resources;
    let amount = match resource {
        resources::PODS => 1,
        resources::CPU => wanted.cpu_milli,
        resources::MEMORY => wanted.memory_bytes,
        resources::EPHEMERAL_STORAGE => wanted.ephemeral_storage_bytes,
        scalar => wanted.scalar(scalar).unwrap_or(0),
    };
    amount > 0
}
