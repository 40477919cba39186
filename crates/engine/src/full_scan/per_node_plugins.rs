//! The part of a full scan that calls plugins without an incremental form node by node.

use loadmaster_framework::{NodeInfo, NodesToFilter, Rejection, World};

use super::ScanError;
use super::scanned_rows::ScannedRows;
use crate::evaluate::PluginRejection;
use crate::evaluate::filter_runner::run_each_filter;
use crate::evaluate::incremental::Evaluator;
use crate::evaluate::plugin_loops::PluginLoops;
use crate::guard::{self, ExtensionPoint};

/// The plugins without an incremental form.
pub(super) struct PerNodePlugins<'a> {
    pub evaluator: &'a Evaluator,
    pub world: &'a World,
    pub loops: PluginLoops<'a>,
}

impl PerNodePlugins<'_> {
    /// Removes the rows from `set` that PreFilter or Filter rejects. `Err` is the failure of a plugin.
    pub fn filter(&mut self, rows: &ScannedRows, set: &mut [u8]) -> Result<(), String> {
        let (world, profile, pod) = (self.world, self.loops.profile, self.loops.pod);
        let mut nodes = NodesToFilter::new(world.nodes(), rows.listed(), set);
        match self.loops.pre_filter(world) {
            Ok(None) => {}
            Ok(Some(names)) => nodes.retain(|node| names.contains(node.name())),
            Err(PluginRejection { rejection: Rejection::Failed(failure), .. }) => {
                return Err(failure.to_string());
            }
            Err(_) => nodes.retain(|_| false),
        }
        let (filters, cx) = (self.loops.filters(), self.loops.cx(world));
        if guard::stopwatch().is_none() {
            // One call for all nodes, of which there are thousands.
            let filtered = filters.iter().try_for_each(|member| {
                guard::set_current_plugin(member.plugin, ExtensionPoint::Filter);
                member.point.filter_nodes(cx, pod, &mut nodes)
            });
            if filtered.is_ok() {
                return Ok(());
            }
            // The failure for the first node counts: it is found node by node. No filter fails for the nodes that were rejected until then.
        }
        let mut failure = None;
        nodes.retain(|node| {
            match run_each_filter(profile, filters.iter().copied(), cx, pod, node) {
                Err(PluginRejection { rejection: Rejection::Failed(why), .. }) => {
                    failure.get_or_insert_with(|| why.to_string());
                    false
                }
                result => result.is_ok(),
            }
        });
        failure.map_or(Ok(()), Err)
    }

    /// Adds the weighted scores of the members of `set`.
    pub fn score(
        &mut self,
        scanned: &ScannedRows,
        set: &[u8],
        totals: &mut [i64],
    ) -> Result<(), ScanError> {
        let (world, profile) = (self.world, self.loops.profile);
        if self.loops.called(&profile.pre_score).next().is_none()
            && self.loops.called(&profile.score).next().is_none()
        {
            return Ok(());
        }
        let rows = set.iter().enumerate().filter(|(_, member)| **member != 0);
        let nodes: Vec<NodeInfo<'_>> =
            rows.filter_map(|(at, _)| world.node(scanned.row(at))).collect();
        if nodes.len() <= 1 {
            // A single feasible node is selected without scoring.
            return Ok(());
        }
        let skipped = self.loops.pre_score(world, &nodes);
        let skipped = skipped.map_err(|failure| ScanError::Failed(failure.to_string()))?;
        let members = self.loops.called(&profile.score);
        for member in members.filter(|member| !skipped.contains(&member.plugin)) {
            for node in self.loops.score(world, member, &nodes)? {
                if let Some(at) = scanned.position(node.row) {
                    totals[at] += member.weight * node.score;
                }
            }
        }
        Ok(())
    }
}
