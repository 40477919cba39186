//! Measures scheduling decisions per second, in process and on one thread: taking in the pod, the scheduling decision and assuming the pod;
//! the queue, API calls and effects are not part of it.
//!
//! `loadmaster-perf [SUBSTRING]` runs the workloads whose name or shape contains the text. `loadmaster-perf volumes` measures pods with claims;
//! `loadmaster-perf volume-memory` the memory of volumes and claims; `loadmaster-perf preemption` pods that evict others;
//! `loadmaster-perf quotas` pods in namespaces with quotas; `loadmaster-perf gangs` PodGroups with Coscheduling; `loadmaster-perf extender` the
//! overhead of calling an extender.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

mod decisions;
mod extender;
mod gangs;
mod pod_source;
mod preemption;
mod quotas;
mod timed_engine;
mod volumes;
mod workload;

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_engine::Profile;
use loadmaster_framework::Registry;
use serde_json::{Value, json};

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

/// The profile of a configuration with these extenders.
fn profile_of(registry: &Registry, profile: Value, extenders: Value) -> Result<Arc<Profile>> {
    let gates = AllFeatureGates::default();
    let config = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration", "profiles": [profile], "extenders": extenders});
    let checked = check_configuration_value(config, registry, &gates);
    let checked = checked.map_err(|errors| anyhow!("the configuration: {errors:?}"))?;
    let profile = checked.profiles.first().context("a configuration without a profile")?;
    Ok(Arc::new(Profile::new(profile, &gates.framework_gates())))
}
