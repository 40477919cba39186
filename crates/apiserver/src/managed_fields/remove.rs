//! Removes a set of fields from an object.

use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Map, Value};

use super::field_path::PathElement;
use super::field_set::FieldSet;
use super::types::{ListKind, TypeRef, TypedForm, Types};
use super::validate::element_of;

/// The value without the fields of a set. What loses all that is in it becomes null, and so does what is owned as a
/// whole when a part of it goes.
pub(super) fn remove(types: &Types, type_ref: TypeRef, value: &Value, removed: &FieldSet) -> Value {
    let atom = types.get(type_ref);
    match (atom.for_value(Some(value)).of(atom), value) {
        (Some(TypedForm::Scalar(_)), _) => value.clone(),
        (Some(TypedForm::List(list)), Value::Array(entries)) if list.kind != ListKind::Atomic => {
            let retained = |entry: &Value| {
                let node = element_of(types, list, entry).ok().and_then(|it| removed.get(&it));
                match node {
                    None => Some(entry.clone()),
                    Some(node) if node.is_member => None,
                    Some(node) => Some(remove(types, list.element, entry, &node.below)),
                }
            };
            let retained: Vec<Value> = entries.iter().filter_map(retained).collect();
            if retained.is_empty() { Value::Null } else { Value::Array(retained) }
        }
        (Some(TypedForm::Map(map)), Value::Object(members)) if !map.is_atomic => {
            let retained = |(name, value): (&String, &Value)| {
                let value = match removed.get(&PathElement::field(name)) {
                    None => value.clone(),
                    Some(node) if node.is_member => return None,
                    Some(node) => map.type_of(name).map_or(Value::Null, |type_ref| {
                        remove(types, type_ref, value, &node.below)
                    }),
                };
                Some((name.clone(), value))
            };
            let retained: Map<String, Value> =
                members.iter().filter_map(retained).collect_by_insertion();
            if retained.is_empty() { Value::Null } else { Value::Object(retained) }
        }
        _ => Value::Null,
    }
}
