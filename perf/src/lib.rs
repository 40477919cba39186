//! The workloads of the benchmarks, for the programs that measure them: `loadmaster-perf` measures rates, `loadmaster-counts` counts
//! allocations and instructions.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

pub mod counted;
pub mod data_items;
pub mod decisions;
pub mod extender;
pub mod gangs;
pub mod node_cost;
pub mod node_cost_plot;
mod pod_source;
pub mod preemption;
pub mod quotas;
pub mod scheduler_perf;
mod timed_engine;
pub mod volumes;
pub mod whole_engine;
mod workload;

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_engine::Profile;
use loadmaster_framework::Registry;
use serde_json::{Value, json};

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
