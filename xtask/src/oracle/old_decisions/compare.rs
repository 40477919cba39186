//! Compares what an old scheduler and Loadmaster decide about a pod. All intended differences are here:
//!
//! | difference | why |
//! | --- | --- |
//! | scores of NodeResourcesBalancedAllocation are not compared | today it rates how much the pod improves the balance, then it rated the balance |
//! | nor are those of PodTopologySpread of 1.18 and 1.22 | the sum over the constraints was rounded down, and in 1.18 smaller |
//! | nor are those of ImageLocality of 1.18, or of a pod with init containers | the upper threshold did not depend on the number of containers; images of init containers did not count |
//! | nor are those of InterPodAffinity of 1.18 | they were scaled to a range that contains 0, also if no node had 0 |
//! | nor are those of NodeResourcesMostAllocated and RequestedToCapacityRatio of 1.18 | requests beyond the capacity counted as none, or as an empty node; utilization was rounded up |
//! | nor are those of plugins that score resources ([`RESOURCE_SCORES`] and NodeResourcesFit) for a pod with an overhead of CPU | the overhead was added in cores to a sum of thousandths of cores |
//! | nor are those of NodeResourcesFit of 1.22 for a pod with any overhead | it did not count |
//! | NodeResourcesFit rejected a node for a resource that the pod does not request | what the pods of the node request was compared with what the node has, also without a request of the pod; it matters on overcommitted nodes |
//! | NodeResourcesFit may say UnschedulableAndUnresolvable | today it does when the pod would not fit on the empty node either |
//! | DynamicResources may give all nodes 0 | Loadmaster adds it to every profile |
//! | InterPodAffinity may have no scores where it gave all nodes 0 | its PreScore returns Skip if no term matches |
//! | so may NodeAffinity | the same, for a pod without preferred terms |
//! | so may VolumeBinding | the same, without the feature gate for its scores |
//! | so may SelectorSpread | the same, for a pod with topology spread constraints |
//! | PodTopologySpread may have no scores where it gave all nodes the highest one | the same, for a pod without `ScheduleAnyway` constraints |
//! | NodeResourcesFit may have the scores of the only resource score plugin | that plugin is converted to a strategy of NodeResourcesFit |
//! | reasons of TaintToleration are not compared | today the message does not say which taint it is |
//! | nor are those of plugins whose texts in 1.18 were others ([`RENAMED_REASONS`]), nor which kind of rejection it is ([`OTHER_CODES`]) | InterPodAffinity checked its rules in another order, and PodTopologySpread had no reason of its own for nodes without a label |
//! | InterPodAffinity may reject a node that it accepted in 1.18, as unresolvable | the first pod of a group could go to a node without the label of the topology |
//! | DefaultPodTopologySpread is SelectorSpread | its name since 1.19 |

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::pods;
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
    (IMAGE_LOCALITY, OldRelease::V1_18),
    ("InterPodAffinity", OldRelease::V1_18),
    ("NodeResourcesMostAllocated", OldRelease::V1_18),
    ("RequestedToCapacityRatio", OldRelease::V1_18),
];

/// Whether PreScore of a plugin may return Skip for a pod.
type MayBeSkipped = fn(&Value) -> bool;

/// Plugins whose PreScore returns Skip today, what they gave all nodes then, and for which pods it may do so.
const SKIPPED: &[(&str, SkippedScores, MayBeSkipped)] = &[
    ("InterPodAffinity", SkippedScores::Zero, |_| true),
    ("NodeAffinity", SkippedScores::Zero, |pod| {
        pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            .is_null()
    }),
    ("VolumeBinding", SkippedScores::Zero, |_| true),
    ("SelectorSpread", SkippedScores::Zero, |pod| !spread_constraints(pod).is_empty()),
    ("PodTopologySpread", SkippedScores::Highest, |pod| {
        let mut constraints = spread_constraints(pod).iter();
        constraints.all(|constraint| constraint["whenUnsatisfiable"] == "DoNotSchedule")
    }),
];

fn spread_constraints(pod: &Value) -> &[Value] {
    pod["spec"]["topologySpreadConstraints"].as_array().map_or(&[], Vec::as_slice)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkippedScores {
    Zero,
    Highest,
}

impl SkippedScores {
    fn are(self, scores: &BTreeMap<String, i64>) -> bool {
        let mut scores = scores.values().copied();
        let Some(first) = scores.next() else { return true };
        let is_expected = match self {
            SkippedScores::Zero => first == 0,
            // Scores are multiplied by the weight.
            SkippedScores::Highest => first > 0 && first % 100 == 0,
        };
        is_expected && scores.all(|score| score == first)
    }
}

/// A plugin that no old release has.
const ADDED: &str = "DynamicResources";

const IMAGE_LOCALITY: &str = "ImageLocality";

const FIT: &str = "NodeResourcesFit";

const UNRESOLVABLE: &str = "UnschedulableAndUnresolvable";

const RESOURCE_SCORES: &[&str] =
    &["NodeResourcesLeastAllocated", "NodeResourcesMostAllocated", "RequestedToCapacityRatio"];

/// Plugins whose reasons in 1.18 were other texts.
const RENAMED_REASONS: &[&str] =
    &["InterPodAffinity", "NodeAffinity", "NodeName", "PodTopologySpread"];

/// Those of them that gave other codes, too.
const OTHER_CODES: &[&str] = &["InterPodAffinity", "PodTopologySpread"];

/// Resources that were compared also for pods that do not request them, and the reasons for which nodes were rejected.
const ALWAYS_COMPARED: &[(&str, &str)] = &[
    ("cpu", "Insufficient cpu"),
    ("memory", "Insufficient memory"),
    ("ephemeral-storage", "Insufficient ephemeral-storage"),
];

/// A question: what of it matters for the differences that are expected.
#[derive(Clone, Debug)]
pub struct Asked {
    release: OldRelease,
    has_init_containers: bool,
    has_overhead: bool,
    has_cpu_overhead: bool,
    /// Reasons about resources that the pod does not request.
    unfounded_reasons: BTreeSet<&'static str>,
    /// Plugins that may be skipped, and what they gave all nodes then.
    skippable: BTreeMap<&'static str, SkippedScores>,
}

impl Asked {
    /// A question to a release about this pod.
    pub fn new(release: OldRelease, pod: &Value) -> Asked {
        let has = |field: &str| pod["spec"][field].as_array().is_some_and(|it| !it.is_empty());
        let requests = pods::requests(pod);
        let is_requested = |name: &str| requests.get(name).is_some_and(|amount| *amount != 0);
        let skippable = SKIPPED.iter().filter(|(_, _, may_be_skipped)| may_be_skipped(pod));
        let unrequested = ALWAYS_COMPARED.iter().filter(|(name, _)| !is_requested(name));
        Asked {
            release,
            has_init_containers: has("initContainers"),
            has_overhead: !pod["spec"]["overhead"].is_null(),
            has_cpu_overhead: !pod["spec"]["overhead"]["cpu"].is_null(),
            unfounded_reasons: unrequested.map(|(_, reason)| *reason).collect(),
            skippable: skippable.map(|(plugin, scores, _)| (*plugin, *scores)).collect(),
        }
    }

    /// Whether the plugin's scores are compared.
    fn compares_scores_of(&self, plugin: &str) -> bool {
        let is_other =
            OTHER_SCORES.iter().any(|(other, until)| *other == plugin && self.release <= *until);
        let counts_overhead = match plugin {
            FIT => {
                !self.has_cpu_overhead && (!self.has_overhead || self.release != OldRelease::V1_22)
            }
            _ => !self.has_cpu_overhead || !RESOURCE_SCORES.contains(&plugin),
        };
        let counts_images = !self.has_init_containers || plugin != IMAGE_LOCALITY;
        !is_other && counts_overhead && counts_images
    }
}

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

    /// The old scheduler's status without what is no reason today; `None` if nothing is left.
    fn founded(&self, asked: &Asked) -> Option<Status> {
        let mut founded = self.clone();
        if founded.plugin == FIT {
            founded.reasons.retain(|reason| !asked.unfounded_reasons.contains(reason.as_str()));
        }
        (founded.reasons.len() == self.reasons.len() || !founded.reasons.is_empty())
            .then_some(founded)
    }

    /// Whether Loadmaster may give this status where the old scheduler gives that one.
    fn is_expected_for(&self, asked: &Asked, theirs: &Status) -> bool {
        let Some(theirs) = theirs.founded(asked) else {
            // Whatever the plugins after it say.
            return self.plugin != FIT;
        };
        let mut ours = self.clone();
        let plugin = ours.plugin.as_str();
        let is_renamed = asked.release == OldRelease::V1_18 && RENAMED_REASONS.contains(&plugin);
        if is_renamed || plugin == "TaintToleration" {
            ours.reasons.clone_from(&theirs.reasons);
        }
        let is_hopeless = plugin == FIT && ours.code == UNRESOLVABLE;
        let has_no_label = plugin == "InterPodAffinity" && ours.code == UNRESOLVABLE;
        if is_renamed && has_no_label && theirs.plugin != plugin {
            // Plugins after it may have rejected the node.
            return true;
        }
        if is_hopeless || is_renamed && OTHER_CODES.contains(&plugin) {
            ours.code.clone_from(&theirs.code);
        }
        ours == theirs
    }
}

fn current_name(plugin: &str) -> &str {
    if plugin == "DefaultPodTopologySpread" { "SelectorSpread" } else { plugin }
}

/// Scores by plugin and node.
type Scores = BTreeMap<String, BTreeMap<String, i64>>;

/// Every difference, the most telling first.
pub fn differences(asked: &Asked, theirs: &Value, ours: &Value) -> Vec<Difference> {
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
    let mut differences = statuses_differences(asked, &before, &now);
    // The scores depend on which nodes are feasible.
    let same_nodes =
        before.iter().zip(&now).all(|((_, a), (_, b))| a.is_success() == b.is_success());
    if differences.is_empty() && same_nodes {
        differences = scores_differences(asked, &scores(theirs), &scores(ours));
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
    asked: &Asked,
    theirs: &BTreeMap<String, Status>,
    ours: &BTreeMap<String, Status>,
) -> Vec<Difference> {
    if !theirs.keys().eq(ours.keys()) {
        let text = format!("{:?}, Loadmaster: {:?}", theirs.keys(), ours.keys());
        return vec![Difference { kind: "nodes".to_owned(), text }];
    }
    let pairs = theirs.iter().zip(ours.values());
    let different = pairs.filter(|((_, theirs), ours)| !ours.is_expected_for(asked, theirs));
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

fn scores_differences(asked: &Asked, theirs: &Scores, ours: &Scores) -> Vec<Difference> {
    let (mut theirs, mut ours) = (theirs.clone(), ours.clone());
    if !theirs.contains_key(FIT) && ours.contains_key(FIT) {
        let mut found = RESOURCE_SCORES.iter().filter(|name| theirs.contains_key(**name)).copied();
        if let (Some(name), None) = (found.next(), found.next())
            && !ours.contains_key(name)
            && let Some(scores) = ours.remove(FIT)
        {
            ours.insert(name.to_owned(), scores);
        }
    }
    theirs.retain(|plugin, _| asked.compares_scores_of(plugin));
    ours.retain(|plugin, _| asked.compares_scores_of(plugin));
    let plugins: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let mut differences = Vec::new();
    let none = BTreeMap::new();
    for plugin in plugins {
        let theirs_of = theirs.get(plugin).unwrap_or(&none);
        let ours_of = ours.get(plugin).unwrap_or(&none);
        let skipped = asked.skippable.get(plugin.as_str());
        let is_skipped = ours_of.is_empty() && skipped.is_some_and(|it| it.are(theirs_of));
        let is_added = plugin == ADDED && theirs_of.is_empty() && SkippedScores::Zero.are(ours_of);
        if theirs_of != ours_of && !is_skipped && !is_added {
            let text = format!("{plugin}: {theirs_of:?}, Loadmaster: {ours_of:?}");
            differences.push(Difference { kind: format!("score of {plugin}"), text });
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_pod(spec: Value, theirs: &Value, ours: &Value, want: &[&str]) {
        let asked = Asked::new(OldRelease::V1_22, &json!({"spec": spec}));
        let found = differences(&asked, theirs, ours);
        let kinds: Vec<&str> = found.iter().map(|difference| difference.kind.as_str()).collect();
        assert_eq!(kinds, want);
    }

    #[track_caller]
    fn check(theirs: &Value, ours: &Value, want: &[&str]) {
        check_pod(requesting(json!({"cpu": "1", "memory": "1Gi"})), theirs, ours, want);
    }

    fn requesting(requests: Value) -> Value {
        json!({"containers": [{"resources": {"requests": requests}}]})
    }

    fn rejected(plugin: &str, code: &str, reasons: &[&str]) -> Value {
        json!({"nodes": [{"name": "a", "filter": {"code": code, "plugin": plugin, "reasons": reasons}}]})
    }

    fn accepted() -> Value {
        json!({"nodes": [{"name": "a", "filter": {"code": "Success"}}]})
    }

    fn scored(scores: [Value; 2]) -> Value {
        let node = |(name, scores): (&str, Value)| json!({"name": name, "filter": {"code": "Success"}, "scores": scores});
        let nodes: Value = ["a", "b"].into_iter().zip(scores).map(node).collect();
        json!({"nodes": nodes})
    }

    fn pair(plugin: &str, a: i64, b: i64) -> Value {
        scored([json!({plugin: a}), json!({plugin: b})])
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
    fn the_first_pod_of_a_group() {
        let ours = rejected("InterPodAffinity", UNRESOLVABLE, &["x"]);
        let kinds = |release: OldRelease, theirs: &Value| -> Vec<String> {
            let found = differences(&Asked::new(release, &json!({})), theirs, &ours);
            found.into_iter().map(|difference| difference.kind).collect()
        };
        assert!(kinds(OldRelease::V1_18, &accepted()).is_empty());
        assert!(kinds(OldRelease::V1_18, &rejected("P", "U", &["y"])).is_empty());
        let found = kinds(OldRelease::V1_22, &accepted());
        assert_eq!(found, ["filter result of Success, Loadmaster: InterPodAffinity"]);
    }

    #[test]
    fn resources_without_requests() {
        let for_cpu_only = || requesting(json!({"cpu": "1", "memory": "0"}));
        let theirs = |reasons: &[&str]| rejected(FIT, "Unschedulable", reasons);
        let memory = theirs(&["Insufficient memory"]);
        check_pod(for_cpu_only(), &memory, &accepted(), &[]);
        check_pod(for_cpu_only(), &memory, &rejected("P", "U", &["x"]), &[]);
        check_pod(for_cpu_only(), &memory, &memory, &["filter result of NodeResourcesFit"]);
        let both = theirs(&["Insufficient cpu", "Insufficient memory"]);
        check_pod(for_cpu_only(), &both, &theirs(&["Insufficient cpu"]), &[]);
        let lost = "filter result of NodeResourcesFit, Loadmaster: Success";
        check_pod(for_cpu_only(), &both, &accepted(), &[lost]);
        check(&memory, &accepted(), &[lost]);
    }

    #[test]
    fn scores_of_plugins() {
        check(&pair("P", 1, 2), &pair("P", 1, 2), &[]);
        check(&pair("P", 1, 2), &pair("P", 1, 3), &["score of P"]);
        let balanced = "NodeResourcesBalancedAllocation";
        check(&pair(balanced, 1, 2), &pair(balanced, 3, 4), &[]);
        let later = "RequestedToCapacityRatio";
        let ratio = "score of RequestedToCapacityRatio";
        check(&pair(later, 1, 2), &pair(later, 3, 4), &[ratio]);
        check(&pair(later, 1, 2), &pair(FIT, 1, 2), &[]);
        check(&pair(later, 1, 2), &pair(FIT, 3, 4), &[ratio]);
        let overhead = || json!({"overhead": {"cpu": "100m"}});
        check_pod(overhead(), &pair(later, 1, 2), &pair(FIT, 3, 4), &[]);
        check_pod(overhead(), &pair("P", 1, 2), &pair("P", 3, 4), &["score of P"]);
        let memory = || json!({"overhead": {"memory": "1Gi"}});
        check_pod(memory(), &pair(FIT, 1, 2), &pair(FIT, 3, 4), &[]);
        check_pod(memory(), &pair(later, 1, 2), &pair(FIT, 3, 4), &[ratio]);
        let init_containers = json!({"initContainers": [{}]});
        check_pod(init_containers, &pair(IMAGE_LOCALITY, 1, 2), &pair(IMAGE_LOCALITY, 3, 4), &[]);
    }

    #[test]
    fn skipped_plugins() {
        let skipped = scored([json!({}), json!({})]);
        let different = "score of NodeAffinity";
        check(&pair("NodeAffinity", 0, 0), &skipped, &[]);
        check(&pair("NodeAffinity", 100, 100), &skipped, &[different]);
        check(&pair("NodeAffinity", 0, 0), &pair("NodeAffinity", 100, 100), &[different]);
        let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution": [{}]});
        let affinity = json!({"affinity": {"nodeAffinity": preferred}});
        check_pod(affinity, &pair("NodeAffinity", 0, 0), &skipped, &[different]);
        let spread = "SelectorSpread";
        let constraint =
            |when: &str| json!({"topologySpreadConstraints": [{"whenUnsatisfiable": when}]});
        check_pod(constraint("ScheduleAnyway"), &pair(spread, 0, 0), &skipped, &[]);
        check(&pair(spread, 0, 0), &skipped, &["score of SelectorSpread"]);
        check(&pair("P", 0, 0), &skipped, &["score of P"]);
        check(&skipped, &pair(ADDED, 0, 0), &[]);
        check(&skipped, &pair(ADDED, 0, 1), &["score of DynamicResources"]);
        check(&skipped, &pair("P", 0, 0), &["score of P"]);
        let of_spread = |when: &str, a: i64, b: i64| {
            let asked = Asked::new(OldRelease::V1_25, &json!({"spec": constraint(when)}));
            differences(&asked, &pair("PodTopologySpread", a, b), &skipped).is_empty()
        };
        let found = [(200, 200), (0, 0), (50, 50), (100, 200)];
        let found = found.map(|(a, b)| of_spread("DoNotSchedule", a, b));
        assert_eq!(found, [true, false, false, false]);
        assert!(!of_spread("ScheduleAnyway", 200, 200));
    }

    #[test]
    fn failures() {
        let (theirs, ours) = (json!({"errors": ["x"]}), json!({"error": "y"}));
        check(&theirs, &ours, &["each program fails: x"]);
        check(&theirs, &json!({"nodes": []}), &["only the old scheduler fails: x"]);
        check(&json!({"nodes": []}), &ours, &["only Loadmaster fails: y"]);
    }
}
