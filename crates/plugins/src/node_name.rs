//! NodeName: a pod with `spec.nodeName` fits only on that node.
//!
//! | | |
//! | --- | --- |
//! | extension points | Filter, Sign |
//! | woken by | node added |
//! | upstream | `plugins/nodename`, 1.36 |
//! | deviations | none |
//! | cost | one comparison per node, no allocation |
//!
//! A pod with a node name is assigned and never enters the scheduling queue. The plugin matters when such a pod is
//! evaluated all the same. The result depends on the pod itself, not on its template.

use std::sync::Arc;

use loadmaster_api::{SharedPodSpec, Str};
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{FilterScope, ResultDependencies, RowDependency, RowMask};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, Detail, EvaluatorCx, EventResource, Explain,
    ExtensionPoints, Filter, Incremental, NodeInfo, NodeRow, PluginDef, PluginError,
    PluginEvaluator, PodInfo, PrepareCx, PrepareResult, Rejection, Sign,
};
use serde_json::Value;

use crate::{DeclaredReasons, column_filter};

pub const NAME: &str = "NodeName";

const REASON: &str = "node(s) didn't match the requested node name";

/// The reasons with which this plugin rejects pods and nodes.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct NodeName;

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(NodeName);
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_event(ClusterEvent::new(EventResource::Node, ActionType::ADD), None);
    Ok(())
}

impl Filter for NodeName {
    fn filter(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let fits = pod.node_name.is_empty() || *pod.node_name == *node.name();
        if fits { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }
}

impl Explain for NodeName {
    fn pod_details(&self, _cx: Cx<'_>, pod: &PodInfo) -> Vec<Detail> {
        let name = pod.node_name.as_str();
        if name.is_empty() { Vec::new() } else { vec![Detail::new("nodeName", name)] }
    }
}

impl Sign for NodeName {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        let value = Value::from(pod.node_name.as_str());
        Ok(vec![SignFragment { key: "v1.Pod.Spec.NodeName", value }])
    }
}

impl Incremental for NodeName {
    /// The node name.
    type Key = Str;

    fn key(&self, _cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Str> {
        Some(pod.node_name.clone())
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, _cx: &mut PrepareCx<'_>, node_name: &Str) -> PrepareResult {
        if node_name.is_empty() {
            return PrepareResult::Skip;
        }
        PrepareResult::Evaluator(Box::new(NodeNameEvaluator { name: node_name.clone() }))
    }
}

struct NodeNameEvaluator {
    name: Str,
}

impl PluginEvaluator for NodeNameEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { filter: Some(RowDependency::Node), ..ResultDependencies::default() }
    }

    fn filter_scope(&self) -> FilterScope {
        FilterScope::Node
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        cx.nodes().row(&self.name) == Some(row)
    }

    fn filter_rows(&self, cx: EvaluatorCx<'_>, first: NodeRow, set: &mut RowMask) {
        column_filter::retain_named(std::slice::from_ref(&self.name), cx.nodes(), first, set);
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::testkit::PluginTestBench;
    use serde_json::json;

    use super::*;

    fn bench() -> PluginTestBench {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        for name in ["a", "b"] {
            bench.node(json!({"metadata": {"name": name}})).unwrap();
        }
        bench
    }

    #[track_caller]
    fn check(node_name: &str, want: &Expect) {
        let results = bench().filter(json!({"spec": {"nodeName": node_name}})).unwrap();
        want.assert_eq(&results.join("; ").replace(REASON, "REASON"));
    }

    #[test]
    fn filter_accepts_only_the_named_node() {
        check("", &expect!["a Success; b Success"]);
        check("b", &expect!["a UnschedulableAndUnresolvable REASON; b Success"]);
        check(
            "c",
            &expect![
                "a UnschedulableAndUnresolvable REASON; b UnschedulableAndUnresolvable REASON"
            ],
        );
    }

    #[test]
    fn sign() {
        let signed = bench().sign(json!({"spec": {"nodeName": "b"}})).unwrap();
        assert_eq!(signed, json!({"v1.Pod.Spec.NodeName": "b"}));
    }

    #[test]
    fn hint() {
        let hint = |action| {
            let event = ClusterEvent::new(EventResource::Node, action);
            bench().queueing_hint(event, json!({}), None, None).unwrap()
        };
        assert_eq!(hint(ActionType::ADD), "Queue");
        assert_eq!(hint(ActionType::UPDATE_NODE_LABEL), "Unregistered");
    }
}
