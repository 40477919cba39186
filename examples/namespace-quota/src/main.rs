//! Limits what the pods of a namespace request together, and lets a pod of higher priority preempt others of its namespace.
//!
//! Every object of the kind Quota in a namespace limits its assigned pods. The API server's ResourceQuota rejects pods when they are
//! created; here they wait in the scheduling queue, in order of priority. Because the quota is a Filter that reads a sum of the world,
//! preemption (the in-tree plugin DefaultPreemption) finds the pods to evict: its dry runs change the sum.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster::SchedulerCommand;
use loadmaster::api::{Quantity, Str};
use loadmaster::framework::cluster_event::QueueingHintArgs;
use loadmaster::framework::incremental::{ClassKey, ResultDependencies, RowDependency};
use loadmaster::framework::*;
use serde::Deserialize;
use serde_json::Value;

const NAME: &str = "NamespaceQuota";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

fn quotas() -> Gvr {
    Gvr::new("example.com", "v1", "quotas")
}

/// The fields of the custom resource that the plugin reads.
#[derive(Deserialize)]
struct Quota {
    spec: QuotaSpec,
}

#[derive(Deserialize)]
struct QuotaSpec {
    /// Limits by name of the resource; `pods` limits their number.
    hard: BTreeMap<Str, Quantity>,
}

#[derive(Clone)]
struct Plugin {
    quotas: ObjectSlot<Quota>,
    used: PodSums<Str>,
}

/// All that the plugin reads of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    namespace: Str,
    requests: Resources,
}

impl Key {
    fn of(pod: &PodInfo) -> Key {
        let requests = pod.requests().resources.clone();
        Key { namespace: pod.template.namespace.clone(), requests }
    }
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let quotas_slot = points.watch(quotas(), WatchRequirement::Required);
    let used = points.sum_pods(|pod| Some(pod.template.namespace.clone()));
    let plugin = Arc::new(Plugin { quotas: quotas_slot, used });
    points.filter = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    let may_fit: QueueingHintFn = Arc::new(move |args| Ok(plugin.hint(args)));
    let any = ActionType::ADD | ActionType::UPDATE | ActionType::DELETE;
    points.register_event(ClusterEvent::new(quotas().event_resource(), any), Some(may_fit.clone()));
    let freed = ActionType::DELETE | ActionType::UPDATE_POD_SCALE_DOWN;
    points.register_event(ClusterEvent::new(EventResource::AssignedPod, freed), Some(may_fit));
    Ok(())
}

impl Plugin {
    /// Which quota the pod would exceed.
    fn exceeded(&self, world: &World, pod: &Key) -> Option<String> {
        let used = world.pod_sum(&self.used, &pod.namespace);
        let quotas = world.watched_objects().lister(&self.quotas);
        quotas.in_namespace(&pod.namespace).find_map(|(info, quota)| {
            let is_exceeded = |(name, hard): (&Str, &Quantity)| match name.as_str() {
                "pods" => used.pods + 1 > hard.value(),
                "cpu" => used.amounts.cpu_milli + pod.requests.cpu_milli > hard.milli_value(),
                // A pod that requests nothing of it is not limited.
                other => match pod.requests.amount(other) {
                    0 => false,
                    request => used.amounts.amount(other) + request > hard.value(),
                },
            };
            let (name, _) = quota.spec.hard.iter().find(|limit| is_exceeded(*limit))?;
            Some(format!("quota {:?} is exceeded: {name}", info.name.as_str()))
        })
    }

    /// Requeues a pod when it would not exceed a quota any more.
    fn hint(&self, args: &QueueingHintArgs<'_>) -> QueueingHint {
        let exceeded = self.exceeded(args.world, &Key::of(args.pod));
        exceeded.map_or(QueueingHint::Queue, |_| QueueingHint::Skip)
    }
}

impl Filter for Plugin {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        self.exceeded(cx.world, &Key::of(pod))
            .map_or(Ok(()), |why| Err(Rejection::unschedulable(why)))
    }
}

impl Incremental for Plugin {
    type Key = Key;

    fn key(&self, _: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Key> {
        Some(Key::of(pod))
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, key: &Key) -> PrepareResult {
        PrepareResult::Evaluator(Box::new(Evaluator { plugin: self.clone(), key: key.clone() }))
    }
}

/// All nodes are one class, because the result is the same for all of them. It is computed in every decision.
struct Evaluator {
    plugin: Plugin,
    key: Key,
}

impl PluginEvaluator for Evaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { class: Some(RowDependency::Node), ..ResultDependencies::default() }
    }

    fn class_key_len(&self) -> usize {
        1
    }

    fn class_key(&self, _: EvaluatorCx<'_>, _: NodeRow, out: &mut ClassKey) {
        out.push(0);
    }

    fn filter_class(&self, cx: EvaluatorCx<'_>, _: &[i64]) -> bool {
        self.plugin.exceeded(cx.world, &self.key).is_none()
    }
}

impl Explain for Plugin {
    fn pod_details(&self, cx: Cx<'_>, pod: &PodInfo) -> Vec<Detail> {
        let used = cx.pod_sum(&self.used, &pod.template.namespace);
        vec![
            Detail::new("usedPods", used.pods),
            Detail::new("usedMilliCpus", used.amounts.cpu_milli),
        ]
    }
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new()
        .with_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .with_plugin(DEF)
        .run()
}

#[cfg(test)]
mod tests;
