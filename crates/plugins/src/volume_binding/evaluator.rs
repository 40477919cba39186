//! The incremental form: one evaluator for all pods with equal claims.
//!
//! The volumes of bound claims are row-local. Claims that are bound now depend on free volumes and capacities, which change with every
//! pod that gets one; of a node they depend on a few labels only. So they are compared with classes of nodes by these labels, in every
//! decision. Where each node has its own value of such a label, as with local disks, they are compared with nodes, and changes are
//! announced: of what a few nodes have access to for these nodes, of the rest with a new version of the storage class.

use std::sync::Arc;

use loadmaster_api::{CsiNode, Labels, NodeSelector, Str};
use loadmaster_framework::incremental::{
    ClassKey, NodeClasses, PluginEvaluator, PrepareResult, ResultDependencies, RowDependency,
    RowMask, retain_rows,
};
use loadmaster_framework::label_classes::LabelClasses;
use loadmaster_framework::{EvaluatorCx, NodeRow, ObjectSlot, PluginStateSlot, PrepareCx};

use super::VolumeBinding;
use super::assume_cache::AssumeCache;
use super::claims::{BoundVolume, PodClaims};
use super::node_volumes::{CompiledClaims, NodeCx, NodeVolumes, StorageCx, compile};
use super::score::VolumeCapacityScorer;
use crate::column_filter::{self, ColumnFilter};

pub(super) struct VolumeBindingEvaluator {
    claims: CompiledClaims,
    /// The node that was selected for a claim, if any: no other node passes.
    selected_node: Option<Str>,
    column_filters: Vec<ColumnFilter>,
    /// Whether the columns say all that is row-local.
    is_complete: bool,
    delayed: Option<DelayedClaims>,
    scorer: Option<Arc<VolumeCapacityScorer>>,
    cache: PluginStateSlot<AssumeCache>,
    csi_nodes: ObjectSlot<CsiNode>,
}

/// How claims that are bound now are compared with nodes.
struct DelayedClaims {
    /// The node labels that are read, in order.
    node_labels: Vec<Str>,
    /// `None` if they are compared with single nodes.
    classes: Option<LabelClasses>,
    /// The versions of the claims' storage classes, for comparisons with single nodes.
    versions: Vec<u64>,
}

impl DelayedClaims {
    fn new(
        cx: &mut PrepareCx<'_>,
        claims: &CompiledClaims,
        slot: PluginStateSlot<AssumeCache>,
    ) -> Option<DelayedClaims> {
        let cache = cx.cx().states.get(slot).filter(|_| claims.has_delayed())?;
        let node_labels: Vec<Str> = claims.node_labels(cache).into_iter().cloned().collect();
        let versions = claims.storage_versions(cache).collect();
        let classes = LabelClasses::new(cx, &node_labels);
        Some(DelayedClaims { node_labels, classes, versions })
    }

    fn is_stale(&self, cx: EvaluatorCx<'_>, claims: &CompiledClaims, cache: &AssumeCache) -> bool {
        let has_classes = self.classes.is_some();
        LabelClasses::are_few(cx.nodes(), &self.node_labels) != has_classes
            || !claims.node_labels(cache).into_iter().eq(&self.node_labels)
            || !has_classes && !claims.storage_versions(cache).eq(self.versions.iter().copied())
    }
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
        let delayed = DelayedClaims::new(cx, &compiled, plugin.cache);
        let selected_node = claims.delayed.iter().find_map(|claim| claim.selected_node.clone());
        let is_complete = selected_node.is_none()
            && delayed.as_ref().is_none_or(|delayed| delayed.classes.is_some())
            && column_filters.len() == claims.bound.len()
            && column_filters.iter().all(ColumnFilter::is_complete);
        PrepareResult::Evaluator(Box::new(VolumeBindingEvaluator {
            claims: compiled,
            selected_node,
            column_filters,
            is_complete,
            delayed,
            scorer: plugin.scorer.clone(),
            cache: plugin.cache,
            csi_nodes: plugin.slots.csi_nodes.clone(),
        }))
    }

    fn classes(&self) -> Option<&LabelClasses> {
        self.delayed.as_ref()?.classes.as_ref()
    }

    fn node_cx<'a>(&self, cx: EvaluatorCx<'a>, row: NodeRow) -> Option<NodeCx<'a>> {
        let cache = cx.states.get(self.cache)?;
        Some(NodeCx::new(cache, cx.nodes().node(row)?, &cx.objects(&self.csi_nodes)))
    }

    /// What there is for the claims that are bound now on the nodes of a class.
    fn find_for_class(&self, cx: EvaluatorCx<'_>, class_key: &[i64]) -> Option<NodeVolumes> {
        let labels = &self.classes()?.labels(cx.nodes(), class_key);
        let cache = cx.states.get(self.cache)?;
        Some(self.claims.find_delayed(StorageCx { cache, labels }))
    }
}

impl PluginEvaluator for VolumeBindingEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        let node = Some(RowDependency::Node);
        let is_by_class = self.classes().is_some();
        let scores_rows = self.scorer.is_some() && !is_by_class;
        ResultDependencies {
            filter: node.filter(|_| !self.is_complete || !self.column_filters.is_empty()),
            score: node.filter(|_| scores_rows),
            class: node.filter(|_| is_by_class),
            ..ResultDependencies::default()
        }
    }

    fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        let Some(delayed) = &self.delayed else { return false };
        cx.states.get(self.cache).is_none_or(|cache| delayed.is_stale(cx, &self.claims, cache))
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let Some(node_cx) = self.node_cx(cx, row) else { return false };
        match self.classes() {
            Some(_) => self.claims.passes_but_for_delayed(node_cx),
            None => self.claims.find(node_cx).is_ok_and(|found| found.is_feasible()),
        }
    }

    fn filter_rows(&self, cx: EvaluatorCx<'_>, first: NodeRow, set: &mut RowMask) {
        if let Some(name) = &self.selected_node {
            column_filter::retain_named(std::slice::from_ref(name), cx.nodes(), first, set);
        }
        for filter in &self.column_filters {
            filter.retain_matching(cx.nodes(), first, set);
        }
        if self.is_complete {
            return;
        }
        retain_rows(first, set, |row| self.filter_row(cx, row));
    }

    fn score_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
        let (Some(scorer), None) = (&self.scorer, self.classes()) else { return 0 };
        let found = self.node_cx(cx, row).and_then(|node_cx| self.claims.find(node_cx).ok());
        found.map_or(0, |found| scorer.score(&self.claims, &found))
    }

    fn class_key_len(&self) -> usize {
        self.classes().map_or(0, LabelClasses::key_len)
    }

    fn class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        if let Some(classes) = self.classes() {
            classes.class_key(cx.nodes(), row, out);
        }
    }

    fn filter_class(&self, cx: EvaluatorCx<'_>, class_key: &[i64]) -> bool {
        self.classes().is_none()
            || self.find_for_class(cx, class_key).is_some_and(|found| found.is_feasible())
    }

    fn has_class_scores(&self) -> bool {
        self.scorer.is_some() && self.classes().is_some()
    }

    fn score_classes(&self, cx: EvaluatorCx<'_>, classes: &NodeClasses<'_>, out: &mut [i64]) {
        let Some(scorer) = &self.scorer else { return };
        for class in classes.feasible() {
            let found = self.find_for_class(cx, classes.key(class));
            out[class] = found.map_or(0, |found| scorer.score(&self.claims, &found));
        }
    }
}
