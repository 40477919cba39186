//! How `explain` shows facts, requirements, labels and pods.

use std::collections::BTreeMap;

use loadmaster_api::selector::Requirement;
use loadmaster_api::{LabelSelector, Labels, Str, Taint};
use loadmaster_framework::{Detail, PodInfo};

/// How many pods are named.
const N_PODS: usize = 3;

/// A detail for `explain` with several facts; none without facts.
pub(crate) fn facts_detail(name: &'static str, facts: impl Iterator<Item = String>) -> Vec<Detail> {
    let facts: Vec<String> = facts.collect();
    if facts.is_empty() { Vec::new() } else { vec![Detail::new(name, facts.join("; "))] }
}

/// A requirement for `explain`: `topology.kubernetes.io/zone in (zone-a, zone-b)`.
pub(crate) fn shown_values<'a>(
    key: &str,
    operator: &str,
    values: impl Iterator<Item = &'a Str>,
) -> String {
    let values: Vec<&str> = values.map(|value| &**value).collect();
    format!("{key} {operator} ({})", values.join(", "))
}

/// The values of some labels of a node: `zone=a`, or `no zone`.
pub(crate) fn shown_labels<'a>(labels: &Labels, keys: impl Iterator<Item = &'a str>) -> String {
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    let shown = keys.iter().map(|key| match labels.get(key) {
        Some(value) => format!("{key}={value}"),
        None => format!("no {key}"),
    });
    shown.collect::<Vec<String>>().join(", ")
}

/// A requirement of a selector: `disk in (ssd)`, `gpu`, `!gpu`, `cores Gt (8)`.
pub(crate) fn shown_requirement(requirement: &Requirement) -> String {
    let Requirement { key, operator, values } = requirement;
    match &**operator {
        "In" => shown_values(key, "in", values.iter()),
        "NotIn" => shown_values(key, "not in", values.iter()),
        "Exists" => key.to_string(),
        "DoesNotExist" => format!("!{key}"),
        _ => shown_values(key, operator, values.iter()),
    }
}

/// A label selector: `app=web,tier in (front, back)`; `no pod` if there is none, `all pods` if it is empty.
pub(crate) fn shown_label_selector(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "no pod".to_owned() };
    let labels = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let all: Vec<String> =
        labels.chain(selector.match_expressions.iter().map(shown_requirement)).collect();
    if all.is_empty() { "all pods".to_owned() } else { all.join(",") }
}

/// A taint: `gpu=yes:NoSchedule`, or without a value `gpu:NoSchedule`.
pub(crate) fn shown_taint(taint: &Taint) -> String {
    let Taint { key, value, effect, .. } = taint;
    if value.is_empty() { format!("{key}:{effect}") } else { format!("{key}={value}:{effect}") }
}

/// Some pods: how many, and the names of the first ones.
#[derive(Default)]
pub(crate) struct SomePods {
    n: usize,
    names: Vec<String>,
}

impl SomePods {
    pub(crate) fn add(&mut self, pod: &PodInfo) {
        self.n += 1;
        if self.names.len() < N_PODS {
            self.names.push(pod.full_name());
        }
    }

    /// `shop/web-1, shop/web-2 and 40 more`.
    pub(crate) fn names(&self) -> String {
        let names = self.names.join(", ");
        match self.n - self.names.len() {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }
}

/// Pods by constraint or term, and by the value of its topology key.
#[derive(Default)]
pub(crate) struct PodsByDomain(BTreeMap<(usize, Str), SomePods>);

impl PodsByDomain {
    /// Adds a pod to the domain of its node, if the node has the key.
    pub(crate) fn add(&mut self, at: usize, key: &Str, labels: &Labels, pod: &PodInfo) {
        if let Some(domain) = labels.get(key) {
            self.0.entry((at, domain.clone())).or_default().add(pod);
        }
    }

    /// The pods in a domain.
    pub(crate) fn get(&self, at: usize, domain: &Str) -> Option<&SomePods> {
        self.0.get(&(at, domain.clone()))
    }
}
