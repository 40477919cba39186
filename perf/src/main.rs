//! Measures scheduling decisions per second, in process and on one thread: taking in the pod, the scheduling decision and assuming the pod;
//! the queue, API calls and effects are not part of it.
//!
//! `loadmaster-perf [SUBSTRING]` runs the workloads whose name or shape contains the text. `loadmaster-perf volumes` measures pods with claims;
//! `loadmaster-perf volume-memory` the memory of volumes and claims; `loadmaster-perf preemption` pods that evict others;
//! `loadmaster-perf quotas` pods in namespaces with quotas; `loadmaster-perf gangs` PodGroups with Coscheduling; `loadmaster-perf extender` the
//! overhead of calling an extender.

use anyhow::Result;
use loadmaster_perf::{decisions, extender, gangs, preemption, quotas, volumes};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let wanted = args.next().unwrap_or_default();
    match wanted.as_str() {
        extender::SERVE => extender::serve(),
        "extender" => extender::measure(),
        "gangs" => gangs::measure(),
        "preemption" => preemption::measure(),
        "quotas" => quotas::measure(),
        "volumes" => volumes::measure(),
        "volume-memory" => volumes::measure_memory(),
        _ => decisions::measure(&wanted),
    }
}
