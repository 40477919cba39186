//! NodeAffinity: a pod fits only on nodes that its node selector and required node affinity select, and better on nodes
//! that it prefers; a profile may add an affinity of its own to all pods.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, PreScore, Score (+ NormalizeScore), Sign |
//! | woken by | node added or its labels changed |
//! | upstream | `plugins/nodeaffinity`, 1.36 |
//! | deviations | none |
//! | cost | O(terms · labels) a node; in the incremental form one comparison a node and label key; no allocation |
//!
//! Terms of a pod that do not parse are no error in Filter, where they just match nothing; in hints and preferred terms
//! they are. Terms of a configuration must parse.

mod args;
mod narrowing;
mod sign;

use std::sync::Arc;

use loadmaster_api::selector::{
    CompiledNodeSelector, PreferredNodeTerms, RequiredNodeAffinity, SelectorError,
    required_node_affinity,
};
use loadmaster_api::{Labels, Node, NodeSelector, Str, pod};
use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::prepare::{Classes, Reads, RowPart, RowSet, Words};
use loadmaster_framework::{
    Action, ClusterEvent, Code, Cx, EventResource, Failure, FieldError, Filter, Hint, NodeInfo,
    NodeScore, NodeTable, PluginDef, PluginError, PodInfo, PodTemplate, Points, PreFilter,
    PreFiltered, PreScore, PreScored, Prepare, Prepared, Rejection, Row, Run, Score, SerialCx,
    Sign, Slot, World,
};
use serde_json::Value;

use crate::DeclaredReasons;
use crate::normalize;
use narrowing::Narrowing;

pub const NAME: &str = "NodeAffinity";

const REASON_POD: &str = "node(s) didn't match Pod's node affinity/selector";
const REASON_ENFORCED: &str = "node(s) didn't match scheduler-enforced node affinity";
const REASON_CONFLICT: &str = "pod affinity terms conflict";

/// What it turns pods and nodes down with.
pub(crate) const REASONS: DeclaredReasons = &[
    (Code::UnschedulableAndUnresolvable, REASON_POD),
    (Code::UnschedulableAndUnresolvable, REASON_ENFORCED),
    (Code::UnschedulableAndUnresolvable, REASON_CONFLICT),
];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(args::complete) };

struct NodeAffinity {
    added: Arc<Added>,
    /// What the pod at hand requires, from PreFilter to Filter.
    required: Slot<Arc<RequiredNodeAffinity>>,
    /// What the pod at hand prefers, from PreScore to Score.
    preferred: Slot<Arc<PreferredNodeTerms>>,
}

/// What the profile adds to every pod's affinity.
#[derive(Default)]
struct Added {
    required: Option<AddedSelector>,
    preferred: Option<PreferredNodeTerms>,
}

struct AddedSelector {
    written: NodeSelector,
    compiled: CompiledNodeSelector,
}

fn build(points: &mut Points, args: &Value) -> Result<(), PluginError> {
    let unfit = |error: FieldError| PluginError::Args { plugin: NAME, error };
    let added = args::added_affinity(args).map_err(unfit)?;
    let added = added.map_or(Ok(Added::default()), Added::new).map_err(unfit)?;
    let plugin = Arc::new(NodeAffinity {
        added: Arc::new(added),
        required: points.slot(),
        preferred: points.slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.prepare = Some(plugin.clone());
    points.wake_on(
        ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_NODE_LABEL),
        Some(Arc::new(move |question: &HintQuestion<'_>| plugin.after_node_change(question))),
    );
    Ok(())
}

impl Added {
    fn new(affinity: pod::NodeAffinity) -> Result<Added, FieldError> {
        let unfit = |field: &str, error: SelectorError| FieldError {
            path: format!("addedAffinity.{field}"),
            text: error.to_string(),
        };
        let required = affinity.required.map(|written| {
            let compiled = CompiledNodeSelector::strict(&written);
            let compiled = compiled.map_err(|error| unfit(args::REQUIRED, error))?;
            Ok(AddedSelector { written, compiled })
        });
        let given = !affinity.preferred.is_empty();
        let preferred = given.then(|| PreferredNodeTerms::new(&affinity.preferred)).transpose();
        Ok(Added {
            required: required.transpose()?,
            preferred: preferred.map_err(|error| unfit(args::PREFERRED, error))?,
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
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        if !self.filters(&pod.template) {
            return Ok(PreFiltered::Skip);
        }
        cx.cycle.set(self.required, Arc::new(required_of(&pod.template)));
        match only_names(&pod.template) {
            None => Ok(PreFiltered::All),
            Some(names) if names.is_empty() => Err(Rejection::unresolvable(REASON_CONFLICT)),
            Some(names) => Ok(PreFiltered::Nodes(names.into_iter().collect())),
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
            None => fits(&required_of(&pod.template), node.labels(), node.name()),
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
    ) -> Result<PreScored, Failure> {
        if !self.scores(&pod.template) {
            return Ok(PreScored::Skip);
        }
        let preferred = preferred_of(&pod.template).map_err(failure)?;
        cx.cycle.set(self.preferred, Arc::new(preferred));
        Ok(PreScored::Ready)
    }
}

impl Score for NodeAffinity {
    fn score(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let (labels, name) = (node.labels(), node.name());
        let own = match cx.cycle.get(self.preferred) {
            Some(preferred) => preferred.score(labels, name),
            // The profile disables PreScore.
            None => preferred_of(&pod.template).map_err(failure)?.score(labels, name),
        };
        Ok(self.added.score(labels, name) + own)
    }

    fn normalize(
        &self,
        _cx: Cx<'_>,
        _pod: &PodInfo,
        scores: &mut [NodeScore],
    ) -> Result<(), Failure> {
        normalize::nodes_by_max(scores, false);
        Ok(())
    }
}

impl NodeAffinity {
    /// Whether anything is required of nodes for this pod.
    fn filters(&self, pod: &PodTemplate) -> bool {
        self.added.required.is_some()
            || !pod.spec.node_selector.is_empty()
            || affinity_of(pod).is_some_and(|affinity| affinity.required.is_some())
    }

    /// Whether anything is preferred for this pod.
    fn scores(&self, pod: &PodTemplate) -> bool {
        self.added.preferred.is_some()
            || affinity_of(pod).is_some_and(|affinity| !affinity.preferred.is_empty())
    }

    fn after_node_change(&self, question: &HintQuestion<'_>) -> Result<Hint, Failure> {
        let (old, new) = question.node_change()?;
        if !self.added.allows(&new.metadata.labels, new.name()) {
            return Ok(Hint::Skip);
        }
        let required = required_of(&question.pod.template);
        let fits =
            |node: &Node| required.matches(&node.metadata.labels, node.name()).map_err(failure);
        // As upstream, only the pod's own affinity is asked about the old node.
        let opened = fits(new)? && !old.map_or(Ok(false), fits)?;
        Ok(if opened { Hint::Queue } else { Hint::Skip })
    }
}

impl Sign for NodeAffinity {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        sign::fragments(&pod.template)
    }
}

impl Prepare for NodeAffinity {
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> Prepared {
        let pod = &pod.template;
        let (filters, scores) = (self.filters(pod), self.scores(pod));
        if !filters && !scores {
            return Prepared::Skip;
        }
        let names = only_names(pod);
        if names.as_ref().is_some_and(Vec::is_empty) {
            return Prepared::Rejected(Rejection::unresolvable(REASON_CONFLICT));
        }
        // Ill-formed preferences fail the attempt once nodes are scored, but not before: only one by one can say that.
        let Ok(preferred) = preferred_of(pod) else { return Prepared::OneByOne };
        let added = self.added.required.as_ref().map(|added| &added.written);
        let selectors = [added, affinity_of(pod).and_then(|affinity| affinity.required.as_ref())];
        Prepared::Run(Box::new(AffinityRun {
            added: self.added.clone(),
            narrows: names.is_some(),
            narrowing: Narrowing::new(world, &pod.spec.node_selector, selectors, names),
            required: filters.then(|| required_of(pod)),
            preferred: scores.then_some(preferred),
        }))
    }
}

struct AffinityRun {
    added: Arc<Added>,
    /// The pod names its nodes.
    narrows: bool,
    narrowing: Narrowing,
    /// `None` when nothing is required, not even by the profile.
    required: Option<RequiredNodeAffinity>,
    /// `None` when nothing is preferred, not even by the profile.
    preferred: Option<PreferredNodeTerms>,
}

impl Run for AffinityRun {
    fn narrows(&self) -> bool {
        self.narrows
    }

    fn reads(&self) -> Reads {
        Reads {
            filter: self.required.is_some().then_some(RowPart::Node),
            class: self.preferred.is_some().then_some(RowPart::Node),
            ..Reads::default()
        }
    }

    fn filter_row(&self, nodes: &NodeTable, row: Row) -> bool {
        let (Some(required), Some(node)) = (&self.required, nodes.node(row)) else { return true };
        let (labels, name) = (&node.metadata.labels, node.name());
        self.added.allows(labels, name) && fits(required, labels, name)
    }

    fn filter_all(&self, nodes: &NodeTable, set: &mut RowSet) {
        self.narrowing.narrow(nodes, set);
        if self.narrowing.is_complete() {
            return;
        }
        for (at, member) in set.iter_mut().enumerate() {
            if *member != 0 && !self.filter_row(nodes, Row(at as u32)) {
                *member = 0;
            }
        }
    }

    fn n_words(&self) -> usize {
        usize::from(self.preferred.is_some())
    }

    /// The one word is the sum of the weights.
    fn class_row(&self, world: &World, row: Row, out: &mut Words) {
        if let (Some(preferred), Some(node)) = (&self.preferred, world.nodes().node(row)) {
            let (labels, name) = (&node.metadata.labels, node.name());
            out.push(self.added.score(labels, name) + preferred.score(labels, name));
        }
    }

    fn scores_classes(&self) -> bool {
        self.preferred.is_some()
    }

    fn class_score(&self, _world: &World, classes: &Classes<'_>, out: &mut [i64]) {
        normalize::classes_by_max(classes, 0, false, out);
    }
}

fn affinity_of(pod: &PodTemplate) -> Option<&pod::NodeAffinity> {
    pod.spec.affinity.as_deref()?.node_affinity.as_ref()
}

fn required_of(pod: &PodTemplate) -> RequiredNodeAffinity {
    let affinity = affinity_of(pod).and_then(|affinity| affinity.required.as_ref());
    required_node_affinity(&pod.spec.node_selector, affinity)
}

fn preferred_of(pod: &PodTemplate) -> Result<PreferredNodeTerms, SelectorError> {
    PreferredNodeTerms::new(affinity_of(pod).map_or(&[], |affinity| &affinity.preferred))
}

/// The names of the only nodes the pod may go to, if it asks for nodes by name.
fn only_names(pod: &PodTemplate) -> Option<Vec<Str>> {
    affinity_of(pod)?.required.as_ref()?.field_names()
}

/// Whether the node will do; ill-formed terms match nothing.
fn fits(required: &RequiredNodeAffinity, labels: &Labels, name: &str) -> bool {
    required.matches(labels, name).unwrap_or(false)
}

fn failure(error: SelectorError) -> Failure {
    Failure::new(error.to_string())
}

#[cfg(test)]
mod tests;
