//! PodDisruptionBudgets, as far as preemption considers them.

use std::sync::Arc;

use loadmaster_api::{PodDisruptionBudget, Selector};

use crate::cluster_objects::ClusterObjects;
use crate::pod_info::PodInfo;

/// The PodDisruptionBudgets of a cluster, their selectors parsed once for all nodes.
#[derive(Clone, Debug, Default)]
pub struct DisruptionBudgets(Vec<Budget>);

#[derive(Clone, Debug)]
struct Budget {
    object: Arc<PodDisruptionBudget>,
    selector: Selector,
}

impl DisruptionBudgets {
    /// The budgets with a selector; as upstream, an absent, empty or invalid selector selects no pod.
    pub fn new(cluster: &ClusterObjects) -> DisruptionBudgets {
        #[expect(clippy::disallowed_methods, reason = "each budget counts for itself")]
        let all = cluster.disruption_budgets.values().flatten();
        let compiled = all.filter_map(|object| {
            let selector = Selector::new(object.spec.selector.as_ref()).ok()?;
            let selects = !selector.is_empty() && !selector.is_nothing();
            selects.then(|| Budget { object: object.clone(), selector })
        });
        DisruptionBudgets(compiled.collect())
    }

    /// The objects.
    pub(super) fn objects(
        &self,
    ) -> impl ExactSizeIterator<Item = &Arc<PodDisruptionBudget>> + Clone {
        self.0.iter().map(|budget| &budget.object)
    }

    /// Only those of the budgets that select one of these pods.
    #[must_use]
    pub fn of_pods(&self, pods: &[Arc<PodInfo>]) -> DisruptionBudgets {
        let selects_any = |budget: &&Budget| pods.iter().any(|pod| budget.selects(pod));
        DisruptionBudgets(self.0.iter().filter(selects_any).cloned().collect())
    }

    /// Whether a budget selects the pod.
    pub fn select(&self, pod: &PodInfo) -> bool {
        self.0.iter().any(|budget| budget.selects(pod))
    }

    /// For each pod, whether its eviction violates a budget if the pods are evicted in this order (upstream's
    /// `filterPodsWithPDBViolation`). Every selected pod uses up one disruption, violating or not, unless it is in
    /// `disruptedPods`.
    pub fn violations(&self, pods: &[Arc<PodInfo>]) -> Vec<bool> {
        let mut allowed: Vec<i64> =
            self.0.iter().map(|budget| budget.object.status.disruptions_allowed.into()).collect();
        let violates = |pod: &Arc<PodInfo>| {
            let mut violates = false;
            for (budget, allowed) in self.0.iter().zip(&mut allowed) {
                if budget.selects(pod) {
                    *allowed -= 1;
                    violates |= *allowed < 0;
                }
            }
            violates
        };
        pods.iter().map(violates).collect()
    }
}

impl Budget {
    fn selects(&self, pod: &PodInfo) -> bool {
        let labels = &pod.template.labels;
        // As upstream, a pod without labels has no budget, even if the selector only requires absent labels.
        self.object.metadata.namespace == pod.template.namespace
            && !labels.is_empty()
            && self.selector.matches(labels)
            && self.object.status.disrupted_pods.get(&pod.name).is_none()
    }
}
