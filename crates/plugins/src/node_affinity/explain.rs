//! What `explain` says: which labels of `nodeSelector` and which requirements of the required node affinity a node does not match.

use loadmaster_api::selector::{CompiledNodeTerm, NodeSelectorTerm, Requirement};
use loadmaster_api::{NodeSelector, Selector, Str};
use loadmaster_framework::{Cx, Detail, Explain, NodeInfo, PodInfo};

use super::{NodeAffinity, affinity_of};
use crate::explain_text::{facts_detail, shown_labels, shown_requirement};

impl Explain for NodeAffinity {
    fn details_of_nodes(
        &self,
        _cx: Cx<'_>,
        pod: &PodInfo,
        nodes: &[NodeInfo<'_>],
    ) -> Vec<Vec<Detail>> {
        let own = affinity_of(&pod.template).and_then(|affinity| affinity.required.as_ref());
        let added = self.added.required.as_ref().map(|it| terms("addedAffinity ", &it.written));
        let own = own.map(|own| terms("", own));
        let labels = pod.template.spec.node_selector.iter();
        let labels: Vec<Condition> = labels.map(|it| Condition::of_label(it.0, it.1)).collect();
        let details = |node: &NodeInfo<'_>| {
            let labels = labels.iter().filter(|it| !it.matches(*node));
            let labels =
                labels.map(|it| format!("nodeSelector {}{}", it.shown, found(*node, [it])));
            let of_terms = |terms: &Option<Vec<Term>>| {
                terms.as_deref().map(|terms| unmatched(terms, *node)).unwrap_or_default()
            };
            let facts = of_terms(&added).into_iter().chain(labels).chain(of_terms(&own));
            facts_detail("unmatched", facts)
        };
        nodes.iter().map(details).collect()
    }
}

/// One condition on a node, compiled once for all nodes.
struct Condition {
    shown: String,
    /// The label that it reads; `None` for a field.
    key: Option<Str>,
    compiled: Compiled,
}

enum Compiled {
    Label(Selector),
    /// `None` if it is not valid: then it matches no node.
    Requirement(Option<CompiledNodeTerm>),
}

impl Condition {
    /// A label of `nodeSelector`.
    fn of_label(key: &Str, value: &Str) -> Condition {
        let pair = [(key.clone(), value.clone())].into_iter().collect();
        Condition {
            shown: format!("{key}={value}"),
            key: Some(key.clone()),
            compiled: Compiled::Label(Selector::from_pairs(&pair)),
        }
    }

    /// A requirement of a term, of the labels or of the fields.
    fn of_requirement(requirement: &Requirement, is_label: bool) -> Condition {
        let all = vec![requirement.clone()];
        let term = match is_label {
            true => NodeSelectorTerm { match_expressions: all, ..NodeSelectorTerm::default() },
            false => NodeSelectorTerm { match_fields: all, ..NodeSelectorTerm::default() },
        };
        Condition {
            shown: shown_requirement(requirement),
            key: is_label.then(|| requirement.key.clone()),
            compiled: Compiled::Requirement(CompiledNodeTerm::new(&term).ok().flatten()),
        }
    }

    fn matches(&self, node: NodeInfo<'_>) -> bool {
        match &self.compiled {
            Compiled::Label(selector) => selector.matches(node.labels()),
            Compiled::Requirement(term) => {
                term.as_ref().is_some_and(|term| term.matches(node.labels(), node.name()))
            }
        }
    }
}

/// The conditions of a term, with the name by which it is shown.
struct Term {
    name: String,
    conditions: Vec<Condition>,
}

fn terms(whose: &str, selector: &NodeSelector) -> Vec<Term> {
    let terms = selector.node_selector_terms.iter().enumerate().map(|(at, term)| {
        let labels = term.match_expressions.iter().map(|it| Condition::of_requirement(it, true));
        let fields = term.match_fields.iter().map(|it| Condition::of_requirement(it, false));
        Term { name: format!("{whose}term {}", at + 1), conditions: labels.chain(fields).collect() }
    });
    terms.collect()
}

/// What a node does not match of each term; nothing if it matches one of them.
fn unmatched(terms: &[Term], node: NodeInfo<'_>) -> Vec<String> {
    let mut facts = Vec::new();
    for Term { name, conditions } in terms {
        let not: Vec<&Condition> = conditions.iter().filter(|it| !it.matches(node)).collect();
        match (conditions.is_empty(), not.is_empty()) {
            (true, _) => facts.push(format!("{name} is empty")),
            (false, true) => return Vec::new(),
            (false, false) => {
                let shown: Vec<&str> = not.iter().map(|it| it.shown.as_str()).collect();
                let shown = shown.join(" and ");
                facts.push(format!("{name} {shown}{}", found(node, not.iter().copied())));
            }
        }
    }
    facts
}

/// `, the node has disk=hdd`.
fn found<'a>(node: NodeInfo<'_>, conditions: impl IntoIterator<Item = &'a Condition>) -> String {
    let keys = conditions.into_iter().filter_map(|it| it.key.as_deref());
    let has = shown_labels(node.labels(), keys);
    if has.is_empty() { has } else { format!(", the node has {has}") }
}
