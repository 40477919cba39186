//! Why pods were turned down, and what they wait for.

use std::collections::BTreeSet;

use loadmaster_api::Str;
use loadmaster_engine::diagnosis::{self, Diagnosis};
use loadmaster_engine::{Evaluation, Profile, Verdict};
use loadmaster_framework::event::HintFn;
use loadmaster_framework::{ClusterEvent, PodInfo, World};

use super::queue::Rejecters;

/// Why a pod was turned down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// Upstream's message.
    pub message: String,
    /// The reasons in it, without numbers.
    pub reasons: Vec<Str>,
    pub(super) by: Rejecters,
}

impl Why {
    /// One reason that no node was asked about.
    pub(super) fn of(message: String, by: Rejecters) -> Why {
        Why { reasons: vec![Str::new(&message)], message, by }
    }

    /// What an evaluation without a feasible node says.
    pub(super) fn new(
        seat: usize,
        profile: &Profile,
        world: &World,
        pod: &PodInfo,
        evaluation: &Evaluation,
    ) -> Why {
        let diagnosis = Diagnosis::new(profile, world, pod, evaluation);
        let mut plugins = [diagnosis.unschedulable, diagnosis.pending].concat();
        plugins.sort_unstable();
        plugins.dedup();
        Why {
            message: diagnosis.message,
            reasons: reasons(evaluation),
            by: Rejecters { seat, plugins },
        }
    }
}

fn reasons(evaluation: &Evaluation) -> Vec<Str> {
    let mut reasons = BTreeSet::new();
    for node in &evaluation.nodes {
        match &node.verdict {
            Verdict::Rejected(rejected) => reasons.extend(rejected.rejection.reasons()),
            Verdict::Narrowed if evaluation.nominated.is_none() => {
                reasons.insert(diagnosis::narrowed_reason(evaluation));
            }
            _ => {}
        }
    }
    reasons.extend(evaluation.pre_filter.iter().flat_map(|rejected| rejected.rejection.reasons()));
    reasons.into_iter().map(Str::from).collect()
}

/// Who among a pod's rejecters must be asked about an event.
pub(super) enum Listeners {
    /// Nobody listens to such events.
    Nobody,
    /// Somebody wants every such event.
    Everybody,
    /// One of these must say yes.
    Hints(Vec<HintFn>),
}

/// Who listens to an event on behalf of pods that these plugins turned down.
pub(super) fn listeners(profile: &Profile, by: &Rejecters, event: &ClusterEvent) -> Listeners {
    // A failed attempt names no plugin: anything may have been the cause.
    if by.plugins.is_empty() {
        return Listeners::Everybody;
    }
    let mut hints = Vec::new();
    for plugin in by.plugins.iter().filter_map(|at| profile.plugins.get(*at)) {
        let Some(registered) = &plugin.events else { return Listeners::Everybody };
        for known in registered.iter().filter(|known| known.event.matches(event)) {
            match &known.hint {
                Some(hint) => hints.push(hint.clone()),
                None => return Listeners::Everybody,
            }
        }
    }
    if hints.is_empty() { Listeners::Nobody } else { Listeners::Hints(hints) }
}
