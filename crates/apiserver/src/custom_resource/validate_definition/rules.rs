//! Validates the rules of a schema: messages, field paths, and whether they compile.

use super::super::cel::{RequiredResultType, compile_expression};
use super::super::structural::{StructuralSchema, ValidationRule};
use crate::status::{Cause, go_value_text};

const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Complaints about what a node's rules say beside their expressions.
pub fn validate_rule_texts(schema: &StructuralSchema, path: &str, causes: &mut Vec<Cause>) {
    for (at, rule) in schema.rules.iter().enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{at}]");
        let has_line = |text: &str| text.contains(['\n', '\r']);
        let message = rule.message.trim();
        let messages = rule.message.as_str().into();
        if rule.rule.trim().is_empty() {
            causes.push(Cause::required(format!("{at}.rule"), "rule is not specified"));
        } else if !rule.message.is_empty() && message.is_empty() {
            let detail = "must be non-empty if specified";
            causes.push(Cause::invalid(format!("{at}.message"), &messages, detail));
        } else if has_line(message) {
            let detail = "must not contain line breaks";
            causes.push(Cause::invalid(format!("{at}.message"), &messages, detail));
        } else if has_line(rule.rule.trim()) && message.is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            causes.push(Cause::required(format!("{at}.message"), detail));
        }
        if !rule.message_expression.is_empty() && rule.message_expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            causes.push(Cause::required(format!("{at}.messageExpression"), detail));
        }
        if let Some(reason) = rule.reason.as_deref().filter(|it| !REASONS.contains(it)) {
            causes.push(Cause::not_supported(format!("{at}.reason"), &reason.into(), &REASONS));
        }
        if !rule.field_path.is_empty() && field_path(&rule.field_path, schema, true).is_err() {
            let field = format!("{at}.fieldPath");
            let given = rule.field_path.as_str().into();
            causes.push(Cause::invalid(field, &given, "must be a valid path"));
        }
    }
}

/// Complaints about expressions, which are compiled only if all else is right.
pub fn validate_rule_expressions(schema: &StructuralSchema, path: &str, causes: &mut Vec<Cause>) {
    Walk { causes }.node(schema, path, None, true);
}

struct Walk<'a> {
    causes: &'a mut Vec<Cause>,
}

impl Walk<'_> {
    /// `loose` is the place from which on entries cannot be found again in an older state.
    fn node(&mut self, schema: &StructuralSchema, path: &str, loose: Option<&str>, is_root: bool) {
        for (name, inner) in &schema.properties {
            self.node(inner, &format!("{path}.properties[{name}]"), loose, false);
        }
        if let Some(inner) = schema.additional() {
            self.node(inner, &format!("{path}.additionalProperties"), loose, false);
        }
        if let Some(items) = schema.items() {
            let loose = loose.or((!schema.is_map_list()).then_some(path));
            self.node(items, &format!("{path}.items"), loose, false);
        }
        for (at, rule) in schema.rules.iter().enumerate() {
            let at = format!("{path}.x-kubernetes-validations[{at}]");
            self.rule(rule, schema, &at, loose, is_root || schema.is_embedded);
        }
    }

    fn rule(
        &mut self,
        rule: &ValidationRule,
        schema: &StructuralSchema,
        at: &str,
        loose: Option<&str>,
        is_object: bool,
    ) {
        let optional_old = rule.optional_old_self == Some(true);
        let compile =
            |text: &str, wanted| compile_expression(text, wanted, schema, is_object, optional_old);
        let field = format!("{at}.rule");
        match compile(&rule.rule, RequiredResultType::Bool) {
            Err(detail) => {
                self.causes.push(of_rule(field, rule, &detail));
                return;
            }
            Ok(it) if it.uses_old_self() => {
                if let Some(loose) = loose {
                    let detail = format!(
                        "oldSelf cannot be used on the uncorrelatable portion of the schema within {loose}"
                    );
                    self.causes.push(Cause::invalid(field, &rule.rule.as_str().into(), &detail));
                }
            }
            Ok(_) => {
                if let Some(given) = rule.optional_old_self {
                    let field = format!("{at}.optionalOldSelf");
                    let detail = "may not be set if oldSelf is not used in rule";
                    self.causes.push(Cause::invalid(field, &given.into(), detail));
                }
            }
        }
        if !rule.message_expression.is_empty()
            && let Err(detail) = compile(&rule.message_expression, RequiredResultType::Text)
        {
            let field = format!("{at}.messageExpression");
            self.causes.push(of_rule(field, rule, &detail));
        }
    }
}

/// An error that shows the whole rule, in the form of upstream's internal type.
fn of_rule(field: String, rule: &ValidationRule, detail: &str) -> Cause {
    let quoted = |text: &str| {
        let text = go_value_text(&serde_json::Value::from(vec![text]));
        text[1..text.len() - 1].to_owned()
    };
    let reason = rule.reason.as_deref().map_or_else(|| "null".to_owned(), quoted);
    let optional = rule.optional_old_self.map_or_else(|| "null".to_owned(), |it| it.to_string());
    let shown = format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{reason},\"FieldPath\":{},\"OptionalOldSelf\":{optional}}}",
        quoted(&rule.rule),
        quoted(&rule.message),
        quoted(&rule.message_expression),
        quoted(&rule.field_path),
    );
    let message = format!("Invalid value: {shown}: {detail}");
    Cause { reason: "FieldValueInvalid", message, field }
}

/// Follows a path such as `.spec.labels['a']` through a schema: the path as errors write it, and the schema found.
///
/// # Errors
///
/// When it leads nowhere.
pub fn field_path<'a>(
    path: &str,
    schema: &'a StructuralSchema,
    with_brackets: bool,
) -> Result<(String, &'a StructuralSchema), String> {
    let (mut rest, mut schema, mut out) = (path, schema, String::new());
    while !rest.is_empty() {
        let (name, after) = if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            if end == 0 {
                return Err("unexpected end of JSON path".to_owned());
            }
            (after[..end].to_owned(), &after[end..])
        } else if let Some(after) = rest.strip_prefix('[') {
            if !with_brackets {
                return Err("array notation is not allowed".to_owned());
            }
            let inner = after.split(']').next().unwrap_or_default();
            let quoted = after.strip_prefix('\'').and_then(|it| it.split_once("']"));
            let (name, after) =
                quoted.ok_or_else(|| format!("expected single quoted string but got {inner}"))?;
            (name.replace("\\'", "'").replace("\\\\", "\\"), after)
        } else {
            return Err(format!("expected [ or . but got: {rest}"));
        };
        let lost = || "does not refer to a valid field".to_owned();
        if schema.properties.is_empty() {
            schema = schema.additional().ok_or_else(lost)?;
            out.push_str(&format!("[{name}]"));
        } else {
            schema = schema.properties.get(&name).ok_or_else(lost)?;
            let dot = if out.is_empty() { "" } else { "." };
            out.push_str(&format!("{dot}{name}"));
        }
        rest = after;
    }
    Ok((out, schema))
}
