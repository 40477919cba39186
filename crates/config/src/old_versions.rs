//! Configurations of versions before v1, as the same configuration in v1.
//!
//! A file of an older version becomes the JSON form of a v1 file with the same meaning, which is then checked as any other. Versions
//! without `multiPoint` get lists of plugins for every extension point. Errors have the paths of the file ([`Origins`]).

mod arguments;
mod default_plugins;
mod plugin_sets;

use loadmaster_framework::{FieldError, Registry};
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Map, Value, json};

use crate::annotated::comment_on;
use crate::decode::take_text;
use crate::extension_point::ExtensionPoint;
use crate::findings::Findings;
use crate::gates::AllFeatureGates;
use crate::legacy_extenders::convert_extenders;
use crate::version::ConfigVersion;

pub(crate) use plugin_sets::{Entry, PluginLists};

pub(crate) const NODE_RESOURCES_FIT: &str = "NodeResourcesFit";

/// The plugins that score resources and that NodeResourcesFit replaced in v1beta2.
pub(crate) const RESOURCE_SCORES: &[&str] =
    &["NodeResourcesLeastAllocated", "NodeResourcesMostAllocated", "RequestedToCapacityRatio"];

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

/// The fields of a profile before v1.
const PROFILE_FIELDS: &[&str] = &["schedulerName", "plugins", "pluginConfig"];

/// A configuration of an older version, as one of v1.
#[derive(Debug)]
pub(crate) struct ConvertedVersion {
    /// The v1 form without `apiVersion` and `kind`, with comments on what changed.
    pub value: Value,
    /// `disablePreemption` is set.
    pub is_preemption_disabled: bool,
    /// Origins, notes and errors.
    pub findings: Findings,
}

/// The v1 form of a configuration; `apiVersion` and `kind` have been taken from it. With `has_policy`, the plugins come from a Policy,
/// and the file must not name any.
pub(crate) fn to_v1(
    version: ConfigVersion,
    written: Value,
    has_policy: bool,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> ConvertedVersion {
    let findings = Findings::default();
    if version == ConfigVersion::V1 {
        return ConvertedVersion { value: written, is_preemption_disabled: false, findings };
    }
    let mut converter = Converter { version, registry, gates, findings };
    let (value, is_preemption_disabled) = converter.configuration(written, has_policy);
    ConvertedVersion { value, is_preemption_disabled, findings: converter.findings }
}

/// Converts one configuration.
struct Converter<'a> {
    version: ConfigVersion,
    registry: &'a Registry,
    gates: &'a AllFeatureGates,
    findings: Findings,
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
    /// The v1 form, and whether `disablePreemption` is set.
    fn configuration(&mut self, written: Value, has_policy: bool) -> (Value, bool) {
        let mut old = self.object("", Some(written));
        let fields = FIELDS.iter().filter(|(_, versions)| versions.contains(&self.version));
        let fields: Vec<&str> = fields.map(|(field, _)| *field).collect();
        self.retain_known_fields("", &mut old, &fields);
        self.bind_addresses(&mut old);
        let arguments = self.arguments_outside_of_profiles(&mut old);
        let profile = Profile {
            is_preemption_disabled: self.flag(&mut old, "disablePreemption"),
            prefers_used_nodes: self.algorithm_provider(&mut old),
            arguments: &arguments,
            ..Profile::default()
        };
        let profiles = if self.version == V1ALPHA1 {
            let of_profile: Map<String, Value> = PROFILE_FIELDS
                .iter()
                .filter_map(|field| Some(((*field).to_owned(), old.remove(*field)?)))
                .collect_by_insertion();
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
                    self.findings.origins.insert(&path, "");
                }
                self.profile(&Profile { path, origin, ..profile.clone() }, written)
            });
            old.insert("profiles".to_owned(), profiles.collect());
        }
        self.leader_election(&mut old);
        if self.version == V1ALPHA2 {
            self.extenders(&mut old);
        }
        (Value::Object(old), profile.is_preemption_disabled)
    }

    /// Extenders of v1alpha2 have the fields of a Policy's. What is not a list of objects stays as it is, for the error.
    fn extenders(&mut self, old: &mut Map<String, Value>) {
        let Some(Value::Array(written)) = old.get_mut("extenders") else { return };
        if !written.iter().all(|extender| extender.is_object() || extender.is_null()) {
            return;
        }
        let written = std::mem::take(written).into_iter().map(|extender| match extender {
            Value::Object(extender) => extender,
            _ => Map::new(),
        });
        let converted = convert_extenders(written.collect(), &mut self.findings);
        old.insert("extenders".to_owned(), converted);
    }

    fn profile(&mut self, profile: &Profile<'_>, written: Value) -> Value {
        let mut new = self.object(&profile.origin, Some(written));
        if self.version != V1ALPHA1 {
            self.retain_known_fields(&profile.origin, &mut new, PROFILE_FIELDS);
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
                self.retain_known_fields(&path, &mut plugins, &fields);
                self.check_removed_plugins(&path, &plugins);
                new.insert("plugins".to_owned(), Value::Object(plugins));
            }
            return Value::Object(new);
        }
        let written = new.remove("plugins");
        let lists = self.plugin_lists(profile, written);
        let path = format!("{}.plugins", profile.path);
        let plugins = lists.into_v1(&path, self.gates, &mut self.findings.origins);
        new.insert("plugins".to_owned(), plugins);
        Value::Object(new)
    }

    /// A Policy and plugins exclude each other.
    fn check_no_plugins(&mut self, profile: &Map<String, Value>, has_policy: bool) {
        let given = [("plugins", "Plugins"), ("pluginConfig", "PluginConfig")];
        for (field, name) in given.into_iter().filter(|(field, _)| profile.contains_key(*field)) {
            if has_policy {
                let why = format!("using {name} and Policy simultaneously is not supported");
                self.findings.errors.push(FieldError::forbidden(field, why));
            }
        }
    }

    /// The addresses of insecure serving, which was removed.
    fn bind_addresses(&mut self, old: &mut Map<String, Value>) {
        for field in ["healthzBindAddress", "metricsBindAddress"] {
            let address = match take_text(old, field) {
                Ok(address) => address,
                Err(error) => {
                    self.findings.errors.push(error);
                    continue;
                }
            };
            if address.is_empty() {
                continue;
            }
            if self.version == V1BETA2 && !is_address_with_port_0(&address) {
                self.findings.errors.push(FieldError::invalid(
                    field,
                    format_args!("{address:?}"),
                    "must be empty or with an explicit 0 port",
                ));
                continue;
            }
            self.findings.notes.push(format!(
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
                let lock = it.remove(old).filter(|lock| !lock.is_null());
                match (lock, it.get(current).filter(|known| !known.is_null())) {
                    (Some(lock), None) => {
                        self.findings.origins.insert(&path, format!("leaderElection.{old}"));
                        it.insert(current.to_owned(), lock);
                        comments.push((current, format!("was {old}")));
                    }
                    (Some(lock), Some(known)) if lock != *known => {
                        let why = format!(
                            "{current} and {old} are both set and do not match, {current}: {known}"
                        );
                        let path = format!("leaderElection.{old}");
                        self.findings.errors.push(FieldError::invalid(path, lock, why));
                    }
                    _ => {}
                }
            }
        }
        const LOCKS: &[&str] = &["endpoints", "configmaps", "endpointsleases", "configmapsleases"];
        let lock = it.get("resourceLock").and_then(Value::as_str).unwrap_or_default();
        if LOCKS.contains(&lock) {
            let text = format!("was {lock:?}: only Leases are used as locks today");
            self.findings.notes.push(format!("leaderElection.resourceLock {text}"));
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
        self.retain_known_fields("algorithmSource", &mut source, &["policy", "provider"]);
        let provider = take_text(&mut source, "provider")
            .map_err(|error| self.findings.errors.push(error.with_path_prefix("algorithmSource")));
        match provider.unwrap_or_default().as_str() {
            "" | "DefaultProvider" => false,
            "ClusterAutoscalerProvider" => true,
            other => {
                let known = ["DefaultProvider", "ClusterAutoscalerProvider"];
                self.findings.errors.push(FieldError {
                    path: "algorithmSource.provider".to_owned(),
                    text: format!(
                        "algorithm provider {other:?} is not registered{}",
                        loadmaster_stdx::did_you_mean(other, known)
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
                self.findings.errors.push(FieldError::invalid(field, other, "must be a boolean"));
                false
            }
        }
    }

    /// The value as an object, which is empty if it is absent or null; an error if it is none.
    fn object(&mut self, path: &str, value: Option<Value>) -> Map<String, Value> {
        match value {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(object)) => object,
            Some(other) => {
                self.findings.errors.push(FieldError::invalid(path, other, "must be an object"));
                Map::new()
            }
        }
    }

    /// Reports and removes the fields that are not among `known`. A known field that is null is removed, too: it is as if absent.
    fn retain_known_fields(&mut self, path: &str, object: &mut Map<String, Value>, known: &[&str]) {
        object.retain(|field, value| {
            if known.contains(&field.as_str()) {
                return !value.is_null();
            }
            let error = crate::decode::unknown_field(field, known);
            self.findings.errors.push(error.with_path_prefix(path));
            false
        });
    }
}

/// Whether this is an IP address with port 0.
fn is_address_with_port_0(address: &str) -> bool {
    address.parse::<std::net::SocketAddr>().is_ok_and(|address| address.port() == 0)
}
