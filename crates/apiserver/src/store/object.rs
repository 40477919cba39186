//! One version of an object: its bytes, and what selectors read.

use std::sync::Arc;

use bytes::Bytes;
use loadmaster_api::Labels;
use serde_json::Value;

/// One version of an object, never changed.
#[derive(Debug)]
pub struct Object {
    key: Arc<str>,
    revision: u64,
    labels: Labels,
    fields: Box<[Box<str>]>,
    json: Bytes,
    /// Where the digits of `metadata.resourceVersion` begin in `json`.
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

    /// The values field selectors may ask for, in the order of the resource's table.
    pub fn fields(&self) -> &[Box<str>] {
        &self.fields
    }

    /// The object as JSON, its `metadata.resourceVersion` included.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// The JSON, showing another `resourceVersion`.
    pub fn json_at(&self, revision: u64) -> Bytes {
        if revision == self.revision { self.json.clone() } else { self.respelled(revision) }
    }

    /// What is to be kept of a version, so that [`Object::restored`] makes the same again.
    pub fn parts(&self) -> Parts<'_> {
        let Object { key, revision, labels, fields, json, revision_at } = self;
        Parts { key, revision: *revision, labels, fields, json, revision_at: *revision_at }
    }

    /// A version that was kept; none if the bytes do not show the revision where they should.
    pub fn restored(
        key: &str,
        revision: u64,
        labels: Labels,
        fields: Box<[Box<str>]>,
        json: Bytes,
        revision_at: u32,
    ) -> Option<Object> {
        let shown = json.get(revision_at as usize..)?;
        let after = shown.strip_prefix(revision.to_string().as_bytes())?;
        after.starts_with(b"\"").then(|| Object {
            key: key.into(),
            revision,
            labels,
            fields,
            json,
            revision_at,
        })
    }

    /// The same state at another revision.
    pub(super) fn at_revision(&self, revision: u64) -> Object {
        Object {
            key: self.shared_key(),
            revision,
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            json: self.respelled(revision),
            revision_at: self.revision_at,
        }
    }

    /// The same version with other selectable fields.
    pub(super) fn with_fields(&self, fields: Box<[Box<str>]>) -> Object {
        Object { fields, ..self.at_revision(self.revision) }
    }

    fn respelled(&self, revision: u64) -> Bytes {
        let at = self.revision_at as usize;
        let old = self.revision.to_string();
        splice(&self.json[..at], revision, &self.json[at + old.len()..])
    }

    /// Roughly how many bytes of memory this version takes.
    pub(super) fn size(&self) -> usize {
        size_of::<Object>() + self.json.len() + self.labels.len() * 32 + self.fields.len() * 24
    }
}

/// What a version consists of.
#[derive(Debug)]
pub struct Parts<'a> {
    pub key: &'a str,
    pub revision: u64,
    pub labels: &'a Labels,
    pub fields: &'a [Box<str>],
    pub json: &'a Bytes,
    /// Where the digits of `metadata.resourceVersion` begin in `json`.
    pub revision_at: u32,
}

/// A version to be written: all but the revision, which only the write can know.
#[derive(Clone, Debug)]
pub struct Draft {
    key: String,
    labels: Labels,
    fields: Box<[Box<str>]>,
    head: Vec<u8>,
    tail: Vec<u8>,
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
        let (head, tail) = encode_around_revision(value)?;
        Ok(Draft { key, labels, fields, head, tail })
    }

    /// Under which key it will be stored.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How long its JSON is, without the revision.
    pub fn n_bytes(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    pub(super) fn into_object(self, revision: u64, key: Option<Arc<str>>) -> Object {
        Object {
            key: key.unwrap_or_else(|| self.key.into()),
            revision,
            labels: self.labels,
            fields: self.fields,
            revision_at: u32::try_from(self.head.len()).unwrap_or(u32::MAX),
            json: splice(&self.head, revision, &self.tail),
        }
    }
}

fn splice(head: &[u8], revision: u64, tail: &[u8]) -> Bytes {
    let digits = revision.to_string();
    let mut json = Vec::with_capacity(head.len() + digits.len() + tail.len());
    json.extend_from_slice(head);
    json.extend_from_slice(digits.as_bytes());
    json.extend_from_slice(tail);
    Bytes::from(json)
}

/// The JSON of an object before and after the digits of its resource version. `apiVersion`, `kind` and `metadata` come
/// first, as in Go's output.
fn encode_around_revision(value: &Value) -> serde_json::Result<(Vec<u8>, Vec<u8>)> {
    use serde::ser::Error as _;
    let top = value.as_object().ok_or_else(|| serde_json::Error::custom("not an object"))?;
    let metadata = top.get("metadata").and_then(Value::as_object);
    let metadata =
        metadata.ok_or_else(|| serde_json::Error::custom("an object has no metadata"))?;
    let mut head = Vec::with_capacity(1024);
    head.push(b'{');
    for name in ["kind", "apiVersion"] {
        if let Some(value) = top.get(name) {
            member(&mut head, name, value)?;
            head.push(b',');
        }
    }
    head.extend_from_slice(b"\"metadata\":{");
    for (name, value) in metadata.iter().filter(|(name, _)| *name != "resourceVersion") {
        member(&mut head, name, value)?;
        head.push(b',');
    }
    head.extend_from_slice(b"\"resourceVersion\":\"");
    let mut tail = Vec::with_capacity(2048);
    tail.extend_from_slice(b"\"}");
    for (name, value) in top {
        if !matches!(name.as_str(), "kind" | "apiVersion" | "metadata") {
            tail.push(b',');
            member(&mut tail, name, value)?;
        }
    }
    tail.push(b'}');
    Ok((head, tail))
}

fn member(out: &mut Vec<u8>, name: &str, value: &Value) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *out, name)?;
    out.push(b':');
    serde_json::to_writer(out, value)
}
