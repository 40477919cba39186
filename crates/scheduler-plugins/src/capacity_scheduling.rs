//! CapacityScheduling: quotas of namespaces (ElasticQuota) with a guaranteed minimum, which other namespaces may borrow while it is not
//! used and which preemption reclaims, and a maximum.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, PostFilter, Reserve |
//! | woken by | pod deleted, or no longer nominated; ElasticQuota added, updated or deleted |
//! | upstream | `pkg/capacityscheduling` of scheduler-plugins 0.35 |
//! | deviations | sums are those of the assigned pods whenever a quota is created or changed; requests count as NodeResourcesFit counts them (sidecars, pod-level resources); of several quotas in a namespace the first by name counts; a victim for the quota's sake is listed once and counts as a violation of its PodDisruptionBudget; victims are evicted while other pods are scheduled; pods of a higher priority are woken when a pod is no longer nominated |
//! | cost | O(nominated pods) a decision for pods in namespaces with a quota, however many quotas there are; nothing for others |

mod metrics;
mod quota;
mod quotas;

use std::sync::Arc;

use loadmaster_framework::incremental::{
    EvaluatorCx, PluginEvaluator, PrepareCx, ResultDependencies,
};
use loadmaster_framework::preemption::{
    CandidateSampling, DisruptionBudgets, Ineligible, NodeDryRun, Preemption, Victims,
    compare_pod_importance, has_lower_priority,
};
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, CycleStateSlot, Detail, DryRunCx, EventResource, Explain,
    ExtensionPoints, Incremental, ObjectChange, ObjectEventHandler, ObjectInfo, PluginDef,
    PluginError, PluginLogger, PodChange, PodEventHandler, PodInfo, PreFilter, PreFilterResult,
    PrepareResult, Reason, Rejection, Reserve, SerialCx, WatchRequirement, World,
};
use loadmaster_stdx::Rng;
use loadmaster_stdx::SortCompactly as _;
use serde_json::Value;

use crate::elastic_quota::elastic_quotas;
use metrics::QuotaMetrics;
use quota::ElasticQuota;
use quotas::{ElasticQuotas, Exceeded, Wanted};

pub const NAME: &str = "CapacityScheduling";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

const WAITS_FOR_EVICTIONS: &str = "not eligible due to pods that are being evicted";

struct CapacityScheduling {
    quotas: ElasticQuotas,
    wanted: CycleStateSlot<Wanted>,
    metrics: QuotaMetrics,
    log: PluginLogger,
}

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let kind = elastic_quotas();
    // Pods that are nominated in other namespaces count whatever their priority.
    let deleted = ClusterEvent::new(EventResource::Pod, ActionType::DELETE);
    points.register_event_ignoring_priority(deleted, None);
    let changed = ActionType::ADD | ActionType::UPDATE | ActionType::DELETE;
    points.register_event(ClusterEvent::new(kind.event_resource(), changed), None);
    // Evaluators read the quotas in every decision and keep nothing of them.
    let objects = points.watch_in_keys(kind, WatchRequirement::Required);
    let sums =
        points.sum_pods_by_namespace(&objects, |quota: &ElasticQuota| quota.min.amounts().clone());
    let plugin = Arc::new(CapacityScheduling {
        quotas: ElasticQuotas { objects, sums },
        wanted: points.cycle_state_slot(),
        metrics: QuotaMetrics::declare(points)?,
        log: points.logger(),
    });
    points.pre_filter = Some(plugin.clone());
    points.post_filter = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.object_event_handler = Some(plugin.clone());
    points.pod_event_handler = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin);
    Ok(())
}

impl PreFilter for CapacityScheduling {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let wanted = self.quotas.wanted(cx.world, pod);
        let exceeded = self.quotas.exceeded(cx.world, &pod.template.namespace, &wanted);
        cx.cycle.set(self.wanted, wanted);
        match exceeded {
            None => Ok(PreFilterResult::All),
            Some(which) => {
                let namespace = &pod.template.namespace;
                let start =
                    format!("Pod {namespace}/{} is rejected in PreFilter because", pod.name);
                Err(Rejection::unschedulable(match which {
                    Exceeded::Max => {
                        format!("{start} ElasticQuota {namespace} is more than Max")
                    }
                    Exceeded::TotalMin => {
                        format!("{start} total ElasticQuota used is more than min")
                    }
                }))
            }
        }
    }
}

impl Incremental for CapacityScheduling {
    /// Whether the pod's namespace has a quota.
    type Key = bool;

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<bool> {
        Some(self.quotas.of_namespace(cx.world, &pod.template.namespace).is_some())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, has_quota: &bool) -> PrepareResult {
        match has_quota {
            true => PrepareResult::Evaluator(Box::new(Evaluator(self.quotas.clone()))),
            false => PrepareResult::Skip,
        }
    }
}

/// The result is the same on all nodes, and computed in every decision.
struct Evaluator(ElasticQuotas);

impl PluginEvaluator for Evaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { pod: true, ..ResultDependencies::default() }
    }

    fn accepts_pod(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> bool {
        let Evaluator(quotas) = self;
        quotas.exceeded(cx.world, &pod.template.namespace, &quotas.wanted(cx.world, pod)).is_none()
    }
}

impl CapacityScheduling {
    /// Whether the preemptor, which has a quota, may reclaim what other quotas borrowed: its own use stays below its minimum. Otherwise
    /// it may only preempt pods of its namespace.
    fn reclaims(&self, world: &World, preemptor: &PodInfo, wanted: &Wanted) -> bool {
        !self.quotas.exceeds_min(world, &preemptor.template.namespace, &wanted.in_namespace)
    }

    /// Whether the preemptor may evict the other pod now, given whether it has a quota and, if it has, whether it reclaims.
    fn may_evict(
        &self,
        world: &World,
        preemptor: &PodInfo,
        reclaims: Option<bool>,
        other: &PodInfo,
    ) -> bool {
        let namespace = &other.template.namespace;
        let has_quota = self.quotas.of_namespace(world, namespace).is_some();
        let is_same = *namespace == preemptor.template.namespace;
        match reclaims {
            None => !has_quota && has_lower_priority(other, preemptor),
            Some(false) => is_same && has_lower_priority(other, preemptor),
            Some(true) => !is_same && self.quotas.lends_more(world, namespace),
        }
    }

    /// [`CapacityScheduling::reclaims`], or `None` if the preemptor has no quota.
    fn reclaims_if_limited(
        &self,
        world: &World,
        preemptor: &PodInfo,
        wanted: &Wanted,
    ) -> Option<bool> {
        self.quotas.of_namespace(world, &preemptor.template.namespace)?;
        Some(self.reclaims(world, preemptor, wanted))
    }
}

impl Preemption for CapacityScheduling {
    /// PreFilter plugins before this one may have rejected the pod, so that no node is worth a try; or the victims of nominated pods have to
    /// go first, its own and others.
    fn ineligible(&self, cx: Cx<'_>) -> Option<Ineligible> {
        let Some(wanted) = cx.cycle.get(self.wanted) else {
            // It waits for no victims. Upstream keeps its nomination.
            let reason = Reason::Text("not eligible due to failed to read from cycleState");
            return Some(Ineligible { reason, awaits_victims: false });
        };
        let waits = self.quotas.exceeded(cx.world, &wanted.namespace, wanted).is_some()
            && self.quotas.exceeded_after_evictions(cx.world, wanted).is_none();
        waits.then_some(Ineligible {
            reason: Reason::Text(WAITS_FOR_EVICTIONS),
            awaits_victims: true,
        })
    }

    /// All nodes, in their order.
    fn sample(&self, _: usize, _: &mut Rng) -> CandidateSampling {
        CandidateSampling::ALL
    }

    fn is_awaited_victim(&self, cx: &DryRunCx<'_>, preemptor: &PodInfo, other: &PodInfo) -> bool {
        let Some(wanted) = cx.cycle.get(self.wanted) else { return false };
        if cx.world().ongoing_preemptions().is_victim(&other.uid) {
            return true;
        }
        let reclaims = self.reclaims_if_limited(cx.world(), preemptor, wanted);
        // Pods of its own namespace are awaited in any case.
        self.may_evict(cx.world(), preemptor, reclaims, other)
            || reclaims == Some(true) && self.may_evict(cx.world(), preemptor, Some(false), other)
    }

    fn select_victims_on_node(
        &self,
        run: &mut NodeDryRun<'_>,
        budgets: &DisruptionBudgets,
    ) -> Result<Victims, Rejection> {
        let preemptor = run.preemptor().clone();
        let namespace = &preemptor.template.namespace;
        let wanted = run.cx().cycle.get(self.wanted).cloned();
        let wanted =
            wanted.unwrap_or_else(|| Wanted::only(namespace, &preemptor.requests().resources));
        let reclaims = self.reclaims_if_limited(run.cx().world, &preemptor, &wanted);
        // Pods that are being evicted for other preemptors, which are nominated, make no more room.
        let ongoing = run.cx().world.ongoing_preemptions();
        let (leaving, mut others): (Vec<_>, Vec<_>) =
            run.pods().iter().cloned().partition(|other| ongoing.is_victim(&other.uid));
        for other in &leaving {
            run.remove_pod(other)?;
        }
        if !leaving.is_empty()
            && run.preemptor_fits().is_ok()
            && self.quotas.exceeded_after_evictions(run.cx().world, &wanted).is_none()
        {
            return Err(Rejection::unschedulable(WAITS_FOR_EVICTIONS));
        }
        // The least important pods first: a quota stops lending when it is back at its minimum.
        others.sort_compactly_by(|a, b| compare_pod_importance(b, a));
        let mut removed = Vec::new();
        for other in others {
            if self.may_evict(run.cx().world, &preemptor, reclaims, &other) {
                run.remove_pod(&other)?;
                removed.push(other);
            }
        }
        if removed.is_empty() {
            let node = run.node().map_or("", |node| node.name());
            let text =
                format!("No victims found on node {node} for preemptor pod {}", preemptor.name);
            return Err(Rejection::unresolvable(text));
        }
        run.preemptor_fits()?;
        let alone = Wanted::only(namespace, &preemptor.requests().resources);
        if self.quotas.exceeded(run.cx().world, namespace, &alone).is_some() {
            return Err(Rejection::unschedulable("global quota max exceeded"));
        }
        run.reprieve_removed_pods(removed, budgets, |run| {
            self.quotas.exceeded_after_evictions(run.cx().world, &wanted).is_none()
        })
    }
}

/// Nothing to do: an assumed pod counts in the sums of assigned pods. Upstream has this extension point, and configurations enable it.
impl Reserve for CapacityScheduling {
    fn unreserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {}
}

impl ObjectEventHandler for CapacityScheduling {
    fn on_object_change(&self, cx: SerialCx<'_>, change: &ObjectChange) {
        let Some(info) = change.new.as_ref().or(change.old.as_ref()) else { return };
        self.warn_about_quotas(cx.world, change);
        self.metrics.update(&self.quotas, cx.world, cx.states, &info.namespace);
    }
}

impl CapacityScheduling {
    /// Logs what is wrong with a quota that was added or changed. Upstream says nothing.
    fn warn_about_quotas(&self, world: &World, change: &ObjectChange) {
        let Some(new) = &change.new else { return };
        let namespace = &new.namespace;
        let Some((first, _)) = self.quotas.of_namespace(world, namespace) else { return };
        if change.old.is_none() {
            let others = self.quotas.others_of_namespace(world, namespace);
            for other in others.filter(|other| *other == &*new.name || first == &*new.name) {
                self.log.warn(format_args!(
                    "ElasticQuota {namespace}/{other} has no effect: the ElasticQuota {first} of this namespace counts"
                ));
            }
        }
        let reason = |info: &ObjectInfo| info.decoded_as::<ElasticQuota>()?.min_above_max.clone();
        let resource = reason(new);
        if let Some(resource) = &resource
            && change.old.as_deref().and_then(reason).as_ref() != Some(resource)
        {
            self.log.warn(format_args!(
                "ElasticQuota {namespace}/{}: min is above max for {resource}",
                new.name
            ));
        }
    }
}

impl PodEventHandler for CapacityScheduling {
    fn on_pod_change(&self, cx: SerialCx<'_>, change: &PodChange) {
        if let Some(pod) = change.new.as_ref().or(change.old.as_ref()) {
            let namespace = &pod.template.namespace;
            self.metrics.update(&self.quotas, cx.world, cx.states, namespace);
        }
    }
}

impl Explain for CapacityScheduling {
    fn pod_details(&self, cx: Cx<'_>, pod: &PodInfo) -> Vec<Detail> {
        let namespace = &pod.template.namespace;
        let Some((name, quota)) = self.quotas.of_namespace(cx.world, namespace) else {
            return Vec::new();
        };
        let used = self.quotas.used(cx.world, namespace);
        let mut details = vec![
            Detail::new("quota", name.to_owned()),
            Detail::new("used", quota::resource_text(used)),
            Detail::new("min", quota.min.to_string()),
            Detail::new("max", quota.max.to_string()),
        ];
        let wanted = self.quotas.wanted(cx.world, pod);
        if let Some(shortage) = self.quotas.shortage(cx.world, namespace, &wanted) {
            details.push(Detail::new("short", shortage));
        }
        let borrowers = self.quotas.borrowers(cx.world);
        if !borrowers.is_empty() {
            details.push(Detail::new("borrowing", borrowers));
        }
        details
    }
}

#[cfg(test)]
mod tests;
