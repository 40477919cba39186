//! From tokens to a tree.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::vec::IntoIter;

use serde_json::Value;

use super::functions::TEMPLATE_FUNCTIONS;
use super::lexer::{TemplatePart, Token, split_template};
use super::{GoTemplate, GoTemplateError};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Text(String),
    Show(Pipeline),
    /// Of a new variable, or of one that is there.
    Set {
        name: String,
        is_new: bool,
        pipeline: Pipeline,
    },
    If {
        condition: Pipeline,
        body: Vec<Node>,
        other: Vec<Node>,
    },
    With {
        pipeline: Pipeline,
        variable: Option<String>,
        body: Vec<Node>,
        other: Vec<Node>,
    },
    Range {
        pipeline: Pipeline,
        key: Option<String>,
        value: Option<String>,
        body: Vec<Node>,
        other: Vec<Node>,
    },
    Template {
        name: String,
        argument: Option<Pipeline>,
    },
    Break,
    Continue,
}

/// Commands; each gets the result of the one before as its last argument.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pipeline(pub Vec<Command>);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Value(Operand),
    Call(String, Vec<Operand>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operand {
    pub base: Base,
    pub fields: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Base {
    Dot,
    Variable(String),
    Literal(Value),
    Pipeline(Pipeline),
    /// A function without arguments.
    Call(String),
}

pub(super) fn parse(text: &str, more: &[&str]) -> Result<GoTemplate, GoTemplateError> {
    let mut parser = Parser {
        pieces: split_template(text)?.into_iter(),
        more,
        defined: BTreeMap::new(),
        line: 1,
        depth: 0,
    };
    let (root, end) = parser.body()?;
    match end {
        Until::Eof => Ok(GoTemplate { root, defined: parser.defined }),
        Until::End | Until::Else(_) => Err(parser.wrong("an end without a beginning")),
    }
}

struct Parser<'a> {
    pieces: IntoIter<TemplatePart>,
    more: &'a [&'a str],
    defined: BTreeMap<String, Vec<Node>>,
    line: usize,
    depth: usize,
}

/// What ends a body. What follows an `else` is its own condition.
enum Until {
    Eof,
    End,
    Else(Vec<Token>),
}

/// No template is nested deeper.
const DEPTH_MAX: usize = 64;

type Tokens = Peekable<IntoIter<Token>>;

impl Parser<'_> {
    fn wrong(&self, text: impl Into<String>) -> GoTemplateError {
        GoTemplateError { line: self.line, text: text.into() }
    }

    fn deeper(&mut self) -> Result<(), GoTemplateError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX { Err(self.wrong("nested too deeply")) } else { Ok(()) }
    }

    fn body(&mut self) -> Result<(Vec<Node>, Until), GoTemplateError> {
        self.deeper()?;
        let mut nodes = Vec::new();
        let end = loop {
            let (tokens, line) = match self.pieces.next() {
                None => break Until::Eof,
                Some(TemplatePart::Text(text)) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Some(TemplatePart::Action { tokens, line }) => (tokens, line),
            };
            self.line = line;
            let mut tokens = tokens.into_iter();
            match tokens.as_slice().first() {
                Some(Token::Word(word)) if word == "end" => break Until::End,
                Some(Token::Word(word)) if word == "else" => {
                    tokens.next();
                    break Until::Else(tokens.collect());
                }
                Some(Token::Word(word)) if is_keyword(word) => {
                    let word = word.clone();
                    tokens.next();
                    nodes.extend(self.block(&word, tokens.collect())?);
                }
                Some(_) => nodes.push(self.simple(tokens.peekable())?),
                None => return Err(self.wrong("an empty action")),
            }
        };
        self.depth -= 1;
        Ok((nodes, end))
    }

    fn block(&mut self, word: &str, tokens: Vec<Token>) -> Result<Option<Node>, GoTemplateError> {
        let mut tokens = tokens.into_iter().peekable();
        Ok(Some(match word {
            "if" => {
                let condition = self.pipeline(&mut tokens)?;
                let (body, other) = self.arms(word)?;
                Node::If { condition, body, other }
            }
            "with" => {
                let mut names = self.names(&mut tokens)?;
                let pipeline = self.pipeline(&mut tokens)?;
                let (body, other) = self.arms(word)?;
                Node::With { pipeline, variable: names.pop(), body, other }
            }
            "range" => {
                let mut names = self.names(&mut tokens)?;
                let pipeline = self.pipeline(&mut tokens)?;
                let (body, other) = self.arms(word)?;
                let value = names.pop();
                Node::Range { pipeline, key: names.pop(), value, body, other }
            }
            "break" => Node::Break,
            "continue" => Node::Continue,
            _ => {
                let Some(Token::Text(name)) = tokens.next() else {
                    return Err(self.wrong(format!("{word}: expected a name in quotes")));
                };
                if word == "define" {
                    let (body, Until::End) = self.body()? else {
                        return Err(self.wrong("define without end"));
                    };
                    self.defined.insert(name, body);
                    return Ok(None);
                }
                let argument =
                    tokens.peek().is_some().then(|| self.pipeline(&mut tokens)).transpose()?;
                Node::Template { name, argument }
            }
        }))
    }

    /// The body of a block, and what its `else` says.
    fn arms(&mut self, word: &str) -> Result<(Vec<Node>, Vec<Node>), GoTemplateError> {
        let begun = self.line;
        let (body, end) = self.body()?;
        let other = match end {
            Until::End => Vec::new(),
            Until::Eof => {
                return Err(GoTemplateError { line: begun, text: format!("{word} without end") });
            }
            Until::Else(tokens) => match tokens.first() {
                None => match self.body()? {
                    (other, Until::End) => other,
                    _ => {
                        return Err(GoTemplateError {
                            line: begun,
                            text: format!("{word} without end"),
                        });
                    }
                },
                // It shares its end with the block it belongs to.
                Some(Token::Word(inner)) if inner == "if" || inner == "with" => {
                    let inner = inner.clone();
                    self.deeper()?;
                    let other = self.block(&inner, tokens.into_iter().skip(1).collect())?;
                    self.depth -= 1;
                    other.into_iter().collect()
                }
                Some(_) => return Err(self.wrong("unexpected words behind else")),
            },
        };
        Ok((body, other))
    }

    /// `$a, $b :=`, if that is how it begins.
    fn names(&self, tokens: &mut Tokens) -> Result<Vec<String>, GoTemplateError> {
        let rest: Vec<Token> = tokens.clone().collect();
        let n = match rest.as_slice() {
            [Token::Variable(_), Token::Mark(":="), ..] => 1,
            [Token::Variable(_), Token::Mark(","), Token::Variable(_), Token::Mark(":="), ..] => 2,
            _ => return Ok(Vec::new()),
        };
        let names = tokens.by_ref().take(2 * n).filter_map(|token| match token {
            Token::Variable(name) => Some(name),
            _ => None,
        });
        Ok(names.collect())
    }

    fn simple(&self, mut tokens: Tokens) -> Result<Node, GoTemplateError> {
        let begins: Vec<Token> = tokens.clone().take(2).collect();
        if let [Token::Variable(name), Token::Mark(mark @ (":=" | "="))] = begins.as_slice() {
            let (name, is_new) = (name.clone(), *mark == ":=");
            tokens.nth(1);
            return Ok(Node::Set { name, is_new, pipeline: self.pipeline(&mut tokens)? });
        }
        self.pipeline(&mut tokens).map(Node::Show)
    }

    /// All that is left.
    fn pipeline(&self, tokens: &mut Tokens) -> Result<Pipeline, GoTemplateError> {
        let pipeline = self.commands(tokens, 0)?;
        match tokens.next() {
            None => Ok(pipeline),
            Some(token) => Err(self.wrong(format!("unexpected {token:?}"))),
        }
    }

    fn commands(&self, tokens: &mut Tokens, depth: usize) -> Result<Pipeline, GoTemplateError> {
        if depth > DEPTH_MAX {
            return Err(self.wrong("nested too deeply"));
        }
        let mut commands = vec![self.command(tokens, depth)?];
        while tokens.next_if_eq(&Token::Mark("|")).is_some() {
            commands.push(self.command(tokens, depth)?);
        }
        if let Some(Command::Value(_)) =
            commands.iter().skip(1).find(|it| matches!(it, Command::Value(_)))
        {
            return Err(self.wrong("expected a function behind |"));
        }
        Ok(Pipeline(commands))
    }

    fn command(&self, tokens: &mut Tokens, depth: usize) -> Result<Command, GoTemplateError> {
        let called = match tokens.peek() {
            Some(Token::Word(name)) if literal(name).is_none() => Some(name.clone()),
            _ => None,
        };
        if let Some(name) = called {
            tokens.next();
            self.check_function(&name)?;
            let mut arguments = Vec::new();
            while !matches!(tokens.peek(), None | Some(Token::Mark("|" | ")"))) {
                arguments.push(self.operand(tokens, depth)?);
            }
            return Ok(Command::Call(name, arguments));
        }
        let operand = self.operand(tokens, depth)?;
        match tokens.peek() {
            None | Some(Token::Mark("|" | ")")) => Ok(Command::Value(operand)),
            Some(token) => {
                Err(self.wrong(format!("unexpected {token:?}: only functions take arguments")))
            }
        }
    }

    fn check_function(&self, name: &str) -> Result<(), GoTemplateError> {
        if TEMPLATE_FUNCTIONS.contains(&name) || self.more.contains(&name) {
            return Ok(());
        }
        Err(self.wrong(format!("there is no function {name:?}")))
    }

    fn operand(&self, tokens: &mut Tokens, depth: usize) -> Result<Operand, GoTemplateError> {
        let mut fields = Vec::new();
        let base = match tokens.next() {
            Some(Token::Dot) => Base::Dot,
            Some(Token::Field { name, .. }) => {
                fields.push(name);
                Base::Dot
            }
            Some(Token::Variable(name)) => Base::Variable(name),
            Some(Token::Text(text)) => Base::Literal(text.into()),
            Some(Token::Number(number)) => Base::Literal(number.into()),
            Some(Token::Word(word)) => match literal(&word) {
                Some(value) => Base::Literal(value),
                None => {
                    self.check_function(&word)?;
                    Base::Call(word)
                }
            },
            Some(Token::Mark("(")) => {
                let pipeline = self.commands(tokens, depth + 1)?;
                if tokens.next() != Some(Token::Mark(")")) {
                    return Err(self.wrong("expected )"));
                }
                Base::Pipeline(pipeline)
            }
            Some(token) => return Err(self.wrong(format!("unexpected {token:?}"))),
            None => return Err(self.wrong("expected a value")),
        };
        while let Some(Token::Field { name, glued: true }) = tokens.peek() {
            fields.push(name.clone());
            tokens.next();
        }
        Ok(Operand { base, fields })
    }
}

fn is_keyword(word: &str) -> bool {
    ["if", "with", "range", "break", "continue", "define", "template"].contains(&word)
}

fn literal(word: &str) -> Option<Value> {
    match word {
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        "nil" => Some(Value::Null),
        _ => None,
    }
}
