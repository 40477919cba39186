//! SchedulingGates: a pod is gated (does not enter activeQ) while its spec has scheduling gates.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreEnqueue |
//! | woken by | its own last gate removed |
//! | upstream | `plugins/schedulinggates`, 1.36 |
//! | deviations | none |
//! | cost | O(gates of the pod), once per pod; allocates the reason for a gated pod |

use std::sync::Arc;

use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, EventResource, ExtensionPoints, Failure, PluginDef,
    PluginError, PodInfo, PreEnqueue, QueueingHint, Rejection,
};
use serde_json::Value;

use crate::DeclaredReasons;

pub const NAME: &str = "SchedulingGates";

/// Followed by the names of the gates.
const WAITING: &str = "waiting for scheduling gates: [";

/// The reasons with which this plugin rejects pods.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, WAITING)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct SchedulingGates;

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    points.pre_enqueue = Some(Arc::new(SchedulingGates));
    let gates_eliminated = ActionType::UPDATE_POD_SCHEDULING_GATES_ELIMINATED;
    points.register_event(
        ClusterEvent::new(EventResource::Pod, gates_eliminated),
        Some(Arc::new(after_gates_eliminated)),
    );
    Ok(())
}

impl PreEnqueue for SchedulingGates {
    fn pre_enqueue(&self, _cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        let gates = &pod.template.spec.scheduling_gates;
        if gates.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = gates.iter().map(|gate| gate.name.as_str()).collect();
        let reason = format!("{WAITING}{}]", names.join(" "));
        Err(Rejection::unresolvable(reason))
    }
}

fn after_gates_eliminated(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let own = hint_args.new_pod()?.uid == hint_args.pod.uid;
    Ok(QueueingHint::queue_if(own))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::EventObject;
    use loadmaster_framework::testkit::PluginTestBench;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(gates: &[&str], want: &Expect) {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        let gates: Vec<Value> = gates.iter().map(|name| json!({"name": name})).collect();
        let pod = json!({"metadata": {"name": "web"}, "spec": {"schedulingGates": gates}});
        want.assert_eq(&bench.pre_enqueue(pod).unwrap());
    }

    #[test]
    fn pre_enqueue() {
        check(&[], &expect!["Success"]);
        check(&["a"], &expect!["UnschedulableAndUnresolvable waiting for scheduling gates: [a]"]);
        check(
            &["a", "b.io/c"],
            &expect!["UnschedulableAndUnresolvable waiting for scheduling gates: [a b.io/c]"],
        );
    }

    #[test]
    fn hint() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        let web = json!({"metadata": {"name": "web"}});
        let mut hint = |new: &str| {
            let new = bench.parse_pod(json!({"metadata": {"name": new}})).unwrap();
            let event = ClusterEvent::new(
                EventResource::UnschedulablePod,
                ActionType::UPDATE_POD_SCHEDULING_GATES_ELIMINATED,
            );
            bench.queueing_hint(event, web.clone(), None, Some(EventObject::Pod(&new))).unwrap()
        };
        assert_eq!(hint("web"), "Queue");
        assert_eq!(hint("other"), "Skip");
    }
}
