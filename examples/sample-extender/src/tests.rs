use loadmaster_extender_server::messages::{ExtenderArgs, ExtenderFilterResult, read};
use serde_json::{Value, json};

use super::*;

/// As a scheduler would ask about nodes with these tiers.
fn ask(tiers: &[(&str, Option<&str>)]) -> Ask {
    let node = |(name, tier): &(&str, Option<&str>)| {
        let labels = tier.map(|tier| json!({LABEL: tier}));
        json!({"metadata": {"name": name, "labels": labels}})
    };
    let nodes: Vec<Value> = tiers.iter().map(node).collect();
    let args = json!({"Pod": {"metadata": {"name": "web"}}, "Nodes": {"items": nodes}});
    read::<ExtenderArgs<_, _>>(args.to_string().as_bytes()).unwrap().try_into().unwrap()
}

#[test]
fn nodes_without_a_tier_are_failed_with_a_reason() {
    let filtered = filter(ask(&[("a", Some("3")), ("b", None), ("c", Some("x"))])).unwrap();
    assert_eq!(filtered.nodes.names().collect::<Vec<_>>(), ["a", "c"]);
    let result = serde_json::to_value(ExtenderFilterResult::from(filtered)).unwrap();
    assert_eq!(result["FailedAndUnresolvableNodes"], json!({"b": "node(s) had no tier"}));
    assert_eq!(result["FailedNodes"], Value::Null);
}

#[test]
fn the_tier_is_the_score() {
    let nodes = [("a", Some("3")), ("b", Some("x")), ("c", Some("12")), ("d", Some("-1"))];
    let scores = prioritize(ask(&nodes)).unwrap();
    let scores: Vec<_> = scores.iter().map(|it| (it.host.as_str(), it.score)).collect();
    assert_eq!(scores, [("a", 3), ("b", 0), ("c", 10), ("d", 0)]);
}
