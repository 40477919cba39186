//! Objects that are stored in another form than they are shown: events, which are `v1` in the store and
//! `events.k8s.io/v1` when schedulers write them, and custom objects, which are stored in one of their versions.

use serde_json::{Map, Value};

use crate::object::members_mut;
use crate::schema::Kind;

/// Names in `v1` and in `events.k8s.io/v1`, where they differ.
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Whether a kind is stored in another form than its own.
pub fn is_other(kind: &Kind) -> bool {
    kind.custom.is_some() || kind.is("events.k8s.io", "events")
}

/// A stored value in the form of its kind.
pub fn shown(kind: &Kind, mut value: Value) -> Value {
    if let Some(custom) = kind.custom() {
        return custom.shown(value);
    }
    if is_other(kind) {
        rename(members_mut(&mut value), |(stored, shown)| (stored, shown));
        value["apiVersion"] = "events.k8s.io/v1".into();
    }
    value
}

/// A value of a kind in the form it is stored.
pub fn stored(kind: &Kind, mut value: Value) -> Value {
    if let Some(custom) = kind.custom() {
        return custom.stored(value);
    }
    if is_other(kind) {
        rename(members_mut(&mut value), |(stored, shown)| (shown, stored));
        value["apiVersion"] = "v1".into();
    }
    value
}

fn rename(
    members: &mut Map<String, Value>,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    for (from, to) in NAMES.iter().map(|pair| direction(*pair)) {
        if let Some(value) = members.remove(from) {
            members.insert(to.to_owned(), value);
        }
    }
}
