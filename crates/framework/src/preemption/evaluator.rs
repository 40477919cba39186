//! PostFilter of plugins that evict pods: what they have in common (upstream's `Evaluator`).

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_stdx::Rng;
use serde::{Deserialize, Serialize};

use super::{
    CandidateSampling, DisruptionBudgets, DryRunResult, NodeDryRun, Preemptor, pick_best_candidates,
};
use crate::api_calls::{PluginStep, PluginStepInput};
use crate::errors::FieldError;
use crate::extension_points::{Cx, DryRunCx, FitError, PostFilter, PostFilterCx, PostFilterResult};
use crate::node_row::NodeRow;
use crate::plugin_args::PluginArgs;
use crate::pod_info::PodInfo;
use crate::preemption_candidate::{Candidate, PreemptionPreview, Victims};
use crate::result::{Failure, Reason, Rejection};
use crate::world::World;

/// The reason for a preemptor whose victims are still being evicted.
pub const REASON_VICTIMS_BEING_EVICTED: &str =
    "waiting for the preemption for this pod to be finished";

/// The reason for a preemptor with a victim that is still terminating on another node than its nominated one.
const REASON_VICTIM_ELSEWHERE: &str = "not eligible due to a terminating pod on another node.";

/// How many candidates are enough to choose from: the arguments of DefaultPreemption, and of other plugins that preempt pods.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct PreemptionArgs {
    /// In percent of the nodes that preemption may help on.
    pub min_candidate_nodes_percentage: i32,
    /// As a number of nodes.
    pub min_candidate_nodes_absolute: i32,
}

impl Default for PreemptionArgs {
    /// Upstream's `SetDefaults_DefaultPreemptionArgs`.
    fn default() -> Self {
        PreemptionArgs { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

impl PluginArgs for PreemptionArgs {
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

impl PreemptionArgs {
    /// A random first node, and as many candidates as the arguments ask for (upstream's `GetOffsetAndNumCandidates`).
    pub fn sample(self, n_nodes: usize, rng: &mut Rng) -> CandidateSampling {
        let offset = if n_nodes > 0 { rng.below(n_nodes as u64) as usize } else { 0 };
        CandidateSampling { offset, n_candidates: self.n_candidates(n_nodes) }
    }

    /// How many candidates are searched for among this number of nodes (upstream's `calculateNumCandidates`).
    fn n_candidates(self, n_nodes: usize) -> usize {
        let [percentage, absolute] =
            [self.min_candidate_nodes_percentage, self.min_candidate_nodes_absolute]
                .map(|number| usize::try_from(number).unwrap_or(0));
        (n_nodes * percentage / 100).max(absolute).min(n_nodes)
    }
}

/// Why a preemptor may not preempt other pods now.
#[derive(Clone, Debug)]
pub struct Ineligible {
    /// Shown as the message of PostFilter.
    pub reason: Reason,
    /// Whether it keeps its nominated node, because its victims are being evicted. Else it would keep other pods off that node for nothing.
    pub awaits_victims: bool,
}

/// What a plugin that preempts pods decides itself (upstream's `preemption.Interface`). Such a plugin is a [`PostFilter`], too.
pub trait Preemption: Send + Sync {
    /// Precedes the messages of the plugin, such as `preemption: `.
    fn message_prefix(&self) -> &'static str {
        ""
    }

    /// Which of the nodes that preemption may help on are tried.
    fn sample(&self, n_nodes: usize, rng: &mut Rng) -> CandidateSampling;

    /// Why the preemptor may not preempt other pods, besides its preemptionPolicy and victims that are still terminating.
    fn ineligible(&self, cx: Cx<'_>) -> Option<Ineligible> {
        let _ = cx;
        None
    }

    /// Whether [`Preemption::ineligible`] or [`Preemption::dry_run_preemption`] read the cycle state of a pod that preemption helps on no node.
    fn reads_cycle_state_without_nodes(&self) -> bool {
        true
    }

    /// Whether this terminating pod on the preemptor's nominated node counts as a victim that the preemptor waits for.
    fn is_awaited_victim(&self, cx: &DryRunCx<'_>, preemptor: &PodInfo, other: &PodInfo) -> bool;

    /// Whether the preemptor waits for a victim on another node than the one in this row, to which it is nominated.
    fn awaits_victim_elsewhere(
        &self,
        cx: &DryRunCx<'_>,
        preemptor: &PodInfo,
        row: NodeRow,
    ) -> bool {
        let _ = (cx, preemptor, row);
        false
    }

    /// The pods to evict from a node: [`NodeDryRun::select_victims_on_node`] with those pods that the plugin may evict; by default all of
    /// lower priority.
    ///
    /// # Errors
    ///
    /// Why the node is no candidate.
    fn select_victims_on_node(
        &self,
        run: &mut NodeDryRun<'_>,
        budgets: &DisruptionBudgets,
    ) -> Result<Victims, Rejection> {
        run.select_victims_on_node(run.potential_victims(), budgets)
    }

    /// The candidates among the nodes that preemption may help on. By default [`Preemption::select_victims_on_node`] is called for one node
    /// after the other, and all victims of a candidate are on its node.
    fn dry_run_preemption(
        &self,
        preemptor: &mut Preemptor<'_>,
        rows: &[NodeRow],
        sample: CandidateSampling,
        budgets: &DisruptionBudgets,
    ) -> DryRunResult {
        preemptor.dry_run_preemption(rows, sample, |run| self.select_victims_on_node(run, budgets))
    }
}

/// Upstream's `Preempt`.
impl<T: Preemption> PostFilter for T {
    /// Nominates the best candidate, after the extenders have seen all of them.
    fn post_filter(
        &self,
        mut cx: PostFilterCx<'_>,
        pod: &Arc<PodInfo>,
        fit_error: FitError<'_>,
        rng: &mut Rng,
        input: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        let prefix = self.message_prefix();
        if let PluginStepInput::ExtendersReplied(remaining) = input {
            return PluginStep::Done(select_candidate(cx.world(), pod, rng, remaining, prefix));
        }
        // A second search would evict other pods as well.
        let world = cx.world();
        if world.ongoing_preemptions().is_pod_running_preemption(&pod.uid, world) {
            let rejection = Rejection::unschedulable(REASON_VICTIMS_BEING_EVICTED);
            let rejection = Some(with_prefix(rejection, prefix));
            return PluginStep::Done(PostFilterResult { rejection, ..PostFilterResult::default() });
        }
        let sample = self.sample(fit_error.rows_where_preemption_might_help.len(), rng);
        match find_candidates(self, cx.dry_run_cx(), pod, fit_error, sample) {
            Ok(candidates) if fit_error.has_preempting_extenders => {
                PluginStep::CallExtenders(candidates)
            }
            Ok(candidates) => {
                PluginStep::Done(select_candidate(cx.world(), pod, rng, Ok(&candidates), prefix))
            }
            Err(NoCandidates { rejection, nomination }) => PluginStep::Done(PostFilterResult {
                nominated_node: nomination,
                rejection: Some(rejection),
                ..PostFilterResult::default()
            }),
        }
    }

    fn preview(
        &self,
        cx: DryRunCx<'_>,
        pod: &Arc<PodInfo>,
        fit_error: FitError<'_>,
    ) -> Option<PreemptionPreview> {
        Some(match find_candidates(self, cx, pod, fit_error, CandidateSampling::ALL) {
            Ok(candidates) => PreemptionPreview {
                best: pick_best_candidates(&candidates),
                candidates,
                rejection: None,
            },
            Err(NoCandidates { rejection, .. }) => {
                PreemptionPreview { rejection: Some(rejection), ..PreemptionPreview::default() }
            }
        })
    }

    fn reads_cycle_state(&self, rows_where_preemption_might_help: &[NodeRow]) -> bool {
        !rows_where_preemption_might_help.is_empty() || self.reads_cycle_state_without_nodes()
    }

    fn counts_as_preemption(&self) -> bool {
        true
    }
}

/// Why there are no candidates.
struct NoCandidates {
    rejection: Rejection,
    /// Empty if preemption helps on no node, or the pod never preempts: an earlier nomination is cleared. `None` keeps it, and its own node
    /// also undoes that a plugin before this one cleared it.
    nomination: Option<Str>,
}

/// The nodes on which the pod fits without some victims; at least one (upstream's `findCandidates`).
fn find_candidates(
    plugin: &impl Preemption,
    cx: DryRunCx<'_>,
    pod: &Arc<PodInfo>,
    fit_error: FitError<'_>,
    sample: CandidateSampling,
) -> Result<Vec<Candidate>, NoCandidates> {
    let n_nodes = cx.world().nodes().len();
    let budgets = DisruptionBudgets::new(cx.world().cluster_objects());
    let mut preemptor = Preemptor { cx, filter_runner: fit_error.filter_runner, pod };
    let no_candidates = |rejection: Rejection, nomination| NoCandidates {
        rejection: with_prefix(rejection, plugin.message_prefix()),
        nomination,
    };
    let never_preempts = pod.template.never_preempts();
    let ineligible = plugin.ineligible(preemptor.cx.cx()).filter(|_| !never_preempts);
    if let Some(Ineligible { reason, awaits_victims }) = ineligible {
        let nomination = (!awaits_victims).then(Str::default);
        return Err(no_candidates(Rejection::unschedulable(reason), nomination));
    }
    // A pod that never preempts waits for no victim: if it does not fit now, its nomination keeps other pods off the node for nothing, and
    // two such pods could wait for each other. Upstream keeps it.
    let is_awaited = |cx: &DryRunCx<'_>, other: &PodInfo| plugin.is_awaited_victim(cx, pod, other);
    preemptor.pod_eligible_to_preempt_others(fit_error.node_codes, is_awaited).map_err(
        |reason: Reason| {
            no_candidates(Rejection::unschedulable(reason), never_preempts.then(Str::default))
        },
    )?;
    let awaits = |row| plugin.awaits_victim_elsewhere(&preemptor.cx, pod, row);
    if preemptor.nominated_row(fit_error.node_codes).is_some_and(awaits) {
        let rejection = Rejection::unschedulable(REASON_VICTIM_ELSEWHERE);
        return Err(no_candidates(rejection, Some(pod.nominated_node_name.clone())));
    }
    if n_nodes == 0 {
        return Err(no_candidates(Failure::new("no nodes available").into(), None));
    }
    let rows = fit_error.rows_where_preemption_might_help;
    let found = plugin.dry_run_preemption(&mut preemptor, rows, sample, &budgets);
    if found.candidates.is_empty() {
        let rejection = found.rejection(n_nodes);
        let is_final = !matches!(rejection, Rejection::Failed(_));
        return Err(no_candidates(rejection, is_final.then(Str::default)));
    }
    Ok(found.candidates)
}

fn with_prefix(rejection: Rejection, prefix: &str) -> Rejection {
    if prefix.is_empty() {
        return rejection;
    }
    let text = format!("{prefix}{}", rejection.message());
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
    prefix: &str,
) -> PostFilterResult {
    let rejection = match remaining {
        Ok([]) => Rejection::unschedulable("no candidate node for preemption"),
        Ok(candidates) => {
            return nominate(world, pod, &candidates[*rng.pick(&pick_best_candidates(candidates))]);
        }
        Err(error) => Failure::new(error.to_owned()).into(),
    };
    PostFilterResult {
        rejection: Some(with_prefix(rejection, prefix)),
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
