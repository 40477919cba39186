use std::sync::Arc;

use loadmaster_api::Str;
use serde_json::{Value, json};

use crate::incremental::{FilterScope, ResultDependencies, RowDependency};
use crate::pod_requests::PodRequests;
use crate::testkit::{PluginTestBench, node, pod};
use crate::{
    Cx, EvaluatorCx, ExtensionPoints, Failure, Filter, Incremental, NodeInfo, NodeRow, PluginDef,
    PluginError, PluginEvaluator, PodInfo, PrepareCx, PrepareResult, Rejection, Score,
};

/// Filters by a pod's label `tier`, which must be that of the node if the node has one; scores by priority.
struct Tiers {
    /// What the key contains, and what it says that it reads.
    parts: &'static [&'static str],
}

fn label(labels: &loadmaster_api::Labels) -> Str {
    labels.get("tier").cloned().unwrap_or_default()
}

fn fits(node_tier: &Str, pod_tier: &Str) -> bool {
    node_tier.is_empty() || node_tier == pod_tier
}

fn priority_score(pod: &PodInfo) -> i64 {
    i64::from(pod.template.spec.priority.unwrap_or(0).clamp(0, 100))
}

impl Filter for Tiers {
    fn filter(&self, _: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let fits = fits(&label(node.labels()), &label(&pod.template.labels));
        if fits { Ok(()) } else { Err(Rejection::unschedulable("another tier")) }
    }
}

impl Score for Tiers {
    fn score(&self, _: Cx<'_>, pod: &PodInfo, _: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(priority_score(pod))
    }
}

impl Incremental for Tiers {
    /// Tier, score, and the pod's name and requests, which no result depends on.
    type Key = (Str, i64, Option<Box<str>>, Option<PodRequests>);

    fn key(&self, _: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Self::Key> {
        let has = |part| self.parts.contains(&part);
        if !has("key") {
            return None;
        }
        let tier = if has("tier") { label(&pod.template.labels) } else { Str::new("db") };
        let score = if has("priority") { priority_score(pod) } else { 0 };
        let name = has("name").then(|| pod.name.clone());
        Some((tier, score, name, has("requests").then(|| pod.template.requests.clone())))
    }

    fn label_keys(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<Vec<Str>> {
        let reads = |label: &str| self.parts.contains(&format!("reads {label}").as_str());
        let known = ["tier", "app"].map(|label| reads(label).then(|| Str::new(label)));
        let known: Vec<Str> = known.into_iter().flatten().collect();
        (!known.is_empty()).then_some(known)
    }

    fn key_reads_resources(&self) -> bool {
        !self.parts.contains(&"reads no resources")
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (tier, score, ..): &Self::Key) -> PrepareResult {
        PrepareResult::Evaluator(Box::new(TiersEvaluator {
            tier: tier.clone(),
            score: *score,
            scope: match self.parts.contains(&"rejects nothing") {
                true => FilterScope::Nothing,
                false => FilterScope::Node,
            },
        }))
    }
}

struct TiersEvaluator {
    tier: Str,
    score: i64,
    scope: FilterScope,
}

impl PluginEvaluator for TiersEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        let node = Some(RowDependency::Node);
        ResultDependencies { filter: node, score: node, ..ResultDependencies::default() }
    }

    fn filter_scope(&self) -> FilterScope {
        self.scope
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let node = cx.nodes().node(row);
        node.is_some_and(|node| fits(&label(&node.metadata.labels), &self.tier))
    }

    fn score_row(&self, _: EvaluatorCx<'_>, _: NodeRow) -> i64 {
        self.score
    }
}

const PARTS: [&[&str]; 10] = [
    &["key", "tier", "priority"],
    &["key", "tier", "priority", "name"],
    &["key", "priority"],
    &["key", "tier"],
    &[],
    &["key", "tier", "priority", "reads tier"],
    &["key", "tier", "priority", "reads app"],
    &["key", "tier", "priority", "rejects nothing"],
    &["key", "tier", "priority", "requests", "reads tier"],
    &["key", "tier", "priority", "requests", "reads tier", "reads no resources"],
];

fn build<const N: usize>(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Tiers { parts: PARTS[N] });
    points.filter = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin);
    Ok(())
}

fn bench<const N: usize>() -> PluginTestBench {
    let def = PluginDef { name: "Tiers", build: build::<N>, args: None };
    let mut bench = PluginTestBench::new(&def, json!({})).unwrap();
    bench.node(node("a").label("tier", "db")).unwrap();
    bench.node(node("b").label("tier", "web")).unwrap();
    bench
}

fn db() -> Value {
    pod("db-0").label("tier", "db").into()
}

#[test]
fn changes_that_keep_a_complete_key_are_reported() {
    let report = bench::<0>().check_key(db()).unwrap();
    for kept in ["pod name", "ordinal label", "token volume", "hostname", "environment", "resized"]
    {
        assert!(report.keeps(kept), "{kept}");
    }
    let other =
        ["priority", "label tier=web", "/metadata/labels removed", "/metadata/labels/tier = \"\""];
    for changed in other {
        assert!(!report.keeps(changed), "{changed}");
    }
    assert!(report.n_changes > report.kept.len());
}

#[test]
fn a_key_may_contain_too_much() {
    let report = bench::<1>().check_key(db()).unwrap();
    assert!(!report.keeps("pod name"));
    assert!(report.keeps("ordinal label"));
}

#[test]
fn a_key_that_leaves_something_out_is_an_error_that_names_the_change() {
    assert_eq!(
        bench::<2>().check_key(db()).unwrap_err().to_string(),
        "/metadata/labels/tier = \"\": the key is kept, but the status of node a was \"Success\" and is \"Unschedulable another tier\""
    );
    assert_eq!(
        bench::<3>().check_key(db()).unwrap_err().to_string(),
        "priority: the key is kept, but the scores were [a 0] and are [a 7]"
    );
}

#[test]
fn a_filter_that_rejects_a_node_although_its_scope_is_nothing_is_an_error() {
    assert_eq!(
        bench::<7>().check_key(db()).unwrap_err().to_string(),
        "filter_scope is Nothing, but a node is rejected: Unschedulable another tier"
    );
}

#[test]
fn a_key_that_reads_another_label_is_an_error() {
    assert!(bench::<5>().check_key(db()).unwrap().keeps("ordinal label"));
    assert_eq!(
        bench::<6>().check_key(db()).unwrap_err().to_string(),
        "/metadata/labels/tier = \"\": the key depends on more labels (label_keys)"
    );
}

#[test]
fn a_key_that_reads_requests_must_say_so() {
    bench::<8>().check_key(db()).unwrap();
    assert_eq!(
        bench::<9>().check_key(db()).unwrap_err().to_string(),
        "/spec/containers/0/resources/requests/cpu = \"0\": the key depends on requests or limits (key_reads_resources)"
    );
}

#[test]
fn a_pod_without_a_key_shares_nothing() {
    let report = bench::<4>().check_key(db()).unwrap();
    assert!(report.kept.is_empty());
}

#[test]
fn two_pods_are_compared() {
    let same = pod("db-1").label("tier", "db").label("other", "x");
    assert!(bench::<0>().have_equal_keys(db(), same.clone()).unwrap());
    assert!(!bench::<0>().have_equal_keys(db(), pod("web").label("tier", "web")).unwrap());
    assert!(!bench::<4>().have_equal_keys(db(), db()).unwrap());
    bench::<2>().have_equal_keys(db(), pod("web").label("tier", "web")).unwrap_err();
}

#[test]
fn the_plugin_must_have_an_incremental_form() {
    let build = |_: &mut ExtensionPoints, _: &Value| Ok(());
    let def = PluginDef { name: "Nothing", build, args: None };
    let error = PluginTestBench::new(&def, json!({})).unwrap().check_key(db()).unwrap_err();
    assert_eq!(error.to_string(), "the plugin has no incremental form");
}
