//! DaemonSets: a pod on each node that fits.
//!
//! | | |
//! | --- | --- |
//! | writes | pods, ControllerRevisions, status of DaemonSets, Events |
//! | upstream | `pkg/controller/daemon`, 1.36 |
//! | deviations | revisions are named by another hash |

mod nodes;
#[cfg(test)]
mod tests;
mod update;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::json;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::history::{
    REVISION_HASH, bump_revision, by_revision, excess_revisions, matches_template, new_revision,
};
use crate::kind::{Key, Kind};
use crate::meta::{annotation_value, is_terminating, label_value};
use crate::replica_set::BURST;
use crate::request::{ControllerRequest, ControllerResponse};
use crate::result_builder::{ReconcileResultBuilder, omit_zero};
use crate::workload::{
    PodControlEvents, by_age, candidates, claim_objects, is_available, is_ready, is_terminal,
    keys_for_change, next_available, node_of, phase, pod_from_template, template_hash,
};
use nodes::NodeEligibility;

const GENERATION: &str = "deprecated.daemonset.template.generation";
const POD_GENERATION: &str = "pod-template-generation";
/// How long a node's failed pod stays before it is replaced: doubled from the first to the last, as upstream.
const FAILED_MIN: Duration = Duration::from_secs(1);
const FAILED_MAX: Duration = Duration::from_secs(15 * 60);

/// The controller of DaemonSets.
#[derive(Debug, Default)]
pub(crate) struct DaemonSetController {
    pod_events: PodControlEvents,
    failed: BTreeMap<Key, BTreeMap<String, Pause>>,
}

/// When a node's failed pod was last replaced, and how long the next one stays.
#[derive(Clone, Copy, Debug)]
struct Pause {
    since: Timestamp,
    span: Duration,
}

fn selector(set: &DaemonSet) -> Option<&LabelSelector> {
    Some(&set.spec.as_ref()?.selector)
}

impl Controller for DaemonSetController {
    fn name(&self) -> &'static str {
        "daemonset-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::DaemonSet, Kind::Pod, Kind::ControllerRevision, Kind::Node]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        if change.new_or_old_typed::<Node>().is_some() {
            let is_same =
                change.old::<Node>().zip(change.new::<Node>()).is_some_and(|(old, new)| {
                    let taints =
                        |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone());
                    old.metadata.labels == new.metadata.labels && taints(old) == taints(new)
                });
            let all = cache.store::<DaemonSet>().iter().filter(|_| !is_same);
            return all.map(|set| Key::from_object(&**set)).collect();
        }
        keys_for_change::<DaemonSet>(change, cache, selector)
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(set) = cache.get::<DaemonSet>(&key.namespace, &key.name) else {
            self.pod_events.forget(key);
            self.failed.remove(key);
            return ReconcileResult::none();
        };
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        self.pod_events.record_events(&**set, &mut writes);
        let has_failed = self.pod_events.last_failure(key).is_some();
        let failed = self.failed.entry(key.clone()).or_default();
        let is_taken = |name: &str| cache.get::<ControllerRevision>(&key.namespace, name).is_some();
        let around = Around {
            pods: candidates(&set.metadata, cache),
            revisions: candidates(&set.metadata, cache),
            nodes: cache.store::<Node>().iter().map(|node| &**node).collect(),
            is_taken: &is_taken,
            burst: if has_failed { 1 } else { BURST },
        };
        reconcile(set, &around, failed, now, &mut writes);
        writes.build()
    }

    fn on_response(
        &mut self,
        key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        _now: Timestamp,
    ) {
        self.pod_events.handle_response(key, request, response);
    }
}

/// What a DaemonSet must know.
struct Around<'a> {
    /// Those that it controls, and orphans.
    pods: Vec<&'a Pod>,
    /// Likewise.
    revisions: Vec<&'a ControllerRevision>,
    nodes: Vec<&'a Node>,
    /// Whether there is a revision of a name.
    is_taken: &'a dyn Fn(&str) -> bool,
    /// How many pods may be made at a time.
    burst: usize,
}

/// What is to be done for a DaemonSet.
fn reconcile(
    set: &DaemonSet,
    around: &Around<'_>,
    failed: &mut BTreeMap<String, Pause>,
    now: Timestamp,
    writes: &mut ReconcileResultBuilder,
) {
    let Some(spec) = set.spec.as_ref().filter(|_| !is_terminating(&set.metadata)) else { return };
    let pods = claim_objects(set, Some(&spec.selector), around.pods.iter().copied(), writes);
    let revisions =
        claim_objects(set, Some(&spec.selector), around.revisions.iter().copied(), writes);
    let (Some(pods), Some(mut revisions)) = (pods, revisions) else { return };
    revisions.sort_by(|a, b| by_revision(a, b));
    let mut status = set.status.clone().unwrap_or_default();
    let Some(hash) = current(set, spec, &revisions, &pods, around, &mut status, writes) else {
        let mut changed = set.clone();
        changed.status = Some(status);
        return writes.update_status(&changed);
    };
    let mut needs = spec.template.spec.clone().unwrap_or_default();
    nodes::add_daemon_tolerations(&mut needs);
    let look = DaemonSetSync { set, spec, needs, nodes: &around.nodes, hash, now };
    let on = by_node(&pods);
    let mut plan = look.manage(&on, failed, writes);
    if plan.is_empty() && look.is_rolling() {
        plan = look.rolling_update(&on);
    }
    for node in plan.make.iter().take(around.burst) {
        writes.create(&look.pod(node));
    }
    for pod in plan.delete.iter().take(BURST) {
        writes.delete(*pod);
    }
    look.truncate(&pods, &revisions, writes);
    let status = look.status(&on, status);
    if set.status.as_ref() != Some(&status) {
        let mut changed = set.clone();
        changed.status = Some(status);
        writes.update_status(&changed);
    }
    if let Some(wait) = next_available(pods, look.min_ready(), now) {
        writes.requeue_after(wait);
    }
}

/// The hash of the revision with the set's template, which is made where there is none. None if its name is taken: then
/// the status counts one more.
fn current(
    set: &DaemonSet,
    spec: &DaemonSetSpec,
    revisions: &[&ControllerRevision],
    pods: &[&Pod],
    around: &Around<'_>,
    status: &mut DaemonSetStatus,
    writes: &mut ReconcileResultBuilder,
) -> Option<String> {
    let is_same = |one: &&&ControllerRevision| matches_template(one, &spec.template);
    let same: Vec<&ControllerRevision> = revisions.iter().filter(is_same).copied().collect();
    let others = revisions.iter().filter(|one| !is_same(one));
    let next = others.map(|one| one.revision).max().unwrap_or(0).max(0) + 1;
    if let Some((newest, rest)) = same.split_last() {
        let hash = label_value(&newest.metadata, REVISION_HASH).unwrap_or_default();
        if !rest.is_empty() {
            for pod in
                pods.iter().filter(|pod| label_value(&pod.metadata, REVISION_HASH) != Some(hash))
            {
                if rest.iter().any(|one| {
                    label_value(&pod.metadata, REVISION_HASH)
                        == label_value(&one.metadata, REVISION_HASH)
                }) {
                    writes.patch_meta(*pod, json!({"labels": {REVISION_HASH: hash}}));
                }
            }
            rest.iter().for_each(|one| writes.delete(*one));
        }
        bump_revision(newest, next, writes);
        return Some(hash.to_owned());
    }
    let hash = template_hash(&spec.template, status.collision_count);
    let name = format!("{}-{hash}", set.metadata.name.as_deref().unwrap_or_default());
    if (around.is_taken)(&name) {
        *status.collision_count.get_or_insert(0) += 1;
        return None;
    }
    writes.create(&new_revision(set, &spec.template, &name, (REVISION_HASH, &hash), next));
    Some(hash)
}

/// Pods by their node, without those that are terminated and terminating.
fn by_node<'a>(pods: &[&'a Pod]) -> BTreeMap<&'a str, Vec<&'a Pod>> {
    let mut on: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !is_terminal(pod) || !is_terminating(&pod.metadata)) {
        if let Some(node) = nodes::target_node_name(pod) {
            on.entry(node).or_default().push(pod);
        }
    }
    // The oldest that has its node first.
    let key = |pod: &Pod| node_of(pod).is_empty();
    on.values_mut().for_each(|pods| {
        pods.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| by_age(&a.metadata, &b.metadata)));
    });
    on
}

/// Nodes that are to get a pod, and pods that are to go.
#[derive(Debug, Default)]
struct Plan<'a> {
    make: Vec<&'a str>,
    delete: Vec<&'a Pod>,
}

impl Plan<'_> {
    fn is_empty(&self) -> bool {
        self.make.is_empty() && self.delete.is_empty()
    }
}

/// One sync of a DaemonSet.
struct DaemonSetSync<'a> {
    set: &'a DaemonSet,
    spec: &'a DaemonSetSpec,
    /// What its pods are like, with the tolerations of all DaemonSets.
    needs: PodSpec,
    nodes: &'a [&'a Node],
    /// Of the current revision.
    hash: String,
    now: Timestamp,
}

impl<'a> DaemonSetSync<'a> {
    fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready(), self.now)
    }

    fn generation(&self) -> Option<&str> {
        let generation = annotation_value(&self.set.metadata, GENERATION)?;
        generation.parse::<i64>().is_ok().then_some(generation)
    }

    /// Whether a pod was made from the current template.
    fn is_new(&self, pod: &Pod) -> bool {
        let generation = self.generation();
        label_value(&pod.metadata, REVISION_HASH) == Some(&self.hash)
            || generation.is_some() && label_value(&pod.metadata, POD_GENERATION) == generation
    }

    fn pod(&self, node: &str) -> Pod {
        let mut template: PodTemplateSpec = self.spec.template.clone();
        template.spec = Some(self.needs.clone());
        let mut pod = pod_from_template(&template, self.set);
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(REVISION_HASH.to_owned(), self.hash.clone());
        if let Some(generation) = self.generation() {
            labels.insert(POD_GENERATION.to_owned(), generation.to_owned());
        }
        if let Some(spec) = &mut pod.spec {
            nodes::set_node_affinity(spec, node);
        }
        pod
    }

    /// Makes pods where they are missing, deletes those that have ended, are too many or should not be there.
    fn manage<'p>(
        &self,
        on: &BTreeMap<&'p str, Vec<&'p Pod>>,
        failed: &mut BTreeMap<String, Pause>,
        writes: &mut ReconcileResultBuilder,
    ) -> Plan<'p>
    where
        'a: 'p,
    {
        let mut plan = Plan::default();
        for node in self.nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let pods = on.get(name).map(Vec::as_slice);
            let alive =
                pods.unwrap_or_default().iter().filter(|pod| !is_terminating(&pod.metadata));
            match (nodes::node_eligibility(&self.needs, node), pods) {
                (NodeEligibility::Leave, _) => plan.delete.extend(alive),
                (NodeEligibility::Run, None) => plan.make.push(name),
                (fit, _) => {
                    let mut running = Vec::new();
                    for pod in alive {
                        match phase(pod) {
                            "Failed" if self.is_paused(name, failed, writes) => {}
                            "Failed" => {
                                writes.warning(
                                    self.set,
                                    "FailedDaemonPod",
                                    found("failed", pod, name, "kill"),
                                );
                                plan.delete.push(pod);
                            }
                            "Succeeded" => {
                                writes.event(
                                    self.set,
                                    "SucceededDaemonPod",
                                    found("succeeded", pod, name, "delete"),
                                );
                                plan.delete.push(pod);
                            }
                            _ => running.push(*pod),
                        }
                    }
                    if self.surge(1) > 0 {
                        if running.is_empty() && fit == NodeEligibility::Run {
                            plan.make.push(name);
                        }
                        self.thin_out(&running, &mut plan);
                    } else {
                        plan.delete.extend(running.into_iter().skip(1));
                    }
                }
            }
        }
        let is_known =
            |name: &str| self.nodes.iter().any(|node| node.metadata.name.as_deref() == Some(name));
        for (_, pods) in on.iter().filter(|(name, _)| !is_known(name)) {
            plan.delete.extend(pods.iter().filter(|pod| node_of(pod).is_empty()));
        }
        plan.delete.retain(|pod| !is_terminating(&pod.metadata));
        plan
    }

    /// With surge a node may have an old and a new pod, until the new one is available or the old one is not ready.
    fn thin_out<'p>(&self, running: &[&'p Pod], plan: &mut Plan<'p>) {
        if running.len() < 2 {
            return;
        }
        let (mut new, mut old) = (None, None);
        for pod in running {
            let is_new = label_value(&pod.metadata, REVISION_HASH) == Some(&self.hash);
            let slot = if is_new { &mut new } else { &mut old };
            if slot.is_some() {
                plan.delete.push(pod);
            } else {
                *slot = Some(*pod);
            }
        }
        if let (Some(new), Some(old)) = (new, old)
            && (!is_ready(old) || self.is_available(new))
        {
            plan.delete.push(old);
        }
    }

    /// Whether a node's failed pod is to stay for now. If not, the next one stays longer.
    fn is_paused(
        &self,
        node: &str,
        failed: &mut BTreeMap<String, Pause>,
        writes: &mut ReconcileResultBuilder,
    ) -> bool {
        let until =
            |pause: &Pause| pause.since + SignedDuration::try_from(pause.span).unwrap_or_default();
        match failed.get_mut(node) {
            Some(pause) if until(pause) > self.now => {
                let left = until(pause).duration_since(self.now);
                writes.requeue_after(left.unsigned_abs());
                true
            }
            Some(pause) => {
                *pause = Pause { since: self.now, span: (pause.span * 2).min(FAILED_MAX) };
                false
            }
            None => {
                failed.insert(node.to_owned(), Pause { since: self.now, span: FAILED_MIN });
                false
            }
        }
    }

    fn status(&self, on: &BTreeMap<&str, Vec<&Pod>>, before: DaemonSetStatus) -> DaemonSetStatus {
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            collision_count: before.collision_count,
            conditions: before.conditions,
            ..DaemonSetStatus::default()
        };
        let (mut updated, mut available) = (0, 0);
        for node in self.nodes {
            let pod = on.get(node.metadata.name.as_deref().unwrap_or_default());
            let pod = pod.and_then(|pods| pods.first());
            if nodes::node_eligibility(&self.needs, node) != NodeEligibility::Run {
                status.number_misscheduled += i32::from(pod.is_some());
                continue;
            }
            status.desired_number_scheduled += 1;
            if let Some(pod) = pod {
                status.current_number_scheduled += 1;
                status.number_ready += i32::from(is_ready(pod));
                available += i32::from(self.is_available(pod));
                updated += i32::from(self.is_new(pod));
            }
        }
        status.updated_number_scheduled = omit_zero(updated);
        status.number_available = omit_zero(available);
        status.number_unavailable = omit_zero(status.desired_number_scheduled - available);
        status
    }

    /// Deletes the oldest revisions that no pod was made from.
    fn truncate(
        &self,
        pods: &[&Pod],
        revisions: &[&ControllerRevision],
        writes: &mut ReconcileResultBuilder,
    ) {
        let old = revisions.iter().filter(|one| !matches_template(one, &self.spec.template));
        let old: Vec<_> = old.collect();
        let excess = excess_revisions(old.len(), self.spec.revision_history_limit);
        let is_live = |one: &ControllerRevision| {
            let hash = label_value(&one.metadata, REVISION_HASH);
            pods.iter().any(|pod| label_value(&pod.metadata, REVISION_HASH) == hash)
        };
        for revision in old.into_iter().filter(|one| !is_live(one)).take(excess) {
            writes.delete(*revision);
        }
    }
}

fn found(what: &str, pod: &Pod, node: &str, verb: &str) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    format!("Found {what} daemon pod {namespace}/{name} on node {node}, will try to {verb} it")
}
