//! KubeSchedulerConfiguration: strict decoding, defaults, validation, the plugins of every profile;
//! and feature gates.
//!
//! ```text
//! Document ─decode─► WrittenConfiguration ─defaults, args─► SchedulerConfiguration
//!                                                                   │ validate, expand
//!                                                                   ▼
//!                                                                Profile, one or several
//! ```
//!
//! Read in this order: [`check_configuration`], [`v1`] (the file), `default_values`, `defaults`, `args`, `validate`, [`expand_plugin_sets`]
//! (multiPoint), `resolve`, [`AllFeatureGates`]; `unsupported` lists what this version does not implement. This
//! crate does not read files and knows plugins by name only: the caller passes a [`Registry`].

mod args;
mod decode;
mod default_values;
mod defaults;
mod document;
mod duration;
mod expand;
mod extension_point;
mod gates;
mod in_tree_plugins;
mod print;
mod resolve;
mod unsupported;
pub mod v1;
mod validate;

pub use args::ArgsByPlugin;
pub use defaults::default_plugins;
pub use duration::{Duration, DurationError};
pub use expand::{
    ExpandError, ExpandErrorKind, ExpandedPlugins, WeightedPlugin, expand_plugin_sets,
};
pub use extension_point::{ExtensionPoint, ExtensionPointSet};
pub use gates::{AllFeatureGates, FeatureGateError, FeatureStage};
pub use in_tree_plugins::in_tree_extension_points;
pub use print::PrintError;
pub use resolve::ResolvedProfile;
pub use v1::SchedulerConfiguration;

use loadmaster_api::document::{Document, LocatedError};
use loadmaster_framework::{FieldError, Registry};
use serde_json::Value;

/// A configuration with defaults, validated, and its profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedConfiguration {
    /// The whole configuration, as `--write-config-to` shows it.
    pub config: SchedulerConfiguration,
    /// Its profiles, ready to be built.
    pub profiles: Vec<ResolvedProfile>,
    /// Values that were accepted and have no effect, one sentence each.
    pub notes: Vec<String>,
}

/// Decodes a configuration, fills in defaults and validates it. Returns all errors in the order of the
/// file; a configuration that cannot be decoded is not validated further.
pub fn check_configuration(
    document: &Document,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Result<CheckedConfiguration, Vec<LocatedError>> {
    check_configuration_with_overrides(document, registry, gates, |_| ())
}

/// As [`check_configuration`], with overrides of the file: command-line flags. They are applied after the defaults and
/// before validation.
pub fn check_configuration_with_overrides(
    document: &Document,
    registry: &Registry,
    gates: &AllFeatureGates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<CheckedConfiguration, Vec<LocatedError>> {
    let value = document::read(document).map_err(|error| vec![error])?;
    check_value_with_overrides(value, registry, gates, adjust)
        .map_err(|errors| document::locate(document, errors))
}

/// The configuration that is used when no file is given.
pub fn default_configuration(
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Result<CheckedConfiguration, Vec<FieldError>> {
    check_default_configuration_with_overrides(registry, gates, |_| ())
}

/// As [`default_configuration`], with command-line flags over the defaults.
pub fn check_default_configuration_with_overrides(
    registry: &Registry,
    gates: &AllFeatureGates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<CheckedConfiguration, Vec<FieldError>> {
    let empty = serde_json::json!({"apiVersion": v1::API_VERSION, "kind": v1::KIND});
    check_value_with_overrides(empty, registry, gates, adjust)
}

/// As [`check_configuration`], for a value that does not come from a file.
pub fn check_configuration_value(
    value: Value,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Result<CheckedConfiguration, Vec<FieldError>> {
    check_value_with_overrides(value, registry, gates, |_| ())
}

fn check_value_with_overrides(
    mut value: Value,
    registry: &Registry,
    gates: &AllFeatureGates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<CheckedConfiguration, Vec<FieldError>> {
    decode::take_type_meta(&mut value).map_err(|error| vec![error])?;
    decode::drop_nulls(&mut value);
    let features = gates.framework_gates();
    let args_completer = args::ArgsCompleter { registry, gates: &features };
    let (written, undecoded) = decode::decode_strict(value.clone());
    let Some(written) = written else { return Err(undecoded) };
    let mut config = defaults::complete(written, gates);
    adjust(&mut config);
    let mut args = Vec::new();
    let mut errors = undecoded;
    let is_decoded = errors.is_empty();
    for (i, profile) in config.profiles.iter_mut().enumerate() {
        let (complete, found) = args_completer.complete(&format!("profiles[{i}]"), profile);
        args.push(complete);
        errors.extend(found);
    }
    if is_decoded {
        errors.extend(validate::validate(&config));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let resolver = resolve::Resolver { registry, gates, features: &features, written: &value };
    let profiles = resolver.resolve(&config, args)?;
    let notes = [
        unsupported::plugin_note(&config.profiles, registry),
        unsupported::no_effect_note(&config),
    ];
    let notes =
        gates.ineffective_gate_notes().into_iter().chain(notes.into_iter().flatten()).collect();
    for profile in &mut config.profiles {
        resolve::trim_args(profile, registry);
    }
    Ok(CheckedConfiguration { config, profiles, notes })
}
