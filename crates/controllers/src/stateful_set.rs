//! The StatefulSet controller: pods with ordinals and claims of their own, created, replaced and deleted in order.
//!
//! | | |
//! | --- | --- |
//! | writes | pods, claims, ControllerRevisions, status of StatefulSets, Events |
//! | upstream | `pkg/controller/statefulset`, 1.36 |
//! | deviations | revisions are named by another hash |

mod pods;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    ControllerRevision, StatefulSet, StatefulSetSpec, StatefulSetStatus,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::json;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::history::{
    bump_revision, by_revision, excess_revisions, matches_template, new_revision, template,
};
use crate::kind::{Key, Kind, Object};
use crate::meta::is_terminating;
use crate::request::{ControllerRequest, ControllerResponse};
use crate::result_builder::{ReconcileResultBuilder, omit_empty, omit_zero};
use crate::workload::{
    PodControlEvents, candidates, claim_objects, is_available, is_ready, is_terminal,
    keys_for_change, next_available, phase, template_hash,
};

const HASH: &str = "controller.kubernetes.io/hash";

/// The controller of StatefulSets.
#[derive(Debug, Default)]
pub(crate) struct StatefulSetController {
    pod_events: PodControlEvents,
}

fn selector(set: &StatefulSet) -> Option<&LabelSelector> {
    Some(&set.spec.as_ref()?.selector)
}

impl Controller for StatefulSetController {
    fn name(&self) -> &'static str {
        "statefulset-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::StatefulSet, Kind::Pod, Kind::ControllerRevision, Kind::PersistentVolumeClaim]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        keys_for_change::<StatefulSet>(change, cache, selector)
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(set) = cache.get::<StatefulSet>(&key.namespace, &key.name) else {
            self.pod_events.forget(key);
            return ReconcileResult::none();
        };
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        self.pod_events.record_events(&**set, &mut writes);
        let claim = |name: &str| {
            cache.get::<PersistentVolumeClaim>(&key.namespace, name).map(|claim| &**claim)
        };
        let is_taken = |name: &str| cache.get::<ControllerRevision>(&key.namespace, name).is_some();
        let around = Around {
            pods: candidates(&set.metadata, cache),
            revisions: candidates(&set.metadata, cache),
            claim: &claim,
            is_taken: &is_taken,
        };
        reconcile(set, &around, now, &mut writes);
        writes.build()
    }

    fn on_response(
        &mut self,
        key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        _now: Timestamp,
    ) {
        let (verb, what) = match request {
            ControllerRequest::Create(Object::Pod(pod)) => ("Create", text(&pod.metadata.name)),
            ControllerRequest::Create(Object::PersistentVolumeClaim(claim)) => {
                let name = text(&claim.metadata.name);
                let number = name.rsplit('-').next().unwrap_or_default();
                let claim = format!(
                    "Create Claim {name} Pod {}-{number} in StatefulSet {} success",
                    key.name, key.name
                );
                if matches!(response, ControllerResponse::Success(_)) {
                    self.pod_events.add_event(key, true, "SuccessfulCreate", claim);
                }
                return;
            }
            ControllerRequest::Delete { key: pod, .. } if pod.kind == Kind::Pod => {
                ("Delete", &*pod.name)
            }
            _ => return,
        };
        let pod = format!("{verb} Pod {what} in StatefulSet {}", key.name);
        match response {
            ControllerResponse::Success(_) => {
                let reason = if verb == "Create" { "SuccessfulCreate" } else { "SuccessfulDelete" };
                self.pod_events.add_event(key, true, reason, format!("{pod} successful"));
            }
            ControllerResponse::Rejected { status: 404 | 409, .. }
            | ControllerResponse::Count(_)
            | ControllerResponse::NoResponse { .. } => {}
            ControllerResponse::Rejected { message, .. } => {
                let reason = if verb == "Create" { "FailedCreate" } else { "FailedDelete" };
                self.pod_events.add_event(
                    key,
                    false,
                    reason,
                    format!("{pod} failed error: {message}"),
                );
            }
        }
    }
}

fn text(name: &Option<String>) -> &str {
    name.as_deref().unwrap_or_default()
}

/// What a StatefulSet must know.
struct Around<'a> {
    /// Those that it controls, and orphans.
    pods: Vec<&'a Pod>,
    /// Likewise.
    revisions: Vec<&'a ControllerRevision>,
    /// Its claims by name.
    claim: &'a dyn Fn(&str) -> Option<&'a PersistentVolumeClaim>,
    /// Whether there is a revision of a name.
    is_taken: &'a dyn Fn(&str) -> bool,
}

/// What is to be done for a StatefulSet.
fn reconcile<'a>(
    set: &'a StatefulSet,
    around: &Around<'a>,
    now: Timestamp,
    writes: &mut ReconcileResultBuilder,
) {
    let Some(spec) = &set.spec else { return };
    let members = around.pods.iter().copied().filter(|pod| pods::ordinal(set, pod).is_some());
    let members = claim_objects(set, Some(&spec.selector), members, writes);
    let revisions =
        claim_objects(set, Some(&spec.selector), around.revisions.iter().copied(), writes);
    let (Some(members), Some(mut revisions)) = (members, revisions) else { return };
    revisions.sort_by(|a, b| by_revision(a, b));
    let (update, collisions) = update_revision(set, spec, &revisions, around, writes);
    let status = set.status.clone().unwrap_or_default();
    let is_current = |one: &&&ControllerRevision| one.metadata.name == status.current_revision;
    let current = revisions.iter().find(is_current).map(|one| Revision {
        name: text(&one.metadata.name).to_owned(),
        template: template(one).unwrap_or_else(|| spec.template.clone()),
    });
    let look = StatefulSetSync {
        set,
        spec,
        claim: around.claim,
        current: current.unwrap_or_else(|| update.clone()),
        update,
        start: spec.ordinals.as_ref().and_then(|one| one.start).unwrap_or(0),
        is_ordered: spec.pod_management_policy.as_deref() != Some("Parallel"),
        now,
    };
    let mut status = look.status(&members);
    status.collision_count = Some(collisions);
    if !is_terminating(&set.metadata) {
        look.manage(&members, &mut status, writes);
    }
    look.complete(&mut status);
    if is_new_condition(set.status.as_ref(), &status) {
        let mut changed = set.clone();
        changed.status = Some(status);
        writes.update_status(&changed);
    }
    look.truncate(&members, &revisions, writes);
    if let Some(wait) = next_available(members, look.min_ready(), now) {
        writes.requeue_after(wait);
    }
}

/// A template and the name of its revision.
#[derive(Clone, Debug)]
struct Revision {
    name: String,
    template: PodTemplateSpec,
}

/// The revision with the set's template, which is made where there is none, and how many names were taken.
fn update_revision(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    revisions: &[&ControllerRevision],
    around: &Around<'_>,
    writes: &mut ReconcileResultBuilder,
) -> (Revision, i32) {
    let mut collisions = set.status.as_ref().and_then(|one| one.collision_count).unwrap_or(0);
    let next = revisions.last().map_or(1, |last| last.revision + 1);
    if let Some(same) = revisions.iter().rfind(|one| matches_template(one, &spec.template)) {
        if same.revision + 1 != next {
            bump_revision(same, next, writes);
        }
        let name = text(&same.metadata.name).to_owned();
        return (Revision { name, template: spec.template.clone() }, collisions);
    }
    let base: String = text(&set.metadata.name).chars().take(223).collect();
    let (name, hash) = loop {
        let hash = template_hash(&spec.template, Some(collisions));
        let name = format!("{base}-{hash}");
        if !(around.is_taken)(&name) {
            break (name, hash);
        }
        collisions += 1;
    };
    if !is_terminating(&set.metadata) {
        writes.create(&new_revision(set, &spec.template, &name, (HASH, &hash), next));
    }
    (Revision { name, template: spec.template.clone() }, collisions)
}

/// Whether a status differs from the last one.
fn is_new_condition(before: Option<&StatefulSetStatus>, after: &StatefulSetStatus) -> bool {
    let Some(before) = before else { return true };
    let counts = |status: &StatefulSetStatus| {
        let number = |count: Option<i32>| count.unwrap_or(0);
        let ready = (number(status.ready_replicas), number(status.available_replicas));
        (status.replicas, number(status.current_replicas), number(status.updated_replicas), ready)
    };
    let names = |status: &StatefulSetStatus| {
        (status.current_revision.clone(), status.update_revision.clone(), status.collision_count)
    };
    after.observed_generation > before.observed_generation
        || counts(before) != counts(after)
        || names(before) != names(after)
}

/// One sync of a StatefulSet.
struct StatefulSetSync<'a> {
    set: &'a StatefulSet,
    spec: &'a StatefulSetSpec,
    claim: &'a dyn Fn(&str) -> Option<&'a PersistentVolumeClaim>,
    current: Revision,
    update: Revision,
    /// The first number.
    start: i32,
    /// One pod after the other.
    is_ordered: bool,
    now: Timestamp,
}

/// A pod that is to be there.
#[derive(Clone, Copy)]
struct DesiredPod<'a> {
    ordinal: i32,
    pod: Option<&'a Pod>,
}

impl<'a> StatefulSetSync<'a> {
    fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn wanted(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    fn is_in_range(&self, ordinal: i32) -> bool {
        ordinal >= self.start && ordinal - self.start < self.wanted()
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready(), self.now)
    }

    /// Whether nothing may be taken for granted about a pod.
    fn is_unavailable(&self, pod: Option<&Pod>) -> bool {
        pod.is_none_or(|pod| !self.is_available(pod) || is_terminating(&pod.metadata))
    }

    fn status(&self, pods: &[&Pod]) -> StatefulSetStatus {
        let number = |is: &dyn Fn(&Pod) -> bool| pods.iter().filter(|pod| is(pod)).count() as i32;
        let is_running = |pod: &Pod| phase(pod) == "Running" && is_ready(pod);
        let is_of = |pod: &Pod, revision: &Revision| {
            !is_terminating(&pod.metadata) && pods::revision(pod) == revision.name
        };
        StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: number(&|pod| !phase(pod).is_empty()),
            ready_replicas: omit_zero(number(&is_running)),
            available_replicas: Some(number(&|pod| is_running(pod) && self.is_available(pod))),
            current_replicas: omit_zero(number(&|pod| is_of(pod, &self.current))),
            updated_replicas: omit_zero(number(&|pod| is_of(pod, &self.update))),
            current_revision: omit_empty(&self.current.name),
            update_revision: omit_empty(&self.update.name),
            collision_count: None,
            conditions: None,
        }
    }

    /// A rolling update is over when all pods are new and ready.
    fn complete(&self, status: &mut StatefulSetStatus) {
        let wanted = self.wanted();
        let counts = [status.updated_replicas, status.ready_replicas];
        let is_done = counts.into_iter().all(|count| count.unwrap_or(0) == wanted);
        if self.is_rolling() && is_done && status.replicas == wanted {
            status.current_replicas = status.updated_replicas;
            status.current_revision = status.update_revision.clone();
        }
    }

    fn is_rolling(&self) -> bool {
        let strategy = self.spec.update_strategy.as_ref();
        strategy.and_then(|one| one.type_.as_deref()) != Some("OnDelete")
    }

    fn partition(&self) -> Option<i32> {
        let rolling = self.spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
        Some(rolling.partition.unwrap_or(0))
    }

    fn manage(
        &self,
        pods: &[&'a Pod],
        status: &mut StatefulSetStatus,
        writes: &mut ReconcileResultBuilder,
    ) {
        let at = |ordinal| {
            pods.iter().copied().find(|pod| pods::ordinal(self.set, pod) == Some(ordinal))
        };
        let desired_pods: Vec<DesiredPod> = (0..self.wanted())
            .map(|idx| DesiredPod { ordinal: self.start + idx, pod: at(self.start + idx) })
            .collect();
        let mut condemned: Vec<(i32, &Pod)> = pods
            .iter()
            .filter_map(|pod| Some((pods::ordinal(self.set, pod)?, *pod)))
            .filter(|(ordinal, _)| !self.is_in_range(*ordinal))
            .collect();
        condemned.sort_by_key(|(ordinal, _)| -ordinal);
        for desired in &desired_pods {
            if !self.create_or_repair_pod(*desired, writes) && self.is_ordered {
                return;
            }
        }
        for (ordinal, pod) in &condemned {
            self.own_claims(*ordinal, pod, writes);
        }
        if !self.dismiss(&desired_pods, &condemned, writes) && self.is_rolling() {
            self.roll(&desired_pods, status, writes);
        }
    }

    /// Creates or repairs one pod. True if it exists and is available.
    fn create_or_repair_pod(
        &self,
        desired: DesiredPod<'_>,
        writes: &mut ReconcileResultBuilder,
    ) -> bool {
        let Some(pod) = desired.pod else {
            self.make(desired.ordinal, writes);
            return false;
        };
        if is_terminal(pod) {
            writes.delete(pod);
            return false;
        }
        if phase(pod) == "Pending" {
            self.make_claims(desired.ordinal, writes);
        }
        let is_up = phase(pod) == "Running" && self.is_available(pod);
        if self.is_ordered && (is_terminating(&pod.metadata) || !is_up) {
            return false;
        }
        if !pods::identity_matches(self.set, self.spec, desired.ordinal, pod) {
            let mut repaired = pod.clone();
            pods::update_identity(self.set, self.spec, desired.ordinal, &mut repaired);
            self.make_claims(desired.ordinal, writes);
            writes.update(&repaired);
        }
        self.own_claims(desired.ordinal, pod, writes);
        true
    }

    fn make(&self, ordinal: i32, writes: &mut ReconcileResultBuilder) {
        // Below the partition, and where the update has not arrived, pods have the previous revision.
        let kept = match self.partition() {
            Some(partition) => partition,
            None if self.is_rolling() => {
                self.set.status.as_ref().and_then(|one| one.current_replicas).unwrap_or(0)
            }
            None => 0,
        };
        let revision = if ordinal < self.start + kept { &self.current } else { &self.update };
        let pod = pods::new_pod(self.set, self.spec, &revision.template, &revision.name, ordinal);
        let (_, goes_with_scale) = pods::claim_retention_policy(self.spec);
        let is_stale = |claim: &PersistentVolumeClaim| {
            let name = text(&claim.metadata.name);
            (self.claim)(name).is_some_and(|claim| pods::is_claim_stale(claim, &pod))
        };
        if goes_with_scale && pods::claims(self.set, self.spec, ordinal).iter().any(is_stale) {
            return;
        }
        if self.make_claims(ordinal, writes) {
            writes.create(&pod);
        }
    }

    /// Creates missing claims of a pod. False if one is terminating.
    fn make_claims(&self, ordinal: i32, writes: &mut ReconcileResultBuilder) -> bool {
        let mut is_well = true;
        for claim in pods::claims(self.set, self.spec, ordinal) {
            match (self.claim)(text(&claim.metadata.name)) {
                None => writes.create(&claim),
                Some(found) => is_well &= !is_terminating(&found.metadata),
            }
        }
        is_well
    }

    /// Sets the owner references of a pod's claims.
    fn own_claims(&self, ordinal: i32, pod: &Pod, writes: &mut ReconcileResultBuilder) {
        for claim in pods::claims(self.set, self.spec, ordinal) {
            let Some(found) = (self.claim)(text(&claim.metadata.name)) else { continue };
            let is_wanted = self.is_in_range(ordinal);
            if let Some(owners) = pods::owners(self.set, self.spec, pod, is_wanted, found) {
                writes.patch_meta(found, json!({"ownerReferences": owners}));
            }
        }
    }

    /// Deletes surplus pods, the highest ordinal first. True if it must wait.
    fn dismiss(
        &self,
        desired_pods: &[DesiredPod<'_>],
        condemned: &[(i32, &Pod)],
        writes: &mut ReconcileResultBuilder,
    ) -> bool {
        let first_bad = || {
            let desired_pods = desired_pods
                .iter()
                .map(|desired| desired.pod)
                .find(|pod| self.is_unavailable(*pod));
            let others = condemned.iter().rev().map(|(_, pod)| Some(*pod));
            desired_pods
                .or_else(|| others.into_iter().find(|pod| self.is_unavailable(*pod)))
                .flatten()
        };
        for (_, pod) in condemned {
            if !self.is_ordered {
                writes.delete(*pod);
                continue;
            }
            let is_up = phase(pod) == "Running" && self.is_available(pod);
            let is_first_bad = || first_bad().is_some_and(|bad| std::ptr::eq(bad, *pod));
            if !is_terminating(&pod.metadata) && (is_up || is_first_bad()) {
                writes.delete(*pod);
            }
            return true;
        }
        false
    }

    /// Replaces the outdated pod with the highest ordinal, once those above it are available.
    fn roll(
        &self,
        desired_pods: &[DesiredPod<'_>],
        status: &mut StatefulSetStatus,
        writes: &mut ReconcileResultBuilder,
    ) {
        let lowest = usize::try_from(self.partition().unwrap_or(0)).unwrap_or(0);
        for desired in desired_pods.iter().skip(lowest).rev() {
            if let Some(pod) = desired.pod
                && pods::revision(pod) != self.update.name
                && !is_terminating(&pod.metadata)
            {
                writes.delete(pod);
                status.current_replicas = omit_zero(status.current_replicas.unwrap_or(0) - 1);
                return;
            }
            if self.is_unavailable(desired.pod) {
                return;
            }
        }
    }

    /// Deletes the oldest revisions that no pod was made from.
    fn truncate(
        &self,
        pods: &[&Pod],
        revisions: &[&ControllerRevision],
        writes: &mut ReconcileResultBuilder,
    ) {
        let is_live = |revision: &ControllerRevision| {
            let name = text(&revision.metadata.name);
            name == self.current.name
                || name == self.update.name
                || pods.iter().any(|pod| pods::revision(pod) == name)
        };
        let old: Vec<_> = revisions.iter().filter(|one| !is_live(one)).collect();
        let excess = excess_revisions(old.len(), self.spec.revision_history_limit);
        for revision in old.into_iter().take(excess) {
            writes.delete(*revision);
        }
    }
}
