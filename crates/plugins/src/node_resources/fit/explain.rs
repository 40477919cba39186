//! What `explain` says: how much of each resource is needed and free, and which node that has too little has the most.

use std::cmp::Reverse;

use loadmaster_framework::resources::shown_amount;
use loadmaster_framework::{Cx, Detail, Explain, NodeInfo, PodInfo};

use super::{Fit, Shortage, simd};
use crate::explain_text::facts_detail;

impl Explain for Fit {
    /// By resource, the nearest miss.
    fn pod_details(&self, cx: Cx<'_>, _: &PodInfo) -> Vec<Detail> {
        let Some(requests) = cx.cycle.get(self.filter_requests) else { return Vec::new() };
        let n_nodes = cx.world.nodes().len();
        let facts = requests.0.iter().filter_map(|(resource, wanted)| {
            let short = cx.world.node_infos().filter_map(|node| {
                let mut all = requests.shortages(move |_, resource| resource.node_amounts(node));
                Some((node.name(), all.find(|it| it.resource == resource)?))
            });
            let short: Vec<(&str, Shortage<'_>)> = short.collect();
            let (name, nearest) =
                short.iter().min_by_key(|(name, it)| (Reverse(it.n_free()), *name))?;
            let (n_short, wanted) = (short.len(), shown_amount(resource.name(), *wanted));
            Some(format!(
                "{wanted} {}, too much for {n_short} of {n_nodes} nodes; {name} is nearest, with {}",
                resource.name(),
                nearest.free(),
            ))
        });
        facts_detail("needs", facts)
    }

    fn node_details(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let Some(requests) = cx.cycle.get(self.filter_requests) else { return Vec::new() };
        let (n_pods, n_pods_max) = (node.n_pods(), node.allocatable_pods());
        let is_full = simd::pods_headroom(n_pods_max, n_pods) < 0;
        let pods = is_full.then(|| format!("1 pod, {n_pods} of {n_pods_max} are there"));
        let shortages = requests.shortages(move |_, resource| resource.node_amounts(node));
        let resources = shortages.map(|it| {
            let name = it.resource.name();
            format!("{} {name}, {}", shown_amount(name, it.wanted), it.free())
        });
        facts_detail("needs", pods.into_iter().chain(resources))
    }
}

impl Shortage<'_> {
    fn n_free(&self) -> i64 {
        self.allocatable.saturating_sub(self.used).max(0)
    }

    /// `1 of 4 free`.
    fn free(&self) -> String {
        let name = self.resource.name();
        let [free, all] = [self.n_free(), self.allocatable].map(|it| shown_amount(name, it));
        format!("{free} of {all} free")
    }
}
