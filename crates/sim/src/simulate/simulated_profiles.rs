//! The profiles of the simulated scheduler: as in a KubeSchedulerConfiguration, with the plugin that reports what is reserved.

use std::sync::Arc;

use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_engine::Profile;
use loadmaster_framework::{FeatureGates, Registry};
use loadmaster_scheduler_plugins::{capacity_scheduling, coscheduling, with_scheduler_plugins};
use serde_json::{Value, json};

use super::reporting_plugin;
use loadmaster_engine::world_loader::{DefaultProfileError, build_profiles};

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
    profile: Value,
    extenders: Value,
) -> Result<(Profile, FeatureGates), DefaultProfileError> {
    let gates = AllFeatureGates::default().framework_gates();
    Ok((simulated_profiles(registry, vec![profile], extenders)?.swap_remove(0), gates))
}

/// The profiles of a configuration, with these extenders.
pub(super) fn simulated_profiles(
    registry: &Registry,
    mut profiles: Vec<Value>,
    extenders: Value,
) -> Result<Vec<Profile>, DefaultProfileError> {
    profiles.iter_mut().for_each(reporting_plugin::enable);
    let registry = reporting_plugin::with_reporting_plugin(registry);
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": profiles,
        "extenders": extenders,
    });
    let gates = AllFeatureGates::default();
    let checked = check_configuration_value(config, &registry, &gates)
        .map_err(DefaultProfileError::Config)?;
    Ok(build_profiles(&checked, &gates.framework_gates()))
}

/// Profiles with plugins of scheduler-plugins.
#[derive(Clone)]
pub struct SchedulerPluginsProfiles {
    /// With Coscheduling.
    pub gangs: Arc<Profile>,
    /// With CapacityScheduling, which preempts pods instead of DefaultPreemption.
    pub quotas: Arc<Profile>,
    /// With both.
    pub gangs_and_quotas: Arc<Profile>,
}

impl SchedulerPluginsProfiles {
    /// The default profile of the registry with these plugins, too.
    ///
    /// # Errors
    ///
    /// When the registry lacks a plugin of the default configuration.
    pub fn new(registry: &Registry) -> Result<SchedulerPluginsProfiles, DefaultProfileError> {
        let has_them = registry.get(coscheduling::NAME).is_some();
        let registry = match has_them {
            true => registry.clone(),
            false => with_scheduler_plugins(registry.clone()),
        };
        let profile = |has_gangs: bool, has_quotas: bool| {
            let (gangs, quotas) =
                (json!({"name": coscheduling::NAME}), json!({"name": capacity_scheduling::NAME}));
            let mut plugins = json!({});
            let enabled = [has_quotas.then_some(quotas), has_gangs.then(|| gangs.clone())];
            plugins["multiPoint"]["enabled"] = enabled.into_iter().flatten().collect();
            if has_gangs {
                plugins["queueSort"] = json!({"enabled": [gangs], "disabled": [{"name": "*"}]});
            }
            if has_quotas {
                plugins["postFilter"]["disabled"] = json!([{"name": "DefaultPreemption"}]);
            }
            let profile = simulated_profile(&registry, json!({"plugins": plugins}), json!([]))?.0;
            Ok(Arc::new(profile))
        };
        Ok(SchedulerPluginsProfiles {
            gangs: profile(true, false)?,
            quotas: profile(false, true)?,
            gangs_and_quotas: profile(true, true)?,
        })
    }

    /// The profile for a run with or without gangs and quotas.
    pub(super) fn profile(&self, has_gangs: bool, has_quotas: bool) -> Option<&Arc<Profile>> {
        match (has_gangs, has_quotas) {
            (false, false) => None,
            (true, false) => Some(&self.gangs),
            (false, true) => Some(&self.quotas),
            (true, true) => Some(&self.gangs_and_quotas),
        }
    }
}
