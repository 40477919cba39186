//! The per-node form of Filter: three counts over existing pods, computed once per scheduling cycle.

use std::sync::Arc;

use loadmaster_api::{Labels, Str};
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_framework::template::{AffinityTerm, TemplateId};
use loadmaster_framework::{
    Cx, CycleState, Failure, Filter, NodeInfo, PodInfo, PodTemplate, PreFilter, PreFilterResult,
    Rejection, SerialCx, World,
};
use loadmaster_stdx::Map;

use super::terms::{
    ExistingPod, TopologySums, all_own_terms_match, existing_term_matches, own_term_matches,
};
use super::{InterPodAffinity, REASON_AFFINITY, REASON_ANTI_AFFINITY, REASON_EXISTING};

/// Counts of existing pods by topology pair, computed in PreFilter (upstream's `preFilterState`).
#[derive(Clone, Default)]
pub(super) struct PreFilterState {
    /// Pods that match all required affinity terms of the incoming pod.
    affinity_counts: TopologySums,
    /// Pods that match a required anti-affinity term of the incoming pod.
    anti_affinity_counts: TopologySums,
    /// Pods with a required anti-affinity term that matches the incoming pod.
    existing_anti_affinity_counts: TopologySums,
}

impl PreFilterState {
    fn new(pod: &PodTemplate, world: &World) -> PreFilterState {
        let has_own = !pod.required_affinity.is_empty() || !pod.required_anti_affinity.is_empty();
        let mut all = PreFilterState::default();
        if !has_own && !world.nodes().have_required_anti_affinity() {
            return all;
        }
        // Most pods share their template with others, often with their neighbors.
        let mut matching: Map<TemplateId, bool> = Map::default();
        let mut last: Option<(&Arc<PodTemplate>, bool)> = None;
        for node in world.node_infos() {
            let labels = node.labels();
            if has_own {
                for other in node.pods() {
                    let (template, cluster) = (&other.template, world.cluster_objects());
                    let matches = match last {
                        Some((known, matches)) if Arc::ptr_eq(known, template) => matches,
                        _ if !selects_namespace(pod, &template.namespace) => false,
                        _ => *matching
                            .entry(template.id)
                            .or_insert_with(|| any_own_term_matches(pod, template, cluster)),
                    };
                    last = Some((template, matches));
                    if matches {
                        all.update_with_own_terms(pod, template, cluster, labels, 1);
                    }
                }
            }
            for other in node.pods_with_required_anti_affinity() {
                all.update_with_existing_terms(
                    pod,
                    &other.template,
                    world.cluster_objects(),
                    labels,
                    1,
                );
            }
        }
        all
    }

    fn update_with_own_terms(
        &mut self,
        pod: &PodTemplate,
        other: &PodTemplate,
        cluster: &ClusterObjects,
        labels: &Labels,
        amount: i64,
    ) {
        let existing = ExistingPod::new(other, cluster);
        if all_own_terms_match(&pod.required_affinity, existing) {
            for term in &pod.required_affinity {
                self.affinity_counts.add(labels, &term.topology_key, amount);
            }
        }
        for term in &pod.required_anti_affinity {
            if own_term_matches(term, existing) {
                self.anti_affinity_counts.add(labels, &term.topology_key, amount);
            }
        }
    }

    fn update_with_existing_terms(
        &mut self,
        pod: &PodTemplate,
        other: &PodTemplate,
        cluster: &ClusterObjects,
        labels: &Labels,
        amount: i64,
    ) {
        for term in &other.required_anti_affinity {
            if existing_term_matches(term, &pod.namespace, &pod.labels, cluster) {
                self.existing_anti_affinity_counts.add(labels, &term.topology_key, amount);
            }
        }
    }

    /// A preemption dry run adds a pod to a node or removes it. "No pod matches anywhere" means that
    /// there are no affinity counts, so counts of zero are removed.
    fn update_with_pod(
        &mut self,
        pod: &PodTemplate,
        other: &PodTemplate,
        cluster: &ClusterObjects,
        labels: &Labels,
        amount: i64,
    ) {
        self.update_with_own_terms(pod, other, cluster, labels, amount);
        self.update_with_existing_terms(pod, other, cluster, labels, amount);
        for term in &pod.required_affinity {
            self.affinity_counts.remove_if_zero(labels, &term.topology_key);
        }
    }

    /// Whether the node's domain of an affinity term has a pod that matches all affinity terms.
    pub(super) fn has_matching_pod(&self, term: &AffinityTerm, labels: &Labels) -> bool {
        let value = labels.get(&term.topology_key);
        value.is_some_and(|value| self.affinity_counts.get(&term.topology_key, value) > 0)
    }

    /// Whether the node's domains have a pod that matches the affinity terms (upstream's
    /// `satisfyPodAffinity`).
    pub(super) fn satisfies_affinity(
        &self,
        pod: &PodTemplate,
        cluster: &ClusterObjects,
        labels: &Labels,
    ) -> bool {
        let terms = &pod.required_affinity;
        let mut all_terms_satisfied = true;
        for term in terms {
            if !labels.contains_key(&term.topology_key) {
                return false;
            }
            all_terms_satisfied &= self.has_matching_pod(term, labels);
        }
        // The first pod of a group with affinity to itself would stay pending forever.
        all_terms_satisfied
            || self.affinity_counts.is_empty()
                && all_own_terms_match(terms, ExistingPod::new(pod, cluster))
    }

    pub(super) fn satisfies_anti_affinity(&self, labels: &Labels) -> bool {
        self.anti_affinity_counts.of_node(labels).all(|n| n <= 0)
    }

    pub(super) fn satisfies_existing_anti_affinity(&self, labels: &Labels) -> bool {
        self.existing_anti_affinity_counts.of_node(labels).all(|n| n <= 0)
    }
}

/// Whether a required term of the incoming pod may match existing pods of this namespace.
fn selects_namespace(pod: &PodTemplate, namespace: &Str) -> bool {
    let mut terms = pod.required_affinity.iter().chain(&pod.required_anti_affinity);
    terms.any(|it| !it.namespace_selector.is_nothing() || it.namespaces.contains(namespace))
}

/// Whether a required term of the incoming pod matches an existing pod.
fn any_own_term_matches(pod: &PodTemplate, other: &PodTemplate, cluster: &ClusterObjects) -> bool {
    let existing = ExistingPod::new(other, cluster);
    let mut terms = pod.required_affinity.iter().chain(&pod.required_anti_affinity);
    terms.any(|term| own_term_matches(term, existing))
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let template = &pod.template;
        let state = PreFilterState::new(template, cx.world);
        let none = template.required_affinity.is_empty()
            && template.required_anti_affinity.is_empty()
            && state.existing_anti_affinity_counts.is_empty();
        if none {
            return Ok(PreFilterResult::Skip);
        }
        cx.cycle.set(self.pre_filter_state, state);
        Ok(PreFilterResult::All)
    }

    fn add_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        if let Some(state) = cycle.get_mut(self.pre_filter_state) {
            state.update_with_pod(
                &pod.template,
                &other.template,
                world.cluster_objects(),
                node.labels(),
                1,
            );
        }
        Ok(())
    }

    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        if let Some(state) = cycle.get_mut(self.pre_filter_state) {
            state.update_with_pod(
                &pod.template,
                &other.template,
                world.cluster_objects(),
                node.labels(),
                -1,
            );
        }
        Ok(())
    }
}

impl Filter for InterPodAffinity {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let Some(state) = cx.cycle.get(self.pre_filter_state) else { return Ok(()) };
        let labels = node.labels();
        if !state.satisfies_affinity(&pod.template, cx.world.cluster_objects(), labels) {
            return Err(Rejection::unresolvable(REASON_AFFINITY));
        }
        if !state.satisfies_anti_affinity(labels) {
            return Err(Rejection::unschedulable(REASON_ANTI_AFFINITY));
        }
        if !state.satisfies_existing_anti_affinity(labels) {
            return Err(Rejection::unschedulable(REASON_EXISTING));
        }
        Ok(())
    }
}
