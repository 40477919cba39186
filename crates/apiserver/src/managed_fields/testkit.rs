//! Short ways to types and sets, for tests.

use super::field_set::FieldSet;
use super::types::{TypeRef, Types, built_in};
use crate::schema::schema;

/// A type of Kubernetes, such as `core/v1.PodSpec`.
pub(super) fn type_of(name: &str) -> (&'static Types, TypeRef) {
    (built_in(), Types::of_built_in(schema().find(name).expect("a type")))
}

/// All paths of a set on one line.
pub(super) fn paths(set: &FieldSet) -> String {
    let text = |path: Vec<_>| path.iter().map(ToString::to_string).collect::<String>();
    set.paths().into_iter().map(text).collect::<Vec<_>>().join(" ")
}
