//! From the documents of a configuration to its profiles.

use std::collections::BTreeMap;

use loadmaster_api::document::{Document, LocatedError};
use loadmaster_framework::plugin_args::decode_with_all_errors;
use loadmaster_framework::{FieldError, Registry};
use serde_json::{Value, json};

use crate::decode::{self, with_suggestion};
use crate::findings::Findings;
use crate::gates::AllFeatureGates;
use crate::old_versions;
use crate::origins::{Origins, Source};
use crate::policy::{self, ConvertedPolicy, POLICY_KIND};
use crate::resolve::{self, ResolvedProfile};
use crate::v1::{API_VERSION, KIND, SchedulerConfiguration};
use crate::version::ConfigVersion;
use crate::{annotated, args, defaults, document, unsupported, validate};

/// A configuration with defaults, validated, and its profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedConfiguration {
    /// The whole configuration in v1, as `--write-config-to` shows it.
    pub config: SchedulerConfiguration,
    /// Its profiles, ready to be built.
    pub profiles: Vec<ResolvedProfile>,
    /// Values that were accepted and have no effect, and an older version; one sentence each.
    pub notes: Vec<String>,
}

/// The documents that a configuration is read from.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConfigurationDocuments<'a> {
    /// The KubeSchedulerConfiguration of any version, or a Policy; the defaults if there is none.
    pub configuration: Option<&'a Document>,
    /// The legacy Policy, whose plugins and extenders replace those of the configuration.
    pub policy: Option<&'a Document>,
}

/// An error of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// In one of the documents.
    #[error(transparent)]
    InDocument(LocatedError),
    /// In what did not come from a document: a flag or a default.
    #[error("{0}")]
    Field(FieldError),
}

/// Decodes a configuration, fills in defaults and validates it. Returns all errors in the order of the
/// file; a configuration that cannot be decoded is not validated further.
pub fn check_configuration(
    document: &Document,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Result<CheckedConfiguration, Vec<LocatedError>> {
    let documents = ConfigurationDocuments { configuration: Some(document), policy: None };
    let checked = check_documents_with_overrides(documents, registry, gates, |_| ());
    checked.map_err(|errors| {
        let located = errors.into_iter().map(|error| match error {
            ConfigurationError::InDocument(error) => error,
            ConfigurationError::Field(error) => {
                document.error_at(error.path.parse().unwrap_or_default(), error.text)
            }
        });
        located.collect()
    })
}

/// As [`check_configuration`], for all documents of a configuration and with overrides: command-line flags. They are applied after the
/// defaults and before validation.
///
/// # Errors
///
/// All errors, those of a document in its order.
pub fn check_documents_with_overrides(
    documents: ConfigurationDocuments<'_>,
    registry: &Registry,
    gates: &AllFeatureGates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<CheckedConfiguration, Vec<ConfigurationError>> {
    check_and_convert(documents, registry, gates, adjust).map(|(checked, _)| checked)
}

/// As [`check_documents_with_overrides`], with the v1 form of what the documents say.
pub(crate) fn check_and_convert(
    documents: ConfigurationDocuments<'_>,
    registry: &Registry,
    gates: &AllFeatureGates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<(CheckedConfiguration, Converted), Vec<ConfigurationError>> {
    let input = Input::read(documents)?;
    check_input(input, registry, gates, adjust).map_err(|errors| locate(documents, errors))
}

/// The configuration that is used when no file is given.
pub fn default_configuration(
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Result<CheckedConfiguration, Vec<FieldError>> {
    check_configuration_value(empty_configuration(), registry, gates)
}

/// As [`check_configuration`], for a value that does not come from a file.
pub fn check_configuration_value(
    value: Value,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Result<CheckedConfiguration, Vec<FieldError>> {
    let checked = check_input(Input::new(value, None), registry, gates, |_| ());
    checked
        .map(|(checked, _)| checked)
        .map_err(|errors| errors.into_iter().map(|(_, error)| error).collect())
}

/// The values of the documents.
struct Input {
    configuration: Value,
    policy: Option<Value>,
}

impl Input {
    /// Decodes the documents.
    fn read(documents: ConfigurationDocuments<'_>) -> Result<Input, Vec<ConfigurationError>> {
        let mut errors = Vec::new();
        let mut read = |document: Option<&Document>| {
            let value = document.map(document::read)?;
            value.map_err(|error| errors.push(ConfigurationError::InDocument(error))).ok()
        };
        let configuration = read(documents.configuration).unwrap_or_else(empty_configuration);
        let policy = read(documents.policy);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Input::new(configuration, policy))
    }

    /// A Policy in place of a configuration stands for the defaults with this Policy.
    fn new(configuration: Value, policy: Option<Value>) -> Input {
        if configuration["kind"] == POLICY_KIND && policy.is_none() {
            return Input { configuration: empty_configuration(), policy: Some(configuration) };
        }
        Input { configuration, policy }
    }
}

fn empty_configuration() -> Value {
    json!({"apiVersion": API_VERSION, "kind": KIND})
}

/// Adds documents, lines and columns to errors.
fn locate(
    documents: ConfigurationDocuments<'_>,
    errors: Vec<(Source, FieldError)>,
) -> Vec<ConfigurationError> {
    let (of_policy, of_configuration): (Vec<_>, Vec<_>) =
        errors.into_iter().partition(|(source, _)| *source == Source::Policy);
    let in_document = |document: Option<&Document>, errors: Vec<(Source, FieldError)>| {
        let errors: Vec<FieldError> = errors.into_iter().map(|(_, error)| error).collect();
        match document {
            Some(document) => document::locate(document, errors)
                .into_iter()
                .map(ConfigurationError::InDocument)
                .collect::<Vec<_>>(),
            None => errors.into_iter().map(ConfigurationError::Field).collect(),
        }
    };
    let mut all = in_document(documents.configuration, of_configuration);
    all.extend(in_document(documents.policy.or(documents.configuration), of_policy));
    all
}

/// A configuration of any version, or a Policy, as a configuration of v1.
#[derive(Debug)]
pub(crate) struct Converted {
    /// The version of the file.
    pub version: ConfigVersion,
    /// The plugins and extenders come from a Policy.
    pub has_policy: bool,
    /// The v1 form without `apiVersion` and `kind`, with comments on what changed.
    pub value: Value,
    /// What the documents say and has no effect; one sentence each.
    pub notes: Vec<String>,
    /// Where the fields stand in the documents.
    origins: Origins,
    /// Errors, with paths in their documents.
    errors: Vec<(Source, FieldError)>,
}

impl Converted {
    /// It was written in an older version, which had plugins that v1 rejects.
    pub fn is_old(&self) -> bool {
        self.has_policy || self.version != ConfigVersion::V1
    }
}

/// The v1 form of the documents' values. The errors are those of older versions and of the Policy.
fn convert_input(
    Input { mut configuration, policy }: Input,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Result<Converted, (Source, FieldError)> {
    let version = decode::take_type_meta(&mut configuration)
        .map_err(|error| (Source::Configuration, error))?;
    let has_policy = policy.is_some();
    let refers_to_policy = !configuration["algorithmSource"]["policy"].is_null();
    let of_version = old_versions::to_v1(version, configuration, has_policy, registry, gates);
    let is_preemption_disabled = of_version.is_preemption_disabled;
    let Findings { origins, notes, errors } = of_version.findings;
    let errors = errors.into_iter().map(|error| (Source::Configuration, error)).collect();
    let value = of_version.value;
    let mut converted = Converted { version, has_policy, value, notes, origins, errors };
    if refers_to_policy && !has_policy && version == ConfigVersion::V1Alpha1 {
        let expected = "the Policy that it refers to is expected beside the configuration";
        let error = FieldError::required("algorithmSource.policy", expected);
        converted.errors.push((Source::Configuration, error));
    }
    if let Some(policy) = policy {
        let policy = policy::convert(policy, is_preemption_disabled, gates);
        replace_by_policy(&mut converted, policy);
    }
    Ok(converted)
}

/// Replaces the profiles and extenders of a configuration by those of a Policy (upstream's `createFromPolicy`). What the configuration
/// says outside of `plugins` stays: the scheduler's name, and arguments that were fields of v1alpha1.
fn replace_by_policy(converted: &mut Converted, policy: ConvertedPolicy) {
    let Findings { mut origins, notes, errors } = policy.findings;
    converted.errors.extend(errors.into_iter().map(|error| (Source::Policy, error)));
    converted.notes.extend(notes);
    let Value::Object(configuration) = &mut converted.value else { return };
    let mut profile = match configuration.remove("profiles") {
        Some(Value::Array(profiles)) => profiles.into_iter().next().unwrap_or_else(|| json!({})),
        _ => json!({}),
    };
    let mut plugin_config = policy.plugin_config;
    let stays = |name: &Value| match converted.version {
        // The default constraints of 1.18 are those of the Policy.
        ConfigVersion::V1Alpha1 => name != "PodTopologySpread",
        // `bindTimeoutSeconds`, which is not a plugin's argument there.
        ConfigVersion::V1Alpha2 => name == "VolumeBinding",
        _ => false,
    };
    // Indexes in the list of the Policy for those in the list of the configuration.
    let mut moved = BTreeMap::new();
    let of_configuration = profile["pluginConfig"].take();
    for (idx, entry) in of_configuration.as_array().into_iter().flatten().enumerate() {
        let is_new = !plugin_config.iter().any(|known| known["name"] == entry["name"]);
        if is_new && stays(&entry["name"]) {
            moved.insert(idx, plugin_config.len());
            plugin_config.push(entry.clone());
        }
    }
    if converted.version != ConfigVersion::V1Alpha1 {
        profile = json!({});
    }
    let new_idx = |idx: usize| moved.get(&idx).copied();
    converted.origins.move_elements("profiles[0].pluginConfig", new_idx);
    converted.origins.remove("profiles[0].plugins");
    converted.origins.remove("extenders");
    origins.insert_whole("profiles[0].plugins", "");
    origins.insert("extenders", "extenders");
    converted.origins.extend_from_policy(origins);
    if let Value::Object(profile) = &mut profile {
        profile.insert("plugins".to_owned(), policy.plugins);
        profile.insert("pluginConfig".to_owned(), plugin_config.into());
        let text = "The plugins come from the predicates and priorities of the Policy.";
        annotated::comment(profile, text);
    }
    configuration.insert("profiles".to_owned(), json!([profile]));
    configuration.insert("extenders".to_owned(), policy.extenders);
}

/// Converts and checks the documents' values. The errors have paths in their documents.
fn check_input(
    input: Input,
    registry: &Registry,
    gates: &AllFeatureGates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<(CheckedConfiguration, Converted), Vec<(Source, FieldError)>> {
    let converted = convert_input(input, registry, gates).map_err(|error| vec![error]);
    let checked = converted.and_then(|mut converted| {
        let checked = check_converted(&mut converted, registry, gates, adjust)?;
        Ok((checked, converted))
    });
    checked.map_err(|errors| {
        errors.into_iter().map(|(at, error)| (at, with_suggestion(error))).collect()
    })
}

fn check_converted(
    converted: &mut Converted,
    registry: &Registry,
    gates: &AllFeatureGates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<CheckedConfiguration, Vec<(Source, FieldError)>> {
    let mut value = converted.value.clone();
    annotated::take_comments(&mut value);
    let (version, is_old) = (converted.version, converted.is_old());
    let checked = check_v1(value, version, is_old, registry, gates, adjust);
    let mut errors = std::mem::take(&mut converted.errors);
    match checked {
        Ok(mut checked) if errors.is_empty() => {
            let notes = [version_notes(converted), converted.notes.clone(), checked.notes];
            checked.notes = notes.concat();
            Ok(checked)
        }
        Ok(_) => Err(errors),
        Err(found) => {
            let n_of_file = errors.len();
            for error in found {
                let (source, path) = converted.origins.origin_of(&error.path);
                // What was wrong in the file may be wrong again in the v1 form.
                let is_known = |(at, known): &(Source, FieldError)| {
                    *at == source && !known.path.is_empty() && path.starts_with(&known.path)
                };
                if !errors[..n_of_file].iter().any(is_known) {
                    errors.push((source, FieldError { path, ..error }));
                }
            }
            Err(errors)
        }
    }
}

/// Notes on an older version and on a Policy.
fn version_notes(converted: &Converted) -> Vec<String> {
    let version = converted.version;
    let version_note = version.last_release().map(|release| {
        format!(
            "{version} was read by kube-scheduler up to {release}; `loadmaster config convert` writes the same configuration \
             in {API_VERSION}"
        )
    });
    let policy_note = converted.has_policy.then(|| {
        "legacy Policies were read by kube-scheduler up to 1.22; `loadmaster config convert` writes a KubeSchedulerConfiguration"
            .to_owned()
    });
    version_note.into_iter().chain(policy_note).collect()
}

/// Checks the v1 form of a configuration that was written in `version`. Paths in errors are those of the v1 form.
fn check_v1(
    value: Value,
    version: ConfigVersion,
    is_old: bool,
    registry: &Registry,
    gates: &AllFeatureGates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<CheckedConfiguration, Vec<FieldError>> {
    let features = gates.framework_gates();
    let args_completer = args::ArgsCompleter { registry, gates: &features };
    let (written, mut errors) = decode_with_all_errors(value.clone());
    let Some(written) = written else { return Err(errors) };
    let mut config = defaults::complete(written, version, gates);
    adjust(&mut config);
    let mut args = Vec::new();
    let is_decoded = errors.is_empty();
    for (i, profile) in config.profiles.iter_mut().enumerate() {
        let (complete, found) = args_completer.complete(&format!("profiles[{i}]"), profile);
        args.push(complete);
        errors.extend(found);
    }
    if is_decoded {
        errors.extend(validate::validate(&config, is_old));
    }
    let resolver =
        resolve::Resolver { registry, gates, features: &features, written: &value, is_old };
    if !errors.is_empty() {
        errors.extend(resolver.unknown_plugins(&config));
        return Err(errors);
    }
    let profiles = resolver.resolve(&config, args)?;
    let notes = [
        unsupported::plugin_note(&config.profiles, registry),
        unsupported::no_effect_note(&config),
        (!is_old).then(|| unsupported::old_plugin_note(&config.profiles)).flatten(),
    ];
    let notes =
        gates.ineffective_gate_notes().into_iter().chain(notes.into_iter().flatten()).collect();
    for profile in &mut config.profiles {
        if is_old {
            crate::volume_limits::replace(&mut profile.plugins);
        }
        resolve::trim_args(profile, registry);
    }
    Ok(CheckedConfiguration { config, profiles, notes })
}
