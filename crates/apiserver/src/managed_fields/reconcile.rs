//! Adapts field sets when the schema's atomicity has changed.

use super::field_path::PathElement;
use super::field_set::{FieldSet, Node};
use super::types::{DEDUCED, ListKind, MapType, TypeRef, TypedForm, Types, ValueForm};

/// The set with each part of what is owned as a whole by now replaced by the whole; none if there is no such part.
pub(super) fn reconcile(types: &Types, type_ref: TypeRef, set: &FieldSet) -> Option<FieldSet> {
    let mut walker = Walker { types, path: Vec::new(), wholes: FieldSet::default() };
    walker.place(type_ref, Some(set), false);
    let wholes = walker.wholes;
    (!wholes.is_empty()).then(|| set.without(&wholes).union(&wholes))
}

struct Walker<'a> {
    types: &'a Types,
    path: Vec<&'a PathElement>,
    wholes: FieldSet,
}

impl<'a> Walker<'a> {
    /// `below` is what the set has below this place; `is_whole` whether it has just the place itself.
    fn place(&mut self, type_ref: TypeRef, below: Option<&'a FieldSet>, is_whole: bool) {
        let types = self.types;
        let atom = types.get(type_ref);
        let (scalar, list, map) = (atom.scalar.is_some(), atom.list.is_some(), atom.map.is_some());
        match (ValueForm { scalar, list, map }.of(atom), below) {
            (Some(TypedForm::List(list)), below) => {
                if !is_whole && list.kind == ListKind::Atomic {
                    self.enter();
                } else if let Some(below) = below {
                    below.nodes().iter().for_each(|node| self.step(list.element, node));
                }
            }
            (Some(TypedForm::Map(map)), Some(below)) if !is_open(map) => {
                if !is_whole && map.is_atomic {
                    if !below.is_empty() {
                        self.enter();
                    }
                    return;
                }
                for node in below.nodes() {
                    let type_ref = match &node.element {
                        PathElement::Field(name) => map.type_of(name),
                        _ => map.element,
                    };
                    if let Some(type_ref) = type_ref {
                        self.step(type_ref, node);
                    }
                }
            }
            _ => {}
        }
    }

    fn enter(&mut self) {
        let path: Vec<PathElement> = self.path.iter().copied().cloned().collect();
        self.wholes.insert(&path);
    }

    fn step(&mut self, type_ref: TypeRef, node: &'a Node) {
        let below = Some(&node.below).filter(|below| !below.is_empty());
        self.path.push(&node.element);
        self.place(type_ref, below, node.is_member && below.is_none());
        self.path.pop();
    }
}

/// Whether nothing is known of a map's members.
fn is_open(map: &MapType) -> bool {
    map.fields.is_empty() && map.element == Some(DEDUCED)
}
