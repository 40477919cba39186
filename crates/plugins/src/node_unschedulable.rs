//! NodeUnschedulable: a cordoned node (`spec.unschedulable`) takes only pods that tolerate the taint of that name.
//!
//! | | |
//! | --- | --- |
//! | extension points | Filter, Sign |
//! | woken by | node added or its taints changed, own tolerations changed |
//! | upstream | `plugins/nodeunschedulable`, 1.36 |
//! | deviations | none |
//! | cost | one flag a node; O(tolerations) a cordoned node; no allocation |

use std::sync::Arc;

use loadmaster_api::{Str, Taint};
use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::prepare::{Reads, RowPart, RowSet};
use loadmaster_framework::{
    Action, ClusterEvent, Code, Cx, EventResource, Failure, Filter, Hint, NodeInfo, NodeTable,
    PluginDef, PluginError, PodInfo, Points, Prepare, Prepared, Rejection, Row, Run, Sign, World,
};
use serde_json::Value;

use crate::DeclaredReasons;
use crate::taint_toleration::{NO_SCHEDULE, Tolerance, signed_tolerations};

pub const NAME: &str = "NodeUnschedulable";

const REASON: &str = "node(s) were unschedulable";

/// What it turns pods and nodes down with.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct NodeUnschedulable {
    tolerance: Tolerance,
    /// What tolerates this tolerates cordoned nodes.
    taint: Taint,
}

fn build(points: &mut Points, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(NodeUnschedulable {
        tolerance: Tolerance::new(&points.gates),
        taint: Taint {
            key: Str::new("node.kubernetes.io/unschedulable"),
            effect: Str::new(NO_SCHEDULE),
            ..Taint::default()
        },
    });
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.prepare = Some(plugin.clone());
    points.wake_on(
        ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_NODE_TAINT),
        Some(Arc::new(after_node_change)),
    );
    points.wake_on(
        ClusterEvent::new(EventResource::Pod, Action::UPDATE_POD_TOLERATION),
        Some(Arc::new(move |question| plugin.after_toleration_change(question))),
    );
    Ok(())
}

impl NodeUnschedulable {
    fn is_tolerated_by(&self, pod: &PodInfo) -> bool {
        self.tolerance.any_tolerates(&pod.template.spec.tolerations, &self.taint)
    }

    fn after_toleration_change(&self, question: &HintQuestion<'_>) -> Result<Hint, Failure> {
        let changed = question.pod_now()?;
        let helps = changed.uid == question.pod.uid && self.is_tolerated_by(changed);
        Ok(if helps { Hint::Queue } else { Hint::Skip })
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let fits = !node.node().spec.unschedulable || self.is_tolerated_by(pod);
        if fits { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }
}

fn after_node_change(question: &HintQuestion<'_>) -> Result<Hint, Failure> {
    let (old, new) = question.node_change()?;
    let was_closed = old.is_none_or(|old| old.spec.unschedulable);
    let opened = was_closed && !new.spec.unschedulable;
    Ok(if opened { Hint::Queue } else { Hint::Skip })
}

impl Sign for NodeUnschedulable {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        Ok(vec![signed_tolerations(pod)])
    }
}

impl Prepare for NodeUnschedulable {
    fn prepare(&self, _world: &mut World, pod: &PodInfo) -> Prepared {
        if self.is_tolerated_by(pod) {
            return Prepared::Skip;
        }
        Prepared::Run(Box::new(OpenNodes))
    }
}

struct OpenNodes;

impl Run for OpenNodes {
    fn reads(&self) -> Reads {
        Reads { filter: Some(RowPart::Node), ..Reads::default() }
    }

    fn filter_row(&self, nodes: &NodeTable, row: Row) -> bool {
        nodes.columns().unschedulable[row.index()] == 0
    }

    fn filter_all(&self, nodes: &NodeTable, set: &mut RowSet) {
        for (member, unschedulable) in set.iter_mut().zip(&nodes.columns().unschedulable) {
            *member &= 1 - unschedulable;
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_api::Node;
    use loadmaster_framework::EventObject;
    use loadmaster_framework::testkit::Bench;
    use serde_json::json;

    use super::*;

    fn bench() -> Bench {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
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
        let verdicts = bench().filter(pod("web", &toleration)).unwrap();
        assert_eq!(verdicts[0], "open Success");
        want.assert_eq(&verdicts[1].replace(REASON, "REASON"));
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
        let ask = |old: Option<bool>, new: bool| {
            let (old, new) = (old.map(node), node(new));
            let event = ClusterEvent::new(
                EventResource::Node,
                if old.is_some() { Action::UPDATE_NODE_TAINT } else { Action::ADD },
            );
            let old = old.as_ref().map(EventObject::Node);
            bench().hint(event, json!({}), old, Some(EventObject::Node(&new))).unwrap()
        };
        assert_eq!(ask(None, false), "Queue");
        assert_eq!(ask(None, true), "Skip");
        assert_eq!(ask(Some(true), false), "Queue");
        assert_eq!(ask(Some(false), false), "Skip");
        assert_eq!(ask(Some(true), true), "Skip");
    }

    #[test]
    fn hint_toleration_change() {
        let mut bench = bench();
        let mut ask = |name: &str, toleration: Value| {
            let new = bench.pod(pod(name, &toleration)).unwrap();
            let event =
                ClusterEvent::new(EventResource::UnschedulablePod, Action::UPDATE_POD_TOLERATION);
            let rejected = json!({"metadata": {"name": "web"}});
            bench.hint(event, rejected, None, Some(EventObject::Pod(&new))).unwrap()
        };
        assert_eq!(ask("web", json!({"operator": "Exists"})), "Queue");
        assert_eq!(ask("web", json!({"key": "other"})), "Skip");
        assert_eq!(ask("other", json!({"operator": "Exists"})), "Skip");
    }

    #[test]
    fn sign() {
        let signed = bench().sign(pod("web", &json!({"key": "a"}))).unwrap();
        assert_eq!(signed, json!({"v1.Pod.Spec.Tolerations": [{"key": "a"}]}));
    }
}
