//! Random configurations and Policies that are valid and in which plugins run that decide as they did then.

use serde_json::{Map, Value, json};

use super::dice::Dice;
use super::pods;
use crate::oracle::old_configurations::version::{OldRelease, OldVersion, PluginTable};

/// Plugins of Filter and Score that decide today as in their time.
const PLUGINS: &[&str] = &[
    "NodeName",
    "NodeUnschedulable",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "InterPodAffinity",
    "PodTopologySpread",
    "NodeLabel",
    "ServiceAffinity",
    "EBSLimits",
    "GCEPDLimits",
    "AzureDiskLimits",
    "CinderLimits",
    "ImageLocality",
    "NodePreferAvoidPods",
    "SelectorSpread",
    "DefaultPodTopologySpread",
    "NodeResourcesLeastAllocated",
    "NodeResourcesMostAllocated",
    "RequestedToCapacityRatio",
];

/// Plugins that configurations since v1beta2 must not enable, though 1.22 has them.
const REMOVED_IN_V1BETA2: &[&str] = &[
    "NodeLabel",
    "ServiceAffinity",
    "NodePreferAvoidPods",
    "NodeResourcesLeastAllocated",
    "NodeResourcesMostAllocated",
    "RequestedToCapacityRatio",
];

/// Extension points whose defaults may be disabled as a whole.
const POINTS: [&str; 4] = ["preFilter", "filter", "preScore", "score"];

const LABELS: &[&str] = &["topology.kubernetes.io/zone", "rack", "disk"];

/// The releases that are asked, and in which versions.
pub const ASKED: &[(OldRelease, OldVersion)] = &[
    (OldRelease::V1_18, OldVersion::V1Alpha1),
    (OldRelease::V1_18, OldVersion::V1Alpha2),
    (OldRelease::V1_18, OldVersion::Policy),
    (OldRelease::V1_22, OldVersion::V1Beta1),
    (OldRelease::V1_22, OldVersion::V1Beta2),
    (OldRelease::V1_22, OldVersion::Policy),
    (OldRelease::V1_25, OldVersion::V1Beta2),
    (OldRelease::V1_25, OldVersion::V1Beta3),
];

pub fn configuration(dice: &mut Dice, version: OldVersion, table: &PluginTable) -> Value {
    if version == OldVersion::Policy {
        return policy(dice, table.release == Some(OldRelease::V1_18));
    }
    let provider = match version == OldVersion::V1Alpha1 && dice.percent(40) {
        true => Some(dice.pick(&["DefaultProvider", AUTOSCALER_PROVIDER])),
        false => None,
    };
    let draw = Draw { version, table, is_for_autoscaler: provider == Some(AUTOSCALER_PROVIDER) };
    let mut file = version.empty_file();
    let profile = draw.profile(dice);
    if version != OldVersion::V1Alpha1 {
        file["profiles"] = json!([profile]);
        return file;
    }
    if let Some(provider) = provider {
        file["algorithmSource"] = json!({"provider": provider});
    }
    // These weights would be a second list of arguments of the plugin.
    if !profile["pluginConfig"].to_string().contains("InterPodAffinity") {
        dice.put(&mut file, 40, "hardPodAffinitySymmetricWeight", |it| {
            it.pick(&[0, 1, 50, 100]).into()
        });
    }
    dice.put(&mut file, 30, "schedulerName", |it| it.pick(&["default-scheduler", "old"]).into());
    dice.put(&mut file, 30, "disablePreemption", |it| it.percent(50).into());
    for field in ["plugins", "pluginConfig"] {
        if let Some(of_profile) = profile.get(field) {
            file[field] = of_profile.clone();
        }
    }
    file
}

/// The algorithm provider of v1alpha1 that prefers nodes with the most requested resources.
const AUTOSCALER_PROVIDER: &str = "ClusterAutoscalerProvider";

struct Draw<'a> {
    version: OldVersion,
    table: &'a PluginTable,
    /// Whether the defaults are those of [`AUTOSCALER_PROVIDER`].
    is_for_autoscaler: bool,
}

impl Draw<'_> {
    /// Whether files of this version may name the plugin.
    fn has(&self, plugin: &str) -> bool {
        let is_removed =
            self.version >= OldVersion::V1Beta2 && REMOVED_IN_V1BETA2.contains(&plugin);
        self.table.points.contains_key(plugin) && !is_removed
    }

    fn is_default(&self, plugin: &str, point: &str) -> bool {
        let is_autoscalers = plugin == "NodeResourcesMostAllocated" && point == "score";
        self.table.is_default(plugin, point) || self.is_for_autoscaler && is_autoscalers
    }

    fn profile(&self, dice: &mut Dice) -> Value {
        let keeps_defaults = dice.percent(25);
        let percent = if keeps_defaults { 30 } else { 45 };
        let chosen_for = |dice: &mut Dice, point: &str| -> Vec<&str> {
            let candidates: Vec<&str> = PLUGINS
                .iter()
                .copied()
                .filter(|name| self.has(name) && self.table.implements(name, point))
                .filter(|name| !(keeps_defaults && self.is_default(name, point)))
                .collect();
            dice.each(&candidates, percent)
        };
        let (filters, mut scores) = (chosen_for(dice, "filter"), chosen_for(dice, "score"));
        // A conflict with the other scores of resources in 1.22.
        let scores_resources = keeps_defaults && self.version == OldVersion::V1Beta1;
        if scores_resources || scores.iter().any(|name| REMOVED_IN_V1BETA2.contains(name)) {
            scores.retain(|name| *name != "NodeResourcesFit");
        }
        let mut plugins = Map::new();
        for point in POINTS {
            let of_point = if matches!(point, "preFilter" | "filter") { &filters } else { &scores };
            let names = of_point.iter().filter(|name| {
                let is_default = keeps_defaults && self.is_default(name, point);
                self.table.implements(name, point) && !is_default
            });
            let entries = names.map(|name| match point {
                "score" => json!({"name": name, "weight": dice.pick(&[1, 2, 3, 10, 100])}),
                _ => json!({"name": name}),
            });
            let mut set = json!({"enabled": entries.collect::<Value>()});
            if !keeps_defaults {
                set["disabled"] = json!([{"name": "*"}]);
            }
            // PreScore was called PostFilter then.
            let is_renamed = self.version == OldVersion::V1Alpha1 && point == "preScore";
            let field = if is_renamed { "postFilter" } else { point };
            plugins.insert(field.to_owned(), set);
        }
        let mut profile = json!({"plugins": plugins});
        let args = self.plugin_config(dice, &filters, &scores);
        if !args.is_empty() {
            profile["pluginConfig"] = args.into();
        }
        profile
    }

    fn plugin_config(&self, dice: &mut Dice, filters: &[&str], scores: &[&str]) -> Vec<Value> {
        let mut configs = Vec::new();
        for name in PLUGINS {
            let is_enabled = filters.contains(name) || scores.contains(name);
            // NodeResourcesFit and others may be enabled by default.
            let percent = if is_enabled { 80 } else { 20 };
            let has_required_args = match *name {
                "RequestedToCapacityRatio" => true,
                // Without preferences it divided by 0.
                "NodeLabel" => self.version.is_alpha(),
                _ => false,
            };
            let is_needed = is_enabled && has_required_args;
            if (is_needed || dice.percent(percent))
                && self.has(name)
                && let Some(args) = self.args(dice, name)
            {
                configs.push(json!({"name": name, "args": args}));
            }
        }
        configs
    }

    fn args(&self, dice: &mut Dice, plugin: &str) -> Option<Value> {
        let is_1_18 = self.version.is_alpha();
        Some(match plugin {
            "NodeLabel" => node_label(dice, is_1_18),
            "ServiceAffinity" => json!({
                "affinityLabels": dice.some(LABELS, 0, 2),
                "antiAffinityLabelsPreference": dice.some(LABELS, 0, 2),
            }),
            "RequestedToCapacityRatio" => {
                json!({"shape": shape(dice), "resources": resources(dice, 1)})
            }
            "NodeResourcesLeastAllocated" | "NodeResourcesMostAllocated" if !is_1_18 => {
                json!({"resources": resources(dice, 0)})
            }
            "InterPodAffinity" => json!({"hardPodAffinityWeight": dice.pick(&[0, 1, 50])}),
            "NodeResourcesFit" if !matches!(self.version, OldVersion::V1Beta1) && !is_1_18 => {
                json!({"scoringStrategy": scoring_strategy(dice)})
            }
            "NodeResourcesFit" => json!({"ignoredResources": ["example.com/gpu"]}),
            "PodTopologySpread" => spread(dice, self.table.release),
            _ => return None,
        })
    }
}

fn node_label(dice: &mut Dice, needs_preference: bool) -> Value {
    let mut args = json!({});
    dice.put(&mut args, 30, "presentLabels", |it| it.some(LABELS, 1, 2).into());
    dice.put(&mut args, 30, "absentLabels", |_| json!(["retiring"]));
    let percent = if needs_preference { 100 } else { 60 };
    dice.put(&mut args, percent, "presentLabelsPreference", |it| it.some(LABELS, 1, 3).into());
    dice.put(&mut args, 40, "absentLabelsPreference", |_| json!(["retiring"]));
    args
}

fn shape(dice: &mut Dice) -> Value {
    let n = dice.range(1, 3);
    (0..n).map(|at| json!({"utilization": at * 50, "score": dice.range(0, 10)})).collect()
}

fn resources(dice: &mut Dice, n_min: i64) -> Value {
    let names = ["cpu", "memory", "example.com/gpu", "ephemeral-storage"];
    let chosen = dice.some(&names, n_min, 4).into_iter();
    chosen.map(|name| json!({"name": name, "weight": dice.pick(&[1, 2, 5, 100])})).collect()
}

fn scoring_strategy(dice: &mut Dice) -> Value {
    let mut strategy = json!({"resources": resources(dice, 1)});
    match dice.range(0, 2) {
        0 => strategy["type"] = "LeastAllocated".into(),
        1 => strategy["type"] = "MostAllocated".into(),
        _ => {
            strategy["type"] = "RequestedToCapacityRatio".into();
            strategy["requestedToCapacityRatio"] = json!({"shape": shape(dice)});
        }
    }
    strategy
}

fn spread(dice: &mut Dice, release: Option<OldRelease>) -> Value {
    let keys = dice.some(&["topology.kubernetes.io/zone", "kubernetes.io/hostname"], 1, 2);
    let many_required = release > Some(OldRelease::V1_22);
    let when = pods::required_or_not(dice, keys.len(), many_required);
    let constraint = |(key, when): (&str, &str)| {
        let max_skew = dice.range(1, 3);
        json!({"maxSkew": max_skew, "topologyKey": key, "whenUnsatisfiable": when})
    };
    let constraints: Value = keys.into_iter().zip(when).map(constraint).collect();
    let mut args = json!({"defaultConstraints": constraints});
    if release != Some(OldRelease::V1_18) {
        args["defaultingType"] = "List".into();
    }
    args
}

const PREDICATES: &[&str] = &[
    "CheckNodeUnschedulable",
    "PodToleratesNodeTaints",
    "MaxEBSVolumeCount",
    "MaxGCEPDVolumeCount",
    "MaxAzureDiskVolumeCount",
    "MaxCinderVolumeCount",
    "EvenPodsSpread",
    "MatchInterPodAffinity",
];

const PARTS_OF_GENERAL: &[&str] =
    &["HostName", "PodFitsHostPorts", "MatchNodeSelector", "PodFitsResources"];

const PRIORITIES: &[&str] = &[
    "SelectorSpreadPriority",
    "EvenPodsSpreadPriority",
    "InterPodAffinityPriority",
    "LeastRequestedPriority",
    "MostRequestedPriority",
    "NodePreferAvoidPodsPriority",
    "NodeAffinityPriority",
    "TaintTolerationPriority",
    "ImageLocalityPriority",
];

fn policy(dice: &mut Dice, is_1_18: bool) -> Value {
    let mut predicates: Vec<Value> =
        dice.each(PREDICATES, 40).into_iter().map(|name| json!({"name": name})).collect();
    let parts = match dice.percent(50) {
        true => vec!["GeneralPredicates"],
        false => dice.each(PARTS_OF_GENERAL, 50),
    };
    predicates.extend(parts.into_iter().map(|name| json!({"name": name})));
    if dice.percent(30) {
        let labels =
            json!({"labels": [dice.pick(&["retiring", "disk"])], "presence": dice.percent(40)});
        predicates.push(json!({"name": "Labels", "argument": {"labelsPresence": labels}}));
    }
    if dice.percent(30) {
        let argument = json!({"serviceAffinity": {"labels": dice.some(LABELS, 1, 2)}});
        predicates.push(json!({"name": "Affinity", "argument": argument}));
    }
    let mut priorities: Vec<Value> = Vec::new();
    let mut names = dice.each(PRIORITIES, 40);
    // A Policy is read as by 1.22, where it is PodTopologySpread with default constraints.
    names.retain(|name| !is_1_18 || *name != "SelectorSpreadPriority");
    for name in names {
        priorities.push(json!({"name": name, "weight": dice.pick(&[1, 2, 10])}));
    }
    let arguments = policy_arguments(dice, is_1_18);
    for (at, argument) in arguments.into_iter().enumerate() {
        priorities.push(json!({"name": format!("Custom{at}"), "weight": 2, "argument": argument}));
    }
    let mut policy = OldVersion::Policy.empty_file();
    policy["predicates"] = predicates.into();
    policy["priorities"] = priorities.into();
    dice.put(&mut policy, 30, "hardPodAffinitySymmetricWeight", |it| it.pick(&[1, 10, 100]).into());
    policy
}

fn policy_arguments(dice: &mut Dice, is_1_18: bool) -> Vec<Value> {
    let mut arguments = Vec::new();
    for label in dice.each(LABELS, 20) {
        let preference = json!({"label": label, "presence": dice.percent(50)});
        arguments.push(json!({"labelPreference": preference}));
    }
    for label in dice.each(LABELS, 20) {
        arguments.push(json!({"serviceAntiAffinity": {"label": label}}));
    }
    if dice.percent(25) {
        let n_min = if is_1_18 { 0 } else { 1 };
        let ratio = json!({"shape": shape(dice), "resources": resources(dice, n_min)});
        arguments.push(json!({"requestedToCapacityRatioArguments": ratio}));
    }
    arguments
}
