//! Compares what an old scheduler and Loadmaster decide about a pod. All intended differences are here:
//!
//! | difference | why |
//! | --- | --- |
//! | scores of NodeResourcesBalancedAllocation are not compared | today it rates how much the pod improves the balance, then it rated the balance |
//! | nor are those of PodTopologySpread of 1.18 and 1.22 | the sum over the constraints was rounded down, and in 1.18 smaller |
//! | nor are those of ImageLocality of 1.18 | the upper threshold did not depend on the number of containers |
//! | nor are those of InterPodAffinity of 1.18 | they were scaled to a range that contains 0, also if no node had 0 |
//! | nor are those of NodeResourcesMostAllocated and RequestedToCapacityRatio of 1.18 | requests beyond the capacity counted as none, or as an empty node; utilization was rounded up |
//! | NodeResourcesFit may say UnschedulableAndUnresolvable | today it does when the pod would not fit on the empty node either |
//! | a plugin may score all nodes 0 that gave all the same score then | plugins that have nothing to say are skipped today, so that no node has an advantage from them, either way |
//! | NodeResourcesFit may have the scores of the only resource score plugin | that plugin is converted to a strategy of NodeResourcesFit |
//! | reasons of TaintToleration are not compared | today the message does not say which taint it is |
//! | nor are those of plugins whose texts in 1.18 were others ([`RENAMED_REASONS`]), nor which kind of rejection it is ([`OTHER_CODES`]) | InterPodAffinity checked its rules in another order, and PodTopologySpread had no reason of its own for nodes without a label |
//! | InterPodAffinity may reject a node that 1.18 accepts, as unresolvable | the first pod of a group could go to a node without the label of the topology |
//! | DefaultPodTopologySpread is SelectorSpread | its name since 1.19 |

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::oracle::compare::without_names;
use crate::oracle::old_configurations::version::OldRelease;

/// A difference between the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Differences of the same kind are counted together.
    pub kind: String,
    pub text: String,
}

/// Plugins whose scores were others up to a release.
const OTHER_SCORES: &[(&str, OldRelease)] = &[
    ("NodeResourcesBalancedAllocation", OldRelease::V1_25),
    ("PodTopologySpread", OldRelease::V1_22),
    ("ImageLocality", OldRelease::V1_18),
    ("InterPodAffinity", OldRelease::V1_18),
    ("NodeResourcesMostAllocated", OldRelease::V1_18),
    ("RequestedToCapacityRatio", OldRelease::V1_18),
];

const FIT: &str = "NodeResourcesFit";

const UNRESOLVABLE: &str = "UnschedulableAndUnresolvable";

const RESOURCE_SCORES: &[&str] =
    &["NodeResourcesLeastAllocated", "NodeResourcesMostAllocated", "RequestedToCapacityRatio"];

/// Plugins whose reasons in 1.18 were other texts.
const RENAMED_REASONS: &[&str] =
    &["InterPodAffinity", "NodeAffinity", "NodeName", "PodTopologySpread"];

/// Those of them that gave other codes, too.
const OTHER_CODES: &[&str] = &["InterPodAffinity", "PodTopologySpread"];

/// What became of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Status {
    code: String,
    plugin: String,
    /// Sorted: scalar resources come in random order.
    reasons: Vec<String>,
}

impl Status {
    fn new(value: &Value) -> Status {
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let reasons = value["reasons"].as_array().into_iter().flatten();
        let mut reasons: Vec<String> =
            reasons.filter_map(Value::as_str).map(str::to_owned).collect();
        reasons.sort();
        Status { code: text("code"), plugin: current_name(&text("plugin")).to_owned(), reasons }
    }

    fn is_success(&self) -> bool {
        self.code == "Success"
    }

    /// Whether Loadmaster may give this status where the old scheduler gives that one.
    fn is_expected_for(&self, release: OldRelease, theirs: &Status) -> bool {
        let mut ours = self.clone();
        let plugin = ours.plugin.as_str();
        let is_renamed = release == OldRelease::V1_18 && RENAMED_REASONS.contains(&plugin);
        if is_renamed || plugin == "TaintToleration" {
            ours.reasons.clone_from(&theirs.reasons);
        }
        let is_hopeless = plugin == FIT && ours.code == UNRESOLVABLE;
        let has_no_label = plugin == "InterPodAffinity" && ours.code == UNRESOLVABLE;
        if is_renamed && has_no_label && theirs.is_success() {
            return true;
        }
        if is_hopeless || is_renamed && OTHER_CODES.contains(&plugin) {
            ours.code.clone_from(&theirs.code);
        }
        ours == *theirs
    }
}

fn current_name(plugin: &str) -> &str {
    if plugin == "DefaultPodTopologySpread" { "SelectorSpread" } else { plugin }
}

/// Scores by plugin and node.
type Scores = BTreeMap<String, BTreeMap<String, i64>>;

/// Every difference, the most telling first.
pub fn differences(release: OldRelease, theirs: &Value, ours: &Value) -> Vec<Difference> {
    let errors = (theirs.get("errors"), ours.get("error"));
    let failed = |who: &str, error: &Value| {
        let text = error[0].as_str().or(error.as_str()).unwrap_or_default();
        let kind = format!("{who} fails: {}", without_names(text));
        vec![Difference { kind, text: text.to_owned() }]
    };
    match errors {
        // All files are meant to be valid.
        (Some(error), Some(_)) => return failed("each program", error),
        (Some(error), None) => return failed("only the old scheduler", error),
        (None, Some(error)) => return failed("only Loadmaster", error),
        (None, None) => (),
    }
    let pre_filter = |answer: &Value| answer.get("preFilter").map(Status::new);
    let (before, now) = (pre_filter(theirs), pre_filter(ours));
    if before != now {
        let text = format!("{before:?}, Loadmaster: {now:?}");
        return vec![Difference { kind: "PreFilter".to_owned(), text }];
    }
    let (before, now) = (statuses(theirs), statuses(ours));
    let mut differences = statuses_differences(release, &before, &now);
    // The scores depend on which nodes are feasible.
    let same_nodes =
        before.iter().zip(&now).all(|((_, a), (_, b))| a.is_success() == b.is_success());
    if differences.is_empty() && same_nodes {
        differences = scores_differences(release, &scores(theirs), &scores(ours));
    }
    differences
}

fn statuses(answer: &Value) -> BTreeMap<String, Status> {
    let nodes = answer["nodes"].as_array().into_iter().flatten();
    nodes
        .map(|node| {
            (node["name"].as_str().unwrap_or_default().to_owned(), Status::new(&node["filter"]))
        })
        .collect()
}

fn statuses_differences(
    release: OldRelease,
    theirs: &BTreeMap<String, Status>,
    ours: &BTreeMap<String, Status>,
) -> Vec<Difference> {
    if !theirs.keys().eq(ours.keys()) {
        let text = format!("{:?}, Loadmaster: {:?}", theirs.keys(), ours.keys());
        return vec![Difference { kind: "nodes".to_owned(), text }];
    }
    let pairs = theirs.iter().zip(ours.values());
    let different = pairs.filter(|((_, theirs), ours)| !ours.is_expected_for(release, theirs));
    let difference = |((node, theirs), ours): ((&String, &Status), &Status)| {
        let who = |status: &Status| match status.is_success() {
            true => "Success".to_owned(),
            false => status.plugin.clone(),
        };
        let kind = match (who(theirs), who(ours)) {
            (theirs, ours) if theirs == ours => format!("filter result of {theirs}"),
            (theirs, ours) => format!("filter result of {theirs}, Loadmaster: {ours}"),
        };
        Difference { kind, text: format!("{node}: {theirs:?}, Loadmaster: {ours:?}") }
    };
    different.map(difference).collect()
}

fn scores(answer: &Value) -> Scores {
    let mut scores = Scores::new();
    for node in answer["nodes"].as_array().into_iter().flatten() {
        let name = node["name"].as_str().unwrap_or_default();
        for (plugin, score) in node["scores"].as_object().into_iter().flatten() {
            let of_plugin = scores.entry(current_name(plugin).to_owned()).or_default();
            of_plugin.insert(name.to_owned(), score.as_i64().unwrap_or_default());
        }
    }
    scores
}

fn scores_differences(release: OldRelease, theirs: &Scores, ours: &Scores) -> Vec<Difference> {
    let mut theirs = theirs.clone();
    if !theirs.contains_key(FIT) && ours.contains_key(FIT) {
        let mut found = RESOURCE_SCORES.iter().filter(|name| theirs.contains_key(**name)).copied();
        if let (Some(name), None) = (found.next(), found.next())
            && !ours.contains_key(name)
            && let Some(scores) = theirs.remove(name)
        {
            theirs.insert(FIT.to_owned(), scores);
        }
    }
    let plugins: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let mut differences = Vec::new();
    let none = BTreeMap::new();
    let is_compared = |plugin: &str| {
        !OTHER_SCORES.iter().any(|(other, until)| *other == plugin && release <= *until)
    };
    for plugin in plugins.into_iter().filter(|plugin| is_compared(plugin)) {
        let theirs_of = theirs.get(plugin).unwrap_or(&none);
        let ours_of = ours.get(plugin).unwrap_or(&none);
        if theirs_of != ours_of && !(is_constant(theirs_of) && is_skipped(ours_of)) {
            let text = format!("{plugin}: {theirs_of:?}, Loadmaster: {ours_of:?}");
            differences.push(Difference { kind: format!("score of {plugin}"), text });
        }
    }
    differences
}

fn is_constant(scores: &BTreeMap<String, i64>) -> bool {
    let mut scores = scores.values();
    let first = scores.next();
    scores.all(|score| Some(score) == first)
}

fn is_skipped(scores: &BTreeMap<String, i64>) -> bool {
    scores.values().all(|score| *score == 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(theirs: &Value, ours: &Value, want: &[&str]) {
        let found = differences(OldRelease::V1_22, theirs, ours);
        let kinds: Vec<&str> = found.iter().map(|difference| difference.kind.as_str()).collect();
        assert_eq!(kinds, want);
    }

    fn rejected(plugin: &str, code: &str, reasons: &[&str]) -> Value {
        json!({"nodes": [{"name": "a", "filter": {"code": code, "plugin": plugin, "reasons": reasons}}]})
    }

    fn scored(scores: [Value; 2]) -> Value {
        let node = |(name, scores): (&str, Value)| json!({"name": name, "filter": {"code": "Success"}, "scores": scores});
        let nodes: Value = ["a", "b"].into_iter().zip(scores).map(node).collect();
        json!({"nodes": nodes})
    }

    #[test]
    fn filter_results() {
        check(&rejected("P", "U", &["x", "y"]), &rejected("P", "U", &["y", "x"]), &[]);
        check(&rejected("P", "U", &["x"]), &rejected("P", "V", &["x"]), &["filter result of P"]);
        check(
            &rejected("P", "U", &[]),
            &rejected("Q", "U", &[]),
            &["filter result of P, Loadmaster: Q"],
        );
        let (then, now) = ("Unschedulable", UNRESOLVABLE);
        check(&rejected(FIT, then, &["x"]), &rejected(FIT, now, &["x"]), &[]);
        check(
            &rejected(FIT, now, &["x"]),
            &rejected(FIT, then, &["x"]),
            &["filter result of NodeResourcesFit"],
        );
    }

    #[test]
    fn scores_of_plugins() {
        let pair = |plugin: &str, a: i64, b: i64| scored([json!({plugin: a}), json!({plugin: b})]);
        check(&pair("P", 1, 2), &pair("P", 1, 2), &[]);
        check(&pair("P", 1, 2), &pair("P", 1, 3), &["score of P"]);
        check(&pair("P", 100, 100), &pair("P", 0, 0), &[]);
        check(&pair("P", 0, 0), &pair("P", 100, 100), &["score of P"]);
        check(&pair("P", 100, 100), &scored([json!({}), json!({})]), &[]);
        let balanced = "NodeResourcesBalancedAllocation";
        check(&pair(balanced, 1, 2), &pair(balanced, 3, 4), &[]);
        let later = "RequestedToCapacityRatio";
        check(&pair(later, 1, 2), &pair(later, 3, 4), &["score of RequestedToCapacityRatio"]);
        check(&pair("RequestedToCapacityRatio", 1, 2), &pair(FIT, 1, 2), &[]);
    }

    #[test]
    fn failures() {
        let (theirs, ours) = (json!({"errors": ["x"]}), json!({"error": "y"}));
        check(&theirs, &ours, &["each program fails: x"]);
        check(&theirs, &json!({"nodes": []}), &["only the old scheduler fails: x"]);
        check(&json!({"nodes": []}), &ours, &["only Loadmaster fails: y"]);
    }
}
