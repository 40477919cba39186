//! What Loadmaster must make of a file for which an old scheduler gives some answer. All intended differences are here:
//!
//! | difference | why |
//! | --- | --- |
//! | plugins that the release does not have are left out of Loadmaster's lists ([`comparable_plugins`]) | SchedulingGates, DynamicResources, NodeDeclaredFeatures and later ones are added to every profile: without them pods that must wait would be scheduled |
//! | so are extension points that a plugin of the release did not have | plugins need them today: VolumeBinding at PreFilter, Reserve and PreBind |
//! | so are plugins that Loadmaster adds at an extension point that they need today ([`NEEDED_POINTS`]) | VolumeRestrictions at PreFilter with a Policy |
//! | plugins of v1beta3 have the order that `expandMultiPointPlugins` of 1.25 documents (`intendedPlugins`) | it changes a list while it reads it: two plugins at an extension point that override multiPoint may be misplaced or stand twice; mended later |
//! | DefaultPodTopologySpread is SelectorSpread | its name since 1.19 |
//! | DefaultPreemption stands at PostFilter for 1.18, unless `disablePreemption` is set | preemption was not a plugin then |
//! | plugins at Unreserve stand at Reserve | as since 1.20 |
//! | exactly one of the score plugins NodeResourcesLeastAllocated, NodeResourcesMostAllocated and RequestedToCapacityRatio, without NodeResourcesFit at Score: NodeResourcesFit with that strategy, in its place and with its weight, is as good | the plugins were removed in 1.25 |
//! | a Policy may be accepted in which resources have no weight, or ServiceAffinity or NodeLabel no arguments ([`may_be_accepted`]) | 1.18 has defaults for them, and Loadmaster reads Policies of all releases |
//! | unknown fields are rejected in v1alpha1, v1alpha2 and extenders of Policies, and in arguments of 1.18 ([`may_be_rejected`]) | a misspelt field is an error in every version |
//! | arguments of plugins that are not enabled are checked for 1.18 as well | so are those of later versions |
//! | v1alpha1 and v1alpha2 may give arguments of a plugin twice, as fields and in pluginConfig, and may leave out an empty queueSort | 1.18 compares what is written, not what it means |
//! | RequestedToCapacityRatio without resources in a Policy has CPU and memory | as in 1.18; in 1.22 it scores 0 then |
//! | `scoringStrategy` is compared only if NodeResourcesFit scores; arguments that the release did not have are not compared | they have no effect |
//! | absent and empty fields, 0 and `false` are the same | the old schedulers show internal types |
//! | `httpTimeout` of an extender is 5 s where it is 0 ([`with_default_timeouts`]) | the schedulers set it when they create the extender |
//! | `resourceLock` is not compared | Loadmaster has Leases only |

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::version::{OldVersion, PluginTable};

/// Plugins with their weights, by extension point.
pub type Plugins = BTreeMap<String, Vec<(String, i32)>>;

/// A profile that Loadmaster must have.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    pub scheduler_name: String,
    pub plugins: Plugins,
    pub args: BTreeMap<String, Value>,
}

impl Expected {
    /// Whether NodeResourcesFit scores.
    fn fit_scores(&self) -> bool {
        scores(&self.plugins, |name| name == FIT)
    }
}

/// Whether such a plugin scores.
fn scores(plugins: &Plugins, is_meant: impl Fn(&str) -> bool) -> bool {
    plugins.get("score").is_some_and(|list| list.iter().any(|(name, _)| is_meant(name)))
}

const PREEMPTION: &str = "DefaultPreemption";
const POST_FILTER: &str = "postFilter";

/// Plugins that need an extension point today at which the Policies of 1.22 left them out.
const NEEDED_POINTS: &[(&str, &str)] = &[("VolumeRestrictions", "preFilter")];

const FIT: &str = "NodeResourcesFit";
const RATIO: &str = "RequestedToCapacityRatio";
const SCORING_STRATEGY: &str = "scoringStrategy";

/// Score plugins that NodeResourcesFit replaces, with its strategy.
const RESOURCE_SCORES: &[(&str, &str)] = &[
    ("NodeResourcesLeastAllocated", "LeastAllocated"),
    ("NodeResourcesMostAllocated", "MostAllocated"),
    (RATIO, RATIO),
];

/// Members of objects outside of profiles that are not compared.
pub const IGNORED_FIELDS: &[&str] = &["resourceLock"];

/// Extenders with the timeouts that they have when they are created.
pub fn with_default_timeouts(mut extenders: Value) -> Value {
    for extender in extenders.as_array_mut().into_iter().flatten() {
        if matches!(extender["httpTimeout"].as_str(), None | Some("" | "0s")) {
            extender["httpTimeout"] = "5s".into();
        }
    }
    extenders
}

/// Fields outside of profiles that are compared.
pub fn compared_fields(version: OldVersion) -> &'static [&'static str] {
    match version {
        OldVersion::Policy => &["extenders"],
        OldVersion::V1Alpha1 | OldVersion::V1Alpha2 => &[
            "percentageOfNodesToScore",
            "podInitialBackoffSeconds",
            "podMaxBackoffSeconds",
            "enableProfiling",
            "enableContentionProfiling",
            "leaderElection",
            "clientConnection",
            "extenders",
        ],
        OldVersion::V1Beta1 | OldVersion::V1Beta2 | OldVersion::V1Beta3 => &[
            "parallelism",
            "percentageOfNodesToScore",
            "podInitialBackoffSeconds",
            "podMaxBackoffSeconds",
            "enableProfiling",
            "enableContentionProfiling",
            "leaderElection",
            "clientConnection",
            "extenders",
        ],
    }
}

/// The profile that Loadmaster must have for `profile` of the old scheduler's answer; `ours` are the plugins that it has.
pub fn expected_profile(
    version: OldVersion,
    answer: &Value,
    profile: &Value,
    ours: &Plugins,
) -> Expected {
    let mut plugins = Plugins::new();
    let listed = profile["intendedPlugins"].as_object().or_else(|| profile["plugins"].as_object());
    for (point, list) in listed.into_iter().flatten() {
        let point = if point == "unreserve" { "reserve" } else { point };
        let list = list.as_array().into_iter().flatten().map(|entry| {
            let (name, weight) = match entry.as_array() {
                Some(weighted) => (&weighted[0], weighted[1].as_i64().unwrap_or_default()),
                None => (entry, 0),
            };
            (current_name(name.as_str().unwrap_or_default()), weight as i32)
        });
        plugins.entry(point.to_owned()).or_default().extend(list);
    }
    let args = profile["args"].as_object().into_iter().flatten();
    let args = args.map(|(name, args)| (current_name(name), args.clone())).collect();
    let scheduler_name = profile["schedulerName"].as_str().unwrap_or_default().to_owned();
    let mut expected = Expected { scheduler_name, plugins, args };
    if version.is_alpha() && answer["disablePreemption"] != true {
        expected.plugins.insert(POST_FILTER.to_owned(), vec![(PREEMPTION.to_owned(), 0)]);
    }
    if let Some(Value::Object(args)) = expected.args.get_mut(RATIO)
        && args["resources"].as_array().is_some_and(Vec::is_empty)
    {
        let resources = ["cpu", "memory"].map(|name| json!({"name": name, "weight": 1}));
        args.insert("resources".to_owned(), json!(resources));
    }
    // Loadmaster has these plugins, too.
    if !scores(ours, |name| RESOURCE_SCORES.iter().any(|(plugin, _)| *plugin == name)) {
        replace_resource_score(&mut expected);
    }
    if !expected.fit_scores()
        && let Some(Value::Object(fit)) = expected.args.get_mut(FIT)
    {
        fit.remove(SCORING_STRATEGY);
    }
    expected
}

/// Whether Loadmaster may accept a file that the old scheduler rejects with this message.
pub fn may_be_accepted(version: OldVersion, message: &str) -> bool {
    let has_no_weight = message.contains(".weight: Invalid value: 0: resource weight");
    let has_no_args = message.contains("want args to be of type") && message.contains("got <nil>");
    let is_repeated = message.contains("repeated config for plugin");
    let is_written_differently = message.contains("has to match for all profiles");
    match version {
        OldVersion::Policy => has_no_weight || has_no_args,
        _ if version.is_alpha() => is_repeated || is_written_differently,
        _ => false,
    }
}

/// Whether Loadmaster may reject a file that the old scheduler accepts, with these errors.
pub fn may_be_rejected(version: OldVersion, errors: &[String]) -> bool {
    let is_strict = |error: &String| {
        let is_unknown = error.contains("unknown field");
        match version {
            OldVersion::Policy => is_unknown && error.contains("extenders["),
            _ if version.is_alpha() => is_unknown || error.contains(".args"),
            _ => false,
        }
    };
    !errors.is_empty() && errors.iter().all(is_strict)
}

fn current_name(name: &str) -> String {
    let current = if name == "DefaultPodTopologySpread" { "SelectorSpread" } else { name };
    current.to_owned()
}

/// Makes a plugin that alone scores resources NodeResourcesFit.
fn replace_resource_score(expected: &mut Expected) {
    let Some(score) = expected.plugins.get_mut("score") else { return };
    let strategy_of = |name: &str| {
        RESOURCE_SCORES.iter().find(|(plugin, _)| *plugin == name).map(|(_, strategy)| *strategy)
    };
    if score.iter().any(|(name, _)| name == FIT) {
        return;
    }
    let mut found = score.iter_mut().filter_map(|entry| Some((strategy_of(&entry.0)?, entry)));
    let (Some((strategy, entry)), None) = (found.next(), found.next()) else { return };
    let plugin = std::mem::replace(&mut entry.0, FIT.to_owned());
    let args = expected.args.remove(&plugin).unwrap_or_default();
    let mut scoring = json!({"type": strategy, "resources": args["resources"]});
    if !args["shape"].is_null() {
        scoring["requestedToCapacityRatio"] = json!({"shape": args["shape"]});
    }
    let fit = expected.args.entry(FIT.to_owned()).or_insert_with(|| json!({}));
    fit[SCORING_STRATEGY] = scoring;
}

/// The plugins of Loadmaster without those that the release did not have, at all or at this extension point.
pub fn comparable_plugins(table: &PluginTable, expected: &Expected, ours: Plugins) -> Plugins {
    let mut comparable = Plugins::new();
    for (point, list) in ours {
        let is_expected = |name: &str| {
            let list = expected.plugins.get(&point);
            list.is_some_and(|list| list.iter().any(|(known, _)| known == name))
        };
        let was_possible = |name: &str| {
            let old_name = if name == "SelectorSpread" && !table.points.contains_key(name) {
                "DefaultPodTopologySpread"
            } else {
                name
            };
            let replaces = name == FIT && point == "score";
            // Preemption was possible in every release.
            let preempts = name == PREEMPTION && point == POST_FILTER;
            let is_needed = NEEDED_POINTS.contains(&(name, point.as_str()));
            (table.implements(old_name, &point) && !is_needed) || preempts || replaces
        };
        let list: Vec<(String, i32)> =
            list.into_iter().filter(|(name, _)| is_expected(name) || was_possible(name)).collect();
        if !list.is_empty() {
            comparable.insert(point, list);
        }
    }
    comparable
}

/// Loadmaster's arguments of a plugin without those that the release did not have or that have no effect.
pub fn comparable_args(
    version: OldVersion,
    expected: &Expected,
    plugin: &str,
    ours: &Value,
) -> Value {
    let theirs = expected.args.get(plugin).and_then(Value::as_object);
    let is_unknown_then = |argument: &str| match plugin {
        "InterPodAffinity" => argument == "ignorePreferredTermsOfExistingPods",
        FIT if argument == SCORING_STRATEGY => !expected.fit_scores(),
        _ => version.is_alpha() && theirs.is_some_and(|theirs| !theirs.contains_key(argument)),
    };
    let Value::Object(ours) = ours else { return ours.clone() };
    let kept = ours.iter().filter(|(argument, _)| !is_unknown_then(argument));
    let kept: Map<String, Value> =
        kept.map(|(argument, value)| (argument.clone(), value.clone())).collect();
    Value::Object(kept)
}

/// The list in the form of the old schedulers' answers.
pub fn show_list(list: &[(String, i32)]) -> Value {
    let entries = list.iter().map(|(name, weight)| match weight {
        0 => json!(name),
        weight => json!([name, weight]),
    });
    entries.collect()
}
