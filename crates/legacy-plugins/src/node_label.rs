//! NodeLabel: a pod fits on nodes that have some labels and do not have others, whatever their values; prefers nodes in the same way.
//!
//! | | |
//! | --- | --- |
//! | extension points | Filter, Score |
//! | woken by | node added or its labels changed, if the node passes now and did not before |
//! | upstream | `plugins/nodelabel`, 1.22 |
//! | deviations | none |
//! | cost | O(labels of the arguments) per node; only changes of the node object make its result be computed again |

use std::sync::Arc;

use loadmaster_api::meta::nullable;
use loadmaster_api::{Labels, Node};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::incremental::RowDependency;
use loadmaster_framework::plugin_args::{self, PluginArgs};
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, EvaluatorCx, EventResource, ExtensionPoints, Failure, FieldError,
    Filter, Incremental, MAX_NODE_SCORE, NodeInfo, PluginDef, PluginError, PodInfo, PrepareCx,
    PrepareResult, QueueingHint, Rejection, Score,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub const NAME: &str = "NodeLabel";

const REASON: &str = "node(s) didn't have the requested labels";

pub const DEF: PluginDef =
    PluginDef { name: NAME, build, args: Some(plugin_args::default_and_validate_args::<Args>) };

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Args {
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    present_labels: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    absent_labels: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    present_labels_preference: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    absent_labels_preference: Vec<String>,
}

impl PluginArgs for Args {
    /// Upstream's `ValidateNodeLabelArgs`.
    fn validate(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        conflicts(
            ("presentLabels", &self.present_labels),
            ("absentLabels", &self.absent_labels),
            &mut errors,
        );
        conflicts(
            ("presentLabelsPreference", &self.present_labels_preference),
            ("absentLabelsPreference", &self.absent_labels_preference),
            &mut errors,
        );
        errors
    }
}

/// Labels that are in both lists, which have these field names.
fn conflicts(
    (present_path, present): (&str, &[String]),
    (absent_path, absent): (&str, &[String]),
    errors: &mut Vec<FieldError>,
) {
    for (at, label) in absent.iter().enumerate() {
        // Upstream names the last of equal labels.
        if let Some(conflicting) = present.iter().rposition(|known| known == label) {
            let path = format!("{present_path}[{conflicting}]");
            let why = format!("conflict with {absent_path}[{at}]");
            errors.push(FieldError::invalid(path, format!("{label:?}"), why));
        }
    }
}

impl Args {
    /// Whether the filter passes a node with these labels.
    fn accepts(&self, labels: &Labels) -> bool {
        self.present_labels.iter().all(|label| labels.contains_key(label))
            && !self.absent_labels.iter().any(|label| labels.contains_key(label))
    }

    /// The share of the preferences that a node with these labels meets, in percent; 0 without preferences.
    fn score(&self, labels: &Labels) -> i64 {
        let has = |label: &&String| labels.contains_key(label);
        let n_present = self.present_labels_preference.iter().filter(has).count();
        let absent = &self.absent_labels_preference;
        let n_absent = absent.len() - absent.iter().filter(has).count();
        let n_preferences = (self.present_labels_preference.len() + absent.len()) as i64;
        (n_present + n_absent) as i64 * MAX_NODE_SCORE / n_preferences.max(1)
    }
}

struct NodeLabel(Arc<Args>);

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args: Arc<Args> = Arc::new(plugin_args::decode_plugin_args(NAME, args)?);
    let plugin = Arc::new(NodeLabel(args.clone()));
    points.filter = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin);
    let labels = ActionType::ADD | ActionType::UPDATE_NODE_LABEL;
    points.register_event(
        ClusterEvent::new(EventResource::Node, labels),
        Some(Arc::new(move |hint_args| after_node_change(&args, hint_args))),
    );
    Ok(())
}

impl Filter for NodeLabel {
    fn filter(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        if self.0.accepts(node.labels()) { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }
}

impl Score for NodeLabel {
    fn score(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(self.0.score(node.labels()))
    }
}

fn after_node_change(
    args: &Args,
    hint_args: &QueueingHintArgs<'_>,
) -> Result<QueueingHint, Failure> {
    let (old, new) = hint_args.old_and_new_node()?;
    let accepts = |node: &Node| args.accepts(&node.metadata.labels);
    Ok(QueueingHint::queue_if(accepts(new) && !old.is_some_and(accepts)))
}

/// The results do not depend on the pod: all pods share one evaluator.
impl Incremental for NodeLabel {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        let args = self.0.clone();
        PrepareResult::row_local(RowDependency::Node, move |cx, row| {
            let node = cx.world.node(row)?;
            args.accepts(node.labels()).then(|| args.score(node.labels()))
        })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::testkit::incremental_history::check_incremental_history;
    use loadmaster_framework::testkit::{PluginTestBench, node, pod};
    use loadmaster_framework::{EventObject, FeatureGates};
    use serde_json::json;

    use loadmaster_stdx::Rng;

    use super::*;

    #[track_caller]
    fn check_args(given: Value, want: &Expect) {
        let complete = DEF.args.unwrap();
        want.assert_eq(&match complete(&given, &FeatureGates::default()) {
            Ok(args) => args.to_string(),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        });
    }

    #[test]
    fn args() {
        check_args(json!({}), &expect!["{}"]);
        check_args(
            json!({"presentLabels": ["a"], "absentLabels": null, "absentLabelsPreference": []}),
            &expect![[r#"{"presentLabels":["a"]}"#]],
        );
        check_args(
            json!({"presentLabels": ["a", "b", "a"], "absentLabels": ["c", "a"],
                "presentLabelsPreference": ["c", "d"], "absentLabelsPreference": ["d"]}),
            &expect![[r#"
                presentLabels[2]: Invalid value: "a": conflict with absentLabels[1]
                presentLabelsPreference[1]: Invalid value: "d": conflict with absentLabelsPreference[0]"#]],
        );
        // A label may be required and not preferred.
        check_args(
            json!({"presentLabels": ["a"], "absentLabelsPreference": ["a"]}),
            &expect![[r#"{"absentLabelsPreference":["a"],"presentLabels":["a"]}"#]],
        );
        check_args(
            json!({"labels": []}),
            &expect![
                "labels: unknown field `labels`, expected one of `presentLabels`, `absentLabels`, `presentLabelsPreference`, `absentLabelsPreference`"
            ],
        );
    }

    /// Node "plain" without labels, "ssd" with a label, "both" with two.
    fn bench(args: Value) -> PluginTestBench {
        let mut bench = PluginTestBench::new(&DEF, args).unwrap();
        bench.node(node("plain")).unwrap();
        bench.node(node("ssd").label("disk", "ssd")).unwrap();
        bench.node(node("both").label("disk", "").label("retiring", "2026-01-31")).unwrap();
        bench
    }

    #[track_caller]
    fn check_filter(args: Value, want: &str) {
        let results = bench(args).filter(pod("web")).unwrap();
        let feasible = results.iter().filter_map(|result| result.strip_suffix(" Success"));
        assert_eq!(feasible.collect::<Vec<_>>().join(" "), want);
        let rejection = "UnschedulableAndUnresolvable node(s) didn't have the requested labels";
        for result in results.iter().filter(|result| !result.ends_with(" Success")) {
            assert_eq!(result.split_once(' ').unwrap().1, rejection);
        }
    }

    #[test]
    fn labels_must_be_present_or_absent() {
        check_filter(json!({}), "plain ssd both");
        check_filter(json!({"presentLabels": ["disk"]}), "ssd both");
        check_filter(json!({"presentLabels": ["disk"], "absentLabels": ["retiring"]}), "ssd");
        check_filter(json!({"absentLabels": ["retiring", "disk"]}), "plain");
        check_filter(json!({"presentLabels": ["disk", "gpu"]}), "");
        check_filter(json!({"presentLabelsPreference": ["gpu"]}), "plain ssd both");
    }

    #[track_caller]
    fn check_score(args: Value, want: [i64; 3]) {
        let scores = bench(args).score(pod("web")).unwrap();
        assert_eq!(scores.into_iter().map(|(_, score)| score).collect::<Vec<_>>(), want);
    }

    #[test]
    fn the_score_is_the_share_of_preferences_that_are_met() {
        check_score(json!({}), [0, 0, 0]);
        check_score(json!({"presentLabelsPreference": ["disk"]}), [0, 100, 100]);
        check_score(
            json!({"presentLabelsPreference": ["disk"], "absentLabelsPreference": ["retiring"]}),
            [50, 100, 50],
        );
        check_score(json!({"presentLabelsPreference": ["disk", "disk", "gpu"]}), [0, 66, 66]);
        check_score(json!({"absentLabelsPreference": ["disk", "retiring", "gpu"]}), [100, 66, 33]);
    }

    #[track_caller]
    fn check_hint(old: Option<&[&str]>, new: &[&str], want: &str) {
        let args = json!({"presentLabels": ["disk"], "absentLabels": ["retiring"]});
        let mut bench = PluginTestBench::new(&DEF, args).unwrap();
        let with = |labels: &[&str]| -> Node {
            let node = labels.iter().fold(node("a"), |node, label| node.label(label, "x"));
            serde_json::from_value(node.into()).unwrap()
        };
        let (old, new) = (old.map(with), with(new));
        let action = if old.is_some() { ActionType::UPDATE_NODE_LABEL } else { ActionType::ADD };
        let event = ClusterEvent::new(EventResource::Node, action);
        let (old, new) = (old.as_ref().map(EventObject::Node), EventObject::Node(&new));
        assert_eq!(bench.queueing_hint(event, pod("web").into(), old, Some(new)).unwrap(), want);
    }

    #[test]
    fn nodes_that_pass_now_wake_pods() {
        check_hint(None, &["disk"], "Queue");
        check_hint(None, &[], "Skip");
        check_hint(Some(&[]), &["disk"], "Queue");
        check_hint(Some(&["disk"]), &["disk", "gpu"], "Skip");
        check_hint(Some(&["disk", "retiring"]), &["disk"], "Queue");
        check_hint(Some(&["disk"]), &["disk", "retiring"], "Skip");
    }

    #[test]
    fn cached_evaluations_see_changed_nodes() {
        let args = json!({"absentLabels": ["retiring"], "presentLabelsPreference": ["disk"]});
        let mut bench = PluginTestBench::new(&DEF, args).unwrap();
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            let name = *rng.pick(&["a", "b", "c"]);
            Ok(match rng.below(5) {
                0 => {
                    bench.delete_node(name);
                    "deleted"
                }
                kind => {
                    let labels = ["disk", "retiring"].into_iter().enumerate();
                    let chosen = labels.filter(|(at, _)| kind >> at & 1 == 1);
                    let node = chosen.fold(node(name), |node, (_, label)| node.label(label, "x"));
                    bench.node(node)?;
                    "updated"
                }
            })
        };
        let incoming = |_: &mut Rng| pod("web").into();
        check_incremental_history(&mut bench, &mut Rng::new(11), 1_000, incoming, change).unwrap();
    }

    #[test]
    fn the_key_is_the_same_for_all_pods() {
        let args = json!({"presentLabels": ["disk"]});
        assert!(bench(args).check_key(pod("web")).unwrap().keeps("ordinal label"));
    }
}
