//! Details that a plugin adds to `explain`.

use loadmaster_framework::testkit::{PluginTestBench, node, pod};
use loadmaster_framework::{Detail, DetailValue, Explain, Filter, NodeStateSlot};

use super::*;
use crate::explain::Explanation;
use crate::guard::silence_caught_panics;

/// Rejects nodes with fewer slots (label `slots`) than the pod wants (label `wants`), and explains both.
struct Slots {
    free: NodeStateSlot<i64>,
}

const SLOTS: PluginDef = PluginDef { name: "Slots", build: build_slots, args: None };

fn build_slots(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Slots { free: points.node_state_slot() });
    points.filter = Some(plugin.clone());
    points.explain = Some(plugin);
    points.register_no_events();
    Ok(())
}

fn wanted(pod: &PodInfo) -> i64 {
    label_of(pod, "wants").parse().unwrap_or(0)
}

impl Filter for Slots {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let free = node.labels().get("slots").and_then(|slots| slots.parse().ok()).unwrap_or(0);
        cx.cycle.set_for_node(self.free, node.row(), free);
        if wanted(pod) > free { Err(Rejection::unschedulable("too few slots")) } else { Ok(()) }
    }
}

impl Explain for Slots {
    fn pod_details(&self, _: Cx<'_>, pod: &PodInfo) -> Vec<Detail> {
        assert!(label_of(pod, "panic").is_empty(), "injected");
        vec![Detail::new("wanted", wanted(pod)), Detail::new("urgent", wanted(pod) > 3)]
    }

    fn node_details(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let free = cx.cycle.get_for_node(self.free, node.row());
        let Some(free) = free.filter(|free| **free > 0) else { return Vec::new() };
        let slots: Vec<String> = (0..*free).map(|slot| format!("s{slot}")).collect();
        vec![Detail::new("free", *free), Detail::new("slots", slots)]
    }
}

fn explained(labels: Value) -> Explanation {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Slots"}]}}});
    let mut bench = Bench::of(EngineOptions::default(), SLOTS, &profile, json!([]));
    for (name, slots) in [("b", "1"), ("c", "2")] {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"slots": slots}},
            "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}},
        }))
        .unwrap();
        bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))));
    }
    bench.pod("web", labels);
    bench.engine.explain("default", "web").unwrap()
}

#[test]
fn details_are_typed_and_keep_their_order() {
    let explanation = explained(json!({"wants": "2"}));
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["details"], json!({"Slots": {"wanted": 2, "urgent": false}}));
    let nodes: Vec<&Value> = json["nodes"].as_array().unwrap().iter().collect();
    assert_eq!(nodes[0].get("details"), None, "node a has none");
    assert_eq!(nodes[1]["details"], json!({"Slots": {"free": 1, "slots": ["s0"]}}), "rejected");
    assert_eq!(nodes[2]["details"], json!({"Slots": {"free": 2, "slots": ["s0", "s1"]}}));
    let text = serde_json::to_string(&explanation).unwrap();
    assert!(text.contains(r#""details":{"Slots":{"wanted":2,"urgent":false}}"#), "{text}");
    let decoded: Explanation = serde_json::from_str(&text).unwrap();
    assert_eq!(decoded, explanation);
}

#[test]
fn the_details_of_a_plugin_that_panics_are_left_out() {
    silence_caught_panics();
    let explanation = explained(json!({"wants": "1", "panic": "yes"}));
    assert_eq!((explanation.details.len(), explanation.nodes[1].details.len()), (0, 1));
}

#[test]
fn values_are_printed_as_text() {
    for (value, want) in [
        (DetailValue::from(true), "true"),
        (DetailValue::from(-3), "-3"),
        (DetailValue::from("numa-0"), "numa-0"),
        (DetailValue::from(vec!["a".to_owned(), "b".to_owned()]), "[a b]"),
    ] {
        assert_eq!(value.to_string(), want);
    }
}

#[test]
fn the_bench_of_a_plugin_explains() {
    let mut bench = PluginTestBench::new(&SLOTS, json!({})).unwrap();
    bench.node(node("a")).unwrap();
    bench.node(node("b").label("slots", "1")).unwrap();
    let lines = bench.explain(pod("web").label("wants", "1")).unwrap();
    assert_eq!(lines, ["pod: wanted=1, urgent=false", "b: free=1, slots=[s0]"]);
}
