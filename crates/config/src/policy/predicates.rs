//! Predicates: the plugins that filter nodes.

use std::collections::BTreeMap;

use loadmaster_framework::FieldError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::PolicyBuilder;
use crate::extension_point::ExtensionPoint::{self, Filter, PreBind, PreFilter, Reserve};
use loadmaster_stdx::did_you_mean;

/// A predicate as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Predicate {
    name: String,
    argument: Option<Argument>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Argument {
    service_affinity: Option<ServiceAffinity>,
    labels_presence: Option<LabelsPresence>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ServiceAffinity {
    labels: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LabelsPresence {
    labels: Vec<String>,
    presence: bool,
}

/// A plugin with the extension points at which a predicate enables it.
type Enables = (&'static str, &'static [ExtensionPoint]);

const NODE_LABEL: &str = "CheckNodeLabelPresence";
const SERVICE_AFFINITY: &str = "CheckServiceAffinity";

/// Every predicate with the plugins that it enables, in the order in which predicates run (upstream's `predicateOrdering`).
const PREDICATES: &[(&str, &[Enables])] = &[
    ("CheckNodeUnschedulable", &[("NodeUnschedulable", &[Filter])]),
    (
        "GeneralPredicates",
        &[
            ("NodeResourcesFit", &[Filter, PreFilter]),
            ("NodeName", &[Filter]),
            ("NodePorts", &[Filter, PreFilter]),
            ("NodeAffinity", &[Filter, PreFilter]),
        ],
    ),
    ("HostName", &[("NodeName", &[Filter])]),
    ("PodFitsHostPorts", &[("NodePorts", &[Filter, PreFilter])]),
    ("MatchNodeSelector", &[("NodeAffinity", &[Filter, PreFilter])]),
    ("PodFitsResources", &[("NodeResourcesFit", &[Filter, PreFilter])]),
    ("NoDiskConflict", &[("VolumeRestrictions", &[Filter])]),
    ("PodToleratesNodeTaints", &[("TaintToleration", &[Filter])]),
    (NODE_LABEL, &[("NodeLabel", &[Filter])]),
    (SERVICE_AFFINITY, &[("ServiceAffinity", &[Filter, PreFilter])]),
    ("MaxEBSVolumeCount", &[("EBSLimits", &[Filter])]),
    ("MaxGCEPDVolumeCount", &[("GCEPDLimits", &[Filter])]),
    ("MaxCSIVolumeCountPred", &[("NodeVolumeLimits", &[Filter])]),
    ("MaxAzureDiskVolumeCount", &[("AzureDiskLimits", &[Filter])]),
    ("MaxCinderVolumeCount", &[("CinderLimits", &[Filter])]),
    ("CheckVolumeBinding", &[("VolumeBinding", &[PreFilter, Filter, Reserve, PreBind])]),
    ("NoVolumeZoneConflict", &[("VolumeZone", &[Filter])]),
    ("EvenPodsSpread", &[("PodTopologySpread", &[PreFilter, Filter])]),
    ("MatchInterPodAffinity", &[("InterPodAffinity", &[Filter, PreFilter])]),
];

/// Predicates that always run.
const MANDATORY: &[&str] = &["PodToleratesNodeTaints", "CheckNodeUnschedulable"];

/// The predicates of a Policy without a list.
const DEFAULTS: &[&str] = &[
    "NoVolumeZoneConflict",
    "MaxEBSVolumeCount",
    "MaxGCEPDVolumeCount",
    "MaxAzureDiskVolumeCount",
    "MaxCSIVolumeCountPred",
    "MatchInterPodAffinity",
    "NoDiskConflict",
    "GeneralPredicates",
    "PodToleratesNodeTaints",
    "CheckVolumeBinding",
    "CheckNodeUnschedulable",
    "EvenPodsSpread",
];

/// Names for predicates of older releases, with what they are called in 1.22.
const ALIASES: &[(&str, &str)] =
    &[("PodFitsPorts", "PodFitsHostPorts"), ("NoVolumeNodeConflict", "CheckVolumeBinding")];

/// Predicates of older releases that mean nothing since: nodes have taints for these conditions.
const OBSOLETE: &[&str] = &[
    "CheckNodeCondition",
    "CheckNodeMemoryPressure",
    "CheckNodeDiskPressure",
    "CheckNodePIDPressure",
];

impl PolicyBuilder {
    /// Enables the plugins of the predicates; the default ones if there is no list.
    pub(super) fn predicates(&mut self, written: Option<&[Predicate]>) {
        // By name, each with its path in the file.
        let mut names: BTreeMap<&'static str, Option<String>> = BTreeMap::new();
        match written {
            None => names.extend(DEFAULTS.iter().map(|name| (*name, None))),
            Some(written) => {
                for (idx, predicate) in written.iter().enumerate() {
                    let path = format!("predicates[{idx}]");
                    if !self.is_decoded(&path) {
                        continue;
                    }
                    match self.predicate(&path, predicate) {
                        Ok(Some(name)) => {
                            names.entry(name).or_insert(Some(path));
                        }
                        Ok(None) => {}
                        Err(error) => self.findings.errors.push(error),
                    }
                }
            }
        }
        for name in MANDATORY {
            names.entry(name).or_insert(None);
        }
        for (name, enables) in PREDICATES {
            let Some(origin) = names.get(name) else { continue };
            for (plugin, points) in *enables {
                for point in *points {
                    let reason = format!("predicate {name}");
                    self.enable(*point, plugin, 0, &reason, origin.as_deref());
                }
            }
        }
    }

    /// The name under which a predicate is registered; `None` if it means nothing.
    fn predicate(
        &mut self,
        path: &str,
        predicate: &Predicate,
    ) -> Result<Option<&'static str>, FieldError> {
        let name = predicate.name.as_str();
        let argument = predicate.argument.clone();
        let given = argument.as_ref().map(|argument| {
            usize::from(argument.service_affinity.is_some())
                + usize::from(argument.labels_presence.is_some())
        });
        if given.is_some_and(|n_given| n_given != 1) {
            let path = format!("{path}.argument");
            let expected =
                "exactly 1 predicate argument is required: serviceAffinity or labelsPresence";
            return Err(FieldError::invalid(path, format_args!("{name:?}"), expected));
        }
        let current = ALIASES.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| *new);
        if let Some((known, _)) = PREDICATES.iter().find(|(known, _)| *known == current) {
            if argument.is_some() {
                self.findings.notes.push(format!(
                    "the argument of predicate {name} has no effect: arguments belong to predicates with a name of their own"
                ));
            }
            return Ok(Some(known));
        }
        if OBSOLETE.contains(&name) {
            self.findings.notes.push(format!(
                "predicate {name} has no effect: nodes with this condition have a taint, which TaintToleration checks"
            ));
            return Ok(None);
        }
        match argument.unwrap_or_default() {
            Argument { service_affinity: Some(it), .. } => {
                self.append_args("ServiceAffinity", "affinityLabels", it.labels);
                Ok(Some(SERVICE_AFFINITY))
            }
            Argument { labels_presence: Some(it), .. } => {
                let argument = if it.presence { "presentLabels" } else { "absentLabels" };
                self.append_args("NodeLabel", argument, it.labels);
                Ok(Some(NODE_LABEL))
            }
            _ => {
                let known = PREDICATES.iter().map(|(known, _)| *known);
                let text = format!(
                    "predicate type not found for {name:?}{}",
                    did_you_mean(name, known.chain(OBSOLETE.iter().copied()))
                );
                Err(FieldError { path: format!("{path}.name"), text })
            }
        }
    }

    /// Appends to a list among the arguments of a plugin.
    pub(super) fn append_args(
        &mut self,
        plugin: &'static str,
        argument: &str,
        values: impl IntoIterator<Item = String>,
    ) {
        let args = self.args.entry(plugin).or_default();
        let list = args.entry(argument).or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            list.extend(values.into_iter().map(Value::from));
        }
    }
}
