//! The profiles of the simulated scheduler: as in a KubeSchedulerConfiguration, with the plugin that reports what is reserved.

use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_engine::Profile;
use loadmaster_framework::{FeatureGates, Registry};
use serde_json::{Value, json};

use super::reporting_plugin;
use crate::world_loader::{DefaultProfileError, build_profiles};

/// The default profile with these plugins.
pub(super) fn profile_with_plugins(
    registry: &Registry,
    plugins: &[&str],
) -> Result<Profile, DefaultProfileError> {
    let enabled: Vec<Value> = plugins.iter().map(|name| json!({"name": name})).collect();
    let profile = json!({"plugins": {"multiPoint": {"enabled": enabled}}});
    Ok(simulated_profile(registry, profile, json!([]))?.0)
}

/// A profile and the extenders of a configuration, with its feature gates.
pub(super) fn simulated_profile(
    registry: &Registry,
    mut profile: Value,
    extenders: Value,
) -> Result<(Profile, FeatureGates), DefaultProfileError> {
    reporting_plugin::enable(&mut profile);
    let registry = reporting_plugin::with_reporting_plugin(registry);
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
        "extenders": extenders,
    });
    let gates = AllFeatureGates::default();
    let checked = check_configuration_value(config, &registry, &gates)
        .map_err(DefaultProfileError::Config)?;
    let gates = gates.framework_gates();
    Ok((build_profiles(&checked, &gates).swap_remove(0), gates))
}
