//! The scoring strategies of NodeResourcesFit for plugins that only score: kube-scheduler had each as a plugin of its own up to 1.22.

use std::sync::Arc;

use loadmaster_api::SharedPodSpec;
use loadmaster_framework::pod_requests::PodRequests;
use loadmaster_framework::{
    Cx, EvaluatorCx, ExtensionPoints, Failure, Incremental, NodeInfo, PodInfo, PrepareCx,
    PrepareResult, Score,
};

use super::args::ResourceSpec;
use super::column_scorer::{ColumnScorer, ScoreEvaluator};
use super::resource_amounts::{
    RequestBasis, ScoredRequests, WeightedResources, weighted_resources,
};
use super::score_formula::ScoreFormula;
use crate::utilization_shape::{Shape, UtilizationShapePoint};

/// A function of what the pods of a node request and what is allocatable there.
#[derive(Clone, Debug)]
pub enum AllocationFormula {
    /// Prefers nodes with more unrequested resources.
    LeastAllocated,
    /// Prefers nodes with more requested resources.
    MostAllocated,
    /// A piecewise linear function of the utilization, through points that are valid.
    RequestedToCapacityRatio(Vec<UtilizationShapePoint>),
}

/// Registers a Score plugin with this formula, its incremental form, and no events: it rejects no pod. Each resource counts with its
/// weight; names must be unique. Containers without CPU or memory request count with a default, and scalar resources count only if the
/// pod requests them, as in NodeResourcesFit.
pub fn register_allocation_score(
    points: &mut ExtensionPoints,
    formula: AllocationFormula,
    resources: &[ResourceSpec],
) {
    let formula = match formula {
        AllocationFormula::LeastAllocated => ScoreFormula::LeastAllocated,
        AllocationFormula::MostAllocated => ScoreFormula::MostAllocated,
        AllocationFormula::RequestedToCapacityRatio(shape) => {
            ScoreFormula::RequestedToCapacityRatio(Shape::new(shape))
        }
    };
    let weighted_resources = weighted_resources(resources);
    let plugin = Arc::new(AllocationScore { formula, weighted_resources });
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_no_events();
}

struct AllocationScore {
    formula: ScoreFormula,
    weighted_resources: WeightedResources,
}

impl AllocationScore {
    fn scored_requests(&self, pod: &PodInfo) -> ScoredRequests {
        let requests = PodRequests::container_requests(&pod.template.spec);
        ScoredRequests::new(&self.weighted_resources, RequestBasis::NonZeroRequested, &requests)
    }
}

impl Score for AllocationScore {
    fn score(&self, _: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(self.formula.score(self.scored_requests(pod).node_amounts(node)))
    }
}

impl Incremental for AllocationScore {
    type Key = ScoredRequests;

    fn key(&self, _: EvaluatorCx<'_>, pod: &PodInfo) -> Option<ScoredRequests> {
        Some(self.scored_requests(pod))
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, requests: &ScoredRequests) -> PrepareResult {
        let nodes = cx.world().nodes();
        let scorer = ColumnScorer::new(self.formula.clone(), requests.clone(), nodes);
        PrepareResult::Evaluator(Box::new(ScoreEvaluator(scorer)))
    }
}
