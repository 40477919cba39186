//! Configurations of versions before v1, as the same configuration in v1.
//!
//! A file of an older version becomes the JSON form of a v1 file with the same meaning, which is then checked as any other. Versions
//! without `multiPoint` get lists of plugins for every extension point. Errors have the paths of the file ([`Origins`]).

mod arguments;
mod default_plugins;
mod origins;
mod plugin_sets;

use loadmaster_framework::{FieldError, Registry};
use serde_json::{Map, Value, json};

use crate::annotated::comment_on;
use crate::decode::take_text;
use crate::extension_point::ExtensionPoint;
use crate::gates::AllFeatureGates;
use crate::legacy_extenders::LegacyExtenders;
use crate::version::ConfigVersion;

pub(crate) use origins::{Origins, Source};
pub(crate) use plugin_sets::{Entry, PluginLists};

pub(crate) const NODE_RESOURCES_FIT: &str = "NodeResourcesFit";

/// The plugins that score resources and that NodeResourcesFit replaced in v1beta2.
pub(crate) const RESOURCE_SCORES: &[&str] =
    &["NodeResourcesLeastAllocated", "NodeResourcesMostAllocated", "RequestedToCapacityRatio"];

/// Plugins that v1beta2 and later versions do not have.
pub(crate) const REMOVED_IN_V1BETA2: &[&str] = &[
    "NodeLabel",
    "ServiceAffinity",
    "NodePreferAvoidPods",
    "NodeResourcesLeastAllocated",
    "NodeResourcesMostAllocated",
    "RequestedToCapacityRatio",
];

const V1ALPHA1: ConfigVersion = ConfigVersion::V1Alpha1;
const V1ALPHA2: ConfigVersion = ConfigVersion::V1Alpha2;
const V1BETA1: ConfigVersion = ConfigVersion::V1Beta1;
const V1BETA2: ConfigVersion = ConfigVersion::V1Beta2;
const V1BETA3: ConfigVersion = ConfigVersion::V1Beta3;

/// The fields of a configuration before v1, with the versions that have them.
const FIELDS: &[(&str, &[ConfigVersion])] = &[
    ("schedulerName", &[V1ALPHA1]),
    ("algorithmSource", &[V1ALPHA1]),
    ("hardPodAffinitySymmetricWeight", &[V1ALPHA1]),
    ("parallelism", &[V1BETA1, V1BETA2, V1BETA3]),
    ("leaderElection", &[V1ALPHA1, V1ALPHA2, V1BETA1, V1BETA2, V1BETA3]),
    ("clientConnection", &[V1ALPHA1, V1ALPHA2, V1BETA1, V1BETA2, V1BETA3]),
    ("healthzBindAddress", &[V1ALPHA1, V1ALPHA2, V1BETA1, V1BETA2]),
    ("metricsBindAddress", &[V1ALPHA1, V1ALPHA2, V1BETA1, V1BETA2]),
    ("enableProfiling", &[V1ALPHA1, V1ALPHA2, V1BETA1, V1BETA2, V1BETA3]),
    ("enableContentionProfiling", &[V1ALPHA1, V1ALPHA2, V1BETA1, V1BETA2, V1BETA3]),
    ("disablePreemption", &[V1ALPHA1, V1ALPHA2]),
    ("percentageOfNodesToScore", &[V1ALPHA1, V1ALPHA2, V1BETA1, V1BETA2, V1BETA3]),
    ("bindTimeoutSeconds", &[V1ALPHA1, V1ALPHA2]),
    ("podInitialBackoffSeconds", &[V1ALPHA1, V1ALPHA2, V1BETA1, V1BETA2, V1BETA3]),
    ("podMaxBackoffSeconds", &[V1ALPHA1, V1ALPHA2, V1BETA1, V1BETA2, V1BETA3]),
    ("plugins", &[V1ALPHA1]),
    ("pluginConfig", &[V1ALPHA1]),
    ("profiles", &[V1ALPHA2, V1BETA1, V1BETA2, V1BETA3]),
    ("extenders", &[V1ALPHA2, V1BETA1, V1BETA2, V1BETA3]),
];

/// A configuration of any version, as one of v1.
#[derive(Debug)]
pub(crate) struct Converted {
    /// The version of the file.
    pub version: ConfigVersion,
    /// The v1 form without `apiVersion` and `kind`, with comments on what changed.
    pub value: Value,
    /// Where its fields stand in the file.
    pub origins: Origins,
    /// What the file says and has no effect; one sentence each.
    pub notes: Vec<String>,
    /// Errors, with paths in their documents.
    pub errors: Vec<(Source, FieldError)>,
}

/// The v1 form of a configuration; `apiVersion` and `kind` have been taken from it. With `has_policy`, the plugins come from a Policy,
/// and the file must not name any.
pub(crate) fn to_v1(
    version: ConfigVersion,
    written: Value,
    has_policy: bool,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Converted {
    let (origins, notes) = (Origins::default(), Vec::new());
    if version == ConfigVersion::V1 {
        return Converted { version, value: written, origins, notes, errors: Vec::new() };
    }
    let errors = Vec::new();
    let mut converter = Converter { version, registry, gates, origins, notes, errors };
    let value = converter.configuration(written, has_policy);
    let Converter { origins, notes, errors, .. } = converter;
    let errors = errors.into_iter().map(|error| (Source::Configuration, error)).collect();
    Converted { version, value, origins, notes, errors }
}

/// Converts one configuration.
struct Converter<'a> {
    version: ConfigVersion,
    registry: &'a Registry,
    gates: &'a AllFeatureGates,
    origins: Origins,
    notes: Vec<String>,
    errors: Vec<FieldError>,
}

/// A profile that is being converted, with what stood outside of profiles in v1alpha1 and v1alpha2.
#[derive(Clone, Debug, Default)]
struct Profile<'a> {
    /// Its path in the v1 form.
    path: String,
    /// Its path in the file; empty in v1alpha1, in which the configuration is the profile.
    origin: String,
    /// `disablePreemption`.
    is_preemption_disabled: bool,
    /// The algorithm provider ClusterAutoscalerProvider.
    prefers_used_nodes: bool,
    /// Arguments that were fields of the configuration: plugin, argument, value, field.
    arguments: &'a [(&'static str, &'static str, Value, &'static str)],
}

impl Profile<'_> {
    /// The path of a field in the file.
    fn origin(&self, field: &str) -> String {
        if self.origin.is_empty() { field.to_owned() } else { format!("{}.{field}", self.origin) }
    }
}

impl Converter<'_> {
    fn configuration(&mut self, written: Value, has_policy: bool) -> Value {
        let mut old = self.object("", Some(written));
        let fields = FIELDS.iter().filter(|(_, versions)| versions.contains(&self.version));
        let fields: Vec<&str> = fields.map(|(field, _)| *field).collect();
        self.reject_unknown_fields("", &mut old, &fields);
        self.bind_addresses(&mut old);
        let arguments = self.arguments_outside_of_profiles(&mut old);
        let profile = Profile {
            is_preemption_disabled: self.flag(&mut old, "disablePreemption"),
            prefers_used_nodes: self.algorithm_provider(&mut old),
            arguments: &arguments,
            ..Profile::default()
        };
        let profiles = if self.version == V1ALPHA1 {
            let fields = ["schedulerName", "plugins", "pluginConfig"];
            let of_profile: Map<String, Value> = fields
                .into_iter()
                .filter_map(|field| Some((field.to_owned(), old.remove(field)?)))
                .collect();
            self.check_no_plugins(&of_profile, has_policy);
            vec![Value::Object(of_profile)]
        } else {
            match old.remove("profiles") {
                Some(Value::Array(profiles)) if !profiles.is_empty() => profiles,
                None | Some(Value::Array(_)) => vec![json!({})],
                Some(other) => {
                    old.insert("profiles".to_owned(), other);
                    Vec::new()
                }
            }
        };
        if !profiles.is_empty() {
            let is_v1alpha1 = self.version == V1ALPHA1;
            let profiles = profiles.into_iter().enumerate().map(|(idx, written)| {
                let path = format!("profiles[{idx}]");
                let origin = if is_v1alpha1 { String::new() } else { path.clone() };
                if is_v1alpha1 {
                    self.origins.insert(&path, "");
                }
                self.profile(&Profile { path, origin, ..profile.clone() }, written)
            });
            old.insert("profiles".to_owned(), profiles.collect());
        }
        self.leader_election(&mut old);
        if self.version == V1ALPHA2 {
            self.extenders(&mut old);
        }
        Value::Object(old)
    }

    /// Extenders of v1alpha2 have the fields of a Policy's. What is not a list of objects stays as it is, for the error.
    fn extenders(&mut self, old: &mut Map<String, Value>) {
        let Some(Value::Array(written)) = old.get_mut("extenders") else { return };
        if !written.iter().all(Value::is_object) {
            return;
        }
        let written = std::mem::take(written).into_iter().filter_map(|extender| match extender {
            Value::Object(extender) => Some(extender),
            _ => None,
        });
        let mut legacy = LegacyExtenders::default();
        let converted = legacy.convert(written.collect());
        old.insert("extenders".to_owned(), converted);
        self.notes.extend(legacy.notes);
        self.errors.extend(legacy.errors);
        for (path, origin) in legacy.origins {
            self.origins.insert(path, origin);
        }
    }

    fn profile(&mut self, profile: &Profile<'_>, written: Value) -> Value {
        let mut new = self.object(&profile.origin, Some(written));
        if self.version != V1ALPHA1 {
            let fields = ["schedulerName", "plugins", "pluginConfig"];
            self.reject_unknown_fields(&profile.origin, &mut new, &fields);
        }
        let plugin_config = new.remove("pluginConfig");
        if let Some(plugin_config) = self.plugin_config(profile, plugin_config) {
            new.insert("pluginConfig".to_owned(), plugin_config);
        }
        if self.version == V1BETA3 {
            let fields: Vec<&str> = ExtensionPoint::ALL
                .into_iter()
                .filter(|point| *point <= ExtensionPoint::PostBind)
                .map(ExtensionPoint::field_name)
                .chain(["multiPoint"])
                .collect();
            if let Some(Value::Object(plugins)) = new.get_mut("plugins") {
                let mut plugins = std::mem::take(plugins);
                let path = profile.origin("plugins");
                self.reject_unknown_fields(&path, &mut plugins, &fields);
                self.check_removed_names(&path, &plugins);
                new.insert("plugins".to_owned(), Value::Object(plugins));
            }
            return Value::Object(new);
        }
        let written = new.remove("plugins");
        let lists = self.plugin_lists(profile, written);
        let path = format!("{}.plugins", profile.path);
        new.insert("plugins".to_owned(), lists.into_v1(&path, self.gates, &mut self.origins));
        Value::Object(new)
    }

    /// Reports plugins of v1beta3 that v1beta2 removed.
    fn check_removed_names(&mut self, path: &str, plugins: &Map<String, Value>) {
        for (field, set) in plugins {
            for (idx, plugin) in set["enabled"].as_array().into_iter().flatten().enumerate() {
                let path = format!("{path}.{field}.enabled[{idx}]");
                self.check_removed_plugin(&path, plugin["name"].as_str().unwrap_or_default());
            }
        }
    }

    /// A Policy and plugins exclude each other.
    fn check_no_plugins(&mut self, profile: &Map<String, Value>, has_policy: bool) {
        let given = [("plugins", "Plugins"), ("pluginConfig", "PluginConfig")];
        for (field, name) in given.into_iter().filter(|(field, _)| profile.contains_key(*field)) {
            if has_policy {
                let why = format!("using {name} and Policy simultaneously is not supported");
                self.errors.push(FieldError::forbidden(field, why));
            }
        }
    }

    /// The addresses of insecure serving, which was removed.
    fn bind_addresses(&mut self, old: &mut Map<String, Value>) {
        for field in ["healthzBindAddress", "metricsBindAddress"] {
            let address = match take_text(old, field) {
                Ok(address) => address,
                Err(error) => {
                    self.errors.push(error);
                    continue;
                }
            };
            if address.is_empty() {
                continue;
            }
            if self.version == V1BETA2 && !is_address_with_port_0(&address) {
                self.errors.push(FieldError::invalid(
                    field,
                    format_args!("{address:?}"),
                    "must be empty or with an explicit 0 port",
                ));
                continue;
            }
            self.notes.push(format!(
                "{field} has no effect: insecure serving was removed; use --bind-address and --secure-port"
            ));
        }
    }

    /// The lock's name and kind.
    fn leader_election(&mut self, new: &mut Map<String, Value>) {
        let Some(Value::Object(it)) = new.get_mut("leaderElection") else { return };
        let mut comments = Vec::new();
        if self.version == V1ALPHA1 {
            for (old, current) in
                [("lockObjectName", "resourceName"), ("lockObjectNamespace", "resourceNamespace")]
            {
                let path = format!("leaderElection.{current}");
                match (it.remove(old), it.get(current)) {
                    (Some(lock), None) => {
                        self.origins.insert(&path, format!("leaderElection.{old}"));
                        it.insert(current.to_owned(), lock);
                        comments.push((current, format!("was {old}")));
                    }
                    (Some(lock), Some(known)) if lock != *known => {
                        let why = format!(
                            "{current} and {old} are both set and do not match, {current}: {known}"
                        );
                        let path = format!("leaderElection.{old}");
                        self.errors.push(FieldError::invalid(path, lock, why));
                    }
                    _ => {}
                }
            }
        }
        const LOCKS: &[&str] = &["endpoints", "configmaps", "endpointsleases", "configmapsleases"];
        let lock = it.get("resourceLock").and_then(Value::as_str).unwrap_or_default();
        if LOCKS.contains(&lock) {
            let text = format!("was {lock:?}: only Leases are used as locks today");
            self.notes.push(format!("leaderElection.resourceLock {text}"));
            comments.push(("resourceLock", text));
            it.insert("resourceLock".to_owned(), "leases".into());
        }
        for (field, text) in comments {
            comment_on(it, field, text);
        }
    }

    /// Whether the algorithm provider is ClusterAutoscalerProvider.
    fn algorithm_provider(&mut self, old: &mut Map<String, Value>) -> bool {
        let Some(source) = old.remove("algorithmSource") else { return false };
        let mut source = self.object("algorithmSource", Some(source));
        self.reject_unknown_fields("algorithmSource", &mut source, &["policy", "provider"]);
        let provider = take_text(&mut source, "provider")
            .map_err(|error| self.errors.push(error.with_path_prefix("algorithmSource")));
        match provider.unwrap_or_default().as_str() {
            "" | "DefaultProvider" => false,
            "ClusterAutoscalerProvider" => true,
            other => {
                let known = ["DefaultProvider", "ClusterAutoscalerProvider"];
                self.errors.push(FieldError {
                    path: "algorithmSource.provider".to_owned(),
                    text: format!(
                        "algorithm provider {other:?} is not registered{}",
                        crate::suggestion::did_you_mean(other, known)
                    ),
                });
                false
            }
        }
    }

    /// Plugin arguments that were fields of the configuration.
    fn arguments_outside_of_profiles(
        &mut self,
        old: &mut Map<String, Value>,
    ) -> Vec<(&'static str, &'static str, Value, &'static str)> {
        let mut arguments = Vec::new();
        for (field, plugin, argument) in [
            ("bindTimeoutSeconds", "VolumeBinding", "bindTimeoutSeconds"),
            ("hardPodAffinitySymmetricWeight", "InterPodAffinity", "hardPodAffinityWeight"),
        ] {
            if let Some(value) = old.remove(field) {
                arguments.push((plugin, argument, value, field));
            }
        }
        arguments
    }

    /// Removes a boolean field.
    fn flag(&mut self, object: &mut Map<String, Value>, field: &str) -> bool {
        match object.remove(field) {
            None => false,
            Some(Value::Bool(flag)) => flag,
            Some(other) => {
                self.errors.push(FieldError::invalid(field, other, "must be a boolean"));
                false
            }
        }
    }

    /// The value as an object; an error if it is none.
    fn object(&mut self, path: &str, value: Option<Value>) -> Map<String, Value> {
        match value {
            None => Map::new(),
            Some(Value::Object(object)) => object,
            Some(other) => {
                self.errors.push(FieldError::invalid(path, other, "must be an object"));
                Map::new()
            }
        }
    }

    /// Reports and removes the fields that are not among `known`.
    fn reject_unknown_fields(
        &mut self,
        path: &str,
        object: &mut Map<String, Value>,
        known: &[&str],
    ) {
        let unknown: Vec<String> =
            object.keys().filter(|field| !known.contains(&field.as_str())).cloned().collect();
        for field in unknown {
            object.remove(&field);
            let error = crate::decode::unknown_field(&field, known);
            self.errors.push(error.with_path_prefix(path));
        }
    }
}

/// Whether this is an IP address with port 0.
fn is_address_with_port_0(address: &str) -> bool {
    address.parse::<std::net::SocketAddr>().is_ok_and(|address| address.port() == 0)
}
