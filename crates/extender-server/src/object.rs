//! A Kubernetes object as raw JSON, with decoded metadata.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;

use crate::Error;

/// A pod or a node. It is encoded with the JSON that was received, including unknown fields.
#[derive(Clone, Debug)]
pub struct Object {
    meta: Meta,
    json: Box<RawValue>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Meta {
    name: String,
    namespace: Option<String>,
    uid: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl Object {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.meta.name
    }

    /// `metadata.namespace`; empty for nodes.
    pub fn namespace(&self) -> &str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.meta.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.meta.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Decodes the object as a type of your choice, such as `k8s_openapi::api::core::v1::Pod` or a struct with the fields you need.
    ///
    /// # Errors
    ///
    /// When the object cannot be decoded as this type.
    pub fn decode<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        serde_json::from_str(self.json.get())
            .map_err(|error| Error::new(format!("reading {}: {error}", self.meta.name)))
    }

    /// The JSON of the object.
    pub fn json(&self) -> &str {
        self.json.get()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            metadata: Meta,
        }
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let head: Head = serde_json::from_str(json.get()).map_err(de::Error::custom)?;
        if head.metadata.name.is_empty() {
            return Err(de::Error::custom("an object without metadata.name"));
        }
        Ok(Object { meta: head.metadata, json })
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_preserved() {
        let text =
            r#"{"metadata":{"name":"n","labels":{"a":"b"},"x":1},"spec":{"big":9007199254740993}}"#;
        let object: Object = serde_json::from_str(text).unwrap();
        assert_eq!((object.name(), object.label("a"), object.label("c")), ("n", Some("b"), None));
        assert_eq!((object.namespace(), object.uid(), object.annotation("a")), ("", "", None));
        assert_eq!(serde_json::to_string(&object).unwrap(), text);
        assert_eq!(object.decode::<serde_json::Value>().unwrap()["metadata"]["x"], 1);
        let wrong = object.decode::<Vec<u8>>().unwrap_err();
        assert!(wrong.to_string().starts_with("reading n: invalid type: map"), "{wrong}");
    }

    #[test]
    fn an_object_without_a_name_is_rejected() {
        for text in ["{}", r#"{"metadata":{"labels":null}}"#, r#"{"metadata":{"name":""}}"#] {
            let error = serde_json::from_str::<Object>(text).unwrap_err().to_string();
            assert!(error.starts_with("an object without metadata.name"), "{text}: {error}");
        }
    }
}
