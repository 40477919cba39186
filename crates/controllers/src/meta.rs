//! Helpers for object metadata.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use crate::kind::Typed;

/// Labels or annotations.
pub type Labels = BTreeMap<String, String>;

/// The owner that controls an object.
pub fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether this owner controls the object.
pub fn is_controlled_by(metadata: &ObjectMeta, uid: &str) -> bool {
    controller_of(metadata).is_some_and(|owner| owner.uid == uid)
}

/// A reference to the owner that controls; deleting it in the foreground waits for what it owns.
pub fn controller_reference<K: Typed>(owner: &K) -> OwnerReference {
    let info = K::IS.info();
    let metadata = owner.metadata();
    OwnerReference {
        api_version: info.api_version.to_owned(),
        kind: info.kind.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Whether an object is being deleted.
pub fn is_terminating(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
}

/// A label, or None.
pub fn label_value<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// An annotation, or None.
pub fn annotation_value<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Whether a selector selects labels. An empty one selects all; an operator that does not exist selects nothing.
pub fn selector_matches(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let value = |key: &str| labels.and_then(|labels| labels.get(key));
    let mut exact = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    exact.all(|(key, want)| value(key) == Some(want))
        && expressions.all(|it| {
            let is_listed = |found: &String| it.values.iter().flatten().any(|value| value == found);
            match &*it.operator {
                "In" => value(&it.key).is_some_and(is_listed),
                "NotIn" => !value(&it.key).is_some_and(is_listed),
                "Exists" => value(&it.key).is_some(),
                "DoesNotExist" => value(&it.key).is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors() {
        #[track_caller]
        fn check(selector: serde_json::Value, want: bool) {
            let selector: LabelSelector = serde_json::from_value(selector).unwrap();
            let labels = Labels::from([("app".into(), "web".into()), ("tier".into(), "a".into())]);
            assert_eq!(selector_matches(&selector, Some(&labels)), want, "{selector:?}");
        }
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        check(json!({}), true);
        check(json!({"matchLabels": {"app": "web"}}), true);
        check(json!({"matchLabels": {"app": "web", "x": ""}}), false);
        check(expression("app", "In", &["db", "web"]), true);
        check(expression("x", "In", &["db"]), false);
        check(expression("app", "NotIn", &["web"]), false);
        check(expression("x", "NotIn", &["web"]), true);
        check(expression("app", "Exists", &[]), true);
        check(expression("app", "DoesNotExist", &[]), false);
        check(expression("app", "Like", &["w"]), false);
        assert!(!selector_matches(
            &serde_json::from_value(json!({"matchLabels": {"a": "b"}})).unwrap(),
            None
        ));
    }
}
