//! NodeUnschedulable: a cordoned node (`spec.unschedulable`) accepts only pods that tolerate the unschedulable taint.
//!
//! | | |
//! | --- | --- |
//! | extension points | Filter, Sign |
//! | woken by | node added or its taints changed, own tolerations changed |
//! | upstream | `plugins/nodeunschedulable`, 1.36 |
//! | deviations | none |
//! | cost | one flag per node; O(tolerations) per cordoned node; no allocation |

use std::sync::Arc;

use loadmaster_api::{SharedPodSpec, Str, Taint};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{FilterScope, ResultDependencies, RowDependency, RowMask};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, EvaluatorCx, EventResource, ExtensionPoints, Failure,
    Filter, Incremental, NodeInfo, NodeRow, PluginDef, PluginError, PluginEvaluator, PodInfo,
    PrepareCx, PrepareResult, QueueingHint, Rejection, Sign,
};
use serde_json::Value;

use crate::DeclaredReasons;
use crate::tolerations::{NO_SCHEDULE, TolerationMatcher, signed_tolerations};

pub const NAME: &str = "NodeUnschedulable";

const REASON: &str = "node(s) were unschedulable";

/// The reasons with which this plugin rejects pods and nodes.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct NodeUnschedulable {
    toleration_matcher: TolerationMatcher,
    /// A pod that tolerates this taint tolerates cordoned nodes.
    taint: Taint,
}

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(NodeUnschedulable {
        toleration_matcher: TolerationMatcher::new(&points.gates),
        taint: Taint {
            key: Str::new("node.kubernetes.io/unschedulable"),
            effect: Str::new(NO_SCHEDULE),
            ..Taint::default()
        },
    });
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.register_event(
        ClusterEvent::new(EventResource::Node, ActionType::ADD | ActionType::UPDATE_NODE_TAINT),
        Some(Arc::new(after_node_change)),
    );
    points.register_event(
        ClusterEvent::new(EventResource::Pod, ActionType::UPDATE_POD_TOLERATION),
        Some(Arc::new(move |hint_args| plugin.after_toleration_change(hint_args))),
    );
    Ok(())
}

impl NodeUnschedulable {
    fn is_tolerated_by(&self, pod: &PodInfo) -> bool {
        self.toleration_matcher.any_tolerates(&pod.template.spec.tolerations, &self.taint)
    }

    fn after_toleration_change(
        &self,
        hint_args: &QueueingHintArgs<'_>,
    ) -> Result<QueueingHint, Failure> {
        let changed = hint_args.new_pod()?;
        let helps = changed.uid == hint_args.pod.uid && self.is_tolerated_by(changed);
        Ok(QueueingHint::queue_if(helps))
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let fits = !node.node().spec.unschedulable || self.is_tolerated_by(pod);
        if fits { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }
}

fn after_node_change(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let (old, new) = hint_args.old_and_new_node()?;
    let was_unschedulable = old.is_none_or(|old| old.spec.unschedulable);
    let became_schedulable = was_unschedulable && !new.spec.unschedulable;
    Ok(QueueingHint::queue_if(became_schedulable))
}

impl Sign for NodeUnschedulable {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        Ok(vec![signed_tolerations(pod)])
    }
}

impl Incremental for NodeUnschedulable {
    /// Whether the pod tolerates cordoned nodes.
    type Key = bool;

    fn key(&self, _cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<bool> {
        Some(self.is_tolerated_by(pod))
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, _cx: &mut PrepareCx<'_>, is_tolerated: &bool) -> PrepareResult {
        if *is_tolerated {
            return PrepareResult::Skip;
        }
        PrepareResult::Evaluator(Box::new(NodeUnschedulableEvaluator))
    }
}

struct NodeUnschedulableEvaluator;

impl PluginEvaluator for NodeUnschedulableEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { filter: Some(RowDependency::Node), ..ResultDependencies::default() }
    }

    fn filter_scope(&self) -> FilterScope {
        FilterScope::Node
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        cx.nodes().columns().unschedulable[row.index()] == 0
    }

    fn filter_rows(&self, cx: EvaluatorCx<'_>, first: NodeRow, set: &mut RowMask) {
        let unschedulable = &cx.nodes().columns().unschedulable[first.index()..];
        for (member, unschedulable) in set.iter_mut().zip(unschedulable) {
            *member &= 1 - unschedulable;
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_api::Node;
    use loadmaster_framework::EventObject;
    use loadmaster_framework::testkit::PluginTestBench;
    use serde_json::json;

    use super::*;

    fn bench() -> PluginTestBench {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        for (name, unschedulable) in [("open", false), ("cordoned", true)] {
            let spec = json!({"unschedulable": unschedulable});
            bench.node(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        }
        bench
    }

    fn pod(name: &str, toleration: &Value) -> Value {
        json!({"metadata": {"name": name}, "spec": {"tolerations": [toleration]}})
    }

    #[track_caller]
    fn check(toleration: Value, want: &Expect) {
        let results = bench().filter(pod("web", &toleration)).unwrap();
        assert_eq!(results[0], "open Success");
        want.assert_eq(&results[1].replace(REASON, "REASON"));
    }

    #[test]
    fn filter() {
        let key = "node.kubernetes.io/unschedulable";
        check(
            json!({"key": "other", "operator": "Exists"}),
            &expect!["cordoned UnschedulableAndUnresolvable REASON"],
        );
        check(json!({"key": key, "operator": "Exists"}), &expect!["cordoned Success"]);
        check(json!({"key": key}), &expect!["cordoned Success"]);
        check(
            json!({"key": key, "operator": "Exists", "effect": "NoExecute"}),
            &expect!["cordoned UnschedulableAndUnresolvable REASON"],
        );
        check(json!({"operator": "Exists"}), &expect!["cordoned Success"]);
    }

    #[test]
    fn hint_node_change() {
        let node = |unschedulable| Node {
            spec: loadmaster_api::NodeSpec { unschedulable, ..Default::default() },
            ..Default::default()
        };
        let hint = |old: Option<bool>, new: bool| {
            let (old, new) = (old.map(node), node(new));
            let event = ClusterEvent::new(
                EventResource::Node,
                if old.is_some() { ActionType::UPDATE_NODE_TAINT } else { ActionType::ADD },
            );
            let old = old.as_ref().map(EventObject::Node);
            bench().queueing_hint(event, json!({}), old, Some(EventObject::Node(&new))).unwrap()
        };
        assert_eq!(hint(None, false), "Queue");
        assert_eq!(hint(None, true), "Skip");
        assert_eq!(hint(Some(true), false), "Queue");
        assert_eq!(hint(Some(false), false), "Skip");
        assert_eq!(hint(Some(true), true), "Skip");
    }

    #[test]
    fn hint_toleration_change() {
        let mut bench = bench();
        let mut hint = |name: &str, toleration: Value| {
            let new = bench.parse_pod(pod(name, &toleration)).unwrap();
            let event = ClusterEvent::new(
                EventResource::UnschedulablePod,
                ActionType::UPDATE_POD_TOLERATION,
            );
            let rejected = json!({"metadata": {"name": "web"}});
            bench.queueing_hint(event, rejected, None, Some(EventObject::Pod(&new))).unwrap()
        };
        assert_eq!(hint("web", json!({"operator": "Exists"})), "Queue");
        assert_eq!(hint("web", json!({"key": "other"})), "Skip");
        assert_eq!(hint("other", json!({"operator": "Exists"})), "Skip");
    }

    #[test]
    fn sign() {
        let signed = bench().sign(pod("web", &json!({"key": "a"}))).unwrap();
        assert_eq!(signed, json!({"v1.Pod.Spec.Tolerations": [{"key": "a"}]}));
    }
}
