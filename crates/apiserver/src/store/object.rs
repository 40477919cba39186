//! One version of an object: its JSON, labels and selectable fields.

use std::sync::Arc;

use bytes::Bytes;
use loadmaster_api::Labels;
use serde_json::Value;

use super::packed_json::{PackedJson, Packer};

/// One version of an object, never changed.
#[derive(Clone, Debug)]
pub struct Object {
    key: Arc<str>,
    revision: u64,
    labels: Labels,
    fields: Box<[Box<str>]>,
    /// The JSON without the digits of `metadata.resourceVersion`.
    text: PackedJson,
    /// Where those digits are in the JSON.
    revision_at: u32,
}

impl Object {
    /// `namespace/name`, or the name if the resource has no namespaces.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The key, without a copy.
    pub fn shared_key(&self) -> Arc<str> {
        Arc::clone(&self.key)
    }

    /// The revision of the write that made this version.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The namespace, or nothing.
    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// `metadata.labels`.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The values of the selectable fields, in the order of the resource's table.
    pub fn selectable_values(&self) -> &[Box<str>] {
        &self.fields
    }

    /// The object as JSON, its `metadata.resourceVersion` included. It is put together anew with each call.
    pub fn json(&self) -> Bytes {
        self.json_at(self.revision)
    }

    /// The JSON, showing another `resourceVersion`.
    pub fn json_at(&self, revision: u64) -> Bytes {
        let (at, n_bytes) = (self.revision_at as usize, self.text.len());
        let digits = revision.to_string();
        let mut json = vec![0; n_bytes + digits.len()];
        self.text.write(&mut json);
        json.copy_within(at..n_bytes, at + digits.len());
        json[at..at + digits.len()].copy_from_slice(digits.as_bytes());
        json.into()
    }

    /// Where the digits of `metadata.resourceVersion` begin in the JSON.
    pub fn revision_offset(&self) -> u32 {
        self.revision_at
    }

    /// A version restored from its JSON; none if that does not have the revision where it should.
    pub fn restored(
        key: &str,
        revision: u64,
        labels: Labels,
        fields: Box<[Box<str>]>,
        json: &[u8],
        revision_at: u32,
    ) -> Option<Object> {
        let (head, shown) = json.split_at_checked(revision_at as usize)?;
        let tail = shown.strip_prefix(revision.to_string().as_bytes())?;
        tail.starts_with(b"\"").then(|| Object {
            key: key.into(),
            revision,
            labels,
            fields,
            text: PackedJson::Plain([head, tail].concat().into()),
            revision_at,
        })
    }

    /// The same state at another revision.
    pub(super) fn at_revision(&self, revision: u64) -> Object {
        Object { revision, ..self.clone() }
    }

    /// The same version with other facts for selectors.
    pub fn with_facts(&self, labels: Labels, fields: Box<[Box<str>]>) -> Object {
        Object { labels, fields, ..self.clone() }
    }

    /// The same version as the store keeps it.
    pub(super) fn packed(self, packer: &mut Packer) -> Object {
        Object { text: packer.pack(self.text), ..self }
    }

    /// Roughly how many bytes of memory this version takes.
    pub(super) fn size(&self) -> usize {
        size_of::<Object>() + self.text.n_stored() + self.labels.len() * 32 + self.fields.len() * 24
    }
}

/// A version to be written: all but the revision, which only the write can know.
#[derive(Clone, Debug)]
pub struct Draft {
    key: String,
    labels: Labels,
    fields: Box<[Box<str>]>,
    /// See [`Object`].
    text: Arc<[u8]>,
    revision_at: u32,
}

impl Draft {
    /// Encodes an object. Its `metadata.resourceVersion`, if any, is replaced when it is written.
    ///
    /// # Errors
    ///
    /// When `value` is not an object with `metadata`.
    pub fn new(
        key: String,
        labels: Labels,
        fields: Box<[Box<str>]>,
        value: &Value,
    ) -> serde_json::Result<Draft> {
        let (text, revision_at) = encode_without_revision(value)?;
        Ok(Draft { key, labels, fields, text: text.into(), revision_at })
    }

    /// Under which key it will be stored.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How long its JSON is, without the revision.
    pub fn n_bytes(&self) -> usize {
        self.text.len()
    }

    pub(super) fn into_object(self, revision: u64, key: Option<Arc<str>>) -> Object {
        Object {
            key: key.unwrap_or_else(|| self.key.into()),
            revision,
            labels: self.labels,
            fields: self.fields,
            text: PackedJson::Plain(self.text),
            revision_at: self.revision_at,
        }
    }
}

/// The JSON of an object without the digits of its resource version, and where they belong. `apiVersion`, `kind` and
/// `metadata` come first, as in Go's output.
fn encode_without_revision(value: &Value) -> serde_json::Result<(Vec<u8>, u32)> {
    use serde::ser::Error as _;
    let top = value.as_object().ok_or_else(|| serde_json::Error::custom("not an object"))?;
    let metadata = top.get("metadata").and_then(Value::as_object);
    let metadata =
        metadata.ok_or_else(|| serde_json::Error::custom("an object has no metadata"))?;
    let mut out = Vec::with_capacity(4096);
    out.push(b'{');
    for name in ["kind", "apiVersion"] {
        if let Some(value) = top.get(name) {
            member(&mut out, name, value)?;
            out.push(b',');
        }
    }
    out.extend_from_slice(b"\"metadata\":{");
    for (name, value) in metadata.iter().filter(|(name, _)| *name != "resourceVersion") {
        member(&mut out, name, value)?;
        out.push(b',');
    }
    out.extend_from_slice(b"\"resourceVersion\":\"");
    let revision_at = u32::try_from(out.len()).map_err(serde_json::Error::custom)?;
    out.extend_from_slice(b"\"}");
    for (name, value) in top {
        if !matches!(name.as_str(), "kind" | "apiVersion" | "metadata") {
            out.push(b',');
            member(&mut out, name, value)?;
        }
    }
    out.push(b'}');
    Ok((out, revision_at))
}

fn member(out: &mut Vec<u8>, name: &str, value: &Value) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *out, name)?;
    out.push(b':');
    serde_json::to_writer(out, value)
}
