//! Evaluates a pod against every node and explains the result as plain data.
//!
//! These types are serialized as JSON with these fields in this order; the format is stable. `loadmaster explain` shows its own results and
//! those of a running scheduler with the same code.

mod details;
mod json_maps;

use std::borrow::Cow;
use std::sync::Arc;

use loadmaster_framework::preemption::{Candidate, nodes_where_preemption_might_help};
use loadmaster_framework::{
    Code, Cx, DryRunCx, FitError, NodeInfo, PluginStates, PodInfo, Rejection, World,
};
use loadmaster_stdx::SortCompactly as _;
use serde::{Deserialize, Serialize};

use crate::counterfactual::{self, Counterfactual};
use crate::diagnosis;
use crate::evaluate::filter_runner::ProfileFilters;
use crate::evaluate::per_node::{self, AttemptEvaluation};
use crate::evaluate::{Evaluation, FilterResult, PluginRejection};
use crate::profile::Profile;
use crate::world_loader::SchedulingInput;

pub use details::{DetailsByName, DetailsByPlugin};

/// A static name, or one that was decoded.
pub type CowName = Cow<'static, str>;

/// The code of a node that a PreFilter plugin excluded.
pub(crate) const EXCLUDED_BY_PRE_FILTER: &str = "PreFilterResult";

/// The result of `explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub pod: String,
    /// The profile's schedulerName.
    pub profile: String,
    /// The rejection by a PreFilter plugin, before any node was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_filter: Option<Status>,
    /// What plugins say about the pod, by plugin and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "json_maps::details")]
    pub details: DetailsByPlugin,
    /// One entry per node.
    pub nodes: Vec<NodeExplanation>,
    /// Names of the feasible nodes with the highest total, sorted.
    pub best: Vec<String>,
    /// Upstream's message if no node is feasible, else empty.
    pub message: String,
    /// What preemption would do, if no node is feasible and a plugin of the profile preempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<PreemptionExplanation>,
    /// What would make the pod fit, if this was searched for ([`Explanation::search_changes`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counterfactual: Option<Counterfactual>,
}

/// What preemption would do for the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreemptionExplanation {
    /// The candidates, ordered by node name.
    #[serde(with = "json_maps::evictions")]
    pub candidates: Vec<PreemptionCandidate>,
    /// Names of the best candidates, one of which is selected; sorted.
    pub best: Vec<String>,
    /// Upstream's message if there are none, else empty.
    pub message: String,
}

/// A candidate of preemption: a node and the victims, which are usually on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionCandidate {
    pub node: String,
    /// `namespace/name`, the most important first.
    pub victims: Vec<String>,
    /// Number of victims whose eviction violates a PodDisruptionBudget.
    pub n_pdb_violations: usize,
}

/// A status with upstream's code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The name of a code, or `PreFilterResult` for a node that PreFilter excluded.
    pub code: CowName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<CowName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// The evaluation of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeExplanation {
    pub name: String,
    pub filter: Status,
    /// Weighted scores by plugin, in the order of plugins; only for feasible nodes.
    #[serde(with = "json_maps::scores")]
    pub scores: Vec<(CowName, i64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// What plugins say about the node, by plugin and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "json_maps::details")]
    pub details: DetailsByPlugin,
}

/// Evaluates a pod against all nodes. Changes the world only in dry runs, and not the plugins' states, which are copied. Initial states
/// are [`Profile::states`].
pub fn explain_pod(
    profile: &Profile,
    world: &mut World,
    states: &PluginStates,
    pod: &Arc<PodInfo>,
) -> Explanation {
    let mut states = states.clone();
    let attempted = per_node::evaluate_attempt(profile, world, &mut states, pod);
    let preemption = preemption(profile, world, &states, pod, &attempted);
    let evaluation = &attempted.evaluation;
    let cx = Cx { world, cycle: &attempted.cycle, states: &states };
    let name = |row| world.node(row).map_or("", |node| node.name()).to_owned();
    let mut best: Vec<String> = evaluation.best_nodes().into_iter().map(name).collect();
    best.sort_unstable();
    Explanation {
        pod: pod.full_name(),
        profile: profile.scheduler_name.clone(),
        pre_filter: evaluation.pre_filter_rejection.as_ref().map(status),
        details: details::of_pod(profile, cx, pod),
        nodes: nodes(profile, cx, pod, evaluation),
        best,
        message: diagnosis::fit_error_message(evaluation, world.nodes().len()),
        preemption,
        counterfactual: None,
    }
}

/// Explains the pod of an input.
pub fn explain(input: &mut SchedulingInput<'_>) -> Explanation {
    let states = input.plugin_states();
    explain_pod(input.profile, &mut input.world, &states, &input.pod)
}

impl Explanation {
    /// Searches for changes that would make the pod fit, if it fits on no node and no plugin failed; `input` is what was explained.
    /// This takes many times as long as the explanation ([`counterfactual`]).
    pub fn search_changes(&mut self, input: &mut SchedulingInput<'_>) {
        let statuses = self.nodes.iter().map(|node| &node.filter).chain(&self.pre_filter);
        let has_failed = { statuses }.any(|status| status.code == Code::Error.name());
        if self.best.is_empty() && !self.nodes.is_empty() && !has_failed {
            self.counterfactual = Some(counterfactual::search(input));
        }
    }
}

/// The preview of the first plugin that preempts and finds candidates, if PostFilter would run. If there is none, the messages of all that
/// would run.
fn preemption(
    profile: &Profile,
    world: &mut World,
    states: &PluginStates,
    pod: &Arc<PodInfo>,
    attempted: &AttemptEvaluation,
) -> Option<PreemptionExplanation> {
    let evaluation = &attempted.evaluation;
    if evaluation.is_feasible() || evaluation.failure.is_some() || world.nodes().is_empty() {
        return None;
    }
    let filters = ProfileFilters { profile, skipped: &attempted.skipped, victims: None };
    let verdicts = evaluation.node_codes(world, pod);
    let fit_error = FitError {
        node_codes: &verdicts,
        rows_where_preemption_might_help: &nodes_where_preemption_might_help(&verdicts),
        filter_runner: &filters,
        has_preempting_extenders: false,
    };
    let mut cx = DryRunCx::new(world, &attempted.cycle, states);
    let mut preview = None;
    let mut messages = Vec::new();
    for member in &profile.post_filter {
        let Some(found) = member.point.preview(cx.reborrow(), pod, fit_error) else { continue };
        let is_last = !matches!(&found.rejection, Some(Rejection::Unschedulable(_)));
        messages.extend(found.rejection.as_ref().map(Rejection::message));
        if found.rejection.is_none() {
            messages.clear();
        }
        preview = Some(found);
        if is_last {
            break;
        }
    }
    let preview = preview?;
    let world = cx.world();
    let name =
        |candidate: &Candidate| world.node(candidate.row).map_or("", |node| node.name()).to_owned();
    let mut candidates: Vec<PreemptionCandidate> = preview
        .candidates
        .iter()
        .map(|candidate| PreemptionCandidate {
            node: name(candidate),
            victims: candidate.victims.pods.iter().map(|victim| victim.full_name()).collect(),
            n_pdb_violations: candidate.victims.n_pdb_violations,
        })
        .collect();
    candidates.sort_compactly_by(|a, b| a.node.cmp(&b.node));
    let mut best: Vec<String> =
        preview.best.iter().map(|at| name(&preview.candidates[*at])).collect();
    best.sort_unstable();
    Some(PreemptionExplanation { candidates, best, message: messages.join(", ") })
}

fn nodes(
    profile: &Profile,
    cx: Cx<'_>,
    pod: &PodInfo,
    evaluation: &Evaluation,
) -> Vec<NodeExplanation> {
    let infos: Vec<NodeInfo<'_>> = cx.world.node_infos().collect();
    let details = details::of_nodes(profile, cx, pod, &infos);
    let all = infos.iter().zip(details);
    if let Some(rejected) = &evaluation.pre_filter_rejection {
        let everywhere = status(rejected);
        let each = all.map(|(node, details)| NodeExplanation {
            name: node.name().to_owned(),
            filter: everywhere.clone(),
            scores: vec![],
            total: None,
            details,
        });
        return each.collect();
    }
    // Both are in the order of rows.
    let each = evaluation.nodes.iter().zip(all).map(|(node, (info, details))| NodeExplanation {
        name: info.name().to_owned(),
        filter: match &node.filter_result {
            FilterResult::Feasible => {
                Status { code: Code::Success.name().into(), plugin: None, reasons: vec![] }
            }
            FilterResult::Excluded => Status {
                code: EXCLUDED_BY_PRE_FILTER.into(),
                plugin: None,
                reasons: vec![diagnosis::excluded_node_reason(evaluation)],
            },
            FilterResult::Rejected(rejected) => status(rejected),
        },
        scores: names(&evaluation.score_plugins).zip(node.scores.iter().copied()).collect(),
        total: node.total,
        details,
    });
    each.collect()
}

fn names<'a>(plugins: &'a [&'static str]) -> impl Iterator<Item = CowName> + 'a {
    plugins.iter().map(|name| CowName::Borrowed(name))
}

pub(crate) fn status(rejected: &PluginRejection) -> Status {
    Status {
        code: rejected.rejection.code().name().into(),
        plugin: rejected.plugin.map(CowName::Borrowed),
        reasons: rejected.rejection.reasons(),
    }
}
