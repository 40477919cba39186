use loadmaster_extender_server::messages::{ExtenderArgs, ExtenderFilterResult, decode_message};
use serde_json::{Value, json};

use super::*;

/// A scheduler's request for nodes with these tiers.
fn nodes_request(tiers: &[(&str, Option<&str>)]) -> NodesRequest {
    let node = |(name, tier): &(&str, Option<&str>)| {
        let labels = tier.map(|tier| json!({LABEL: tier}));
        json!({"metadata": {"name": name, "labels": labels}})
    };
    let nodes: Vec<Value> = tiers.iter().map(node).collect();
    let args = json!({"Pod": {"metadata": {"name": "web"}}, "Nodes": {"items": nodes}});
    decode_message::<ExtenderArgs<_, _>>(args.to_string().as_bytes()).unwrap().try_into().unwrap()
}

#[test]
fn nodes_without_a_tier_are_rejected_with_a_reason() {
    let filtered =
        filter(nodes_request(&[("a", Some("3")), ("b", None), ("c", Some("x"))])).unwrap();
    assert_eq!(filtered.nodes.names().collect::<Vec<_>>(), ["a", "c"]);
    let result = serde_json::to_value(ExtenderFilterResult::from(filtered)).unwrap();
    assert_eq!(result["FailedAndUnresolvableNodes"], json!({"b": "node(s) had no tier"}));
    assert_eq!(result["FailedNodes"], Value::Null);
}

#[test]
fn the_tier_is_the_score() {
    let nodes = [("a", Some("3")), ("b", Some("x")), ("c", Some("12")), ("d", Some("-1"))];
    let scores = prioritize(nodes_request(&nodes)).unwrap();
    let scores: Vec<_> = scores.iter().map(|it| (it.host.as_str(), it.score)).collect();
    assert_eq!(scores, [("a", 3), ("b", 0), ("c", 10), ("d", 0)]);
}
