//! Node selectors and node affinity, ready for matching.
//!
//! Upstream is lenient here: an ill-formed term does not spoil the selector, its faults are reported only
//! if no other term matches. The same holds for [`CompiledNodeSelector`].

use super::validity::{invalid_values, not_supported};
use super::{Condition, NodeSelector, NodeSelectorTerm, Requirement, Selector, SelectorError};
use crate::interned_str::Str;
use crate::meta::Labels;
use crate::pod::PreferredSchedulingTerm;

/// The field a node selector can look at.
const NAME_FIELD: &str = "metadata.name";

/// Operators of field expressions; the text upstream lists them with.
const FIELD_OPERATORS: &str = r#""In", "NotIn""#;

/// A node selector's terms, of which one must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompiledNodeSelector {
    terms: Box<[CompiledNodeTerm]>,
    /// What is wrong with the terms left out.
    error: Option<SelectorError>,
}

impl CompiledNodeSelector {
    /// Compiles what is well-formed and keeps the faults of the rest (upstream's `NewLazyErrorNodeSelector`).
    pub fn new(selector: &NodeSelector) -> CompiledNodeSelector {
        let mut terms = Vec::with_capacity(selector.node_selector_terms.len());
        let mut messages = Vec::new();
        for (at, term) in selector.node_selector_terms.iter().enumerate() {
            match CompiledNodeTerm::at_path(term, &format!("nodeSelectorTerms[{at}]")) {
                Ok(compiled) => terms.extend(compiled),
                Err(faults) => messages.extend(faults),
            }
        }
        let error = (!messages.is_empty()).then(|| SelectorError::join(&messages));
        CompiledNodeSelector { terms: terms.into_boxed_slice(), error }
    }

    /// Compiles a selector that must be well-formed in every term (upstream's `NewNodeSelector`).
    ///
    /// # Errors
    ///
    /// All faults of all terms.
    pub fn strict(selector: &NodeSelector) -> Result<CompiledNodeSelector, SelectorError> {
        let compiled = CompiledNodeSelector::new(selector);
        compiled.error.clone().map_or(Ok(compiled), Err)
    }

    /// Whether a node with these labels and this name is selected. Without terms, none is.
    ///
    /// # Errors
    ///
    /// When no well-formed term matches and there are ill-formed ones: the faults of those.
    pub fn matches(&self, labels: &Labels, name: &str) -> Result<bool, SelectorError> {
        if self.terms.iter().any(|term| term.matches(labels, name)) {
            return Ok(true);
        }
        self.error.clone().map_or(Ok(false), Err)
    }

    /// The keys of the labels that are read; a key may repeat.
    pub fn label_keys(&self) -> impl Iterator<Item = &Str> {
        self.terms.iter().flat_map(|term| term.labels.keys())
    }
}

/// One term of a node selector: conditions on labels and fields that must all hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompiledNodeTerm {
    labels: Selector,
    fields: Box<[FieldCondition]>,
}

impl CompiledNodeTerm {
    /// Compiles a term; `None` if it has no condition, for such a term matches nothing.
    ///
    /// # Errors
    ///
    /// All faults of the term.
    pub fn new(term: &NodeSelectorTerm) -> Result<Option<CompiledNodeTerm>, SelectorError> {
        CompiledNodeTerm::at_path(term, "").map_err(|messages| SelectorError::join(&messages))
    }

    fn at_path(term: &NodeSelectorTerm, path: &str) -> Result<Option<Self>, Vec<String>> {
        if term.match_expressions.is_empty() && term.match_fields.is_empty() {
            return Ok(None);
        }
        let dot = if path.is_empty() { "" } else { "." };
        let mut messages = Vec::new();
        let mut labels = Vec::with_capacity(term.match_expressions.len());
        for (at, requirement) in term.match_expressions.iter().enumerate() {
            match Condition::new(requirement, &format!("{path}{dot}matchExpressions[{at}]")) {
                Ok(condition) => labels.push(condition),
                Err(faults) => messages.extend(faults),
            }
        }
        let mut fields = Vec::with_capacity(term.match_fields.len());
        for (at, requirement) in term.match_fields.iter().enumerate() {
            match FieldCondition::new(requirement, &format!("{path}{dot}matchFields[{at}]")) {
                Ok(condition) => fields.push(condition),
                Err(fault) => messages.push(fault),
            }
        }
        if !messages.is_empty() {
            return Err(messages);
        }
        Ok(Some(CompiledNodeTerm { labels: Selector::all(labels), fields: fields.into() }))
    }

    /// Whether a node with these labels and this name fulfils the term. Fields of a nameless node are not
    /// looked at.
    pub fn matches(&self, labels: &Labels, name: &str) -> bool {
        self.labels.matches(labels)
            && (name.is_empty() || self.fields.iter().all(|field| field.matches(name)))
    }
}

/// A condition on a field. Fields other than the name are empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FieldCondition {
    is_name: bool,
    equal: bool,
    value: Str,
}

impl FieldCondition {
    fn new(requirement: &Requirement, path: &str) -> Result<FieldCondition, String> {
        let Requirement { key, operator, values } = requirement;
        let equal = match &**operator {
            "In" => true,
            "NotIn" => false,
            _ => return Err(not_supported(path, operator, FIELD_OPERATORS)),
        };
        let [value] = &**values else {
            return Err(invalid_values(path, values, "must have one element"));
        };
        Ok(FieldCondition { is_name: *key == NAME_FIELD, equal, value: value.clone() })
    }

    fn matches(&self, name: &str) -> bool {
        let field = if self.is_name { name } else { "" };
        (self.value == *field) == self.equal
    }
}

/// Terms that add their weight to the score of nodes they match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PreferredNodeTerms(Box<[(i64, CompiledNodeTerm)]>);

impl PreferredNodeTerms {
    /// Compiles terms; those without weight or condition are skipped, faults and all.
    ///
    /// # Errors
    ///
    /// All faults of the other terms.
    pub fn new(terms: &[PreferredSchedulingTerm]) -> Result<PreferredNodeTerms, SelectorError> {
        let mut compiled = Vec::with_capacity(terms.len());
        let mut messages = Vec::new();
        for (at, term) in terms.iter().enumerate().filter(|(_, term)| term.weight != 0) {
            match CompiledNodeTerm::at_path(&term.preference, &format!("[{at}]")) {
                Ok(term_compiled) => {
                    compiled.extend(term_compiled.map(|it| (i64::from(term.weight), it)));
                }
                Err(faults) => messages.extend(faults),
            }
        }
        if !messages.is_empty() {
            return Err(SelectorError::join(&messages));
        }
        Ok(PreferredNodeTerms(compiled.into_boxed_slice()))
    }

    /// The sum of the weights of the terms that match.
    pub fn score(&self, labels: &Labels, name: &str) -> i64 {
        self.0.iter().filter(|(_, term)| term.matches(labels, name)).map(|(weight, _)| weight).sum()
    }

    /// Whether there is no term that could match.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a pod requires of its node: `nodeSelector` and the required node affinity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequiredNodeAffinity {
    labels: Selector,
    affinity: Option<CompiledNodeSelector>,
}

/// Compiles what a pod requires of its node (upstream's `GetRequiredNodeAffinity`). An affinity that is
/// present but has no terms matches no node.
pub fn required_node_affinity(
    node_selector: &Labels,
    affinity: Option<&NodeSelector>,
) -> RequiredNodeAffinity {
    RequiredNodeAffinity {
        labels: Selector::from_pairs(node_selector),
        affinity: affinity.map(CompiledNodeSelector::new),
    }
}

impl RequiredNodeAffinity {
    /// Whether a node with these labels and this name will do.
    ///
    /// # Errors
    ///
    /// As [`CompiledNodeSelector::matches`], and only if the labels of `nodeSelector` match.
    pub fn matches(&self, labels: &Labels, name: &str) -> Result<bool, SelectorError> {
        if !self.labels.matches(labels) {
            return Ok(false);
        }
        self.affinity.as_ref().map_or(Ok(true), |affinity| affinity.matches(labels, name))
    }
}

impl NodeSelector {
    /// The names of the only nodes that can match, sorted, if every term asks for `metadata.name` in some
    /// list: joined over the terms, within a term what its lists have in common. Empty means that the lists
    /// of each term contradict each other. Read from the selector as written: terms may be ill-formed.
    pub fn field_names(&self) -> Option<Vec<Str>> {
        if self.node_selector_terms.is_empty() {
            return None;
        }
        let mut names = Vec::new();
        for term in &self.node_selector_terms {
            let mut lists = (term.match_fields.iter())
                .filter(|field| field.key == NAME_FIELD && field.operator == "In")
                .map(|field| &field.values);
            let first = lists.next()?;
            let rest: Vec<&Vec<Str>> = lists.collect();
            let in_all = |name: &&Str| rest.iter().all(|list| list.contains(name));
            names.extend(first.iter().filter(in_all).cloned());
        }
        names.sort();
        names.dedup();
        Some(names)
    }
}
