//! Extra fields of pods and nodes that the lean types do not contain: decoded in a second pass, only on request.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_stdx::CollectByInsertion as _;
use prost::Message;
use serde::Deserialize;
use serde_json::Value;

use crate::meta::nullable;
use crate::proto::ProtoError;
use crate::raw_object::{Encoding, RawObjectError};

/// Extra fields of an object, beside its lean type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraFields {
    /// `metadata.annotations`.
    pub annotations: BTreeMap<Box<str>, Box<str>>,
    /// The object as the API server has it, without `metadata.managedFields`; `null` when only annotations were asked for.
    pub object: Value,
}

/// The extra fields to decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraFieldSelection {
    /// Annotations.
    pub annotations: bool,
    /// The whole object, annotations included. It must be read in JSON.
    pub object: bool,
}

/// The extra fields to decode, per kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraFieldsByKind {
    /// Of pods.
    pub pods: ExtraFieldSelection,
    /// Of nodes.
    pub nodes: ExtraFieldSelection,
}

impl ExtraFieldSelection {
    /// Whether no field is selected.
    pub fn is_empty(self) -> bool {
        self == ExtraFieldSelection::default()
    }

    fn or(self, other: ExtraFieldSelection) -> ExtraFieldSelection {
        ExtraFieldSelection {
            annotations: self.annotations || other.annotations,
            object: self.object || other.object,
        }
    }
}

impl ExtraFieldsByKind {
    /// The union of both.
    #[must_use]
    pub fn union(self, other: ExtraFieldsByKind) -> ExtraFieldsByKind {
        ExtraFieldsByKind { pods: self.pods.or(other.pods), nodes: self.nodes.or(other.nodes) }
    }

    /// Whether something can be read from JSON alone.
    pub fn needs_json(self) -> bool {
        self.pods.object || self.nodes.object
    }
}

impl ExtraFields {
    /// The parts of an object, from its bytes; `None` when nothing is asked for. Of a whole object in protobuf there are only the
    /// annotations.
    ///
    /// # Errors
    ///
    /// When the bytes are not an object.
    pub fn read(
        encoding: Encoding,
        bytes: &[u8],
        parts: ExtraFieldSelection,
    ) -> Result<Option<Arc<ExtraFields>>, RawObjectError> {
        if parts.is_empty() {
            return Ok(None);
        }
        let extra = match encoding {
            Encoding::Protobuf => return Ok(ExtraFields::from_message(bytes, parts)?),
            Encoding::Json => of_json(bytes, parts)
                .map_err(|source| RawObjectError::Json { kind: "object", source })?,
        };
        Ok(Some(Arc::new(extra)))
    }

    /// The same, from a protobuf message.
    ///
    /// # Errors
    ///
    /// When the bytes are not an object.
    pub fn from_message(
        bytes: &[u8],
        parts: ExtraFieldSelection,
    ) -> Result<Option<Arc<ExtraFields>>, ProtoError> {
        if parts.is_empty() {
            return Ok(None);
        }
        of_message(bytes).map(|extra| Some(Arc::new(extra)))
    }

    /// The same, from a value.
    pub fn from_value(value: &Value, parts: ExtraFieldSelection) -> Option<Arc<ExtraFields>> {
        if parts.is_empty() {
            return None;
        }
        let annotations = value["metadata"]["annotations"].as_object();
        let annotations = annotations.into_iter().flatten();
        let pairs = annotations
            .filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())));
        let mut extra =
            ExtraFields { annotations: pairs.collect_by_insertion(), object: Value::Null };
        if parts.object {
            extra.object = whole(value.clone());
        }
        Some(Arc::new(extra))
    }
}

fn whole(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

fn of_json(bytes: &[u8], parts: ExtraFieldSelection) -> Result<ExtraFields, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata {
        #[serde(deserialize_with = "nullable")]
        annotations: BTreeMap<Box<str>, Box<str>>,
    }
    let Object { metadata: Metadata { annotations } } = loadmaster_stdx::json::from_slice(bytes)?;
    let object =
        if parts.object { whole(loadmaster_stdx::json::from_slice(bytes)?) } else { Value::Null };
    Ok(ExtraFields { annotations, object })
}

fn of_message(bytes: &[u8]) -> Result<ExtraFields, ProtoError> {
    /// apimachinery's numbers.
    #[derive(Clone, PartialEq, Message)]
    struct Object {
        #[prost(message, optional, tag = "1")]
        metadata: Option<Metadata>,
    }
    #[derive(Clone, PartialEq, Message)]
    struct Metadata {
        #[prost(btree_map = "string, string", tag = "12")]
        annotations: BTreeMap<String, String>,
    }
    let object =
        Object::decode(bytes).map_err(|source| ProtoError::Message { kind: "object", source })?;
    let annotations = object.metadata.unwrap_or_default().annotations.into_iter();
    let annotations =
        annotations.map(|(key, value)| (key.into(), value.into())).collect_by_insertion();
    Ok(ExtraFields { annotations, object: Value::Null })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ANNOTATIONS: ExtraFieldSelection =
        ExtraFieldSelection { annotations: true, object: false };
    const WHOLE: ExtraFieldSelection = ExtraFieldSelection { annotations: false, object: true };

    fn object() -> Value {
        json!({
            "metadata": {"name": "a", "annotations": {"k": "v", "l": ""}, "managedFields": [{}]},
            "spec": {"anything": 7},
        })
    }

    #[track_caller]
    fn check(value: &Value, parts: ExtraFieldSelection, want: Option<(&[(&str, &str)], Value)>) {
        let want = want.map(|(pairs, object)| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            Arc::new(ExtraFields { annotations: pairs.collect(), object })
        });
        let text = value.to_string();
        assert_eq!(ExtraFields::read(Encoding::Json, text.as_bytes(), parts).unwrap(), want);
        assert_eq!(ExtraFields::from_value(value, parts), want);
    }

    #[test]
    fn only_requested_extra_fields_are_decoded() {
        let pairs: &[(&str, &str)] = &[("k", "v"), ("l", "")];
        let mut whole = object();
        whole["metadata"].as_object_mut().unwrap().remove("managedFields");
        check(&object(), ExtraFieldSelection::default(), None);
        check(&object(), ANNOTATIONS, Some((pairs, Value::Null)));
        check(&object(), WHOLE, Some((pairs, whole)));
        for bare in [json!({}), json!({"metadata": {"annotations": null}})] {
            check(&bare, ANNOTATIONS, Some((&[], Value::Null)));
            check(&bare, WHOLE, Some((&[], bare.clone())));
        }
    }

    #[test]
    fn from_protobuf() {
        // ObjectMeta (1) with its name (1) and a pair of annotations (12): key (1) and value (2).
        let bytes = b"\x0a\x0b\x0a\x01b\x62\x06\x0a\x01k\x12\x01v";
        let read = |parts| ExtraFields::read(Encoding::Protobuf, bytes, parts).unwrap();
        assert_eq!(read(ExtraFieldSelection::default()), None);
        let extra = read(ANNOTATIONS).unwrap();
        assert_eq!(extra.annotations.get("k").map(|value| &**value), Some("v"));
        assert!(ExtraFields::read(Encoding::Protobuf, b"\x0a\x03", ANNOTATIONS).is_err());
        assert!(ExtraFields::read(Encoding::Json, b"[", ANNOTATIONS).is_err());
    }

    #[test]
    fn requested_extra_fields_are_combined() {
        let some = ExtraFieldsByKind { pods: ANNOTATIONS, ..ExtraFieldsByKind::default() };
        let others = ExtraFieldsByKind { nodes: WHOLE, ..ExtraFieldsByKind::default() };
        assert_eq!(some.union(others), ExtraFieldsByKind { pods: ANNOTATIONS, nodes: WHOLE });
        assert_eq!([some.needs_json(), others.needs_json()], [false, true]);
    }
}
