//! Taking fields out of an object.

use serde_json::{Map, Value};

use super::path::PathElement;
use super::set::Set;
use super::types::{ListKind, Shaped, TypeRef, Types};
use super::walk::element_of;

/// The value without the fields of a set. What loses all that is in it becomes null, and so does what is owned as a
/// whole when a part of it goes.
pub(super) fn remove(types: &Types, type_ref: TypeRef, value: &Value, gone: &Set) -> Value {
    let atom = types.get(type_ref);
    match (atom.for_value(Some(value)).of(atom), value) {
        (Some(Shaped::Scalar(_)), _) => value.clone(),
        (Some(Shaped::List(list)), Value::Array(entries)) if list.kind != ListKind::Atomic => {
            let kept = |entry: &Value| {
                let node = element_of(types, list, entry).ok().and_then(|it| gone.get(&it));
                match node {
                    None => Some(entry.clone()),
                    Some(node) if node.is_member => None,
                    Some(node) => Some(remove(types, list.element, entry, &node.below)),
                }
            };
            let kept: Vec<Value> = entries.iter().filter_map(kept).collect();
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        (Some(Shaped::Map(map)), Value::Object(members)) if !map.is_atomic => {
            let kept = |(name, value): (&String, &Value)| {
                let value = match gone.get(&PathElement::field(name)) {
                    None => value.clone(),
                    Some(node) if node.is_member => return None,
                    Some(node) => map.type_of(name).map_or(Value::Null, |type_ref| {
                        remove(types, type_ref, value, &node.below)
                    }),
                };
                Some((name.clone(), value))
            };
            let kept: Map<String, Value> = members.iter().filter_map(kept).collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        _ => Value::Null,
    }
}
