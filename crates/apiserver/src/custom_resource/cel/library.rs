//! The functions of rules: CEL's standard library, its strings, lists, sets and optional extensions, and Kubernetes'
//! own.

mod lists;
mod network;
mod numbers;
mod strings;

use std::cmp::Ordering;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use loadmaster_stdx::duration::parse_duration_nanos;

use super::eval::{Failure, Outcome};
use super::value::Val;

pub use lists::sort_by_key;
pub use strings::{pattern, search};

/// A type by the name that expressions use for it.
pub fn type_named(name: &str) -> Option<&'static str> {
    const NAMES: [&str; 14] = [
        "bool",
        "bytes",
        "double",
        "int",
        "list",
        "map",
        "null_type",
        "optional_type",
        "string",
        "type",
        "uint",
        "google.protobuf.Duration",
        "google.protobuf.Timestamp",
        "net.IP",
    ];
    NAMES.into_iter().find(|it| *it == name)
}

/// A duration as Go writes it.
pub fn parse_duration(text: &str) -> Option<SignedDuration> {
    parse_duration_nanos(text).ok().map(SignedDuration::from_nanos)
}

/// How many steps a call is, roughly.
pub fn cost(name: &str, args: &[Val]) -> u64 {
    let sum = |cost: fn(&Val) -> u64| args.iter().map(cost).fold(0, u64::saturating_add);
    let product = |cost: fn(&Val) -> u64| args.iter().map(cost).fold(1, u64::saturating_mul);
    match name {
        "_==_" | "_!=_" | "@in" => sum(Val::deep_cost),
        "distinct" => product(Val::deep_cost).saturating_mul(sum(Val::cost)),
        _ if name.starts_with("sets.") => product(Val::deep_cost),
        _ if is_quadratic(name) => sum(Val::cost).saturating_add(product(Val::deep_cost)),
        _ => sum(Val::cost),
    }
}

/// Whether a function looks at each of one for each of the other.
fn is_quadratic(name: &str) -> bool {
    matches!(
        name,
        "matches"
            | "find"
            | "findAll"
            | "contains"
            | "indexOf"
            | "lastIndexOf"
            | "split"
            | "replace"
    )
}

/// Calls a function; of a member the target is the first argument.
pub fn call_function(name: &str, is_member: bool, args: &[Val]) -> Outcome {
    let found = operator(name, args)
        .or_else(|| conversion(name, args))
        .or_else(|| strings::call(name, args))
        .or_else(|| lists::call(name, args))
        .or_else(|| numbers::call(name, args))
        .or_else(|| network::call(name, is_member, args))
        .or_else(|| time(name, args))
        .or_else(|| optional(name, args));
    found.unwrap_or_else(|| Err(Failure::no_overload()))
}

/// None when there is no such operator or it does not take these.
fn operator(name: &str, args: &[Val]) -> Option<Outcome> {
    let ordered = |test: fn(Ordering) -> bool| match args {
        [a, b] => a.compare(b).map(|order| Ok(Val::Bool(test(order)))),
        _ => None,
    };
    match (name, args) {
        ("_==_", [a, b]) => Some(Ok(Val::Bool(a == b))),
        ("_!=_", [a, b]) => Some(Ok(Val::Bool(a != b))),
        ("_<_", _) => ordered(Ordering::is_lt),
        ("_<=_", _) => ordered(Ordering::is_le),
        ("_>_", _) => ordered(Ordering::is_gt),
        ("_>=_", _) => ordered(Ordering::is_ge),
        ("!_", [Val::Bool(it)]) => Some(Ok(Val::Bool(!it))),
        ("@in", [it, Val::List(list)]) => Some(Ok(Val::Bool(list.entries.contains(it)))),
        ("@in", [it, Val::Map(map)]) => {
            Some(Ok(Val::Bool(it.to_map_key().is_some_and(|key| map.contains_key(&key)))))
        }
        ("_[_]", [of, at]) => Some(index(of, at).and_then(|found| {
            found.ok_or_else(|| match (of, at) {
                (Val::List(_), _) => {
                    Failure::new(format!("index out of bounds: {}", strings::format_value(at)))
                }
                _ => Failure::new(format!("no such key: {}", strings::format_value(at))),
            })
        })),
        ("_[?_]", [of, at]) => Some(index(of, at).map(|found| Val::Optional(found.map(Arc::new)))),
        ("_+_", [Val::Text(a), Val::Text(b)]) => Some(Ok(Val::text(format!("{a}{b}")))),
        ("_+_", [Val::Bytes(a), Val::Bytes(b)]) => {
            Some(Ok(Val::Bytes([&**a, &**b].concat().into())))
        }
        ("_+_", [Val::List(a), Val::List(b)]) => Some(Ok(Val::List(Arc::new(a.joined(b))))),
        ("_+_" | "_-_", _) => moved(name, args).or_else(|| numbers::arithmetic(name, args)),
        ("_*_" | "_/_" | "_%_" | "-_", _) => numbers::arithmetic(name, args),
        _ => None,
    }
}

fn index(of: &Val, at: &Val) -> Result<Option<Val>, Failure> {
    match of {
        Val::Optional(None) => Ok(None),
        Val::Optional(Some(of)) => index(of, at),
        Val::List(list) => {
            let at = match at {
                Val::Int(at) => usize::try_from(*at).ok(),
                Val::Uint(at) => usize::try_from(*at).ok(),
                Val::Double(at) if at.fract() == 0.0 && *at >= 0.0 => Some(*at as usize),
                _ => return Err(Failure::no_overload()),
            };
            Ok(at.and_then(|at| list.entries.get(at).cloned()))
        }
        Val::Map(map) => Ok(at.to_map_key().and_then(|key| map.get(&key).cloned())),
        _ => Err(Failure::no_overload()),
    }
}

/// Arithmetic of times.
fn moved(name: &str, args: &[Val]) -> Option<Outcome> {
    let time = |it: Result<Timestamp, jiff::Error>| {
        it.map(Val::Time).map_err(|_| Failure::new("timestamp overflow"))
    };
    let span = |it: Option<SignedDuration>| {
        it.map(Val::Duration).ok_or_else(|| Failure::new("duration overflow"))
    };
    Some(match (name, args) {
        ("_+_", [Val::Time(at), Val::Duration(by)] | [Val::Duration(by), Val::Time(at)]) => {
            time(at.checked_add(*by))
        }
        ("_-_", [Val::Time(at), Val::Duration(by)]) => time(at.checked_sub(*by)),
        ("_-_", [Val::Time(a), Val::Time(b)]) => Ok(Val::Duration(a.duration_since(*b))),
        ("_+_", [Val::Duration(a), Val::Duration(b)]) => span(a.checked_add(*b)),
        ("_-_", [Val::Duration(a), Val::Duration(b)]) => span(a.checked_sub(*b)),
        _ => return None,
    })
}

fn conversion(name: &str, args: &[Val]) -> Option<Outcome> {
    let [value] = args else { return None };
    let bad = |ty: &str| Failure::new(format!("type conversion error from string to {ty}"));
    Some(match (name, value) {
        ("dyn", value) => Ok(value.clone()),
        ("type", value) => Ok(Val::Type(value.type_name())),
        ("size", Val::Text(text)) => Ok(Val::Int(text.chars().count() as i64)),
        ("size", Val::Bytes(bytes)) => Ok(Val::Int(bytes.len() as i64)),
        ("size", Val::List(list)) => Ok(Val::Int(list.entries.len() as i64)),
        ("size", Val::Map(map)) => Ok(Val::Int(map.len() as i64)),
        ("string", value) => match value {
            Val::Text(_)
            | Val::Bool(_)
            | Val::Int(_)
            | Val::Uint(_)
            | Val::Double(_)
            | Val::Time(_)
            | Val::Duration(_)
            | Val::Ip(_)
            | Val::Cidr(..) => Ok(Val::text(strings::format_value(value))),
            Val::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Val::text(text)),
                Err(_) => Err(Failure::new("invalid UTF-8 in bytes, cannot convert to string")),
            },
            _ => return None,
        },
        ("bytes", Val::Text(text)) => Ok(Val::Bytes(text.as_bytes().into())),
        ("bytes", Val::Bytes(_)) | ("bool", Val::Bool(_)) => Ok(value.clone()),
        ("bool", Val::Text(text)) => match &**text {
            "1" | "t" | "true" | "TRUE" | "True" | "T" => Ok(Val::Bool(true)),
            "0" | "f" | "false" | "FALSE" | "False" | "F" => Ok(Val::Bool(false)),
            _ => Err(bad("bool")),
        },
        ("duration", Val::Duration(_)) | ("timestamp", Val::Time(_)) => Ok(value.clone()),
        ("duration", Val::Text(text)) => {
            parse_duration(text).map(Val::Duration).ok_or_else(|| bad("google.protobuf.Duration"))
        }
        ("timestamp", Val::Text(text)) => {
            text.parse().map(Val::Time).map_err(|_| bad("google.protobuf.Timestamp"))
        }
        ("timestamp", Val::Int(seconds)) => Timestamp::from_second(*seconds)
            .map(Val::Time)
            .map_err(|_| Failure::new("timestamp overflow")),
        _ => return None,
    })
}

fn time(name: &str, args: &[Val]) -> Option<Outcome> {
    let n = match args {
        [Val::Duration(it)] => match name {
            "getHours" => it.as_secs() / 3_600,
            "getMinutes" => it.as_secs() / 60,
            "getSeconds" => it.as_secs(),
            "getMilliseconds" => i64::try_from(it.as_millis()).unwrap_or(i64::MAX),
            _ => return None,
        },
        [Val::Time(it)] => {
            let it = it.to_zoned(jiff::tz::TimeZone::UTC);
            match name {
                "getFullYear" => i64::from(it.year()),
                "getMonth" => i64::from(it.month()) - 1,
                "getDate" => i64::from(it.day()),
                "getDayOfMonth" => i64::from(it.day()) - 1,
                "getDayOfWeek" => i64::from(it.weekday().to_sunday_zero_offset()),
                "getDayOfYear" => i64::from(it.day_of_year()) - 1,
                "getHours" => i64::from(it.hour()),
                "getMinutes" => i64::from(it.minute()),
                "getSeconds" => i64::from(it.second()),
                "getMilliseconds" => i64::from(it.millisecond()),
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Ok(Val::Int(n)))
}

fn optional(name: &str, args: &[Val]) -> Option<Outcome> {
    Some(Ok(match (name, args) {
        ("optional.none", []) => Val::Optional(None),
        ("optional.of", [value]) => Val::some(value.clone()),
        ("optional.ofNonZeroValue", [value]) => match is_zero(value) {
            true => Val::Optional(None),
            false => Val::some(value.clone()),
        },
        ("hasValue", [Val::Optional(it)]) => Val::Bool(it.is_some()),
        ("value", [Val::Optional(Some(it))]) => (**it).clone(),
        ("value", [Val::Optional(None)]) => {
            return Some(Err(Failure::new("optional.none() dereference")));
        }
        ("or", [it @ Val::Optional(Some(_)), _]) => it.clone(),
        ("or", [Val::Optional(None), other @ Val::Optional(_)]) => other.clone(),
        ("orValue", [Val::Optional(Some(it)), _]) => (**it).clone(),
        ("orValue", [Val::Optional(None), other]) => other.clone(),
        _ => return None,
    }))
}

fn is_zero(value: &Val) -> bool {
    match value {
        Val::Null => true,
        Val::Bool(it) => !it,
        Val::Int(it) => *it == 0,
        Val::Uint(it) => *it == 0,
        Val::Double(it) => *it == 0.0,
        Val::Text(it) => it.is_empty(),
        Val::Bytes(it) => it.is_empty(),
        Val::List(it) => it.entries.is_empty(),
        Val::Map(it) => it.is_empty(),
        Val::Duration(it) => it.is_zero(),
        _ => false,
    }
}
