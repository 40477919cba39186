//! What some readers need of pods and nodes beyond the lean types: read from the bytes a second time, and only for those who ask.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use serde::Deserialize;
use serde_json::Value;

use crate::meta::nullable;
use crate::proto::ProtoError;
use crate::raw::{Encoding, RawError};

/// What is kept of an object beside its lean type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// `metadata.annotations`.
    pub annotations: BTreeMap<Box<str>, Box<str>>,
    /// The object as the API server has it, without `metadata.managedFields`; `null` when only annotations were asked for.
    pub object: Value,
}

/// Which parts are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Annotations.
    pub annotations: bool,
    /// The whole object, annotations included. It must be read in JSON.
    pub object: bool,
}

/// What is asked for of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Of pods.
    pub pods: Parts,
    /// Of nodes.
    pub nodes: Parts,
}

impl Parts {
    /// Whether nothing is asked for.
    pub fn is_empty(self) -> bool {
        self == Parts::default()
    }

    fn or(self, other: Parts) -> Parts {
        Parts {
            annotations: self.annotations || other.annotations,
            object: self.object || other.object,
        }
    }
}

impl Needs {
    /// What either asks for.
    #[must_use]
    pub fn or(self, other: Needs) -> Needs {
        Needs { pods: self.pods.or(other.pods), nodes: self.nodes.or(other.nodes) }
    }

    /// Whether something can be read from JSON alone.
    pub fn json_only(self) -> bool {
        self.pods.object || self.nodes.object
    }
}

impl Extra {
    /// The parts of an object, from its bytes; `None` when nothing is asked for. Of a whole object in protobuf there are only the
    /// annotations.
    ///
    /// # Errors
    ///
    /// When the bytes are not an object.
    pub fn read(
        encoding: Encoding,
        bytes: &[u8],
        parts: Parts,
    ) -> Result<Option<Arc<Extra>>, RawError> {
        if parts.is_empty() {
            return Ok(None);
        }
        let extra = match encoding {
            Encoding::Protobuf => return Ok(Extra::of_message(bytes, parts)?),
            Encoding::Json => {
                of_json(bytes, parts).map_err(|source| RawError::Json { kind: "object", source })?
            }
        };
        Ok(Some(Arc::new(extra)))
    }

    /// The same, from a protobuf message.
    ///
    /// # Errors
    ///
    /// When the bytes are not an object.
    pub fn of_message(bytes: &[u8], parts: Parts) -> Result<Option<Arc<Extra>>, ProtoError> {
        if parts.is_empty() {
            return Ok(None);
        }
        of_message(bytes).map(|extra| Some(Arc::new(extra)))
    }

    /// The same, from a value.
    pub fn of_value(value: &Value, parts: Parts) -> Option<Arc<Extra>> {
        if parts.is_empty() {
            return None;
        }
        let annotations = value["metadata"]["annotations"].as_object();
        let annotations = annotations.into_iter().flatten();
        let pairs = annotations
            .filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())));
        let mut extra = Extra { annotations: pairs.collect(), object: Value::Null };
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

fn of_json(bytes: &[u8], parts: Parts) -> Result<Extra, serde_json::Error> {
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
    let Object { metadata: Metadata { annotations } } = serde_json::from_slice(bytes)?;
    let object = if parts.object { whole(serde_json::from_slice(bytes)?) } else { Value::Null };
    Ok(Extra { annotations, object })
}

fn of_message(bytes: &[u8]) -> Result<Extra, ProtoError> {
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
    let annotations = annotations.map(|(key, value)| (key.into(), value.into())).collect();
    Ok(Extra { annotations, object: Value::Null })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ANNOTATIONS: Parts = Parts { annotations: true, object: false };
    const WHOLE: Parts = Parts { annotations: false, object: true };

    fn object() -> Value {
        json!({
            "metadata": {"name": "a", "annotations": {"k": "v", "l": ""}, "managedFields": [{}]},
            "spec": {"anything": 7},
        })
    }

    #[track_caller]
    fn check(value: &Value, parts: Parts, want: Option<(&[(&str, &str)], Value)>) {
        let want = want.map(|(pairs, object)| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            Arc::new(Extra { annotations: pairs.collect(), object })
        });
        let text = value.to_string();
        assert_eq!(Extra::read(Encoding::Json, text.as_bytes(), parts).unwrap(), want);
        assert_eq!(Extra::of_value(value, parts), want);
    }

    #[test]
    fn only_what_is_asked_for_is_kept() {
        let pairs: &[(&str, &str)] = &[("k", "v"), ("l", "")];
        let mut whole = object();
        whole["metadata"].as_object_mut().unwrap().remove("managedFields");
        check(&object(), Parts::default(), None);
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
        let read = |parts| Extra::read(Encoding::Protobuf, bytes, parts).unwrap();
        assert_eq!(read(Parts::default()), None);
        let extra = read(ANNOTATIONS).unwrap();
        assert_eq!(extra.annotations.get("k").map(|value| &**value), Some("v"));
        assert!(Extra::read(Encoding::Protobuf, b"\x0a\x03", ANNOTATIONS).is_err());
        assert!(Extra::read(Encoding::Json, b"[", ANNOTATIONS).is_err());
    }

    #[test]
    fn needs_add_up() {
        let some = Needs { pods: ANNOTATIONS, ..Needs::default() };
        let others = Needs { nodes: WHOLE, ..Needs::default() };
        assert_eq!(some.or(others), Needs { pods: ANNOTATIONS, nodes: WHOLE });
        assert_eq!([some.json_only(), others.json_only()], [false, true]);
    }
}
