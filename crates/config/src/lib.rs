//! KubeSchedulerConfiguration: strict decoding, defaults, validation, the plugins of every profile;
//! and feature gates.
//!
//! ```text
//! Document ─decode─► what was written ─defaults, args─► SchedulerConfiguration
//!                                                               │ validate, expand
//!                                                               ▼
//!                                                            Profile, one or several
//! ```
//!
//! Read in this order: [`check`], [`v1`] (the file), `defaults`, `args`, `validate`, [`expand`]
//! (multiPoint), `resolve`, [`Gates`]; `not_yet` lists what this version cannot do. Nothing here reads
//! files or knows plugins by more than their names: a [`Registry`] is handed in.

mod args;
mod decode;
mod defaults;
mod duration;
mod expand;
mod gates;
mod in_tree;
mod not_yet;
mod point;
mod print;
mod resolve;
mod source;
pub mod v1;
mod validate;

pub use args::ArgsByName;
pub use defaults::plugins as default_plugins;
pub use duration::{Duration, DurationError};
pub use expand::{ExpandError, ExpandErrorKind, Expanded, Placed, expand};
pub use gates::{GateError, Gates, Stage};
pub use in_tree::points as in_tree_points;
pub use point::{Point, PointSet};
pub use print::PrintError;
pub use resolve::Profile;
pub use v1::SchedulerConfiguration;

use loadmaster_api::document::{Document, Located};
use loadmaster_framework::{FieldError, Registry};
use serde_json::Value;

/// A configuration that can be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The whole configuration, as `--write-config-to` shows it.
    pub config: SchedulerConfiguration,
    /// Its profiles, ready to be built.
    pub profiles: Vec<Profile>,
    /// What was accepted and has no effect, one sentence each.
    pub notes: Vec<String>,
}

/// Reads a configuration, completes it and checks it. The errors are all that is wrong, in the
/// order of the file; one that cannot be decoded is not validated further.
pub fn check(
    document: &Document,
    registry: &Registry,
    gates: &Gates,
) -> Result<Checked, Vec<Located>> {
    check_adjusted(document, registry, gates, |_| ())
}

/// As [`check`], with something that has the last word over the file: command-line flags. It runs
/// when all defaults are filled in, before anything is checked.
pub fn check_adjusted(
    document: &Document,
    registry: &Registry,
    gates: &Gates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<Checked, Vec<Located>> {
    let value = source::read(document).map_err(|error| vec![error])?;
    check_value_adjusted(value, registry, gates, adjust)
        .map_err(|errors| source::locate(document, errors))
}

/// The configuration that runs when no file is given.
pub fn check_default(registry: &Registry, gates: &Gates) -> Result<Checked, Vec<FieldError>> {
    check_default_adjusted(registry, gates, |_| ())
}

/// As [`check_default`], with command-line flags over the defaults.
pub fn check_default_adjusted(
    registry: &Registry,
    gates: &Gates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<Checked, Vec<FieldError>> {
    let empty = serde_json::json!({"apiVersion": v1::API_VERSION, "kind": v1::KIND});
    check_value_adjusted(empty, registry, gates, adjust)
}

/// As [`check`], for a value that is no file.
pub fn check_value(
    value: Value,
    registry: &Registry,
    gates: &Gates,
) -> Result<Checked, Vec<FieldError>> {
    check_value_adjusted(value, registry, gates, |_| ())
}

fn check_value_adjusted(
    mut value: Value,
    registry: &Registry,
    gates: &Gates,
    adjust: impl FnOnce(&mut SchedulerConfiguration),
) -> Result<Checked, Vec<FieldError>> {
    decode::header(&mut value).map_err(|error| vec![error])?;
    decode::drop_nulls(&mut value);
    let features = gates.framework();
    let known = args::Known { registry, gates: &features };
    let (written, undecoded) = decode::strict(value.clone());
    let Some(written) = written else { return Err(undecoded) };
    let mut config = defaults::complete(written, gates);
    adjust(&mut config);
    let mut args = Vec::new();
    let mut errors = undecoded;
    let is_decoded = errors.is_empty();
    for (i, profile) in config.profiles.iter_mut().enumerate() {
        let (complete, found) = known.complete(&format!("profiles[{i}]"), profile);
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
    let notes = [not_yet::plugin_note(&config.profiles, registry), not_yet::idle_note(&config)];
    let notes = gates.notes().into_iter().chain(notes.into_iter().flatten()).collect();
    for profile in &mut config.profiles {
        resolve::trim_args(profile, registry);
    }
    Ok(Checked { config, profiles, notes })
}
