//! Orders the queue by priority, then QoS class (Guaranteed, Burstable, BestEffort), then age.

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster::SchedulerCommand;
use loadmaster::framework::*;

const DEF: PluginDef = PluginDef { name: "QosOrder", build, args: None };

struct QosOrder;

fn build(points: &mut Points, _: &loadmaster::serde_json::Value) -> Result<(), PluginError> {
    points.queue_sort = Some(Arc::new(QosOrder));
    Ok(())
}

impl QueueSort for QosOrder {
    fn compare(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let key = |it: &QueuedPodInfo| {
            (-i64::from(it.pod.template.priority()), class(&it.pod), it.queued)
        };
        key(a).cmp(&key(b))
    }
}

/// 0 for Guaranteed, 1 for Burstable, 2 for BestEffort, as the kubelet sees it.
fn class(pod: &PodInfo) -> u8 {
    let spec = &pod.template.spec;
    let all = || spec.containers.iter().chain(&spec.init_containers).map(|it| &it.resources);
    let counts = ["cpu", "memory"];
    let mut asked =
        all().flat_map(|it| counts.map(|name| (it.requests.get(name), it.limits.get(name))));
    match () {
        () if asked.clone().all(|(request, limit)| limit.is_some() && request == limit) => 0,
        () if asked.any(|asked| asked != (None, None)) => 1,
        () => 2,
    }
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new().with_plugin(DEF).run()
}

#[cfg(test)]
mod tests;
