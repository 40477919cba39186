use loadmaster_framework::testkit::PluginTestBench;
use serde_json::json;

use super::*;

/// Checks the hints for a pod that requests one CPU and two `a.io/x`.
struct HintBench {
    bench: PluginTestBench,
}

const POD: EventResource = EventResource::AssignedPod;
const SCALED: ActionType = ActionType::UPDATE_POD_SCALE_DOWN;
const NODE: EventResource = EventResource::Node;
const GROWN: ActionType = ActionType::UPDATE_NODE_ALLOCATABLE;

impl HintBench {
    fn new() -> HintBench {
        HintBench {
            bench: PluginTestBench::new(&DEF, json!({"ignoredResources": ["a.io/x"]})).unwrap(),
        }
    }

    #[track_caller]
    fn pods(&mut self, action: ActionType, old: Option<Value>, new: Option<Value>, want: &str) {
        let [old, new] = [old, new].map(|pod| pod.map(|pod| self.bench.parse_pod(pod).unwrap()));
        let [old, new] = [&old, &new].map(|pod| pod.as_ref().map(EventObject::Pod));
        let event = ClusterEvent::new(POD, action);
        assert_eq!(self.bench.queueing_hint(event, web(), old, new).unwrap(), want);
    }

    #[track_caller]
    fn nodes(&mut self, old: Option<Value>, new: Option<Value>, want: &str) {
        let parse = |allocatable: &Value| -> Node {
            plugin_args::decode_json_value(
                &json!({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}),
            )
            .unwrap()
        };
        let [old, new] = [old, new].map(|node| node.as_ref().map(parse));
        let action = if old.is_none() { ActionType::ADD } else { GROWN };
        let [old, new] = [&old, &new].map(|node| node.as_ref().map(EventObject::Node));
        assert_eq!(
            self.bench.queueing_hint(ClusterEvent::new(NODE, action), web(), old, new).unwrap(),
            want
        );
    }
}

fn web() -> Value {
    pod("web", "", json!({"cpu": 1, "a.io/x": 2, "memory": 0}))
}

fn pod(name: &str, node: &str, requests: Value) -> Value {
    json!({"metadata": {"name": name, "uid": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

#[test]
fn an_assigned_pod_is_deleted() {
    let mut hints = HintBench::new();
    hints.pods(ActionType::DELETE, Some(pod("old", "n", json!({}))), None, "Queue");
    hints.pods(ActionType::DELETE, Some(pod("old", "", json!({"cpu": 9}))), None, "Skip");
    let mut nominated = pod("old", "", json!({}));
    nominated["status"] = json!({"nominatedNodeName": "n"});
    hints.pods(ActionType::DELETE, Some(nominated), None, "Queue");
    hints.pods(ActionType::DELETE, None, None, "Error expected a pod");
}

#[test]
fn a_pod_is_scaled_down() {
    let mut hints = HintBench::new();
    let mut check = |node: &str, old: Value, new: Value, want: &str| {
        hints.pods(SCALED, Some(pod("o", node, old)), Some(pod("o", node, new)), want);
    };
    check("n", json!({"cpu": 2}), json!({"cpu": 1}), "Queue");
    check("n", json!({"cpu": 2}), json!({"cpu": 2}), "Skip");
    check("n", json!({"cpu": 2, "memory": 5}), json!({"cpu": 2, "memory": 4}), "Skip");
    check("n", json!({"a.io/x": 1}), json!({}), "Queue");
    check("n", json!({"b.io/y": 1}), json!({}), "Skip");
    check("", json!({"cpu": 2}), json!({"cpu": 1}), "Skip");
    hints.pods(SCALED, Some(web()), Some(web()), "Queue");
    hints.pods(ActionType::UPDATE_POD_LABEL, Some(web()), Some(web()), "Unregistered");
}

#[test]
fn a_node_is_added_or_its_allocatable_grows() {
    let mut hints = HintBench::new();
    let fits = || json!({"cpu": 1, "a.io/x": 2, "pods": 1});
    hints.nodes(None, Some(fits()), "Queue");
    hints.nodes(None, Some(json!({"cpu": 1, "a.io/x": 2})), "Skip");
    // Resources that Filter ignores still count here, as upstream.
    hints.nodes(None, Some(json!({"cpu": 1, "pods": 1})), "Skip");
    hints.nodes(Some(fits()), Some(fits()), "Skip");
    hints.nodes(Some(fits()), Some(json!({"cpu": 1, "a.io/x": 2, "pods": 2})), "Queue");
    hints.nodes(Some(fits()), Some(json!({"cpu": 2, "a.io/x": 2, "pods": 1})), "Queue");
    hints.nodes(Some(fits()), Some(json!({"cpu": 1, "a.io/x": 3, "pods": 1})), "Queue");
    hints.nodes(Some(fits()), Some(json!({"cpu": 1, "a.io/x": 2, "memory": 9, "pods": 1})), "Skip");
    hints.nodes(Some(json!({"cpu": 2, "a.io/x": 1, "pods": 1})), Some(fits()), "Queue");
    hints.nodes(Some(json!({"cpu": 0})), Some(json!({"cpu": "500m", "pods": 1})), "Skip");
    hints.nodes(Some(fits()), None, "Skip");
}

#[test]
fn registered_events() {
    let bench = HintBench::new().bench;
    let events = bench.extension_points().events.as_ref().unwrap().iter();
    let names: Vec<String> =
        events.map(|e| format!("{} {}", e.event.resource.name(), e.event.action)).collect();
    let want = [
        "Pod Delete|UpdatePodScaleDown",
        "Node Add|UpdateNodeAllocatable",
        "resource.k8s.io/DeviceClass Add|Update",
    ];
    assert_eq!(names, want);
}
