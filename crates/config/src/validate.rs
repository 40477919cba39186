//! Validation of a complete configuration, with upstream's rules and messages; reports all errors.

use loadmaster_api::resource_names::is_extended_resource_name;
use loadmaster_api::selector::label_key_errors;
use loadmaster_framework::FieldError;

use crate::extension_point::ExtensionPoint;
use crate::v1::{
    API_VERSION, ClientConnection, Extender, LeaderElection, PluginConfig, SchedulerConfiguration,
    SchedulerProfile,
};
use crate::volume_limits;

/// The only supported lock kind.
const RESOURCE_LOCK: &str = "leases";

/// All errors of a configuration, except those of plugin arguments and of the expansion of plugin
/// sets. With `is_old`, it was written in an older version, which had plugins that v1 rejects.
pub(crate) fn validate(config: &SchedulerConfiguration, is_old: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    client_connection(&config.client_connection, &mut errors);
    leader_election(&config.leader_election, &mut errors);
    if config.parallelism <= 0 {
        let expected = "should be an integer value greater than zero";
        errors.push(FieldError::invalid("parallelism", config.parallelism, expected));
    }
    for (i, profile) in config.profiles.iter().enumerate() {
        let path = format!("profiles[{i}]");
        validate_profile(&path, profile, is_old, &mut errors);
        if config.profiles[..i].iter().any(|other| other.scheduler_name == profile.scheduler_name) {
            errors.push(FieldError::duplicate(
                format!("{path}.schedulerName"),
                &profile.scheduler_name,
            ));
        }
    }
    common_queue_sort(&config.profiles, &mut errors);
    percentage(
        "percentageOfNodesToScore".to_owned(),
        config.percentage_of_nodes_to_score,
        &mut errors,
    );
    let (initial, max) = (config.pod_initial_backoff_seconds, config.pod_max_backoff_seconds);
    if initial <= 0 {
        errors.push(FieldError::invalid(
            "podInitialBackoffSeconds",
            initial,
            "must be greater than 0",
        ));
    }
    if max < initial {
        let expected = "must be greater than or equal to PodInitialBackoffSeconds";
        errors.push(FieldError::invalid("podMaxBackoffSeconds", max, expected));
    }
    extenders(&config.extenders, &mut errors);
    errors
}

/// `path: Required value`, without a detail.
fn required(path: impl Into<String>) -> FieldError {
    FieldError { path: path.into(), text: "Required value".to_owned() }
}

/// A text as Go's `%q` shows it in validation errors.
fn quoted(text: impl std::fmt::Display) -> String {
    format!("\"{text}\"")
}

fn client_connection(it: &ClientConnection, errors: &mut Vec<FieldError>) {
    if it.burst < 0 {
        errors.push(FieldError::invalid(
            "clientConnection.burst",
            it.burst,
            "must be non-negative",
        ));
    }
}

fn leader_election(it: &LeaderElection, errors: &mut Vec<FieldError>) {
    if !it.leader_elect {
        return;
    }
    let path = |field: &str| format!("leaderElection.{field}");
    for (field, duration) in [
        ("leaseDuration", it.lease_duration),
        ("renewDeadline", it.renew_deadline),
        ("retryPeriod", it.retry_period),
    ] {
        if duration.as_nanos() <= 0 {
            errors.push(FieldError::invalid(
                path(field),
                quoted(duration),
                "must be greater than zero",
            ));
        }
    }
    if it.lease_duration <= it.renew_deadline {
        // Upstream shows this value, too.
        let value = quoted(it.renew_deadline);
        errors.push(FieldError::invalid(
            path("leaseDuration"),
            value,
            "must be greater than `RenewDeadline`",
        ));
    }
    if it.resource_lock != RESOURCE_LOCK {
        let expected = "resourceLock value must be \"leases\"";
        errors.push(FieldError::invalid(path("resourceLock"), quoted(&it.resource_lock), expected));
    }
}

fn percentage(path: String, value: i32, errors: &mut Vec<FieldError>) {
    if !(0..=100).contains(&value) {
        errors.push(FieldError::invalid(path, value, "not in valid range [0-100]"));
    }
}

fn validate_profile(
    path: &str,
    profile: &SchedulerProfile,
    is_old: bool,
    errors: &mut Vec<FieldError>,
) {
    if profile.scheduler_name.is_empty() {
        errors.push(required(format!("{path}.schedulerName")));
    }
    if let Some(value) = profile.percentage_of_nodes_to_score {
        percentage(format!("{path}.percentageOfNodesToScore"), value, errors);
    }
    // In multiPoint and at the placement extension points, removed plugins fail as unknown plugins.
    for point in ExtensionPoint::ALL.into_iter().filter(|point| *point <= ExtensionPoint::PostBind)
    {
        for (i, plugin) in profile.plugins.at_extension_point(point).enabled.iter().enumerate() {
            let path = format!("{path}.plugins.{}.enabled[{i}]", point.field_name());
            if !is_old {
                removed_plugin(path, &plugin.name, errors);
            }
        }
    }
    for (i, PluginConfig { name, .. }) in profile.plugin_config.iter().enumerate() {
        let path = format!("{path}.pluginConfig[{i}]");
        if profile.plugin_config[..i].iter().any(|other| other.name == *name) {
            errors.push(FieldError::duplicate(path.clone(), name));
        }
        if !is_old {
            removed_plugin(path, name, errors);
        }
    }
}

fn removed_plugin(path: String, name: &str, errors: &mut Vec<FieldError>) {
    if volume_limits::PLUGINS.contains(&name) {
        let why = format!(
            "was invalid in version \"v1\" (KubeSchedulerConfiguration is version {API_VERSION:?})"
        );
        errors.push(FieldError::invalid(path, quoted(name), why));
    }
}

/// All profiles share one queue, so they need the same queue sort plugin.
fn common_queue_sort(profiles: &[SchedulerProfile], errors: &mut Vec<FieldError>) {
    let Some((first, others)) = profiles.split_first() else { return };
    let canon = &first.plugins.queue_sort;
    if canon.enabled.len() > 1 {
        let (path, expected) =
            ("profiles[0].plugins.queueSort.enabled", "only one queue sort plugin can be enabled");
        errors.push(FieldError::invalid(path, canon.enabled.len(), expected));
    }
    let name = canon.enabled.first().map(|plugin| plugin.name.as_str());
    let args_of = |profile: &'_ SchedulerProfile| {
        profile.plugin_config.iter().position(|config| Some(config.name.as_str()) == name)
    };
    let canon_args = args_of(first).map(|idx| &first.plugin_config[idx].args);
    for (i, profile) in others.iter().enumerate() {
        let path = format!("profiles[{}]", i + 1);
        if profile.plugins.queue_sort != *canon {
            let value = serde_json::to_string(&profile.plugins.queue_sort).unwrap_or_default();
            let path = format!("{path}.plugins.queueSort");
            errors.push(FieldError::invalid(path, value, "must be the same for all profiles"));
        }
        if let Some(idx) =
            args_of(profile).filter(|idx| Some(&profile.plugin_config[*idx].args) != canon_args)
        {
            let path = format!("{path}.pluginConfig[{idx}].args");
            let value = &profile.plugin_config[idx].args;
            errors.push(FieldError::invalid(
                path,
                value,
                "queueSort must be the same for all profiles",
            ));
        }
    }
}

fn extenders(extenders: &[Extender], errors: &mut Vec<FieldError>) {
    let mut managed: Vec<&str> = Vec::new();
    for (i, extender) in extenders.iter().enumerate() {
        let path = format!("extenders[{i}]");
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            let expected = "must have a positive weight applied to it";
            errors.push(FieldError::invalid(format!("{path}.weight"), extender.weight, expected));
        }
        for (j, resource) in extender.managed_resources.iter().enumerate() {
            let path = format!("{path}.managedResources[{j}].name");
            for why in extended_resource_complaints(&resource.name) {
                errors.push(FieldError::invalid(path.clone(), quoted(&resource.name), why));
            }
            if managed.contains(&resource.name.as_str()) {
                let expected = "duplicate extender managed resource name";
                errors.push(FieldError::invalid(path, quoted(&resource.name), expected));
            }
            managed.push(&resource.name);
        }
    }
    let n_binders = extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count();
    if n_binders > 1 {
        let value = quoted(format_args!("found {n_binders} extenders implementing bind"));
        errors.push(FieldError::invalid(
            "extenders",
            value,
            "only one extender can implement bind",
        ));
    }
}

/// Why a name is not a valid name of an extended resource: such a name has a domain other than
/// Kubernetes' own.
fn extended_resource_complaints(name: &str) -> Vec<String> {
    let complaints = label_key_errors(name);
    if complaints.is_empty() && !is_extended_resource_name(name) {
        return vec!["is an invalid extended resource name".to_owned()];
    }
    complaints
}
