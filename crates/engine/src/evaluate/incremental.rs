//! The incremental evaluation of all pods with equal keys: the evaluators of all plugins of a profile, combined.
//!
//! A row's total is its row-local score plus the offset of its class in this decision. Everything that is normalized over the
//! feasible nodes or depends on sums over the cluster is part of the class, so that an assumed pod changes one row and a small
//! table.

use std::sync::Arc;

use loadmaster_framework::incremental::{
    ClassKey, EvaluatorKey, FilterScope, NodeClasses, ResultDependencies, RowDependency,
    ScoreOutOfRange, check_score_range,
};
use loadmaster_framework::topology_counter::{TopologyCounterId, TopologyCounterSet};
use loadmaster_framework::{
    EvaluatorCx, NodeRow, PluginEvaluator, PodInfo, PrepareResult, Rejection, World,
};
use smallvec::SmallVec;

use super::PluginRejection;
use super::class_table::ClassTable;
use crate::guard::{self, ExtensionPoint};
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

/// The evaluator of one plugin, and what the profile uses of it.
#[derive(Clone)]
pub(crate) struct EvaluatorPart {
    /// Index in the profile.
    pub plugin: usize,
    evaluator: Arc<dyn PluginEvaluator>,
    dependencies: ResultDependencies,
    /// [`PluginEvaluator::uncounted`].
    uncounted: Option<EvaluatorKey>,
    filters: bool,
    /// Whether its Filter may reject classes.
    filters_classes: bool,
    /// 0 when the plugin does not score in this profile.
    pub weight: i64,
    /// Where its part of a class key begins.
    offset: usize,
    key_len: usize,
    /// Those that it acquired.
    counters: SmallVec<[TopologyCounterId; 2]>,
}

impl EvaluatorPart {
    pub fn dependencies(&self) -> ResultDependencies {
        self.dependencies
    }

    /// Whether the plugin's class keys differ from the uncounted ones where counters count a row's pods.
    fn counts_pods(&self) -> bool {
        self.uncounted.is_some() && self.dependencies.class == Some(RowDependency::Pods)
    }

    /// Whether its counters count any pod, so that there may be rows where the class keys differ.
    fn counts_any(&self, world: &World) -> bool {
        self.counts_pods() && !self.counters.iter().all(|id| world.topology_counter(*id).is_zero())
    }

    /// The plugin's evaluator; marks the plugin as the current one at this extension point.
    #[inline]
    pub fn enter(&self, site: ExtensionPoint) -> &dyn PluginEvaluator {
        guard::set_current_plugin(self.plugin, site);
        &*self.evaluator
    }
}

/// Two forms of class keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// With the pods that counters count: those of one combination of keys.
    Counted,
    /// As if they counted none: those of all combinations with equal [shared parts](Evaluator::shared_parts).
    Shared,
}

/// The evaluators of a profile's plugins for one combination of keys.
pub(crate) struct Evaluator {
    parts: Vec<EvaluatorPart>,
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
    /// The total of a node without scores: as upstream, 1 if no plugin scores.
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
    /// An evaluator without plugins.
    pub fn new(profile: &Profile) -> Evaluator {
        Evaluator {
            parts: Vec::new(),
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
        plugin: usize,
        used: PluginUsage,
        prepared: Prepared,
        counters: &[TopologyCounterId],
    ) {
        match prepared {
            Prepared::Skip => {}
            Prepared::PerNode => self.per_node_plugins.push(plugin),
            Prepared::Rejected(rejection) if used.filters => {
                let name = profile.plugins[plugin].name;
                self.set_rejected(PluginRejection { plugin: Some(name), rejection });
            }
            Prepared::Rejected(_) => {}
            Prepared::Evaluator(evaluator) => self.add_part(plugin, evaluator, used, counters),
        }
    }

    fn add_part(
        &mut self,
        plugin: usize,
        evaluator: Arc<dyn PluginEvaluator>,
        used: PluginUsage,
        counters: &[TopologyCounterId],
    ) {
        guard::set_current_plugin(plugin, ExtensionPoint::Prepare);
        let dependencies = evaluator.dependencies();
        let key_len = if dependencies.class.is_some() { evaluator.class_key_len() } else { 0 };
        let offset = self.stride;
        self.stride += key_len;
        let uncounted = evaluator.uncounted();
        if dependencies.class == Some(RowDependency::Pods) {
            let shared = uncounted.is_none().then_some(&mut self.shared_class_counters);
            for read in [&mut self.class_counters].into_iter().chain(shared) {
                match dependencies.class_reads_counters_only {
                    true => counters.iter().for_each(|id| read.add(*id)),
                    false => read.any = true,
                }
            }
        }
        let PluginUsage { filters, weight, .. } = used;
        let filters_classes =
            filters && key_len > 0 && evaluator.filter_scope() != FilterScope::Nothing;
        self.parts.push(EvaluatorPart {
            plugin,
            evaluator,
            dependencies,
            uncounted,
            filters,
            filters_classes,
            weight,
            offset,
            key_len,
            counters: counters.into(),
        });
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
    pub fn counts_nothing(&self, world: &World) -> bool {
        !self.parts.iter().any(|part| part.counts_any(world))
    }

    /// The rows that may not have their shared class keys, ascending: those with pods that counters count.
    pub fn counted_rows(&self, world: &World) -> impl Iterator<Item = NodeRow> + use<> {
        let mut is_counted = vec![false; world.nodes().n_rows()];
        let parts = self.parts.iter().filter(|part| part.counts_any(world));
        for row in parts.flat_map(|part| &part.counters).flat_map(|id| world.rows_counted_by(*id)) {
            // A row may be that of a node that was deleted.
            if let Some(is_counted) = is_counted.get_mut(row.index()) {
                *is_counted = true;
            }
        }
        (0..).zip(is_counted).filter(|(_, is_counted)| *is_counted).map(|(row, _)| NodeRow(row))
    }

    /// Whether results depend on more of a pod than its keys ([`PluginEvaluator::accepts_pod`]).
    pub fn depends_on_pod(&self) -> bool {
        self.parts.iter().any(|part| part.filters && part.dependencies.pod)
    }

    /// Whether no plugin rejects this pod on all nodes. The evaluators are those of its keys.
    pub fn accepts_pod(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> bool {
        let mut parts = self.parts.iter().filter(|part| part.filters && part.dependencies.pod);
        parts.all(|part| part.enter(ExtensionPoint::PreFilter).accepts_pod(cx, pod))
    }

    /// The plugins whose Filter may reject nodes, if none of them looks at more than the key, one node and its pods, and PreFilter neither
    /// rejects pods nor excludes nodes.
    pub fn node_filters(&self) -> Option<Vec<usize>> {
        if !self.per_node_plugins.is_empty()
            || self.rejected.is_some()
            || self.depends_on_pod()
            || self.pre_filter_excludes_nodes()
        {
            return None;
        }
        let mut plugins = Vec::new();
        for part in self.parts.iter().filter(|part| part.filters) {
            match part.enter(ExtensionPoint::Prepare).filter_scope() {
                FilterScope::Nothing => {}
                FilterScope::Node => plugins.push(part.plugin),
                FilterScope::Cluster => return None,
            }
        }
        Some(plugins)
    }

    /// Whether PreFilter excludes nodes for these pods.
    pub fn pre_filter_excludes_nodes(&self) -> bool {
        self.parts
            .iter()
            .any(|part| part.filters && part.enter(ExtensionPoint::Prepare).narrows_nodes())
    }

    /// Length of a class key.
    pub fn class_key_len(&self) -> usize {
        self.stride
    }

    /// Whether the meaning of the class keys changed, so that the evaluator must be built again.
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
            part.enter(ExtensionPoint::Filter).filter_rows(cx, set);
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
            part.enter(ExtensionPoint::Score).score_rows(cx, set, part.weight, out)
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

    /// Whether class keys contain something of this plugin.
    pub fn has_class_key_of(&self, plugin: usize) -> bool {
        self.parts.iter().any(|part| part.plugin == plugin && part.key_len > 0)
    }

    /// What a plugin prepared that may reject nodes; by index in the profile.
    pub fn filter_part(&self, plugin: usize) -> Option<&EvaluatorPart> {
        self.parts.iter().find(|part| part.plugin == plugin && part.filters)
    }

    /// The plugins whose row-local filter has this dependency.
    pub fn row_filters(&self, which: RowDependency) -> impl Iterator<Item = &EvaluatorPart> {
        let parts = self.parts.iter();
        parts.filter(move |part| part.filters && part.dependencies.filter == Some(which))
    }

    /// The plugins whose row-local score has this dependency.
    pub fn row_scores(&self, which: RowDependency) -> impl Iterator<Item = &EvaluatorPart> {
        let parts = self.parts.iter();
        parts.filter(move |part| part.weight != 0 && part.dependencies.score == Some(which))
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

    /// No change of pods after the one with this sequence number may have changed the class key of a row in the counted form.
    pub fn classes_changed_at(&self, world: &World) -> Option<u64> {
        let PodsRead { any, each, .. } = &self.class_counters;
        let counters = each.iter().map(|(id, _)| *id);
        if *any { Some(u64::MAX) } else { world.topology_counters().changed_at(counters) }
    }

    /// Whether class keys differ from the shared ones where counters count a row's pods.
    pub fn counts_pods(&self) -> bool {
        self.parts.iter().any(EvaluatorPart::counts_pods)
    }

    /// Computes the class key of a row.
    pub fn class_key(&self, form: KeyForm, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        out.clear();
        for part in self.parts.iter().filter(|part| part.key_len > 0) {
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
        self.replace_parts(cx, row, before, out, |part| {
            part.dependencies.class == Some(RowDependency::Pods)
                && (form == KeyForm::Counted || part.uncounted.is_none())
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
        self.replace_parts(cx, row, shared, out, |part| part.counts_any(cx.world));
    }

    /// A class key of which some plugins' parts are computed, and the others copied.
    fn replace_parts(
        &self,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
        copied: &[i64],
        out: &mut ClassKey,
        is_computed: impl Fn(&EvaluatorPart) -> bool,
    ) {
        out.clear();
        for part in self.parts.iter().filter(|part| part.key_len > 0) {
            if is_computed(part) {
                part.enter(ExtensionPoint::Prepare).class_key(cx, row, out);
            } else {
                out.extend_from_slice(&copied[part.offset..part.offset + part.key_len]);
            }
        }
    }

    /// The plugins that a shared index of rows depends on, each with what its results depend on if not on its whole key.
    pub fn shared_parts(&self) -> impl Iterator<Item = (usize, Option<&EvaluatorKey>)> {
        self.parts.iter().filter_map(|part| {
            let ResultDependencies { filter, score, class, .. } = part.dependencies;
            let is_row_local =
                filter.is_some() && part.filters || score.is_some() && part.weight != 0;
            (is_row_local || class.is_some()).then_some((part.plugin, part.uncounted.as_ref()))
        })
    }

    /// Whether a plugin may reject classes.
    pub fn filters_classes(&self) -> bool {
        self.parts.iter().any(|part| part.filters_classes)
    }

    /// Computes which classes are feasible.
    pub fn filter_classes(&self, cx: EvaluatorCx<'_>, table: &mut ClassTable) {
        table.feasible.clear();
        table.feasible.extend(table.rows.iter().map(|rows| *rows > 0));
        for part in self.parts.iter().filter(|part| part.filters_classes) {
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
        for part in
            self.parts.iter().filter(|part| part.weight != 0 && part.evaluator.has_class_scores())
        {
            self.score_part_classes(part, cx, table)?;
            // Those of other classes are 0.
            for (offset, score) in table.offsets.iter_mut().zip(&table.scratch) {
                *offset += score;
            }
        }
        Ok(())
    }

    /// Computes the weighted class scores of one plugin into the table's scratch space.
    fn score_part_classes(
        &self,
        part: &EvaluatorPart,
        cx: EvaluatorCx<'_>,
        table: &mut ClassTable,
    ) -> Result<(), ScoreOutOfRange> {
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
        for (score, feasible) in table.scratch.iter_mut().zip(&table.feasible) {
            *score = if *feasible { part.weight * check_score_range(*score)? } else { 0 };
        }
        Ok(())
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
                part.enter(ExtensionPoint::Score).score_rows(cx, set, part.weight, &mut scores)?;
            }
            if part.evaluator.has_class_scores() {
                self.score_part_classes(part, cx, table)?;
                for (at, score) in scores.iter_mut().enumerate().filter(|(at, _)| set[*at] != 0) {
                    let class = class_of.get(at).copied().unwrap_or(0) as usize;
                    *score += table.scratch.get(class).copied().unwrap_or(0);
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

/// What a profile uses of a plugin.
#[derive(Clone, Copy)]
pub(crate) struct PluginUsage {
    filters: bool,
    weight: i64,
    /// Whether PreFilter and PreScore are enabled exactly where the plugin implements them and Filter or Score are enabled;
    /// otherwise the incremental form would give different results.
    pub whole: bool,
}

impl PluginUsage {
    /// The plugins that filter or score in this profile, by index.
    pub fn of_profile(profile: &Profile) -> impl Iterator<Item = (usize, PluginUsage)> {
        let all = (0..profile.plugins.len()).map(|index| (index, PluginUsage::new(profile, index)));
        all.filter(|(_, used)| used.filters || used.weight != 0)
    }

    fn new(profile: &Profile, index: usize) -> PluginUsage {
        let pre_filters = profile.pre_filter.iter().any(|member| member.plugin == index);
        let filters = profile.filter.iter().any(|member| member.plugin == index);
        let pre_scores = profile.pre_score.iter().any(|member| member.plugin == index);
        let weight =
            profile.score.iter().find(|m| m.plugin == index).map_or(0, |member| member.weight);
        let plugin = &profile.plugins[index];
        let whole = (pre_filters == plugin.has_pre_filter)
            && (filters == plugin.has_filter)
            && (pre_scores == plugin.has_pre_score || weight == 0 && !pre_scores);
        PluginUsage { filters: filters || pre_filters, weight, whole }
    }
}
