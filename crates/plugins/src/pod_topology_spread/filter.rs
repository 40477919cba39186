//! Filter node by node: counts every domain once a pod, then compares a node's domain with the
//! least.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::{
    Cx, CycleState, Failure, Filter, NodeInfo, PodInfo, PreFilter, PreFiltered, Rejection,
    SerialCx, World,
};
use loadmaster_stdx::Map;

use super::constraint::Constraint;
use super::{PodTopologySpread, REASON_LABEL, REASON_SKEW};

/// What Filter needs of the whole cluster.
#[derive(Clone)]
pub(super) struct HardState {
    constraints: Arc<[Constraint]>,
    /// In the order of `constraints`.
    counts: Vec<Counts>,
}

/// The counts of one constraint by domain. Only domains of nodes that are included have one.
#[derive(Clone)]
struct Counts {
    by_domain: Map<Str, i64>,
    lowest: Lowest,
}

/// The least count and a runner-up, which is enough to keep the least current while a dry run
/// changes the pods of one node, that is the count of one domain.
#[derive(Clone)]
struct Lowest([(Option<Str>, i64); 2]);

impl Lowest {
    fn new() -> Self {
        // Upstream's start value: what an empty cluster is compared with.
        Lowest([const { (None, i32::MAX as i64) }; 2])
    }

    fn update(&mut self, domain: &Str, count: i64) {
        match self.0.iter().position(|(known, _)| known.as_ref() == Some(domain)) {
            Some(at) => self.0[at].1 = count,
            None if count < self.0[1].1 => self.0[1] = (Some(domain.clone()), count),
            None => {}
        }
        if self.0[1].1 < self.0[0].1 {
            self.0.swap(0, 1);
        }
    }

    fn least(&self) -> i64 {
        self.0[0].1
    }
}

impl Counts {
    fn new(constraint: &Constraint, world: &World) -> Counts {
        let mut by_domain: Map<Str, i64> = Map::default();
        for node in world.node_infos() {
            if let Some(domain) = node.labels().get(&constraint.key)
                && constraint.nodes.includes(node.node())
            {
                *by_domain.entry(domain.clone()).or_insert(0) += constraint.pods.n_on(node);
            }
        }
        // Which of equal domains are remembered as the lowest hangs on the order.
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut domains: Vec<(&Str, &i64)> = by_domain.iter().collect();
        domains.sort_unstable();
        let mut lowest = Lowest::new();
        for (domain, count) in domains {
            lowest.update(domain, *count);
        }
        Counts { by_domain, lowest }
    }

    fn at(&self, domain: &Str) -> i64 {
        self.by_domain.get(domain).copied().unwrap_or(0)
    }

    fn add(&mut self, domain: &Str, amount: i64) {
        let count = self.by_domain.entry(domain.clone()).or_insert(0);
        *count += amount;
        self.lowest.update(domain, *count);
    }

    /// What other domains are measured by.
    fn least(&self, constraint: &Constraint) -> i64 {
        let enough = self.by_domain.len() as i64 >= constraint.min_domains;
        if enough { self.lowest.least() } else { 0 }
    }
}

impl PreFilter for PodTopologySpread {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        let constraints = self
            .hard(cx.world.cluster(), &pod.template)
            .map_err(|error| Failure::new(format!("get constraints from pod: {error}")))?;
        if constraints.is_empty() {
            return Ok(PreFiltered::Skip);
        }
        let counts = constraints.iter().map(|c| Counts::new(c, cx.world)).collect();
        cx.cycle.set(self.hard, HardState { constraints: constraints.into(), counts });
        Ok(PreFiltered::All)
    }

    fn add_pod(
        &self,
        cycle: &mut CycleState,
        _world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        self.count(cycle, pod, other, node, 1);
        Ok(())
    }

    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        _world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        self.count(cycle, pod, other, node, -1);
        Ok(())
    }
}

impl PodTopologySpread {
    /// A dry run adds `other` to the node or takes it away. As in upstream, terminating pods and
    /// selectors of everything are no exception here, though they are where pods are counted first.
    fn count(
        &self,
        cycle: &mut CycleState,
        pod: &PodInfo,
        other: &PodInfo,
        node: NodeInfo<'_>,
        amount: i64,
    ) {
        let Some(state) = cycle.get_mut(self.hard) else { return };
        if other.template.namespace != pod.template.namespace {
            return;
        }
        for (constraint, counts) in state.constraints.iter().zip(&mut state.counts) {
            if let Some(domain) = node.labels().get(&constraint.key)
                && constraint.pods.selector.matches(&other.template.labels)
                && constraint.nodes.includes(node.node())
            {
                counts.add(domain, amount);
            }
        }
    }
}

impl Filter for PodTopologySpread {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let Some(state) = cx.cycle.get(self.hard) else { return Ok(()) };
        for (constraint, counts) in state.constraints.iter().zip(&state.counts) {
            let Some(domain) = node.labels().get(&constraint.key) else {
                return Err(Rejection::unresolvable(REASON_LABEL));
            };
            let own = i64::from(constraint.pods.selector.matches(&pod.template.labels));
            if counts.at(domain) + own - counts.least(constraint) > constraint.max_skew {
                return Err(Rejection::unschedulable(REASON_SKEW));
            }
        }
        Ok(())
    }
}
