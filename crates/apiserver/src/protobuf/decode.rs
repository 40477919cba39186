//! From protobuf to JSON values.

use base64::Engine as _;
use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use super::{Envelope, ProtobufError};
use crate::schema::{Field, Schema, Shape, TypeId};

const DEPTH_MAX: usize = 64;

/// The object in a message; unknown fields are skipped, and absent ones are absent. [`crate::schema::decode`] gives it the
/// form of its type.
///
/// # Errors
///
/// When the bytes are damaged.
pub fn decode_message(schema: &Schema, id: TypeId, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut members = Map::new();
    message(schema, id, bytes, &mut members, DEPTH_MAX)?;
    Ok(Value::Object(members))
}

pub(super) fn envelope(bytes: &[u8]) -> Result<Envelope, ProtobufError> {
    let name = "runtime.Unknown";
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), Vec::new());
    let mut wire = Wire { name, bytes, at: 0 };
    while let Some((number, token)) = wire.next()? {
        match (number, token) {
            (1, Token::Bytes(meta)) => {
                let mut wire = Wire { name, bytes: meta, at: 0 };
                while let Some((number, token)) = wire.next()? {
                    match number {
                        1 => api_version = token.text(name, number)?.to_owned(),
                        2 => kind = token.text(name, number)?.to_owned(),
                        _ => {}
                    }
                }
            }
            (2, Token::Bytes(bytes)) => raw = bytes.to_vec(),
            _ => {}
        }
    }
    Ok(Envelope { api_version, kind, raw })
}

fn message(
    schema: &Schema,
    id: TypeId,
    bytes: &[u8],
    members: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    let owner = schema.get(id);
    if depth == 0 {
        return Err(ProtobufError::TooDeep { name: owner.name });
    }
    let mut wire = Wire { name: owner.name, bytes, at: 0 };
    while let Some((number, token)) = wire.next()? {
        let Some(field) = owner.fields.iter().find(|it| it.number == number && number != 0) else {
            continue;
        };
        let cx = Context { schema, name: owner.name, number, depth: depth - 1 };
        match (&field.shape, field.is_inline) {
            (Shape::Object(inner), true) => {
                message(schema, *inner, token.bytes(&cx)?, members, depth - 1)?;
            }
            _ => add(&cx, field, token, members)?,
        }
    }
    Ok(())
}

/// Where a value stands, for errors.
struct Context<'a> {
    schema: &'a Schema,
    name: &'static str,
    number: u32,
    depth: usize,
}

fn add(
    cx: &Context<'_>,
    field: &Field,
    token: Token<'_>,
    members: &mut Map<String, Value>,
) -> Result<(), ProtobufError> {
    match &field.shape {
        Shape::List(inner) => {
            let list = members.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
            let Value::Array(list) = list else { return Ok(()) };
            let is_number = matches!(**inner, Shape::Int32 | Shape::Int64 | Shape::Bool);
            if let (true, Token::Bytes(packed)) = (is_number, &token) {
                let mut wire = Wire { name: cx.name, bytes: packed, at: 0 };
                while wire.at < packed.len() {
                    let token = Token::Varint(wire.varint()?);
                    list.push(value(cx, inner, token)?);
                }
            } else {
                list.push(value(cx, inner, token)?);
            }
        }
        Shape::Map(inner) => {
            let (mut key, mut entry) = (String::new(), None);
            let mut wire = Wire { name: cx.name, bytes: token.bytes(cx)?, at: 0 };
            while let Some((number, token)) = wire.next()? {
                match number {
                    1 => key = token.text(cx.name, number)?.to_owned(),
                    2 => entry = Some(value(cx, inner, token)?),
                    _ => {}
                }
            }
            let map = members.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(map) = map {
                map.insert(key, entry.unwrap_or(Value::Null));
            }
        }
        // Go's zero time and an empty `RawExtension` are messages, too, and mean what absence means.
        shape => match value(cx, shape, token)? {
            Value::Null => drop(members.remove(field.name)),
            value => drop(members.insert(field.name.to_owned(), value)),
        },
    }
    Ok(())
}

fn value(cx: &Context<'_>, shape: &Shape, token: Token<'_>) -> Result<Value, ProtobufError> {
    Ok(match shape {
        Shape::String => token.text(cx.name, cx.number)?.into(),
        Shape::Bool => (token.varint(cx)? != 0).into(),
        Shape::Int32 => (token.varint(cx)?.cast_signed() as i32).into(),
        Shape::Int64 => token.varint(cx)?.cast_signed().into(),
        Shape::Double => match token {
            Token::Fixed64(bits) => {
                Number::from_f64(f64::from_bits(bits)).map_or(Value::Null, Value::Number)
            }
            other => return Err(other.wrong(cx)),
        },
        Shape::Bytes => base64::engine::general_purpose::STANDARD.encode(token.bytes(cx)?).into(),
        Shape::Time | Shape::MicroTime => {
            let inner = Inner::of(cx, token)?;
            let nanos = inner.second.cast_signed().clamp(0, 999_999_999) as i32;
            let time = Timestamp::new(inner.first.cast_signed(), nanos);
            // Go's zero time is written as an empty message and means absent.
            match time {
                Ok(time) if inner.first != 0 || nanos != 0 => time.to_string().into(),
                _ => Value::Null,
            }
        }
        Shape::Duration => go_duration_text(Inner::of(cx, token)?.first.cast_signed()).into(),
        Shape::Quantity => {
            let text = Inner::of(cx, token)?.text;
            if text.is_empty() { "0".into() } else { text.into() }
        }
        Shape::IntOrString => {
            let inner = Inner::of(cx, token)?;
            if inner.first == 1 { inner.text.into() } else { (inner.second as i32).into() }
        }
        Shape::Raw | Shape::Json(_) | Shape::Fields => {
            let inner = Inner::of(cx, token)?;
            serde_json::from_str(&inner.text).unwrap_or(Value::Null)
        }
        Shape::Object(id) => {
            let mut members = Map::new();
            message(cx.schema, *id, token.bytes(cx)?, &mut members, cx.depth)?;
            Value::Object(members)
        }
        Shape::Wrapped(inner) | Shape::List(inner) => {
            let mut entries = Vec::new();
            let mut wire = Wire { name: cx.name, bytes: token.bytes(cx)?, at: 0 };
            while let Some((_, token)) = wire.next()? {
                entries.push(value(cx, inner, token)?);
            }
            Value::Array(entries)
        }
        Shape::Map(_) => return Err(token.wrong(cx)),
    })
}

/// The small messages behind times, quantities and the like: two numbers and a text.
#[derive(Default)]
struct Inner {
    first: u64,
    second: u64,
    text: String,
}

impl Inner {
    fn of(cx: &Context<'_>, token: Token<'_>) -> Result<Inner, ProtobufError> {
        let mut inner = Inner::default();
        let mut wire = Wire { name: cx.name, bytes: token.bytes(cx)?, at: 0 };
        while let Some((number, token)) = wire.next()? {
            match (number, token) {
                (1, Token::Varint(value)) => inner.first = value,
                (2, Token::Varint(value)) => inner.second = value,
                (_, token @ Token::Bytes(_)) => {
                    inner.text = token.text(cx.name, cx.number)?.to_owned();
                }
                _ => {}
            }
        }
        Ok(inner)
    }
}

/// One field of a message as it stands on the wire.
enum Token<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> Token<'a> {
    fn wire_type(&self) -> u8 {
        match self {
            Token::Varint(_) => 0,
            Token::Fixed64(_) => 1,
            Token::Bytes(_) => 2,
            Token::Fixed32 => 5,
        }
    }

    fn wrong(&self, cx: &Context<'_>) -> ProtobufError {
        ProtobufError::WireType { name: cx.name, number: cx.number, wire: self.wire_type() }
    }

    fn varint(&self, cx: &Context<'_>) -> Result<u64, ProtobufError> {
        if let Token::Varint(value) = self { Ok(*value) } else { Err(self.wrong(cx)) }
    }

    fn bytes(&self, cx: &Context<'_>) -> Result<&'a [u8], ProtobufError> {
        if let Token::Bytes(bytes) = self { Ok(bytes) } else { Err(self.wrong(cx)) }
    }

    fn text(&self, name: &'static str, number: u32) -> Result<&'a str, ProtobufError> {
        let Token::Bytes(bytes) = self else {
            return Err(ProtobufError::WireType { name, number, wire: self.wire_type() });
        };
        std::str::from_utf8(bytes).map_err(|_| ProtobufError::NotText { name, number })
    }
}

/// Reads tokens one after the other.
struct Wire<'a> {
    name: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Wire<'a> {
    fn next(&mut self) -> Result<Option<(u32, Token<'a>)>, ProtobufError> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = (key >> 3) as u32;
        let token = match key & 7 {
            0 => Token::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?;
                let bits = bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
                Token::Fixed64(bits)
            }
            2 => {
                let len = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                Token::Bytes(self.take(len)?)
            }
            5 => {
                self.take(4)?;
                Token::Fixed32
            }
            wire => {
                return Err(ProtobufError::WireType { name: self.name, number, wire: wire as u8 });
            }
        };
        Ok(Some((number, token)))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], ProtobufError> {
        let rest = &self.bytes[self.at..];
        let taken =
            rest.get(..len).ok_or(ProtobufError::Truncated { name: self.name, at: self.at })?;
        self.at += len;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes.get(self.at).copied();
            let byte = byte.ok_or(ProtobufError::Truncated { name: self.name, at: self.at })?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Truncated { name: self.name, at: self.at })
    }
}

/// As Go prints a duration: `1h0m0s`, `1.5s`, `200ms`, `0s`.
pub(super) fn go_duration_text(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    let fraction = |value: u64, unit: u64| {
        let text =
            format!("{}.{:0width$}", value / unit, value % unit, width = unit.ilog10() as usize);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let text = match ns {
        0 => "0s".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}µs", fraction(ns, 1_000)),
        1_000_000..1_000_000_000 => format!("{}ms", fraction(ns, 1_000_000)),
        _ => {
            let (minutes, rest) = (ns / 60_000_000_000, ns % 60_000_000_000);
            let seconds = fraction(rest, 1_000_000_000);
            match minutes {
                0 => format!("{seconds}s"),
                1..60 => format!("{minutes}m{seconds}s"),
                _ => format!("{}h{}m{seconds}s", minutes / 60, minutes % 60),
            }
        }
    };
    format!("{sign}{text}")
}
