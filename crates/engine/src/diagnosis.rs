//! Saying why a pod is pending: upstream's `FitError` text.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_framework::{Code, PodInfo, Rejection, Row, World};

use loadmaster_framework::result::nodes_are_unavailable;

use crate::evaluate::{Evaluation, Rejected, Verdict};
use crate::profile::Profile;

/// Why no node is feasible, and whom to ask when something changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Upstream's `FitError` text, without what PostFilter adds.
    pub message: String,
    /// Plugins that turned the pod down, by index, ascending. One that narrowed the nodes is among them: it may have left out
    /// the one that will fit.
    pub unschedulable: Vec<usize>,
    /// Plugins that wait for something outside.
    pub pending: Vec<usize>,
    /// What PostFilter is told about each node, by row.
    pub verdicts: Vec<(Row, Code)>,
    /// An error ended the attempt; the message is that error.
    pub failure: Option<String>,
}

impl Diagnosis {
    /// What an evaluation without a feasible node says.
    pub fn new(
        profile: &Profile,
        world: &World,
        pod: &PodInfo,
        evaluation: &Evaluation,
    ) -> Diagnosis {
        let mut unschedulable = BTreeSet::new();
        let mut pending = BTreeSet::new();
        let rejected = evaluation.nodes.iter().filter_map(|node| match &node.verdict {
            Verdict::Rejected(rejected) => Some(rejected),
            _ => None,
        });
        for rejected in rejected.chain(&evaluation.pre_filter).chain(&evaluation.nominated) {
            let Some(name) = rejected.plugin else { continue };
            match rejected.rejection {
                Rejection::Pending(_) => pending.insert(name),
                _ => unschedulable.insert(name),
            };
        }
        unschedulable.extend(&evaluation.narrowed_by);
        unschedulable.extend(&evaluation.also_rejected_by);
        let index = |names: &BTreeSet<&str>| {
            let plugins = profile.plugins.iter().enumerate();
            let known = plugins.filter(|(_, plugin)| names.contains(plugin.name));
            known.map(|(at, _)| at).collect()
        };
        Diagnosis {
            message: message(evaluation, world.nodes().len()),
            unschedulable: index(&unschedulable),
            pending: index(&pending),
            verdicts: evaluation.codes(world, pod),
            failure: evaluation.failure.clone(),
        }
    }
}

/// The same about the only node that was asked about: Reserve or Permit turned it down.
pub fn message_of_one(rejection: &Rejection) -> String {
    let mut counts = BTreeMap::new();
    for reason in rejection.reasons() {
        *counts.entry(reason).or_insert(0) += 1;
    }
    nodes_are_unavailable(1, &counts)
}

/// `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).`; empty when a node is feasible.
pub fn message(evaluation: &Evaluation, n_nodes: usize) -> String {
    if let Some(failure) = &evaluation.failure {
        return failure.clone();
    }
    if n_nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    if evaluation.is_feasible() {
        return String::new();
    }
    if let Some(rejected) = &evaluation.pre_filter {
        let message = rejected.rejection.message();
        return format!("0/{n_nodes} nodes are available: {message}.");
    }
    nodes_are_unavailable(n_nodes, &count_reasons(evaluation))
}

fn count_reasons(evaluation: &Evaluation) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut count = |rejected: &Rejected| {
        for reason in rejected.rejection.reasons() {
            *counts.entry(reason).or_insert(0) += 1;
        }
    };
    evaluation.elsewhere.iter().for_each(&mut count);
    let mut narrowed = 0;
    for node in &evaluation.nodes {
        match &node.verdict {
            Verdict::Rejected(rejected) => count(rejected),
            Verdict::Narrowed => narrowed += 1,
            Verdict::Feasible => {}
        }
    }
    if let Some(rejected) = &evaluation.nominated {
        count(rejected);
        narrowed -= 1;
    }
    // Where PreFilter narrowed nothing, extenders left these out and gave no reason.
    if narrowed > 0 && !evaluation.narrowed_by.is_empty() {
        // Upstream adds who turned the nominated node down to the same set before it words this.
        let mut by = evaluation.narrowed_by.clone();
        by.extend(evaluation.nominated_rejected_by);
        by.sort_unstable();
        by.dedup();
        counts.insert(didnt_satisfy(&by), narrowed);
    }
    counts
}

/// What upstream says about a node that PreFilter left out.
pub fn narrowed_reason(evaluation: &Evaluation) -> String {
    didnt_satisfy(&evaluation.narrowed_by)
}

fn didnt_satisfy(plugins: &[&str]) -> String {
    format!("node(s) didn't satisfy plugin(s) [{}]", plugins.join(" "))
}
