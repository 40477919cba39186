//! Evaluations that pods share.
//!
//! A plugin prepares one evaluator per key ([`loadmaster_framework::Incremental::key`]). Because scores are normalized over the nodes
//! that all plugins find feasible, node classes and score indexes belong to a combination of keys, one of each plugin. Pods with equal
//! keys share both, whatever else they differ in.

mod acquire;
mod by_counting_keys;
mod by_id;
mod by_labels;
mod by_template;
mod find_keys;
mod prepared_key;
mod shared_by_keys;

use std::sync::Arc;

use loadmaster_framework::incremental::{EvaluatorKey, StalenessVersion};
use loadmaster_framework::template::{PodTemplate, SpecId};
use loadmaster_framework::world::KeyVersion;
use loadmaster_framework::{EvaluatorCx, Failure, PluginStates, PodInfo, World};
use loadmaster_stdx::Map;

use self::by_counting_keys::ByCountingKeys;
use self::by_id::ById;
use self::by_labels::ByLabels;
use self::by_template::ByTemplate;
use self::prepared_key::PreparedKey;
use self::shared_by_keys::SharedByKeys;
use crate::combination_id::CombinationId;
use crate::evaluate::evaluator_part::PluginUsage;
use crate::evaluate::incremental::{Evaluator, Prepared};
use crate::evaluate::node_rows::NodeRows;
use crate::evaluate::row_classes::RowClasses;
use crate::evaluate::row_results::RowResults;
use crate::profile::Profile;
use crate::score_index::{IndexedRows, ScoreIndex, SharedRowIndex};

/// The id of a key of one plugin; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct KeyId(u64);

impl KeyId {
    /// The plugin is evaluated per node.
    const PER_NODE: KeyId = KeyId(0);
}

/// The keys of the plugins whose Filter may reject nodes, if each of them looks at one node only ([`Evaluator::node_filters`]). Pods for which
/// they are equal are rejected by a node for the same reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFilterKeys(Arc<[KeyId]>);

/// The cached evaluation of a combination of keys.
pub(crate) struct CachedEvaluation {
    pub evaluator: Evaluator,
    pub index: Option<Box<ScoreIndex>>,
    /// Sequence number of the world's changes up to which `index` was updated.
    pub checked_at: u64,
    /// Number of the decision in which it was last used.
    pub used: u64,
    keys: Box<[KeyId]>,
    /// `None` if a Filter plugin looks at more than one node.
    pub node_filter_keys: Option<NodeFilterKeys>,
    /// The rows that pass its filters of the node object, in [`EvaluationCache::node_rows`].
    node_rows: usize,
    /// Its row results, in [`EvaluationCache::row_results`].
    row_results: usize,
    /// The classes of its rows, in [`EvaluationCache::row_classes`].
    row_classes: usize,
    /// Its shared index of rows, in [`EvaluationCache::row_indexes`].
    row_index: usize,
    /// When the first of the keys was prepared.
    prepared_at: u64,
    /// When `evaluator` was last found not to be stale.
    not_stale_at: Option<StalenessVersion>,
}

/// The cached evaluation of a combination of keys, as a full scan needs it.
pub(crate) struct FullScanCache<'a> {
    pub evaluator: &'a Evaluator,
    pub node_rows: &'a mut NodeRows,
    pub results: &'a RowResults,
    pub classes: &'a mut RowClasses,
}

impl CachedEvaluation {
    fn is_valid(&mut self, cx: EvaluatorCx<'_>) -> bool {
        if self.prepared_at < cx.world.evaluators_valid_since() {
            return false;
        }
        let version = cx.staleness_version();
        if self.not_stale_at != Some(version) {
            if self.evaluator.is_stale(cx) {
                return false;
            }
            self.not_stale_at = Some(version);
        }
        true
    }
}

/// Numbers of shared evaluations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSize {
    /// Keys of all plugins.
    pub keys: usize,
    /// Combinations of keys: score indexes and tables of node classes.
    pub combinations: usize,
}

/// Number of specs whose keys are remembered.
const SPECS_MAX: usize = 1 << 16;

/// Whether a pod has the keys of its template; keys of other pods may depend on more of the pod.
fn has_keys_of_template(world: &World, pod: &PodInfo) -> bool {
    !pod.template.has_ephemeral_volumes() && world.nominated_node(&pod.uid).is_none()
}

/// The cached evaluations of one profile.
pub(crate) struct EvaluationCache {
    /// The plugins that filter or score in the profile, by index in it.
    usages: Box<[PluginUsage]>,
    by_template: ByTemplate,
    by_labels: ByLabels,
    /// The keys that depend only on the spec of pods, by position in `usages`. They may be keys that do not exist any more.
    by_spec: Map<SpecId, Arc<[Option<KeyId>]>>,
    /// By plugin.
    key_ids: Box<[Map<EvaluatorKey, KeyId>]>,
    /// By position in `usages`: the key that was looked up last. Most new specs differ from the one before in few keys.
    last_keys: Box<[Option<(EvaluatorKey, KeyId)>]>,
    /// By [`KeyId`].
    prepared: ById<PreparedKey>,
    combinations: Map<Box<[KeyId]>, CombinationId>,
    by_counting_keys: ByCountingKeys,
    /// By [`CombinationId`].
    cached: ById<CachedEvaluation>,
    /// By the keys of the plugins that have such filters.
    node_rows: SharedByKeys<NodeRows>,
    /// By the keys of the plugins that have such results.
    row_results: SharedByKeys<RowResults>,
    /// By the keys of the plugins that divide rows into classes.
    row_classes: SharedByKeys<RowClasses>,
    /// By the keys of all plugins that a shared index depends on, or what their uncounted results depend on.
    row_indexes: SharedByKeys<SharedRowIndex>,
    /// Ids of what uncounted results depend on, by plugin.
    uncounted: Map<(usize, EvaluatorKey), KeyId>,
    /// What evaluators were prepared before this change is not valid any more, nor are these ids.
    uncounted_since: u64,
    last_serial: u64,
}

/// Maximum number of ids of uncounted results; plugins have a few each.
const UNCOUNTED_MAX: usize = 1 << 12;

impl EvaluationCache {
    pub fn new(profile: &Profile) -> EvaluationCache {
        let usages: Box<[_]> = PluginUsage::of_profile(profile).collect();
        EvaluationCache {
            key_ids: profile.plugins.iter().map(|_| Map::default()).collect(),
            last_keys: usages.iter().map(|_| None).collect(),
            usages,
            by_template: ByTemplate::default(),
            by_labels: ByLabels::default(),
            by_spec: Map::default(),
            prepared: ById::default(),
            combinations: Map::default(),
            by_counting_keys: ByCountingKeys::default(),
            cached: ById::default(),
            node_rows: SharedByKeys::default(),
            row_results: SharedByKeys::default(),
            row_classes: SharedByKeys::default(),
            row_indexes: SharedByKeys::default(),
            uncounted: Map::default(),
            uncounted_since: 0,
            last_serial: 0,
        }
    }

    pub fn size(&self) -> CacheSize {
        CacheSize { keys: self.prepared.len(), combinations: self.cached.len() }
    }

    /// The cached evaluation of a pod, if there is one. It may be out of date.
    pub fn of_pod(&mut self, pod: &PodInfo) -> Option<&mut CachedEvaluation> {
        let (_, id) = self.by_template.get(pod.template.id)?;
        self.cached.get_mut(id.0)
    }

    /// The combination of a pod's keys when its evaluation was last looked up.
    pub fn combination_of(&self, pod: &PodInfo) -> Option<(CombinationId, &CachedEvaluation)> {
        let (_, id) = self.by_template.get(pod.template.id)?;
        Some((id, self.cached.get(id.0)?))
    }

    /// What decides by which nodes a pod whose evaluation was just looked up is rejected, if no Filter plugin looks at more than one node.
    pub fn node_filter_keys(
        &mut self,
        cx: EvaluatorCx<'_>,
        pod: &PodInfo,
    ) -> Option<NodeFilterKeys> {
        let (version, id) = self.by_template.get(pod.template.id)?;
        let is_current =
            version == cx.world.key_version(&pod.template) && has_keys_of_template(cx.world, pod);
        let cached = self.cached.get_mut(id.0).filter(|_| is_current)?;
        cached.is_valid(cx).then(|| cached.node_filter_keys.clone())?
    }

    /// Whether updating a combination, or building its score index, scans all nodes.
    pub fn update_scans_nodes(&self, id: CombinationId, world: &World) -> bool {
        let Some(cached) = self.cached.get(id.0) else { return false };
        let results = self.row_results.get(cached.row_results);
        cached.index.is_none() && results.is_some_and(|results| results.needs_scan(world))
    }

    /// The score index of a combination, if there is one.
    pub fn indexed(&mut self, id: CombinationId) -> Option<IndexedRows<'_>> {
        let cached = self.cached.get_mut(id.0)?;
        let shared = self.row_indexes.get_mut(cached.row_index)?;
        IndexedRows::new(&cached.evaluator, shared, cached.index.as_mut()?)
    }

    /// The score index of a pod's combination, if there is one and nothing changed since it was last updated.
    pub fn up_to_date_index(&mut self, world: &World, pod: &PodInfo) -> Option<IndexedRows<'_>> {
        let (_, id) = self.by_template.get(pod.template.id)?;
        let is_up_to_date = self.cached.get(id.0)?.checked_at == world.next_change_seq();
        is_up_to_date.then(|| self.indexed(id)).flatten()
    }

    /// Drops the score index of a combination, and the shared one.
    pub fn drop_index(&mut self, id: CombinationId) {
        let Some(cached) = self.cached.get_mut(id.0) else { return };
        cached.index = None;
        if let Some(shared) = self.row_indexes.get_mut(cached.row_index) {
            shared.drop_index();
        }
    }

    /// Whether no other combination shares the index of rows of this one.
    pub fn is_only_user_of_row_index(&self, id: CombinationId) -> bool {
        self.cached.get(id.0).is_some_and(|cached| self.row_indexes.has_one_user(cached.row_index))
    }

    /// Whether the classes of all rows would have to be computed for a full scan.
    pub fn has_no_row_classes(&self, id: CombinationId) -> bool {
        let cached = self.cached.get(id.0);
        let classes = cached.and_then(|cached| self.row_classes.get(cached.row_classes));
        classes.is_none_or(RowClasses::is_unused)
    }

    /// A cached evaluation with its row results and its shared index of rows.
    pub fn with_row_index(
        &mut self,
        id: CombinationId,
    ) -> Option<(&mut CachedEvaluation, &mut RowResults, &mut SharedRowIndex)> {
        let cached = self.cached.get_mut(id.0)?;
        let results = self.row_results.get_mut(cached.row_results)?;
        let shared = self.row_indexes.get_mut(cached.row_index)?;
        Some((cached, results, shared))
    }

    /// The evaluator of a combination, and whether it has a score index.
    pub fn evaluator(&self, id: CombinationId) -> Option<(&Evaluator, bool)> {
        self.cached.get(id.0).map(|cached| (&cached.evaluator, cached.index.is_some()))
    }

    /// A cached evaluation with what a full scan reads and updates.
    pub fn for_full_scan(&mut self, id: CombinationId) -> Option<FullScanCache<'_>> {
        let cached = self.cached.get(id.0)?;
        Some(FullScanCache {
            evaluator: &cached.evaluator,
            node_rows: self.node_rows.get_mut(cached.node_rows)?,
            results: self.row_results.get(cached.row_results)?,
            classes: self.row_classes.get_mut(cached.row_classes)?,
        })
    }

    /// Finds or prepares the evaluation of a pod. Returns whether it is new.
    ///
    /// # Errors
    ///
    /// When a plugin panics.
    pub fn find_or_prepare(
        &mut self,
        profile: &Profile,
        world: &mut World,
        states: &PluginStates,
        pod: &PodInfo,
    ) -> Result<(CombinationId, bool), Failure> {
        let version = world.key_version(&pod.template);
        let is_shared = has_keys_of_template(world, pod);
        if is_shared
            && let Some((known_version, id)) = self.known_combination(world, &pod.template, version)
            && let Some(cached) = self.cached.get_mut(id.0)
            && cached.is_valid(EvaluatorCx { world, states })
        {
            if known_version != Some(version) {
                world.preload_template(&pod.template);
                // A template of one pod is looked up again only during this attempt; in the next one, its labels find the combination.
                match world.has_several_pods(&pod.template) {
                    true => self.by_template.insert(pod.template.id, version, id),
                    false => self.by_template.insert_as_last(pod.template.id, version, id),
                }
            }
            return Ok((id, false));
        }
        self.prepare(profile, world, states, pod, is_shared.then_some(version))
    }

    /// The same for a pod whose template and labels are not known. `version` is that of the template's keys, if the pod has these.
    #[inline(never)]
    fn prepare(
        &mut self,
        profile: &Profile,
        world: &mut World,
        states: &PluginStates,
        pod: &PodInfo,
        version: Option<KeyVersion>,
    ) -> Result<(CombinationId, bool), Failure> {
        let keys = version.and_then(|version| {
            self.keys_of_similar_pod(EvaluatorCx { world, states }, &pod.template, version)
        });
        let found = self.find_by_keys(profile, world, states, pod, keys);
        let (id, is_new) = found.inspect_err(|_| {
            // What the plugins before the one that panicked prepared has no user.
            self.release_unused(world);
        })?;
        if let Some(version) = version {
            self.by_template.insert(pod.template.id, version, id);
            let (usages, cx) = (&self.usages, EvaluatorCx { world, states });
            let label_keys = || by_labels::label_keys(usages, profile, cx, pod);
            self.by_labels.insert(&pod.template, version, id, label_keys)?;
        }
        Ok((id, is_new))
    }

    /// The combination of a template's keys in this version, which is the current one, and the version in which it was found for this template.
    fn known_combination(
        &self,
        world: &World,
        template: &PodTemplate,
        version: KeyVersion,
    ) -> Option<(Option<KeyVersion>, CombinationId)> {
        let of_template = self.by_template.get(template.id);
        let of_template = of_template.filter(|(then, _)| world.keys_hold(template, *then, version));
        let of_template = of_template.map(|(then, id)| (Some(then), id));
        of_template.or_else(|| {
            let pod = self.by_labels.get(template, version)?;
            pod.has_spec_of(template).then_some((None, pod.combination))
        })
    }

    /// The cached combination of these keys, if it is up to date.
    fn valid_combination(&mut self, cx: EvaluatorCx<'_>, keys: &[KeyId]) -> Option<CombinationId> {
        let id = self.combinations.get(keys).copied()?;
        self.cached.get_mut(id.0)?.is_valid(cx).then_some(id)
    }

    /// Caches the combination of these keys, in place of one that is not valid any more.
    fn prepare_combination(
        &mut self,
        profile: &Profile,
        world: &mut World,
        keys: Vec<KeyId>,
    ) -> CombinationId {
        if let Some(id) = self.combinations.get(keys.as_slice()).copied() {
            self.forget(id, world);
        }
        let (mut prepared_at, mut n_evaluators) = (world.next_change_seq(), 0);
        for key in &keys {
            if let Some(known) = self.prepared.get_mut(key.0) {
                known.users += 1;
                prepared_at = prepared_at.min(known.prepared_at);
                n_evaluators += usize::from(matches!(known.result, Prepared::Evaluator(_)));
            }
        }
        let mut evaluator = Evaluator::new(profile, n_evaluators);
        for (usage, key) in self.usages.iter().zip(&keys) {
            let known = self.prepared.get(key.0);
            let result = known.map_or(Prepared::PerNode, |known| known.result.clone());
            let counters = known.map_or(&[][..], |known| &known.counters);
            evaluator.add(profile, *usage, result, counters);
        }
        let keys: Box<[KeyId]> = keys.into();
        let checked_at = world.next_change_seq();
        let node_filter_keys = evaluator.node_filters().map(|positions| {
            NodeFilterKeys(positions.into_iter().map(|position| keys[position]).collect())
        });
        let node_rows = self.acquire_node_rows(&evaluator, &keys);
        let row_results = self.acquire_row_results(&evaluator, &keys);
        let row_classes = self.acquire_row_classes(&evaluator, &keys);
        let row_index = self.acquire_row_index(world, &evaluator, &keys);
        let serial = self.next_serial();
        let cached = CachedEvaluation {
            evaluator,
            index: None,
            checked_at,
            used: 0,
            keys: keys.clone(),
            node_filter_keys,
            node_rows,
            row_results,
            row_classes,
            row_index,
            prepared_at,
            not_stale_at: None,
        };
        let id = CombinationId(self.cached.insert(serial, cached));
        self.combinations.insert(keys, id);
        id
    }

    /// Drops the evaluation of a combination, and the evaluators that no other one uses.
    pub fn forget(&mut self, id: CombinationId, world: &mut World) {
        let Some(cached) = self.cached.remove(id.0) else { return };
        self.node_rows.release(cached.node_rows);
        self.row_results.release(cached.row_results);
        self.row_classes.release(cached.row_classes);
        self.row_indexes.release(cached.row_index);
        if self.combinations.get(&cached.keys) == Some(&id) {
            self.combinations.remove(&cached.keys);
        }
        for key in cached.keys {
            let Some(known) = self.prepared.get_mut(key.0) else { continue };
            known.users -= 1;
            if known.users == 0 {
                self.release(key, world);
            }
        }
    }

    #[cold]
    pub fn forget_all(&mut self, world: &mut World) {
        for id in self.sorted_ids() {
            self.forget(id, world);
        }
        self.release_unused(world);
        self.by_counting_keys.clear();
        self.by_template.clear();
        self.by_labels.clear();
        self.by_spec.clear();
    }

    /// Drops all combinations with an evaluator of this plugin, because something changed that it reads.
    pub fn forget_plugin(&mut self, plugin: usize, world: &mut World) {
        for id in self.sorted_ids() {
            let keys = self.cached.get(id.0).map_or(&[][..], |cached| &cached.keys);
            let is_used =
                |key: &KeyId| self.prepared.get(key.0).is_some_and(|it| it.plugin == plugin);
            if keys.iter().any(is_used) {
                self.forget(id, world);
            }
        }
    }

    /// If there are at least `max` evaluations, drops the least recently used quarter.
    pub fn evict_least_recently_used(&mut self, max: usize, world: &mut World) {
        if self.cached.len() >= max {
            self.evict(max, world);
        }
    }

    #[cold]
    fn evict(&mut self, max: usize, world: &mut World) {
        let by_use = self.cached.iter().map(|(id, cached)| (cached.used, CombinationId(id)));
        let mut by_use: Vec<(u64, CombinationId)> = by_use.collect();
        by_use.sort_unstable();
        for (_, id) in by_use.into_iter().take(max / 4) {
            self.forget(id, world);
        }
    }

    fn release(&mut self, key: KeyId, world: &mut World) {
        let Some(known) = self.prepared.remove(key.0) else { return };
        let ids = &mut self.key_ids[known.plugin];
        if ids.get(&known.key) == Some(&key) {
            ids.remove(&known.key);
        }
        known.counters.into_iter().for_each(|id| world.release_topology_counter(id));
    }

    fn release_unused(&mut self, world: &mut World) {
        let unused = self.prepared.iter().filter(|(_, known)| known.users == 0);
        let mut unused: Vec<KeyId> = unused.map(|(id, _)| KeyId(id)).collect();
        unused.sort_unstable();
        unused.into_iter().for_each(|id| self.release(id, world));
    }

    fn sorted_ids(&self) -> Vec<CombinationId> {
        let ids = self.cached.iter().map(|(id, _)| CombinationId(id));
        let mut ids: Vec<CombinationId> = ids.collect();
        ids.sort_unstable();
        ids
    }

    fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }
}
