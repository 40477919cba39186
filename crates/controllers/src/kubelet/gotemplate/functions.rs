//! What Go, sprig and KWOK give to every template.

use std::cmp::Ordering;

use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Map, Value};

use super::TemplateFunctions;

/// The functions of every template. `Quote` and `YAML` are KWOK's, `add` to `list` sprig's, the others Go's.
pub const TEMPLATE_FUNCTIONS: &[&str] = &[
    "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "len", "index", "print", "printf",
    "add", "add1", "sub", "default", "dict", "list", "Quote", "YAML",
];

pub(super) fn call(
    name: &str,
    arguments: &[Value],
    more: &dyn TemplateFunctions,
) -> Result<Value, String> {
    let first = arguments.first().unwrap_or(&Value::Null);
    let second = arguments.get(1).unwrap_or(&Value::Null);
    let n_min = match name {
        "and" | "or" | "not" | "len" | "index" | "printf" | "add1" | "Quote" | "YAML" => 1,
        "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "sub" | "default" => 2,
        _ => 0,
    };
    if arguments.len() < n_min {
        return Err(format!("{name}: expected {n_min} arguments, found {}", arguments.len()));
    }
    Ok(match name {
        "and" => arguments
            .iter()
            .find(|it| !is_true(it))
            .or(arguments.last())
            .cloned()
            .unwrap_or_default(),
        "or" => arguments
            .iter()
            .find(|it| is_true(it))
            .or(arguments.last())
            .cloned()
            .unwrap_or_default(),
        "not" => (!is_true(first)).into(),
        "eq" => arguments[1..].iter().any(|it| is_equal(first, it)).into(),
        "ne" => (!is_equal(first, second)).into(),
        "lt" => compare(name, first, second)?.is_lt().into(),
        "le" => compare(name, first, second)?.is_le().into(),
        "gt" => compare(name, first, second)?.is_gt().into(),
        "ge" => compare(name, first, second)?.is_ge().into(),
        "len" => len(first)?.into(),
        "index" => arguments[1..].iter().try_fold(first, index)?.clone(),
        "print" => arguments.iter().map(format_value).collect::<String>().into(),
        "printf" => printf(first, &arguments[1..])?.into(),
        "add" => integers(name, arguments)?.into_iter().fold(0, i64::wrapping_add).into(),
        "add1" => integers(name, &arguments[..1])?.into_iter().fold(1, i64::wrapping_add).into(),
        "sub" => {
            let numbers = integers(name, arguments)?;
            numbers[1..].iter().fold(numbers[0], |all, it| all.wrapping_sub(*it)).into()
        }
        "default" => if is_true(second) { second } else { first }.clone(),
        "list" => arguments.to_vec().into(),
        "dict" => {
            let pairs = arguments.chunks(2);
            pairs
                .map(|pair| (format_value(&pair[0]), pair.get(1).cloned().unwrap_or_default()))
                .collect_by_insertion::<Map<_, _>>()
                .into()
        }
        "Quote" => quote(first).into(),
        "YAML" => yaml(first, second).into(),
        other => more.call(other, arguments)?,
    })
}

/// As Go's templates see it.
pub(super) fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// As `%v`; lists and maps in JSON, which YAML reads.
pub(super) fn format_value(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn is_equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn compare(name: &str, a: &Value, b: &Value) -> Result<Ordering, String> {
    let numbers = a.as_f64().zip(b.as_f64()).and_then(|(a, b)| a.partial_cmp(&b));
    let texts = a.as_str().zip(b.as_str()).map(|(a, b)| a.cmp(b));
    numbers.or(texts).ok_or_else(|| {
        format!("{name}: cannot compare {} and {}", format_value(a), format_value(b))
    })
}

fn len(value: &Value) -> Result<usize, String> {
    match value {
        Value::Null => Ok(0),
        Value::String(text) => Ok(text.len()),
        Value::Array(items) => Ok(items.len()),
        Value::Object(map) => Ok(map.len()),
        other => Err(format!("len of {}", format_value(other))),
    }
}

fn index<'a>(of: &'a Value, at: &Value) -> Result<&'a Value, String> {
    static NOTHING: Value = Value::Null;
    match (of, at) {
        // KWOK's stages index statuses that are not there yet.
        (Value::Null, _) => Ok(&NOTHING),
        (Value::Array(items), Value::Number(n)) => {
            let n = n.as_u64().and_then(|n| usize::try_from(n).ok());
            Ok(n.and_then(|n| items.get(n)).unwrap_or(&NOTHING))
        }
        (Value::Object(map), Value::String(key)) => Ok(map.get(key).unwrap_or(&NOTHING)),
        _ => Err(format!("index: cannot index {} with {}", format_value(of), format_value(at))),
    }
}

fn integers(name: &str, arguments: &[Value]) -> Result<Vec<i64>, String> {
    let read = |it: &Value| match it {
        Value::Null => Some(0),
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    };
    let wrong = |it: &Value| format!("{name}: {} is no integer", format_value(it));
    arguments.iter().map(|it| read(it).ok_or_else(|| wrong(it))).collect()
}

fn printf(format: &Value, arguments: &[Value]) -> Result<String, String> {
    let Value::String(format) = format else { return Err("printf: expected a format".to_owned()) };
    let mut arguments = arguments.iter();
    let (mut out, mut chars) = (String::new(), format.chars());
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let verb = chars.next().ok_or("printf: a format that ends with %")?;
        if verb == '%' {
            out.push('%');
            continue;
        }
        let argument =
            arguments.next().ok_or_else(|| format!("printf: no argument for %{verb}"))?;
        match verb {
            'v' | 's' | 'd' => out.push_str(&format_value(argument)),
            'q' => out.push_str(&quote(argument)),
            other => return Err(format!("printf: %{other} is not supported")),
        }
    }
    Ok(out)
}

/// In double quotes, whatever it is.
fn quote(value: &Value) -> String {
    let json = value.to_string();
    if json.starts_with('"') { json } else { Value::String(json).to_string() }
}

/// On one line, so many steps to the right.
fn yaml(value: &Value, steps: &Value) -> String {
    let steps = steps.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0).min(64);
    format!("{}{value}", "  ".repeat(steps))
}
