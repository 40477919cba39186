//! Conversion between API version and storage version: Events, which are stored as `v1` and also served as
//! `events.k8s.io/v1`, HorizontalPodAutoscalers, which are stored as `autoscaling/v2` and also served as `autoscaling/v1`,
//! and custom objects.

mod autoscaler;

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
    kind.custom.is_some() || kind.is("events.k8s.io", "events") || is_autoscaler_v1(kind)
}

/// Whether objects of a kind may be served in several API versions.
pub fn may_have_several_versions(kind: &Kind) -> bool {
    let is_autoscaler = kind.is("autoscaling", "horizontalpodautoscalers");
    kind.custom.is_some() || kind.resource == "events" || is_autoscaler
}

/// A HorizontalPodAutoscaler of any version, as `autoscaling/v2`.
pub fn autoscaler_v2(autoscaler: &Value) -> Value {
    let mut value = autoscaler.clone();
    if value["apiVersion"] == "autoscaling/v1" {
        autoscaler::to_v2(&mut value);
    }
    value
}

fn is_autoscaler_v1(kind: &Kind) -> bool {
    kind.is("autoscaling", "horizontalpodautoscalers") && kind.version == "v1"
}

/// Converts a stored value to the API version of the kind.
pub fn to_request_version(kind: &Kind, mut value: Value) -> Value {
    if let Some(custom) = kind.custom() {
        return custom.to_request_version(value);
    }
    if is_autoscaler_v1(kind) {
        autoscaler::to_v1(&mut value);
    } else if has_other_storage_version(kind) {
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
    if is_autoscaler_v1(kind) {
        autoscaler::to_v2(&mut value);
    } else if has_other_storage_version(kind) {
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
