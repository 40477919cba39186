//! PostFilter: making room for a pod that fits nowhere. A plugin that must ask the API server first goes on when the answer is there;
//! other pods are tried meanwhile, and this one stays in flight.

use std::sync::Arc;

use loadmaster_extender::Verb;
use loadmaster_framework::points::SerialCx;
use loadmaster_framework::request::{Input, Step};
use loadmaster_framework::{CycleState, PodInfo, PostFiltered, Rejection, Unfit};

use super::Engine;
use super::binding::{Awaited, Owner};
use super::effect::{Call, Effect, Effects, Observation};
use super::failure::{Failed, Unplaced};
use super::nominations::Nomination;
use crate::evaluate::filters::Filters;
use crate::queue::QueuedPod;
use crate::time::{Mono, Now};

/// An attempt whose pod fits nowhere, while PostFilter plugins are asked.
pub(super) struct PostFiltering {
    /// Tells answers to this attempt from late ones to an earlier attempt of the pod.
    pub serial: u64,
    pub queued: QueuedPod,
    pub unplaced: Arc<Unplaced>,
    pub cycle: CycleState,
    /// What the attempt showed on the stopwatch when it began.
    pub began: u64,
    /// When the first plugin was asked.
    pub asked: Mono,
    /// A plugin has been named for taking long.
    pub is_overdue: bool,
    /// The plugin whose turn it is.
    pub member: usize,
    /// What the plugins before it said.
    reasons: Vec<String>,
    nomination: Nomination,
    /// The pods that go for this one.
    victims: Vec<Arc<PodInfo>>,
}

impl PostFiltering {
    pub fn new(
        serial: u64,
        queued: QueuedPod,
        unplaced: Arc<Unplaced>,
        began: u64,
        asked: Mono,
    ) -> Self {
        PostFiltering {
            asked,
            is_overdue: false,
            serial,
            queued,
            cycle: unplaced.attempted.cycle.clone(),
            unplaced,
            began,
            member: 0,
            reasons: Vec::new(),
            nomination: Nomination::Keep,
            victims: Vec::new(),
        }
    }
}

impl Engine {
    /// Asks the plugin whose turn it is, and those after it, until one answers or all have said that they cannot help.
    pub(super) fn post_filter(
        &mut self,
        now: Now,
        mut asked: PostFiltering,
        mut input: Input<'_>,
        effects: &mut Effects,
    ) {
        let profile = self.seat(asked.queued.seat).profile.clone();
        if profile.post_filter.is_empty() {
            return self.unplaced(now, asked, Nomination::clear(), effects);
        }
        let preempters =
            profile.extenders.asked(Verb::Preempt, &asked.queued.info.pod.template.spec);
        while let Some(member) = profile.post_filter.get(asked.member) {
            let seat = &mut self.seats[asked.queued.seat.0 as usize];
            let filters = Filters { profile: &profile, skipped: &asked.unplaced.attempted.skipped };
            let unfit = Unfit {
                verdicts: &asked.unplaced.diagnosis.verdicts,
                feasibility: &filters,
                extenders: !preempters.is_empty(),
            };
            let states = seat.scheduler.states_mut();
            let cx = SerialCx { world: &self.world, cycle: &mut asked.cycle, states };
            let pod = &asked.queued.info.pod;
            let taken = std::mem::replace(&mut input, Input::Start);
            let step = member.point.post_filter(cx, pod, unfit, &mut self.chance, taken);
            let filtered = match step {
                Step::Done(filtered) => filtered,
                Step::Fail(rejection) => {
                    PostFiltered { rejection: Some(rejection), ..PostFiltered::default() }
                }
                Step::AskExtenders(candidates) => {
                    return self.ask_preempters(now, asked, &candidates, preempters, effects);
                }
                Step::Call(request) => {
                    let id = self.next_call(owner(&asked));
                    effects.push(Effect::Call(Call { id, request }));
                    self.post_filtering.insert(pod.uid.clone(), asked);
                    return;
                }
                Step::Wait { on, timeout } => {
                    let until = now.mono.after(timeout);
                    self.awaited.push(Awaited { owner: owner(&asked), on, until });
                    self.post_filtering.insert(pod.uid.clone(), asked);
                    return;
                }
            };
            let counts = member.point.counts_as_preemption();
            let victims = filtered.rejection.is_none().then_some(filtered.victims.len());
            effects.push(Effect::Observe(Observation::Preemption { counts, victims }));
            if self.is_settled(now, &mut asked, filtered, effects) {
                break;
            }
            asked.member += 1;
        }
        let nomination = asked.nomination.clone();
        self.unplaced(now, asked, nomination, effects);
    }

    /// Takes one plugin's answer; whether no other plugin is asked (upstream's `RunPostFilterPlugins`).
    fn is_settled(
        &mut self,
        now: Now,
        asked: &mut PostFiltering,
        filtered: PostFiltered,
        effects: &mut Effects,
    ) -> bool {
        let nominated = filtered.nominated_node.clone().map(Nomination::Set);
        match &filtered.rejection {
            None => {
                asked.reasons.clear();
                asked.nomination = nominated.unwrap_or(Nomination::Keep);
                self.evict(now, &asked.queued, &filtered, effects);
                asked.victims = filtered.victims;
                true
            }
            Some(Rejection::Unresolvable(_)) => {
                asked.reasons = filtered.rejection.iter().flat_map(Rejection::reasons).collect();
                asked.nomination = nominated.unwrap_or(Nomination::Keep);
                true
            }
            Some(Rejection::Failed(failure)) => {
                asked.reasons = vec![failure.to_string()];
                asked.nomination = Nomination::Keep;
                true
            }
            Some(rejection) => {
                asked.reasons.extend(rejection.reasons());
                if let Some(nomination) = nominated {
                    asked.nomination = nomination;
                }
                false
            }
        }
    }

    fn unplaced(
        &mut self,
        now: Now,
        asked: PostFiltering,
        nomination: Nomination,
        effects: &mut Effects,
    ) {
        let mut failed = Failed::unfit(&asked.unplaced);
        failed.evidence.set_victims(&asked.victims);
        let said = asked.reasons.join(", ");
        if !said.is_empty() {
            failed.message = format!("{} {said}", failed.message);
        }
        self.observe_algorithm(asked.began, effects);
        self.fail(now, asked.queued, failed, &nomination, asked.began, effects);
    }

    /// Goes on where an answer, an object or a deadline was waited for.
    pub(super) fn resume_post_filter(
        &mut self,
        now: Now,
        uid: &str,
        serial: u64,
        input: Input<'_>,
        effects: &mut Effects,
    ) {
        if self.post_filtering.get(uid).is_none_or(|asked| asked.serial != serial) {
            return;
        }
        if let Some(asked) = self.post_filtering.remove(uid) {
            self.post_filter(now, asked, input, effects);
        }
    }
}

fn owner(asked: &PostFiltering) -> Owner {
    Owner::PostFilter { uid: asked.queued.info.pod.uid.clone(), serial: asked.serial }
}
