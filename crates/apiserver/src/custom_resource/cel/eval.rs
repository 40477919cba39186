//! Evaluates expressions with a cost budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use loadmaster_stdx::CollectByInsertion as _;

use regex::Regex;

use super::library;
use super::types;
use super::typing::{macro_variable, qualified_name};
use super::value::{CelMapKey, Val};

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It cost more than it may.
    #[error("operation cancelled: actual cost limit exceeded")]
    TooExpensive,
    #[error("{0}")]
    Other(String),
}

impl Failure {
    pub fn new(text: impl Into<String>) -> Failure {
        Failure::Other(text.into())
    }

    pub fn no_overload() -> Failure {
        Failure::new("no such overload")
    }
}

pub type Outcome = Result<Val, Failure>;

/// A run over named values.
pub struct CelEvaluation {
    scope: Vec<(String, Val)>,
    /// What is left.
    pub budget: u64,
    /// Regular expressions that were compiled; other runs may go on with them.
    pub patterns: Patterns,
}

/// Compiled regular expressions.
pub type Patterns = BTreeMap<Arc<str>, Arc<Regex>>;

/// How many of them are kept: those that rules spell out. The others come from objects.
const N_PATTERNS_MAX: usize = 64;

/// What it costs to compile one; matching is cheap beside it.
const PATTERN_COST: u64 = 5_000;

impl CelEvaluation {
    pub fn new(scope: Vec<(String, Val)>, budget: u64) -> CelEvaluation {
        CelEvaluation { scope, budget, patterns: Patterns::new() }
    }

    fn pay(&mut self, cost: u64) -> Result<(), Failure> {
        self.budget = self.budget.checked_sub(cost).ok_or(Failure::TooExpensive)?;
        Ok(())
    }

    /// The value of an expression.
    pub fn eval(&mut self, expr: &IdedExpr) -> Outcome {
        self.pay(1)?;
        match &expr.expr {
            Expr::Unspecified | Expr::Struct(_) => Err(Failure::no_overload()),
            Expr::Literal(literal) => Ok(literal_value(literal)),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => {
                if let Some(ty) = qualified_name(expr).and_then(|it| library::type_named(&it)) {
                    return Ok(Val::Type(ty));
                }
                let operand = self.eval(&select.operand)?;
                if select.test {
                    return Ok(Val::Bool(field(&operand, &select.field)?.is_some()));
                }
                if let Val::Optional(operand) = &operand {
                    let found = operand.as_ref().map(|it| field(it, &select.field)).transpose()?;
                    return Ok(Val::Optional(found.flatten().map(Arc::new)));
                }
                let missing = || Failure::new(format!("no such key: {}", select.field));
                field(&operand, &select.field)?.ok_or_else(missing)
            }
            Expr::List(list) => {
                let mut entries = Vec::with_capacity(list.elements.len());
                for (at, element) in list.elements.iter().enumerate() {
                    match self.eval(element)? {
                        Val::Optional(value) if list.optional_indices.contains(&at) => {
                            entries.extend(value.map(Arc::unwrap_or_clone));
                        }
                        value => entries.push(value),
                    }
                }
                Ok(Val::list(entries))
            }
            Expr::Map(map) => {
                let mut entries = BTreeMap::new();
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
                    let key = self.eval(&entry.key)?;
                    let key =
                        key.to_map_key().ok_or_else(|| Failure::new("unsupported key type"))?;
                    match (self.eval(&entry.value)?, entry.optional) {
                        (Val::Optional(value), true) => {
                            entries.extend(value.map(|it| (key, Arc::unwrap_or_clone(it))));
                        }
                        (value, _) => drop(entries.insert(key, value)),
                    }
                }
                Ok(Val::Map(Arc::new(entries)))
            }
            Expr::Comprehension(it) => self.comprehension(it),
            Expr::Call(call) => self.call(call),
        }
    }

    fn name(&self, name: &str) -> Outcome {
        if let Some((_, value)) = self.scope.iter().rev().find(|(it, _)| it == name) {
            return Ok(value.clone());
        }
        let ty = library::type_named(name).map(Val::Type);
        ty.ok_or_else(|| Failure::new(format!("no such attribute(s): {name}")))
    }

    fn within(&mut self, names: &[(&str, Val)], expr: &IdedExpr) -> Outcome {
        let mark = self.scope.len();
        self.scope.extend(names.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let result = self.eval(expr);
        self.scope.truncate(mark);
        result
    }

    fn comprehension(&mut self, it: &ComprehensionExpr) -> Outcome {
        let range = self.eval(&it.iter_range)?;
        let accu = self.eval(&it.accu_init)?;
        let mark = self.scope.len();
        self.scope.push((it.accu_var.clone(), accu));
        let result = self.go_over(it, &range, mark);
        let result = result.and_then(|()| self.eval(&it.result));
        self.scope.truncate(mark);
        result
    }

    fn go_over(&mut self, it: &ComprehensionExpr, range: &Val, accu: usize) -> Result<(), Failure> {
        let is_map = matches!(range, Val::Map(_));
        // An error is remembered: a later entry may still decide.
        let mut first_error: Option<Failure> = None;
        for (key, value) in pairs(range)? {
            let condition = match &first_error {
                Some(_) => Val::Bool(true),
                None => self.eval(&it.loop_cond)?,
            };
            if condition == Val::Bool(false) {
                break;
            }
            let mark = self.scope.len();
            match &it.iter_var2 {
                Some(second) => {
                    self.scope.push((it.iter_var.clone(), key));
                    self.scope.push((second.clone(), value));
                }
                None => self.scope.push((it.iter_var.clone(), if is_map { key } else { value })),
            }
            let step = self.eval(&it.loop_step);
            self.scope.truncate(mark);
            match step {
                Ok(value) => {
                    let decides = decides(&it.loop_step, &value);
                    if first_error.is_none() || decides {
                        self.scope[accu].1 = value;
                    }
                    if decides {
                        first_error = None;
                    }
                }
                Err(failure @ Failure::Other(_)) if is_logical(&it.loop_step) => {
                    first_error.get_or_insert(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn call(&mut self, call: &CallExpr) -> Outcome {
        let args = call.args.as_slice();
        match (call.func_name.as_str(), args) {
            ("_&&_", [a, b]) => return self.logical(a, b, false),
            ("_||_", [a, b]) => return self.logical(a, b, true),
            ("_?_:_", [condition, yes, no]) => {
                return match self.eval(condition)? {
                    Val::Bool(true) => self.eval(yes),
                    Val::Bool(false) => self.eval(no),
                    _ => Err(Failure::no_overload()),
                };
            }
            ("@not_strictly_false", [arg]) => {
                return match self.eval(arg) {
                    Err(Failure::TooExpensive) => Err(Failure::TooExpensive),
                    Ok(Val::Bool(false)) => Ok(Val::Bool(false)),
                    _ => Ok(Val::Bool(true)),
                };
            }
            ("_?._", [operand, name]) => {
                let operand = self.eval(operand)?;
                let Val::Text(name) = self.eval(name)? else { return Err(Failure::no_overload()) };
                let found = match &operand {
                    Val::Optional(None) => None,
                    Val::Optional(Some(value)) => field(value, &name)?,
                    value => field(value, &name)?,
                };
                return Ok(Val::Optional(found.map(Arc::new)));
            }
            _ => {}
        }
        if let Some(target) = &call.target {
            let full = qualified_name(target).map(|it| format!("{it}.{}", call.func_name));
            if let Some(full) = full.filter(|it| types::is_function(it)) {
                return self.function(&full, None, args);
            }
            if let Some(result) = self.special(&call.func_name, target, args) {
                return result;
            }
            let target = self.eval(target)?;
            return self.function(&call.func_name, Some(target), args);
        }
        self.function(&call.func_name, None, args)
    }

    fn function(&mut self, name: &str, target: Option<Val>, args: &[IdedExpr]) -> Outcome {
        let mut given: Vec<Val> = Vec::with_capacity(args.len() + 1);
        let is_member = target.is_some();
        given.extend(target);
        for arg in args {
            given.push(self.eval(arg)?);
        }
        self.pay(library::cost(name, &given))?;
        let value = match (name, given.as_slice()) {
            ("matches" | "find" | "findAll", [Val::Text(text), Val::Text(pattern), rest @ ..]) => {
                library::search(name, text, &*self.pattern(pattern)?, rest)?
            }
            _ => library::call_function(name, is_member, &given)?,
        };
        self.pay(value.cost())?;
        Ok(value)
    }

    fn pattern(&mut self, text: &Arc<str>) -> Result<Arc<Regex>, Failure> {
        if let Some(known) = self.patterns.get(text) {
            return Ok(Arc::clone(known));
        }
        self.pay(PATTERN_COST)?;
        let pattern = Arc::new(library::pattern(text)?);
        if self.patterns.len() < N_PATTERNS_MAX {
            self.patterns.insert(Arc::clone(text), Arc::clone(&pattern));
        }
        Ok(pattern)
    }

    /// Either side may decide, even when the other one fails.
    fn logical(&mut self, a: &IdedExpr, b: &IdedExpr, decisive: bool) -> Outcome {
        let left = self.eval(a);
        if left == Ok(Val::Bool(decisive)) || left == Err(Failure::TooExpensive) {
            return left;
        }
        let right = self.eval(b);
        match (left, right) {
            (_, right @ Err(Failure::TooExpensive)) => right,
            (_, Ok(Val::Bool(it))) if it == decisive => Ok(Val::Bool(it)),
            (left @ Err(_), _) => left,
            (Ok(Val::Bool(_)), right @ Ok(Val::Bool(_))) => right,
            (_, right @ Err(_)) => right,
            _ => Err(Failure::no_overload()),
        }
    }

    /// Macros of upstream's libraries that name a variable of their own.
    fn special(&mut self, name: &str, target: &IdedExpr, args: &[IdedExpr]) -> Option<Outcome> {
        match (name, args) {
            ("optMap" | "optFlatMap", [var, body]) => {
                let var = macro_variable(var)?;
                Some(self.opt_map(name == "optFlatMap", target, &var, body))
            }
            ("sortBy", [var, body]) => {
                let var = macro_variable(var)?;
                Some(self.sort_by(target, &var, body))
            }
            (
                "all" | "exists" | "existsOne" | "exists_one" | "transformList" | "transformMap"
                | "transformMapEntry",
                [one, two, rest @ ..],
            ) if !rest.is_empty() && rest.len() < 3 => {
                let (one, two) = (macro_variable(one)?, macro_variable(two)?);
                Some(self.over_pairs(name, target, (&one, &two), rest))
            }
            _ => None,
        }
    }

    fn opt_map(&mut self, flat: bool, target: &IdedExpr, var: &str, body: &IdedExpr) -> Outcome {
        match self.eval(target)? {
            Val::Optional(None) => Ok(Val::Optional(None)),
            Val::Optional(Some(value)) => {
                let made = self.within(&[(var, (*value).clone())], body)?;
                Ok(if flat { made } else { Val::some(made) })
            }
            _ => Err(Failure::no_overload()),
        }
    }

    fn sort_by(&mut self, target: &IdedExpr, var: &str, body: &IdedExpr) -> Outcome {
        let Val::List(list) = self.eval(target)? else { return Err(Failure::no_overload()) };
        let mut keyed = Vec::with_capacity(list.entries.len());
        for entry in &list.entries {
            keyed.push((self.within(&[(var, entry.clone())], body)?, entry.clone()));
        }
        let n = keyed.len() as u64;
        self.pay(n.saturating_mul(u64::from(64 - n.leading_zeros())))?;
        library::sort_by_key(keyed)
    }

    fn over_pairs(
        &mut self,
        name: &str,
        target: &IdedExpr,
        (one, two): (&str, &str),
        rest: &[IdedExpr],
    ) -> Outcome {
        let range = self.eval(target)?;
        let (filter, body) = match rest {
            [body] => (None, body),
            [filter, body] => (Some(filter), body),
            _ => return Err(Failure::no_overload()),
        };
        let (mut n_true, mut n_all, mut made, mut first_error) =
            (0_usize, 0_usize, Vec::new(), None);
        for (key, value) in pairs(&range)? {
            let names = [(one, key.clone()), (two, value)];
            if let Some(filter) = filter
                && self.within(&names, filter)? != Val::Bool(true)
            {
                continue;
            }
            n_all += 1;
            match self.within(&names, body) {
                Ok(Val::Bool(true)) => {
                    n_true += 1;
                    made.push((key, Val::Bool(true)));
                }
                Ok(value) => made.push((key, value)),
                Err(failure @ Failure::Other(_)) if matches!(name, "all" | "exists") => {
                    first_error.get_or_insert(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
        let n_failed = usize::from(first_error.is_some());
        match name {
            "all" if made.len() > n_true => Ok(Val::Bool(false)),
            "exists" if n_true > 0 => Ok(Val::Bool(true)),
            "all" | "exists" if n_failed > 0 => {
                Err(first_error.unwrap_or_else(Failure::no_overload))
            }
            "all" => Ok(Val::Bool(n_true == n_all)),
            "exists" => Ok(Val::Bool(false)),
            "existsOne" | "exists_one" => Ok(Val::Bool(n_true == 1)),
            "transformList" => Ok(Val::list(made.into_iter().map(|(_, value)| value).collect())),
            "transformMap" => {
                let entries =
                    made.into_iter().filter_map(|(key, value)| Some((key.to_map_key()?, value)));
                Ok(Val::Map(Arc::new(entries.collect_by_insertion())))
            }
            _ => {
                let mut entries = BTreeMap::new();
                for (_, value) in made {
                    let Val::Map(map) = value else { return Err(Failure::no_overload()) };
                    entries.extend(Arc::unwrap_or_clone(map));
                }
                Ok(Val::Map(Arc::new(entries)))
            }
        }
    }
}

/// The elements of a comprehension: keys and values, or indexes and entries. They are produced lazily, since most
/// searches stop early.
fn pairs<'a>(range: &'a Val) -> Result<Box<dyn Iterator<Item = (Val, Val)> + 'a>, Failure> {
    match range {
        Val::List(list) => {
            let entries = list.entries.iter().enumerate();
            Ok(Box::new(entries.map(|(at, it)| (Val::Int(at as i64), it.clone()))))
        }
        Val::Map(map) => {
            Ok(Box::new(map.iter().map(|(key, value)| (key.to_value(), value.clone()))))
        }
        _ => Err(Failure::no_overload()),
    }
}

fn is_logical(step: &IdedExpr) -> bool {
    matches!(&step.expr, Expr::Call(call) if matches!(call.func_name.as_str(), "_&&_" | "_||_"))
}

/// Whether a step of `all` or `exists` settles the matter.
fn decides(step: &IdedExpr, value: &Val) -> bool {
    match &step.expr {
        Expr::Call(call) => match call.func_name.as_str() {
            "_&&_" => *value == Val::Bool(false),
            "_||_" => *value == Val::Bool(true),
            _ => false,
        },
        _ => false,
    }
}

fn field(operand: &Val, name: &str) -> Result<Option<Val>, Failure> {
    match operand {
        Val::Map(fields) => Ok(fields.get(&CelMapKey::text(name)).cloned()),
        Val::Optional(Some(value)) => field(value, name),
        Val::Optional(None) => Ok(None),
        _ => Err(Failure::no_overload()),
    }
}

fn literal_value(literal: &LiteralValue) -> Val {
    match literal {
        LiteralValue::Boolean(it) => Val::Bool(*it.inner()),
        LiteralValue::Bytes(it) => Val::Bytes(it.inner().into()),
        LiteralValue::Double(it) => Val::Double(*it.inner()),
        LiteralValue::Int(it) => Val::Int(*it.inner()),
        LiteralValue::Null => Val::Null,
        LiteralValue::String(it) => Val::text(it.inner()),
        LiteralValue::UInt(it) => Val::Uint(*it.inner()),
    }
}
