//! Feature gates: the flag, the defaults of 1.36, what the scheduler reads of them.
//!
//! ```
//! use loadmaster_config::Gates;
//! let gates = Gates::parse(["PodLevelResources=true,kube:NodeSwap=true"]);
//! assert!(gates.is_err(), "either all names have a prefix or none has");
//! ```

mod table;

use std::collections::BTreeMap;
use std::fmt;

use loadmaster_framework::FeatureGates;

use crate::{defaults, not_yet};

/// Switches every alpha gate that is not named itself.
const ALL_ALPHA: &str = "AllAlpha";
/// Switches every beta gate that is not named itself.
const ALL_BETA: &str = "AllBeta";
/// The component whose gates these are, when a name has a prefix.
const COMPONENT: &str = "kube";

/// Locked gates that kube-scheduler still reads: what they switched on is here.
const LOCKED_ON: &[&str] = &[
    "DRAAdminAccess",
    "DynamicResourceAllocation",
    "InPlacePodVerticalScaling",
    "NodeInclusionPolicyInPodTopologySpread",
    "SchedulerQueueingHints",
    "SidecarContainers",
    "VolumeAttributesClass",
];

/// How mature what a gate switches is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off unless asked for.
    Alpha,
    /// On in most cases.
    Beta,
    /// Stays on.
    Stable,
    /// Keeps an old behavior alive.
    Deprecated,
}

/// A gate as the table has it.
struct Gate {
    name: &'static str,
    stage: Stage,
    on: bool,
    locked: bool,
    needs: &'static [&'static str],
    field: Option<fn(&mut FeatureGates) -> &mut bool>,
}

const fn gate(name: &'static str, stage: Stage, on: bool) -> Gate {
    Gate { name, stage, on, locked: false, needs: &[], field: None }
}

const fn alpha(name: &'static str) -> Gate {
    gate(name, Stage::Alpha, false)
}

const fn beta(name: &'static str, on: bool) -> Gate {
    gate(name, Stage::Beta, on)
}

const fn ga(name: &'static str, on: bool) -> Gate {
    gate(name, Stage::Stable, on)
}

const fn deprecated(name: &'static str, on: bool) -> Gate {
    gate(name, Stage::Deprecated, on)
}

impl Gate {
    /// Nobody may change it.
    const fn locked(self) -> Gate {
        Gate { locked: true, ..self }
    }

    /// On only while these are on.
    const fn needs(self, needs: &'static [&'static str]) -> Gate {
        Gate { needs, ..self }
    }

    /// Plugins read it.
    const fn sets(self, field: fn(&mut FeatureGates) -> &mut bool) -> Gate {
        Gate { field: Some(field), ..self }
    }
}

/// A feature gate flag that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// A name without value.
    #[error("missing bool value for {gate}")]
    MissingValue { gate: String },
    /// A value that is no bool.
    #[error(
        "invalid value of {gate}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax"
    )]
    InvalidValue { gate: String, value: String },
    /// No component has a gate of this name in 1.36.
    #[error("unrecognized feature gate: {gate}")]
    Unrecognized { gate: String },
    /// A gate nobody may change.
    #[error("cannot set feature gate {gate} to {to}, feature is locked to {locked_to}")]
    Locked { gate: &'static str, to: bool, locked_to: bool },
    /// On, though something it needs is off.
    #[error("{gate} is enabled, but depends on features that are disabled: [{}]", disabled.join(" "))]
    Dependency { gate: &'static str, disabled: Vec<&'static str> },
    /// Names with the prefix `kube:` beside names without.
    #[error(
        "set kube feature gates with default empty prefix or kube: prefix consistently, do not mix use"
    )]
    MixedPrefix,
    /// A prefix other than `kube:`.
    #[error("component not registered: {component}")]
    UnknownComponent { component: String },
    /// What the gate switches is not built.
    #[error(
        "cannot set feature gate {gate} to {to}: this version of Loadmaster does not have it yet"
    )]
    NotYet { gate: &'static str, to: bool },
    /// As above, by way of `AllAlpha` or `AllBeta`.
    #[error("cannot set {toggle} to {to}: this version of Loadmaster does not have these yet: {}", gates.join(", "))]
    NotYetAll { toggle: &'static str, to: bool, gates: Vec<&'static str> },
}

/// What every gate is.
#[derive(Clone)]
pub struct Gates {
    /// Beside the table.
    on: Vec<bool>,
    /// Gates that were named and that nothing here reads.
    elsewhere: Vec<&'static str>,
    /// Gates that were named and that only a running scheduler reads.
    idle: Vec<&'static str>,
}

impl Default for Gates {
    /// The defaults of 1.36.
    fn default() -> Self {
        let on = table::GATES.iter().map(|gate| gate.on).collect();
        Gates { on, elsewhere: Vec::new(), idle: Vec::new() }
    }
}

impl fmt::Debug for Gates {
    /// What differs from the defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed =
            self.rows().filter(|(gate, on)| gate.on != *on).map(|(gate, on)| (gate.name, on));
        f.debug_map().entries(changed).finish()
    }
}

impl Gates {
    /// Reads the values of `--feature-gates`, which may be given several times:
    /// `Name=true,kube:Name=false`. Later values win.
    pub fn parse<'a>(flags: impl IntoIterator<Item = &'a str>) -> Result<Self, Vec<GateError>> {
        let wanted = read_flags(flags).map_err(|error| vec![error])?;
        let mut errors = Vec::new();
        let mut named: BTreeMap<usize, bool> = BTreeMap::new();
        for (name, to) in &wanted.gates {
            match table::GATES.binary_search_by_key(&name.as_str(), |gate| gate.name) {
                Err(_) => errors.push(GateError::Unrecognized { gate: name.clone() }),
                Ok(idx) => match &table::GATES[idx] {
                    gate if gate.locked && gate.on != *to => {
                        errors.push(GateError::Locked {
                            gate: gate.name,
                            to: *to,
                            locked_to: gate.on,
                        });
                    }
                    gate if gate.on != *to && not_yet::GATES.contains(&gate.name) => {
                        errors.push(GateError::NotYet { gate: gate.name, to: *to });
                    }
                    _ => drop(named.insert(idx, *to)),
                },
            }
        }
        let mut gates = Gates::default();
        for (toggle, stage, to) in
            [(ALL_ALPHA, Stage::Alpha, wanted.all_alpha), (ALL_BETA, Stage::Beta, wanted.all_beta)]
        {
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

    /// Whether a gate is on; `false` for a name that is no gate.
    pub fn enabled(&self, name: &str) -> bool {
        table::GATES.binary_search_by_key(&name, |gate| gate.name).is_ok_and(|idx| self.on[idx])
    }

    /// Every gate: name, stage, default, and what it is.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Stage, bool, bool)> {
        self.rows().map(|(gate, on)| (gate.name, gate.stage, gate.on, on))
    }

    /// What plugins read.
    pub fn framework(&self) -> FeatureGates {
        let mut features = FeatureGates::default();
        for (gate, on) in self.rows() {
            if let Some(field) = gate.field {
                *field(&mut features) = on;
            }
        }
        features
    }

    /// What was said and changes nothing, one sentence a kind.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.elsewhere.is_empty() {
            notes.push(format!(
                "feature gates that mean nothing to this scheduler: {}",
                self.elsewhere.join(", ")
            ));
        }
        if !self.idle.is_empty() {
            notes.push(format!("feature gates that have no effect here: {}", self.idle.join(", ")));
        }
        notes
    }

    fn rows(&self) -> impl Iterator<Item = (&'static Gate, bool)> {
        table::GATES.iter().zip(self.on.iter().copied())
    }

    fn set(&mut self, idx: usize, to: bool) {
        let gate = &table::GATES[idx];
        self.on[idx] = to;
        if not_yet::IDLE_GATES.contains(&gate.name) {
            self.idle.push(gate.name);
        } else if !is_read(gate) && !not_yet::DAEMON_GATES.contains(&gate.name) {
            self.elsewhere.push(gate.name);
        }
    }

    /// Switches all gates of a stage that are not named themselves.
    fn set_all(
        &mut self,
        toggle: &'static str,
        stage: Stage,
        to: bool,
        named: &BTreeMap<usize, bool>,
        errors: &mut Vec<GateError>,
    ) {
        let mut not_built = Vec::new();
        for (idx, gate) in table::GATES.iter().enumerate() {
            if gate.stage != stage || gate.on == to || named.contains_key(&idx) {
                continue;
            }
            if not_yet::GATES.contains(&gate.name) {
                not_built.push(gate.name);
            }
            self.on[idx] = to;
        }
        if !not_built.is_empty() {
            errors.push(GateError::NotYetAll { toggle, to, gates: not_built });
        }
    }

    fn dependencies(&self) -> Vec<GateError> {
        let mut errors = Vec::new();
        for (gate, _) in self.rows().filter(|(_, on)| *on) {
            let disabled: Vec<&str> =
                gate.needs.iter().copied().filter(|name| !self.enabled(name)).collect();
            if !disabled.is_empty() {
                errors.push(GateError::Dependency { gate: gate.name, disabled });
            }
        }
        errors
    }
}

/// Whether something here reads the gate, be it only to know that it has its default.
fn is_read(gate: &Gate) -> bool {
    let lists = [LOCKED_ON, defaults::GATES, not_yet::GATES];
    gate.field.is_some() || lists.iter().any(|names| names.contains(&gate.name))
}

/// The flags as a map, later values over earlier ones.
#[derive(Default)]
struct Wanted {
    gates: BTreeMap<String, bool>,
    all_alpha: Option<bool>,
    all_beta: Option<bool>,
}

fn read_flags<'a>(flags: impl IntoIterator<Item = &'a str>) -> Result<Wanted, GateError> {
    let mut wanted = Wanted::default();
    let mut prefixed = None;
    for item in flags.into_iter().flat_map(|flag| flag.split(',')).filter(|item| !item.is_empty()) {
        let (component, item) = match item.split_once(':') {
            Some((component, item)) => (Some(component.trim()), item.trim()),
            None => (None, item.trim()),
        };
        if let Some(component) = component.filter(|component| !matches!(*component, COMPONENT | ""))
        {
            return Err(GateError::UnknownComponent { component: component.to_owned() });
        }
        let has_prefix = component == Some(COMPONENT);
        if *prefixed.get_or_insert(has_prefix) != has_prefix {
            return Err(GateError::MixedPrefix);
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

/// `Name=value`, with the spellings of a bool that Go accepts.
fn read_item(item: &str) -> Result<(&str, bool), GateError> {
    let Some((gate, value)) = item.split_once('=') else {
        return Err(GateError::MissingValue { gate: item.to_owned() });
    };
    let (gate, value) = (gate.trim(), value.trim());
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok((gate, true)),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok((gate, false)),
        _ => Err(GateError::InvalidValue { gate: gate.to_owned(), value: value.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
