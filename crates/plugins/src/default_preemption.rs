//! DefaultPreemption: evicts pods of lower priority where a pod fits nowhere and would fit without them.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreEnqueue, PostFilter |
//! | woken by | nothing of its own: its event, an assigned pod deleted, always says Skip |
//! | upstream | `plugins/defaultpreemption`, 1.36 |
//! | deviations | nodes are tried one after the other; victims that have not started are equals, where upstream compares two readings of the clock |
//! | cost | tried nodes x pods evicted there x the Filters; nothing is copied but the cycle state |

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::args::{self, PluginArgs};
use loadmaster_framework::preemption::{
    Budgets, Candidate, DryRun, Preemptor, Preview, Sample, best, helpable,
};
use loadmaster_framework::request::{Input, Step};
use loadmaster_framework::{
    Action, ClusterEvent, Code, Cx, EventResource, Failure, FieldError, Hint, PluginDef,
    PluginError, PodInfo, Points, PostFilter, PostFiltered, PreEnqueue, Reason, Rejection,
    SerialCx, Unfit, World,
};
use loadmaster_stdx::Rng;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::DeclaredReasons;

pub const NAME: &str = "DefaultPreemption";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(args::complete::<Args>) };

const REASON_WAITS: &str = "waiting for the preemption for this pod to be finished";

/// What it says when it can make no room. [`REASON_WAITS`] is not among them: a file's world has no evictions under way.
pub(crate) const REASONS: DeclaredReasons = &[
    (Code::Unschedulable, "preemption: not eligible due to preemptionPolicy=Never."),
    (
        Code::Unschedulable,
        "preemption: not eligible due to a terminating pod on the nominated node.",
    ),
    (Code::Unschedulable, "No preemption victims found for incoming pod"),
    (Code::Unschedulable, "Preemption is not helpful for scheduling"),
];

/// How many candidates are enough to choose from.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Args {
    /// In percent of the nodes that preemption may help on.
    min_candidate_nodes_percentage: i32,
    min_candidate_nodes_absolute: i32,
}

impl Default for Args {
    /// Upstream's `SetDefaults_DefaultPreemptionArgs`.
    fn default() -> Self {
        Args { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

impl PluginArgs for Args {
    fn validate(&self) -> Vec<FieldError> {
        const PERCENTAGE: &str = "minCandidateNodesPercentage";
        const ABSOLUTE: &str = "minCandidateNodesAbsolute";
        let (percentage, absolute) =
            (self.min_candidate_nodes_percentage, self.min_candidate_nodes_absolute);
        let mut errors = Vec::new();
        if !(0..=100).contains(&percentage) {
            errors.push(FieldError::invalid(PERCENTAGE, percentage, "not in valid range [0, 100]"));
        }
        if absolute < 0 {
            errors.push(FieldError::invalid(ABSOLUTE, absolute, "not in valid range [0, inf)"));
        }
        if percentage == 0 && absolute == 0 {
            let not_both = |other| format!("cannot be zero at the same time as {other}");
            errors.push(FieldError::invalid(PERCENTAGE, percentage, not_both(ABSOLUTE)));
            errors.push(FieldError::invalid(ABSOLUTE, absolute, not_both(PERCENTAGE)));
        }
        errors
    }
}

struct DefaultPreemption {
    args: Args,
    /// Evictions run beside the scheduling of other pods, and the preemptor waits for them outside the queue.
    is_async: bool,
}

fn build(points: &mut Points, args: &Value) -> Result<(), PluginError> {
    let is_async = points.gates.scheduler_async_preemption;
    let plugin = Arc::new(DefaultPreemption { args: args::read(NAME, args)?, is_async });
    points.pre_enqueue = Some(plugin.clone());
    points.post_filter = Some(plugin);
    // Registered so that pods held back by PreEnqueue are looked at again when a victim is gone.
    points.events = Some(Vec::new());
    if is_async {
        points.wake_on(
            ClusterEvent::new(EventResource::Pod, Action::DELETE),
            // Whoever turned the pod down knows better when it fits.
            Some(Arc::new(|_| Ok(Hint::Skip))),
        );
    }
    Ok(())
}

impl PreEnqueue for DefaultPreemption {
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        if self.is_async && cx.world.preemptions().holds(&pod.uid, cx.world) {
            return Err(Rejection::unresolvable(REASON_WAITS));
        }
        Ok(())
    }
}

/// Why there is no room to be made.
struct NoRoom {
    rejection: Rejection,
    /// Nowhere could evictions help, so that a promise made before is void.
    is_final: bool,
}

impl PostFilter for DefaultPreemption {
    fn post_filter(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        unfit: Unfit<'_>,
        rng: &mut Rng,
        input: Input<'_>,
    ) -> Step<PostFiltered> {
        if let Input::Extended(left) = input {
            return Step::Done(choose(cx.world, pod, rng, left));
        }
        let n_nodes = helpable(unfit.verdicts).len();
        let offset = if n_nodes > 0 { rng.below(n_nodes as u64) as usize } else { 0 };
        let sample = Sample { offset, n_wanted: self.args.n_candidates(n_nodes) };
        match candidates(cx.cx(), pod, unfit, sample) {
            Ok(candidates) if unfit.extenders => Step::AskExtenders(candidates),
            Ok(candidates) => Step::Done(choose(cx.world, pod, rng, Ok(&candidates))),
            Err(NoRoom { rejection, is_final }) => Step::Done(PostFiltered {
                nominated_node: is_final.then(Str::default),
                rejection: Some(rejection),
                ..PostFiltered::default()
            }),
        }
    }

    fn counts_as_preemption(&self) -> bool {
        true
    }

    fn preview(&self, cx: Cx<'_>, pod: &Arc<PodInfo>, unfit: Unfit<'_>) -> Option<Preview> {
        Some(match candidates(cx, pod, unfit, Sample::ALL) {
            Ok(candidates) => Preview { best: best(&candidates), candidates, rejection: None },
            Err(NoRoom { rejection, .. }) => {
                Preview { candidates: Vec::new(), best: Vec::new(), rejection: Some(rejection) }
            }
        })
    }
}

impl Args {
    /// How many candidates end the search among so many nodes.
    fn n_candidates(self, n_nodes: usize) -> usize {
        let [percentage, absolute] =
            [self.min_candidate_nodes_percentage, self.min_candidate_nodes_absolute]
                .map(|number| usize::try_from(number).unwrap_or(0));
        (n_nodes * percentage / 100).max(absolute).min(n_nodes)
    }
}

/// Nodes on which the pod would fit without some others; at least one.
fn candidates(
    cx: Cx<'_>,
    pod: &Arc<PodInfo>,
    unfit: Unfit<'_>,
    sample: Sample,
) -> Result<Vec<Candidate>, NoRoom> {
    let preemptor = Preemptor { cx, feasibility: unfit.feasibility, pod };
    let refuse = |rejection: Rejection, is_final| NoRoom { rejection: worded(rejection), is_final };
    preemptor
        .may_preempt(unfit.verdicts)
        .map_err(|reason: Reason| refuse(Rejection::unschedulable(reason), false))?;
    let n_nodes = cx.world.nodes().len();
    if n_nodes == 0 {
        return Err(refuse(Failure::new("no nodes available").into(), false));
    }
    let budgets = Budgets::new(cx.world.cluster());
    let select = |run: &mut DryRun<'_>| run.select_victims(run.outranked(), &budgets);
    let found = preemptor.search(&helpable(unfit.verdicts), sample, select);
    if found.candidates.is_empty() {
        let rejection = found.rejection(n_nodes);
        let is_final = !matches!(rejection, Rejection::Failed(_));
        return Err(refuse(rejection, is_final));
    }
    Ok(found.candidates)
}

fn worded(rejection: Rejection) -> Rejection {
    let text = format!("preemption: {}", rejection.message());
    match rejection {
        Rejection::Failed(_) => Rejection::Failed(Failure::new(text)),
        _ => Rejection::unschedulable(text),
    }
}

/// One of the best candidates that are left; extenders may have left none.
fn choose(
    world: &World,
    pod: &Arc<PodInfo>,
    rng: &mut Rng,
    left: Result<&[Candidate], &str>,
) -> PostFiltered {
    let rejection = match left {
        Ok([]) => Rejection::unschedulable("no candidate node for preemption"),
        Ok(candidates) => return nominate(world, pod, &candidates[*rng.pick(&best(candidates))]),
        Err(error) => Failure::new(error.to_owned()).into(),
    };
    PostFiltered { rejection: Some(worded(rejection)), ..PostFiltered::default() }
}

fn nominate(world: &World, pod: &Arc<PodInfo>, chosen: &Candidate) -> PostFiltered {
    let name = world.node(chosen.row).map_or("", |node| node.name());
    let mut answer = PostFiltered {
        nominated_node: Some(Str::new(name)),
        victims: chosen.victims.pods.clone(),
        ..PostFiltered::default()
    };
    if answer.to_evict().next().is_some() {
        let weaker = world.nominated(name).iter();
        let weaker = weaker.filter(|other| other.template.priority() < pod.template.priority());
        answer.denominated = weaker.cloned().collect();
    }
    answer
}

#[cfg(test)]
mod tests;
