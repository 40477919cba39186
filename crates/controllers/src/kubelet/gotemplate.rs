//! Go templates, as far as KWOK's stages use them. Pure.
//!
//! Actions: values, pipelines, variables, `if`, `range`, `with`, `else`, `break`, `continue`, `define`, `template`, comments, trimmed blanks.
//! Functions: those that Go and KWOK have and [`TEMPLATE_FUNCTIONS`] lists, and what the caller adds ([`TemplateFunctions`]). Anything else is rejected
//! when the template is read, not when it is used.

mod functions;
mod lexer;
mod parser;
mod renderer;

use std::collections::BTreeMap;

use serde_json::Value;

pub use functions::TEMPLATE_FUNCTIONS;
use parser::Node;

/// A template that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct GoTemplate {
    root: Vec<Node>,
    defined: BTreeMap<String, Vec<Node>>,
}

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text}")]
pub struct GoTemplateError {
    /// From 1, within the template.
    pub line: usize,
    /// What is wrong.
    pub text: String,
}

/// Functions of the caller.
pub trait TemplateFunctions {
    /// Calls one by its name.
    ///
    /// # Errors
    ///
    /// When its arguments are of no use to it.
    fn call(&self, name: &str, arguments: &[Value]) -> Result<Value, String>;
}

impl GoTemplate {
    /// Reads a template, in which these functions may be called beside [`TEMPLATE_FUNCTIONS`].
    ///
    /// # Errors
    ///
    /// When it is no template, or calls others.
    pub fn parse(text: &str, more: &[&str]) -> Result<GoTemplate, GoTemplateError> {
        parser::parse(text, more)
    }

    /// What becomes of it.
    ///
    /// # Errors
    ///
    /// When a function cannot work with its arguments.
    pub fn render(
        &self,
        root: &Value,
        functions: &dyn TemplateFunctions,
    ) -> Result<String, String> {
        renderer::render(self, root, functions)
    }
}

#[cfg(test)]
mod tests;
