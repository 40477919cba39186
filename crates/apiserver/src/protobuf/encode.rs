//! From JSON values to protobuf.

use base64::Engine as _;
use jiff::Timestamp;
use loadmaster_stdx::duration::parse_duration_nanos;
use serde_json::{Map, Value};

use crate::schema::{Field, Schema, Shape, TypeId};

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;

/// The message of an object that has the form of its type (see [`crate::schema::decode`]).
pub fn encode_message(schema: &Schema, id: TypeId, value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    if let Value::Object(members) = value {
        message(schema, id, members, &mut out);
    }
    out
}

pub(super) fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut meta = Vec::new();
    bytes_field(1, api_version.as_bytes(), &mut meta);
    bytes_field(2, kind.as_bytes(), &mut meta);
    let mut out = Vec::with_capacity(raw.len() + meta.len() + 16);
    bytes_field(1, &meta, &mut out);
    bytes_field(2, raw, &mut out);
    bytes_field(3, b"", &mut out);
    bytes_field(4, b"", &mut out);
    out
}

pub(super) fn append_item(item: &[u8], list: &mut Vec<u8>) {
    bytes_field(2, item, list);
}

/// `meta.k8s.io/v1` `WatchEvent`: type (1) and object (2), which is a `RawExtension` with its bytes (1).
pub(super) fn watch_frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(object.len() + 8);
    bytes_field(1, object, &mut raw);
    let mut event = Vec::with_capacity(raw.len() + 24);
    bytes_field(1, kind.as_bytes(), &mut event);
    bytes_field(2, &raw, &mut event);
    let mut frame = Vec::with_capacity(event.len() + 4);
    frame.extend_from_slice(&u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(&event);
    frame
}

fn message(schema: &Schema, id: TypeId, members: &Map<String, Value>, out: &mut Vec<u8>) {
    for field in &schema.get(id).fields {
        if let (Shape::Object(inner), true) = (&field.shape, field.is_inline) {
            let start = open_field(field.number, out);
            message(schema, *inner, members, out);
            close_field(start, out);
        } else if let Some(value) = members.get(field.name) {
            encode_field(schema, field, value, out);
        }
    }
}

fn encode_field(schema: &Schema, field: &Field, value: &Value, out: &mut Vec<u8>) {
    match (&field.shape, value) {
        (_, Value::Null) => {}
        (Shape::List(inner), Value::Array(entries)) => {
            for entry in entries {
                one(schema, field.number, inner, entry, out);
            }
        }
        (Shape::Map(inner), Value::Object(members)) => {
            for (key, entry) in members {
                let start = open_field(field.number, out);
                bytes_field(1, key.as_bytes(), out);
                one(schema, 2, inner, entry, out);
                close_field(start, out);
            }
        }
        (shape, value) => one(schema, field.number, shape, value, out),
    }
}

/// One value under a field number.
fn one(schema: &Schema, number: u32, shape: &Shape, value: &Value, out: &mut Vec<u8>) {
    match (shape, value) {
        (Shape::String, Value::String(text)) => bytes_field(number, text.as_bytes(), out),
        (Shape::Bool, Value::Bool(flag)) => varint_field(number, u64::from(*flag), out),
        (Shape::Int32 | Shape::Int64, Value::Number(n)) => {
            varint_field(number, n.as_i64().unwrap_or_default().cast_unsigned(), out);
        }
        (Shape::Double, Value::Number(n)) => {
            varint(u64::from(number) << 3 | u64::from(FIXED64), out);
            out.extend_from_slice(&n.as_f64().unwrap_or_default().to_le_bytes());
        }
        (Shape::Bytes, Value::String(text)) => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(text);
            bytes_field(number, &decoded.unwrap_or_default(), out);
        }
        (Shape::Time | Shape::MicroTime, Value::String(text)) => {
            let time: Timestamp = text.parse().unwrap_or_default();
            let start = open_field(number, out);
            varint_field(1, time.as_second().cast_unsigned(), out);
            let nanos = u32::try_from(time.subsec_nanosecond()).unwrap_or_default();
            varint_field(2, u64::from(nanos), out);
            close_field(start, out);
        }
        (Shape::Duration, Value::String(text)) => {
            let start = open_field(number, out);
            varint_field(1, parse_duration_nanos(text).unwrap_or_default().cast_unsigned(), out);
            close_field(start, out);
        }
        (Shape::Quantity, Value::String(text)) => {
            let start = open_field(number, out);
            bytes_field(1, text.as_bytes(), out);
            close_field(start, out);
        }
        (Shape::IntOrString, value) => {
            let start = open_field(number, out);
            let text = value.as_str();
            varint_field(1, u64::from(text.is_some()), out);
            varint_field(2, value.as_i64().unwrap_or_default().cast_unsigned(), out);
            bytes_field(3, text.unwrap_or_default().as_bytes(), out);
            close_field(start, out);
        }
        (Shape::Raw | Shape::Json(_) | Shape::Fields, value) => {
            let start = open_field(number, out);
            bytes_field(1, value.to_string().as_bytes(), out);
            close_field(start, out);
        }
        (Shape::Object(id), Value::Object(members)) => {
            let start = open_field(number, out);
            message(schema, *id, members, out);
            close_field(start, out);
        }
        (Shape::Wrapped(inner) | Shape::List(inner), Value::Array(entries)) => {
            let start = open_field(number, out);
            for entry in entries {
                one(schema, 1, inner, entry, out);
            }
            close_field(start, out);
        }
        // The value does not have the form of its type; what cannot be said is left out.
        _ => {}
    }
}

/// Begins a field whose length is not known yet: five bytes are kept for it.
fn open_field(number: u32, out: &mut Vec<u8>) -> usize {
    varint(u64::from(number) << 3 | u64::from(BYTES), out);
    out.len()
}

/// Ends a field begun by [`open_field`].
fn close_field(start: usize, out: &mut Vec<u8>) {
    let mut prefix = Vec::with_capacity(5);
    varint((out.len() - start) as u64, &mut prefix);
    out.splice(start..start, prefix);
}

fn bytes_field(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | u64::from(BYTES), out);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn varint_field(number: u32, value: u64, out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | u64::from(VARINT), out);
    varint(value, out);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
