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
use loadmaster::framework::incremental::ResultDependencies;
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
    fn exceeded(&self, world: &World, pod: &PodInfo) -> Option<String> {
        let (namespace, requests) = (&pod.template.namespace, &pod.requests().resources);
        let used = world.pod_sum(&self.used, namespace);
        let quotas = world.watched_objects().lister(&self.quotas);
        quotas.in_namespace(namespace).find_map(|(info, quota)| {
            let is_exceeded = |(name, hard): (&Str, &Quantity)| match name.as_str() {
                "pods" => used.pods + 1 > hard.value(),
                "cpu" => used.amounts.cpu_milli + requests.cpu_milli > hard.milli_value(),
                // A pod that requests nothing of it is not limited.
                other => match requests.amount(other) {
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
        let exceeded = self.exceeded(args.world, args.pod);
        exceeded.map_or(QueueingHint::Queue, |_| QueueingHint::Skip)
    }
}

impl Filter for Plugin {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        self.exceeded(cx.world, pod).map_or(Ok(()), |why| Err(Rejection::unschedulable(why)))
    }
}

impl Incremental for Plugin {
    /// What is computed of the nodes is the same for all pods.
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Evaluator(Box::new(Evaluator(self.clone())))
    }
}

/// The result is the same on all nodes, and computed in every decision.
struct Evaluator(Plugin);

impl PluginEvaluator for Evaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { pod: true, ..ResultDependencies::default() }
    }

    fn accepts_pod(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> bool {
        let Evaluator(plugin) = self;
        plugin.exceeded(cx.world, pod).is_none()
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
