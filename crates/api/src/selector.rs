//! Label and node selectors: as written, and compiled for matching.
//!
//! Compiling checks what upstream checks, with its error texts; matching neither fails on a label selector
//! nor allocates.

mod node;
mod text;
mod validity;

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use crate::go_json::{list, nullable, objects};
use crate::interned_str::Str;
use crate::meta::Labels;

pub use node::{
    CompiledNodeSelector, CompiledNodeTerm, PreferredNodeTerms, RequiredNodeAffinity,
    required_node_affinity,
};
pub use validity::{label_key_errors, label_value_errors};

/// A label selector as objects carry it. Absent selects nothing, empty selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelSelector {
    #[serde(deserialize_with = "nullable")]
    pub match_labels: Labels,
    #[serde(deserialize_with = "objects")]
    pub match_expressions: Vec<Requirement>,
}

impl LabelSelector {
    /// The keys of the labels that it reads; a key may repeat.
    pub fn label_keys(&self) -> impl Iterator<Item = &Str> {
        let of_expressions = self.match_expressions.iter().map(|expression| &expression.key);
        self.match_labels.iter().map(|(key, _)| key).chain(of_expressions)
    }
}

/// One condition on a label (or field): `In`, `NotIn`, `Exists`, `DoesNotExist`; for nodes also `Gt`, `Lt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Requirement {
    #[serde(deserialize_with = "nullable")]
    pub key: Str,
    #[serde(deserialize_with = "nullable")]
    pub operator: Str,
    #[serde(deserialize_with = "list")]
    pub values: Vec<Str>,
}

/// Terms of which one must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    #[serde(deserialize_with = "objects")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Conditions that must all hold; a term without any matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    #[serde(deserialize_with = "objects")]
    pub match_expressions: Vec<Requirement>,
    #[serde(deserialize_with = "objects")]
    pub match_fields: Vec<Requirement>,
}

/// Why a selector cannot be compiled, in upstream's words. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(Arc<str>);

impl fmt::Debug for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SelectorError({:?})", &*self.0)
    }
}

impl SelectorError {
    /// Several messages as upstream joins them: each once, bracketed unless there is but one.
    fn join(messages: &[String]) -> SelectorError {
        let mut unique: Vec<&str> = Vec::with_capacity(messages.len());
        for message in messages {
            if !unique.contains(&message.as_str()) {
                unique.push(message);
            }
        }
        SelectorError(match *unique {
            [only] => only.into(),
            _ => format!("[{}]", unique.join(", ")).into(),
        })
    }
}

/// A label selector ready for matching. Selectors that ask the same in another order of keys or values are
/// equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector(Option<Box<[Condition]>>);

/// How [`Selector::with_requirement`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetOperator {
    /// The label exists and has one of the values.
    In,
    /// The label does not exist or has none of the values.
    NotIn,
}

impl Selector {
    /// Compiles a selector as upstream's `LabelSelectorAsSelector`: absent matches nothing, empty everything.
    ///
    /// # Errors
    ///
    /// When an operator is not one of label selectors, values are missing or superfluous, or a key or value
    /// could not be that of a label. Only the first faulty requirement is reported.
    pub fn new(selector: Option<&LabelSelector>) -> Result<Selector, SelectorError> {
        let Some(selector) = selector else { return Ok(Selector::nothing()) };
        let n_conditions = selector.match_labels.len() + selector.match_expressions.len();
        let mut conditions = Vec::with_capacity(n_conditions);
        for (key, value) in selector.match_labels.iter() {
            validity::check_key_and_values(key, std::slice::from_ref(value), "")?;
            conditions.push(Condition { key: key.clone(), test: Test::Equals(value.clone()) });
        }
        for requirement in &selector.match_expressions {
            if !matches!(&*requirement.operator, "In" | "NotIn" | "Exists" | "DoesNotExist") {
                let operator = validity::quote(&requirement.operator);
                let message = format!("{operator} is not a valid label selector operator");
                return Err(SelectorError(message.into()));
            }
            let condition = Condition::new(requirement, "");
            conditions.push(condition.map_err(|messages| SelectorError::join(&messages))?);
        }
        Ok(Selector::all(conditions))
    }

    /// The selector no object matches.
    pub fn nothing() -> Selector {
        Selector(None)
    }

    /// The selector every object matches.
    pub fn everything() -> Selector {
        Selector(Some(Box::default()))
    }

    /// Objects that carry all these labels; nothing is checked, as in upstream's `SelectorFromSet`.
    pub fn from_pairs(pairs: &Labels) -> Selector {
        let condition = |(key, value): (&Str, &Str)| Condition {
            key: key.clone(),
            test: Test::Equals(value.clone()),
        };
        Selector::all(pairs.iter().map(condition).collect())
    }

    /// This selector, narrowed; nothing is checked. A selector of nothing stays one.
    #[must_use]
    pub fn with_requirement(
        self,
        key: Str,
        operator: SetOperator,
        values: impl IntoIterator<Item = Str>,
    ) -> Selector {
        let Some(conditions) = self.0 else { return self };
        let test = Test::membership(operator, values.into_iter().collect());
        let mut conditions = conditions.into_vec();
        conditions.push(Condition { key, test });
        Selector::all(conditions)
    }

    fn all(mut conditions: Vec<Condition>) -> Selector {
        conditions.sort();
        conditions.dedup();
        Selector(Some(conditions.into_boxed_slice()))
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        let matches_all = |all: &[Condition]| all.iter().all(|condition| condition.matches(labels));
        self.0.as_deref().is_some_and(matches_all)
    }

    /// Whether nothing is required, so that every object is selected (upstream's `Empty`).
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(|conditions| conditions.is_empty())
    }

    /// Whether this selects nothing because the selector was absent.
    pub fn is_nothing(&self) -> bool {
        self.0.is_none()
    }

    /// A label of which every selected object has one of these values, if the selector requires one; for an index.
    pub fn required_values(&self) -> Option<(&Str, &[Str])> {
        self.0.iter().flatten().find_map(|condition| match &condition.test {
            Test::Equals(value) => Some((&condition.key, std::slice::from_ref(value))),
            Test::In(values) => Some((&condition.key, &**values)),
            _ => None,
        })
    }

    /// The keys of the requirements in their order; a key may repeat.
    pub fn keys(&self) -> impl Iterator<Item = &Str> {
        self.0.iter().flatten().map(|condition| &condition.key)
    }
}

/// One requirement, checked and ready.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Condition {
    key: Str,
    test: Test,
}

/// What the value of a label must be. Values are sorted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Test {
    Equals(Str),
    In(Box<[Str]>),
    NotIn(Box<[Str]>),
    Exists,
    DoesNotExist,
    Greater(i64),
    Less(i64),
}

impl Condition {
    /// Compiles any requirement of a label or node selector; on failure all that is wrong with it. `path`
    /// leads the error texts if it is not empty.
    fn new(requirement: &Requirement, path: &str) -> Result<Condition, Vec<String>> {
        validity::check(requirement, path)?;
        let values = || requirement.values.to_vec();
        let test = match &*requirement.operator {
            "In" => Test::membership(SetOperator::In, values()),
            "NotIn" => Test::membership(SetOperator::NotIn, values()),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::DoesNotExist,
            _ => {
                // Checked above: `Gt` or `Lt` with one integer.
                let bound = requirement.values.first().and_then(|value| value.parse().ok());
                let bound = bound.unwrap_or_default();
                if requirement.operator == "Gt" { Test::Greater(bound) } else { Test::Less(bound) }
            }
        };
        Ok(Condition { key: requirement.key.clone(), test })
    }

    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            Test::Equals(wanted) => value == Some(wanted),
            Test::In(wanted) => value.is_some_and(|value| wanted.contains(value)),
            Test::NotIn(unwanted) => value.is_none_or(|value| !unwanted.contains(value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::Greater(bound) => value.and_then(integer).is_some_and(|value| value > *bound),
            Test::Less(bound) => value.and_then(integer).is_some_and(|value| value < *bound),
        }
    }
}

impl Test {
    fn membership(operator: SetOperator, mut values: Vec<Str>) -> Test {
        values.sort();
        values.dedup();
        match (operator, &*values) {
            (SetOperator::In, [only]) => Test::Equals(only.clone()),
            (SetOperator::In, _) => Test::In(values.into()),
            (SetOperator::NotIn, _) => Test::NotIn(values.into()),
        }
    }
}

fn integer(text: &Str) -> Option<i64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests;
