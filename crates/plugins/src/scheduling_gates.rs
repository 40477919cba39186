//! SchedulingGates: a pod stays out of the queue while its spec names scheduling gates.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreEnqueue |
//! | woken by | its own last gate removed |
//! | upstream | `plugins/schedulinggates`, 1.36 |
//! | deviations | none |
//! | cost | O(gates of the pod), once a pod; allocates the reason of a gated pod |

use std::sync::Arc;

use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::{
    Action, ClusterEvent, Code, Cx, EventResource, Failure, Hint, PluginDef, PluginError, PodInfo,
    Points, PreEnqueue, Rejection,
};
use serde_json::Value;

use crate::DeclaredReasons;

pub const NAME: &str = "SchedulingGates";

/// The names of the gates follow.
const WAITING: &str = "waiting for scheduling gates: [";

/// What it turns pods and nodes down with.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, WAITING)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct SchedulingGates;

fn build(points: &mut Points, _args: &Value) -> Result<(), PluginError> {
    points.pre_enqueue = Some(Arc::new(SchedulingGates));
    let gates_gone = Action::UPDATE_POD_SCHEDULING_GATES_ELIMINATED;
    points.wake_on(
        ClusterEvent::new(EventResource::Pod, gates_gone),
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

fn after_gates_eliminated(question: &HintQuestion<'_>) -> Result<Hint, Failure> {
    let own = question.pod_now()?.uid == question.pod.uid;
    Ok(if own { Hint::Queue } else { Hint::Skip })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::EventObject;
    use loadmaster_framework::testkit::Bench;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(gates: &[&str], want: &Expect) {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
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
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
        let web = json!({"metadata": {"name": "web"}});
        let mut ask = |new: &str| {
            let new = bench.pod(json!({"metadata": {"name": new}})).unwrap();
            let event = ClusterEvent::new(
                EventResource::UnschedulablePod,
                Action::UPDATE_POD_SCHEDULING_GATES_ELIMINATED,
            );
            bench.hint(event, web.clone(), None, Some(EventObject::Pod(&new))).unwrap()
        };
        assert_eq!(ask("web"), "Queue");
        assert_eq!(ask("other"), "Skip");
    }
}
