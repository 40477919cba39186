//! Validation rules in the Common Expression Language (`x-kubernetes-validations`). The `cel` crate parses them; type
//! checking and evaluation are implemented here, because rules are checked against the schema when a definition is
//! created, have upstream's cost limits, and know Kubernetes' functions.

mod depth_limit;
mod eval;
mod library;
mod types;
mod typing;
mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ::cel::{Env, Program};
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::Value;

use super::structural::{StructuralSchema, ValidationRule};
use super::validate_definition::field_path;
use crate::status::Cause;
use eval::{CelEvaluation, Failure, Patterns};
use types::{BOOL_TYPE, STRING_TYPE, Ty};
use value::Val;

/// The cost limits of one rule, and of all rules of an object, as upstream's `PerCallLimit` and
/// `RuntimeCELCostBudget`.
const N_STEPS_MAX: u64 = 1_000_000;
const N_STEPS_ALL_MAX: u64 = 10_000_000;

/// As upstream's `MaxEvaluatedMessageExpressionSizeBytes`.
const MESSAGE_BYTES_MAX: usize = 5 * 1024;

static ENV: LazyLock<Env> = LazyLock::new(Env::stdlib);

/// An expression that was checked.
#[derive(Debug)]
pub struct Expression {
    program: Program,
    uses_old: bool,
}

/// The required result type of an expression.
#[derive(Clone, Copy, PartialEq)]
pub enum RequiredResultType {
    Bool,
    Text,
}

/// Compiles an expression over values of a schema.
///
/// # Errors
///
/// With upstream's message, when it cannot be parsed or does not match the schema.
pub fn compile_expression(
    text: &str,
    wanted: RequiredResultType,
    schema: &StructuralSchema,
    is_object: bool,
    optional_old: bool,
) -> Result<Expression, String> {
    let prefix = match wanted {
        RequiredResultType::Bool => "compilation failed: ",
        RequiredResultType::Text => "messageExpression compilation failed: ",
    };
    depth_limit::check_expression_limits(text)
        .map_err(|why| format!("{prefix}ERROR: <input>:-1:0: {why}"))?;
    let program = ENV.compile(text).map_err(|errors| {
        let messages = errors.errors.iter().map(|it| {
            let (line, column) = (it.pos.0.max(1) as usize, it.pos.1.max(1) as usize);
            pointed(
                text,
                line,
                column,
                &format!("Syntax error: {}", it.msg.trim_start_matches("Syntax error: ")),
            )
        });
        format!("{prefix}{}", messages.collect::<Vec<_>>().join("\n"))
    })?;
    let own = match is_object {
        true => Ty::of_object_schema(schema, "selfType"),
        false => Ty::of_schema(schema, "selfType").unwrap_or(Ty::Dyn),
    };
    let old = if optional_old { Ty::Optional(Box::new(own.clone())) } else { own.clone() };
    let scope = vec![("self".to_owned(), own), ("oldSelf".to_owned(), old)];
    let (ty, typing) = typing::check_expression_type(program.expression(), scope);
    if !typing.complaints.is_empty() {
        let messages = typing.complaints.iter().map(|it| {
            let offset = program.source_info().offset_for(it.node).map_or(0, |it| it.0 as usize);
            let (line, column) = place(text, offset);
            pointed(text, line, column, &it.text)
        });
        return Err(format!("{prefix}{}", messages.collect::<Vec<_>>().join("\n")));
    }
    match wanted {
        RequiredResultType::Bool if ty != BOOL_TYPE => {
            Err("cel expression must evaluate to a bool".to_owned())
        }
        RequiredResultType::Text if ty != STRING_TYPE => {
            Err("messageExpression must evaluate to a string".to_owned())
        }
        _ => Ok(Expression { program, uses_old: typing.uses_old }),
    }
}

/// Line and column of an offset, from one.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before: String = text.chars().take(offset).collect();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (line, column)
}

/// An error with the line it is about.
fn pointed(text: &str, line: usize, column: usize, what: &str) -> String {
    let shown = text.lines().nth(line - 1).unwrap_or_default();
    let dots = ".".repeat(column - 1);
    format!("ERROR: <input>:{line}:{column}: {what}\n | {shown}\n | {dots}^")
}

impl Expression {
    /// Whether it compares with an older state.
    pub fn uses_old_self(&self) -> bool {
        self.uses_old
    }
}

/// All rules of a schema.
#[derive(Debug, Default)]
pub struct Rules {
    root: Option<Node>,
}

#[derive(Debug, Default)]
struct Node {
    rules: Vec<Compiled>,
    is_object: bool,
    properties: BTreeMap<String, Node>,
    additional: Option<Box<Node>>,
    items: Option<Box<Node>>,
}

#[derive(Debug)]
struct Compiled {
    rule: ValidationRule,
    expression: Expression,
    message: Option<Expression>,
    field_path: String,
}

impl Rules {
    /// The rules of a schema; those that do not compile are left out, since a definition with such rules is rejected.
    pub fn compile(schema: &StructuralSchema) -> Rules {
        Rules { root: Node::of(schema, true) }
    }

    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Evaluates the rules on an object, and returns the failures.
    pub fn check(
        &self,
        schema: &StructuralSchema,
        value: &Value,
        old: Option<&Value>,
    ) -> Vec<Cause> {
        let mut walk = Walk {
            causes: Vec::new(),
            budget: N_STEPS_ALL_MAX,
            is_over: false,
            patterns: Patterns::new(),
        };
        if let Some(root) = &self.root {
            walk.node(root, schema, "", value, old, false);
        }
        walk.causes
    }
}

impl Node {
    fn of(schema: &StructuralSchema, is_root: bool) -> Option<Node> {
        let is_object = is_root || schema.is_embedded;
        let inner = |schema: &StructuralSchema| Node::of(schema, false);
        let rules = schema.rules.iter().filter_map(|rule| Compiled::of(rule, schema, is_object));
        let properties = schema.properties.iter();
        let node = Node {
            rules: rules.collect(),
            is_object,
            properties: properties
                .filter_map(|(name, it)| Some((name.clone(), inner(it)?)))
                .collect_by_insertion(),
            additional: schema.additional().and_then(inner).map(Box::new),
            items: schema.items().and_then(inner).map(Box::new),
        };
        let is_empty = node.rules.is_empty()
            && node.properties.is_empty()
            && node.additional.is_none()
            && node.items.is_none();
        (!is_empty).then_some(node)
    }
}

impl Compiled {
    fn of(rule: &ValidationRule, schema: &StructuralSchema, is_object: bool) -> Option<Compiled> {
        let optional_old = rule.optional_old_self == Some(true);
        let compile = |text: &str, wanted| {
            compile_expression(text, wanted, schema, is_object, optional_old).ok()
        };
        let field_path = match rule.field_path.as_str() {
            "" => String::new(),
            path => field_path(path, schema, true).map(|it| it.0).unwrap_or_default(),
        };
        Some(Compiled {
            rule: rule.clone(),
            expression: compile(&rule.rule, RequiredResultType::Bool)?,
            message: match rule.message_expression.as_str() {
                "" => None,
                text => compile(text, RequiredResultType::Text),
            },
            field_path,
        })
    }

    /// The name of the rule in errors.
    fn named(&self) -> &str {
        let message = self.rule.message.trim();
        if message.is_empty() { self.rule.rule.trim() } else { message }
    }

    fn message(&self) -> String {
        match self.rule.message.trim() {
            "" => format!("failed rule: {}", self.rule.rule.trim()),
            message => message.to_owned(),
        }
    }
}

struct Walk {
    causes: Vec<Cause>,
    budget: u64,
    /// The budget is used up.
    is_over: bool,
    /// Regular expressions that rules have used.
    patterns: Patterns,
}

fn named(path: &str) -> &str {
    if path.is_empty() { "<nil>" } else { path }
}

impl Walk {
    /// `is_settled`: something around this did not change, so that rules without `oldSelf` do not complain.
    fn node(
        &mut self,
        node: &Node,
        schema: &StructuralSchema,
        path: &str,
        value: &Value,
        old: Option<&Value>,
        is_settled: bool,
    ) {
        if self.is_over || value.is_null() {
            return;
        }
        let is_settled = is_settled || old == Some(value);
        self.rules(node, schema, path, value, old, is_settled);
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    let dot = if path.is_empty() { "" } else { "." };
                    let (inner, inner_schema, path) = match schema.properties.get(name) {
                        Some(own) => (node.properties.get(name), own, format!("{path}{dot}{name}")),
                        None => match schema.additional() {
                            Some(it) => (node.additional.as_deref(), it, format!("{path}[{name}]")),
                            None => continue,
                        },
                    };
                    let old = old.and_then(|it| it.get(name));
                    if let Some(inner) = inner {
                        self.node(inner, inner_schema, &path, value, old, is_settled);
                    }
                }
            }
            Value::Array(entries) => {
                let (Some(inner), Some(items)) = (&node.items, schema.items()) else { return };
                let known = schema.known_entries(old);
                for (at, entry) in entries.iter().enumerate() {
                    let old = schema.find_old_entry(entry, &known);
                    self.node(inner, items, &format!("{path}[{at}]"), entry, old, is_settled);
                }
            }
            _ => {}
        }
    }

    fn rules(
        &mut self,
        node: &Node,
        schema: &StructuralSchema,
        path: &str,
        value: &Value,
        old: Option<&Value>,
        is_settled: bool,
    ) {
        if node.rules.is_empty() {
            return;
        }
        let val = |value: &Value| match node.is_object {
            true => Val::from_json_object(value, schema),
            false => Val::from_json(value, Some(schema)),
        };
        let own = val(value);
        let old = old.filter(|it| !it.is_null()).map(val);
        for compiled in &node.rules {
            if self.is_over {
                return;
            }
            let is_optional = compiled.rule.optional_old_self == Some(true);
            if compiled.expression.uses_old && old.is_none() && !is_optional {
                continue;
            }
            let old = match (is_optional, &old) {
                (true, old) => Some(Val::Optional(old.clone().map(Into::into))),
                (false, old) => old.clone(),
            };
            let mut scope = vec![("self".to_owned(), own.clone())];
            scope.extend(old.map(|old| ("oldSelf".to_owned(), old)));
            if let Some(cause) = self.ask(compiled, schema, path, value, scope)
                && (compiled.expression.uses_old || !is_settled)
            {
                self.causes.push(cause);
            }
        }
    }

    /// Runs an expression within the budget.
    fn run(&mut self, expression: &Expression, scope: Vec<(String, Val)>) -> Result<Val, Failure> {
        let allowed = self.budget.min(N_STEPS_MAX);
        let mut run = CelEvaluation::new(scope, allowed);
        run.patterns = std::mem::take(&mut self.patterns);
        let result = run.eval(expression.program.expression());
        self.patterns = run.patterns;
        self.budget -= allowed - run.budget;
        result
    }

    fn ask(
        &mut self,
        compiled: &Compiled,
        schema: &StructuralSchema,
        path: &str,
        value: &Value,
        scope: Vec<(String, Val)>,
    ) -> Option<Cause> {
        let kind: Value = schema.kind.as_str().into();
        let refuse = |detail: &str| Some(Cause::invalid(named(path), &kind, detail));
        if self.budget == 0 {
            self.is_over = true;
            return refuse(
                "validation failed due to running out of cost budget, no further validation rules will be run",
            );
        }
        let rule = compiled.named();
        match self.run(&compiled.expression, scope.clone()) {
            Ok(Val::Bool(true)) => return None,
            Ok(_) => {}
            Err(failure @ Failure::TooExpensive) => {
                self.is_over = true;
                return refuse(&format!(
                    "'{failure}': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
                ));
            }
            Err(Failure::Other(text)) if text.starts_with("no such overload") => {
                return refuse(&format!(
                    "'{text}': call arguments did not match a supported operator, function or macro signature for rule: {rule}"
                ));
            }
            Err(failure) => return refuse(&format!("{failure} evaluating rule: {rule}")),
        }
        let place = match (path, compiled.field_path.as_str()) {
            (path, "") => named(path).to_owned(),
            ("", inner) => inner.to_owned(),
            (path, inner) => format!("{path}.{inner}"),
        };
        let messages = compiled.message.as_ref().and_then(|it| match self.run(it, scope) {
            Ok(Val::Text(text)) => {
                let text = text.trim().to_owned();
                let fits =
                    !text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n');
                fits.then_some(text)
            }
            _ => None,
        });
        let detail = messages.unwrap_or_else(|| compiled.message());
        let is_large = matches!(schema.kind.as_str(), "object" | "array");
        Some(match compiled.rule.reason.as_deref() {
            Some("FieldValueForbidden") => Cause::forbidden(place, &detail),
            Some("FieldValueRequired") => Cause::required(place, &detail),
            Some("FieldValueDuplicate") if is_large => Cause {
                reason: "FieldValueDuplicate",
                message: "Duplicate value".to_owned(),
                field: place,
            },
            Some("FieldValueDuplicate") => Cause::duplicate(place, value),
            _ if is_large => Cause::invalid_without_value(place, &detail),
            _ => Cause::invalid(place, value, &detail),
        })
    }
}
