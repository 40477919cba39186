//! DefaultPreemption: if a pod fits on no node, evicts pods of lower priority from a node where it fits without them.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreEnqueue, PostFilter |
//! | woken by | no event: the hint for its event (assigned pod deleted) is always Skip |
//! | upstream | `plugins/defaultpreemption`, 1.36 |
//! | deviations | nodes are dry-run one after the other; victims that have not started are equally important, where upstream compares two clock readings |
//! | cost | dry-run nodes x victims per node x Filter plugins; only the cycle state is copied |

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster_framework::plugin_args::{self, PluginArgs};
use loadmaster_framework::preemption::{
    Candidate, CandidateSampling, DisruptionBudgets, NodeDryRun, PreemptionPreview, Preemptor,
    nodes_where_preemption_might_help, pick_best_candidates,
};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, DryRunCx, EventResource, ExtensionPoints, Failure,
    FieldError, FitError, PluginDef, PluginError, PodInfo, PostFilter, PostFilterCx,
    PostFilterResult, PreEnqueue, QueueingHint, Reason, Rejection, World,
};
use loadmaster_stdx::Rng;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::DeclaredReasons;

pub const NAME: &str = "DefaultPreemption";

pub const DEF: PluginDef =
    PluginDef { name: NAME, build, args: Some(plugin_args::default_and_validate_args::<Args>) };

const REASON_WAITS: &str = "waiting for the preemption for this pod to be finished";

/// The reasons of preemption without a candidate. [`REASON_WAITS`] is not included: in a scenario no eviction is in progress.
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
    /// Victims are evicted while other pods are scheduled, and the preemptor is not in activeQ until then (gate
    /// SchedulerAsyncPreemption).
    is_async: bool,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let is_async = points.gates.scheduler_async_preemption;
    let plugin = Arc::new(DefaultPreemption {
        args: plugin_args::decode_plugin_args(NAME, args)?,
        is_async,
    });
    points.pre_enqueue = Some(plugin.clone());
    points.post_filter = Some(plugin);
    // Registered so that pods rejected by PreEnqueue are checked again when a victim is deleted.
    points.events = Some(Vec::new());
    if is_async {
        points.register_event(
            ClusterEvent::new(EventResource::Pod, ActionType::DELETE),
            // The plugins that rejected the pod have better hints.
            Some(Arc::new(|_| Ok(QueueingHint::Skip))),
        );
    }
    Ok(())
}

impl PreEnqueue for DefaultPreemption {
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        if self.is_async
            && cx.world.ongoing_preemptions().is_pod_running_preemption(&pod.uid, cx.world)
        {
            return Err(Rejection::unresolvable(REASON_WAITS));
        }
        Ok(())
    }
}

/// Why there are no candidates.
struct NoCandidates {
    rejection: Rejection,
    /// Preemption helps on no node, or the pod never preempts: an earlier nomination is cleared.
    is_final: bool,
}

impl PostFilter for DefaultPreemption {
    fn post_filter(
        &self,
        mut cx: PostFilterCx<'_>,
        pod: &Arc<PodInfo>,
        fit_error: FitError<'_>,
        rng: &mut Rng,
        input: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        if let PluginStepInput::ExtendersReplied(remaining) = input {
            return PluginStep::Done(select_candidate(cx.world(), pod, rng, remaining));
        }
        let n_nodes = nodes_where_preemption_might_help(fit_error.node_codes).len();
        let offset = if n_nodes > 0 { rng.below(n_nodes as u64) as usize } else { 0 };
        let sample = CandidateSampling { offset, n_candidates: self.args.n_candidates(n_nodes) };
        match find_candidates(cx.dry_run_cx(), pod, fit_error, sample) {
            Ok(candidates) if fit_error.has_preempting_extenders => {
                PluginStep::CallExtenders(candidates)
            }
            Ok(candidates) => {
                PluginStep::Done(select_candidate(cx.world(), pod, rng, Ok(&candidates)))
            }
            Err(NoCandidates { rejection, is_final }) => PluginStep::Done(PostFilterResult {
                nominated_node: is_final.then(Str::default),
                rejection: Some(rejection),
                ..PostFilterResult::default()
            }),
        }
    }

    fn counts_as_preemption(&self) -> bool {
        true
    }

    fn preview(
        &self,
        cx: DryRunCx<'_>,
        pod: &Arc<PodInfo>,
        fit_error: FitError<'_>,
    ) -> Option<PreemptionPreview> {
        Some(match find_candidates(cx, pod, fit_error, CandidateSampling::ALL) {
            Ok(candidates) => PreemptionPreview {
                best: pick_best_candidates(&candidates),
                candidates,
                rejection: None,
            },
            Err(NoCandidates { rejection, .. }) => PreemptionPreview {
                candidates: Vec::new(),
                best: Vec::new(),
                rejection: Some(rejection),
            },
        })
    }
}

impl Args {
    /// How many candidates are searched for among this number of nodes (upstream's `calculateNumCandidates`).
    fn n_candidates(self, n_nodes: usize) -> usize {
        let [percentage, absolute] =
            [self.min_candidate_nodes_percentage, self.min_candidate_nodes_absolute]
                .map(|number| usize::try_from(number).unwrap_or(0));
        (n_nodes * percentage / 100).max(absolute).min(n_nodes)
    }
}

/// The nodes on which the pod fits without some victims; at least one (upstream's `findCandidates`).
fn find_candidates(
    cx: DryRunCx<'_>,
    pod: &Arc<PodInfo>,
    fit_error: FitError<'_>,
    sample: CandidateSampling,
) -> Result<Vec<Candidate>, NoCandidates> {
    let n_nodes = cx.world().nodes().len();
    let budgets = DisruptionBudgets::new(cx.world().cluster_objects());
    let mut preemptor = Preemptor { cx, filter_runner: fit_error.filter_runner, pod };
    let no_candidates = |rejection: Rejection, is_final| NoCandidates {
        rejection: with_preemption_prefix(rejection),
        is_final,
    };
    // A pod that never preempts waits for no victim: if it does not fit now, its nomination keeps other pods off the node for nothing, and
    // two such pods could wait for each other. Upstream keeps it.
    preemptor.pod_eligible_to_preempt_others(fit_error.node_codes).map_err(|reason: Reason| {
        no_candidates(Rejection::unschedulable(reason), pod.template.never_preempts())
    })?;
    if n_nodes == 0 {
        return Err(no_candidates(Failure::new("no nodes available").into(), false));
    }
    let select =
        |run: &mut NodeDryRun<'_>| run.select_victims_on_node(run.potential_victims(), &budgets);
    let found = preemptor.dry_run_preemption(
        &nodes_where_preemption_might_help(fit_error.node_codes),
        sample,
        select,
    );
    if found.candidates.is_empty() {
        let rejection = found.rejection(n_nodes);
        let is_final = !matches!(rejection, Rejection::Failed(_));
        return Err(no_candidates(rejection, is_final));
    }
    Ok(found.candidates)
}

fn with_preemption_prefix(rejection: Rejection) -> Rejection {
    let text = format!("preemption: {}", rejection.message());
    match rejection {
        Rejection::Failed(_) => Rejection::Failed(Failure::new(text)),
        _ => Rejection::unschedulable(text),
    }
}

/// Nominates one of the best candidates that remain; extenders may have removed all (upstream's `SelectCandidate`).
fn select_candidate(
    world: &World,
    pod: &Arc<PodInfo>,
    rng: &mut Rng,
    remaining: Result<&[Candidate], &str>,
) -> PostFilterResult {
    let rejection = match remaining {
        Ok([]) => Rejection::unschedulable("no candidate node for preemption"),
        Ok(candidates) => {
            return nominate(world, pod, &candidates[*rng.pick(&pick_best_candidates(candidates))]);
        }
        Err(error) => Failure::new(error.to_owned()).into(),
    };
    PostFilterResult {
        rejection: Some(with_preemption_prefix(rejection)),
        ..PostFilterResult::default()
    }
}

fn nominate(world: &World, pod: &Arc<PodInfo>, chosen: &Candidate) -> PostFilterResult {
    let name = world.node(chosen.row).map_or("", |node| node.name());
    let mut result = PostFilterResult {
        nominated_node: Some(Str::new(name)),
        victims: chosen.victims.pods.clone(),
        ..PostFilterResult::default()
    };
    if result.victims_to_evict().next().is_some() {
        let lower_priority = world.nominated_pods_for_node(name).iter();
        let lower_priority =
            lower_priority.filter(|other| other.template.priority() < pod.template.priority());
        result.cleared_nominations = lower_priority.cloned().collect();
    }
    result
}

#[cfg(test)]
mod tests;
