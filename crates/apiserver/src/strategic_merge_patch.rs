//! Strategic merge patch: lists are merged by their merge key, which comes from the table of types, with the
//! directives `$patch`, `$retainKeys`, `$deleteFromPrimitiveList` and `$setElementOrder`.

use loadmaster_stdx::CollectByInsertion as _;
use loadmaster_stdx::SortCompactly as _;
use serde_json::{Map, Value};

use crate::schema::{PatchStrategy, Schema, Shape, TypeId};

/// Why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error("the patch is not an object")]
    NotAnObject,
    #[error("unknown patch type: {0}")]
    UnknownDirective(String),
    #[error("map: {entry} does not contain declared merge key: {key}")]
    NoMergeKey { entry: String, key: String },
    #[error("the directive {directive} needs a list")]
    NeedsList { directive: String },
}

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// The object after a patch.
///
/// # Errors
///
/// When the patch is malformed.
pub fn apply(schema: &Schema, id: TypeId, value: Value, patch: &Value) -> Result<Value, Problem> {
    let Value::Object(patch) = patch else { return Err(Problem::NotAnObject) };
    let Value::Object(members) = value else { return Err(Problem::NotAnObject) };
    Ok(Value::Object(merge_members(schema, Some(id), members, patch)?))
}

/// Merges an object whose type may be unknown (a map of anything).
fn merge_members(
    schema: &Schema,
    id: Option<TypeId>,
    mut members: Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Map<String, Value>, Problem> {
    match patch.get(PATCH).map(|directive| directive.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => {
            let plain = patch.iter().filter(|(name, _)| *name != PATCH);
            return Ok(plain
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect_by_insertion());
        }
        Some("delete") => return Ok(Map::new()),
        Some(other) => return Err(Problem::UnknownDirective(other.to_owned())),
    }
    if let Some(keys) = patch.get(RETAIN_KEYS) {
        let keys = list_of(RETAIN_KEYS, keys)?;
        members.retain(|name, _| keys.iter().any(|key| key == name));
    }
    for (name, change) in patch {
        if let Some(list) = name.strip_prefix(DELETE_FROM) {
            let removed = list_of(DELETE_FROM, change)?;
            if let Some(Value::Array(entries)) = members.get_mut(list) {
                entries.retain(|entry| !removed.contains(entry));
            }
        }
    }
    for (name, change) in patch {
        if name.starts_with('$') {
            continue;
        }
        if change.is_null() {
            members.remove(name);
            continue;
        }
        let order = patch.get(&format!("{SET_ORDER}{name}"));
        let field = id.and_then(|id| schema.field(id, name));
        let old = members.remove(name);
        let (shape, how) =
            field.map_or((None, PatchStrategy::Default), |field| (Some(&field.shape), field.patch));
        let new = merge_value(schema, shape, how, old, change, order)?;
        members.insert(name.clone(), new);
    }
    for (name, order) in patch {
        let Some(list) = name.strip_prefix(SET_ORDER) else { continue };
        let field = id.and_then(|id| schema.field(id, list));
        if let (false, Some(Value::Array(entries))) =
            (patch.contains_key(list), members.get_mut(list))
        {
            let key = merge_key(field.map_or(PatchStrategy::Default, |field| field.patch));
            let original = entries.clone();
            *entries =
                in_order(std::mem::take(entries), &original, list_of(SET_ORDER, order)?, key);
        }
    }
    Ok(members)
}

fn merge_value(
    schema: &Schema,
    shape: Option<&Shape>,
    how: PatchStrategy,
    old: Option<Value>,
    change: &Value,
    order: Option<&Value>,
) -> Result<Value, Problem> {
    match (change, shape) {
        (Value::Object(patch), shape) if how != PatchStrategy::Replace => {
            let id = match shape {
                Some(Shape::Object(id)) => Some(*id),
                _ => None,
            };
            let old = match old {
                Some(Value::Object(old)) => old,
                _ => Map::new(),
            };
            Ok(Value::Object(merge_members(schema, id, old, patch)?))
        }
        (Value::Array(patch), Some(Shape::List(inner))) => {
            let old = match old {
                Some(Value::Array(old)) => old,
                _ => Vec::new(),
            };
            let merged = merge_list(schema, inner, how, old.clone(), patch)?;
            let merged = match order {
                Some(order) => in_order(merged, &old, list_of(SET_ORDER, order)?, merge_key(how)),
                None => merged,
            };
            Ok(Value::Array(merged))
        }
        (change, _) => Ok(change.clone()),
    }
}

fn merge_key(how: PatchStrategy) -> Option<&'static str> {
    if let PatchStrategy::MergeBy(key) = how { Some(key) } else { None }
}

fn merge_list(
    schema: &Schema,
    inner: &Shape,
    how: PatchStrategy,
    mut old: Vec<Value>,
    patch: &[Value],
) -> Result<Vec<Value>, Problem> {
    let key = match how {
        PatchStrategy::Default | PatchStrategy::Replace => return Ok(patch.to_vec()),
        PatchStrategy::Merge => {
            let original = old.clone();
            for value in patch {
                if !old.contains(value) {
                    old.push(value.clone());
                }
            }
            return Ok(in_order(old, &original, patch, None));
        }
        PatchStrategy::MergeBy(key) => key,
    };
    let id = if let Shape::Object(id) = inner { Some(*id) } else { None };
    let directive = |entry: &Value| entry[PATCH].as_str().map(str::to_owned);
    if patch.iter().any(|entry| directive(entry).as_deref() == Some("replace")) {
        let retained = patch.iter().filter(|entry| directive(entry).is_none());
        return Ok(retained.cloned().collect());
    }
    let original = old.clone();
    for entry in patch {
        let Value::Object(members) = entry else { continue };
        let wanted = members
            .get(key)
            .ok_or_else(|| Problem::NoMergeKey { entry: entry.to_string(), key: key.to_owned() })?;
        if directive(entry).as_deref() == Some("delete") {
            old.retain(|it| it[key] != *wanted);
            continue;
        }
        match old.iter_mut().find(|it| it[key] == *wanted) {
            Some(Value::Object(known)) => {
                let merged = merge_members(schema, id, std::mem::take(known), members)?;
                *known = merged;
            }
            _ => {
                let fresh = merge_members(schema, id, Map::new(), members)?;
                old.push(Value::Object(fresh));
            }
        }
    }
    Ok(in_order(old, &original, patch, Some(key)))
}

/// Puts entries named by `order` in that order; those the patch does not know stay where they were among them.
fn in_order(
    merged: Vec<Value>,
    original: &[Value],
    order: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let same = |a: &Value, b: &Value| match key {
        Some(key) => a[key] == b[key],
        None => a == b,
    };
    let place = |list: &[Value], entry: &Value| list.iter().position(|it| same(it, entry));
    let (mut ordered, others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|entry| place(order, entry).is_some());
    ordered.sort_compactly_by_key(|entry| place(order, entry));
    let mut result = Vec::with_capacity(ordered.len() + others.len());
    let mut others = others.into_iter().peekable();
    for entry in ordered {
        let at = place(original, &entry);
        while let (Some(at), Some(other)) = (at, others.peek()) {
            match place(original, other) {
                Some(before) if before < at => result.extend(others.next()),
                _ => break,
            }
        }
        result.push(entry);
    }
    result.extend(others);
    result
}

fn list_of<'a>(directive: &str, value: &'a Value) -> Result<&'a [Value], Problem> {
    match value {
        Value::Array(list) => Ok(list),
        _ => Err(Problem::NeedsList { directive: directive.trim_end_matches('/').to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;
    use crate::schema::schema;

    #[track_caller]
    fn check(name: &str, value: Value, patch: Value, want: &Expect) {
        let id = schema().find(name).expect("a type");
        let got = match apply(schema(), id, value, &patch) {
            Ok(value) => value.to_string(),
            Err(problem) => problem.to_string(),
        };
        want.assert_eq(&got);
    }

    #[test]
    fn lists_of_named_things_are_merged_by_name() {
        check(
            "core/v1.PodSpec",
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}),
            json!({"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}),
            &expect![[
                r#"{"containers":[{"image":"1","name":"a"},{"image":"2","name":"b"},{"name":"c"}]}"#
            ]],
        );
        check(
            "core/v1.PodSpec",
            json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
                "containers": [{"name": "b", "$patch": "delete"}]}),
            &expect![[r#"{"containers":[{"name":"c"},{"name":"a"}]}"#]],
        );
        check(
            "core/v1.PodSpec",
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"image": "x"}]}),
            &expect![[r#"map: {"image":"x"} does not contain declared merge key: name"#]],
        );
    }

    #[test]
    fn other_lists_are_replaced_and_plain_ones_may_grow() {
        check(
            "core/v1.PodSpec",
            json!({"tolerations": [{"key": "a"}], "nodeSelector": {"a": "b", "c": "d"}}),
            json!({"tolerations": [{"key": "b"}], "nodeSelector": {"a": null, "e": "f"}}),
            &expect![[r#"{"nodeSelector":{"c":"d","e":"f"},"tolerations":[{"key":"b"}]}"#]],
        );
        check(
            "meta/v1.ObjectMeta",
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}),
            &expect![[r#"{"finalizers":["c","b"]}"#]],
        );
    }

    #[test]
    fn directives() {
        check(
            "apps/v1.DeploymentSpec",
            json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}),
            json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
            &expect![[r#"{"strategy":{"type":"Recreate"}}"#]],
        );
        check(
            "core/v1.PodSpec",
            json!({"securityContext": {"runAsUser": 1, "fsGroup": 2}}),
            json!({"securityContext": {"$patch": "replace", "runAsUser": 3}}),
            &expect![[r#"{"securityContext":{"runAsUser":3}}"#]],
        );
        check(
            "core/v1.PodSpec",
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "c"}, {"$patch": "replace"}]}),
            &expect![[r#"{"containers":[{"name":"c"}]}"#]],
        );
        check(
            "core/v1.PodSpec",
            json!({}),
            json!({"securityContext": {"$patch": "what"}}),
            &expect!["unknown patch type: what"],
        );
    }
}
