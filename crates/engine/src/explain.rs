//! Where a pod could go now, node by node, as plain data.
//!
//! What is here is written and read as JSON with these fields in this order: a contract. `loadmaster explain` shows what it worked out
//! itself and what a running scheduler answered by the same code.

mod pairs;

use std::borrow::Cow;
use std::sync::Arc;

use loadmaster_framework::preemption::Candidate;
use loadmaster_framework::{Code, Cx, PluginStates, PodInfo, Rejection, Unfit, World};
use serde::{Deserialize, Serialize};

use crate::diagnosis;
use crate::evaluate::filters::Filters;
use crate::evaluate::one_by_one::{self, Attempted};
use crate::evaluate::{Evaluation, Rejected, Verdict};
use crate::profile::Profile;

/// A name of ours, or one that another process told.
pub type Name = Cow<'static, str>;

/// The code of a node that a PreFilter plugin left out.
pub(crate) const NARROWED: &str = "PreFilterResult";

/// Everything `explain` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub pod: String,
    /// The profile's schedulerName.
    pub profile: String,
    /// Who turned the pod down before any node was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_filter: Option<Status>,
    /// By name.
    pub nodes: Vec<Node>,
    /// Names of the feasible nodes with the highest total, sorted.
    pub best: Vec<String>,
    /// Upstream's text when nothing fits, else empty.
    pub message: String,
    /// What evicting other pods could do, if no node fits and a plugin of the profile preempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
}

/// What evicting pods could do for the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// The nodes on which it would fit then, by name.
    #[serde(with = "pairs::evictions")]
    pub candidates: Vec<Evictions>,
    /// Names of the candidates of which one is chosen, sorted.
    pub best: Vec<String>,
    /// Upstream's text when there are none, else empty.
    pub message: String,
}

/// The pods that would have to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evictions {
    pub node: String,
    /// `namespace/name`, the most important first.
    pub victims: Vec<String>,
    /// How many of them a PodDisruptionBudget does not want to go.
    pub n_pdb_violations: usize,
}

/// A status as upstream spells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// A code's name, or `PreFilterResult` for a node that PreFilter left out.
    pub code: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<Name>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub name: String,
    pub filter: Status,
    /// Weighted scores by plugin, in the order of plugins; only of feasible nodes.
    #[serde(with = "pairs::scores")]
    pub scores: Vec<(Name, i64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
}

/// Evaluates the pod in this world and says everything about it. Changes nothing; the plugins' states are copied. Those of a plugin that
/// has seen nothing yet are [`Profile::states`].
pub fn explain(
    profile: &Profile,
    world: &World,
    states: &PluginStates,
    pod: &Arc<PodInfo>,
) -> Explanation {
    let mut states = states.clone();
    let attempted = one_by_one::attempt(profile, world, &mut states, pod);
    let evaluation = &attempted.evaluation;
    let name = |row| world.node(row).map_or("", |node| node.name()).to_owned();
    let mut best: Vec<String> = evaluation.best().into_iter().map(name).collect();
    best.sort_unstable();
    Explanation {
        pod: pod.full_name(),
        profile: profile.scheduler_name.clone(),
        pre_filter: evaluation.pre_filter.as_ref().map(status),
        nodes: nodes(world, evaluation),
        best,
        message: diagnosis::message(evaluation, world.nodes().len()),
        preemption: preemption(profile, world, &states, pod, &attempted),
    }
}

/// What the first plugin that preempts says, if it would be asked.
fn preemption(
    profile: &Profile,
    world: &World,
    states: &PluginStates,
    pod: &Arc<PodInfo>,
    attempted: &Attempted,
) -> Option<Preemption> {
    let evaluation = &attempted.evaluation;
    if evaluation.is_feasible() || evaluation.failure.is_some() || world.nodes().is_empty() {
        return None;
    }
    let filters = Filters { profile, skipped: &attempted.skipped };
    let verdicts = evaluation.codes(world, pod);
    let unfit = Unfit { verdicts: &verdicts, feasibility: &filters, extenders: false };
    let cx = Cx { world, cycle: &attempted.cycle, states };
    let mut plugins = profile.post_filter.iter();
    let preview = plugins.find_map(|member| member.point.preview(cx, pod, unfit))?;
    let name =
        |candidate: &Candidate| world.node(candidate.row).map_or("", |node| node.name()).to_owned();
    let mut candidates: Vec<Evictions> = preview
        .candidates
        .iter()
        .map(|candidate| Evictions {
            node: name(candidate),
            victims: candidate.victims.pods.iter().map(|victim| victim.full_name()).collect(),
            n_pdb_violations: candidate.victims.n_violations,
        })
        .collect();
    candidates.sort_by(|a, b| a.node.cmp(&b.node));
    let mut best: Vec<String> =
        preview.best.iter().map(|at| name(&preview.candidates[*at])).collect();
    best.sort_unstable();
    let message = preview.rejection.as_ref().map(Rejection::message).unwrap_or_default();
    Some(Preemption { candidates, best, message })
}

fn nodes(world: &World, evaluation: &Evaluation) -> Vec<Node> {
    let name = |row| world.node(row).map_or("", |node| node.name()).to_owned();
    if let Some(rejected) = &evaluation.pre_filter {
        let everywhere = status(rejected);
        let all = world.nodes().rows();
        return all
            .map(|row| Node {
                name: name(row),
                filter: everywhere.clone(),
                scores: vec![],
                total: None,
            })
            .collect();
    }
    let each = evaluation.nodes.iter().map(|node| Node {
        name: name(node.row),
        filter: match &node.verdict {
            Verdict::Feasible => {
                Status { code: Code::Success.name().into(), plugin: None, reasons: vec![] }
            }
            Verdict::Narrowed => Status {
                code: NARROWED.into(),
                plugin: None,
                reasons: vec![diagnosis::narrowed_reason(evaluation)],
            },
            Verdict::Rejected(rejected) => status(rejected),
        },
        scores: names(&evaluation.score_plugins).zip(node.scores.iter().copied()).collect(),
        total: node.total,
    });
    each.collect()
}

fn names<'a>(plugins: &'a [&'static str]) -> impl Iterator<Item = Name> + 'a {
    plugins.iter().map(|name| Name::Borrowed(name))
}

pub(crate) fn status(rejected: &Rejected) -> Status {
    Status {
        code: rejected.rejection.code().name().into(),
        plugin: rejected.plugin.map(Name::Borrowed),
        reasons: rejected.rejection.reasons(),
    }
}
