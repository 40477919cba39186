//! The Deployment controller: one ReplicaSet per template, replicas are moved from the old ones to the new one.
//!
//! | | |
//! | --- | --- |
//! | writes | ReplicaSets, status and revision of Deployments, Events |
//! | upstream | `pkg/controller/deployment`, 1.36 |
//! | deviations | ReplicaSets are named by another hash; the rollback annotation of the extensions API is not read |

mod scaling;
mod status;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec,
};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::{controller_reference, is_terminating};
use crate::result_builder::ReconcileResultBuilder;
use crate::workload::{
    by_age, candidates, claim_objects, controller_key, is_terminal, keys_for_change, template_hash,
};
use scaling::{ActiveReplicaSet, OldReplicaSet, RolloutLimits};

const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MOST: &str = "deployment.kubernetes.io/max-replicas";
const HASH: &str = "pod-template-hash";
/// Annotations that a ReplicaSet does not take over from its Deployment.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    MOST,
    "deprecated.deployment.rollback.to",
];
/// How long a list of revisions may get, in characters.
const REVISION_HISTORY_CHARS_MAX: usize = 2000;

/// The controller of Deployments.
#[derive(Debug, Default)]
pub(crate) struct DeploymentController;

fn selector(deployment: &Deployment) -> Option<&LabelSelector> {
    Some(&deployment.spec.as_ref()?.selector)
}

impl Controller for DeploymentController {
    fn name(&self) -> &'static str {
        "deployment-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Deployment, Kind::ReplicaSet, Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        // Pods matter only where the next ones wait for the last ones to go.
        if let Some(pod) = change.new_or_old_typed::<Pod>() {
            let set = controller_key(&pod.metadata, Kind::ReplicaSet);
            let set = set.and_then(|key| cache.get::<ReplicaSet>(&key.namespace, &key.name));
            let key = set.and_then(|set| controller_key(&set.metadata, Kind::Deployment));
            return key
                .filter(|key| {
                    let found = cache.get::<Deployment>(&key.namespace, &key.name);
                    let spec = found.and_then(|one| one.spec.as_ref());
                    spec.is_some_and(|spec| !RolloutLimits::from_spec(spec).is_rolling)
                })
                .into_iter()
                .collect();
        }
        keys_for_change::<Deployment>(change, cache, selector)
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(deployment) = cache.get::<Deployment>(&key.namespace, &key.name) else {
            return ReconcileResult::none();
        };
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        let sets = candidates::<ReplicaSet>(&deployment.metadata, cache);
        let is_taken = |name: &str| cache.get::<ReplicaSet>(&key.namespace, name).is_some();
        let runs = |set: &ReplicaSet| {
            let uid = set.metadata.uid.as_deref().unwrap_or_default();
            cache.store::<Pod>().owned_by(uid).any(|pod| !is_terminal(pod))
        };
        reconcile(deployment, &sets, Around { is_taken: &is_taken, runs: &runs }, now, &mut writes);
        writes.build()
    }
}

/// What else a Deployment must know.
#[derive(Clone, Copy)]
struct Around<'a> {
    /// Whether there is a ReplicaSet of a name.
    is_taken: &'a dyn Fn(&str) -> bool,
    /// Whether pods of a set are left that have not ended.
    runs: &'a dyn Fn(&ReplicaSet) -> bool,
}

/// Syncs a Deployment. `sets` are the ReplicaSets that it controls, and orphans.
fn reconcile(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    around: Around<'_>,
    now: Timestamp,
    writes: &mut ReconcileResultBuilder,
) {
    let Some(spec) = &deployment.spec else { return };
    let sets = claim_objects(deployment, Some(&spec.selector), sets.iter().copied(), writes);
    let Some(mut sets) = sets else { return };
    sets.sort_by(|a, b| by_age(&a.metadata, &b.metadata));
    let sets: Vec<Set> =
        sets.into_iter().map(|set| Set { before: Some(set), set: set.clone() }).collect();
    let mut rollout = Rollout {
        before: deployment,
        spec,
        rollout_limits: RolloutLimits::from_spec(spec),
        meta: deployment.metadata.clone(),
        status: deployment.status.clone().unwrap_or_default(),
        new: sets.iter().position(|set| is_same(&spec.template, set.template())),
        sets,
        now,
    };
    rollout.run(around, writes);
    rollout.write(writes);
}

/// A ReplicaSet as it is to be; `before` is as it is, if it is.
struct Set<'a> {
    before: Option<&'a ReplicaSet>,
    set: ReplicaSet,
}

impl Set<'_> {
    fn size(&self) -> i32 {
        self.set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.set.spec.as_ref()?.template.as_ref()
    }

    fn name(&self) -> &str {
        self.set.metadata.name.as_deref().unwrap_or_default()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.set.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn annotate(&mut self, key: &str, value: String) {
        self.set.metadata.annotations.get_or_insert_default().insert(key.to_owned(), value);
    }

    fn number(&self, key: &str) -> Option<i32> {
        self.annotation(key)?.parse().ok().filter(|number| *number >= 0)
    }

    fn revision(&self) -> i64 {
        self.annotation(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Pods that it has, not those that it is to have.
    fn replicas(&self) -> i32 {
        self.set.status.as_ref().map_or(0, |status| status.replicas)
    }

    fn available(&self) -> i32 {
        self.set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
    }
}

/// One sync of a Deployment: the desired state of it and its ReplicaSets.
struct Rollout<'a> {
    before: &'a Deployment,
    spec: &'a DeploymentSpec,
    rollout_limits: RolloutLimits,
    meta: ObjectMeta,
    status: DeploymentStatus,
    /// Oldest first.
    sets: Vec<Set<'a>>,
    /// Which of them has the Deployment's template.
    new: Option<usize>,
    now: Timestamp,
}

impl Rollout<'_> {
    fn run(&mut self, around: Around<'_>, writes: &mut ReconcileResultBuilder) {
        if is_terminating(&self.meta) {
            self.status = self.counted();
            return;
        }
        self.mark_pause();
        self.sync_revision();
        let is_paused = self.spec.paused == Some(true);
        if is_paused || self.was_scaled() {
            self.scale_all(writes);
            if is_paused {
                self.clean_up(writes);
            }
            self.status = self.counted();
            return;
        }
        let is_done = if self.rollout_limits.is_rolling {
            self.roll(around, writes)
        } else {
            self.recreate(around, writes)
        };
        if is_done && status::is_complete(self.before, self.spec, &self.status) {
            self.clean_up(writes);
        }
        self.track_progress();
        if let Some(wait) = self.until_deadline() {
            writes.requeue_after(wait);
        }
    }

    fn write(self, writes: &mut ReconcileResultBuilder) {
        let mut changed = self.before.clone();
        for set in self.sets {
            match set.before {
                None => writes.create(&set.set),
                Some(before) if *before != set.set => writes.update(&set.set),
                Some(_) => {}
            }
        }
        changed.metadata.annotations = self.meta.annotations;
        changed.status = Some(self.status);
        if changed.metadata.annotations != self.before.metadata.annotations
            || changed.status != self.before.status
        {
            writes.update_status(&changed);
        }
    }

    fn old(&self) -> Vec<usize> {
        (0..self.sets.len()).filter(|idx| Some(*idx) != self.new).collect()
    }

    fn total(&self) -> i32 {
        self.sets.iter().map(Set::size).sum()
    }

    /// Gives the new set, if there is one, and the Deployment the highest revision.
    fn sync_revision(&mut self) {
        let revision = self.next_revision();
        let Some(new) = self.new else { return };
        let set = &mut self.sets[new];
        annotate(&self.meta, set, revision);
        if let Some(spec) = set.set.spec.as_mut()
            && spec.min_ready_seconds.unwrap_or(0) != self.spec.min_ready_seconds.unwrap_or(0)
        {
            spec.min_ready_seconds = self.spec.min_ready_seconds;
        }
        let revision = set.annotation(REVISION).unwrap_or_default().to_owned();
        let found = format!("Found new replica set \"{}\"", set.name());
        self.set_revision(revision);
        if self.has_deadline() && status::progressing(&self.status).is_none() {
            self.set_progressing("True", "FoundNewReplicaSet", found);
        }
    }

    fn next_revision(&self) -> i64 {
        self.old().into_iter().map(|idx| self.sets[idx].revision()).max().unwrap_or(0).max(0) + 1
    }

    fn set_revision(&mut self, revision: String) {
        self.meta.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision);
    }

    /// Creates the new ReplicaSet. False if its name is taken by another: then the next sync uses another name.
    fn make_new(&mut self, around: Around<'_>, writes: &mut ReconcileResultBuilder) -> bool {
        let hash = template_hash(&self.spec.template, self.status.collision_count);
        let owner = self.meta.name.as_deref().unwrap_or_default();
        let name = format!("{:.*}-{hash}", 252 - hash.len(), owner);
        if (around.is_taken)(&name) {
            *self.status.collision_count.get_or_insert(0) += 1;
            return false;
        }
        let size = self.rollout_limits.new_replica_set_size(0, self.total());
        let mut set = Set { before: None, set: self.set_from_template(name, hash) };
        let revision = self.next_revision();
        annotate(&self.meta, &mut set, revision);
        self.set_size(&mut set, size);
        if size > 0 {
            writes.event(
                self.before,
                "ScalingReplicaSet",
                format!("Scaled up replica set {} from 0 to {size}", set.name()),
            );
        }
        self.set_revision(revision.to_string());
        if self.has_deadline() {
            let made = format!("Created new replica set \"{}\"", set.name());
            self.set_progressing("True", "NewReplicaSetCreated", made);
        }
        self.sets.push(set);
        self.new = Some(self.sets.len() - 1);
        true
    }

    fn set_from_template(&self, name: String, hash: String) -> ReplicaSet {
        let mut template = self.spec.template.clone();
        let meta = template.metadata.get_or_insert_default();
        meta.labels.get_or_insert_default().insert(HASH.to_owned(), hash.clone());
        let labels = meta.labels.clone();
        let mut selector = self.spec.selector.clone();
        selector.match_labels.get_or_insert_default().insert(HASH.to_owned(), hash);
        ReplicaSet {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: self.meta.namespace.clone(),
                labels,
                owner_references: Some(vec![controller_reference(self.before)]),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                min_ready_seconds: self.spec.min_ready_seconds,
                replicas: Some(0),
                selector,
                template: Some(template),
            }),
            status: None,
        }
    }

    fn set_size(&self, set: &mut Set, size: i32) {
        if let Some(spec) = set.set.spec.as_mut() {
            spec.replicas = Some(size);
        }
        set.annotate(DESIRED, self.rollout_limits.wanted.to_string());
        set.annotate(MOST, self.rollout_limits.max_replicas().to_string());
    }

    /// Scales a ReplicaSet and records the Deployment's size in its annotations. True if the size changed.
    fn scale(&mut self, idx: usize, size: i32, writes: &mut ReconcileResultBuilder) -> bool {
        let was = self.sets[idx].size();
        if was == size {
            return false;
        }
        let mut set = std::mem::replace(
            &mut self.sets[idx],
            Set { before: None, set: ReplicaSet::default() },
        );
        self.set_size(&mut set, size);
        let way = if was < size { "up" } else { "down" };
        let text = format!("Scaled {way} replica set {} from {was} to {size}", set.name());
        writes.event(self.before, "ScalingReplicaSet", text);
        self.sets[idx] = set;
        true
    }

    /// Whether the Deployment's size changed since its sets got theirs.
    fn was_scaled(&self) -> bool {
        self.sets.iter().filter(|set| set.size() > 0).any(|set| {
            set.number(DESIRED).is_some_and(|desired| desired != self.rollout_limits.wanted)
        })
    }

    /// Scales all sets in proportion, without moving on with the rollout.
    fn scale_all(&mut self, writes: &mut ReconcileResultBuilder) {
        let wanted = self.rollout_limits.wanted;
        let mut active: Vec<usize> =
            (0..self.sets.len()).filter(|idx| self.sets[*idx].size() > 0).collect();
        if active.len() <= 1 {
            let newest_old = || self.old().last().copied();
            if let Some(idx) = active.first().copied().or(self.new).or_else(newest_old) {
                self.scale(idx, wanted, writes);
            }
            return;
        }
        if self.is_saturated() {
            active.retain(|idx| Some(*idx) != self.new);
            for idx in active {
                self.scale(idx, 0, writes);
            }
            return;
        }
        if !self.rollout_limits.is_rolling {
            return;
        }
        let grows = self.rollout_limits.max_replicas() > self.total() && wanted > 0;
        // Largest first; of equal ones the newer grows and the older shrinks first.
        active.sort_by(|a, b| {
            let sizes = self.sets[*b].size().cmp(&self.sets[*a].size());
            sizes.then(if grows { b.cmp(a) } else { a.cmp(b) })
        });
        let share = |idx: &usize| {
            let set = &self.sets[*idx];
            ActiveReplicaSet { size: set.size(), most_then: set.number(MOST) }
        };
        let shares: Vec<ActiveReplicaSet> = active.iter().map(share).collect();
        let sizes = scaling::scale_proportionally(
            &shares,
            self.rollout_limits,
            self.status.replicas.unwrap_or(0),
        );
        for (idx, size) in active.into_iter().zip(sizes) {
            if !self.scale(idx, size, writes) {
                let most = self.rollout_limits.max_replicas();
                self.sets[idx].annotate(DESIRED, wanted.to_string());
                self.sets[idx].annotate(MOST, most.to_string());
            }
        }
    }

    /// Whether the new set has all replicas, all of them available.
    fn is_saturated(&self) -> bool {
        let wanted = self.rollout_limits.wanted;
        self.new.map(|idx| &self.sets[idx]).is_some_and(|set| {
            set.size() == wanted && set.available() == wanted && set.number(DESIRED) == Some(wanted)
        })
    }

    /// One step of a rolling update. True if no set had to be scaled.
    fn roll(&mut self, around: Around<'_>, writes: &mut ReconcileResultBuilder) -> bool {
        if self.new.is_none() && !self.make_new(around, writes) {
            return false;
        }
        let Some(new) = self.new else { return false };
        let size = self.sets[new].size();
        let wanted = self.rollout_limits.wanted;
        let size = if size > wanted {
            wanted
        } else {
            self.rollout_limits.new_replica_set_size(size, self.total())
        };
        // A set that was just made has its size already.
        if self.scale(new, size, writes) {
            return false;
        }
        self.sets[new].before.is_none() || !self.shrink_old(new, writes)
    }

    /// Scales the old ReplicaSets down as far as availability allows. True if any was scaled.
    fn shrink_old(&mut self, new: usize, writes: &mut ReconcileResultBuilder) -> bool {
        let active: Vec<usize> =
            self.old().into_iter().filter(|idx| self.sets[*idx].size() > 0).collect();
        let missing = self.sets[new].size() - self.sets[new].available();
        let most = self.total() - self.rollout_limits.min_available() - missing;
        if active.is_empty() || most <= 0 {
            return false;
        }
        let old = |idx: &usize| OldReplicaSet {
            size: self.sets[*idx].size(),
            available: self.sets[*idx].available(),
        };
        let mut sizes: Vec<OldReplicaSet> = active.iter().map(old).collect();
        let mut gone = scaling::cleanup_unhealthy_replicas(&mut sizes, most);
        let available: i32 =
            self.sets[new].available() + sizes.iter().map(|set| set.available).sum::<i32>();
        gone += scaling::scale_down_old_replica_sets(
            &mut sizes,
            available - self.rollout_limits.min_available(),
        );
        for (idx, old) in active.into_iter().zip(sizes) {
            self.scale(idx, old.size, writes);
        }
        gone > 0
    }

    /// One step of the strategy Recreate. True if the new ReplicaSet may be complete.
    fn recreate(&mut self, around: Around<'_>, writes: &mut ReconcileResultBuilder) -> bool {
        let mut has_shrunk = false;
        for idx in self.old() {
            has_shrunk |= self.scale(idx, 0, writes);
        }
        let runs = |idx: usize| {
            let set = &self.sets[idx];
            set.replicas() > 0 || (around.runs)(&set.set)
        };
        if has_shrunk || self.old().into_iter().any(runs) {
            return false;
        }
        if self.new.is_none() && !self.make_new(around, writes) {
            return false;
        }
        if let Some(new) = self.new {
            self.scale(new, self.rollout_limits.wanted, writes);
        }
        true
    }

    /// Deletes the oldest ReplicaSets above the revision history limit.
    fn clean_up(&self, writes: &mut ReconcileResultBuilder) {
        let Some(limit) = self.spec.revision_history_limit.filter(|limit| *limit != i32::MAX)
        else {
            return;
        };
        let mut old = self.old();
        old.retain(|idx| !is_terminating(&self.sets[*idx].set.metadata));
        let excess = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        old.sort_by_key(|idx| self.sets[*idx].revision());
        for set in old.into_iter().take(excess).map(|idx| &self.sets[idx]) {
            let seen = set.set.status.as_ref().and_then(|status| status.observed_generation);
            let is_idle = set.replicas() == 0 && set.size() == 0;
            if is_idle && set.set.metadata.generation.unwrap_or(0) <= seen.unwrap_or(0) {
                writes.delete(&set.set);
            }
        }
    }
}

/// Whether a set was made from this template: the label with its hash is the set's own.
fn is_same(template: &PodTemplateSpec, of_set: Option<&PodTemplateSpec>) -> bool {
    let Some(of_set) = of_set else { return false };
    let bare = |template: &PodTemplateSpec| {
        let mut meta = template.metadata.clone().unwrap_or_default();
        if let Some(labels) = &mut meta.labels {
            labels.remove(HASH);
        }
        meta.labels = meta.labels.filter(|labels| !labels.is_empty());
        meta
    };
    template.spec == of_set.spec && bare(template) == bare(of_set)
}

/// Sets a ReplicaSet's annotations from its Deployment, and its revision. After a rollback it keeps its former revisions in the history annotation.
fn annotate(deployment: &ObjectMeta, set: &mut Set, revision: i64) {
    for (key, value) in deployment.annotations.iter().flatten() {
        if !OWN.contains(&key.as_str()) {
            set.annotate(key, value.clone());
        }
    }
    let former = set.annotation(REVISION).map(ToOwned::to_owned);
    let number = match former.as_deref() {
        None | Some("") => 0,
        Some(text) => match text.parse::<i64>() {
            Ok(number) => number,
            Err(_) => return,
        },
    };
    if number >= revision {
        return;
    }
    set.annotate(REVISION, revision.to_string());
    if let Some(former) = former {
        let history = set.annotation(REVISION_HISTORY).unwrap_or_default();
        let mut all: Vec<&str> = history.split(',').filter(|one| !one.is_empty()).collect();
        all.push(&former);
        let chars = |all: &[&str]| all.iter().map(|one| one.len() + 1).sum::<usize>();
        while chars(&all) > REVISION_HISTORY_CHARS_MAX + 1 && all.len() > 1 {
            all.remove(0);
        }
        set.annotate(REVISION_HISTORY, all.join(","));
    }
}
