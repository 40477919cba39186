//! The ReplicaSet controller: keeps the desired number of pods.
//!
//! | | |
//! | --- | --- |
//! | writes | pods, status of ReplicaSets, Events |
//! | upstream | `pkg/controller/replicaset`, 1.36 |
//! | deviations | none known |

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::{controller_of, is_controlled_by, is_terminating, selector_matches};
use crate::node_matching::contains;
use crate::request::{ControllerRequest, ControllerResponse};
use crate::result_builder::{ReconcileResultBuilder, omit_empty, omit_zero};
use crate::workload::{
    PodControlEvents, PodControlFailure, candidates, claim_objects, is_active, is_available,
    is_ready, is_terminal, keys_for_change, next_available, pod_from_template, sort_for_deletion,
    stamp,
};

/// Maximum number of pods created or deleted per sync (upstream's `BurstReplicas`).
pub(crate) const BURST: usize = 500;
const FAILURE: &str = "ReplicaFailure";

/// The controller of ReplicaSets.
#[derive(Debug, Default)]
pub(crate) struct ReplicaSetController {
    pod_events: PodControlEvents,
}

fn selector(set: &ReplicaSet) -> Option<&LabelSelector> {
    Some(&set.spec.as_ref()?.selector)
}

impl Controller for ReplicaSetController {
    fn name(&self) -> &'static str {
        "replicaset-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::ReplicaSet, Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        keys_for_change::<ReplicaSet>(change, cache, selector)
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(set) = cache.get::<ReplicaSet>(&key.namespace, &key.name) else {
            self.pod_events.forget(key);
            return ReconcileResult::none();
        };
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        self.pod_events.record_events(&**set, &mut writes);
        let look = ReplicaSetSync {
            set,
            pods: &candidates(&set.metadata, cache),
            related: &|| related(set, cache),
            failure: self.pod_events.last_failure(key),
            now,
        };
        look.reconcile(&mut writes);
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

/// The pods of all sets that have the same controller: those of a Deployment.
fn related<'a>(set: &ReplicaSet, cache: &'a Cache) -> Vec<&'a Pod> {
    let Some(owner) = controller_of(&set.metadata) else { return Vec::new() };
    let sets = cache.store::<ReplicaSet>().owned_by(&owner.uid);
    let pods = sets.flat_map(|set| {
        cache.store::<Pod>().owned_by(set.metadata.uid.as_deref().unwrap_or_default())
    });
    pods.map(|pod| &**pod).collect()
}

/// One sync of a ReplicaSet.
struct ReplicaSetSync<'a> {
    set: &'a ReplicaSet,
    /// Those that it controls, and orphans.
    pods: &'a [&'a Pod],
    related: &'a dyn Fn() -> Vec<&'a Pod>,
    failure: Option<&'a PodControlFailure>,
    now: Timestamp,
}

impl ReplicaSetSync<'_> {
    fn reconcile(&self, writes: &mut ReconcileResultBuilder) {
        let Some(spec) = &self.set.spec else { return };
        let pods = self.pods.iter().copied().filter(|pod| is_active(pod));
        let Some(pods) = claim_objects(self.set, Some(&spec.selector), pods, writes) else {
            return;
        };
        if !is_terminating(&self.set.metadata) {
            self.resize(spec, &pods, writes);
        }
        let status = self.status(spec, &pods);
        let before = self.set.status.clone().unwrap_or_default();
        if status != before {
            let mut changed = self.set.clone();
            changed.status = Some(status);
            writes.update_status(&changed);
        }
        let min_ready = spec.min_ready_seconds.unwrap_or(0);
        if let Some(wait) = next_available(pods, min_ready, self.now) {
            writes.requeue_after(wait);
        }
    }

    /// Creates missing pods, deletes surplus pods.
    fn resize(&self, spec: &ReplicaSetSpec, pods: &[&Pod], writes: &mut ReconcileResultBuilder) {
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
        if pods.len() < wanted {
            let template = spec.template.clone().unwrap_or_default();
            // What could not be made is tried with one pod first.
            let burst = if self.failure.is_some() { 1 } else { BURST };
            for _ in 0..(wanted - pods.len()).min(burst) {
                writes.create(&pod_from_template(&template, self.set));
            }
        } else if pods.len() > wanted {
            let excess = pods.len() - wanted;
            let mut order = pods.to_vec();
            if wanted > 0 {
                sort_for_deletion(&mut order, &(self.related)(), self.now);
            }
            for pod in order.into_iter().take(excess.min(BURST)) {
                writes.delete(pod);
            }
        }
    }

    fn status(&self, spec: &ReplicaSetSpec, pods: &[&Pod]) -> ReplicaSetStatus {
        let labels = spec.template.as_ref().and_then(|one| one.metadata.as_ref()?.labels.as_ref());
        let min_ready = spec.min_ready_seconds.unwrap_or(0);
        let number = |is: &dyn Fn(&Pod) -> bool| pods.iter().filter(|pod| is(pod)).count() as i32;
        let uid = self.set.metadata.uid.as_deref().unwrap_or_default();
        let leaving = self.pods.iter().filter(|pod| {
            is_terminating(&pod.metadata)
                && !is_terminal(pod)
                && is_controlled_by(&pod.metadata, uid)
                && selector_matches(&spec.selector, pod.metadata.labels.as_ref())
        });
        ReplicaSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: pods.len() as i32,
            fully_labeled_replicas: omit_zero(number(&|pod| {
                contains(pod.metadata.labels.as_ref(), labels)
            })),
            ready_replicas: omit_zero(number(&is_ready)),
            available_replicas: omit_zero(number(&|pod| is_available(pod, min_ready, self.now))),
            terminating_replicas: Some(leaving.count() as i32),
            conditions: self.conditions(),
        }
    }

    fn conditions(&self) -> Option<Vec<ReplicaSetCondition>> {
        let before = self.set.status.as_ref().and_then(|status| status.conditions.clone());
        let mut all = before.clone().unwrap_or_default();
        let is_reported = all.iter().any(|one| one.type_ == FAILURE);
        match self.failure {
            Some(_) if is_reported => return before,
            None if !is_reported => return before,
            Some(failure) => all.push(ReplicaSetCondition {
                type_: FAILURE.to_owned(),
                status: "True".to_owned(),
                reason: omit_empty(failure.reason),
                message: omit_empty(&failure.message),
                last_transition_time: Some(stamp(self.now)),
            }),
            None => all.retain(|one| one.type_ != FAILURE),
        }
        Some(all).filter(|all| !all.is_empty())
    }
}
