//! What `explain` says: which constraints a pod would violate on a node, and which pods are in the node's domain.

use loadmaster_framework::{Cx, Detail, Explain, NodeInfo, PodInfo};

use super::constraint::Constraint;
use super::filter::Violation;
use super::{HARD, PodTopologySpread};
use crate::explain_text::{PodsByDomain, facts_detail, shown_label_selector};

impl Explain for PodTopologySpread {
    fn details_of_nodes(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        nodes: &[NodeInfo<'_>],
    ) -> Vec<Vec<Detail>> {
        let none = || vec![Vec::new(); nodes.len()];
        let Some(state) = cx.cycle.get(self.pre_filter_state) else { return none() };
        let violates =
            |node: &NodeInfo<'_>| state.violations(&pod.template, *node).next().is_some();
        if !nodes.iter().any(violates) {
            return none();
        }
        let pods = pods_by_domain(cx, state.constraints());
        let shown = self.shown_constraints(pod, state.constraints());
        let details = |node: &NodeInfo<'_>| {
            let violations = state.violations(&pod.template, *node);
            facts_detail("constraints", violations.map(|it| fact(&it, &shown[it.at], &pods)))
        };
        nodes.iter().map(details).collect()
    }
}

impl PodTopologySpread {
    /// `constraint 1 (topology.kubernetes.io/zone, maxSkew 1, app=web)`; the profile's default constraints have no selector of their own.
    fn shown_constraints(&self, pod: &PodInfo, constraints: &[Constraint]) -> Vec<String> {
        let own = &pod.template.spec.topology_spread_constraints;
        let mut written = own.iter().filter(|it| it.when_unsatisfiable == HARD);
        let shown = constraints.iter().enumerate().map(|(at, Constraint { key, max_skew, .. })| {
            let (whose, selector) = match written.next() {
                Some(it) => ("", shown_label_selector(it.label_selector.as_ref())),
                None => ("default ", "pods of its Services and controllers".to_owned()),
            };
            format!("{whose}constraint {} ({key}, maxSkew {max_skew}, {selector})", at + 1)
        });
        shown.collect()
    }
}

/// The matching pods by constraint and domain.
fn pods_by_domain(cx: Cx<'_>, constraints: &[Constraint]) -> PodsByDomain {
    let mut all = PodsByDomain::default();
    for node in cx.world.node_infos() {
        for (at, constraint) in constraints.iter().enumerate() {
            if constraint.nodes.includes(node.node()) {
                for other in constraint.pods.on_node(node) {
                    all.add(at, &constraint.key, node.labels(), other);
                }
            }
        }
    }
    all
}

fn fact(violation: &Violation<'_>, shown: &str, pods: &PodsByDomain) -> String {
    let Violation { at, constraint, domain, n_matching, n_min } = violation;
    let key = &constraint.key;
    let Some(domain) = domain else { return format!("{shown}: the node has no {key}") };
    let names = pods.get(*at, domain).map(|pods| format!(": {}", pods.names()));
    let names = names.unwrap_or_default();
    format!("{shown}: {n_matching} in {key}={domain}, the fewest of a domain {n_min}{names}")
}
