//! What upstream accepts as the requirement of a selector, and its words when it does not.

use super::{Requirement, SelectorError};
use crate::interned_str::Str;

/// Operators of a node selector's label expressions; the text upstream lists them with.
const OPERATORS: &str = r#""In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt""#;

const KEY_MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must \
    start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
    regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

const VALUE_MESSAGE: &str = "a valid label must be an empty string or consist of alphanumeric \
    characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
    'MyValue',  or 'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

const SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case \
    alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character \
    (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

const NAME_LEN_MAX: usize = 63;
const SUBDOMAIN_LEN_MAX: usize = 253;

/// Checks one requirement; every complaint, the key's first.
pub(super) fn check(requirement: &Requirement, path: &str) -> Result<(), Vec<String>> {
    let Requirement { key, operator, values } = requirement;
    let n_values_wrong =
        match &**operator {
            "In" | "NotIn" => values
                .is_empty()
                .then_some("for 'in', 'notin' operators, values set can't be empty"),
            "Exists" | "DoesNotExist" => (!values.is_empty())
                .then_some("values set must be empty for exists and does not exist"),
            "Gt" | "Lt" => (values.len() != 1)
                .then_some("for 'Gt', 'Lt' operators, exactly one value is required"),
            _ => return Err(vec![not_supported(path, operator, OPERATORS)]),
        };
    let mut messages = Vec::new();
    messages.extend(invalid_key(key, path));
    if let Some(detail) = n_values_wrong {
        messages.push(invalid_values(path, values, detail));
    }
    if matches!(&**operator, "Gt" | "Lt") {
        for (at, value) in values.iter().enumerate() {
            if value.parse::<i64>().is_err() {
                let field = child(path, &format!("values[{at}]"));
                let value = quote(value);
                messages.push(format!(
                    "{field}: Invalid value: {value}: for 'Gt', 'Lt' operators, the value must be an integer"
                ));
            }
        }
    }
    messages.extend(invalid_label_values(key, values, path));
    if messages.is_empty() { Ok(()) } else { Err(messages) }
}

/// Checks the key and the values only.
pub(super) fn check_key_and_values(
    key: &str,
    values: &[Str],
    path: &str,
) -> Result<(), SelectorError> {
    let mut messages = Vec::new();
    messages.extend(invalid_key(key, path));
    messages.extend(invalid_label_values(key, values, path));
    if messages.is_empty() { Ok(()) } else { Err(SelectorError::join(&messages)) }
}

/// The complaint about an operator; `supported` lists the quoted alternatives.
pub(super) fn not_supported(path: &str, operator: &str, supported: &str) -> String {
    let field = child(path, "operator");
    let operator = json(&operator);
    format!("{field}: Unsupported value: {operator}: supported values: {supported}")
}

/// The complaint about a whole list of values.
pub(super) fn invalid_values(path: &str, values: &[Str], detail: &str) -> String {
    let field = child(path, "values");
    // Absent and empty lists are the same here; upstream's are mostly absent.
    let values = if values.is_empty() { "null".to_owned() } else { json(&values) };
    format!("{field}: Invalid value: {values}: {detail}")
}

fn invalid_key(key: &str, path: &str) -> Option<String> {
    let complaints = label_key_errors(key);
    let field = child(path, "key");
    let report = || format!("{field}: Invalid value: {}: {}", quote(key), complaints.join("; "));
    (!complaints.is_empty()).then(report)
}

fn invalid_label_values(key: &str, values: &[Str], path: &str) -> Vec<String> {
    let mut messages = Vec::new();
    for (at, value) in values.iter().enumerate() {
        let complaints = label_value_errors(value);
        if !complaints.is_empty() {
            let field = child(path, &format!("values[{at}][{key}]"));
            let value = quote(value);
            messages.push(format!("{field}: Invalid value: {value}: {}", complaints.join("; ")));
        }
    }
    messages
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// What is wrong with a text as the key of a label, in upstream's words; nothing if it can be one.
pub fn label_key_errors(key: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let name = match key.split_once('/') {
        None => key,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {KEY_MESSAGE} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
        Some(("", name)) => {
            complaints.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            if prefix.len() > SUBDOMAIN_LEN_MAX {
                complaints.push(too_long("prefix part ", SUBDOMAIN_LEN_MAX));
            }
            if !is_subdomain(prefix) {
                complaints.push(format!("prefix part {SUBDOMAIN_MESSAGE}"));
            }
            name
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".to_owned());
    } else if name.len() > NAME_LEN_MAX {
        complaints.push(too_long("name part ", NAME_LEN_MAX));
    }
    if !is_name(name) {
        complaints.push(format!("name part {KEY_MESSAGE}"));
    }
    complaints
}

/// What is wrong with a text as the value of a label, in upstream's words; nothing if it can be one.
pub fn label_value_errors(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > NAME_LEN_MAX {
        complaints.push(too_long("", NAME_LEN_MAX));
    }
    if !value.is_empty() && !is_name(value) {
        complaints.push(VALUE_MESSAGE.to_owned());
    }
    complaints
}

fn too_long(part: &str, len_max: usize) -> String {
    format!("{part}must be no more than {len_max} bytes")
}

fn is_name(text: &str) -> bool {
    let [first, .., last] = text.as_bytes() else {
        return text.len() == 1 && text.as_bytes()[0].is_ascii_alphanumeric();
    };
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() && text.bytes().all(inner)
}

fn is_subdomain(text: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.split('.').all(|label| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(|byte| edge(*byte))
            && bytes.last().is_some_and(|byte| edge(*byte))
            && bytes.iter().all(|byte| edge(*byte) || *byte == b'-')
    })
}

/// A text in quotes, escaped as Go's `%q` does. (Unprintable characters beyond ASCII are left alone.)
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            control if control.is_ascii_control() => {
                quoted.push_str(&format!("\\x{:02x}", u32::from(control)));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// A value as Go's encoder writes it: fit for HTML.
fn json(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
