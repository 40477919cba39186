//! Decodes a JSON value as Go's typed decoding and encoding would. Unknown fields are dropped and reported, nulls
//! mean absent, empty values are omitted or written as upstream's structs do, quantities and times get their
//! canonical form.

use base64::Engine as _;
use jiff::Timestamp;
use loadmaster_api::Quantity;
use serde_json::{Map as JsonMap, Number, Value};

use super::{Field, Schema, Shape, TypeId};

/// A decoded value.
#[derive(Debug)]
pub struct Decoded {
    /// In upstream's form.
    pub value: Value,
    /// Upstream's messages about unknown fields: `unknown field "spec.x"`.
    pub unknown: Vec<String>,
}

/// Why a value does not match its type; upstream's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

/// Decodes an object of a type. `apiVersion` and `kind` are kept when they are present.
///
/// # Errors
///
/// When a field holds something else than its type allows.
pub fn decode(schema: &Schema, id: TypeId, value: Value) -> Result<Decoded, DecodeError> {
    let mut reader = Reader { schema, unknown: Vec::new() };
    let mut at = At::default();
    let Value::Object(mut members) = value else {
        let short = short_name(schema.get(id).name);
        return Err(DecodeError(format!(
            "json: cannot unmarshal {} into Go value of type {short}",
            json_type_name(&value)
        )));
    };
    let mut out = JsonMap::new();
    for name in ["apiVersion", "kind"] {
        if let Some(Value::String(text)) = members.remove(name) {
            out.insert(name.to_owned(), Value::String(text));
        }
    }
    reader.members(id, members, &mut out, &mut at)?;
    Ok(Decoded { value: Value::Object(out), unknown: reader.unknown })
}

/// What Go writes for an unset field; none if it omits the field.
pub fn zero_value(schema: &Schema, field: &Field) -> Option<Value> {
    Reader { schema, unknown: Vec::new() }.absent(field)
}

struct Reader<'a> {
    schema: &'a Schema,
    unknown: Vec<String>,
}

/// Where the reader is: the path with indexes for unknown fields, and the same without for type errors.
#[derive(Default)]
struct At {
    path: String,
    indexed: String,
}

impl At {
    /// Steps into a member, runs, and steps back.
    fn within<T>(&mut self, name: &str, run: impl FnOnce(&mut At) -> T) -> T {
        let marks = (self.path.len(), self.indexed.len());
        for text in [&mut self.path, &mut self.indexed] {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(name);
        }
        let result = run(self);
        self.path.truncate(marks.0);
        self.indexed.truncate(marks.1);
        result
    }

    /// Steps to an entry of a map: Go names it in no type error.
    fn key<T>(&mut self, key: &str, run: impl FnOnce(&mut At) -> T) -> T {
        let mark = self.indexed.len();
        self.indexed.push('.');
        self.indexed.push_str(key);
        let result = run(self);
        self.indexed.truncate(mark);
        result
    }

    fn entry<T>(&mut self, index: usize, run: impl FnOnce(&mut At) -> T) -> T {
        let mark = self.indexed.len();
        self.indexed.push_str(&format!("[{index}]"));
        let result = run(self);
        self.indexed.truncate(mark);
        result
    }
}

/// The struct a value stands in, for error texts.
type Owner<'a> = &'a str;

impl Reader<'_> {
    fn members(
        &mut self,
        id: TypeId,
        mut from: JsonMap<String, Value>,
        into: &mut JsonMap<String, Value>,
        at: &mut At,
    ) -> Result<(), DecodeError> {
        self.known(id, &mut from, into, at)?;
        for name in from.keys() {
            at.within(name, |at| self.unknown.push(format!("unknown field {:?}", at.indexed)));
        }
        Ok(())
    }

    /// Moves the fields of a type, and leaves the rest.
    fn known(
        &mut self,
        id: TypeId,
        from: &mut JsonMap<String, Value>,
        into: &mut JsonMap<String, Value>,
        at: &mut At,
    ) -> Result<(), DecodeError> {
        let schema = self.schema;
        let owner = schema.get(id);
        for field in &owner.fields {
            if let (Shape::Object(inner), true) = (&field.shape, field.is_inline) {
                self.known(*inner, from, into, at)?;
                continue;
            }
            let given = from.remove(field.name).filter(|value| !value.is_null());
            let value = match given {
                None => self.absent(field),
                Some(value) => at.within(field.name, |at| {
                    let value = self.value(&field.shape, value, owner.name, at)?;
                    Ok(keep(field, value))
                })?,
            };
            if let Some(value) = value {
                into.insert(field.name.to_owned(), value);
            }
        }
        Ok(())
    }

    /// What Go writes for an unset field.
    fn absent(&mut self, field: &Field) -> Option<Value> {
        if field.is_pointer {
            return (!field.omits_empty).then_some(Value::Null);
        }
        let is_struct = matches!(
            field.shape,
            Shape::Object(_)
                | Shape::Time
                | Shape::MicroTime
                | Shape::Quantity
                | Shape::IntOrString
        );
        if field.omits_zero || (field.omits_empty && !is_struct) {
            return None;
        }
        Some(match &field.shape {
            Shape::Object(id) => {
                let mut out = JsonMap::new();
                let mut none = JsonMap::new();
                self.known(*id, &mut none, &mut out, &mut At::default()).ok()?;
                Value::Object(out)
            }
            Shape::String => Value::String(String::new()),
            Shape::Quantity => Value::String("0".to_owned()),
            Shape::Duration => Value::String("0s".to_owned()),
            Shape::Bool => Value::Bool(false),
            Shape::Int32 | Shape::Int64 | Shape::Double | Shape::IntOrString => 0.into(),
            _ => Value::Null,
        })
    }

    fn value(
        &mut self,
        shape: &Shape,
        value: Value,
        owner: Owner<'_>,
        at: &mut At,
    ) -> Result<Value, DecodeError> {
        let mismatch = |value: &Value, at: &At| Err(self.mismatch(shape, value, owner, at));
        match (shape, value) {
            (Shape::Object(id), Value::Object(members)) => {
                let mut out = JsonMap::new();
                self.members(*id, members, &mut out, at)?;
                Ok(Value::Object(out))
            }
            (Shape::List(inner) | Shape::Wrapped(inner), Value::Array(entries)) => {
                let mut out = Vec::with_capacity(entries.len());
                for (index, entry) in entries.into_iter().enumerate() {
                    let entry = if entry.is_null() { zero(inner) } else { entry };
                    out.push(at.entry(index, |at| self.value(inner, entry, owner, at))?);
                }
                Ok(Value::Array(out))
            }
            (Shape::Map(inner), Value::Object(members)) => {
                let mut out = JsonMap::new();
                for (key, entry) in members {
                    let entry = if entry.is_null() { zero(inner) } else { entry };
                    let entry = at.key(&key, |at| self.value(inner, entry, owner, at))?;
                    out.insert(key, entry);
                }
                Ok(Value::Object(out))
            }
            (Shape::String, value @ Value::String(_)) | (Shape::Bool, value @ Value::Bool(_)) => {
                Ok(value)
            }
            (Shape::Int32, Value::Number(n)) => match whole(&n) {
                Some(whole) if i32::try_from(whole).is_ok() => Ok(whole.into()),
                _ => mismatch(&Value::Number(n), at),
            },
            (Shape::Int64, Value::Number(n)) => match whole(&n) {
                Some(whole) => Ok(whole.into()),
                None => mismatch(&Value::Number(n), at),
            },
            (Shape::Double, value @ Value::Number(_)) => Ok(value),
            (Shape::Bytes, Value::String(text)) => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(&text);
                match decoded {
                    Ok(_) => Ok(Value::String(text)),
                    Err(_) => Err(DecodeError("illegal base64 data at input byte 0".to_owned())),
                }
            }
            (Shape::Quantity, Value::String(text)) => quantity(&text),
            (Shape::Quantity, Value::Number(n)) => quantity(&n.to_string()),
            (Shape::Time, Value::String(text)) => time(&text, 0),
            (Shape::MicroTime, Value::String(text)) => time(&text, 6),
            (Shape::Duration, value @ Value::String(_)) => Ok(value),
            (Shape::IntOrString, value @ Value::String(_)) => Ok(value),
            (Shape::IntOrString, Value::Number(n)) => match whole(&n) {
                Some(whole) if i32::try_from(whole).is_ok() => Ok(whole.into()),
                _ => mismatch(&Value::Number(n), at),
            },
            (Shape::Raw | Shape::Json(_), value) => Ok(value),
            (Shape::Fields, value @ Value::Object(_)) => Ok(value),
            (_, value) => mismatch(&value, at),
        }
    }

    fn mismatch(&self, shape: &Shape, value: &Value, owner: Owner<'_>, at: &At) -> DecodeError {
        let owner = owner.rsplit('.').next().unwrap_or(owner);
        DecodeError(format!(
            "json: cannot unmarshal {} into Go struct field {owner}.{} of type {}",
            describe_for(shape, value),
            at.path,
            go_type(self.schema, shape),
        ))
    }
}

/// Drops what Go leaves out as empty.
fn keep(field: &Field, value: Value) -> Option<Value> {
    if field.is_pointer || !(field.omits_empty || field.omits_zero) {
        return Some(value);
    }
    let is_empty = match &value {
        Value::String(text) => text.is_empty() && !matches!(field.shape, Shape::IntOrString),
        Value::Bool(flag) => !flag,
        Value::Number(n) => n.as_f64() == Some(0.0) && !matches!(field.shape, Shape::IntOrString),
        Value::Array(entries) => entries.is_empty(),
        Value::Object(members) => {
            members.is_empty()
                && (field.omits_zero || !matches!(field.shape, Shape::Object(_) | Shape::Raw))
        }
        Value::Null => true,
    };
    (!is_empty).then_some(value)
}

fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::String | Shape::Bytes => Value::String(String::new()),
        Shape::Bool => Value::Bool(false),
        Shape::Int32 | Shape::Int64 | Shape::Double | Shape::IntOrString => 0.into(),
        Shape::Quantity => Value::String("0".to_owned()),
        Shape::List(_) | Shape::Wrapped(_) => Value::Array(Vec::new()),
        Shape::Object(_) | Shape::Map(_) | Shape::Fields => Value::Object(JsonMap::new()),
        _ => Value::Null,
    }
}

fn whole(n: &Number) -> Option<i64> {
    n.as_i64()
}

fn quantity(text: &str) -> Result<Value, DecodeError> {
    match Quantity::parse(text) {
        Ok(quantity) => Ok(Value::String(quantity.to_string())),
        Err(_) => Err(DecodeError(QUANTITY.to_owned())),
    }
}

/// Upstream's message for an invalid quantity.
const QUANTITY: &str = "quantities must match the regular expression \
    '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// A time in UTC with so many digits behind the second.
fn time(text: &str, digits: u8) -> Result<Value, DecodeError> {
    match text.parse::<Timestamp>() {
        Ok(time) if digits == 0 => Ok(Value::String(format!("{:.0}", truncated(time)))),
        Ok(time) => Ok(Value::String(format!("{time:.6}"))),
        Err(_) => {
            let layout = if digits == 0 {
                "2006-01-02T15:04:05Z07:00"
            } else {
                "2006-01-02T15:04:05.000000Z07:00"
            };
            Err(DecodeError(format!(
                "parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\""
            )))
        }
    }
}

fn truncated(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The name of a JSON value's type in Go's errors.
pub fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn describe_for(shape: &Shape, value: &Value) -> String {
    match (shape, value) {
        (Shape::Int32 | Shape::Int64, Value::Number(n)) => format!("number {n}"),
        _ => json_type_name(value).to_owned(),
    }
}

/// `v1.PodSpec` of `core/v1.PodSpec`.
fn short_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn go_type(schema: &Schema, shape: &Shape) -> String {
    match shape {
        Shape::String => "string".to_owned(),
        Shape::Bool => "bool".to_owned(),
        Shape::Int32 => "int32".to_owned(),
        Shape::Int64 => "int64".to_owned(),
        Shape::Double => "float64".to_owned(),
        Shape::Bytes => "[]uint8".to_owned(),
        Shape::Time => "v1.Time".to_owned(),
        Shape::MicroTime => "v1.MicroTime".to_owned(),
        Shape::Duration => "v1.Duration".to_owned(),
        Shape::Quantity => "resource.Quantity".to_owned(),
        Shape::IntOrString => "intstr.IntOrString".to_owned(),
        Shape::Raw => "runtime.RawExtension".to_owned(),
        Shape::Fields => "v1.FieldsV1".to_owned(),
        Shape::Json(name) => format!("v1.{name}"),
        Shape::Object(id) => short_name(schema.get(*id).name).to_owned(),
        Shape::List(inner) | Shape::Wrapped(inner) => format!("[]{}", go_type(schema, inner)),
        Shape::Map(inner) => format!("map[string]{}", go_type(schema, inner)),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::super::schema;
    use super::*;

    #[track_caller]
    fn check(name: &str, value: Value, want: &Expect) {
        let id = schema().find(name).expect("a type");
        let got = match decode(schema(), id, value) {
            Ok(reading) if reading.unknown.is_empty() => reading.value.to_string(),
            Ok(reading) => format!("{} {}", reading.value, reading.unknown.join(", ")),
            Err(problem) => problem.to_string(),
        };
        want.assert_eq(&got);
    }

    #[test]
    fn values_are_normalized_as_in_go() {
        check(
            "core/v1.Container",
            json!({"name": "a", "image": "", "command": [], "livenessProbe": null, "stdin": false,
                "resources": {"requests": {"cpu": 0.5, "memory": "1024Mi"}}}),
            &expect![[r#"{"name":"a","resources":{"requests":{"cpu":"500m","memory":"1Gi"}}}"#]],
        );
        check(
            "core/v1.Pod",
            json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-02T05:04:05.7+02:00"}}),
            &expect![[
                r#"{"metadata":{"creationTimestamp":"2026-01-02T03:04:05Z","name":"a"},"spec":{"containers":null},"status":{}}"#
            ]],
        );
        check(
            "core/v1.Volume",
            json!({"name": "v", "emptyDir": {}}),
            &expect![[r#"{"emptyDir":{},"name":"v"}"#]],
        );
        check(
            "core/v1.Event",
            json!({"metadata": {"name": "e"}, "eventTime": "2026-01-02T03:04:05Z"}),
            &expect![[
                r#"{"eventTime":"2026-01-02T03:04:05.000000Z","firstTimestamp":null,"involvedObject":{},"lastTimestamp":null,"metadata":{"name":"e"},"reportingComponent":"","reportingInstance":"","source":{}}"#
            ]],
        );
    }

    #[test]
    fn type_mismatches_name_the_field() {
        check(
            "core/v1.Pod",
            json!({"spec": {"containers": [{"name": "a", "imag": "b"}], "x": 1}}),
            &expect![[
                r#"{"metadata":{},"spec":{"containers":[{"name":"a","resources":{}}]},"status":{}} unknown field "spec.containers[0].imag", unknown field "spec.x""#
            ]],
        );
        check(
            "core/v1.Pod",
            json!({"spec": {"containers": "a"}}),
            &expect![
                "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container"
            ],
        );
        check(
            "apps/v1.Deployment",
            json!({"spec": {"replicas": "3"}}),
            &expect![
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"
            ],
        );
        check(
            "core/v1.Node",
            json!({"status": {"capacity": {"cpu": "x"}}}),
            &expect![
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            ],
        );
    }
}
