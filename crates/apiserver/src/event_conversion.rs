//! Conversion between API version and storage version: Events, which are stored as `v1` and also served as
//! `events.k8s.io/v1`, and custom objects.

use serde_json::{Map, Value};

use crate::object::members_mut;
use crate::schema::Kind;

/// Field names in `v1` and in `events.k8s.io/v1`, where they differ.
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Whether a kind is stored in another API version than its own.
pub fn has_other_storage_version(kind: &Kind) -> bool {
    kind.custom.is_some() || kind.is("events.k8s.io", "events")
}

/// Converts a stored value to the API version of the kind.
pub fn to_request_version(kind: &Kind, mut value: Value) -> Value {
    if let Some(custom) = kind.custom() {
        return custom.to_request_version(value);
    }
    if has_other_storage_version(kind) {
        rename(members_mut(&mut value), |(stored, shown)| (stored, shown));
        value["apiVersion"] = "events.k8s.io/v1".into();
    }
    value
}

/// Converts a value of the kind to its storage version.
pub fn to_storage_version(kind: &Kind, mut value: Value) -> Value {
    if let Some(custom) = kind.custom() {
        return custom.to_storage_version(value);
    }
    if has_other_storage_version(kind) {
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
