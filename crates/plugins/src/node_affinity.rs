//! NodeAffinity: a pod fits only on nodes that match its node selector and required node affinity. Nodes that match its
//! preferred terms score higher. A profile may add an affinity to all pods (`addedAffinity`).
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, PreScore, Score (+ NormalizeScore), Sign |
//! | woken by | node added or its labels changed |
//! | upstream | `plugins/nodeaffinity`, 1.36 |
//! | deviations | none |
//! | cost | O(terms · labels) per node; in the incremental form one comparison per node and label key; no allocation |
//!
//! Invalid terms of a pod are not an error in Filter, where they match no node; in hints and in preferred terms they are an
//! error. Terms of a configuration must be valid.

mod args;
mod explain;
mod signature;

use std::sync::Arc;

use loadmaster_api::selector::{
    CompiledNodeSelector, PreferredNodeTerms, RequiredNodeAffinity, SelectorError,
    required_node_affinity,
};
use loadmaster_api::{Labels, Node, NodeSelector, SharedPodSpec, Str, pod};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{
    ClassKey, FilterScope, NodeClasses, ResultDependencies, RowDependency, RowMask, retain_rows,
};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, CycleStateSlot, EvaluatorCx, EventResource,
    ExtensionPoints, Failure, FieldError, Filter, Incremental, NodeInfo, NodeRow, NodeScore,
    PluginDef, PluginError, PluginEvaluator, PodInfo, PodTemplate, PreFilter, PreFilterResult,
    PreScore, PreScoreResult, PrepareCx, PrepareResult, QueueingHint, Rejection, Score, SerialCx,
    Sign,
};
use serde_json::Value;

use crate::DeclaredReasons;
use crate::column_filter::ColumnFilter;
use crate::normalize;

pub const NAME: &str = "NodeAffinity";

const REASON_POD: &str = "node(s) didn't match Pod's node affinity/selector";
const REASON_ENFORCED: &str = "node(s) didn't match scheduler-enforced node affinity";
const REASON_CONFLICT: &str = "pod affinity terms conflict";

/// The reasons with which this plugin rejects pods and nodes.
pub(crate) const REASONS: DeclaredReasons = &[
    (Code::UnschedulableAndUnresolvable, REASON_POD),
    (Code::UnschedulableAndUnresolvable, REASON_ENFORCED),
    (Code::UnschedulableAndUnresolvable, REASON_CONFLICT),
];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(args::complete) };

struct NodeAffinity {
    added: Arc<AddedAffinity>,
    /// The required node affinity of the incoming pod: written by PreFilter, read by Filter.
    required: CycleStateSlot<Arc<RequiredNodeAffinity>>,
    /// The preferred terms of the incoming pod: written by PreScore, read by Score.
    preferred: CycleStateSlot<Arc<PreferredNodeTerms>>,
}

/// The affinity that the profile adds to every pod.
#[derive(Default)]
struct AddedAffinity {
    required: Option<AddedSelector>,
    preferred: Option<PreferredNodeTerms>,
}

struct AddedSelector {
    written: NodeSelector,
    compiled: CompiledNodeSelector,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let invalid = |error: FieldError| PluginError::Args { plugin: NAME, error };
    let added = args::added_affinity(args).map_err(invalid)?;
    let added = added.map_or(Ok(AddedAffinity::default()), AddedAffinity::new).map_err(invalid)?;
    let plugin = Arc::new(NodeAffinity {
        added: Arc::new(added),
        required: points.cycle_state_slot(),
        preferred: points.cycle_state_slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.register_event(
        ClusterEvent::new(EventResource::Node, ActionType::ADD | ActionType::UPDATE_NODE_LABEL),
        Some(Arc::new(move |hint_args: &QueueingHintArgs<'_>| plugin.after_node_change(hint_args))),
    );
    Ok(())
}

impl AddedAffinity {
    fn new(affinity: pod::NodeAffinity) -> Result<AddedAffinity, FieldError> {
        let invalid = |field: &str, error: SelectorError| FieldError {
            path: format!("addedAffinity.{field}"),
            text: error.to_string(),
        };
        let required = affinity.required.map(|written| {
            let compiled = CompiledNodeSelector::strict(&written);
            let compiled = compiled.map_err(|error| invalid(args::REQUIRED, error))?;
            Ok(AddedSelector { written, compiled })
        });
        let given = !affinity.preferred.is_empty();
        let preferred = given.then(|| PreferredNodeTerms::new(&affinity.preferred)).transpose();
        Ok(AddedAffinity {
            required: required.transpose()?,
            preferred: preferred.map_err(|error| invalid(args::PREFERRED, error))?,
        })
    }

    fn allows(&self, labels: &Labels, name: &str) -> bool {
        let matches = |it: &AddedSelector| it.compiled.matches(labels, name).unwrap_or(false);
        self.required.as_ref().is_none_or(matches)
    }

    fn score(&self, labels: &Labels, name: &str) -> i64 {
        self.preferred.as_ref().map_or(0, |terms| terms.score(labels, name))
    }
}

impl PreFilter for NodeAffinity {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        if !self.filters((&*pod.template).into()) {
            return Ok(PreFilterResult::Skip);
        }
        cx.cycle.set(self.required, Arc::new(required_of((&*pod.template).into())));
        match only_names((&*pod.template).into()) {
            None => Ok(PreFilterResult::All),
            Some(names) if names.is_empty() => Err(Rejection::unresolvable(REASON_CONFLICT)),
            Some(names) => Ok(PreFilterResult::Nodes(names.into_iter().collect())),
        }
    }
}

impl Filter for NodeAffinity {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        if !self.added.allows(node.labels(), node.name()) {
            return Err(Rejection::unresolvable(REASON_ENFORCED));
        }
        let fits = match cx.cycle.get(self.required) {
            Some(required) => fits(required, node.labels(), node.name()),
            // The profile disables PreFilter.
            None => fits(&required_of((&*pod.template).into()), node.labels(), node.name()),
        };
        if fits { Ok(()) } else { Err(Rejection::unresolvable(REASON_POD)) }
    }
}

impl PreScore for NodeAffinity {
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        _nodes: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        if !self.scores((&*pod.template).into()) {
            return Ok(PreScoreResult::Skip);
        }
        let preferred = preferred_of((&*pod.template).into()).map_err(failure)?;
        cx.cycle.set(self.preferred, Arc::new(preferred));
        Ok(PreScoreResult::Ready)
    }
}

impl Score for NodeAffinity {
    fn score(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let (labels, name) = (node.labels(), node.name());
        let own = match cx.cycle.get(self.preferred) {
            Some(preferred) => preferred.score(labels, name),
            // The profile disables PreScore.
            None => preferred_of((&*pod.template).into()).map_err(failure)?.score(labels, name),
        };
        Ok(self.added.score(labels, name) + own)
    }

    fn normalize(
        &self,
        _cx: Cx<'_>,
        _pod: &PodInfo,
        scores: &mut [NodeScore],
    ) -> Result<(), Failure> {
        normalize::default_normalize_score(scores, false);
        Ok(())
    }
}

impl NodeAffinity {
    /// Whether anything is required of nodes for this pod.
    fn filters(&self, pod: Wanted<'_>) -> bool {
        self.added.required.is_some()
            || !pod.node_selector.is_empty()
            || pod.affinity.is_some_and(|affinity| affinity.required.is_some())
    }

    /// Whether anything is preferred for this pod.
    fn scores(&self, pod: Wanted<'_>) -> bool {
        self.added.preferred.is_some()
            || pod.affinity.is_some_and(|affinity| !affinity.preferred.is_empty())
    }

    fn after_node_change(&self, hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
        let (old, new) = hint_args.old_and_new_node()?;
        if !self.added.allows(&new.metadata.labels, new.name()) {
            return Ok(QueueingHint::Skip);
        }
        let required = required_of((&*hint_args.pod.template).into());
        let fits =
            |node: &Node| required.matches(&node.metadata.labels, node.name()).map_err(failure);
        // As upstream, the old node is checked against the pod's own affinity only.
        let matches_now = fits(new)? && !old.map_or(Ok(false), fits)?;
        Ok(QueueingHint::queue_if(matches_now))
    }
}

impl Sign for NodeAffinity {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        signature::fragments(&pod.template)
    }
}

impl Incremental for NodeAffinity {
    type Key = PodNodeAffinity;

    fn key(&self, _cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<PodNodeAffinity> {
        let node_selector = pod.template.spec.node_selector.clone();
        Some(PodNodeAffinity { node_selector, affinity: affinity_of(&pod.template).cloned() })
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, pod: &PodNodeAffinity) -> PrepareResult {
        let (filters, scores) = (self.filters(pod.into()), self.scores(pod.into()));
        if !filters && !scores {
            return PrepareResult::Skip;
        }
        let names = only_names(pod.into());
        if names.as_ref().is_some_and(Vec::is_empty) {
            return PrepareResult::Rejected(Rejection::unresolvable(REASON_CONFLICT));
        }
        // Invalid preferred terms fail the attempt when nodes are scored, not before: only the per-node form can do that.
        let Ok(preferred) = preferred_of(pod.into()) else { return PrepareResult::PerNode };
        let added = self.added.required.as_ref().map(|added| &added.written);
        let own = pod.affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        PrepareResult::Evaluator(Box::new(NodeAffinityEvaluator {
            added: self.added.clone(),
            selects_by_name: names.is_some(),
            column_filter: ColumnFilter::new(cx, &pod.node_selector, [added, own], names),
            required: filters.then(|| required_of(pod.into())),
            preferred: scores.then_some(preferred),
        }))
    }
}

/// What a pod requires and prefers of nodes.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PodNodeAffinity {
    node_selector: Labels,
    affinity: Option<pod::NodeAffinity>,
}

/// The same, borrowed.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    node_selector: &'a Labels,
    affinity: Option<&'a pod::NodeAffinity>,
}

impl<'a> From<&'a PodTemplate> for Wanted<'a> {
    fn from(pod: &'a PodTemplate) -> Self {
        Wanted { node_selector: &pod.spec.node_selector, affinity: affinity_of(pod) }
    }
}

impl<'a> From<&'a PodNodeAffinity> for Wanted<'a> {
    fn from(pod: &'a PodNodeAffinity) -> Self {
        Wanted { node_selector: &pod.node_selector, affinity: pod.affinity.as_ref() }
    }
}

struct NodeAffinityEvaluator {
    added: Arc<AddedAffinity>,
    /// The pod's terms select nodes by name.
    selects_by_name: bool,
    column_filter: ColumnFilter,
    /// `None` when nothing is required, not even by the profile.
    required: Option<RequiredNodeAffinity>,
    /// `None` when nothing is preferred, not even by the profile.
    preferred: Option<PreferredNodeTerms>,
}

impl PluginEvaluator for NodeAffinityEvaluator {
    fn narrows_nodes(&self) -> bool {
        self.selects_by_name
    }

    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies {
            filter: self.required.is_some().then_some(RowDependency::Node),
            class: self.preferred.is_some().then_some(RowDependency::Node),
            ..ResultDependencies::default()
        }
    }

    fn filter_scope(&self) -> FilterScope {
        if self.required.is_some() { FilterScope::Node } else { FilterScope::Nothing }
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let (Some(required), Some(node)) = (&self.required, cx.nodes().node(row)) else {
            return true;
        };
        let (labels, name) = (&node.metadata.labels, node.name());
        self.added.allows(labels, name) && fits(required, labels, name)
    }

    fn filter_rows(&self, cx: EvaluatorCx<'_>, first: NodeRow, set: &mut RowMask) {
        self.column_filter.retain_matching(cx.nodes(), first, set);
        if self.column_filter.is_complete() {
            return;
        }
        retain_rows(first, set, |row| self.filter_row(cx, row));
    }

    fn class_key_len(&self) -> usize {
        usize::from(self.preferred.is_some())
    }

    /// The key has one element: the sum of the weights.
    fn class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        if let (Some(preferred), Some(node)) = (&self.preferred, cx.nodes().node(row)) {
            let (labels, name) = (&node.metadata.labels, node.name());
            out.push(self.added.score(labels, name) + preferred.score(labels, name));
        }
    }

    fn has_class_scores(&self) -> bool {
        self.preferred.is_some()
    }

    fn score_classes(&self, _cx: EvaluatorCx<'_>, classes: &NodeClasses<'_>, out: &mut [i64]) {
        normalize::normalize_class_scores(classes, 0, false, out);
    }
}

fn affinity_of(pod: &PodTemplate) -> Option<&pod::NodeAffinity> {
    pod.spec.affinity.as_deref()?.node_affinity.as_ref()
}

fn required_of(pod: Wanted<'_>) -> RequiredNodeAffinity {
    let affinity = pod.affinity.and_then(|affinity| affinity.required.as_ref());
    required_node_affinity(pod.node_selector, affinity)
}

fn preferred_of(pod: Wanted<'_>) -> Result<PreferredNodeTerms, SelectorError> {
    PreferredNodeTerms::new(pod.affinity.map_or(&[], |affinity| &affinity.preferred))
}

/// The names of the only nodes that the pod can fit on, if its terms select nodes by name.
fn only_names(pod: Wanted<'_>) -> Option<Vec<Str>> {
    pod.affinity?.required.as_ref()?.field_names()
}

/// Whether the node matches; invalid terms match no node.
fn fits(required: &RequiredNodeAffinity, labels: &Labels, name: &str) -> bool {
    required.matches(labels, name).unwrap_or(false)
}

fn failure(error: SelectorError) -> Failure {
    Failure::new(error.to_string())
}

#[cfg(test)]
mod tests;
