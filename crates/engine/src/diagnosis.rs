//! Why a pod is unschedulable: upstream's `Diagnosis` and `FitError` message.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_framework::{Code, NodeRow, PodInfo, Rejection, World};

use loadmaster_framework::preemption::nodes_where_preemption_might_help;
use loadmaster_framework::result::nodes_unavailable_message;

use crate::evaluate::{Evaluation, FilterResult, PluginRejection};
use crate::node_rejections::{NodeRejections, RejectedGroup};
use crate::profile::Profile;

/// Why no node is feasible, and which plugins' events may make the pod schedulable (upstream's `Diagnosis`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Upstream's `FitError` message, without the PostFilter message.
    pub message: String,
    /// Plugins that rejected the pod, by index, ascending (upstream's `UnschedulablePlugins`). Includes plugins whose PreFilter
    /// result excluded nodes, because the pod may fit on an excluded node later.
    pub unschedulable_plugins: Vec<usize>,
    /// Plugins that returned `Pending` (upstream's `PendingPlugins`).
    pub pending_plugins: Vec<usize>,
    /// The status code of each node, by row; the input of PostFilter.
    pub node_codes: Vec<(NodeRow, Code)>,
    /// The rows with code `Unschedulable`.
    pub rows_where_preemption_might_help: Vec<NodeRow>,
    /// The error that ended the attempt; the message is the same text.
    pub failure: Option<String>,
}

impl Diagnosis {
    /// The diagnosis of an evaluation without a feasible node.
    pub fn new(
        profile: &Profile,
        world: &World,
        pod: &PodInfo,
        evaluation: &Evaluation,
    ) -> Diagnosis {
        let mut unschedulable = BTreeSet::new();
        let mut pending = BTreeSet::new();
        let rejected = evaluation.nodes.iter().filter_map(|node| match &node.filter_result {
            FilterResult::Rejected(rejected) => Some(rejected),
            _ => None,
        });
        for rejected in rejected
            .chain(&evaluation.pre_filter_rejection)
            .chain(&evaluation.nominated_node_rejection)
        {
            let Some(name) = rejected.plugin else { continue };
            match rejected.rejection {
                Rejection::Pending(_) => pending.insert(name),
                _ => unschedulable.insert(name),
            };
        }
        unschedulable.extend(&evaluation.excluded_by);
        unschedulable.extend(&evaluation.other_rejecting_plugins);
        let node_codes = evaluation.node_codes(world, pod);
        Diagnosis {
            message: fit_error_message(evaluation, world.nodes().len()),
            unschedulable_plugins: indexes(profile, &unschedulable),
            pending_plugins: indexes(profile, &pending),
            rows_where_preemption_might_help: nodes_where_preemption_might_help(&node_codes),
            node_codes,
            failure: evaluation.failure.clone(),
        }
    }

    /// The diagnosis of a pod that Filter plugins rejected on all nodes, given their groups.
    pub(crate) fn of_rejections(
        profile: &Profile,
        world: &World,
        rejections: &NodeRejections,
        groups: &[RejectedGroup<'_>],
    ) -> Diagnosis {
        let (mut unschedulable, mut pending) = (BTreeSet::new(), BTreeSet::new());
        let mut counts = BTreeMap::new();
        for RejectedGroup { rejected, n_nodes, .. } in groups {
            for reason in rejected.rejection.reasons() {
                *counts.entry(reason).or_insert(0) += n_nodes;
            }
            let is_pending = matches!(rejected.rejection, Rejection::Pending(_));
            let plugins = if is_pending { &mut pending } else { &mut unschedulable };
            plugins.extend(rejected.plugin);
        }
        let node_codes = rejections.node_codes();
        Diagnosis {
            message: nodes_unavailable_message(world.nodes().len(), &counts),
            unschedulable_plugins: indexes(profile, &unschedulable),
            pending_plugins: indexes(profile, &pending),
            rows_where_preemption_might_help: nodes_where_preemption_might_help(&node_codes),
            node_codes,
            failure: None,
        }
    }
}

/// The indexes of the plugins with these names, ascending.
fn indexes(profile: &Profile, names: &BTreeSet<&str>) -> Vec<usize> {
    let plugins = profile.plugins.iter().enumerate();
    plugins.filter(|(_, plugin)| names.contains(plugin.name)).map(|(at, _)| at).collect()
}

/// The message for a rejection by Reserve or Permit, which concerns only the selected node.
pub fn single_node_message(rejection: &Rejection) -> String {
    let mut counts = BTreeMap::new();
    for reason in rejection.reasons() {
        *counts.entry(reason).or_insert(0) += 1;
    }
    nodes_unavailable_message(1, &counts)
}

/// `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).`; empty when a node is feasible.
pub fn fit_error_message(evaluation: &Evaluation, n_nodes: usize) -> String {
    if let Some(failure) = &evaluation.failure {
        return failure.clone();
    }
    if n_nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    if evaluation.is_feasible() {
        return String::new();
    }
    if let Some(rejected) = &evaluation.pre_filter_rejection {
        let message = rejected.rejection.message();
        return format!("0/{n_nodes} nodes are available: {message}.");
    }
    nodes_unavailable_message(n_nodes, &count_reasons(evaluation))
}

fn count_reasons(evaluation: &Evaluation) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut count = |rejected: &PluginRejection| {
        for reason in rejected.rejection.reasons() {
            *counts.entry(reason).or_insert(0) += 1;
        }
    };
    evaluation.unknown_node_rejections.iter().for_each(&mut count);
    let mut excluded = 0;
    for node in &evaluation.nodes {
        match &node.filter_result {
            FilterResult::Rejected(rejected) => count(rejected),
            FilterResult::Excluded => excluded += 1,
            FilterResult::Feasible => {}
        }
    }
    if let Some(rejected) = &evaluation.nominated_node_rejection {
        count(rejected);
        excluded -= 1;
    }
    // If no PreFilter plugin excluded nodes, extenders excluded them without a reason.
    if excluded > 0 && !evaluation.excluded_by.is_empty() {
        // Upstream adds the plugin that rejected the nominated node to the same set before it formats this message.
        let mut by = evaluation.excluded_by.clone();
        by.extend(evaluation.nominated_rejected_by);
        by.sort_unstable();
        by.dedup();
        counts.insert(didnt_satisfy(&by), excluded);
    }
    counts
}

/// Upstream's message for a node that PreFilter excluded.
pub fn excluded_node_reason(evaluation: &Evaluation) -> String {
    didnt_satisfy(&evaluation.excluded_by)
}

fn didnt_satisfy(plugins: &[&str]) -> String {
    format!("node(s) didn't satisfy plugin(s) [{}]", plugins.join(" "))
}
