//! Node selectors, taints and tolerations, for the full API types.

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration,
};

use crate::meta::Labels;

/// Whether every one of `wanted` is among `labels`.
pub(crate) fn contains(labels: Option<&Labels>, wanted: Option<&Labels>) -> bool {
    wanted.into_iter().flatten().all(|(key, value)| {
        labels.and_then(|labels| labels.get(key)).is_some_and(|one| one == value)
    })
}

/// Whether a node selector matches a node. A selector without terms matches none.
pub(crate) fn selects_node(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| term_selects(term, node))
}

fn term_selects(term: &NodeSelectorTerm, node: &Node) -> bool {
    let (rules, fields) = (term.match_expressions.as_deref(), term.match_fields.as_deref());
    let (rules, fields) = (rules.unwrap_or_default(), fields.unwrap_or_default());
    if rules.is_empty() && fields.is_empty() {
        return false;
    }
    let labels = node.metadata.labels.as_ref();
    let name = node.metadata.name.as_ref();
    rules.iter().all(|rule| node_rule(rule, labels.and_then(|labels| labels.get(&rule.key))))
        && fields.iter().all(|rule| rule.key == "metadata.name" && node_rule(rule, name))
}

fn node_rule(rule: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values = rule.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.contains(value));
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = values.first().and_then(|one| number(one));
    let measured = value.and_then(|value| number(value)).zip(bound);
    match rule.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => measured.is_some_and(|(value, bound)| value > bound),
        "Lt" => measured.is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// Whether a toleration tolerates a taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let some = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
    let (effect, key) = (some(&toleration.effect), some(&toleration.key));
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    let (value, wanted) = (some(&taint.value), some(&toleration.value));
    let numbers = || Some((value.parse::<i64>().ok()?, wanted.parse::<i64>().ok()?));
    match some(&toleration.operator).as_str() {
        "" | "Equal" => value == wanted,
        "Exists" => true,
        "Gt" => numbers().is_some_and(|(value, wanted)| value > wanted),
        "Lt" => numbers().is_some_and(|(value, wanted)| value < wanted),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    #[track_caller]
    fn check_node(terms: Value, want: bool) {
        let selector: NodeSelector = from_value(json!({"nodeSelectorTerms": terms})).unwrap();
        let node: Node =
            from_value(json!({"metadata": {"name": "n", "labels": {"zone": "a", "gen": "3"}}}))
                .unwrap();
        assert_eq!(selects_node(&selector, &node), want);
    }

    #[test]
    fn nodes() {
        let rule = |key: &str, operator: &str, values: Value| json!({"key": key, "operator": operator, "values": values});
        let is = |rules: Value| json!([{"matchExpressions": rules}]);
        check_node(json!([]), false);
        check_node(json!([{}]), false);
        check_node(is(json!([rule("zone", "In", json!(["a", "b"]))])), true);
        check_node(is(json!([rule("zone", "NotIn", json!(["a"]))])), false);
        check_node(is(json!([rule("rack", "DoesNotExist", json!([]))])), true);
        check_node(is(json!([rule("gen", "Gt", json!(["2"]))])), true);
        check_node(is(json!([rule("gen", "Lt", json!(["2"]))])), false);
        check_node(is(json!([rule("zone", "Gt", json!(["2"]))])), false);
        check_node(json!([{"matchFields": [rule("metadata.name", "In", json!(["n"]))]}]), true);
        check_node(json!([{"matchFields": [rule("metadata.name", "In", json!(["m"]))]}]), false);
        check_node(json!([{"matchFields": [rule("spec.x", "In", json!(["n"]))]}]), false);
        // Terms are alternatives.
        check_node(json!([{}, {"matchExpressions": [rule("zone", "Exists", json!([]))]}]), true);
    }

    #[test]
    fn taints() {
        let taint: Taint =
            from_value(json!({"key": "k", "value": "5", "effect": "NoExecute"})).unwrap();
        let check = |toleration: Value, want: bool| {
            let parsed: Toleration = from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), want, "{toleration}");
        };
        check(json!({"operator": "Exists"}), true);
        check(json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), true);
        check(json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), false);
        check(json!({"key": "k", "value": "5"}), true);
        check(json!({"key": "k", "operator": "Equal", "value": "6"}), false);
        check(json!({"key": "other", "operator": "Exists"}), false);
        check(json!({}), false);
        check(json!({"key": "k", "operator": "Gt", "value": "4"}), true);
        check(json!({"key": "k", "operator": "Lt", "value": "4"}), false);
    }
}
