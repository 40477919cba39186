//! Why each node was rejected: the different rejections, and which of them is whose.

use loadmaster_framework::{Code, NodeRow, Rejection};
use smallvec::SmallVec;

use crate::evaluate::{Evaluation, FilterResult, PluginRejection};

/// Marks a row without a node.
const FREE: u32 = u32::MAX;
/// More different rejections than these are not kept.
const DIFFERENT_MAX: usize = 64;
/// How many rows a group names.
pub(crate) const N_FIRST_ROWS: usize = 3;

/// The rejections of all nodes by Filter plugins, each different one once.
#[derive(Debug)]
pub(crate) struct NodeRejections {
    /// Some may be those of no node.
    different: Vec<PluginRejection>,
    by_row: Vec<u32>,
    /// Number of times that a row got another rejection.
    n_changes: u64,
}

/// A row that changed since its rejection was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChangedRow {
    pub row: NodeRow,
    /// Whether its node is the same as before.
    pub only_pods: bool,
}

/// The nodes with the same rejection.
pub(crate) struct RejectedGroup<'a> {
    pub rejected: &'a PluginRejection,
    pub n_nodes: usize,
    /// The first few of their rows.
    pub first_rows: SmallVec<[NodeRow; N_FIRST_ROWS]>,
}

impl NodeRejections {
    /// Those of an evaluation, if Filter plugins rejected all nodes, none of them failed, and nothing else is to be said about the pod.
    pub fn of_evaluation(n_rows: usize, evaluation: &Evaluation) -> Option<NodeRejections> {
        let Evaluation {
            pre_filter_rejection: None,
            excluded_by,
            nodes,
            failure: None,
            nominated_node_rejection: None,
            nominated_rejected_by: None,
            other_rejecting_plugins,
            unknown_node_rejections,
            ..
        } = evaluation
        else {
            return None;
        };
        if nodes.is_empty()
            || !excluded_by.is_empty()
            || !other_rejecting_plugins.is_empty()
            || !unknown_node_rejections.is_empty()
        {
            return None;
        }
        let mut all =
            NodeRejections { different: Vec::new(), by_row: vec![FREE; n_rows], n_changes: 0 };
        for node in nodes {
            let FilterResult::Rejected(rejected) = &node.filter_result else { return None };
            all.set(node.row, rejected)?;
        }
        Some(all)
    }

    /// Sets the rejection of a node. `None` if it cannot be kept, because the plugin failed or there are too many different ones.
    pub fn set(&mut self, row: NodeRow, rejected: &PluginRejection) -> Option<()> {
        let of_row = self.by_row.get_mut(row.index())?;
        let id = match self.different.iter().position(|known| known == rejected) {
            Some(id) => id,
            None if self.different.len() == DIFFERENT_MAX => return None,
            None if matches!(rejected.rejection, Rejection::Failed(_)) => return None,
            None => {
                self.different.push(rejected.clone());
                self.different.len() - 1
            }
        };
        self.n_changes += u64::from(*of_row != id as u32);
        *of_row = id as u32;
        Some(())
    }

    /// Why a node is rejected.
    pub fn get(&self, row: NodeRow) -> Option<&PluginRejection> {
        self.different.get(*self.by_row.get(row.index())? as usize)
    }

    /// While this is equal, so are the groups and the codes.
    pub fn n_changes(&self) -> u64 {
        self.n_changes
    }

    /// The nodes by rejection, in the order of the first node of each group.
    pub fn groups(&self) -> Vec<RejectedGroup<'_>> {
        let mut groups: Vec<RejectedGroup<'_>> = Vec::new();
        let mut group_of: SmallVec<[Option<usize>; DIFFERENT_MAX]> =
            SmallVec::from_elem(None, self.different.len());
        for (at, id) in self.by_row.iter().enumerate().filter(|(_, id)| **id != FREE) {
            let nth = *group_of[*id as usize].get_or_insert_with(|| {
                let rejected = &self.different[*id as usize];
                groups.push(RejectedGroup { rejected, n_nodes: 0, first_rows: SmallVec::new() });
                groups.len() - 1
            });
            let group = &mut groups[nth];
            group.n_nodes += 1;
            if group.first_rows.len() < N_FIRST_ROWS {
                group.first_rows.push(NodeRow(at as u32));
            }
        }
        groups
    }

    /// The status code of every node, by row.
    pub fn node_codes(&self) -> Vec<(NodeRow, Code)> {
        let codes: SmallVec<[Code; DIFFERENT_MAX]> =
            self.different.iter().map(|rejected| rejected.rejection.code()).collect();
        let nodes = self.by_row.iter().enumerate().filter(|(_, id)| **id != FREE);
        nodes.map(|(at, id)| (NodeRow(at as u32), codes[*id as usize])).collect()
    }
}
