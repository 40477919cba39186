//! Compares two states of an object: which fields were added, modified and removed.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::field_path::PathElement;
use super::field_set::FieldSet;
use super::types::{List, ListKind, MapType, TypeRef, TypedForm, Types, ValueForm};
use super::validate::{TypeMismatch, TypeMismatches, check_scalar, element_of};
use super::value;

/// Fields by what became of them. No field is in two of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
}

impl Comparison {
    /// What the newer state set.
    pub fn added_or_modified(&self) -> FieldSet {
        self.modified.union(&self.added)
    }

    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    pub fn mapped(&self, filter: impl Fn(&FieldSet) -> FieldSet) -> Comparison {
        Comparison {
            added: filter(&self.added),
            modified: filter(&self.modified),
            removed: filter(&self.removed),
        }
    }
}

/// Compares two states of one type.
///
/// # Errors
///
/// When one has list entries with equal keys.
pub(super) fn compare(
    types: &Types,
    type_ref: TypeRef,
    old: &Value,
    new: &Value,
) -> Result<Comparison, TypeMismatches> {
    let mut walker =
        Walker { types, path: Vec::new(), out: Comparison::default(), misfits: Vec::new() };
    walker.pair(type_ref, Some(old), Some(new));
    if walker.misfits.is_empty() { Ok(walker.out) } else { Err(TypeMismatches(walker.misfits)) }
}

struct Walker<'a> {
    types: &'a Types,
    path: Vec<PathElement>,
    out: Comparison,
    misfits: Vec<TypeMismatch>,
}

/// One side of a pair; none when it does not have the value at all.
type Side<'v> = Option<&'v Value>;

impl Walker<'_> {
    fn pair(&mut self, type_ref: TypeRef, old: Side<'_>, new: Side<'_>) {
        if old == new {
            return;
        }
        let atom = self.types.get(type_ref);
        let (old_form, new_form) = (atom.for_value(old), atom.for_value(new));
        let is_leaf = if new.is_none() {
            self.form(type_ref, old_form, old, new)
        } else {
            // Null fits every form, and so may be compared in two.
            if old.is_some() && old_form != new_form {
                self.form(type_ref, old_form, old, new);
            }
            self.form(type_ref, new_form, old, new)
        };
        if !is_leaf {
            match (old, new) {
                (None, _) => self.out.added.insert(&self.path),
                (_, None) => self.out.removed.insert(&self.path),
                _ => {}
            }
        }
    }

    /// Compares in one form; whether the place is a leaf.
    fn form(&mut self, type_ref: TypeRef, form: ValueForm, old: Side<'_>, new: Side<'_>) -> bool {
        let types = self.types;
        match form.of(types.get(type_ref)) {
            Some(TypedForm::Scalar(scalar)) => {
                let problems = [("lhs: ", old), ("rhs: ", new)].map(|(prefix, side)| {
                    check_scalar(scalar, side).map(|what| format!("{prefix}{what}"))
                });
                if problems.iter().all(Option::is_some) {
                    for what in problems.into_iter().flatten() {
                        self.misfit(what);
                    }
                    return false;
                }
                self.leaf(old, new);
                true
            }
            Some(TypedForm::List(list)) => {
                let entries = |side: Side<'_>| {
                    side.and_then(Value::as_array).is_some_and(|it| !it.is_empty())
                };
                if list.kind == ListKind::Atomic || !(entries(old) || entries(new)) {
                    self.leaf(old, new);
                    return true;
                }
                self.lists(list, old, new);
                false
            }
            Some(TypedForm::Map(map)) => {
                let members = |side: Side<'_>| {
                    side.and_then(Value::as_object).is_some_and(|it| !it.is_empty())
                };
                if map.is_atomic || !(members(old) || members(new)) {
                    self.leaf(old, new);
                    return true;
                }
                self.maps(map, old, new);
                false
            }
            None => {
                self.misfit("schema error: invalid atom: inlined".to_owned());
                false
            }
        }
    }

    fn leaf(&mut self, old: Side<'_>, new: Side<'_>) {
        let into = match (old, new) {
            (None, _) => &mut self.out.added,
            (_, None) => &mut self.out.removed,
            (Some(old), Some(new)) if !value::equal(old, new) => &mut self.out.modified,
            _ => return,
        };
        into.insert(&self.path);
    }

    fn maps(&mut self, map: &MapType, old: Side<'_>, new: Side<'_>) {
        let empty = Map::new();
        let old = old.and_then(Value::as_object).unwrap_or(&empty);
        let new = new.and_then(Value::as_object).unwrap_or(&empty);
        let fresh = new.keys().filter(|name| !old.contains_key(*name));
        for name in old.keys().chain(fresh) {
            let (before, after) = (old.get(name), new.get(name));
            if before == after {
                continue;
            }
            self.path.push(PathElement::field(name));
            match map.type_of(name) {
                Some(type_ref) => self.pair(type_ref, before, after),
                None => self.misfit("schema error: invalid atom: inlined".to_owned()),
            }
            self.path.pop();
        }
    }

    fn lists(&mut self, list: &List, old: Side<'_>, new: Side<'_>) {
        let mut by_key: BTreeMap<PathElement, [Vec<&Value>; 2]> = BTreeMap::new();
        for (at, side) in [old, new].into_iter().enumerate() {
            for (index, entry) in side.and_then(Value::as_array).into_iter().flatten().enumerate() {
                match element_of(self.types, list, entry) {
                    Ok(element) => by_key.entry(element).or_default()[at].push(entry),
                    Err(why) => self.misfit(format!("element {index}: {why}")),
                }
            }
        }
        for (element, [before, after]) in by_key {
            self.path.push(element);
            self.same_key(list.element, &before, &after);
            self.path.pop();
        }
    }

    /// Compares the entries that have one key: usually one on either side.
    fn same_key(&mut self, type_ref: TypeRef, old: &[&Value], new: &[&Value]) {
        match (old, new) {
            ([] | [_], [] | [_]) => {
                self.pair(type_ref, old.first().copied(), new.first().copied());
            }
            ([_, _, ..], [_, _, ..]) => {
                let is_same =
                    old.len() == new.len() && old.iter().zip(new).all(|(a, b)| value::equal(a, b));
                if !is_same {
                    self.out.modified.insert(&self.path);
                }
            }
            ([_, _, ..], _) => {
                if let Some(new) = new.first() {
                    self.pair(type_ref, None, Some(new));
                }
                self.out.removed.insert(&self.path);
            }
            (_, [_, _, ..]) => {
                if let Some(old) = old.first() {
                    self.pair(type_ref, Some(old), None);
                }
                self.out.added.insert(&self.path);
            }
        }
    }

    fn misfit(&mut self, what: String) {
        let misfit = TypeMismatch::new(what);
        self.misfits.push(self.path.iter().rev().fold(misfit, TypeMismatch::under));
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::super::testkit::{paths, type_of};
    use super::*;

    #[track_caller]
    fn check(name: &str, old: &Value, new: &Value, want: &Expect) {
        let (types, type_ref) = type_of(name);
        want.assert_eq(&match compare(types, type_ref, old, new) {
            Ok(it) => {
                format!("+{} ~{} -{}", paths(&it.added), paths(&it.modified), paths(&it.removed))
            }
            Err(misfits) => misfits.to_string(),
        });
    }

    #[test]
    fn list_changes_are_found_by_key() {
        check(
            "core/v1.PodSpec",
            &json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            &json!({"containers": [{"name": "a", "image": "2", "command": ["x"]}]}),
            &expect![[
                r#"+.containers[name="a"].command ~.containers[name="a"].image -.containers[name="b"] .containers[name="b"].name"#
            ]],
        );
        check(
            "core/v1.Container",
            &json!({"ports": [{"containerPort": 80}]}),
            &json!({"ports": [{"containerPort": 80, "protocol": "TCP"}]}),
            &expect![[r#"+.ports[containerPort=80,protocol="TCP"].protocol ~ -"#]],
        );
        check(
            "core/v1.PodSpec",
            &json!({"nodeSelector": {"a": "b"}, "containers": null}),
            &json!({"nodeSelector": {"a": "c"}, "containers": null}),
            &expect!["+ ~.nodeSelector -"],
        );
        check(
            "meta/v1.ObjectMeta",
            &json!({"labels": {"a": "b"}, "finalizers": ["x"]}),
            &json!({"labels": {"a": "b", "c": "d"}, "finalizers": ["x", "y"]}),
            &expect![[r#"+.finalizers[="y"] .labels.c ~ -"#]],
        );
    }

    #[test]
    fn doubled_entries_are_one() {
        check(
            "core/v1.Container",
            &json!({"env": [{"name": "a", "value": "1"}]}),
            &json!({"env": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]}),
            &expect![[
                r#"+.env[name="a"] ~ -.env[name="a"] .env[name="a"].name .env[name="a"].value"#
            ]],
        );
        check(
            "core/v1.Container",
            &json!({"env": [{"name": "a"}, {"name": "a"}]}),
            &json!({"env": [{"name": "a"}, {"name": "a", "value": "2"}]}),
            &expect![[r#"+ ~.env[name="a"] -"#]],
        );
    }
}
