//! Priorities: the plugins that score nodes.

use std::collections::BTreeMap;

use loadmaster_framework::FieldError;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::PolicyBuilder;
use crate::extension_point::ExtensionPoint::{PreScore, Score};
use loadmaster_stdx::did_you_mean;

/// A priority as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Priority {
    name: String,
    weight: i64,
    argument: Option<Argument>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Argument {
    service_anti_affinity: Option<ServiceAntiAffinity>,
    label_preference: Option<LabelPreference>,
    requested_to_capacity_ratio_arguments: Option<RequestedToCapacityRatio>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ServiceAntiAffinity {
    label: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LabelPreference {
    label: String,
    presence: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RequestedToCapacityRatio {
    shape: Vec<Map<String, Value>>,
    resources: Vec<Map<String, Value>>,
}

/// How a priority is registered: its name, its plugin, and whether the plugin runs at PreScore.
type Registered = (&'static str, &'static str, bool);

const SELECTOR_SPREAD: &str = "SelectorSpreadPriority";
const EVEN_PODS_SPREAD: &str = "EvenPodsSpreadPriority";
const INTER_POD_AFFINITY: &str = "InterPodAffinityPriority";
const NODE_LABEL: &str = "NodeLabel";
const SERVICE_AFFINITY: &str = "ServiceAffinity";
const REQUESTED_TO_CAPACITY_RATIO: &str = "RequestedToCapacityRatio";
/// Gives all nodes the same score.
const EQUAL: &str = "EqualPriority";

const PRIORITIES: &[Registered] = &[
    (SELECTOR_SPREAD, "PodTopologySpread", true),
    ("TaintTolerationPriority", "TaintToleration", true),
    ("NodeAffinityPriority", "NodeAffinity", true),
    ("ImageLocalityPriority", "ImageLocality", false),
    (INTER_POD_AFFINITY, "InterPodAffinity", true),
    ("NodePreferAvoidPodsPriority", "NodePreferAvoidPods", false),
    ("MostRequestedPriority", "NodeResourcesMostAllocated", false),
    ("BalancedResourceAllocation", "NodeResourcesBalancedAllocation", false),
    ("LeastRequestedPriority", "NodeResourcesLeastAllocated", false),
    (REQUESTED_TO_CAPACITY_RATIO, "RequestedToCapacityRatio", false),
    (NODE_LABEL, "NodeLabel", false),
    (SERVICE_AFFINITY, "ServiceAffinity", false),
    (EVEN_PODS_SPREAD, "PodTopologySpread", true),
];

/// The priorities of a Policy without a list, with their weights.
const DEFAULTS: &[(&str, i32)] = &[
    (SELECTOR_SPREAD, 1),
    (INTER_POD_AFFINITY, 1),
    ("LeastRequestedPriority", 1),
    ("BalancedResourceAllocation", 1),
    ("NodePreferAvoidPodsPriority", 10000),
    ("NodeAffinityPriority", 1),
    ("TaintTolerationPriority", 1),
    ("ImageLocalityPriority", 1),
    (EVEN_PODS_SPREAD, 2),
];

/// An older name for [`SELECTOR_SPREAD`].
const SERVICE_SPREADING: &str = "ServiceSpreadingPriority";

impl PolicyBuilder {
    /// Enables the plugins of the priorities; the default ones if there is no list. A `hard_pod_affinity_weight` of 0 means the default.
    pub(super) fn priorities(
        &mut self,
        written: Option<&[Priority]>,
        hard_pod_affinity_weight: i32,
    ) {
        // By name, as upstream: weight, and the path in the file.
        let mut enabled: BTreeMap<&'static str, (i32, Option<String>)> = BTreeMap::new();
        match written {
            None => enabled.extend(DEFAULTS.iter().map(|(name, weight)| (*name, (*weight, None)))),
            Some(written) => {
                self.check_custom_priorities(written);
                for (idx, priority) in written.iter().enumerate() {
                    let path = format!("priorities[{idx}]");
                    if !self.is_decoded(&path) {
                        continue;
                    }
                    match self.priority(&path, priority) {
                        Ok(Some((name, weight))) => {
                            enabled.insert(name, (weight, Some(path)));
                        }
                        Ok(None) => {}
                        Err(error) => self.findings.errors.push(error),
                    }
                }
            }
        }
        for (name, (weight, origin)) in enabled {
            let Some((_, plugin, has_pre_score)) =
                PRIORITIES.iter().find(|(known, ..)| *known == name)
            else {
                continue;
            };
            // Several priorities of this kind become one plugin with the sum of their weights.
            let n_labels = match name {
                NODE_LABEL => {
                    self.n_args(plugin, &["presentLabelsPreference", "absentLabelsPreference"])
                }
                SERVICE_AFFINITY => self.n_args(plugin, &["antiAffinityLabelsPreference"]),
                _ => 1,
            };
            let weight = weight.wrapping_mul(n_labels);
            let reason = format!("priority {name}");
            if *has_pre_score {
                self.enable(PreScore, plugin, 0, &reason, origin.as_deref());
            }
            self.enable(Score, plugin, weight, &reason, origin.as_deref());
            self.default_args(name, hard_pod_affinity_weight);
        }
    }

    /// The arguments that a priority implies.
    fn default_args(&mut self, priority: &str, hard_pod_affinity_weight: i32) {
        let (plugin, argument, value) = match priority {
            // Upstream's order of these two does not matter: System wins.
            SELECTOR_SPREAD => ("PodTopologySpread", "defaultingType", json!("System")),
            EVEN_PODS_SPREAD => ("PodTopologySpread", "defaultingType", json!("List")),
            INTER_POD_AFFINITY if hard_pod_affinity_weight != 0 => {
                ("InterPodAffinity", "hardPodAffinityWeight", json!(hard_pod_affinity_weight))
            }
            _ => return,
        };
        let args = self.args.entry(plugin).or_default();
        if priority != EVEN_PODS_SPREAD || !args.contains_key(argument) {
            args.insert(argument.to_owned(), value);
        }
    }

    /// The number of elements of lists among the arguments of a plugin.
    fn n_args(&self, plugin: &str, arguments: &[&str]) -> i32 {
        let Some(args) = self.args.get(plugin) else { return 0 };
        let lens = arguments.iter().filter_map(|argument| args.get(*argument)?.as_array());
        lens.map(|list| i32::try_from(list.len()).unwrap_or(i32::MAX)).fold(0, i32::saturating_add)
    }

    /// The name under which a priority is registered, and its weight; `None` if it means nothing.
    fn priority(
        &mut self,
        path: &str,
        priority: &Priority,
    ) -> Result<Option<(&'static str, i32)>, FieldError> {
        let name = priority.name.as_str();
        // The largest weight is far below upstream's, whose weights are cut to 32 bits.
        let weight = i32::try_from(priority.weight).unwrap_or(0);
        if weight <= 0 {
            let text = format!(
                "priority {name} should have a positive weight applied to it or it has overflown"
            );
            return Err(FieldError::invalid(format!("{path}.weight"), priority.weight, text));
        }
        if name == EQUAL {
            self.findings
                .notes
                .push(format!("priority {EQUAL} has no effect: all nodes get the same score"));
            return Ok(None);
        }
        let argument = priority.argument.clone();
        let n_given = argument.as_ref().map(|it| {
            usize::from(it.service_anti_affinity.is_some())
                + usize::from(it.label_preference.is_some())
                + usize::from(it.requested_to_capacity_ratio_arguments.is_some())
        });
        if n_given.is_some_and(|n_given| n_given != 1) {
            let expected = "exactly 1 priority argument is required: serviceAntiAffinity, labelPreference or \
                            requestedToCapacityRatioArguments";
            let path = format!("{path}.argument");
            return Err(FieldError::invalid(path, format_args!("{name:?}"), expected));
        }
        let current = if name == SERVICE_SPREADING { SELECTOR_SPREAD } else { name };
        let needs_argument =
            [NODE_LABEL, SERVICE_AFFINITY, REQUESTED_TO_CAPACITY_RATIO].contains(&current);
        let known = PRIORITIES.iter().find(|(known, ..)| *known == current);
        if let Some((known, ..)) = known.filter(|_| !needs_argument) {
            if argument.is_some() {
                self.findings.notes.push(format!(
                    "the argument of priority {name} has no effect: arguments belong to priorities with a name of their own"
                ));
            }
            return Ok(Some((known, weight)));
        }
        match argument.unwrap_or_default() {
            Argument { service_anti_affinity: Some(it), .. } => {
                let argument = "antiAffinityLabelsPreference";
                self.append_args(SERVICE_AFFINITY, argument, [it.label]);
                Ok(Some((SERVICE_AFFINITY, weight)))
            }
            Argument { label_preference: Some(it), .. } => {
                let argument =
                    if it.presence { "presentLabelsPreference" } else { "absentLabelsPreference" };
                self.append_args(NODE_LABEL, argument, [it.label]);
                Ok(Some((NODE_LABEL, weight)))
            }
            Argument { requested_to_capacity_ratio_arguments: Some(it), .. } => {
                let args = self.args.entry(REQUESTED_TO_CAPACITY_RATIO).or_default();
                args.insert("shape".to_owned(), it.shape.into());
                if !it.resources.is_empty() {
                    args.insert("resources".to_owned(), it.resources.into());
                }
                Ok(Some((REQUESTED_TO_CAPACITY_RATIO, weight)))
            }
            _ => {
                let known = PRIORITIES.iter().map(|(known, ..)| *known);
                let text = format!(
                    "priority type not found for {name:?}{}",
                    did_you_mean(name, known.chain([EQUAL, SERVICE_SPREADING]))
                );
                Err(FieldError { path: format!("{path}.name"), text })
            }
        }
    }

    /// RequestedToCapacityRatio may stand once; priorities with labels must have the same weight (upstream's
    /// `validateCustomPriorities`).
    fn check_custom_priorities(&mut self, written: &[Priority]) {
        let mut first: BTreeMap<&str, &Priority> = BTreeMap::new();
        for (idx, priority) in written.iter().enumerate() {
            let Some(argument) = &priority.argument else { continue };
            let kind = if argument.label_preference.is_some() {
                "LabelPreference"
            } else if argument.service_anti_affinity.is_some() {
                "ServiceAntiAffinity"
            } else if argument.requested_to_capacity_ratio_arguments.is_some() {
                REQUESTED_TO_CAPACITY_RATIO
            } else {
                continue;
            };
            let name = &priority.name;
            let known = *first.entry(kind).or_insert(priority);
            if std::ptr::eq(known, priority) {
                continue;
            }
            if kind == REQUESTED_TO_CAPACITY_RATIO {
                let text = format!(
                    "priority {name:?} redeclares custom priority {kind:?}, from: {:?}",
                    known.name
                );
                self.findings.errors.push(FieldError { path: format!("priorities[{idx}]"), text });
            } else if known.weight != priority.weight {
                let text = format!(
                    "{kind} priority {name:?} has a different weight with {:?}",
                    known.name
                );
                let path = format!("priorities[{idx}].weight");
                self.findings.errors.push(FieldError::invalid(path, priority.weight, text));
            }
        }
    }
}
