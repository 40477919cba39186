//! Where a pod could go now, node by node, as plain data.

use loadmaster_framework::{Code, PodInfo, World};

use crate::diagnosis;
use crate::evaluate::{Evaluation, Rejected, Verdict, one_by_one};
use crate::profile::Profile;

/// Everything `explain` shows. The field order is that of its JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// `namespace/name`.
    pub pod: String,
    /// The profile's schedulerName.
    pub profile: String,
    pub pre_filter: Option<Status>,
    /// By name.
    pub nodes: Vec<Node>,
    /// Names of the feasible nodes with the highest total, sorted.
    pub best: Vec<String>,
    /// Upstream's text when nothing fits, else empty.
    pub message: String,
}

/// A status as upstream spells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// A code's name, or `PreFilterResult` for a node that PreFilter left out.
    pub code: &'static str,
    pub plugin: Option<&'static str>,
    pub reasons: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub filter: Status,
    /// Weighted scores by plugin, in the order of plugins; only of feasible nodes.
    pub scores: Vec<(&'static str, i64)>,
    pub total: Option<i64>,
}

/// Evaluates the pod in this world and says everything about it. Changes nothing.
pub fn explain(profile: &Profile, world: &World, pod: &PodInfo) -> Explanation {
    let evaluation = one_by_one::evaluate(profile, world, &mut profile.states.clone(), pod);
    let name = |row| world.node(row).map_or("", |node| node.name()).to_owned();
    let mut best: Vec<String> = evaluation.best().into_iter().map(name).collect();
    best.sort_unstable();
    Explanation {
        pod: pod.full_name(),
        profile: profile.scheduler_name.clone(),
        pre_filter: evaluation.pre_filter.as_ref().map(status),
        nodes: nodes(world, &evaluation),
        best,
        message: diagnosis::message(&evaluation, world.nodes().len()),
    }
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
                Status { code: Code::Success.name(), plugin: None, reasons: vec![] }
            }
            Verdict::Narrowed => Status {
                code: "PreFilterResult",
                plugin: None,
                reasons: vec![diagnosis::narrowed_reason(evaluation)],
            },
            Verdict::Rejected(rejected) => status(rejected),
        },
        scores: evaluation.score_plugins.iter().copied().zip(node.scores.iter().copied()).collect(),
        total: node.total,
    });
    each.collect()
}

fn status(rejected: &Rejected) -> Status {
    Status {
        code: rejected.rejection.code().name(),
        plugin: rejected.plugin,
        reasons: rejected.rejection.reasons(),
    }
}
