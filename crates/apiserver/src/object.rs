//! Helpers for objects as JSON values: metadata, keys, and the selectable fields that the store indexes.

use loadmaster_api::Labels;
use serde_json::{Map, Value};

use crate::schema::Kind;
use crate::status::ApiError;
use crate::store::{Draft, FilterField, Object};

/// A text in `metadata`; empty when absent.
pub fn metadata_text<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

/// The metadata to change; made when absent.
pub fn meta_mut(object: &mut Value) -> &mut Map<String, Value> {
    members_mut(&mut object["metadata"])
}

/// The members of an object to change; anything else becomes one.
pub fn members_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(members) => members,
        _ => unreachable!("it was made an object above"),
    }
}

/// The entries of a list; none when absent.
pub fn list_entries(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// How deep objects may nest: what is deeper cannot be read again.
pub const DEPTH_MAX: usize = 127;

/// How deep lists and objects are nested in a value; 0 for a scalar.
pub fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Array(entries) => entries.iter().map(depth).max(),
        Value::Object(members) => members.values().map(depth).max(),
        _ => return 0,
    };
    1 + below.unwrap_or(0)
}

/// Rejects what could be stored and not be parsed again.
///
/// # Errors
///
/// 400 for an object that is nested too deeply, its managed fields included.
pub fn check_depth(object: &Value) -> Result<(), ApiError> {
    if depth(object) <= DEPTH_MAX {
        return Ok(());
    }
    let why = format!("the object is nested more than {DEPTH_MAX} levels deep");
    Err(ApiError::bad_request(why))
}

/// The key of an object in its table.
pub fn key_of(kind: &Kind, namespace: &str, name: &str) -> String {
    if kind.is_namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
}

/// `metadata.labels`.
pub fn labels(object: &Value) -> Labels {
    let pairs = object["metadata"]["labels"].as_object().into_iter().flatten();
    pairs.map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default().into())).collect()
}

/// The most bytes of an object. Upstream's limit is that of etcd, a million and a half in protobuf, which is shorter.
const OBJECT_BYTES_MAX: usize = 2 * 1024 * 1024;

/// What the store is to write.
///
/// # Errors
///
/// When it is too large, or not an object, which a decoded one always is.
pub fn draft(kind: &Kind, value: &Value) -> Result<Draft, ApiError> {
    let key = key_of(kind, metadata_text(value, "namespace"), metadata_text(value, "name"));
    let labels = labels(value);
    let draft = Draft::new(key, labels, selectable_values(kind, value), value)
        .map_err(|error| ApiError::internal(&format!("encoding {}: {error}", kind.kind)))?;
    if draft.n_bytes() > OBJECT_BYTES_MAX {
        return Err(ApiError::unclassified("etcdserver: request is too large"));
    }
    Ok(draft)
}

/// A stored object as a value.
///
/// # Errors
///
/// When the stored bytes are damaged.
pub fn parsed(object: &Object) -> Result<Value, ApiError> {
    loadmaster_stdx::json::from_slice(&object.json())
        .map_err(|error| ApiError::internal(&format!("decoding {}: {error}", object.key())))
}

/// A field that selectors may name beside `metadata.name` and `metadata.namespace`.
#[derive(Debug)]
pub struct Selectable {
    /// As selectors name it.
    pub name: &'static str,
    /// Where it is, if that is not what its name says.
    path: &'static str,
    /// What it is when absent.
    absent: &'static str,
}

const fn at(name: &'static str) -> Selectable {
    Selectable { name, path: name, absent: "" }
}

const fn flag(name: &'static str) -> Selectable {
    Selectable { name, path: name, absent: "false" }
}

impl Selectable {
    fn value(&self, object: &Value) -> String {
        let found = self.path.split('.').try_fold(object, |value, name| value.get(name));
        match found {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => self.absent.to_owned(),
            Some(other) => other.to_string(),
        }
    }
}

/// The fields of upstream's `AddFieldLabelConversionFunc` and its registries, by resource.
static SELECTABLE: &[(&str, &str, &[Selectable])] = &[
    (
        "",
        "pods",
        &[
            at("spec.nodeName"),
            at("spec.restartPolicy"),
            at("spec.schedulerName"),
            at("spec.serviceAccountName"),
            flag("spec.hostNetwork"),
            at("status.phase"),
            at("status.podIP"),
            at("status.nominatedNodeName"),
        ],
    ),
    ("", "nodes", &[flag("spec.unschedulable")]),
    (
        "",
        "namespaces",
        &[Selectable { name: "name", path: "metadata.name", absent: "" }, at("status.phase")],
    ),
    ("", "secrets", &[at("type")]),
    ("", "services", &[at("spec.clusterIP"), at("spec.type")]),
    ("", "events", EVENT),
    ("events.k8s.io", "events", EVENT),
    (
        "",
        "replicationcontrollers",
        &[Selectable { name: "status.replicas", path: "status.replicas", absent: "0" }],
    ),
    (
        "apps",
        "replicasets",
        &[Selectable { name: "status.replicas", path: "status.replicas", absent: "0" }],
    ),
    (
        "batch",
        "jobs",
        &[Selectable { name: "status.successful", path: "status.succeeded", absent: "0" }],
    ),
    ("certificates.k8s.io", "certificatesigningrequests", &[at("spec.signerName")]),
    ("resource.k8s.io", "resourceslices", &[at("spec.nodeName"), at("spec.driver")]),
];

static EVENT: &[Selectable] = &[
    at("involvedObject.kind"),
    at("involvedObject.namespace"),
    at("involvedObject.name"),
    at("involvedObject.uid"),
    at("involvedObject.apiVersion"),
    at("involvedObject.resourceVersion"),
    at("involvedObject.fieldPath"),
    at("reason"),
    Selectable { name: "reportingComponent", path: "reportingComponent", absent: "" },
    Selectable { name: "source", path: "source.component", absent: "" },
    at("type"),
];

/// The selectable fields of a resource, in the order of [`Object::selectable_values`].
pub fn selectable(kind: &Kind) -> &'static [Selectable] {
    let row = SELECTABLE.iter().find(|(group, resource, _)| kind.is(group, resource));
    row.map_or(&[], |(_, _, fields)| fields)
}

/// What the selectable fields of an object are, in the same order.
pub fn selectable_values(kind: &Kind, value: &Value) -> Box<[Box<str>]> {
    match kind.custom() {
        Some(custom) => custom.slots.iter().map(|it| it.text(value).into()).collect(),
        None => selectable(kind).iter().map(|it| it.value(value).into()).collect(),
    }
}

/// Differs when the rules do by which fields are taken from objects.
pub fn selectable_fingerprint() -> u32 {
    crc32fast::hash(format!("{SELECTABLE:?}").as_bytes())
}

/// Whether selectors may name fields beside those of metadata.
pub fn has_selectable_fields(kind: &Kind) -> bool {
    kind.custom().is_some() || !selectable(kind).is_empty()
}

/// The field a selector names.
pub fn selectable_field(kind: &Kind, name: &str) -> Option<FilterField> {
    match name {
        "metadata.name" => return Some(FilterField::Name),
        "metadata.namespace" => return Some(FilterField::Namespace),
        _ => {}
    }
    if let Some(custom) = kind.custom() {
        let found = custom.selectable.iter().find(|(known, _)| known == name);
        return found.map(|(_, slot)| FilterField::Slot(*slot));
    }
    // The other form of an event has other names.
    let name = match name.strip_prefix("regarding.") {
        Some(rest) if kind.group == "events.k8s.io" => &format!("involvedObject.{rest}"),
        _ => name,
    };
    selectable(kind).iter().position(|it| it.name == name).map(FilterField::Slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_allowed_object_can_be_parsed() {
        for (levels, want) in [(DEPTH_MAX, true), (DEPTH_MAX + 1, false)] {
            let value = (1..levels).fold(Value::Array(Vec::new()), |inner, _| vec![inner].into());
            assert_eq!(depth(&value), levels);
            let read = serde_json::from_str::<Value>(&value.to_string());
            assert_eq!((check_depth(&value).is_ok(), read.is_ok()), (want, want), "{levels}");
        }
    }
}
