//! Rejected nodes by reason, as the record of a failed attempt has them: a number and a few names, whatever the cluster's size.

use std::borrow::Cow;
use std::sync::Arc;

use loadmaster_framework::{NodeRow, PodInfo, World};
use loadmaster_stdx::SortCompactly as _;
use serde::{Deserialize, Serialize};

use crate::diagnosis::excluded_node_reason;
use crate::evaluate::{Evaluation, FilterResult, PluginRejection};
use crate::explain::{self, EXCLUDED_BY_PRE_FILTER, Status};
use crate::node_rejections::{self, RejectedGroup};

/// Maximal number of reasons in a record; nodes with further reasons are only counted.
const N_REASONS_MAX: usize = 16;
/// Maximal number of node names per reason, and of names of victims.
const N_NAMES_MAX: usize = node_rejections::N_FIRST_ROWS;

/// Nodes that were rejected for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedNodes {
    #[serde(flatten)]
    pub status: Status,
    /// Number of nodes.
    #[serde(rename = "nodes")]
    pub n_nodes: usize,
    /// Names of a few of them.
    pub examples: Vec<String>,
}

/// Nodes by the reason of their rejection, most nodes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RejectionSummary {
    pub by_reason: Vec<RejectedNodes>,
    /// Number of nodes with reasons that are not in `by_reason`.
    pub n_others: usize,
}

/// Details of a failed attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AttemptDetails {
    /// `None` when no node or only one was evaluated.
    pub reasons: Option<Arc<RejectionSummary>>,
    /// Victims of preemption: the first few names, and how many there are.
    pub victims: Vec<String>,
    pub n_victims: usize,
}

impl RejectionSummary {
    /// Summarizes an evaluation without a feasible node.
    pub fn from_evaluation(world: &World, evaluation: &Evaluation) -> RejectionSummary {
        if let Some(rejected) = &evaluation.pre_filter_rejection {
            let mut everywhere = Group::new(Some(rejected));
            world.nodes().rows().for_each(|row| everywhere.add(row));
            return RejectionSummary {
                by_reason: vec![everywhere.to_rejected_nodes(world, evaluation)],
                n_others: 0,
            };
        }
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut n_others = 0;
        for node in &evaluation.nodes {
            let rejected = match &node.filter_result {
                FilterResult::Feasible => continue,
                FilterResult::Excluded => None,
                FilterResult::Rejected(rejected) => Some(rejected),
            };
            match groups.iter().position(|group| group.rejected == rejected) {
                Some(at) => groups[at].add(node.row),
                None if groups.len() == N_REASONS_MAX => n_others += 1,
                None => {
                    let mut group = Group::new(rejected);
                    group.add(node.row);
                    groups.push(group);
                }
            }
        }
        groups.sort_compactly_by_key(|group| std::cmp::Reverse(group.n_nodes));
        let by_reason =
            groups.iter().map(|group| group.to_rejected_nodes(world, evaluation)).collect();
        RejectionSummary { by_reason, n_others }
    }

    /// Summarizes the rejections of nodes by Filter plugins.
    pub fn from_groups(world: &World, mut groups: Vec<RejectedGroup<'_>>) -> RejectionSummary {
        let others = groups.split_off(groups.len().min(N_REASONS_MAX));
        groups.sort_compactly_by_key(|group| std::cmp::Reverse(group.n_nodes));
        let rejected_nodes = |group: &RejectedGroup<'_>| RejectedNodes {
            status: explain::status(group.rejected),
            n_nodes: group.n_nodes,
            examples: names(world, &group.first_rows),
        };
        RejectionSummary {
            by_reason: groups.iter().map(rejected_nodes).collect(),
            n_others: others.iter().map(|group| group.n_nodes).sum(),
        }
    }
}

/// Nodes with the same reason; without a reason, PreFilter excluded them.
struct Group<'a> {
    rejected: Option<&'a PluginRejection>,
    n_nodes: usize,
    examples: Vec<NodeRow>,
}

impl<'a> Group<'a> {
    fn new(rejected: Option<&'a PluginRejection>) -> Group<'a> {
        Group { rejected, n_nodes: 0, examples: Vec::new() }
    }

    fn add(&mut self, row: NodeRow) {
        self.n_nodes += 1;
        if self.examples.len() < N_NAMES_MAX {
            self.examples.push(row);
        }
    }

    fn to_rejected_nodes(&self, world: &World, evaluation: &Evaluation) -> RejectedNodes {
        let status = self.rejected.map_or_else(
            || Status {
                code: Cow::Borrowed(EXCLUDED_BY_PRE_FILTER),
                plugin: None,
                reasons: vec![excluded_node_reason(evaluation)],
            },
            explain::status,
        );
        RejectedNodes { status, n_nodes: self.n_nodes, examples: names(world, &self.examples) }
    }
}

fn names(world: &World, rows: &[NodeRow]) -> Vec<String> {
    let nodes = rows.iter().filter_map(|row| world.node(*row));
    nodes.map(|node| node.name().to_owned()).collect()
}

impl AttemptDetails {
    pub fn from_rejection_summary(reasons: &Arc<RejectionSummary>) -> AttemptDetails {
        AttemptDetails { reasons: Some(reasons.clone()), ..AttemptDetails::default() }
    }

    /// Sets the victims that preemption chose.
    pub fn set_victims(&mut self, victims: &[Arc<PodInfo>]) {
        self.n_victims = victims.len();
        self.victims = victims.iter().take(N_NAMES_MAX).map(|victim| victim.full_name()).collect();
    }
}
