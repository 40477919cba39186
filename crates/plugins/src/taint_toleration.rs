//! TaintToleration: a pod fits only on nodes whose NoSchedule and NoExecute taints it tolerates. Nodes with fewer
//! PreferNoSchedule taints that it does not tolerate score higher.
//!
//! | | |
//! | --- | --- |
//! | extension points | Filter, PreScore, Score (+ NormalizeScore), Sign |
//! | woken by | node added or its taints changed, own tolerations changed |
//! | upstream | `plugins/tainttoleration`, 1.36 |
//! | deviations | also scores in a profile that disables its PreScore; upstream returns an error there |
//! | cost | O(taints · tolerations) per node, in the incremental form per distinct taint set; no allocation |

use std::sync::Arc;

use loadmaster_api::{SharedPodSpec, Taint, Toleration};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{
    ClassKey, FilterScope, NodeClasses, ResultDependencies, RowDependency, RowMask,
};
use loadmaster_framework::node_table::TaintSetId;
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, Detail, EvaluatorCx, EventResource, Explain,
    ExtensionPoints, Failure, Filter, Incremental, MAX_NODE_SCORE, NodeInfo, NodeRow, NodeScore,
    NodeTable, PluginDef, PluginError, PluginEvaluator, PodInfo, PreScore, PreScoreResult,
    PrepareCx, PrepareResult, QueueingHint, Rejection, Score, SerialCx, Sign,
};
use serde_json::Value;

use crate::DeclaredReasons;
use crate::explain_text::shown_taint;
use crate::normalize;
use crate::tolerations::{TolerationMatcher, signed_tolerations};

pub const NAME: &str = "TaintToleration";

const REASON: &str = "node(s) had untolerated taint(s)";

/// The reasons with which this plugin rejects pods and nodes.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct TaintToleration {
    toleration_matcher: TolerationMatcher,
}

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let plugin =
        Arc::new(TaintToleration { toleration_matcher: TolerationMatcher::new(&points.gates) });
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.register_event(
        ClusterEvent::new(EventResource::Node, ActionType::ADD | ActionType::UPDATE_NODE_TAINT),
        Some(Arc::new(move |hint_args| plugin.after_node_change(hint_args))),
    );
    points.register_event(
        ClusterEvent::new(EventResource::Pod, ActionType::UPDATE_POD_TOLERATION),
        Some(Arc::new(after_toleration_change)),
    );
    Ok(())
}

impl Filter for TaintToleration {
    fn filter(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let fits =
            self.toleration_matcher.tolerates_all(&pod.template.spec.tolerations, node.taints());
        if fits { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }
}

impl Explain for TaintToleration {
    fn node_details(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let tolerations = &pod.template.spec.tolerations;
        let untolerated = self.toleration_matcher.untolerated(tolerations, node.taints());
        let untolerated: Vec<String> = untolerated.map(shown_taint).collect();
        if untolerated.is_empty() { Vec::new() } else { vec![Detail::new("taints", untolerated)] }
    }
}

impl PreScore for TaintToleration {
    /// Nothing to prepare. A pod without tolerations is scored too, so PreScore never returns Skip.
    fn pre_score(
        &self,
        _cx: SerialCx<'_>,
        _pod: &PodInfo,
        _nodes: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        Ok(PreScoreResult::Ready)
    }
}

impl Score for TaintToleration {
    fn score(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(self.toleration_matcher.n_intolerable(&pod.template.spec.tolerations, node.taints()))
    }

    fn normalize(
        &self,
        _cx: Cx<'_>,
        _pod: &PodInfo,
        scores: &mut [NodeScore],
    ) -> Result<(), Failure> {
        normalize::default_normalize_score(scores, true);
        Ok(())
    }
}

impl TaintToleration {
    fn after_node_change(&self, hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
        let (old, new) = hint_args.old_and_new_node()?;
        let tolerations = &hint_args.pod.template.spec.tolerations;
        let tolerates_all =
            |taints: &[Taint]| self.toleration_matcher.tolerates_all(tolerations, taints);
        let tolerated_now = old.is_none_or(|old| !tolerates_all(&old.spec.taints))
            && tolerates_all(&new.spec.taints);
        Ok(QueueingHint::queue_if(tolerated_now))
    }
}

fn after_toleration_change(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let own = hint_args.new_pod()?.uid == hint_args.pod.uid;
    Ok(QueueingHint::queue_if(own))
}

impl Sign for TaintToleration {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        Ok(vec![signed_tolerations(pod)])
    }
}

impl Incremental for TaintToleration {
    /// The tolerations.
    type Key = Box<[Toleration]>;

    fn key(&self, _cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Self::Key> {
        Some(pod.template.spec.tolerations.as_slice().into())
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, tolerations: &Self::Key) -> PrepareResult {
        PrepareResult::Evaluator(Box::new(TaintTolerationEvaluator::new(
            self.toleration_matcher,
            tolerations.clone(),
            cx.world().nodes(),
        )))
    }
}

/// How many taint sets may be added before an evaluator becomes stale. Until then they are evaluated each time they are read.
const NEW_TAINT_SETS_MAX: usize = 16;

/// The incremental form: the result for every taint set. Nodes with equal taints share a set, so there are few sets.
struct TaintTolerationEvaluator {
    toleration_matcher: TolerationMatcher,
    tolerations: Box<[Toleration]>,
    /// By id, for the sets that existed when this evaluator was built.
    results: Vec<TaintSetResult>,
    all_tolerated: bool,
    /// Whether there is a PreferNoSchedule taint that the pod does not tolerate, so that the scores of nodes differ.
    any_intolerable: bool,
}

/// The result of a pod for one taint set.
#[derive(Clone, Copy)]
struct TaintSetResult {
    tolerated: bool,
    n_intolerable: i64,
}

impl TaintSetResult {
    fn new(
        matcher: TolerationMatcher,
        tolerations: &[Toleration],
        taints: &[Taint],
    ) -> TaintSetResult {
        TaintSetResult {
            tolerated: matcher.tolerates_all(tolerations, taints),
            n_intolerable: matcher.n_intolerable(tolerations, taints),
        }
    }
}

impl TaintTolerationEvaluator {
    fn new(
        toleration_matcher: TolerationMatcher,
        tolerations: Box<[Toleration]>,
        nodes: &NodeTable,
    ) -> TaintTolerationEvaluator {
        let sets = (0..nodes.n_taint_sets()).map(|id| nodes.taints(TaintSetId(id as u32)));
        let results: Vec<TaintSetResult> = sets
            .map(|taints| TaintSetResult::new(toleration_matcher, &tolerations, taints))
            .collect();
        TaintTolerationEvaluator {
            toleration_matcher,
            all_tolerated: results.iter().all(|taint_set_result| taint_set_result.tolerated),
            any_intolerable: results
                .iter()
                .any(|taint_set_result| taint_set_result.n_intolerable > 0),
            results,
            tolerations,
        }
    }

    fn taint_set_result(&self, nodes: &NodeTable, set: TaintSetId) -> TaintSetResult {
        let results = self.results.get(set.0 as usize).copied();
        results.unwrap_or_else(|| {
            TaintSetResult::new(self.toleration_matcher, &self.tolerations, nodes.taints(set))
        })
    }
}

impl PluginEvaluator for TaintTolerationEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        let class = self.any_intolerable.then_some(RowDependency::Node);
        ResultDependencies {
            filter: Some(RowDependency::Node),
            class,
            ..ResultDependencies::default()
        }
    }

    fn filter_scope(&self) -> FilterScope {
        FilterScope::Node
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let nodes = cx.nodes();
        self.taint_set_result(nodes, nodes.columns().taints[row.index()]).tolerated
    }

    fn filter_rows(&self, cx: EvaluatorCx<'_>, first: NodeRow, set: &mut RowMask) {
        let nodes = cx.nodes();
        if self.all_tolerated && nodes.n_taint_sets() == self.results.len() {
            return;
        }
        // Without a branch that depends on the row: nodes with and without taints alternate.
        for (member, taints) in set.iter_mut().zip(&nodes.columns().taints[first.index()..]) {
            *member &= u8::from(match self.results.get(taints.0 as usize) {
                Some(known) => known.tolerated,
                None => *member != 0 && self.taint_set_result(nodes, *taints).tolerated,
            });
        }
    }

    fn class_key_len(&self) -> usize {
        usize::from(self.any_intolerable)
    }

    fn class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        if self.any_intolerable {
            let nodes = cx.nodes();
            out.push(
                self.taint_set_result(nodes, nodes.columns().taints[row.index()]).n_intolerable,
            );
        }
    }

    fn has_class_scores(&self) -> bool {
        true
    }

    /// Without untolerated PreferNoSchedule taints every node has the maximum score.
    fn constant_class_score(&self) -> Option<i64> {
        (!self.any_intolerable).then_some(MAX_NODE_SCORE)
    }

    fn score_classes(&self, _cx: EvaluatorCx<'_>, classes: &NodeClasses<'_>, out: &mut [i64]) {
        match self.constant_class_score() {
            Some(score) => classes.feasible().for_each(|class| out[class] = score),
            None => normalize::normalize_class_scores(classes, 0, true, out),
        }
    }

    fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        let nodes = cx.nodes();
        let later = self.results.len()..nodes.n_taint_sets();
        let is_intolerable =
            |id: usize| self.taint_set_result(nodes, TaintSetId(id as u32)).n_intolerable > 0;
        later.len() > NEW_TAINT_SETS_MAX || !self.any_intolerable && { later }.any(is_intolerable)
    }
}

#[cfg(test)]
mod tests;
