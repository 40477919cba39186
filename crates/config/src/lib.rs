//! KubeSchedulerConfiguration: strict decoding, defaults, validation, the plugins of every profile;
//! and feature gates.
//!
//! ```text
//! Document ─older version or Policy to v1, decode─► WrittenConfiguration ─defaults, args─► SchedulerConfiguration
//!                                                                   │ validate, expand
//!                                                                   ▼
//!                                                                Profile, one or several
//! ```
//!
//! Read in this order: [`check_configuration`], `old_versions`, `policy`, [`v1`] (the file), `default_values`, `defaults`, `args`, `validate`, [`expand_plugin_sets`]
//! (multiPoint), `resolve`, [`AllFeatureGates`]; `unsupported` lists what this version does not implement. This
//! crate does not read files and knows plugins by name only: the caller passes a [`Registry`].

mod annotated;
mod args;
mod check;
mod convert;
mod decode;
mod default_values;
mod defaults;
mod document;
mod duration;
mod expand;
mod extension_point;
mod findings;
mod gates;
mod in_tree_plugins;
mod legacy_extenders;
mod merge;
mod old_versions;
mod origins;
mod policy;
mod print;
mod redact;
mod resolve;
mod unsupported;
pub mod v1;
mod validate;
mod version;
mod volume_limits;

pub use args::ArgsByPlugin;
pub use check::{
    CheckedConfiguration, ConfigurationDocuments, ConfigurationError, check_configuration,
    check_configuration_value, check_documents_with_overrides, default_configuration,
};
pub use convert::{ConvertedConfiguration, convert_configuration};
pub use defaults::default_plugins;
pub use duration::{Duration, DurationError};
pub use expand::{
    ExpandError, ExpandErrorKind, ExpandedPlugins, WeightedPlugin, expand_plugin_sets,
};
pub use extension_point::{ExtensionPoint, ExtensionPointSet};
pub use gates::{AllFeatureGates, FeatureGateError, FeatureStage};
pub use in_tree_plugins::in_tree_extension_points;
pub use policy::{POLICY_CONFIG_MAP_KEY, POLICY_NAMESPACE, PolicySource, policy_source};
pub use print::PrintError;
pub use redact::redact_password;
pub use resolve::ResolvedProfile;
pub use v1::SchedulerConfiguration;
pub use version::ConfigVersion;
pub use volume_limits::PLUGINS as VOLUME_LIMIT_PLUGINS;
