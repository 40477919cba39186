//! Random configurations: weights, arguments, enabled plugins, several profiles.

use serde_json::{Value, json};

use super::case_rng::{CaseRng, Fields};
use super::{OracleCase, OracleCaseKind, affinity, cluster, spread};

/// Plugins that score.
const SCORERS: [&str; 7] = [
    "TaintToleration",
    "NodeAffinity",
    "NodeResourcesFit",
    "PodTopologySpread",
    "InterPodAffinity",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
];

const FILTERS: [&str; 9] = [
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "PodTopologySpread",
    "InterPodAffinity",
    "NodeDeclaredFeatures",
];

const RESOURCES: [&str; 5] =
    ["cpu", "memory", "example.com/gpu", "ephemeral-storage", "hugepages-2Mi"];

/// A random configuration.
pub(super) fn random_config(draw: &mut CaseRng) -> Value {
    let names = draw.some(&["batch", "third"], 0, 2);
    // Only a single profile may omit its name.
    let first = (!names.is_empty() || draw.percent(50)).then_some("default-scheduler");
    let mut profiles = vec![profile(draw, first)];
    for name in names {
        profiles.push(profile(draw, Some(name)));
    }
    wrap(profiles)
}

fn wrap(profiles: Vec<Value>) -> Value {
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": profiles,
    })
}

/// A case of the kind Sign. Pods have no signature as long as there are default spread constraints.
pub(super) fn sign_case(draw: &mut CaseRng, id: u64) -> OracleCase {
    let mut case = OracleCase { kind: OracleCaseKind::Sign, ..cluster::case(draw, id) };
    if draw.percent(10) {
        return case;
    }
    let mut config = case.config.take().unwrap_or_else(|| wrap(vec![json!({})]));
    for profile in config["profiles"].as_array_mut().into_iter().flatten() {
        let mut configs = profile["pluginConfig"].as_array().cloned().unwrap_or_default();
        configs.retain(|config| config["name"] != "PodTopologySpread");
        configs.push(json!({"name": "PodTopologySpread", "args": {"defaultingType": "List"}}));
        profile["pluginConfig"] = json!(configs);
    }
    case.config = Some(config);
    case
}

fn profile(draw: &mut CaseRng, name: Option<&str>) -> Value {
    let mut profile = Fields::default();
    if let Some(name) = name {
        profile.put("schedulerName", name);
    }
    if draw.percent(55) {
        profile.put_some("plugins", plugins(draw));
    }
    profile.put_some("pluginConfig", plugin_config(draw));
    profile.into()
}

fn plugins(draw: &mut CaseRng) -> Value {
    let mut plugins = Fields::default();
    match draw.range(0, 5) {
        // Only these plugins, in this order.
        0 => {
            let mut names = draw.some(&FILTERS, 0, 4);
            names.extend(draw.some(&SCORERS, 0, 4));
            draw.shuffle(&mut names);
            let mut seen = Vec::new();
            names.retain(|name| {
                !seen.contains(name) && {
                    seen.push(*name);
                    true
                }
            });
            let mut enabled =
                vec![json!({"name": "PrioritySort"}), json!({"name": "DefaultBinder"})];
            enabled.extend(names.into_iter().map(|name| weighted(draw, name)));
            plugins.put("multiPoint", json!({"disabled": [{"name": "*"}], "enabled": enabled}));
        }
        1 => {
            let disabled: Vec<Value> = draw.some(&FILTERS, 1, 3).into_iter().map(named).collect();
            plugins.put("multiPoint", json!({"disabled": disabled}));
        }
        2 => {
            // Disables Filter, but not PreFilter, which every upstream plugin needs.
            let disabled: Vec<Value> = draw.some(&FILTERS, 1, 3).into_iter().map(named).collect();
            plugins.put("filter", json!({"disabled": disabled}));
        }
        3 => {
            let disabled: Vec<Value> = draw.some(&SCORERS, 1, 3).into_iter().map(named).collect();
            plugins.put("score", json!({"disabled": disabled}));
        }
        4 => {
            // Other weights: plugins that are enabled by default must be disabled first.
            let chosen = draw.some(&SCORERS, 1, 4);
            let disabled: Vec<Value> = chosen.iter().copied().map(named).collect();
            let enabled: Vec<Value> = chosen.into_iter().map(|name| weighted(draw, name)).collect();
            plugins.put("score", json!({"disabled": disabled, "enabled": enabled}));
        }
        _ => {
            let enabled: Vec<Value> =
                draw.some(&SCORERS, 1, 3).into_iter().map(|name| weighted(draw, name)).collect();
            plugins.put("multiPoint", json!({"enabled": enabled}));
        }
    }
    plugins.into()
}

fn named(name: &str) -> Value {
    json!({"name": name})
}

fn weighted(draw: &mut CaseRng, name: &str) -> Value {
    if draw.percent(70) { json!({"name": name, "weight": draw.range(1, 20)}) } else { named(name) }
}

fn plugin_config(draw: &mut CaseRng) -> Vec<Value> {
    let mut all = Vec::new();
    let mut add = |name: &str, args: Value| all.push(json!({"name": name, "args": args}));
    if draw.percent(40) {
        add("NodeResourcesFit", fit(draw));
    }
    if draw.percent(25) {
        add("NodeResourcesBalancedAllocation", balanced(draw));
    }
    if draw.percent(30) {
        add("InterPodAffinity", inter_pod_affinity(draw));
    }
    if draw.percent(35) {
        let args = match draw.range(0, 2) {
            0 => json!({"defaultingType": "System"}),
            _ => json!({"defaultingType": "List", "defaultConstraints": spread::defaults(draw)}),
        };
        add("PodTopologySpread", args);
    }
    if draw.percent(25) {
        let nodes = ["a".to_owned(), "b".to_owned()];
        let mut added = {
            let (required, preferred) = (draw.percent(70), draw.percent(50));
            affinity::node_affinity(draw, &nodes, required, preferred)
        };
        if draw.percent(90) {
            make_valid(&mut added);
        }
        add(
            "NodeAffinity",
            if added.is_null() { json!({}) } else { json!({"addedAffinity": added}) },
        );
    }
    all
}

/// Removes what is valid in a pod but not in a configuration: a required node selector without terms, a weight of 0, and Gt and Lt
/// with invalid numbers.
fn make_valid(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(make_valid);
            fields.retain(|_, value| value.get("nodeSelectorTerms") != Some(&json!([])));
            if fields.get("weight") == Some(&json!(0)) {
                fields.insert("weight".to_owned(), json!(1));
            }
            let operator = fields.get("operator").and_then(Value::as_str).unwrap_or_default();
            if operator == "Gt" || operator == "Lt" {
                fields.insert("values".to_owned(), json!(["5"]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_valid),
        _ => {}
    }
}

fn fit(draw: &mut CaseRng) -> Value {
    let mut args = Fields::default();
    if draw.percent(80) {
        args.put("scoringStrategy", strategy(draw));
    }
    if draw.percent(25) {
        args.put("ignoredResources", draw.some(&["example.com/gpu", "example.org/fpga"], 1, 2));
    }
    if draw.percent(25) {
        args.put(
            "ignoredResourceGroups",
            draw.some(&["example.com", "example.org", "other.net"], 1, 2),
        );
    }
    args.into()
}

fn strategy(draw: &mut CaseRng) -> Value {
    let kind = draw.pick(&["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]);
    let mut strategy = Fields::default();
    strategy.put("type", kind);
    if draw.percent(75) {
        strategy.put("resources", weighted_resources(draw, 1, 4, 10));
    }
    if kind == "RequestedToCapacityRatio" {
        strategy.put("requestedToCapacityRatio", json!({"shape": shape(draw)}));
    }
    strategy.into()
}

/// The points of a RequestedToCapacityRatio shape.
fn shape(draw: &mut CaseRng) -> Vec<Value> {
    let at = draw.some(&[0, 10, 33, 50, 77, 100], 1, 4);
    let corners = at.into_iter().map(|at| json!({"utilization": at, "score": draw.range(0, 10)}));
    corners.collect()
}

fn weighted_resources(draw: &mut CaseRng, low: usize, high: usize, weight_max: i64) -> Vec<Value> {
    let names = draw.some(&RESOURCES, low, high);
    let all =
        names.into_iter().map(|name| json!({"name": name, "weight": draw.range(1, weight_max)}));
    all.collect()
}

fn balanced(draw: &mut CaseRng) -> Value {
    json!({"resources": weighted_resources(draw, 1, 4, 1)})
}

fn inter_pod_affinity(draw: &mut CaseRng) -> Value {
    let mut args = Fields::default();
    if draw.percent(75) {
        args.put("hardPodAffinityWeight", draw.pick(&[0, 1, 10, 100]));
    }
    if draw.percent(40) {
        args.put("ignorePreferredTermsOfExistingPods", draw.percent(60));
    }
    args.into()
}
