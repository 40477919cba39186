//! Saying why a pod is pending: upstream's `FitError` text.

use std::collections::BTreeMap;

use loadmaster_framework::result::nodes_are_unavailable;

use crate::evaluate::{Evaluation, Rejected, Verdict};

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
    if narrowed > 0 {
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
