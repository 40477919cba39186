//! Legacy Policy (`kind: Policy`): predicates and priorities by name, and extenders, as a profile of v1.
//!
//! Read by kube-scheduler up to 1.22; names, defaults and rules are those of 1.22 (upstream's
//! `pkg/scheduler/framework/plugins/legacy_registry.go` and `createFromPolicy` in `factory.go`).

mod predicates;
mod priorities;

use std::collections::BTreeMap;

use loadmaster_api::document::{Document, LocatedError};
use loadmaster_framework::FieldError;
use loadmaster_framework::plugin_args::decode_with_all_errors;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::decode::take_kind_and_version;
use crate::document;
use crate::extension_point::ExtensionPoint;
use crate::findings::Findings;
use crate::gates::AllFeatureGates;
use crate::legacy_extenders::convert_extenders;
use crate::old_versions::{Entry, PluginLists};
use crate::version::ConfigVersion;

/// `kind` of a Policy.
pub const POLICY_KIND: &str = "Policy";
/// The values of `apiVersion` that a Policy may have.
const API_VERSIONS: &[&str] = &["v1", "kubescheduler.config.k8s.io/v1"];

/// Where a configuration says its Policy is (`algorithmSource.policy` of v1alpha1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicySource {
    /// A file.
    File {
        /// Its path.
        path: String,
    },
    /// The key `policy.cfg` of a ConfigMap.
    ConfigMap {
        /// The ConfigMap's namespace.
        namespace: String,
        /// The ConfigMap's name.
        name: String,
    },
}

/// The key of a Policy in a ConfigMap.
pub const POLICY_CONFIG_MAP_KEY: &str = "policy.cfg";

/// The namespace of a Policy's ConfigMap if none is given.
pub const POLICY_NAMESPACE: &str = "kube-system";

/// The Policy that a configuration refers to.
///
/// # Errors
///
/// When `algorithmSource.policy` does not name exactly one file or ConfigMap.
pub fn policy_source(document: &Document) -> Result<Option<PolicySource>, Vec<LocatedError>> {
    let Ok(mut value) = document.decode_value() else { return Ok(None) };
    let is_v1alpha1 = value["apiVersion"] == ConfigVersion::V1Alpha1.api_version();
    let policy = value.pointer_mut("/algorithmSource/policy").map(Value::take);
    let Some(policy) = policy.filter(|policy| !policy.is_null() && is_v1alpha1) else {
        return Ok(None);
    };
    let (source, errors) = decode_with_all_errors::<WrittenSource>(policy);
    let mut errors: Vec<FieldError> =
        errors.into_iter().map(|error| error.with_path_prefix("algorithmSource.policy")).collect();
    let source = source.unwrap_or_default();
    let found = match (source.file, source.config_map) {
        (Some(file), None) if !file.path.is_empty() => Some(PolicySource::File { path: file.path }),
        (None, Some(it)) if !it.name.is_empty() => {
            let namespace =
                if it.namespace.is_empty() { POLICY_NAMESPACE.to_owned() } else { it.namespace };
            Some(PolicySource::ConfigMap { namespace, name: it.name })
        }
        _ => {
            let expected = "either file.path or configMap.name is expected";
            errors.push(FieldError::required("algorithmSource.policy", expected));
            None
        }
    };
    if errors.is_empty() { Ok(found) } else { Err(document::locate(document, errors)) }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct WrittenSource {
    file: Option<WrittenFile>,
    config_map: Option<WrittenConfigMap>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenFile {
    path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenConfigMap {
    namespace: String,
    name: String,
}

/// A Policy as written. Absent lists mean the default ones, empty lists none.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Policy {
    predicates: Option<Vec<predicates::Predicate>>,
    priorities: Option<Vec<priorities::Priority>>,
    extenders: Vec<Map<String, Value>>,
    hard_pod_affinity_symmetric_weight: i32,
    always_check_all_predicates: bool,
}

/// A Policy in the v1 form.
#[derive(Debug)]
pub(crate) struct ConvertedPolicy {
    /// `plugins` of the profile, with comments.
    pub plugins: Value,
    /// `pluginConfig` of the profile.
    pub plugin_config: Vec<Value>,
    /// `extenders`.
    pub extenders: Value,
    /// Origins, notes and errors.
    pub findings: Findings,
}

/// Decodes and validates a Policy. Whether pods are preempted is not up to it.
pub(crate) fn convert(
    mut value: Value,
    is_preemption_disabled: bool,
    gates: &AllFeatureGates,
) -> ConvertedPolicy {
    let mut builder = PolicyBuilder::default();
    if let Err(error) = take_type_meta(&mut value) {
        builder.findings.errors.push(error);
    }
    let (policy, errors) = decode_with_all_errors::<Policy>(value);
    builder.undecoded = errors.iter().map(|error| error.path.clone()).collect();
    builder.findings.errors.extend(errors);
    let policy = policy.unwrap_or_default();
    let weight = policy.hard_pod_affinity_symmetric_weight;
    if !(0..=100).contains(&weight) {
        let path = "hardPodAffinitySymmetricWeight";
        let error = FieldError::invalid(path, weight, "not in valid range [0-100]");
        builder.findings.errors.push(error);
    }
    if policy.always_check_all_predicates {
        let note = "alwaysCheckAllPredicates has no effect: placements are the same, and a node is reported with the first plugin that \
                    rejects it";
        builder.findings.notes.push(note.to_owned());
    }
    builder.fixed_plugins(is_preemption_disabled);
    builder.predicates(policy.predicates.as_deref());
    builder.priorities(policy.priorities.as_deref(), weight);
    let extenders = convert_extenders(policy.extenders, &mut builder.findings);
    builder.finish(extenders, gates)
}

/// Checks `apiVersion` and `kind` and removes them.
fn take_type_meta(value: &mut Value) -> Result<(), FieldError> {
    let (kind, version) = take_kind_and_version(value, POLICY_KIND)?;
    if kind == POLICY_KIND && API_VERSIONS.contains(&version.as_str()) {
        return Ok(());
    }
    let path = if kind == POLICY_KIND { "apiVersion" } else { "kind" };
    let text = format!(
        "no kind {kind:?} is registered for version {version:?}: a {POLICY_KIND} of version {:?} is expected",
        API_VERSIONS[0]
    );
    Err(FieldError { path: path.to_owned(), text })
}

/// The profile that is made from a Policy.
#[derive(Debug, Default)]
struct PolicyBuilder {
    lists: PluginLists,
    /// Arguments by plugin.
    args: BTreeMap<&'static str, Map<String, Value>>,
    findings: Findings,
    /// The paths of what could not be decoded.
    undecoded: Vec<String>,
}

impl PolicyBuilder {
    /// Whether the entry at this path was decoded whole, so that its other errors are worth reporting.
    fn is_decoded(&self, path: &str) -> bool {
        !self.undecoded.iter().any(|undecoded| {
            let rest = undecoded.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// Plugins that were neither predicates nor priorities.
    fn fixed_plugins(&mut self, is_preemption_disabled: bool) {
        let preemption = (ExtensionPoint::PostFilter, "DefaultPreemption");
        let always =
            [(ExtensionPoint::QueueSort, "PrioritySort"), (ExtensionPoint::Bind, "DefaultBinder")];
        let preemption = (!is_preemption_disabled).then_some(preemption);
        for (point, name) in always.into_iter().chain(preemption) {
            self.lists.add(point, Entry { name: name.to_owned(), ..Entry::default() });
        }
    }

    /// Enables a plugin, unless it is; `origin` is the path of the predicate or priority, if it is in the file.
    fn enable(
        &mut self,
        point: ExtensionPoint,
        name: &str,
        weight: i32,
        reason: &str,
        origin: Option<&str>,
    ) {
        let entry = Entry {
            name: name.to_owned(),
            weight,
            origin: origin.map(str::to_owned),
            comment: Some(reason.to_owned()),
        };
        self.lists.add(point, entry);
    }

    fn finish(mut self, extenders: Value, gates: &AllFeatureGates) -> ConvertedPolicy {
        // A Policy lists predicates and priorities; the extension points of today's plugins follow from them.
        self.lists.add_extension_points(ConfigVersion::V1Alpha2);
        let origins = &mut self.findings.origins;
        let plugins = self.lists.into_v1("profiles[0].plugins", gates, origins);
        let plugin_config = self.args.into_iter().enumerate().map(|(idx, (name, args))| {
            // The arguments come from one or several predicates and priorities.
            origins.insert_whole(format!("profiles[0].pluginConfig[{idx}]"), argument_origin(name));
            json!({"name": name, "args": args})
        });
        let plugin_config = plugin_config.collect();
        ConvertedPolicy { plugins, plugin_config, extenders, findings: self.findings }
    }
}

/// The list of the Policy that a plugin's arguments come from.
fn argument_origin(plugin: &str) -> &'static str {
    match plugin {
        "InterPodAffinity" => "hardPodAffinitySymmetricWeight",
        _ => "priorities",
    }
}
