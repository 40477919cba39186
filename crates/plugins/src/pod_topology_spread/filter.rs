//! The per-node form of Filter: counts the pods of every domain once per scheduling cycle, then compares
//! a node's domain with the domain with the fewest pods.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::{
    Cx, CycleState, Failure, Filter, NodeInfo, PodInfo, PodTemplate, PreFilter, PreFilterResult,
    Rejection, SerialCx, World,
};
use loadmaster_stdx::Map;

use super::constraint::Constraint;
use super::{PodTopologySpread, REASON_LABEL, REASON_SKEW};

/// The state that PreFilter computes for Filter (upstream's `preFilterState`).
#[derive(Clone)]
pub(super) struct PreFilterState {
    constraints: Arc<[Constraint]>,
    /// In the order of `constraints`.
    counts: Vec<MatchCounts>,
}

/// The number of matching pods by domain, for one constraint. Only domains of nodes that count have
/// one (upstream's `TpValueToMatchNum`).
#[derive(Clone)]
struct MatchCounts {
    by_domain: Map<Str, i64>,
    critical_paths: CriticalPaths,
}

/// The two domains with the fewest matching pods, which is enough to know the minimum while a dry run
/// changes the pods of one node, that is the count of one domain (upstream's `criticalPaths`).
#[derive(Clone)]
struct CriticalPaths([(Option<Str>, i64); 2]);

impl CriticalPaths {
    fn new() -> Self {
        // Upstream's initial value, used when there is no domain.
        CriticalPaths([const { (None, i32::MAX as i64) }; 2])
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

    fn min_match_num(&self) -> i64 {
        self.0[0].1
    }
}

impl MatchCounts {
    fn new(constraint: &Constraint, world: &World) -> MatchCounts {
        let mut by_domain: Map<Str, i64> = Map::default();
        for node in world.node_infos() {
            if let Some(domain) = node.labels().get(&constraint.key)
                && constraint.nodes.includes(node.node())
            {
                *by_domain.entry(domain.clone()).or_insert(0) +=
                    constraint.pods.count_on_node(node);
            }
        }
        // Which of several equal domains are stored depends on the order.
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut domains: Vec<(&Str, &i64)> = by_domain.iter().collect();
        domains.sort_unstable();
        let mut critical_paths = CriticalPaths::new();
        for (domain, count) in domains {
            critical_paths.update(domain, *count);
        }
        MatchCounts { by_domain, critical_paths }
    }

    fn get(&self, domain: &Str) -> i64 {
        self.by_domain.get(domain).copied().unwrap_or(0)
    }

    fn add(&mut self, domain: &Str, amount: i64) {
        let count = self.by_domain.entry(domain.clone()).or_insert(0);
        *count += amount;
        self.critical_paths.update(domain, *count);
    }

    /// The global minimum that other domains are compared with (upstream's `minMatchNum`).
    fn min_match_num(&self, constraint: &Constraint) -> i64 {
        let enough = self.by_domain.len() as i64 >= constraint.min_domains;
        if enough { self.critical_paths.min_match_num() } else { 0 }
    }
}

impl PreFilter for PodTopologySpread {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let constraints = self
            .hard_constraints(cx.world.cluster_objects(), &pod.template)
            .map_err(|error| Failure::new(format!("get constraints from pod: {error}")))?;
        if constraints.is_empty() {
            return Ok(PreFilterResult::Skip);
        }
        let counts = constraints.iter().map(|c| MatchCounts::new(c, cx.world)).collect();
        cx.cycle
            .set(self.pre_filter_state, PreFilterState { constraints: constraints.into(), counts });
        Ok(PreFilterResult::All)
    }

    fn add_pod(
        &self,
        cycle: &mut CycleState,
        _world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        self.update_with_pod(cycle, pod, other, node, 1);
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
        self.update_with_pod(cycle, pod, other, node, -1);
        Ok(())
    }
}

impl PodTopologySpread {
    /// A preemption dry run adds `other` to the node or removes it (upstream's `updateWithPod`). As in
    /// upstream, terminating pods and empty selectors count here, though PreFilter does not count them.
    fn update_with_pod(
        &self,
        cycle: &mut CycleState,
        pod: &PodInfo,
        other: &PodInfo,
        node: NodeInfo<'_>,
        amount: i64,
    ) {
        let Some(state) = cycle.get_mut(self.pre_filter_state) else { return };
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
        let Some(state) = cx.cycle.get(self.pre_filter_state) else { return Ok(()) };
        match state.violations(&pod.template, node).next() {
            None => Ok(()),
            Some(Violation { domain: None, .. }) => Err(Rejection::unresolvable(REASON_LABEL)),
            Some(Violation { domain: Some(_), .. }) => Err(Rejection::unschedulable(REASON_SKEW)),
        }
    }
}

/// A constraint that a pod would violate on a node.
pub(super) struct Violation<'a> {
    /// Index of the constraint.
    pub(super) at: usize,
    pub(super) constraint: &'a Constraint,
    /// The node's domain; `None` if the node has no such label.
    pub(super) domain: Option<&'a Str>,
    /// Matching pods in this domain.
    pub(super) n_matching: i64,
    /// The number that it is compared with: the fewest matching pods of any domain, or 0 if there are too few domains.
    pub(super) n_min: i64,
}

impl PreFilterState {
    pub(super) fn constraints(&self) -> &[Constraint] {
        &self.constraints
    }

    /// The constraints that the pod would violate on the node, in order.
    pub(super) fn violations<'a>(
        &'a self,
        pod: &'a PodTemplate,
        node: NodeInfo<'a>,
    ) -> impl Iterator<Item = Violation<'a>> {
        let all = self.constraints.iter().zip(&self.counts).enumerate();
        all.filter_map(move |(at, (constraint, counts))| {
            let Some(domain) = node.labels().get(&constraint.key) else {
                return Some(Violation { at, constraint, domain: None, n_matching: 0, n_min: 0 });
            };
            let own = i64::from(constraint.pods.selector.matches(&pod.labels));
            let (n_matching, n_min) = (counts.get(domain), counts.min_match_num(constraint));
            let is_violated = n_matching + own - n_min > constraint.max_skew;
            let domain = Some(domain);
            is_violated.then_some(Violation { at, constraint, domain, n_matching, n_min })
        })
    }
}
