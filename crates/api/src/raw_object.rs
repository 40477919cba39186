//! The encoded bytes of an object as the API server sent them.

use bytes::Bytes;

use crate::proto::{ProtoError, ProtoKind};

/// How an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// The bare protobuf message, without envelope.
    Protobuf,
    /// JSON. Items of a list have neither `apiVersion` nor `kind`.
    Json,
}

/// The bytes of one object. Clones share them.
#[derive(Clone, PartialEq, Eq)]
pub struct RawObject {
    /// How they are to be read.
    pub encoding: Encoding,
    /// The bytes.
    pub bytes: Bytes,
}

/// Why bytes are not the object they should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawObjectError {
    /// They are not its protobuf message.
    #[error(transparent)]
    Protobuf(#[from] ProtoError),
    /// They are not its JSON.
    #[error("decoding a {kind} from JSON")]
    Json {
        /// Kind of the object.
        kind: &'static str,
        /// When a stage is invalid, with the position.
        #[source]
        source: serde_json::Error,
    },
}

impl RawObject {
    /// A copy of these bytes.
    pub fn new(encoding: Encoding, bytes: &[u8]) -> RawObject {
        RawObject { encoding, bytes: Bytes::copy_from_slice(bytes) }
    }

    /// Decodes the object.
    ///
    /// # Errors
    ///
    /// When the bytes are not an object of the kind asked for.
    pub fn decode<T: ProtoKind>(&self) -> Result<T, RawObjectError> {
        match self.encoding {
            Encoding::Protobuf => Ok(T::from_message(&self.bytes)?),
            Encoding::Json => T::from_json(&self.bytes)
                .map_err(|source| RawObjectError::Json { kind: T::KIND, source }),
        }
    }
}

/// Says how much there is; the content may be long, and private.
impl std::fmt::Debug for RawObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Raw({:?}, {} bytes)", self.encoding, self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, Node};

    #[test]
    fn decoding() {
        let raw = RawObject::new(Encoding::Json, br#"{"metadata":{"name":"a"}}"#);
        assert_eq!(&*raw.decode::<Namespace>().unwrap().metadata.name, "a");
        // ObjectMeta (1) with its name (1).
        let raw = RawObject::new(Encoding::Protobuf, b"\x0a\x03\x0a\x01b");
        assert_eq!(&*raw.decode::<Namespace>().unwrap().metadata.name, "b");
        assert_eq!(format!("{raw:?}"), "Raw(Protobuf, 5 bytes)");
        let bad =
            RawObject::new(Encoding::Json, br#"{"metadata":7}"#).decode::<Node>().unwrap_err();
        assert_eq!(bad.to_string(), "decoding a Node from JSON");
        let bad = RawObject::new(Encoding::Protobuf, b"\x0a\x03").decode::<Node>().unwrap_err();
        assert_eq!(bad.to_string(), "decoding a Node from protobuf");
    }
}
