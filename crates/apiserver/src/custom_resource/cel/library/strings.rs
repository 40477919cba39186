//! Functions of strings. Indexes are in characters.

use regex::Regex;

use super::super::eval::{Failure, Outcome};
use super::super::value::{CelMapKey, Val};

pub fn call(name: &str, args: &[Val]) -> Option<Outcome> {
    let (text, rest) = match args {
        [Val::Text(text), rest @ ..] => (&**text, rest),
        [Val::List(list), rest @ ..] if name == "join" => {
            let separator = match rest {
                [] => "",
                [Val::Text(it)] => it,
                _ => return None,
            };
            let mut parts = Vec::with_capacity(list.entries.len());
            for entry in &list.entries {
                let Val::Text(part) = entry else { return Some(Err(Failure::no_overload())) };
                parts.push(&**part);
            }
            return Some(Ok(Val::text(parts.join(separator))));
        }
        _ => return None,
    };
    let flag = |it: bool| Some(Ok(Val::Bool(it)));
    let made = |it: String| Some(Ok(Val::text(it)));
    match (name, rest) {
        ("contains", [Val::Text(part)]) => flag(text.contains(&**part)),
        ("startsWith", [Val::Text(part)]) => flag(text.starts_with(&**part)),
        ("endsWith", [Val::Text(part)]) => flag(text.ends_with(&**part)),
        ("lowerAscii", []) => made(text.to_ascii_lowercase()),
        ("upperAscii", []) => made(text.to_ascii_uppercase()),
        ("trim", []) => made(text.trim().to_owned()),
        ("reverse", []) => made(text.chars().rev().collect()),
        ("strings.quote", []) => made(format!("{text:?}")),
        ("charAt", [Val::Int(at)]) => Some(char_at(text, *at)),
        ("indexOf", [Val::Text(part)]) => Some(Ok(Val::Int(index_of(text, part, 0)))),
        ("indexOf", [Val::Text(part), Val::Int(from)]) => Some(match bounded(text, *from) {
            Some(from) => Ok(Val::Int(index_of(text, part, from))),
            None => Err(out_of_range(*from)),
        }),
        ("lastIndexOf", [Val::Text(part)]) => {
            Some(Ok(Val::Int(last_index_of(text, part, usize::MAX))))
        }
        ("lastIndexOf", [Val::Text(part), Val::Int(to)]) => Some(match bounded(text, *to) {
            Some(to) => Ok(Val::Int(last_index_of(text, part, to))),
            None => Err(out_of_range(*to)),
        }),
        ("replace", [Val::Text(from), Val::Text(to)]) => made(text.replace(&**from, to)),
        ("replace", [Val::Text(from), Val::Text(to), Val::Int(n)]) => {
            made(match usize::try_from(*n) {
                Ok(n) => text.replacen(&**from, to, n),
                Err(_) => text.replace(&**from, to),
            })
        }
        ("split", [Val::Text(by)]) => Some(Ok(split(text, by, -1))),
        ("split", [Val::Text(by), Val::Int(n)]) => Some(Ok(split(text, by, *n))),
        ("substring", [Val::Int(from)]) => {
            Some(substring(text, *from, text.chars().count() as i64))
        }
        ("substring", [Val::Int(from), Val::Int(to)]) => Some(substring(text, *from, *to)),
        ("format", [Val::List(args)]) => Some(format_text(text, &args.entries)),
        _ => None,
    }
}

/// A regular expression.
pub fn pattern(text: &str) -> Result<Regex, Failure> {
    // Bounds what one expression may take to compile.
    let made = regex::RegexBuilder::new(text).size_limit(1 << 20).build();
    made.map_err(|error| Failure::new(format!("error parsing regexp: {error}")))
}

/// `matches`, `find` and `findAll`, which looks for no more than a number of places.
pub fn search(name: &str, text: &str, pattern: &Regex, rest: &[Val]) -> Outcome {
    let limit = match rest {
        [] => usize::MAX,
        [Val::Int(limit)] if name == "findAll" => usize::try_from(*limit).unwrap_or(usize::MAX),
        _ => return Err(Failure::no_overload()),
    };
    Ok(match name {
        "matches" => Val::Bool(pattern.is_match(text)),
        "find" => Val::text(pattern.find(text).map_or("", |found| found.as_str())),
        _ => {
            let found = pattern.find_iter(text).take(limit);
            Val::list(found.map(|it| Val::text(it.as_str())).collect())
        }
    })
}

fn bounded(text: &str, at: i64) -> Option<usize> {
    usize::try_from(at).ok().filter(|at| *at <= text.chars().count())
}

fn out_of_range(at: i64) -> Failure {
    Failure::new(format!("index out of range: {at}"))
}

fn char_at(text: &str, at: i64) -> Outcome {
    let at = bounded(text, at).ok_or_else(|| out_of_range(at))?;
    Ok(Val::text(text.chars().nth(at).map(String::from).unwrap_or_default()))
}

fn index_of(text: &str, part: &str, from: usize) -> i64 {
    let (text, part): (Vec<char>, Vec<char>) = (text.chars().collect(), part.chars().collect());
    let found = (from..=text.len()).find(|at| text[*at..].starts_with(&part));
    found.map_or(-1, |at| at as i64)
}

fn last_index_of(text: &str, part: &str, to: usize) -> i64 {
    let (text, part): (Vec<char>, Vec<char>) = (text.chars().collect(), part.chars().collect());
    let found = (0..=text.len().min(to)).rev().find(|at| text[*at..].starts_with(&part));
    found.map_or(-1, |at| at as i64)
}

fn split(text: &str, by: &str, n: i64) -> Val {
    let parts: Vec<String> = match (by.is_empty(), usize::try_from(n)) {
        (_, Ok(0)) => Vec::new(),
        (true, Ok(n)) => {
            let chars: Vec<char> = text.chars().collect();
            let (single, rest) = chars.split_at(chars.len().min(n - 1));
            let rest: String = rest.iter().collect();
            let single = single.iter().map(char::to_string);
            single.chain(Some(rest).filter(|it| !it.is_empty())).collect()
        }
        (true, Err(_)) => text.chars().map(String::from).collect(),
        (false, Ok(n)) => text.splitn(n, by).map(str::to_owned).collect(),
        (false, Err(_)) => text.split(by).map(str::to_owned).collect(),
    };
    Val::list(parts.into_iter().map(Val::text).collect())
}

fn substring(text: &str, from: i64, to: i64) -> Outcome {
    let n = text.chars().count() as i64;
    if !(0..=n).contains(&from) {
        return Err(out_of_range(from));
    }
    if !(0..=n).contains(&to) {
        return Err(out_of_range(to));
    }
    if from > to {
        return Err(Failure::new(format!("invalid substring range. start: {from}, end: {to}")));
    }
    Ok(Val::text(text.chars().skip(from as usize).take((to - from) as usize).collect::<String>()))
}

/// A value as `string()` and `%s` write it.
pub fn format_value(value: &Val) -> String {
    let list = |entries: Vec<String>, open: &str, close: &str| {
        format!("{open}{}{close}", entries.join(", "))
    };
    match value {
        Val::Null => "null".to_owned(),
        Val::Bool(it) => it.to_string(),
        Val::Int(it) => it.to_string(),
        Val::Uint(it) => it.to_string(),
        Val::Double(it) => it.to_string(),
        Val::Text(it) | Val::Url(it) => it.to_string(),
        Val::Bytes(it) => String::from_utf8_lossy(it).into_owned(),
        Val::List(it) => list(it.entries.iter().map(format_value).collect(), "[", "]"),
        Val::Map(it) => {
            let pair = |(key, value): (&CelMapKey, &Val)| {
                format!("{}: {}", format_value(&key.to_value()), format_value(value))
            };
            list(it.iter().map(pair).collect(), "{", "}")
        }
        Val::Time(it) => it.to_string(),
        Val::Duration(it) => {
            let nanos = it.subsec_nanos().unsigned_abs();
            let fraction = format!("{nanos:09}");
            let fraction = fraction.trim_end_matches('0');
            let dot = if fraction.is_empty() { "" } else { "." };
            let sign = if it.is_negative() { "-" } else { "" };
            format!("{sign}{}{dot}{fraction}s", it.as_secs().unsigned_abs())
        }
        Val::Optional(None) => "optional.none()".to_owned(),
        Val::Optional(Some(it)) => format!("optional({})", format_value(it)),
        Val::Quantity(it) => it.to_string(),
        Val::Ip(it) => it.to_string(),
        Val::Cidr(it, n) => format!("{it}/{n}"),
        Val::Type(it) => (*it).to_owned(),
    }
}

/// `%s`, `%d`, `%f`, `%e`, `%b`, `%x`, `%X`, `%o`, with a precision.
fn format_text(text: &str, args: &[Val]) -> Outcome {
    let mut out = String::new();
    let mut args = args.iter().enumerate();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut spec = chars.next();
        if spec == Some('%') {
            out.push('%');
            continue;
        }
        let mut precision = None;
        if spec == Some('.') {
            let mut digits = String::new();
            spec = chars.next();
            while let Some(digit) = spec.filter(char::is_ascii_digit) {
                digits.push(digit);
                spec = chars.next();
            }
            precision = digits.parse::<usize>().ok().map(|it| it.min(100));
        }
        let Some((at, arg)) = args.next() else {
            return Err(Failure::new(format!("index {} out of range", args.len())));
        };
        let bad = || {
            let name = arg.type_name();
            let verb = spec.unwrap_or(' ');
            Failure::new(format!(
                "error during formatting: argument {at} of type {name} does not fit %{verb}"
            ))
        };
        out.push_str(&clause(spec, precision, arg).ok_or_else(bad)?);
    }
    match args.next() {
        Some(_) => Err(Failure::new("too many arguments supplied to string.format")),
        None => Ok(Val::text(out)),
    }
}

fn clause(spec: Option<char>, precision: Option<usize>, arg: &Val) -> Option<String> {
    let precision = precision.unwrap_or(6);
    Some(match (spec?, arg) {
        ('s', arg) => format_value(arg),
        ('d', Val::Int(_) | Val::Uint(_)) => format_value(arg),
        ('d', Val::Double(it)) if !it.is_finite() => format_value(arg),
        ('f', Val::Double(it)) => format!("{it:.precision$}"),
        ('f', Val::Int(it)) => format!("{:.precision$}", *it as f64),
        ('e', Val::Double(it)) => format!("{it:.precision$e}"),
        ('b', Val::Int(it)) if *it < 0 => format!("-{:b}", it.unsigned_abs()),
        ('b', Val::Int(it)) => format!("{it:b}"),
        ('b', Val::Uint(it)) => format!("{it:b}"),
        ('b', Val::Bool(it)) => u8::from(*it).to_string(),
        ('o', Val::Int(it)) if *it < 0 => format!("-{:o}", it.unsigned_abs()),
        ('o', Val::Int(it)) => format!("{it:o}"),
        ('o', Val::Uint(it)) => format!("{it:o}"),
        ('x', Val::Int(it)) if *it < 0 => format!("-{:x}", it.unsigned_abs()),
        ('x', Val::Int(it)) => format!("{it:x}"),
        ('x', Val::Uint(it)) => format!("{it:x}"),
        ('x', Val::Text(it)) => it.bytes().map(|byte| format!("{byte:02x}")).collect(),
        ('X', Val::Int(it)) if *it < 0 => format!("-{:X}", it.unsigned_abs()),
        ('X', Val::Int(it)) => format!("{it:X}"),
        ('X', Val::Uint(it)) => format!("{it:X}"),
        ('X', Val::Text(it)) => it.bytes().map(|byte| format!("{byte:02X}")).collect(),
        _ => return None,
    })
}
