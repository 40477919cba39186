//! Orders the queue by priority, then QoS class (Guaranteed, Burstable, BestEffort), then age.

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster::SchedulerCommand;
use loadmaster::framework::*;

const DEF: PluginDef = PluginDef { name: "QosOrder", build, args: None };

struct QosOrder;

fn build(
    points: &mut ExtensionPoints,
    _: &loadmaster::serde_json::Value,
) -> Result<(), PluginError> {
    points.queue_sort = Some(Arc::new(QosOrder));
    Ok(())
}

impl QueueSort for QosOrder {
    fn compare(&self, _: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let key = |it: &QueuedPodInfo| {
            (-i64::from(it.pod.template.priority()), qos_class(&it.pod), it.queued)
        };
        key(a).cmp(&key(b))
    }
}

/// 0 for Guaranteed, 1 for Burstable, 2 for BestEffort, as the kubelet computes it: a quantity of zero counts as not set.
fn qos_class(pod: &PodInfo) -> u8 {
    let spec = &pod.template.spec;
    let containers = spec.containers.iter().chain(&spec.init_containers).map(|it| &it.resources);
    let all: Vec<_> = spec.resources.as_ref().map_or(containers.collect(), |it| vec![it]);
    let amounts = all.iter().flat_map(|it| {
        ["cpu", "memory"].map(|name| {
            [&it.requests, &it.limits].map(|list| list.get(name).filter(|it| !it.is_zero()))
        })
    });
    match amounts.collect::<Vec<_>>() {
        all if all.iter().all(|[request, limit]| limit.is_some() && request == limit) => 0,
        all if all.iter().any(|amounts| *amounts != [None, None]) => 1,
        _ => 2,
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
