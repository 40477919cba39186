//! Label selectors as requests and command lines write them.

use super::{LabelSelector, Requirement};
use crate::interned_str::Str;

impl LabelSelector {
    /// Reads `a=b, c!=d, e in (f, g), !h, i` and so on. Keys and values are not checked.
    ///
    /// # Errors
    ///
    /// What upstream says about text that cannot be read.
    pub fn parse(text: &str) -> Result<LabelSelector, String> {
        let mut match_expressions = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (requirement, after) = requirement(rest)?;
            match_expressions.push(requirement);
            rest = match after.trim_start().strip_prefix(',') {
                Some(more) if !more.trim().is_empty() => more.trim_start(),
                Some(_) => return Err("found '', expected: identifier after ','".to_owned()),
                None if after.trim().is_empty() => "",
                None => {
                    let found = after.trim();
                    return Err(format!("found '{found}', expected: ',' or 'end of string'"));
                }
            };
        }
        Ok(LabelSelector { match_expressions, ..LabelSelector::default() })
    }
}

fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_whitespace() || "=!,()<>".contains(c));
    text.split_at(end.unwrap_or(text.len()))
}

/// One requirement, and the text behind it.
fn requirement(text: &str) -> Result<(Requirement, &str), String> {
    let make = |key: &str, operator: &str, values: Vec<Str>| Requirement {
        key: key.into(),
        operator: operator.into(),
        values,
    };
    if let Some(rest) = text.strip_prefix('!') {
        let (key, rest) = word(rest.trim_start());
        return Ok((make(key, "DoesNotExist", Vec::new()), rest));
    }
    let (key, rest) = word(text);
    if key.is_empty() {
        return Err(format!("found '{text}', expected: !, identifier, or 'end of string'"));
    }
    let rest = rest.trim_start();
    if rest.is_empty() || rest.starts_with(',') {
        return Ok((make(key, "Exists", Vec::new()), rest));
    }
    for (sign, operator) in [("!=", "NotIn"), ("==", "In"), ("=", "In")] {
        if let Some(rest) = rest.strip_prefix(sign) {
            let (value, rest) = word(rest.trim_start());
            return Ok((make(key, operator, vec![value.into()]), rest));
        }
    }
    let (operator, after) = word(rest);
    let operator = match operator {
        "in" => "In",
        "notin" => "NotIn",
        _ => return Err(format!("found '{rest}', expected: in, notin, =, ==, !=, gt, lt")),
    };
    let list = after.trim_start().strip_prefix('(').and_then(|list| list.split_once(')'));
    let (values, rest) = list.ok_or_else(|| format!("found '{}' expected: '('", after.trim()))?;
    let values = values.split(',').map(|value| value.trim().into()).collect();
    Ok((make(key, operator, values), rest))
}
