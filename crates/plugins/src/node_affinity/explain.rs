//! What `explain` says: which labels of `nodeSelector` and which expressions of the required node affinity a node does not match.

use loadmaster_api::selector::{CompiledNodeTerm, NodeSelectorTerm, Requirement};
use loadmaster_api::{NodeSelector, Selector, Str};
use loadmaster_framework::{Cx, Detail, Explain, NodeInfo, PodInfo};

use super::{NodeAffinity, affinity_of};
use crate::explain_text::{facts_detail, shown_labels, shown_requirement};

impl Explain for NodeAffinity {
    fn node_details(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let added = self.added.required.as_ref().map(|it| &it.written);
        let own = affinity_of(&pod.template).and_then(|affinity| affinity.required.as_ref());
        let selector = pod.template.spec.node_selector.iter().filter_map(|(key, value)| {
            let wanted = [(key.clone(), value.clone())].into_iter().collect();
            let matches = Selector::from_pairs(&wanted).matches(node.labels());
            (!matches).then(|| format!("nodeSelector {key}={value}{}", found(node, [key])))
        });
        let affinity = own.map(|own| unmatched(own, "", node)).unwrap_or_default();
        let added = added.map(|added| unmatched(added, "addedAffinity ", node)).unwrap_or_default();
        facts_detail("unmatched", added.into_iter().chain(selector).chain(affinity))
    }
}

/// What a node does not match of each term; nothing if it matches one of them.
fn unmatched(selector: &NodeSelector, whose: &str, node: NodeInfo<'_>) -> Vec<String> {
    let mut facts = Vec::new();
    for (at, term) in selector.node_selector_terms.iter().enumerate() {
        let NodeSelectorTerm { match_expressions, match_fields } = term;
        let labels = match_expressions
            .iter()
            .filter(|one| !matches([(*one).clone()].into(), Vec::new(), node));
        let labels: Vec<&Requirement> = labels.collect();
        let fields =
            match_fields.iter().filter(|one| !matches(Vec::new(), [(*one).clone()].into(), node));
        let fields: Vec<String> = fields.map(shown_requirement).collect();
        let is_empty = match_expressions.is_empty() && match_fields.is_empty();
        if labels.is_empty() && fields.is_empty() && !is_empty {
            return Vec::new();
        }
        let has = found(node, labels.iter().map(|one| &one.key));
        let mut shown: Vec<String> = labels.into_iter().map(shown_requirement).collect();
        shown.extend(fields);
        let shown = if is_empty { "is empty".to_owned() } else { shown.join(" and ") };
        facts.push(format!("{whose}term {} {shown}{has}", at + 1));
    }
    facts
}

/// Whether a node matches single requirements; invalid ones match no node.
fn matches(labels: Vec<Requirement>, fields: Vec<Requirement>, node: NodeInfo<'_>) -> bool {
    let term = NodeSelectorTerm { match_expressions: labels, match_fields: fields };
    let compiled = CompiledNodeTerm::new(&term);
    compiled.is_ok_and(|term| term.is_some_and(|it| it.matches(node.labels(), node.name())))
}

/// `, the node has disk=hdd`.
fn found<'a>(node: NodeInfo<'_>, keys: impl IntoIterator<Item = &'a Str>) -> String {
    let has = shown_labels(node.labels(), keys.into_iter().map(|key| &**key));
    if has.is_empty() { has } else { format!(", the node has {has}") }
}
