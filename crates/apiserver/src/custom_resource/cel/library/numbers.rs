//! Numbers and quantities.

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster_api::Quantity;

use super::super::eval::{Failure, Outcome};
use super::super::value::Val;

/// `+`, `-`, `*`, `/`, `%` and the sign; none if these are no numbers of one type.
pub fn arithmetic(name: &str, args: &[Val]) -> Option<Outcome> {
    let zero = || match name {
        "_%_" => Failure::new("modulus by zero"),
        _ => Failure::new("division by zero"),
    };
    let int = |it: Option<i64>| it.map(Val::Int).ok_or_else(|| Failure::new("integer overflow"));
    let uint = |it: Option<u64>| {
        it.map(Val::Uint).ok_or_else(|| Failure::new("unsigned integer overflow"))
    };
    Some(match (name, args) {
        ("-_", [Val::Int(it)]) => int(it.checked_neg()),
        ("-_", [Val::Double(it)]) => Ok(Val::Double(-it)),
        ("_/_" | "_%_", [_, Val::Int(0)] | [_, Val::Uint(0)]) => Err(zero()),
        ("_+_", [Val::Int(a), Val::Int(b)]) => int(a.checked_add(*b)),
        ("_-_", [Val::Int(a), Val::Int(b)]) => int(a.checked_sub(*b)),
        ("_*_", [Val::Int(a), Val::Int(b)]) => int(a.checked_mul(*b)),
        ("_/_", [Val::Int(a), Val::Int(b)]) => int(a.checked_div(*b)),
        ("_%_", [Val::Int(a), Val::Int(b)]) => int(a.checked_rem(*b)),
        ("_+_", [Val::Uint(a), Val::Uint(b)]) => uint(a.checked_add(*b)),
        ("_-_", [Val::Uint(a), Val::Uint(b)]) => uint(a.checked_sub(*b)),
        ("_*_", [Val::Uint(a), Val::Uint(b)]) => uint(a.checked_mul(*b)),
        ("_/_", [Val::Uint(a), Val::Uint(b)]) => uint(a.checked_div(*b)),
        ("_%_", [Val::Uint(a), Val::Uint(b)]) => uint(a.checked_rem(*b)),
        ("_+_", [Val::Double(a), Val::Double(b)]) => Ok(Val::Double(a + b)),
        ("_-_", [Val::Double(a), Val::Double(b)]) => Ok(Val::Double(a - b)),
        ("_*_", [Val::Double(a), Val::Double(b)]) => Ok(Val::Double(a * b)),
        ("_/_", [Val::Double(a), Val::Double(b)]) => Ok(Val::Double(a / b)),
        _ => return None,
    })
}

pub fn call(name: &str, args: &[Val]) -> Option<Outcome> {
    match (name, args) {
        ("int" | "uint" | "double", [value]) => convert(name, value),
        ("quantity", [Val::Text(text)]) => Some(match Quantity::parse(text) {
            Ok(it) => Ok(made(it)),
            Err(_) => Err(Failure::new(
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            )),
        }),
        ("isQuantity", [Val::Text(text)]) => Some(Ok(Val::Bool(Quantity::parse(text).is_ok()))),
        (_, [Val::Quantity(it), rest @ ..]) => of_quantity(name, it, rest),
        _ => None,
    }
}

fn convert(name: &str, value: &Val) -> Option<Outcome> {
    let range = || Failure::new("range error converting to integer");
    let bad = |text: &str| {
        Failure::new(format!("type conversion error from 'string' to '{name}': {text:?}"))
    };
    Some(match (name, value) {
        ("int", Val::Int(_)) | ("uint", Val::Uint(_)) | ("double", Val::Double(_)) => {
            Ok(value.clone())
        }
        ("int", Val::Uint(it)) => i64::try_from(*it).map(Val::Int).map_err(|_| range()),
        ("int", Val::Double(it)) if it.abs() < 9.2e18 => Ok(Val::Int(*it as i64)),
        ("int", Val::Text(text)) => text.parse().map(Val::Int).map_err(|_| bad(text)),
        ("int", Val::Time(at)) => Ok(Val::Int(at.as_second())),
        ("uint", Val::Int(it)) => u64::try_from(*it).map(Val::Uint).map_err(|_| range()),
        ("uint", Val::Double(it)) if *it >= 0.0 && *it < 1.8e19 => Ok(Val::Uint(*it as u64)),
        ("uint", Val::Text(text)) => text.parse().map(Val::Uint).map_err(|_| bad(text)),
        ("double", Val::Int(it)) => Ok(Val::Double(*it as f64)),
        ("double", Val::Uint(it)) => Ok(Val::Double(*it as f64)),
        ("double", Val::Text(text)) => text.parse().map(Val::Double).map_err(|_| bad(text)),
        ("int" | "uint", Val::Double(_)) => Err(range()),
        _ => return None,
    })
}

fn made(quantity: Quantity) -> Val {
    Val::Quantity(Arc::new(quantity))
}

fn negative(quantity: &Quantity) -> Quantity {
    let text = quantity.to_string();
    let turned = match text.strip_prefix('-') {
        Some(text) => text.to_owned(),
        None => format!("-{text}"),
    };
    Quantity::parse(&turned).unwrap_or_default()
}

/// Whether it is a whole number that fits.
fn whole(quantity: &Quantity) -> Option<i64> {
    let value = quantity.value();
    (Quantity::from_value(value) == *quantity).then_some(value)
}

fn of_quantity(name: &str, it: &Quantity, rest: &[Val]) -> Option<Outcome> {
    let zero = Quantity::default();
    Some(Ok(match (name, rest) {
        ("isGreaterThan", [Val::Quantity(other)]) => Val::Bool(*it > **other),
        ("isLessThan", [Val::Quantity(other)]) => Val::Bool(*it < **other),
        ("compareTo", [Val::Quantity(other)]) => Val::Int(sign(it.cmp(other))),
        ("sign", []) => Val::Int(sign(it.cmp(&zero))),
        ("isInteger", []) => Val::Bool(whole(it).is_some()),
        ("asInteger", []) => {
            return Some(match whole(it) {
                Some(value) => Ok(Val::Int(value)),
                None => Err(Failure::new("cannot convert value to integer")),
            });
        }
        ("asApproximateFloat", []) => Val::Double(match whole(it) {
            Some(value) => value as f64,
            None => it.milli_value() as f64 / 1_000.0,
        }),
        ("add", [Val::Quantity(other)]) => made(*it + **other),
        ("add", [Val::Int(other)]) => made(*it + Quantity::from_value(*other)),
        ("sub", [Val::Quantity(other)]) => made(*it + negative(other)),
        ("sub", [Val::Int(other)]) => made(*it + negative(&Quantity::from_value(*other))),
        _ => return None,
    }))
}

fn sign(order: Ordering) -> i64 {
    order as i64
}
