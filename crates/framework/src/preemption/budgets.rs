//! PodDisruptionBudgets, as far as they rank victims.

use std::sync::Arc;

use loadmaster_api::{PodDisruptionBudget, Selector};

use crate::cluster::Cluster;
use crate::pod::PodInfo;

/// The budgets of a cluster, compiled once for all nodes of a search.
#[derive(Clone, Debug, Default)]
pub struct Budgets(Vec<Budget>);

#[derive(Clone, Debug)]
struct Budget {
    object: Arc<PodDisruptionBudget>,
    selector: Selector,
}

impl Budgets {
    /// Those that select anything: an absent or empty selector selects no pod here, nor does an invalid one.
    pub fn new(cluster: &Cluster) -> Budgets {
        #[expect(clippy::disallowed_methods, reason = "each budget counts for itself")]
        let all = cluster.disruption_budgets.values().flatten();
        let compiled = all.filter_map(|object| {
            let selector = Selector::new(object.spec.selector.as_ref()).ok()?;
            let selects = !selector.is_empty() && !selector.is_nothing();
            selects.then(|| Budget { object: object.clone(), selector })
        });
        Budgets(compiled.collect())
    }

    /// Of each pod, whether its eviction violates a budget, if they are evicted in this order. Every pod that a budget selects
    /// uses it up by one, violating or not, unless its eviction is already under way.
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
        // A pod without labels has no budget, even if a selector asks for absent labels only.
        self.object.metadata.namespace == pod.template.namespace
            && !labels.is_empty()
            && self.selector.matches(labels)
            && self.object.status.disrupted_pods.get(&pod.name).is_none()
    }
}
