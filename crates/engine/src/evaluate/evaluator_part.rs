//! What one plugin prepared for a key, and what the parts of an evaluator have in common.

use std::sync::Arc;

use loadmaster_framework::incremental::{
    EvaluatorKey, FilterScope, ResultDependencies, RowDependency, check_score_range,
};
use loadmaster_framework::topology_counter::TopologyCounterId;
use loadmaster_framework::{PluginEvaluator, World};
use smallvec::SmallVec;

use crate::guard::{self, ExtensionPoint};
use crate::profile::Profile;

/// The evaluator of one plugin, and what the profile uses of it.
#[derive(Clone)]
pub(crate) struct EvaluatorPart {
    /// Index in the profile.
    pub plugin: usize,
    /// [`PluginUsage::position`].
    pub position: usize,
    evaluator: Arc<dyn PluginEvaluator>,
    pub dependencies: ResultDependencies,
    /// [`PluginEvaluator::uncounted`].
    pub uncounted: Option<EvaluatorKey>,
    pub filters: bool,
    /// 0 when the plugin does not score in this profile.
    pub weight: i64,
    /// Where its part of a class key begins.
    pub offset: usize,
    pub key_len: usize,
    /// Those that it acquired.
    pub counters: SmallVec<[TopologyCounterId; 2]>,
}

impl EvaluatorPart {
    /// The part of a plugin whose class keys begin at `offset`.
    pub fn new(
        used: PluginUsage,
        evaluator: Arc<dyn PluginEvaluator>,
        counters: &[TopologyCounterId],
        offset: usize,
    ) -> EvaluatorPart {
        let PluginUsage { plugin, position, filters, weight, .. } = used;
        guard::set_current_plugin(plugin, ExtensionPoint::Prepare);
        let dependencies = evaluator.dependencies();
        let key_len = if dependencies.class.is_some() { evaluator.class_key_len() } else { 0 };
        let uncounted = evaluator.uncounted();
        let counters = counters.into();
        EvaluatorPart {
            plugin,
            position,
            evaluator,
            dependencies,
            uncounted,
            filters,
            weight,
            offset,
            key_len,
            counters,
        }
    }

    /// Whether the plugin's class keys differ from the uncounted ones where counters count a row's pods.
    pub fn counts_pods(&self) -> bool {
        self.uncounted.is_some() && self.dependencies.class == Some(RowDependency::Pods)
    }

    /// Whether it has a row-local filter with this dependency.
    pub fn filters_rows(&self, which: RowDependency) -> bool {
        self.filters && self.dependencies.filter == Some(which)
    }

    /// Whether it has a row-local score with this dependency.
    pub fn scores_rows(&self, which: RowDependency) -> bool {
        self.weight != 0 && self.dependencies.score == Some(which)
    }

    /// Whether a shared index of rows depends on it.
    pub fn is_indexed(&self) -> bool {
        let ResultDependencies { filter, score, class, .. } = self.dependencies;
        filter.is_some() && self.filters || score.is_some() && self.weight != 0 || class.is_some()
    }

    /// Its elements of a class key.
    pub fn elements<'a>(&self, key: &'a [i64]) -> &'a [i64] {
        &key[self.offset..self.offset + self.key_len]
    }

    /// Whether its counters count any pod, so that there may be rows where the class keys differ.
    pub fn counts_any(&self, world: &World) -> bool {
        self.counts_pods() && !self.counters.iter().all(|id| world.topology_counter(*id).is_zero())
    }

    /// The plugin's evaluator; marks the plugin as the current one at this extension point.
    #[inline]
    pub fn enter(&self, site: ExtensionPoint) -> &dyn PluginEvaluator {
        guard::set_current_plugin(self.plugin, site);
        &*self.evaluator
    }
}

/// What a profile uses of a plugin.
#[derive(Clone, Copy)]
pub(crate) struct PluginUsage {
    /// Index in the profile.
    pub plugin: usize,
    /// Position among the plugins that filter or score in the profile: that of the plugin's key in a combination.
    pub position: usize,
    pub filters: bool,
    pub weight: i64,
    /// Whether PreFilter and PreScore are enabled exactly where the plugin implements them and Filter or Score are enabled;
    /// otherwise the incremental form would give different results.
    pub whole: bool,
    /// Whether the plugin's key may differ between pods that differ only in requests and limits.
    pub key_reads_resources: bool,
}

impl PluginUsage {
    /// The plugins that filter or score in this profile, by index.
    pub fn of_profile(profile: &Profile) -> impl Iterator<Item = PluginUsage> {
        let all = (0..profile.plugins.len()).map(|index| PluginUsage::new(profile, index));
        let used = all.filter(|used| used.filters || used.weight != 0);
        used.enumerate().map(|(position, used)| PluginUsage { position, ..used })
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
        let filters = filters || pre_filters;
        let incremental = plugin.incremental.as_ref().filter(|_| whole);
        let key_reads_resources = incremental.is_some_and(|it| it.any_key_reads_resources());
        PluginUsage { plugin: index, position: 0, filters, weight, whole, key_reads_resources }
    }
}

/// What the parts of an evaluator have in common.
#[derive(Default)]
pub(crate) struct PartsSummary {
    /// Whether results depend on more of a pod than its keys.
    pub depends_on_pod: bool,
    /// Whether PreFilter excludes nodes.
    pub excludes_nodes: bool,
    /// Whether class keys differ from the shared ones where counters count a row's pods.
    pub counts_pods: bool,
    /// The parts with class keys.
    pub with_keys: SmallVec<[usize; 4]>,
    /// The parts that may reject classes.
    pub class_filters: SmallVec<[usize; 2]>,
    /// The parts that score classes, and do not give the same score to all.
    pub class_scores: SmallVec<[usize; 4]>,
}

impl PartsSummary {
    /// Adds a part; returns its weighted score if that is the same for all nodes.
    pub fn add(&mut self, at: usize, part: &EvaluatorPart) -> i64 {
        let evaluator = part.enter(ExtensionPoint::Prepare);
        self.depends_on_pod |= part.filters && part.dependencies.pod;
        self.excludes_nodes |= part.filters && evaluator.narrows_nodes();
        self.counts_pods |= part.counts_pods();
        if part.key_len > 0 {
            self.with_keys.push(at);
        }
        if part.filters && part.key_len > 0 && evaluator.filter_scope() != FilterScope::Nothing {
            self.class_filters.push(at);
        }
        if part.weight == 0 || !evaluator.has_class_scores() {
            return 0;
        }
        let constant = evaluator.constant_class_score().map(check_score_range);
        if let Some(Ok(score)) = constant {
            return part.weight * score;
        }
        self.class_scores.push(at);
        0
    }
}
