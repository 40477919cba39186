//! The incremental evaluation of all pods with equal keys: the evaluators of all plugins of a profile, combined.
//!
//! A row's total is its row-local score plus the offset of its class in this decision. Everything that is normalized over the
//! feasible nodes or depends on sums over the cluster is part of the class, so that an assumed pod changes one row and a small
//! table.

use std::sync::Arc;

use loadmaster_framework::incremental::{
    ClassKey, FilterScope, NodeClasses, RowDependency, ScoreOutOfRange, check_score_range,
};
use loadmaster_framework::topology_counter::{TopologyCounterId, TopologyCounterSet};
use loadmaster_framework::{
    EvaluatorCx, NodeRow, PluginEvaluator, PodInfo, PrepareResult, Rejection, World,
};
use loadmaster_stdx::PackedList;
use smallvec::SmallVec;

use super::PluginRejection;
use super::class_table::ClassTable;
use super::evaluator_part::{EvaluatorPart, PartsSummary, PluginUsage};
use crate::guard::ExtensionPoint;
use crate::profile::Profile;

/// A [`PrepareResult`] that several combinations share.
#[derive(Clone)]
pub(crate) enum Prepared {
    Skip,
    Rejected(Rejection),
    PerNode,
    Evaluator(Arc<dyn PluginEvaluator>),
}

impl From<PrepareResult> for Prepared {
    fn from(result: PrepareResult) -> Self {
        match result {
            PrepareResult::Skip => Prepared::Skip,
            PrepareResult::Rejected(rejection) => Prepared::Rejected(rejection),
            PrepareResult::PerNode => Prepared::PerNode,
            PrepareResult::Evaluator(evaluator) => Prepared::Evaluator(evaluator.into()),
        }
    }
}

/// Two forms of class keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// With the pods that counters count: those of one combination of keys.
    Counted,
    /// As if they counted none: those of all combinations with equal [indexed parts](EvaluatorPart::is_indexed).
    Shared,
}

/// The evaluators of a profile's plugins for one combination of keys.
pub(crate) struct Evaluator {
    parts: Vec<EvaluatorPart>,
    /// What every decision asks of the parts, because looking at each of them takes longer.
    summary: PartsSummary,
    /// Length of a class key.
    stride: usize,
    /// Class keys depend on the pods of a row that add to these counters.
    class_counters: PodsRead,
    /// The same of the keys of plugins that have no uncounted class keys.
    shared_class_counters: PodsRead,
    /// Plugins (by index in the profile) without an incremental form for these pods.
    pub per_node_plugins: Vec<usize>,
    /// Set when a plugin rejects these pods on all nodes.
    pub rejected: Option<PluginRejection>,
    /// The total of a node without other scores: those that are the same for all nodes; as upstream, 1 if no plugin scores.
    base: i64,
}

/// The pods of a row that class keys depend on.
#[derive(Default)]
struct PodsRead {
    any: bool,
    /// Those that add to one of these counters.
    counters: TopologyCounterSet,
    /// The same counters, each with a set of its own.
    each: Vec<(TopologyCounterId, TopologyCounterSet)>,
}

impl PodsRead {
    fn add(&mut self, id: TopologyCounterId) {
        self.counters.insert(id);
        self.each.push((id, TopologyCounterSet::of(id)));
    }

    #[inline]
    fn may_change(&self, changed: TopologyCounterSet) -> bool {
        self.any
            || self.counters.may_intersect(changed)
                && self.each.iter().any(|(_, counter)| changed.may_contain(*counter))
    }
}

impl Evaluator {
    /// An evaluator without plugins, with space for so many that have an incremental form.
    pub fn new(profile: &Profile, n_parts: usize) -> Evaluator {
        Evaluator {
            parts: Vec::with_capacity(n_parts),
            summary: PartsSummary::default(),
            stride: 0,
            class_counters: PodsRead::default(),
            shared_class_counters: PodsRead::default(),
            per_node_plugins: Vec::new(),
            rejected: None,
            base: i64::from(profile.score.is_empty()),
        }
    }

    /// Adds what a plugin prepared, with the counters that it acquired for that; plugins are added in the order of the profile.
    pub fn add(
        &mut self,
        profile: &Profile,
        used: PluginUsage,
        prepared: Prepared,
        counters: &[TopologyCounterId],
    ) {
        match prepared {
            Prepared::Skip => {}
            Prepared::PerNode => self.per_node_plugins.push(used.plugin),
            Prepared::Rejected(rejection) if used.filters => {
                let name = profile.plugins[used.plugin].name;
                self.set_rejected(PluginRejection { plugin: Some(name), rejection });
            }
            Prepared::Rejected(_) => {}
            Prepared::Evaluator(evaluator) => self.add_part(used, evaluator, counters),
        }
    }

    fn add_part(
        &mut self,
        used: PluginUsage,
        evaluator: Arc<dyn PluginEvaluator>,
        counters: &[TopologyCounterId],
    ) {
        let part = EvaluatorPart::new(used, evaluator, counters, self.stride);
        self.stride += part.key_len;
        if part.dependencies.class == Some(RowDependency::Pods) {
            let shared = part.uncounted.is_none().then_some(&mut self.shared_class_counters);
            for read in [&mut self.class_counters].into_iter().chain(shared) {
                match part.dependencies.class_reads_counters_only {
                    true => counters.iter().for_each(|id| read.add(*id)),
                    false => read.any = true,
                }
            }
        }
        self.base += self.summary.add(self.parts.len(), &part);
        self.parts.push(part);
    }

    /// As in PreFilter: the first unresolvable rejection counts, otherwise the last rejection.
    fn set_rejected(&mut self, rejected: PluginRejection) {
        let ended = self
            .rejected
            .as_ref()
            .is_some_and(|r| matches!(r.rejection, Rejection::Unresolvable(_)));
        if !ended {
            self.rejected = Some(rejected);
        }
    }

    /// Whether no counter counts any pod, so that all rows have their shared class keys.
    #[inline(never)]
    pub fn counts_nothing(&self, world: &World) -> bool {
        !self.parts.iter().any(|part| part.counts_any(world))
    }

    /// Calls `each` with the rows that may not have their shared class keys, ascending: those with pods that counters count.
    pub fn for_each_counted_row(&self, world: &World, each: impl FnMut(NodeRow)) {
        let parts = self.parts.iter().filter(|part| part.counts_any(world));
        let counters: SmallVec<[_; 4]> = parts.flat_map(|part| &part.counters).copied().collect();
        let mut is_counted = PackedList::default();
        world.rows_counted_by(&counters).for_each(|row| is_counted.set(row.index(), 1));
        is_counted.not_zero().map(|(row, _)| NodeRow(row as u32)).for_each(each);
    }

    /// Whether results depend on more of a pod than its keys ([`PluginEvaluator::accepts_pod`]).
    pub fn depends_on_pod(&self) -> bool {
        self.summary.depends_on_pod
    }

    /// Whether no plugin rejects this pod on all nodes. The evaluators are those of its keys.
    pub fn accepts_pod(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> bool {
        if !self.summary.depends_on_pod {
            return true;
        }
        let mut parts = self.parts.iter().filter(|part| part.filters && part.dependencies.pod);
        parts.all(|part| part.enter(ExtensionPoint::PreFilter).accepts_pod(cx, pod))
    }

    /// The positions of the plugins whose Filter may reject nodes, if none of them looks at more than the key, one node and its pods, and
    /// PreFilter neither rejects pods nor excludes nodes.
    pub fn node_filters(&self) -> Option<SmallVec<[usize; 8]>> {
        if !self.per_node_plugins.is_empty()
            || self.rejected.is_some()
            || self.depends_on_pod()
            || self.pre_filter_excludes_nodes()
        {
            return None;
        }
        let mut positions = SmallVec::new();
        for part in self.parts.iter().filter(|part| part.filters) {
            match part.enter(ExtensionPoint::Prepare).filter_scope() {
                FilterScope::Nothing => {}
                FilterScope::Node => positions.push(part.position),
                FilterScope::Cluster => return None,
            }
        }
        Some(positions)
    }

    /// Whether PreFilter excludes nodes for these pods.
    pub fn pre_filter_excludes_nodes(&self) -> bool {
        self.summary.excludes_nodes
    }

    /// Length of a class key.
    pub fn class_key_len(&self) -> usize {
        self.stride
    }

    /// Whether the meaning of the class keys changed, so that the evaluator must be built again.
    #[inline(never)]
    pub fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        self.parts.iter().any(|part| part.enter(ExtensionPoint::Prepare).is_stale(cx))
    }

    /// Whether row-local results depend on the set of nodes.
    pub fn depends_on_node_set(&self) -> bool {
        self.parts.iter().any(|part| part.dependencies.node_set)
    }

    /// Whether the row holds a node that passes the row-local filters with this dependency.
    pub fn row_passes(&self, cx: EvaluatorCx<'_>, which: RowDependency, row: NodeRow) -> bool {
        cx.nodes().node(row).is_some()
            && self
                .row_filters(which)
                .all(|part| part.enter(ExtensionPoint::Filter).filter_row(cx, row))
    }

    /// Removes the rows from `set` that do not pass a row-local filter with this dependency.
    pub fn filter_rows(&self, cx: EvaluatorCx<'_>, which: RowDependency, set: &mut [u8]) {
        for part in self.row_filters(which) {
            part.enter(ExtensionPoint::Filter).filter_rows(cx, NodeRow(0), set);
        }
    }

    /// The same for a list of rows.
    pub fn filter_listed_rows(
        &self,
        cx: EvaluatorCx<'_>,
        which: RowDependency,
        rows: &mut Vec<NodeRow>,
    ) {
        for part in self.row_filters(which) {
            part.enter(ExtensionPoint::Filter).filter_listed_rows(cx, rows);
        }
    }

    /// Adds the row-local scores with this dependency of the members of `set`.
    pub fn score_rows(
        &self,
        cx: EvaluatorCx<'_>,
        which: RowDependency,
        set: &[u8],
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        let mut parts = self.row_scores(which);
        parts.try_for_each(|part| {
            part.enter(ExtensionPoint::Score).score_rows(cx, NodeRow(0), set, part.weight, out)
        })
    }

    /// The same for a list of rows.
    pub fn score_listed_rows(
        &self,
        cx: EvaluatorCx<'_>,
        which: RowDependency,
        rows: &[NodeRow],
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        let mut parts = self.row_scores(which);
        parts.try_for_each(|part| {
            part.enter(ExtensionPoint::Score).score_listed_rows(cx, rows, part.weight, out)
        })
    }

    /// What plugins prepared, in the order of the profile.
    pub fn parts(&self) -> &[EvaluatorPart] {
        &self.parts
    }

    /// What a plugin prepared that may reject nodes; by index in the profile.
    pub fn filter_part(&self, plugin: usize) -> Option<&EvaluatorPart> {
        self.parts.iter().find(|part| part.plugin == plugin && part.filters)
    }

    /// The plugins whose row-local filter has this dependency.
    pub fn row_filters(
        &self,
        which: RowDependency,
    ) -> impl Iterator<Item = &EvaluatorPart> + Clone {
        let parts = self.parts.iter();
        parts.filter(move |part| part.filters_rows(which))
    }

    /// The plugins whose row-local score has this dependency.
    pub fn row_scores(&self, which: RowDependency) -> impl Iterator<Item = &EvaluatorPart> + Clone {
        let parts = self.parts.iter();
        parts.filter(move |part| part.scores_rows(which))
    }

    /// Whether the class key of a row may be another one after a change of its pods that changed these counters. A key that depends on
    /// more than counters may be another one after every change.
    #[inline]
    pub fn may_change_class(&self, form: KeyForm, counters: TopologyCounterSet) -> bool {
        match form {
            KeyForm::Counted => self.class_counters.may_change(counters),
            KeyForm::Shared => self.shared_class_counters.may_change(counters),
        }
    }

    /// The changes of pods, from the one with this sequence number on, that may have changed the class key of a row in the counted form, the
    /// last one first; `None` if that is not known without looking at all of them.
    pub fn class_changes_since<'w>(&self, world: &'w World, then: u64) -> Option<&'w [u64]> {
        let PodsRead { any, each, .. } = &self.class_counters;
        let of = |id: &TopologyCounterId| world.topology_counter(*id).changes_since(then);
        let ((first, _), others) = each.split_first().filter(|_| !any)?;
        let changes = of(first)?;
        // Most often all counters count the same pods.
        let is_equal = |other: &[u64]| other.iter().eq(changes);
        others.iter().all(|(id, _)| of(id).is_some_and(is_equal)).then_some(changes)
    }

    /// No change of pods after the one with this sequence number may have changed the class key of a row in the counted form.
    pub fn classes_changed_at(&self, world: &World) -> Option<u64> {
        let PodsRead { any, each, .. } = &self.class_counters;
        let counters = each.iter().map(|(id, _)| *id);
        if *any { Some(u64::MAX) } else { world.topology_counters().changed_at(counters) }
    }

    /// Whether class keys differ from the shared ones where counters count a row's pods.
    pub fn counts_pods(&self) -> bool {
        self.summary.counts_pods
    }

    /// Computes the class key of a row.
    pub fn class_key(&self, form: KeyForm, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        out.clear();
        for part in self.parts_with_keys() {
            let evaluator = part.enter(ExtensionPoint::Prepare);
            match form {
                KeyForm::Shared if part.uncounted.is_some() => {
                    evaluator.uncounted_class_key(cx, row, out);
                }
                _ => evaluator.class_key(cx, row, out),
            }
        }
    }

    /// Computes the class key of a row whose pods changed, given its previous one.
    pub fn update_class_key(
        &self,
        form: KeyForm,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
        before: &[i64],
        out: &mut ClassKey,
    ) {
        let is_computed = |part: &EvaluatorPart| {
            part.dependencies.class == Some(RowDependency::Pods)
                && (form == KeyForm::Counted || part.uncounted.is_none())
        };
        self.replace_elements(before, out, is_computed, |part, out| {
            part.enter(ExtensionPoint::Prepare).class_key(cx, row, out);
        });
    }

    /// Computes the class key of a row from its shared one.
    pub fn class_key_of_shared(
        &self,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
        shared: &[i64],
        out: &mut ClassKey,
    ) {
        let is_computed = |part: &EvaluatorPart| part.counts_any(cx.world);
        self.replace_elements(shared, out, is_computed, |part, out| {
            part.enter(ExtensionPoint::Prepare).class_key(cx, row, out);
        });
    }

    /// The same from the class key of another combination on the same shared index, that has the same keys where counters count any pod.
    pub fn class_key_of_other(
        &self,
        world: &World,
        shared: &[i64],
        other: &[i64],
        out: &mut ClassKey,
    ) {
        let is_taken_over = |part: &EvaluatorPart| part.counts_any(world);
        self.replace_elements(shared, out, is_taken_over, |part, out| {
            out.extend_from_slice(part.elements(other));
        });
    }

    /// A class key to which `append` adds the elements of some parts, and in which the others are copied.
    fn replace_elements(
        &self,
        copied: &[i64],
        out: &mut ClassKey,
        is_replaced: impl Fn(&EvaluatorPart) -> bool,
        append: impl Fn(&EvaluatorPart, &mut ClassKey),
    ) {
        out.clear();
        for part in self.parts_with_keys() {
            if is_replaced(part) {
                append(part, out);
            } else {
                out.extend_from_slice(part.elements(copied));
            }
        }
    }

    fn parts_with_keys(&self) -> impl Iterator<Item = &EvaluatorPart> {
        self.summary.with_keys.iter().map(|at| &self.parts[*at])
    }

    /// Whether a plugin may reject classes.
    pub fn filters_classes(&self) -> bool {
        !self.summary.class_filters.is_empty()
    }

    /// Computes which classes are feasible.
    pub fn filter_classes(&self, cx: EvaluatorCx<'_>, table: &mut ClassTable) {
        table.feasible.clear();
        table.feasible.extend(table.rows.iter().map(|rows| *rows > 0));
        if self.filters_classes() {
            self.reject_classes(cx, table);
        }
    }

    #[inline(never)]
    fn reject_classes(&self, cx: EvaluatorCx<'_>, table: &mut ClassTable) {
        for part in self.summary.class_filters.iter().map(|at| &self.parts[*at]) {
            for (class, feasible) in table.feasible.iter_mut().enumerate() {
                if *feasible {
                    let start = class * self.stride + part.offset;
                    let key = &table.keys[start..start + part.key_len];
                    *feasible = part.enter(ExtensionPoint::Filter).filter_class(cx, key);
                }
            }
        }
    }

    /// Computes the score offset of each feasible class.
    pub fn score_classes(
        &self,
        cx: EvaluatorCx<'_>,
        table: &mut ClassTable,
    ) -> Result<(), ScoreOutOfRange> {
        table.offsets.clear();
        table.offsets.resize(table.rows.len(), self.base);
        for part in self.summary.class_scores.iter().map(|at| &self.parts[*at]) {
            self.score_part_classes(part, cx, table);
            let scores = table.offsets.iter_mut().zip(&table.scratch).zip(&table.feasible);
            for ((offset, score), _) in scores.filter(|(_, feasible)| **feasible) {
                *offset += part.weight * check_score_range(*score)?;
            }
        }
        Ok(())
    }

    /// Computes the class scores of one plugin into the table's scratch space; those of classes that are not feasible mean nothing.
    fn score_part_classes(
        &self,
        part: &EvaluatorPart,
        cx: EvaluatorCx<'_>,
        table: &mut ClassTable,
    ) {
        let classes = NodeClasses {
            keys: &table.keys,
            stride: self.stride,
            offset: part.offset,
            key_len: part.key_len,
            rows: &table.rows,
            feasible: &table.feasible,
        };
        table.scratch.clear();
        table.scratch.resize(table.rows.len(), 0);
        part.enter(ExtensionPoint::Score).score_classes(cx, &classes, &mut table.scratch);
    }

    /// The scores of each plugin that scores. `class_of` has the class of each row, and is empty if there is only one.
    pub fn scores_by_plugin(
        &self,
        cx: EvaluatorCx<'_>,
        set: &[u8],
        table: &mut ClassTable,
        class_of: &[u32],
    ) -> Result<Vec<RowScores>, ScoreOutOfRange> {
        let mut all = Vec::new();
        for part in self.parts.iter().filter(|part| part.weight != 0) {
            let mut scores = vec![0; set.len()];
            if part.dependencies.score.is_some() {
                let evaluator = part.enter(ExtensionPoint::Score);
                evaluator.score_rows(cx, NodeRow(0), set, part.weight, &mut scores)?;
            }
            if part.enter(ExtensionPoint::Score).has_class_scores() {
                self.score_part_classes(part, cx, table);
                for (at, score) in scores.iter_mut().enumerate().filter(|(at, _)| set[*at] != 0) {
                    let class = class_of.get(at).copied().unwrap_or(0) as usize;
                    let of_class = table.scratch.get(class).copied().unwrap_or(0);
                    *score += part.weight * check_score_range(of_class)?;
                }
            }
            all.push(RowScores { plugin: part.plugin, scores });
        }
        Ok(all)
    }
}

/// The weighted scores of one plugin, by row index; 0 where the row is not feasible.
pub(crate) struct RowScores {
    /// Index in the profile.
    pub plugin: usize,
    pub scores: Vec<i64>,
}
