//! What decoders say, in one form: what was expected, then what was found.

use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter};

use super::YAML_DEPTH_MAX;
use super::locate::Found;

/// The text of a JSON error without its position.
pub(super) fn json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&position).unwrap_or(&text);
    match text {
        "trailing characters" => "expected the end, found more text".to_owned(),
        _ => expected_first(text),
    }
}

/// The text of a YAML error without its position; `text` is what was read.
pub(super) fn yaml(error: &Error, text: &str) -> String {
    match error {
        Error::InvalidScalar { ty, .. } => match scalar(error, text) {
            Some(found) => format!("expected {ty}, found {found:?}"),
            None => format!("expected {ty}"),
        },
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("duplicate key {key:?}"),
        Error::DuplicateMappingKey { .. } => "duplicate key".to_owned(),
        Error::NullIntoString { .. } => "expected a string, found null".to_owned(),
        Error::MultipleDocuments { .. } => "expected the end, found another document".to_owned(),
        Error::Unexpected { expected: "mapping start", .. } => "expected a map".to_owned(),
        Error::Unexpected { expected: "sequence start", .. } => "expected a list".to_owned(),
        Error::Unexpected { expected: "string scalar", .. } => "expected a string".to_owned(),
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            format!("expected at most {YAML_DEPTH_MAX} levels of maps and lists")
        }
        Error::Budget { .. } => "expected fewer or smaller anchors and aliases".to_owned(),
        error => {
            let text = DefaultMessageFormatter.format_message(error);
            // The formatter leaves control characters of the input in.
            expected_first(
                &text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>(),
            )
        }
    }
}

/// The scalar an error is about, as it is written, if it is short.
fn scalar<'a>(error: &Error, text: &'a str) -> Option<&'a str> {
    let span = error.location()?.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let end = start.checked_add(usize::try_from(span.byte_len()?).ok()?)?;
    text.get(start..end).filter(|found| found.len() <= 64)
}

/// Below wrappers that say where an alias or a snippet is.
pub(super) fn innermost(mut error: &Error) -> &Error {
    while let Error::AliasError { error: inner, .. } | Error::WithSnippet { error: inner, .. } =
        error
    {
        error = inner;
    }
    error
}

/// Whether a value does not suit, as opposed to a text that cannot be read.
pub(super) fn is_about_value(error: &Error) -> bool {
    matches!(
        error,
        Error::Message { .. }
            | Error::InvalidScalar { .. }
            | Error::SerdeInvalidType { .. }
            | Error::SerdeInvalidValue { .. }
            | Error::SerdeInvalidLength { .. }
            | Error::SerdeUnknownVariant { .. }
            | Error::SerdeUnknownField { .. }
            | Error::SerdeMissingField { .. }
    )
}

pub(super) fn is_duplicate(text: &str) -> bool {
    text.starts_with("duplicate ")
}

/// The key if the error is about the key, else the value.
pub(super) fn choose(text: &str, found: Found) -> (usize, usize) {
    match found.key {
        Some(key) if found.exact && text.starts_with("unknown field") => key,
        _ => found.value,
    }
}

/// `invalid type: A, expected B` becomes `expected B, found A`.
pub(super) fn expected_first(text: &str) -> String {
    let body = text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "));
    match body.and_then(|body| body.rsplit_once(", expected ")) {
        Some((found, expected)) => format!("expected {expected}, found {found}"),
        None => text.to_owned(),
    }
}
