//! TaintToleration: a pod fits only where it tolerates the node's hard taints, and better where it tolerates the soft
//! ones.
//!
//! | | |
//! | --- | --- |
//! | extension points | Filter, PreScore, Score (+ NormalizeScore), Sign |
//! | woken by | node added or its taints changed, own tolerations changed |
//! | upstream | `plugins/tainttoleration`, 1.36 |
//! | deviations | scores also where a profile disables its PreScore, which upstream answers with an error |
//! | cost | O(taints · tolerations) a node, once a distinct taint set in the incremental form; no allocation |

use std::sync::Arc;

use loadmaster_api::{Taint, Toleration};
use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::prepare::{Classes, Reads, RowPart, RowSet, Words};
use loadmaster_framework::table::TaintSetId;
use loadmaster_framework::{
    Action, ClusterEvent, Code, Cx, EventResource, Failure, FeatureGates, Filter, Hint,
    MAX_NODE_SCORE, NodeInfo, NodeScore, NodeTable, PluginDef, PluginError, PodInfo, PodTemplate,
    Points, PreScore, PreScored, Prepare, Prepared, Rejection, Row, Run, Score, SerialCx, Sign,
    World,
};
use serde_json::{Map, Value};

use crate::DeclaredReasons;
use crate::normalize;

pub const NAME: &str = "TaintToleration";

const REASON: &str = "node(s) had untolerated taint(s)";

pub(crate) const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";
const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// What it turns pods and nodes down with.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct TaintToleration {
    tolerance: Tolerance,
}

fn build(points: &mut Points, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(TaintToleration { tolerance: Tolerance::new(&points.gates) });
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.prepare = Some(plugin.clone());
    points.wake_on(
        ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_NODE_TAINT),
        Some(Arc::new(move |question| plugin.after_node_change(question))),
    );
    points.wake_on(
        ClusterEvent::new(EventResource::Pod, Action::UPDATE_POD_TOLERATION),
        Some(Arc::new(after_toleration_change)),
    );
    Ok(())
}

impl Filter for TaintToleration {
    fn filter(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let fits = self.tolerance.allows(&pod.template.spec.tolerations, node.taints());
        if fits { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }
}

impl PreScore for TaintToleration {
    /// Nothing to prepare; but a pod without tolerations is scored too, so the point never skips.
    fn pre_score(
        &self,
        _cx: SerialCx<'_>,
        _pod: &PodInfo,
        _nodes: &[NodeInfo<'_>],
    ) -> Result<PreScored, Failure> {
        Ok(PreScored::Ready)
    }
}

impl Score for TaintToleration {
    fn score(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(self.tolerance.n_disliked(&pod.template.spec.tolerations, node.taints()))
    }

    fn normalize(
        &self,
        _cx: Cx<'_>,
        _pod: &PodInfo,
        scores: &mut [NodeScore],
    ) -> Result<(), Failure> {
        normalize::nodes_by_max(scores, true);
        Ok(())
    }
}

impl TaintToleration {
    fn after_node_change(&self, question: &HintQuestion<'_>) -> Result<Hint, Failure> {
        let (old, new) = question.node_change()?;
        let tolerations = &question.pod.template.spec.tolerations;
        let allows = |taints: &[Taint]| self.tolerance.allows(tolerations, taints);
        let opened = old.is_none_or(|old| !allows(&old.spec.taints)) && allows(&new.spec.taints);
        Ok(if opened { Hint::Queue } else { Hint::Skip })
    }
}

fn after_toleration_change(question: &HintQuestion<'_>) -> Result<Hint, Failure> {
    let own = question.pod_now()?.uid == question.pod.uid;
    Ok(if own { Hint::Queue } else { Hint::Skip })
}

impl Sign for TaintToleration {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        Ok(vec![signed_tolerations(pod)])
    }
}

/// The pod's tolerations by key and value, as a part of its signature.
pub(crate) fn signed_tolerations(pod: &PodInfo) -> Fragment {
    let mut sorted: Vec<&Toleration> = pod.template.spec.tolerations.iter().collect();
    sorted.sort_by(|a, b| (&a.key, &a.value).cmp(&(&b.key, &b.value)));
    let value = sorted.into_iter().map(toleration_json).collect();
    Fragment { key: "v1.Pod.Spec.Tolerations", value }
}

/// As the API writes it: empty fields are left out.
fn toleration_json(toleration: &Toleration) -> Value {
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration;
    let fields = [("key", key), ("operator", operator), ("value", value), ("effect", effect)];
    let given = fields.into_iter().filter(|(_, text)| !text.is_empty());
    let mut object: Map<_, _> =
        given.map(|(name, text)| (name.to_owned(), text.as_str().into())).collect();
    if let Some(seconds) = toleration_seconds {
        object.insert("tolerationSeconds".to_owned(), (*seconds).into());
    }
    Value::Object(object)
}

impl Prepare for TaintToleration {
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> Prepared {
        Prepared::Run(Box::new(TaintRun::new(self.tolerance, pod.template.clone(), world.nodes())))
    }
}

/// How many taint sets may appear before a run is made anew; until then each is worked out wherever it is met.
const LATER_SETS_MAX: usize = 16;

/// What a pod makes of every taint set. Nodes with equal taints share their set, and there are few.
struct TaintRun {
    tolerance: Tolerance,
    pod: Arc<PodTemplate>,
    /// By id, of the sets that were known when the run was made.
    known: Vec<Opinion>,
    all_allowed: bool,
    /// Whether there is a soft taint that the pod does not tolerate, so that nodes differ in score.
    any_disliked: bool,
}

/// What a pod makes of one taint set.
#[derive(Clone, Copy)]
struct Opinion {
    allowed: bool,
    n_disliked: i64,
}

impl TaintRun {
    fn new(tolerance: Tolerance, pod: Arc<PodTemplate>, nodes: &NodeTable) -> TaintRun {
        let sets = (0..nodes.n_taint_sets()).map(|id| nodes.taints(TaintSetId(id as u32)));
        let known: Vec<Opinion> =
            sets.map(|taints| tolerance.opinion(&pod.spec.tolerations, taints)).collect();
        TaintRun {
            tolerance,
            all_allowed: known.iter().all(|opinion| opinion.allowed),
            any_disliked: known.iter().any(|opinion| opinion.n_disliked > 0),
            known,
            pod,
        }
    }

    fn opinion(&self, nodes: &NodeTable, set: TaintSetId) -> Opinion {
        let known = self.known.get(set.0 as usize).copied();
        known.unwrap_or_else(|| {
            self.tolerance.opinion(&self.pod.spec.tolerations, nodes.taints(set))
        })
    }
}

impl Run for TaintRun {
    fn reads(&self) -> Reads {
        let class = self.any_disliked.then_some(RowPart::Node);
        Reads { filter: Some(RowPart::Node), class, ..Reads::default() }
    }

    fn filter_row(&self, nodes: &NodeTable, row: Row) -> bool {
        self.opinion(nodes, nodes.columns().taints[row.index()]).allowed
    }

    fn filter_all(&self, nodes: &NodeTable, set: &mut RowSet) {
        if self.all_allowed && nodes.n_taint_sets() == self.known.len() {
            return;
        }
        for (member, taints) in set.iter_mut().zip(&nodes.columns().taints) {
            if *member != 0 && !self.opinion(nodes, *taints).allowed {
                *member = 0;
            }
        }
    }

    fn n_words(&self) -> usize {
        usize::from(self.any_disliked)
    }

    fn class_row(&self, world: &World, row: Row, out: &mut Words) {
        if self.any_disliked {
            let nodes = world.nodes();
            out.push(self.opinion(nodes, nodes.columns().taints[row.index()]).n_disliked);
        }
    }

    fn scores_classes(&self) -> bool {
        true
    }

    fn class_score(&self, _world: &World, classes: &Classes<'_>, out: &mut [i64]) {
        if self.any_disliked {
            return normalize::classes_by_max(classes, 0, true, out);
        }
        // Where nothing is disliked every node is the best.
        for class in classes.feasible() {
            out[class] = MAX_NODE_SCORE;
        }
    }

    fn is_stale(&self, world: &World) -> bool {
        let nodes = world.nodes();
        let later = self.known.len()..nodes.n_taint_sets();
        let starts_to_differ =
            |id: usize| self.opinion(nodes, TaintSetId(id as u32)).n_disliked > 0;
        later.len() > LATER_SETS_MAX || !self.any_disliked && { later }.any(starts_to_differ)
    }
}

/// When a toleration tolerates a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tolerance {
    /// Gate TaintTolerationComparisonOperators: `Lt` and `Gt` compare numbers.
    comparison_operators: bool,
}

impl Tolerance {
    pub(crate) fn new(gates: &FeatureGates) -> Tolerance {
        Tolerance { comparison_operators: gates.taint_toleration_comparison_operators }
    }

    /// Whether every taint that keeps pods away is tolerated.
    pub(crate) fn allows(self, tolerations: &[Toleration], taints: &[Taint]) -> bool {
        let mut hard = taints.iter().filter(|taint| is_hard(taint));
        hard.all(|taint| self.any_tolerates(tolerations, taint))
    }

    /// Whether one of the tolerations tolerates the taint.
    pub(crate) fn any_tolerates(self, tolerations: &[Toleration], taint: &Taint) -> bool {
        tolerations.iter().any(|toleration| self.tolerates(toleration, taint))
    }

    /// How many taints merely discourage the pod.
    fn n_disliked(self, tolerations: &[Toleration], taints: &[Taint]) -> i64 {
        let soft = taints.iter().filter(|taint| taint.effect == PREFER_NO_SCHEDULE);
        soft.filter(|taint| !self.any_tolerates(tolerations, taint)).count() as i64
    }

    fn opinion(self, tolerations: &[Toleration], taints: &[Taint]) -> Opinion {
        Opinion {
            allowed: self.allows(tolerations, taints),
            n_disliked: self.n_disliked(tolerations, taints),
        }
    }

    fn tolerates(self, toleration: &Toleration, taint: &Taint) -> bool {
        let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
        // An empty key stands for all keys, whatever the operator: only the API server asks for `Exists` then.
        let key = toleration.key.is_empty() || toleration.key == taint.key;
        effect && key && self.tolerates_value(toleration, &taint.value)
    }

    fn tolerates_value(self, toleration: &Toleration, value: &str) -> bool {
        match toleration.operator.as_str() {
            "" | "Equal" => toleration.value == *value,
            "Exists" => true,
            "Lt" => self.compares(toleration, value, |taint, bound| taint < bound),
            "Gt" => self.compares(toleration, value, |taint, bound| taint > bound),
            _ => false,
        }
    }

    fn compares(self, toleration: &Toleration, value: &str, rule: fn(i64, i64) -> bool) -> bool {
        let numbers = canonical_integer(value).zip(canonical_integer(&toleration.value));
        self.comparison_operators && numbers.is_some_and(|(taint, bound)| rule(taint, bound))
    }
}

fn is_hard(taint: &Taint) -> bool {
    taint.effect == NO_SCHEDULE || taint.effect == NO_EXECUTE
}

/// An integer as a person would write it: no plus sign, no leading zeros, no minus zero.
fn canonical_integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = text == "0" || digits.starts_with(|first: char| ('1'..='9').contains(&first));
    if canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests;
