//! Label and field selectors as requests write them.

use loadmaster_api::{LabelSelector, Labels, Selector};
use serde_json::Value;

use crate::object::{has_selectable_fields, list_entries, selectable_field};
use crate::request::Query;
use crate::schema::Kind;
use crate::status::ApiError;
use crate::store::{FieldRequirement, Filter};

/// The filter of `labelSelector` and `fieldSelector`.
///
/// # Errors
///
/// When one of them cannot be parsed or names a field that is not selectable.
pub fn parse_filter(kind: &Kind, query: &Query) -> Result<Filter, ApiError> {
    let labels = match query.get("labelSelector") {
        Some(text) => parse_label_selector(text)?,
        None => Selector::everything(),
    };
    let fields = match query.get("fieldSelector") {
        Some(text) => fields(kind, text)?,
        None => Vec::new(),
    };
    Ok(Filter { labels, fields })
}

/// Whether a selector within an object, such as a disruption budget's, selects these labels. One that is absent or
/// cannot be compiled selects nothing.
pub fn label_selector_matches(selector: &Value, labels: &Labels) -> bool {
    let selector: Option<LabelSelector> = serde_json::from_value(selector.clone()).ok();
    Selector::new(selector.as_ref()).is_ok_and(|it| it.matches(labels))
}

fn fields(kind: &Kind, text: &str) -> Result<Vec<FieldRequirement>, ApiError> {
    let mut tests = Vec::new();
    for term in text.split(',').filter(|term| !term.is_empty()) {
        let (name, equals, value) = split_term(term).ok_or_else(|| {
            ApiError::bad_request(format!(
                "unable to find a valid field selector in {text:?}: invalid selector: {text:?}; can't understand {term:?}"
            ))
        })?;
        let field = selectable_field(kind, name).ok_or_else(|| {
            ApiError::bad_request(match has_selectable_fields(kind) {
                true => format!("field label not supported: {name}"),
                false => format!("{name:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""),
            })
        })?;
        tests.push(FieldRequirement { field, equals, value: value.into() });
    }
    Ok(tests)
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    if let Some((name, value)) = term.split_once("!=") {
        return Some((name, false, value));
    }
    term.split_once("==").or_else(|| term.split_once('=')).map(|(name, value)| (name, true, value))
}

/// Reads `a=b, c!=d, e in (f, g), !h, i` and so on.
///
/// # Errors
///
/// 400 when it cannot be read.
pub fn parse_label_selector(text: &str) -> Result<Selector, ApiError> {
    let bad = |why: String| ApiError::bad_request(format!("unable to parse requirement: {why}"));
    let selector = LabelSelector::parse(text).map_err(bad)?;
    Selector::new(Some(&selector)).map_err(|error| bad(error.to_string()))
}

/// A selector as a query would write it; a plain map selects by equality.
pub fn selector_text(selector: &Value) -> String {
    let labels = selector.get("matchLabels").unwrap_or(selector);
    let mut terms: Vec<(String, String)> = Vec::new();
    for (key, value) in labels.as_object().into_iter().flatten() {
        if let Some(value) = value.as_str() {
            terms.push((key.clone(), format!("{key}={value}")));
        }
    }
    for it in list_entries(&selector["matchExpressions"]) {
        let key = it["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            list_entries(&it["values"]).iter().filter_map(Value::as_str).collect();
        let values = values.join(",");
        let text = match it["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        };
        terms.push((key.to_owned(), text));
    }
    terms.sort();
    terms.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(selector: &str, pairs: &[(&str, &str)], want: Option<bool>) {
        let labels_of: Labels = pairs.iter().map(|(key, value)| (*key, (*value).into())).collect();
        let got = parse_label_selector(selector).ok().map(|it| it.matches(&labels_of));
        assert_eq!(got, want, "{selector}");
    }

    #[test]
    fn label_selectors() {
        check("a=b", &[("a", "b")], Some(true));
        check("a==b,c", &[("a", "b"), ("c", "")], Some(true));
        check("a = b , !c", &[("a", "b"), ("c", "")], Some(false));
        check("a in (b, c)", &[("a", "c")], Some(true));
        check("a notin (b,c),d!=e", &[("a", "x")], Some(true));
        check("example.com/a=", &[("example.com/a", "")], Some(true));
        check("a=b,", &[], None);
        check("a in b", &[], None);
        check("=b", &[], None);
        check("a=b c", &[], None);
    }
}
