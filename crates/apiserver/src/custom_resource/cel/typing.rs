//! Type-checks expressions: names, fields, and arguments of functions.

use ::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};

use super::library;
use super::types::{self, BOOL_TYPE, STRING_TYPE, Ty};

/// A type error at a node of an expression.
#[derive(Debug)]
pub struct TypeCheckError {
    pub node: u64,
    pub text: String,
}

/// Names of values an expression may use, the newest last.
type Scope = Vec<(String, Ty)>;

pub struct TypeChecker {
    scope: Scope,
    pub complaints: Vec<TypeCheckError>,
    /// Whether `oldSelf` is used.
    pub uses_old: bool,
}

/// The type of an expression over some values.
pub fn check_expression_type(expr: &IdedExpr, scope: Scope) -> (Ty, TypeChecker) {
    let mut typing = TypeChecker { scope, complaints: Vec::new(), uses_old: false };
    let ty = typing.of(expr);
    (ty, typing)
}

/// Whether a name is that of a type; `dyn` has no values of its own.
fn is_type(name: &str) -> bool {
    name == "dyn" || library::type_named(name).is_some()
}

impl TypeChecker {
    fn complain(&mut self, node: u64, text: String) -> Ty {
        self.complaints.push(TypeCheckError { node, text });
        Ty::Dyn
    }

    fn all(&mut self, list: &[IdedExpr]) -> Vec<Ty> {
        list.iter().map(|it| self.of(it)).collect()
    }

    /// What the values of a list have in common.
    fn common(types: impl IntoIterator<Item = Ty>) -> Ty {
        let joined = types.into_iter().map(Some).reduce(|a, b| types::common_type(&a?, &b?));
        joined.flatten().unwrap_or(Ty::Dyn)
    }

    fn of(&mut self, expr: &IdedExpr) -> Ty {
        match &expr.expr {
            Expr::Unspecified => Ty::Dyn,
            Expr::Literal(literal) => literal_type(literal),
            Expr::Ident(name) => self.name(expr.id, name),
            Expr::Select(select) => {
                if let Some(name) = qualified_name(expr)
                    && is_type(&name)
                {
                    return Ty::Type;
                }
                let operand = self.of(&select.operand);
                let field = self.field(expr.id, &operand, &select.field);
                if select.test { BOOL_TYPE } else { field }
            }
            Expr::List(list) => {
                let types = self.all(&list.elements);
                let bare = types.into_iter().enumerate().map(|(at, ty)| match ty {
                    Ty::Optional(of) if list.optional_indices.contains(&at) => *of,
                    other => other,
                });
                Ty::list(TypeChecker::common(bare))
            }
            Expr::Map(map) => {
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        keys.push(self.of(&entry.key));
                        values.push(match (self.of(&entry.value), entry.optional) {
                            (Ty::Optional(of), true) => *of,
                            (other, _) => other,
                        });
                    }
                }
                Ty::Map(Box::new(TypeChecker::common(keys)), Box::new(TypeChecker::common(values)))
            }
            Expr::Struct(it) => self.complain(
                expr.id,
                format!("undeclared reference to '{}' (in container '')", it.type_name),
            ),
            Expr::Comprehension(it) => self.comprehension(it),
            Expr::Call(call) => self.call(expr.id, call),
        }
    }

    fn name(&mut self, node: u64, name: &str) -> Ty {
        self.uses_old |= name == "oldSelf";
        if let Some((_, ty)) = self.scope.iter().rev().find(|(it, _)| it == name) {
            return ty.clone();
        }
        if is_type(name) {
            return Ty::Type;
        }
        self.complain(node, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn field(&mut self, node: u64, operand: &Ty, name: &str) -> Ty {
        match operand {
            Ty::Dyn => Ty::Dyn,
            Ty::Map(_, value) => (**value).clone(),
            Ty::Optional(of) => {
                let of = self.field(node, of, name);
                Ty::Optional(Box::new(of))
            }
            Ty::Object(fields) => match fields.get(name) {
                Some(ty) => ty.clone(),
                None => self.complain(node, format!("undefined field '{name}'")),
            },
            other => {
                self.complain(node, format!("type '{other}' does not support field selection"))
            }
        }
    }

    fn within<T>(
        &mut self,
        names: Vec<(String, Ty)>,
        run: impl FnOnce(&mut TypeChecker) -> T,
    ) -> T {
        let mark = self.scope.len();
        self.scope.extend(names);
        let result = run(self);
        self.scope.truncate(mark);
        result
    }

    /// The types of the variables that go over something.
    fn variables(&mut self, range: &IdedExpr) -> (Ty, Ty) {
        match self.of(range) {
            Ty::Dyn => (Ty::Dyn, Ty::Dyn),
            Ty::List(of) => (Ty::Plain("int"), *of),
            Ty::Map(key, value) => (*key, *value),
            other => {
                let text = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.complain(range.id, text);
                (Ty::Dyn, Ty::Dyn)
            }
        }
    }

    fn comprehension(&mut self, it: &ComprehensionExpr) -> Ty {
        let is_list = |typing: &mut TypeChecker| {
            let mark = typing.complaints.len();
            let is_map = matches!(typing.of(&it.iter_range), Ty::Map(..));
            typing.complaints.truncate(mark);
            !is_map
        };
        let is_list = is_list(self);
        let (first, second) = self.variables(&it.iter_range);
        let init = self.of(&it.accu_init);
        let mut names = vec![(it.accu_var.clone(), init.clone())];
        match &it.iter_var2 {
            Some(name) => names.extend([(it.iter_var.clone(), first), (name.clone(), second)]),
            None => names.push((it.iter_var.clone(), if is_list { second } else { first })),
        }
        let step = self.within(names, |typing| {
            typing.of(&it.loop_cond);
            typing.of(&it.loop_step)
        });
        let accumulated = match (&init, &step) {
            (Ty::List(of), Ty::List(_)) if **of == Ty::Dyn => step,
            _ => init,
        };
        self.within(vec![(it.accu_var.clone(), accumulated)], |typing| typing.of(&it.result))
    }

    fn call(&mut self, node: u64, call: &CallExpr) -> Ty {
        let name = call.func_name.as_str();
        if name == "_?._" {
            return self.optional_field(node, call);
        }
        if let Some(target) = &call.target {
            // A function in a namespace looks like a call on a name.
            let full = qualified_name(target).map(|it| format!("{it}.{name}"));
            if let Some(full) = full.filter(|it| types::is_function(it)) {
                let args = self.all(&call.args);
                return self.signature(node, &full, None, &args);
            }
            if let Some(ty) = self.special(name, target, &call.args) {
                return ty;
            }
            let target = self.of(target);
            let args = self.all(&call.args);
            return self.signature(node, name, Some(&target), &args);
        }
        let args = self.all(&call.args);
        self.signature(node, name, None, &args)
    }

    fn signature(&mut self, node: u64, name: &str, target: Option<&Ty>, args: &[Ty]) -> Ty {
        if !types::is_function(name) {
            let text = format!("undeclared reference to '{name}' (in container '')");
            return self.complain(node, text);
        }
        if let Some(ty) = types::call_result_type(name, target, args) {
            return ty;
        }
        let args: Vec<String> = args.iter().map(Ty::to_string).collect();
        let args = args.join(", ");
        let applied = target.map_or_else(|| format!("({args})"), |it| format!("{it}.({args})"));
        self.complain(
            node,
            format!("found no matching overload for '{name}' applied to '{applied}'"),
        )
    }

    fn optional_field(&mut self, node: u64, call: &CallExpr) -> Ty {
        let [operand, field] = call.args.as_slice() else { return Ty::Dyn };
        let operand = match self.of(operand) {
            Ty::Optional(of) => *of,
            other => other,
        };
        let Expr::Literal(LiteralValue::String(name)) = &field.expr else { return Ty::Dyn };
        let of = self.field(node, &operand, name.inner());
        Ty::Optional(Box::new(of))
    }

    /// Macros of upstream's libraries that name a variable of their own.
    fn special(&mut self, name: &str, target: &IdedExpr, args: &[IdedExpr]) -> Option<Ty> {
        match (name, args) {
            ("optMap" | "optFlatMap", [var, body]) => {
                let var = macro_variable(var)?;
                let of = match self.of(target) {
                    Ty::Optional(of) => *of,
                    _ => Ty::Dyn,
                };
                let ty = self.within(vec![(var, of)], |typing| typing.of(body));
                Some(match ty {
                    Ty::Optional(_) if name == "optFlatMap" => ty,
                    other => Ty::Optional(Box::new(other)),
                })
            }
            ("sortBy", [var, body]) => {
                let var = macro_variable(var)?;
                let (_, of) = self.variables(target);
                self.within(vec![(var, of.clone())], |typing| typing.of(body));
                Some(Ty::list(of))
            }
            (
                "all" | "exists" | "existsOne" | "exists_one" | "transformList" | "transformMap"
                | "transformMapEntry",
                [one, two, rest @ ..],
            ) if !rest.is_empty() && rest.len() < 3 => {
                let (one, two) = (macro_variable(one)?, macro_variable(two)?);
                let (first, second) = self.variables(target);
                let names = vec![(one, first.clone()), (two, second)];
                let types = self.within(names, |typing| typing.all(rest));
                let last = types.into_iter().next_back().unwrap_or(Ty::Dyn);
                Some(match name {
                    "transformList" => Ty::list(last),
                    "transformMap" => Ty::Map(Box::new(first), Box::new(last)),
                    "transformMapEntry" => last,
                    _ => BOOL_TYPE,
                })
            }
            _ => None,
        }
    }
}

fn literal_type(literal: &LiteralValue) -> Ty {
    match literal {
        LiteralValue::Boolean(_) => BOOL_TYPE,
        LiteralValue::Bytes(_) => Ty::Plain("bytes"),
        LiteralValue::Double(_) => Ty::Plain("double"),
        LiteralValue::Int(_) => Ty::Plain("int"),
        LiteralValue::Null => Ty::Plain("null_type"),
        LiteralValue::String(_) => STRING_TYPE,
        LiteralValue::UInt(_) => Ty::Plain("uint"),
    }
}

/// The variable that a macro names.
pub fn macro_variable(expr: &IdedExpr) -> Option<String> {
    match &expr.expr {
        Expr::Ident(name) => Some(name.clone()),
        _ => None,
    }
}

/// `a.b.c`, if the expression is nothing else.
pub fn qualified_name(expr: &IdedExpr) -> Option<String> {
    match &expr.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => {
            Some(format!("{}.{}", qualified_name(&select.operand)?, select.field))
        }
        _ => None,
    }
}
