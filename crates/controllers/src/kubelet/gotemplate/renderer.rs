//! From a tree to text.

use serde_json::Value;

use super::functions::{call, format_value, is_true};
use super::parser::{Base, Command, Node, Operand, Pipeline};
use super::{GoTemplate, TemplateFunctions};

/// Templates that call themselves, texts without end, loops within loops and values that double are given up. A value costs a
/// step for each of its parts and for each 64 bytes of its texts, whenever it is copied or made.
const DEPTH_MAX: usize = 32;
const VALUE_DEPTH_MAX: usize = 200;
const N_STEPS_MAX: usize = 1_000_000;
const LEN_MAX: usize = 4 << 20;

pub(super) fn render(
    template: &GoTemplate,
    root: &Value,
    functions: &dyn TemplateFunctions,
) -> Result<String, String> {
    let variables = vec![(String::new(), root.clone())];
    let mut run = Run { template, functions, out: String::new(), variables, depth: 0, n_steps: 0 };
    run.all(&template.root, root)?;
    Ok(run.out)
}

struct Run<'a> {
    template: &'a GoTemplate,
    functions: &'a dyn TemplateFunctions,
    out: String,
    /// The innermost last. The first one is `$`.
    variables: Vec<(String, Value)>,
    depth: usize,
    n_steps: usize,
}

/// How a body ended.
#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl Run<'_> {
    fn spend(&mut self, n_steps: usize) -> Result<(), String> {
        self.n_steps += n_steps;
        if self.n_steps > N_STEPS_MAX {
            return Err(format!("more than {N_STEPS_MAX} steps"));
        }
        Ok(())
    }

    fn spend_on(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        if depth > VALUE_DEPTH_MAX {
            return Err(format!("a value of more than {VALUE_DEPTH_MAX} levels"));
        }
        self.spend(1)?;
        match value {
            Value::String(text) => self.spend(text.len() / 64),
            Value::Array(items) => items.iter().try_for_each(|it| self.spend_on(it, depth + 1)),
            Value::Object(map) => map.iter().try_for_each(|(key, it)| {
                self.spend(key.len() / 64)?;
                self.spend_on(it, depth + 1)
            }),
            _ => Ok(()),
        }
    }

    /// Variables end with the body in which they began.
    fn all(&mut self, nodes: &[Node], dot: &Value) -> Result<Flow, String> {
        let n_variables = self.variables.len();
        let mut flow = Flow::On;
        for node in nodes {
            flow = self.node(node, dot)?;
            if flow != Flow::On {
                break;
            }
        }
        self.variables.truncate(n_variables);
        Ok(flow)
    }

    fn node(&mut self, node: &Node, dot: &Value) -> Result<Flow, String> {
        self.spend(1)?;
        match node {
            Node::Text(text) => self.write(text)?,
            Node::Show(pipeline) => {
                let value = self.pipeline(pipeline, dot)?;
                self.write(&format_value(&value))?;
            }
            Node::Set { name, is_new, pipeline } => {
                let value = self.pipeline(pipeline, dot)?;
                if *is_new {
                    self.variables.push((name.clone(), value));
                } else {
                    let old = self.variables.iter_mut().rev().find(|(it, _)| it == name);
                    old.ok_or_else(|| format!("there is no variable ${name}"))?.1 = value;
                }
            }
            Node::If { condition, body, other } => {
                let nodes = if is_true(&self.pipeline(condition, dot)?) { body } else { other };
                return self.all(nodes, dot);
            }
            Node::With { pipeline, variable, body, other } => {
                let value = self.pipeline(pipeline, dot)?;
                if !is_true(&value) {
                    return self.all(other, dot);
                }
                return self.inside(
                    variable.iter().map(|name| (name, value.clone())),
                    body,
                    &value,
                );
            }
            Node::Range { pipeline, key, value, body, other } => {
                let over = self.pipeline(pipeline, dot)?;
                return self.range(&over, key.as_ref(), value.as_ref(), body, other, dot);
            }
            Node::Template { name, argument } => self.template(name, argument.as_ref(), dot)?,
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn inside<'n>(
        &mut self,
        variables: impl Iterator<Item = (&'n String, Value)>,
        body: &[Node],
        dot: &Value,
    ) -> Result<Flow, String> {
        let n_variables = self.variables.len();
        self.variables.extend(variables.map(|(name, value)| (name.clone(), value)));
        let flow = self.all(body, dot);
        self.variables.truncate(n_variables);
        flow
    }

    fn range(
        &mut self,
        over: &Value,
        key: Option<&String>,
        value: Option<&String>,
        body: &[Node],
        other: &[Node],
        dot: &Value,
    ) -> Result<Flow, String> {
        let items: Vec<(Value, &Value)> = match over {
            Value::Null => Vec::new(),
            Value::Array(items) => {
                items.iter().enumerate().map(|(n, item)| (n.into(), item)).collect()
            }
            Value::Object(map) => {
                map.iter().map(|(key, item)| (key.as_str().into(), item)).collect()
            }
            other => return Err(format!("range can't iterate over {}", format_value(other))),
        };
        if items.is_empty() {
            return self.all(other, dot);
        }
        for (n, item) in items {
            let named = [key.map(|key| (key, n)), value.map(|value| (value, item.clone()))];
            if self.inside(named.into_iter().flatten(), body, item)? == Flow::Break {
                break;
            }
        }
        Ok(Flow::On)
    }

    fn template(
        &mut self,
        name: &str,
        argument: Option<&Pipeline>,
        dot: &Value,
    ) -> Result<(), String> {
        let argument = argument.map(|it| self.pipeline(it, dot)).transpose()?.unwrap_or_default();
        let body = self
            .template
            .defined
            .get(name)
            .ok_or_else(|| format!("there is no template {name:?}"))?;
        if self.depth >= DEPTH_MAX {
            return Err(format!("template {name:?} calls itself too often"));
        }
        self.depth += 1;
        // It sees nothing of its caller but the argument.
        let callers =
            std::mem::replace(&mut self.variables, vec![(String::new(), argument.clone())]);
        let done = self.all(body, &argument);
        self.variables = callers;
        self.depth -= 1;
        done.map(|_| ())
    }

    fn write(&mut self, text: &str) -> Result<(), String> {
        if self.out.len() + text.len() > LEN_MAX {
            return Err(format!("more than {LEN_MAX} bytes"));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn pipeline(&mut self, pipeline: &Pipeline, dot: &Value) -> Result<Value, String> {
        let mut last = None;
        for command in &pipeline.0 {
            last = Some(match command {
                Command::Value(operand) => self.operand(operand, dot)?,
                Command::Call(name, operands) => {
                    let arguments = operands.iter().map(|it| self.operand(it, dot));
                    let mut arguments: Vec<Value> = arguments.collect::<Result<_, String>>()?;
                    arguments.extend(last);
                    self.call(name, &arguments)?
                }
            });
        }
        Ok(last.unwrap_or_default())
    }

    fn call(&mut self, name: &str, arguments: &[Value]) -> Result<Value, String> {
        let value = call(name, arguments, self.functions)?;
        self.spend_on(&value, 0)?;
        Ok(value)
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Value, String> {
        let made = match &operand.base {
            Base::Pipeline(pipeline) => self.pipeline(pipeline, dot)?,
            Base::Call(name) => self.call(name, &[])?,
            _ => Value::Null,
        };
        let base = match &operand.base {
            Base::Dot => dot,
            Base::Literal(value) => value,
            Base::Variable(name) => {
                let found = self.variables.iter().rev().find(|(it, _)| it == name);
                &found.ok_or_else(|| format!("there is no variable ${name}"))?.1
            }
            Base::Pipeline(_) | Base::Call(_) => &made,
        };
        let value = operand.fields.iter().try_fold(base, |value, name| value.get(name));
        let value = value.cloned().unwrap_or_default();
        self.spend_on(&value, 0)?;
        Ok(value)
    }
}
