//! Kubernetes' protobuf form of any object, both ways, over the table of types. An object travels in an envelope: four
//! bytes of magic, then `runtime.Unknown` with its type and its bytes.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::schema::{TypeId, schema};

pub use decode::decode_message;
pub use encode::encode_message;

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";

/// Why bytes are not an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtobufError {
    #[error("provided data does not appear to be a protobuf message, expected prefix {MAGIC:?}")]
    NoMagic,
    #[error("the message ends at byte {at} of its type {name}")]
    Truncated { name: &'static str, at: usize },
    #[error("field {number} of {name} has wire type {wire}")]
    WireType { name: &'static str, number: u32, wire: u8 },
    #[error("field {number} of {name} is not UTF-8")]
    NotText { name: &'static str, number: u32 },
    #[error("{name} is nested too deeply")]
    TooDeep { name: &'static str },
}

/// The type and the bytes of an object in its envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub api_version: String,
    pub kind: String,
    pub raw: Vec<u8>,
}

/// Decodes an envelope.
///
/// # Errors
///
/// When the magic is missing or the envelope is damaged.
pub fn decode_envelope(bytes: &[u8]) -> Result<Envelope, ProtobufError> {
    let bytes = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::NoMagic)?;
    decode::envelope(bytes)
}

/// An object in its envelope.
pub fn encode_envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&encode::envelope(api_version, kind, raw));
    out
}

/// Adds an item to the message of a list, in which items are field 2.
pub fn append_item(item: &[u8], list: &mut Vec<u8>) {
    encode::append_item(item, list);
}

/// A watch event: its type and an object in its envelope, behind four bytes of length.
pub fn watch_frame(kind: &str, object: &[u8]) -> Vec<u8> {
    encode::watch_frame(kind, object)
}

/// An object, whose `apiVersion` and `kind` say what it is, in its envelope.
pub fn encode_object(id: TypeId, value: &Value) -> Vec<u8> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    encode_envelope(text("apiVersion"), text("kind"), &encode_message(schema(), id, value))
}
