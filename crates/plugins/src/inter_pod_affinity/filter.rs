//! Filter node by node: three sums over the pods on nodes, made once a pod.

use std::sync::Arc;

use loadmaster_api::Labels;
use loadmaster_framework::cluster::Cluster;
use loadmaster_framework::{
    Cx, CycleState, Failure, Filter, NodeInfo, PodInfo, PodTemplate, PreFilter, PreFiltered,
    Rejection, SerialCx, World,
};

use super::terms::{Sums, all_own_speak_of, other_speaks_of, own_speaks_of};
use super::{InterPodAffinity, REASON_AFFINITY, REASON_ANTI_AFFINITY, REASON_EXISTING};

/// What Filter needs of the whole cluster: how many pods on nodes there are, by topology,
#[derive(Clone, Default)]
pub(super) struct Required {
    /// of which all required affinity terms of the pod speak,
    wanted: Sums,
    /// of which a required anti-affinity term of the pod speaks,
    unwanted: Sums,
    /// and that have a required anti-affinity term which speaks of the pod.
    unwilling: Sums,
}

impl Required {
    fn new(pod: &PodTemplate, world: &World) -> Required {
        let has_own = !pod.required_affinity.is_empty() || !pod.required_anti_affinity.is_empty();
        let mut all = Required::default();
        for node in world.node_infos() {
            let labels = node.labels();
            if has_own {
                for other in node.pods() {
                    all.add_own(pod, &other.template, world.cluster(), labels, 1);
                }
            }
            for other in node.pods_with_required_anti_affinity() {
                all.add_others(pod, &other.template, world.cluster(), labels, 1);
            }
        }
        all
    }

    fn add_own(
        &mut self,
        pod: &PodTemplate,
        other: &PodTemplate,
        cluster: &Cluster,
        labels: &Labels,
        amount: i64,
    ) {
        if all_own_speak_of(&pod.required_affinity, other, cluster) {
            for term in &pod.required_affinity {
                self.wanted.add(labels, &term.topology_key, amount);
            }
        }
        for term in &pod.required_anti_affinity {
            if own_speaks_of(term, other, cluster) {
                self.unwanted.add(labels, &term.topology_key, amount);
            }
        }
    }

    fn add_others(
        &mut self,
        pod: &PodTemplate,
        other: &PodTemplate,
        cluster: &Cluster,
        labels: &Labels,
        amount: i64,
    ) {
        for term in &other.required_anti_affinity {
            if other_speaks_of(term, &pod.namespace, &pod.labels, cluster) {
                self.unwilling.add(labels, &term.topology_key, amount);
            }
        }
    }

    /// A dry run adds a pod to a node or takes it away. That nobody is wanted is told by the
    /// absence of sums, so those that come to nothing must go.
    fn change(
        &mut self,
        pod: &PodTemplate,
        other: &PodTemplate,
        cluster: &Cluster,
        labels: &Labels,
        amount: i64,
    ) {
        self.add_own(pod, other, cluster, labels, amount);
        self.add_others(pod, other, cluster, labels, amount);
        for term in &pod.required_affinity {
            self.wanted.forget_zero(labels, &term.topology_key);
        }
    }

    /// Whether the node has company of every kind the pod asks for.
    fn allows_affinity(&self, pod: &PodTemplate, cluster: &Cluster, labels: &Labels) -> bool {
        let terms = &pod.required_affinity;
        let mut is_company_everywhere = true;
        for term in terms {
            let Some(value) = labels.get(&term.topology_key) else { return false };
            is_company_everywhere &= self.wanted.at(&term.topology_key, value) > 0;
        }
        // The first pod of a group that asks for its own kind would wait for ever.
        is_company_everywhere || self.wanted.is_empty() && all_own_speak_of(terms, pod, cluster)
    }

    fn allows_anti_affinity(&self, labels: &Labels) -> bool {
        self.unwanted.of_node(labels).all(|n| n <= 0)
    }

    fn allows_existing(&self, labels: &Labels) -> bool {
        self.unwilling.of_node(labels).all(|n| n <= 0)
    }
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        let template = &pod.template;
        let required = Required::new(template, cx.world);
        let none = template.required_affinity.is_empty()
            && template.required_anti_affinity.is_empty()
            && required.unwilling.is_empty();
        if none {
            return Ok(PreFiltered::Skip);
        }
        cx.cycle.set(self.required, required);
        Ok(PreFiltered::All)
    }

    fn add_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        if let Some(required) = cycle.get_mut(self.required) {
            required.change(&pod.template, &other.template, world.cluster(), node.labels(), 1);
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
        if let Some(required) = cycle.get_mut(self.required) {
            required.change(&pod.template, &other.template, world.cluster(), node.labels(), -1);
        }
        Ok(())
    }
}

impl Filter for InterPodAffinity {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let Some(required) = cx.cycle.get(self.required) else { return Ok(()) };
        let labels = node.labels();
        if !required.allows_affinity(&pod.template, cx.world.cluster(), labels) {
            return Err(Rejection::unresolvable(REASON_AFFINITY));
        }
        if !required.allows_anti_affinity(labels) {
            return Err(Rejection::unschedulable(REASON_ANTI_AFFINITY));
        }
        if !required.allows_existing(labels) {
            return Err(Rejection::unschedulable(REASON_EXISTING));
        }
        Ok(())
    }
}
