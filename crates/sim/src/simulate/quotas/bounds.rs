//! What the quotas allow: all pods are added up for every question.

use std::collections::BTreeMap;

use loadmaster_api::{Pod, Quantity, Str};
use loadmaster_engine::Engine;
use serde_json::Value;

use super::kind;
use crate::simulate::invariants::CheckResult;
use crate::simulate::reference_model::ReferenceModel;
use crate::simulate::watched_objects::WatchedObjects;

/// CPU in thousandths, and memory in bytes: pods request nothing else.
#[derive(Clone, Copy, Debug, Default)]
struct Amounts([i64; 2]);

impl Amounts {
    fn of_pod(pod: &Pod) -> Amounts {
        let mut sum = Amounts::default();
        for container in &pod.spec.containers {
            let requests = &container.resources.requests;
            let cpu = requests.get("cpu").map_or(0, Quantity::milli_value);
            sum.add(Amounts([cpu, requests.get("memory").map_or(0, Quantity::value)]));
        }
        sum
    }

    /// A list of an ElasticQuota; without it, every amount is `missing`.
    fn of_list(list: &Value, missing: i64) -> Amounts {
        if list.is_null() {
            return Amounts([missing; 2]);
        }
        let quantity = |name: &str| Quantity::parse(list[name].as_str().unwrap_or("0")).ok();
        let cpu = quantity("cpu").map_or(0, |it| it.milli_value());
        Amounts([cpu, quantity("memory").map_or(0, |it| it.value())])
    }

    fn add(&mut self, other: Amounts) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    fn with(mut self, other: Amounts) -> Amounts {
        self.add(other);
        self
    }

    fn is_more_than(self, bound: Amounts) -> bool {
        self.0.iter().zip(bound.0).any(|(amount, bound)| *amount > bound)
    }
}

#[derive(Clone, Debug)]
struct Quota {
    min: Amounts,
    max: Amounts,
    used: Amounts,
}

/// A nominated pod in a namespace with a quota.
#[derive(Clone, Debug)]
struct Nominated {
    uid: Box<str>,
    namespace: Str,
    priority: i32,
    requests: Amounts,
}

/// The quotas by namespace, and what their pods use.
#[derive(Clone, Debug, Default)]
pub(in crate::simulate) struct Quotas {
    of: BTreeMap<Str, Quota>,
    nominated: Vec<Nominated>,
}

impl Quotas {
    /// The quotas among these objects, used by pods with a node.
    pub fn new<'p>(
        objects: &WatchedObjects,
        placed: impl Iterator<Item = &'p Pod>,
        nominated: impl Iterator<Item = &'p Pod>,
    ) -> Quotas {
        let mut of: BTreeMap<Str, Quota> = BTreeMap::new();
        for (name, object) in objects.named(kind()) {
            let namespace = name.split('/').next().unwrap_or_default();
            let spec = &object["spec"];
            // The first one by name counts.
            of.entry(Str::new(namespace)).or_insert_with(|| Quota {
                min: Amounts::of_list(&spec["min"], 0),
                max: Amounts::of_list(&spec["max"], i64::MAX),
                used: Amounts::default(),
            });
        }
        let mut quotas = Quotas { of, nominated: Vec::new() };
        placed.for_each(|pod| quotas.assume(pod));
        let nominated = nominated.filter(|pod| quotas.of.contains_key(&pod.metadata.namespace));
        quotas.nominated = nominated
            .map(|pod| Nominated {
                uid: pod.metadata.uid.clone(),
                namespace: pod.metadata.namespace.clone(),
                priority: pod.spec.priority.unwrap_or(0),
                requests: Amounts::of_pod(pod),
            })
            .collect();
        quotas
    }

    /// What the engine knows, without one pod.
    pub fn of_model(model: &ReferenceModel, without: &str) -> Quotas {
        let placed = model.placed_pods().map(|(pod, _)| pod);
        let placed = placed.filter(|pod| *pod.metadata.uid != *without);
        // Pods that are nominated to nodes that do not exist do not count.
        let nominated = model.nominated.iter().filter(|(_, node)| model.nodes.contains_key(node));
        let nominated = nominated.filter_map(|(uid, _)| model.pods.get(uid));
        Quotas::new(&model.plugins.objects, placed, nominated)
    }

    /// A pod uses its quota from now on.
    pub fn assume(&mut self, pod: &Pod) {
        if let Some(quota) = self.of.get_mut(&pod.metadata.namespace) {
            quota.used.add(Amounts::of_pod(pod));
        }
    }

    /// Why a pod must not be scheduled, if it must not: its namespace would use more than its maximum, or all namespaces with a quota
    /// together more than the sum of the minimums.
    pub fn exceeded(&self, pod: &Pod) -> Option<String> {
        let namespace = &pod.metadata.namespace;
        let quota = self.of.get(namespace)?;
        let mut in_namespace = quota.used.with(Amounts::of_pod(pod));
        let mut all = self.of.values().fold(Amounts::of_pod(pod), |sum, it| sum.with(it.used));
        for other in self.nominated.iter().filter(|other| other.uid != pod.metadata.uid) {
            let is_same = other.namespace == *namespace;
            if is_same && other.priority >= pod.spec.priority.unwrap_or(0) {
                in_namespace.add(other.requests);
                all.add(other.requests);
            }
            if !is_same && !self.borrows(&other.namespace) {
                all.add(other.requests);
            }
        }
        if in_namespace.is_more_than(quota.max) {
            return Some(format!("{in_namespace:?} is more than the maximum {:?}", quota.max));
        }
        let min = self.of.values().fold(Amounts::default(), |sum, quota| sum.with(quota.min));
        all.is_more_than(min).then(|| format!("{all:?} is more than the minimums {min:?}"))
    }

    /// Whether a namespace with a quota uses more than its minimum.
    fn borrows(&self, namespace: &str) -> bool {
        self.of.get(namespace).is_some_and(|quota| quota.used.is_more_than(quota.min))
    }

    /// Whether a preemptor may evict a pod: without quotas, or in one namespace, by priority; else to reclaim its minimum from a namespace
    /// that borrows.
    fn may_evict(&self, preemptor: &Pod, victim: &Pod) -> bool {
        let quota = |pod: &Pod| self.of.get(&pod.metadata.namespace);
        let priority = |pod: &Pod| pod.spec.priority.unwrap_or(0);
        let is_same = preemptor.metadata.namespace == victim.metadata.namespace;
        match (quota(preemptor), quota(victim)) {
            (Some(own), Some(_)) if !is_same => {
                let wanted = own.used.with(Amounts::of_pod(preemptor));
                !wanted.is_more_than(own.min) && self.borrows(&victim.metadata.namespace)
            }
            (None, None) => priority(preemptor) > priority(victim),
            (Some(_), Some(_)) => priority(preemptor) > priority(victim),
            _ => false,
        }
    }
}

/// A pod is reserved only if no quota is exceeded by it. Returns whether its namespace has a quota.
pub(in crate::simulate) fn check_reserved(
    model: &ReferenceModel,
    uid: &str,
) -> Result<bool, String> {
    let Some(pod) = model.pods.get(uid) else { return Ok(false) };
    let quotas = Quotas::of_model(model, uid);
    match quotas.exceeded(pod) {
        None => Ok(quotas.of.contains_key(&pod.metadata.namespace)),
        Some(why) => {
            let name = pod.full_name();
            Err(format!("pod {name} is reserved, but with it a quota is exceeded: {why}"))
        }
    }
}

/// A victim is one that some preemptor that is nominated to its node may evict.
pub(in crate::simulate) fn check_victim(
    model: &ReferenceModel,
    engine: &Engine,
    uid: &str,
) -> CheckResult {
    let placed = model.placed_pods().find(|(pod, _)| *pod.metadata.uid == *uid);
    let Some((victim, node)) = placed else {
        return Err(format!("pod {uid} is evicted, but is not assigned"));
    };
    let quotas = Quotas::of_model(model, "");
    let preemptors = engine.world().nominated_pods_for_node(&node).iter();
    let mut preemptors = preemptors.filter_map(|pod| model.pods.get(&pod.uid));
    match preemptors.any(|preemptor| quotas.may_evict(preemptor, victim)) {
        true => Ok(()),
        false => {
            let victim = victim.full_name();
            Err(format!("pod {victim} is evicted from {node}, but no preemptor may evict it"))
        }
    }
}
