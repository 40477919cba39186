//! JSON values as structured-merge-diff compares and writes them: 1 and 1.0 are one number.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Whether two values are the same.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}

/// A total order: numbers, texts, truth values, lists, maps, null.
pub(super) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let orders = a.iter().zip(b).map(|(a, b)| compare(a, b));
            orders.into_iter().find(|it| it.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let orders = a
                .iter()
                .zip(b)
                .map(|((a_name, a), (b_name, b))| a_name.cmp(b_name).then_with(|| compare(a, b)));
            orders.into_iter().find(|it| it.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => {
            let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(0.0));
            a.partial_cmp(&b).unwrap_or(Ordering::Equal)
        }
    }
}

/// As people read it in a path.
pub(super) fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Number(number) => number_text(number),
        Value::Array(entries) => {
            let texts: Vec<String> = entries.iter().map(to_text).collect();
            format!("[{}]", texts.join(","))
        }
        Value::Object(members) => {
            members.iter().map(|(name, value)| format!("{name}={}", to_text(value))).collect()
        }
        Value::Bool(_) | Value::Null => value.to_string(),
    }
}

/// As Go prints it with `%v`.
pub(super) fn to_go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number_text(number),
        Value::Bool(flag) => flag.to_string(),
        Value::Array(entries) => {
            let texts: Vec<String> = entries.iter().map(to_go_text).collect();
            format!("[{}]", texts.join(" "))
        }
        Value::Object(members) => {
            let texts: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{name}:{}", to_go_text(value)))
                .collect();
            format!("map[{}]", texts.join(" "))
        }
    }
}

/// As Go prints it with `%#v`.
pub(super) fn to_go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(entries) => {
            let texts: Vec<String> = entries.iter().map(to_go_syntax).collect();
            format!("[]interface {{}}{{{}}}", texts.join(", "))
        }
        Value::Object(members) => {
            let texts: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{name:?}:{}", to_go_syntax(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", texts.join(", "))
        }
        Value::String(_) | Value::Number(_) | Value::Bool(_) => to_text(value),
    }
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        // Go writes a whole number without a point.
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => {
            format!("{float:.0}")
        }
        _ => number.to_string(),
    }
}

/// JSON as Go writes it: what HTML could take for markup is escaped.
pub(super) fn to_go_json(value: &Value) -> String {
    if let Value::Number(number) = value {
        return number_text(number);
    }
    let json = value.to_string();
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json;
    }
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}
