//! Merges an applied configuration into the live object.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::field_path::PathElement;
use super::types::{List, ListKind, MapType, TypeRef, TypedForm, Types, ValueForm};
use super::validate::{TypeMismatch, TypeMismatches, check_scalar, element_of};

/// The object with a partial one over it: leaves are the partial one's, nothing is removed. Entries of lists stay in
/// order, or take that of the partial one where it names some of them.
///
/// # Errors
///
/// When one of the two has list entries with equal keys.
pub(super) fn merge(
    types: &Types,
    type_ref: TypeRef,
    live: &Value,
    partial: &Value,
) -> Result<Value, TypeMismatches> {
    let mut walker = Merger { types, misfits: Vec::new() };
    let merged = walker.pair(type_ref, Some(live), Some(partial));
    if walker.misfits.is_empty() {
        Ok(merged.unwrap_or(Value::Null))
    } else {
        Err(TypeMismatches(walker.misfits))
    }
}

struct Merger<'a> {
    types: &'a Types,
    misfits: Vec<TypeMismatch>,
}

type Side<'v> = Option<&'v Value>;

impl Merger<'_> {
    fn pair(&mut self, type_ref: TypeRef, live: Side<'_>, partial: Side<'_>) -> Option<Value> {
        let atom = self.types.get(type_ref);
        let (live_form, partial_form) = (atom.for_value(live), atom.for_value(partial));
        match (live, partial) {
            (_, None) => self.form(type_ref, live_form, live, partial),
            (Some(_), Some(_)) if live_form != partial_form => {
                // Checked in the form it had, too; what counts is the new one.
                self.form(type_ref, live_form, live, partial);
                self.form(type_ref, partial_form, live, partial)
            }
            _ => self.form(type_ref, partial_form, live, partial),
        }
    }

    fn form(
        &mut self,
        type_ref: TypeRef,
        form: ValueForm,
        live: Side<'_>,
        partial: Side<'_>,
    ) -> Option<Value> {
        let types = self.types;
        let leaf = || partial.or(live).cloned();
        match form.of(types.get(type_ref)) {
            Some(TypedForm::Scalar(scalar)) => {
                let problems = [("lhs: ", live), ("rhs: ", partial)].map(|(prefix, side)| {
                    check_scalar(scalar, side).map(|what| format!("{prefix}{what}"))
                });
                if problems.iter().all(Option::is_some) {
                    self.misfits.extend(problems.into_iter().flatten().map(TypeMismatch::new));
                    return None;
                }
                leaf()
            }
            Some(TypedForm::List(list)) => {
                let entries = |side: Side<'_>| {
                    side.and_then(Value::as_array).is_some_and(|it| !it.is_empty())
                };
                if list.kind == ListKind::Atomic || !(entries(live) || entries(partial)) {
                    return leaf();
                }
                self.lists(list, live, partial)
            }
            Some(TypedForm::Map(map)) => {
                let members = |side: Side<'_>| {
                    side.and_then(Value::as_object).is_some_and(|it| !it.is_empty())
                };
                if map.is_atomic || !(members(live) || members(partial)) {
                    return leaf();
                }
                self.maps(map, live, partial)
            }
            None => {
                self.misfits.push(TypeMismatch::new("schema error: invalid atom: inlined"));
                None
            }
        }
    }

    fn maps(&mut self, map: &MapType, live: Side<'_>, partial: Side<'_>) -> Option<Value> {
        let empty = Map::new();
        let live = live.and_then(Value::as_object).unwrap_or(&empty);
        let partial = partial.and_then(Value::as_object).unwrap_or(&empty);
        let mut out = Map::new();
        let fresh = partial.keys().filter(|name| !live.contains_key(*name));
        for name in live.keys().chain(fresh) {
            let n_before = self.misfits.len();
            match map.type_of(name) {
                Some(type_ref) => {
                    let merged = self.pair(type_ref, live.get(name), partial.get(name));
                    out.extend(merged.map(|value| (name.clone(), value)));
                }
                None => self.misfits.push(TypeMismatch::new("schema error: invalid atom: inlined")),
            }
            let element = PathElement::field(name);
            for misfit in self.misfits.split_off(n_before) {
                self.misfits.push(misfit.under(&element));
            }
        }
        (!out.is_empty()).then_some(Value::Object(out))
    }

    fn lists(&mut self, list: &List, live: Side<'_>, partial: Side<'_>) -> Option<Value> {
        let n_before = self.misfits.len();
        let (partial, wanted) = self.indexed(list, partial, false);
        let (live, known) = self.indexed(list, live, true);
        if self.misfits.len() > n_before {
            return None;
        }
        let merged = |walker: &mut Self, element: &PathElement, own: Side<'_>| {
            let own = own.or_else(|| known.get(element).copied());
            walker.pair(list.element, own, wanted.get(element).copied())
        };
        let mut out: Vec<Value> = Vec::with_capacity(live.len().max(partial.len()));
        // Entries in both, in the order they are to have.
        let mut shared = partial.iter().map(|(it, _)| it).filter(|it| known.contains_key(it));
        let mut next_shared = shared.next();
        let mut done: BTreeSet<&PathElement> = BTreeSet::new();
        let (mut live_at, mut partial_at) = (0, 0);
        while live_at < live.len() || partial_at < partial.len() {
            if let (Some((own, _)), Some((next, _))) = (live.get(live_at), partial.get(partial_at))
            {
                if own == next {
                    done.insert(next);
                    out.extend(merged(self, next, None));
                    (live_at, partial_at) = (live_at + 1, partial_at + 1);
                    next_shared = shared.next();
                    continue;
                }
                if wanted.contains_key(own) && next_shared.is_some_and(|it| it != own) {
                    // It comes later in the new order.
                    live_at += 1;
                    continue;
                }
            }
            if let Some((own, entry)) = live.get(live_at) {
                if !wanted.contains_key(own) {
                    out.extend(merged(self, own, Some(entry)));
                    live_at += 1;
                    continue;
                }
                if done.contains(own) {
                    live_at += 1;
                }
            }
            if let Some((next, _)) = partial.get(partial_at) {
                done.insert(next);
                out.extend(merged(self, next, None));
                partial_at += 1;
                if next_shared == Some(next) {
                    next_shared = shared.next();
                }
            }
        }
        (!out.is_empty()).then_some(Value::Array(out))
    }

    /// The entries with their keys, in order and by key. Of doubled ones none is merged with anything.
    fn indexed<'v>(
        &mut self,
        list: &List,
        side: Side<'v>,
        duplicates: bool,
    ) -> (Vec<(PathElement, &'v Value)>, BTreeMap<PathElement, &'v Value>) {
        let (mut in_order, mut by_key) = (Vec::new(), BTreeMap::new());
        for (index, entry) in side.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let element = match element_of(self.types, list, entry) {
                Ok(element) => element,
                Err(why) => {
                    self.misfits.push(TypeMismatch::new(format!("element {index}: {why}")));
                    continue;
                }
            };
            let is_doubled = by_key.contains_key(&element);
            if is_doubled && !duplicates {
                let what = format!("duplicate entries for key {element}");
                self.misfits.push(TypeMismatch::new(what));
                continue;
            }
            by_key.insert(element.clone(), if is_doubled { &Value::Null } else { entry });
            in_order.push((element, entry));
        }
        (in_order, by_key)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::super::testkit::type_of;
    use super::*;

    #[track_caller]
    fn check(name: &str, live: &Value, partial: &Value, want: &Expect) {
        let (types, type_ref) = type_of(name);
        want.assert_eq(&match merge(types, type_ref, live, partial) {
            Ok(value) => value.to_string(),
            Err(misfits) => misfits.to_string(),
        });
    }

    #[test]
    fn merged_lists_keep_their_order() {
        let named = |names: &str| -> Value {
            names.chars().map(|it| json!({"name": it.to_string()})).collect()
        };
        let order = |live: &str, partial: &str| {
            let (types, type_ref) = type_of("core/v1.PodSpec");
            let (live, partial) =
                (json!({"containers": named(live)}), json!({"containers": named(partial)}));
            let merged = merge(types, type_ref, &live, &partial).expect("they fit");
            let names = crate::object::list_entries(&merged["containers"]).iter();
            names.map(|it| it["name"].as_str().expect("a name").to_owned()).collect::<String>()
        };
        for (live, partial, want) in [
            ("abc", "", "abc"),
            ("", "abc", "abc"),
            ("abc", "cba", "cba"),
            ("abc", "b", "abc"),
            ("abc", "d", "abcd"),
            ("abcd", "dxa", "bcdxa"),
            ("abc", "xcy", "abxcy"),
        ] {
            assert_eq!(order(live, partial), want, "{live} with {partial}");
        }
    }

    #[test]
    fn leaves_of_the_applied_object_win() {
        check(
            "core/v1.PodSpec",
            &json!({"nodeSelector": {"a": "b"}, "hostNetwork": true, "volumes": [{"name": "v", "emptyDir": {}}]}),
            &json!({"nodeSelector": {"c": "d"}, "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}], "tolerations": []}),
            &expect![[
                r#"{"hostNetwork":true,"nodeSelector":{"c":"d"},"tolerations":[],"volumes":[{"emptyDir":{"medium":"Memory"},"name":"v"}]}"#
            ]],
        );
        check(
            "core/v1.PodSpec",
            &json!({}),
            &json!({"containers": [{"name": "a"}, {"name": "a"}]}),
            &expect![[r#".containers: duplicate entries for key [name="a"]"#]],
        );
    }
}
