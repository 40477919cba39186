//! Feature gates: parsing of `--feature-gates`, the defaults of 1.36, and the gates that plugins read.
//!
//! ```
//! use loadmaster_config::AllFeatureGates;
//! let gates = AllFeatureGates::parse(["PodLevelResources=true,kube:NodeSwap=true"]);
//! assert!(gates.is_err(), "either all names have a prefix or none has");
//! ```

mod table;

use std::collections::BTreeMap;
use std::fmt;

use loadmaster_framework::FeatureGates;

use crate::{default_values, unsupported};

/// Sets every alpha gate that is not set itself.
const ALL_ALPHA: &str = "AllAlpha";
/// Sets every beta gate that is not set itself.
const ALL_BETA: &str = "AllBeta";
/// The component name in the prefix of a gate (`kube:Name`).
const COMPONENT: &str = "kube";

/// Gates locked to on that kube-scheduler still reads; their features are implemented.
const LOCKED_ON: &[&str] = &[
    "DRAAdminAccess",
    "DynamicResourceAllocation",
    "InPlacePodVerticalScaling",
    "NodeInclusionPolicyInPodTopologySpread",
    "SchedulerQueueingHints",
    "SidecarContainers",
    "VolumeAttributesClass",
];

/// The stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureStage {
    /// Off by default.
    Alpha,
    /// On by default in most cases.
    Beta,
    /// Generally available: on.
    Stable,
    /// Restores a deprecated behavior.
    Deprecated,
}

/// A gate of the table.
struct Gate {
    name: &'static str,
    stage: FeatureStage,
    on: bool,
    locked: bool,
    depends_on: &'static [&'static str],
    field: Option<fn(&mut FeatureGates) -> &mut bool>,
}

const fn gate(name: &'static str, stage: FeatureStage, on: bool) -> Gate {
    Gate { name, stage, on, locked: false, depends_on: &[], field: None }
}

const fn alpha(name: &'static str) -> Gate {
    gate(name, FeatureStage::Alpha, false)
}

const fn beta(name: &'static str, on: bool) -> Gate {
    gate(name, FeatureStage::Beta, on)
}

const fn ga(name: &'static str, on: bool) -> Gate {
    gate(name, FeatureStage::Stable, on)
}

const fn deprecated(name: &'static str, on: bool) -> Gate {
    gate(name, FeatureStage::Deprecated, on)
}

impl Gate {
    /// Locked to its default.
    const fn locked(self) -> Gate {
        Gate { locked: true, ..self }
    }

    /// Depends on these gates.
    const fn depends_on(self, depends_on: &'static [&'static str]) -> Gate {
        Gate { depends_on, ..self }
    }

    /// Read by plugins, through this field.
    const fn sets(self, field: fn(&mut FeatureGates) -> &mut bool) -> Gate {
        Gate { field: Some(field), ..self }
    }
}

/// An invalid `--feature-gates` value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FeatureGateError {
    /// A gate without a value.
    #[error("missing bool value for {gate}")]
    MissingValue { gate: String },
    /// A value that is not a bool.
    #[error(
        "invalid value of {gate}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax"
    )]
    InvalidValue { gate: String, value: String },
    /// No component has a gate of this name in 1.36.
    #[error("unrecognized feature gate: {gate}")]
    Unrecognized { gate: String },
    /// A gate that is locked to its default.
    #[error("cannot set feature gate {gate} to {to}, feature is locked to {locked_to}")]
    Locked { gate: &'static str, to: bool, locked_to: bool },
    /// Enabled, but a gate that it depends on is disabled.
    #[error("{gate} is enabled, but depends on features that are disabled: [{}]", disabled.join(" "))]
    Dependency { gate: &'static str, disabled: Vec<&'static str> },
    /// Gates with the prefix `kube:` mixed with gates without.
    #[error(
        "set kube feature gates with default empty prefix or kube: prefix consistently, do not mix use"
    )]
    MixedPrefix,
    /// A prefix other than `kube:`.
    #[error("component not registered: {component}")]
    UnknownComponent { component: String },
    /// The feature is not implemented.
    #[error(
        "cannot set feature gate {gate} to {to}: this version of Loadmaster does not implement it"
    )]
    NotImplemented { gate: &'static str, to: bool },
    /// Features that are not implemented, set by `AllAlpha` or `AllBeta`.
    #[error("cannot set {toggle} to {to}: this version of Loadmaster does not implement {}", gates.join(", "))]
    NotImplementedAll { toggle: &'static str, to: bool, gates: Vec<&'static str> },
}

/// The value of every feature gate.
#[derive(Clone)]
pub struct AllFeatureGates {
    /// Values in the order of the table.
    on: Vec<bool>,
    /// Gates that were set and are not read by the scheduler.
    unread: Vec<&'static str>,
    /// Gates of kube-scheduler that were set and have no effect in Loadmaster.
    without_effect: Vec<&'static str>,
}

impl Default for AllFeatureGates {
    /// The defaults of 1.36.
    fn default() -> Self {
        let on = table::GATES.iter().map(|gate| gate.on).collect();
        AllFeatureGates { on, unread: Vec::new(), without_effect: Vec::new() }
    }
}

impl fmt::Debug for AllFeatureGates {
    /// What differs from the defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed =
            self.rows().filter(|(gate, on)| gate.on != *on).map(|(gate, on)| (gate.name, on));
        f.debug_map().entries(changed).finish()
    }
}

impl AllFeatureGates {
    /// Parses the values of `--feature-gates`, which may be given several times:
    /// `Name=true,kube:Name=false`. Later values override earlier ones.
    pub fn parse<'a>(
        flags: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Vec<FeatureGateError>> {
        let wanted = read_flags(flags).map_err(|error| vec![error])?;
        let mut errors = Vec::new();
        let mut named: BTreeMap<usize, bool> = BTreeMap::new();
        for (name, to) in &wanted.gates {
            match table::GATES.binary_search_by_key(&name.as_str(), |gate| gate.name) {
                Err(_) => errors.push(FeatureGateError::Unrecognized { gate: name.clone() }),
                Ok(idx) => match &table::GATES[idx] {
                    gate if gate.locked && gate.on != *to => {
                        errors.push(FeatureGateError::Locked {
                            gate: gate.name,
                            to: *to,
                            locked_to: gate.on,
                        });
                    }
                    gate if gate.on != *to && unsupported::GATES.contains(&gate.name) => {
                        errors.push(FeatureGateError::NotImplemented { gate: gate.name, to: *to });
                    }
                    _ => drop(named.insert(idx, *to)),
                },
            }
        }
        let mut gates = AllFeatureGates::default();
        for (toggle, stage, to) in [
            (ALL_ALPHA, FeatureStage::Alpha, wanted.all_alpha),
            (ALL_BETA, FeatureStage::Beta, wanted.all_beta),
        ] {
            if let Some(to) = to {
                gates.set_all(toggle, stage, to, &named, &mut errors);
            }
        }
        for (idx, to) in named {
            gates.set(idx, to);
        }
        if errors.is_empty() {
            errors = gates.dependencies();
        }
        if errors.is_empty() { Ok(gates) } else { Err(errors) }
    }

    /// Whether a gate is enabled; `false` for an unknown name.
    pub fn enabled(&self, name: &str) -> bool {
        table::GATES.binary_search_by_key(&name, |gate| gate.name).is_ok_and(|idx| self.on[idx])
    }

    /// Every gate: name, stage, default, and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, FeatureStage, bool, bool)> {
        self.rows().map(|(gate, on)| (gate.name, gate.stage, gate.on, on))
    }

    /// The gates that plugins read.
    pub fn framework_gates(&self) -> FeatureGates {
        let mut features = FeatureGates::default();
        for (gate, on) in self.rows() {
            if let Some(field) = gate.field {
                *field(&mut features) = on;
            }
        }
        features
    }

    /// Notes on gates that were set and have no effect.
    pub fn ineffective_gate_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.unread.is_empty() {
            notes.push(format!(
                "feature gates that the scheduler does not read: {}",
                self.unread.join(", ")
            ));
        }
        if !self.without_effect.is_empty() {
            notes.push(format!(
                "feature gates that have no effect in Loadmaster: {}",
                self.without_effect.join(", ")
            ));
        }
        notes
    }

    fn rows(&self) -> impl Iterator<Item = (&'static Gate, bool)> {
        table::GATES.iter().zip(self.on.iter().copied())
    }

    fn set(&mut self, idx: usize, to: bool) {
        let gate = &table::GATES[idx];
        self.on[idx] = to;
        if unsupported::NO_EFFECT_GATES.contains(&gate.name) {
            self.without_effect.push(gate.name);
        } else if !is_read(gate) && !unsupported::DAEMON_GATES.contains(&gate.name) {
            self.unread.push(gate.name);
        }
    }

    /// Sets all gates of a stage that are not set themselves.
    fn set_all(
        &mut self,
        toggle: &'static str,
        stage: FeatureStage,
        to: bool,
        named: &BTreeMap<usize, bool>,
        errors: &mut Vec<FeatureGateError>,
    ) {
        let mut not_implemented = Vec::new();
        for (idx, gate) in table::GATES.iter().enumerate() {
            if gate.stage != stage || gate.on == to || named.contains_key(&idx) {
                continue;
            }
            if unsupported::GATES.contains(&gate.name) {
                not_implemented.push(gate.name);
            }
            self.on[idx] = to;
        }
        if !not_implemented.is_empty() {
            errors.push(FeatureGateError::NotImplementedAll { toggle, to, gates: not_implemented });
        }
    }

    fn dependencies(&self) -> Vec<FeatureGateError> {
        let mut errors = Vec::new();
        for (gate, _) in self.rows().filter(|(_, on)| *on) {
            let disabled: Vec<&str> =
                gate.depends_on.iter().copied().filter(|name| !self.enabled(name)).collect();
            if !disabled.is_empty() {
                errors.push(FeatureGateError::Dependency { gate: gate.name, disabled });
            }
        }
        errors
    }
}

/// Whether Loadmaster reads the gate, at least to check that it has its default.
fn is_read(gate: &Gate) -> bool {
    let lists = [LOCKED_ON, default_values::PLUGIN_GATES, unsupported::GATES];
    gate.field.is_some() || lists.iter().any(|names| names.contains(&gate.name))
}

/// The values of the flags; later values override earlier ones.
#[derive(Default)]
struct FlagValues {
    gates: BTreeMap<String, bool>,
    all_alpha: Option<bool>,
    all_beta: Option<bool>,
}

fn read_flags<'a>(
    flags: impl IntoIterator<Item = &'a str>,
) -> Result<FlagValues, FeatureGateError> {
    let mut wanted = FlagValues::default();
    let mut prefixed = None;
    for item in flags.into_iter().flat_map(|flag| flag.split(',')).filter(|item| !item.is_empty()) {
        let (component, item) = match item.split_once(':') {
            Some((component, item)) => (Some(component.trim()), item.trim()),
            None => (None, item.trim()),
        };
        if let Some(component) = component.filter(|component| !matches!(*component, COMPONENT | ""))
        {
            return Err(FeatureGateError::UnknownComponent { component: component.to_owned() });
        }
        let has_prefix = component == Some(COMPONENT);
        if *prefixed.get_or_insert(has_prefix) != has_prefix {
            return Err(FeatureGateError::MixedPrefix);
        }
        if item.is_empty() {
            continue;
        }
        let (gate, to) = read_item(item)?;
        match gate {
            ALL_ALPHA => wanted.all_alpha = Some(to),
            ALL_BETA => wanted.all_beta = Some(to),
            _ => drop(wanted.gates.insert(gate.to_owned(), to)),
        }
    }
    Ok(wanted)
}

/// Parses `Name=value`, with the spellings of a bool that Go accepts.
fn read_item(item: &str) -> Result<(&str, bool), FeatureGateError> {
    let Some((gate, value)) = item.split_once('=') else {
        return Err(FeatureGateError::MissingValue { gate: item.to_owned() });
    };
    let (gate, value) = (gate.trim(), value.trim());
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok((gate, true)),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok((gate, false)),
        _ => Err(FeatureGateError::InvalidValue { gate: gate.to_owned(), value: value.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
