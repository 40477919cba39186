//! The outer layers, walked without copying: envelopes, lists and watch events hold whole objects as bytes.

use prost::encoding::{WireType, decode_varint, encode_key, encode_varint};

use super::{ProtoError, Status};

/// What every object begins with.
const MAGIC: &[u8] = b"k8s\0";

/// Number of bytes of the longest number.
const N_NUMBER_BYTES_MAX: usize = 10;

/// Why a field cannot be read. A pod has some 60 fields, and for each there is a result that is small and needs no drop.
#[derive(Clone, Copy)]
pub(super) enum FieldError {
    Truncated,
    Malformed,
}

impl From<FieldError> for ProtoError {
    fn from(error: FieldError) -> ProtoError {
        match error {
            FieldError::Truncated => ProtoError::Truncated,
            FieldError::Malformed => ProtoError::Malformed,
        }
    }
}

/// A field of a message.
#[derive(Clone, Copy)]
pub(super) enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Eight or four bytes: no message here has such fields.
    Fixed,
}

/// A field with its number and with its bytes, in which both are.
type WholeField<'a> = (u32, Field<'a>, &'a [u8]);

/// The fields of a message in their order.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next field with its bytes; None at the end.
    pub(super) fn next_with_bytes(&mut self) -> Result<Option<WholeField<'a>>, FieldError> {
        let before = self.0;
        let field = self.next()?;
        let n_bytes = before.len() - self.0.len();
        Ok(field.map(|(number, field)| (number, field, &before[..n_bytes])))
    }

    /// The next field with its number; None at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Field<'a>)>, FieldError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.number()?;
        // A key has 32 bits, and fields are numbered from 1.
        if !(8..1 << 32).contains(&key) {
            return Err(FieldError::Malformed);
        }
        let field = match key & 7 {
            0 => Field::Number(self.number()?),
            2 => {
                let len = usize::try_from(self.number()?).map_err(|_| FieldError::Truncated)?;
                Field::Bytes(self.take(len)?)
            }
            1 => self.take(8).map(|_| Field::Fixed)?,
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return Err(FieldError::Malformed),
        };
        Ok(Some(((key >> 3) as u32, field)))
    }

    #[inline]
    fn number(&mut self) -> Result<u64, FieldError> {
        match *self.0 {
            [byte @ ..0x80, ref rest @ ..] => {
                self.0 = rest;
                Ok(u64::from(byte))
            }
            [low, high @ ..0x80, ref rest @ ..] => {
                self.0 = rest;
                Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
            }
            _ => self.long_number(),
        }
    }

    #[inline(never)]
    fn long_number(&mut self) -> Result<u64, FieldError> {
        let is_short = self.0.len() < N_NUMBER_BYTES_MAX;
        decode_varint(&mut self.0).map_err(|_| match is_short {
            true => FieldError::Truncated,
            false => FieldError::Malformed,
        })
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], FieldError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(FieldError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Appends a field that is a message.
pub(super) fn put_message(number: u32, message: &[u8], to: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, to);
    encode_varint(message.len() as u64, to);
    to.extend_from_slice(message);
}

/// The text of a field.
pub(super) fn text(bytes: &[u8]) -> Result<&str, FieldError> {
    std::str::from_utf8(bytes).map_err(|_| FieldError::Malformed)
}

/// An object as it is sent: its type and its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// `apiVersion`.
    pub api_version: &'a str,
    /// `kind`.
    pub kind: &'a str,
    /// The message.
    pub raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Opens an envelope: `k8s\0`, then a `runtime.Unknown`.
    ///
    /// # Errors
    ///
    /// When the prefix is missing, the message is malformed or the content is encoded in some way.
    pub fn open(bytes: &'a [u8]) -> Result<Envelope<'a>, ProtoError> {
        let unknown = bytes.strip_prefix(MAGIC).ok_or(ProtoError::NoMagic)?;
        let mut envelope = Envelope { api_version: "", kind: "", raw: &[] };
        let mut fields = Fields(unknown);
        while let Some(field) = fields.next()? {
            match field {
                (1, Field::Bytes(type_meta)) => {
                    let mut fields = Fields(type_meta);
                    while let Some(field) = fields.next()? {
                        match field {
                            (1, Field::Bytes(bytes)) => envelope.api_version = text(bytes)?,
                            (2, Field::Bytes(bytes)) => envelope.kind = text(bytes)?,
                            _ => {}
                        }
                    }
                }
                (2, Field::Bytes(raw)) => envelope.raw = raw,
                (3, Field::Bytes(encoding)) if !encoding.is_empty() => {
                    let encoding = String::from_utf8_lossy(encoding).into_owned();
                    return Err(ProtoError::Encoded { encoding });
                }
                _ => {}
            }
        }
        Ok(envelope)
    }
}

/// A list whose items are not decoded yet.
#[derive(Default)]
pub(super) struct RawList<'a> {
    pub(super) resource_version: &'a str,
    pub(super) continue_token: &'a str,
    pub(super) remaining_item_count: Option<i64>,
    pub(super) items: Vec<&'a [u8]>,
}

/// The parts of any list: all have the same form.
pub(super) fn list(raw: &[u8]) -> Result<RawList<'_>, ProtoError> {
    let mut list = RawList::default();
    let mut fields = Fields(raw);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(metadata)) => {
                let mut fields = Fields(metadata);
                while let Some(field) = fields.next()? {
                    match field {
                        (2, Field::Bytes(bytes)) => list.resource_version = text(bytes)?,
                        (3, Field::Bytes(bytes)) => list.continue_token = text(bytes)?,
                        (4, Field::Number(count)) => list.remaining_item_count = Some(count as i64),
                        _ => {}
                    }
                }
            }
            (2, Field::Bytes(item)) => list.items.push(item),
            _ => {}
        }
    }
    Ok(list)
}

/// Type and object (in its envelope) of a `WatchEvent`.
pub(super) fn watch_event(frame: &[u8]) -> Result<(&str, &[u8]), ProtoError> {
    let (mut kind, mut object): (_, &[u8]) = ("", &[]);
    let mut fields = Fields(frame);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(bytes)) => kind = text(bytes)?,
            (2, Field::Bytes(extension)) => {
                let mut fields = Fields(extension);
                while let Some(field) = fields.next()? {
                    if let (1, Field::Bytes(raw)) = field {
                        object = raw;
                    }
                }
            }
            _ => {}
        }
    }
    Ok((kind, object))
}

/// `metadata.resourceVersion` of any object, and whether it is annotated as the end of the initial events.
pub(super) fn version(raw: &[u8]) -> Result<(&str, bool), ProtoError> {
    let (mut resource_version, mut ends_initial_events) = ("", false);
    let mut fields = Fields(raw);
    while let Some(field) = fields.next()? {
        let (1, Field::Bytes(metadata)) = field else { continue };
        let mut fields = Fields(metadata);
        while let Some(field) = fields.next()? {
            match field {
                (6, Field::Bytes(bytes)) => resource_version = text(bytes)?,
                // Upstream: InitialEventsAnnotationKey in apimachinery's meta/v1.
                (12, Field::Bytes(pair)) => {
                    ends_initial_events |= entry(pair)? == (b"k8s.io/initial-events-end", b"true");
                }
                _ => {}
            }
        }
    }
    Ok((resource_version, ends_initial_events))
}

/// Key and value of an entry of a map.
fn entry(pair: &[u8]) -> Result<(&[u8], &[u8]), ProtoError> {
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    let mut fields = Fields(pair);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(bytes)) => key = bytes,
            (2, Field::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((key, value))
}

/// A `v1` Status.
pub(super) fn status(raw: &[u8]) -> Result<Status, ProtoError> {
    let mut status = Status::default();
    let mut fields = Fields(raw);
    while let Some(field) = fields.next()? {
        match field {
            (3, Field::Bytes(bytes)) => status.message = text(bytes)?.to_owned(),
            (4, Field::Bytes(bytes)) => status.reason = text(bytes)?.to_owned(),
            (5, Field::Bytes(details)) => {
                let mut fields = Fields(details);
                while let Some(field) = fields.next()? {
                    if let (5, Field::Number(seconds)) = field {
                        status.retry_after_seconds = seconds as i32;
                    }
                }
            }
            (6, Field::Number(code)) => status.code = code as i32,
            _ => {}
        }
    }
    Ok(status)
}
