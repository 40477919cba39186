//! The incremental form: one evaluator for all pods with equal claims. It reads free volumes and capacities from the plugin's state, which
//! announces their changes.

use std::sync::Arc;

use loadmaster_api::{CsiNode, Labels, NodeSelector, Str};
use loadmaster_framework::incremental::{
    PluginEvaluator, PrepareResult, ResultDependencies, RowDependency, RowMask,
};
use loadmaster_framework::{EvaluatorCx, NodeRow, ObjectSlot, PluginStateSlot, PrepareCx};

use super::VolumeBinding;
use super::assume_cache::AssumeCache;
use super::claims::{BoundVolume, PodClaims};
use super::node_volumes::{CompiledClaims, NodeCx, NodeVolumes, compile};
use super::score::VolumeCapacityScorer;
use crate::column_filter::{ColumnFilter, column};

pub(super) struct VolumeBindingEvaluator {
    claims: CompiledClaims,
    /// The node that was selected for a claim, if any: no other node passes.
    selected_node: Option<Str>,
    column_filters: Vec<ColumnFilter>,
    /// Whether the columns say all.
    is_complete: bool,
    scorer: Option<Arc<VolumeCapacityScorer>>,
    cache: PluginStateSlot<AssumeCache>,
    csi_nodes: ObjectSlot<CsiNode>,
}

impl VolumeBindingEvaluator {
    pub fn prepare(
        plugin: &VolumeBinding,
        cx: &mut PrepareCx<'_>,
        claims: &PodClaims,
    ) -> PrepareResult {
        if claims.bound.is_empty() && claims.delayed.is_empty() {
            return PrepareResult::Skip;
        }
        // Invalid selectors, and volumes that cannot be translated, fail with texts that name the claim or depend on the node.
        let is_translated = |volume: &BoundVolume| {
            !matches!(volume, BoundVolume::InTree { translated: Err(_), .. })
        };
        let compiled = compile(claims.clone(), &[]);
        if compiled.has_invalid_selector() || !claims.bound.iter().all(is_translated) {
            return PrepareResult::PerNode;
        }
        let restricted = |volume: &BoundVolume| match volume {
            BoundVolume::Restricted(affinity) => Some(affinity.clone()),
            BoundVolume::Missing | BoundVolume::InTree { .. } => None,
        };
        let affinities: Vec<NodeSelector> = claims.bound.iter().filter_map(restricted).collect();
        let filter = |affinity: &NodeSelector| {
            ColumnFilter::new(cx, &Labels::default(), [Some(affinity), None], None)
        };
        let column_filters: Vec<ColumnFilter> = affinities.iter().map(filter).collect();
        let is_complete = claims.delayed.is_empty()
            && column_filters.len() == claims.bound.len()
            && column_filters.iter().all(ColumnFilter::is_complete);
        ensure_columns(plugin, cx, claims);
        let selected_node = claims.delayed.iter().find_map(|claim| claim.selected_node.clone());
        PrepareResult::Evaluator(Box::new(VolumeBindingEvaluator {
            claims: compiled,
            selected_node,
            column_filters,
            is_complete,
            scorer: plugin.scorer.clone(),
            cache: plugin.cache,
            csi_nodes: plugin.slots.csi_nodes.clone(),
        }))
    }

    /// `None` if the state is missing, or in the cases that [`VolumeBindingEvaluator::prepare`] excludes.
    fn find(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> Option<NodeVolumes> {
        let node = cx.nodes().node(row)?;
        let cache = cx.states.get(self.cache)?;
        self.claims.find(NodeCx::new(cache, node, &cx.objects(&self.csi_nodes))).ok()
    }
}

/// At most this many labels get a column, so that changes of what requires them are announced for single nodes.
const COLUMNS_MAX: usize = 4;

/// Creates the columns of the labels by which free volumes and capacities of these classes are indexed.
fn ensure_columns(plugin: &VolumeBinding, cx: &mut PrepareCx<'_>, claims: &PodClaims) {
    let mut labels: Vec<Str> = Vec::new();
    if let Some(cache) = cx.cx().states.get(plugin.cache) {
        for storage in claims.delayed.iter().filter_map(|claim| cache.class(&claim.class)) {
            labels.extend(storage.volumes.labels().chain(storage.capacities.labels()).cloned());
        }
    }
    labels.sort();
    labels.dedup();
    for label in labels.iter().take(COLUMNS_MAX) {
        // Without a column, changes are announced for all nodes.
        let _ = column(cx, label);
    }
}

impl PluginEvaluator for VolumeBindingEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies {
            filter: Some(RowDependency::Node),
            score: self.scorer.is_some().then_some(RowDependency::Node),
            ..ResultDependencies::default()
        }
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        self.find(cx, row).is_some_and(|found| found.is_feasible())
    }

    fn filter_rows(&self, cx: EvaluatorCx<'_>, set: &mut RowMask) {
        if let Some(name) = &self.selected_node {
            let row = cx.nodes().row(name);
            let is_member = row.is_some_and(|row| set[row.index()] != 0);
            set.fill(0);
            if let Some(row) = row.filter(|_| is_member) {
                set[row.index()] = 1;
            }
        }
        for filter in &self.column_filters {
            filter.retain_matching(cx.nodes(), set);
        }
        if self.is_complete {
            return;
        }
        for (at, member) in set.iter_mut().enumerate() {
            if *member != 0 && !self.filter_row(cx, NodeRow(at as u32)) {
                *member = 0;
            }
        }
    }

    fn score_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
        let Some(scorer) = &self.scorer else { return 0 };
        self.find(cx, row).map_or(0, |found| scorer.score(&self.claims, &found))
    }
}
