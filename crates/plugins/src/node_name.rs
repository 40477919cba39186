//! NodeName: a pod whose spec names a node fits only there.
//!
//! | | |
//! | --- | --- |
//! | extension points | Filter, Sign |
//! | woken by | node added |
//! | upstream | `plugins/nodename`, 1.36 |
//! | deviations | none |
//! | cost | one comparison a node, no allocation |
//!
//! A pod with a node name is assigned and never reaches a scheduler's queue. The plugin matters where such a pod is
//! asked about all the same. Its answer hangs on the single pod, not on what equal pods share.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::prepare::{Reads, RowPart, RowSet};
use loadmaster_framework::{
    Action, ClusterEvent, Code, Cx, EventResource, Filter, NodeInfo, NodeTable, PluginDef,
    PluginError, PodInfo, Points, Prepare, Prepared, Rejection, Row, Run, Sign, World,
};
use serde_json::Value;

use crate::DeclaredReasons;

pub const NAME: &str = "NodeName";

const REASON: &str = "node(s) didn't match the requested node name";

/// What it turns pods and nodes down with.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct NodeName;

fn build(points: &mut Points, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(NodeName);
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.prepare = Some(plugin);
    points.wake_on(ClusterEvent::new(EventResource::Node, Action::ADD), None);
    Ok(())
}

impl Filter for NodeName {
    fn filter(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let fits = pod.node_name.is_empty() || *pod.node_name == *node.name();
        if fits { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }
}

impl Sign for NodeName {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        let value = Value::from(pod.node_name.as_str());
        Ok(vec![Fragment { key: "v1.Pod.Spec.NodeName", value }])
    }
}

impl Prepare for NodeName {
    fn prepare(&self, _world: &mut World, pod: &PodInfo) -> Prepared {
        if pod.node_name.is_empty() {
            return Prepared::Skip;
        }
        Prepared::Run(Box::new(OneNode { name: pod.node_name.clone() }))
    }
}

struct OneNode {
    name: Str,
}

impl Run for OneNode {
    fn reads(&self) -> Reads {
        Reads { filter: Some(RowPart::Node), ..Reads::default() }
    }

    fn filter_row(&self, nodes: &NodeTable, row: Row) -> bool {
        nodes.row(&self.name) == Some(row)
    }

    fn filter_all(&self, nodes: &NodeTable, set: &mut RowSet) {
        let only = nodes.row(&self.name).map(|row| (row, set[row.index()]));
        set.fill(0);
        if let Some((row, member)) = only {
            set[row.index()] = member;
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::testkit::Bench;
    use serde_json::json;

    use super::*;

    fn bench() -> Bench {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
        for name in ["a", "b"] {
            bench.node(json!({"metadata": {"name": name}})).unwrap();
        }
        bench
    }

    #[track_caller]
    fn check(node_name: &str, want: &Expect) {
        let verdicts = bench().filter(json!({"spec": {"nodeName": node_name}})).unwrap();
        want.assert_eq(&verdicts.join("; ").replace(REASON, "REASON"));
    }

    #[test]
    fn table() {
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
        let ask = |action| {
            let event = ClusterEvent::new(EventResource::Node, action);
            bench().hint(event, json!({}), None, None).unwrap()
        };
        assert_eq!(ask(Action::ADD), "Queue");
        assert_eq!(ask(Action::UPDATE_NODE_LABEL), "Unregistered");
    }
}
