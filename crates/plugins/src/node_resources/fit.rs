//! NodeResourcesFit: a pod fits where what it asks for is free; ranks nodes by what would be free or used.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, PreScore, Score |
//! | woken by | assigned pod deleted or scaled down, node added or its allocatable changed, device class added or updated |
//! | upstream | `plugins/noderesources/fit.go`, 1.36 |
//! | deviations | scalar resources a node lacks are named in the order of their names, not in a random one; no resource is left to dynamic resource allocation yet, and every device class wakes |
//! | cost | O(resources of the pod) a node, no allocation unless it is turned down; over columns 1 ns a row to filter, 2 ns to score (AVX2) |

use std::sync::Arc;

use loadmaster_api::Node;
use loadmaster_api::meta::nullable;
use loadmaster_api::names::is_extended;
use loadmaster_api::selector::label_key_complaints;
use loadmaster_framework::args::{self, FieldError};
use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::prepare::{OutOfRange, Reads, RowPart, RowSet};
use loadmaster_framework::requests::PodRequests;
use loadmaster_framework::result::Reasons;
use loadmaster_framework::{
    Action, ClusterEvent, Code, Cx, EventObject, EventResource, Failure, FeatureGates, Filter,
    Hint, MAX_NODE_SCORE, NodeInfo, NodeTable, PluginDef, PluginError, PodInfo, Points, PreFilter,
    PreFiltered, PreScore, PreScored, Prepare, Prepared, Reason, Rejection, Resources, Row, Run,
    Score, SerialCx, Sign, Slot, World,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smallvec::SmallVec;

use super::amounts::{Basis, Demand, Lane, Place, Resource, Scored, scored};
use super::args::{ResourceSpec, complete, encode};
use super::formula::{Formula, Shape, ShapePoint};
use super::kernel;
use super::scorer::Scorer;
use crate::DeclaredReasons;

/// The plugin's name in configurations.
pub const NAME: &str = "NodeResourcesFit";

const TOO_MANY_PODS: &str = "Too many pods";

/// What it turns pods and nodes down with: every resource by its name, extended ones under any domain, and what the node could
/// not offer even if it were empty.
pub(crate) const REASONS: DeclaredReasons = &[
    (Code::Unschedulable, TOO_MANY_PODS),
    (Code::Unschedulable, "Insufficient cpu"),
    (Code::Unschedulable, "Insufficient memory"),
    (Code::Unschedulable, "Insufficient ephemeral-storage"),
    (Code::Unschedulable, "Insufficient example.com/"),
    (Code::UnschedulableAndUnresolvable, "Insufficient "),
];

/// How the plugin enters a registry.
pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(complete_args) };

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Args {
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    ignored_resources: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct ScoringStrategy {
    #[serde(
        rename = "type",
        deserialize_with = "nullable",
        skip_serializing_if = "String::is_empty"
    )]
    kind: String,
    #[serde(deserialize_with = "nullable")]
    resources: Vec<ResourceSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_to_capacity_ratio: Option<RequestedToCapacityRatio>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct RequestedToCapacityRatio {
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    shape: Vec<UtilizationShapePoint>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct UtilizationShapePoint {
    utilization: i32,
    score: i32,
}

const LEAST_ALLOCATED: &str = "LeastAllocated";
const MOST_ALLOCATED: &str = "MostAllocated";
const REQUESTED_TO_CAPACITY_RATIO: &str = "RequestedToCapacityRatio";
const STRATEGIES: [&str; 3] = [LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO];

/// Scores of shape points go up to this (upstream's `MaxCustomPriorityScore`).
const SHAPE_SCORE_MAX: i32 = 10;

fn complete_args(given: &Value, _: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let mut args: Args = args::decode(given).map_err(|error| vec![error])?;
    let default =
        || ScoringStrategy { kind: LEAST_ALLOCATED.to_owned(), ..ScoringStrategy::default() };
    let strategy = args.scoring_strategy.get_or_insert_with(default);
    complete(&mut strategy.resources);
    let mut errors = Vec::new();
    validate_ignored(&args, &mut errors);
    if let Some(strategy) = &args.scoring_strategy {
        let mut found = Vec::new();
        validate_strategy(strategy, &mut found);
        errors.extend(found.into_iter().map(|error| error.under("scoringStrategy")));
    }
    encode(&args, errors)
}

fn validate_ignored(args: &Args, errors: &mut Vec<FieldError>) {
    for (at, name) in args.ignored_resources.iter().enumerate() {
        let invalid =
            |why| FieldError::invalid(format!("ignoredResources[{at}]"), format!("{name:?}"), why);
        errors.extend(label_key_complaints(name).into_iter().map(invalid));
    }
    for (at, name) in args.ignored_resource_groups.iter().enumerate() {
        let invalid = |why| {
            FieldError::invalid(format!("ignoredResourceGroups[{at}]"), format!("{name:?}"), why)
        };
        if name.contains('/') {
            errors.push(invalid("resource group name can't contain '/'".to_owned()));
        }
        errors.extend(label_key_complaints(name).into_iter().map(invalid));
    }
}

fn validate_strategy(strategy: &ScoringStrategy, errors: &mut Vec<FieldError>) {
    if !STRATEGIES.contains(&strategy.kind.as_str()) {
        errors.push(FieldError::unsupported("type", &strategy.kind, &STRATEGIES));
    }
    for (at, ResourceSpec { name, weight }) in strategy.resources.iter().enumerate() {
        if *weight <= 0 || *weight > 100 {
            let why = format!("resource weight of {name} not in valid range (0, 100]");
            errors.push(FieldError::invalid(format!("resources[{at}].weight"), weight, why));
        }
    }
    const RATIO: &str = "requestedToCapacityRatio";
    match (&strategy.requested_to_capacity_ratio, strategy.kind == REQUESTED_TO_CAPACITY_RATIO) {
        (None, true) => {
            errors.push(FieldError::required(
                RATIO,
                "must be specified when type is RequestedToCapacityRatio",
            ));
        }
        (Some(ratio), true) => {
            let found = validate_shape(&ratio.shape).into_iter();
            errors.extend(found.map(|error| error.under("shape").under(RATIO)));
        }
        (Some(_), false) => {
            errors.push(FieldError::forbidden(
                RATIO,
                "must be nil when type is not RequestedToCapacityRatio",
            ));
        }
        (None, false) => {}
    }
}

fn validate_shape(shape: &[UtilizationShapePoint]) -> Vec<FieldError> {
    if shape.is_empty() {
        return vec![FieldError::required("", "at least one point must be specified")];
    }
    let mut errors = Vec::new();
    if let Some(at) =
        (1..shape.len()).find(|at| shape[at - 1].utilization >= shape[*at].utilization)
    {
        let why = "values must be sorted in increasing order";
        errors.push(FieldError::invalid(format!("[{at}].utilization"), shape[at].utilization, why));
    }
    for (at, point) in shape.iter().enumerate() {
        for (field, value, max) in
            [("utilization", point.utilization, 100), ("score", point.score, SHAPE_SCORE_MAX)]
        {
            if !(0..=max).contains(&value) {
                let why = format!("not in valid range [0, {max}]");
                errors.push(FieldError::invalid(format!("[{at}].{field}"), value, why));
            }
        }
    }
    errors
}

struct Fit {
    ignored: Ignored,
    formula: Formula,
    scored: Scored,
    needs: Slot<Needs>,
    demand: Slot<Demand>,
}

/// Extended resources that Filter does not look at.
struct Ignored {
    resources: Vec<String>,
    /// What stands before the slash.
    groups: Vec<String>,
}

/// What Filter asks of a node, in the order of its reasons; only amounts above 0.
#[derive(Clone, Debug)]
struct Needs(SmallVec<[(Resource, i64); 3]>);

fn build(points: &mut Points, args: &Value) -> Result<(), PluginError> {
    let refused = |error| PluginError::Args { plugin: NAME, error };
    let args: Args = args::decode(args).map_err(refused)?;
    let strategy = args.scoring_strategy.unwrap_or_default();
    let plugin = Arc::new(Fit {
        ignored: Ignored {
            resources: args.ignored_resources,
            groups: args.ignored_resource_groups,
        },
        scored: scored(&strategy.resources),
        formula: formula_of(strategy).map_err(refused)?,
        needs: points.slot(),
        demand: points.slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.prepare = Some(plugin.clone());
    points.sign = Some(plugin);
    let scaled_down = Action::DELETE | Action::UPDATE_POD_SCALE_DOWN;
    points.wake_on(
        ClusterEvent::new(EventResource::Pod, scaled_down),
        Some(Arc::new(after_pod_event)),
    );
    let grown = Action::ADD | Action::UPDATE_NODE_ALLOCATABLE;
    points
        .wake_on(ClusterEvent::new(EventResource::Node, grown), Some(Arc::new(after_node_change)));
    // Upstream's hint asks whether the class stands for a resource that the pod wants. Hints are not shown device classes
    // yet, and waking too many pods is the safe side.
    points
        .wake_on(ClusterEvent::new(EventResource::DeviceClass, Action::ADD | Action::UPDATE), None);
    Ok(())
}

fn formula_of(args: ScoringStrategy) -> Result<Formula, FieldError> {
    match args.kind.as_str() {
        LEAST_ALLOCATED => Ok(Formula::Least),
        MOST_ALLOCATED => Ok(Formula::Most),
        REQUESTED_TO_CAPACITY_RATIO => {
            let points = args.requested_to_capacity_ratio.unwrap_or_default().shape.into_iter();
            Ok(Formula::Ratio(Shape(points.map(ShapePoint::from).collect())))
        }
        other => Err(FieldError::unsupported("scoringStrategy.type", other, &STRATEGIES)),
    }
}

impl From<UtilizationShapePoint> for ShapePoint {
    /// Brings the score from `0..=10` to the range of plugin scores.
    fn from(point: UtilizationShapePoint) -> ShapePoint {
        let scale = MAX_NODE_SCORE / i64::from(SHAPE_SCORE_MAX);
        ShapePoint {
            utilization: i64::from(point.utilization),
            score: i64::from(point.score) * scale,
        }
    }
}

impl PreFilter for Fit {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        cx.cycle.set(self.needs, Needs::new(pod, Some(&self.ignored)));
        Ok(PreFiltered::All)
    }
}

impl Filter for Fit {
    fn filter(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let Some(needs) = cx.cycle.get(self.needs) else { return Err(without("PreFilter").into()) };
        needs.check(node.n_pods(), node.allocatable_pods(), |resource| resource.of_node(node))
    }
}

impl PreScore for Fit {
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScored, Failure> {
        cx.cycle.set(self.demand, self.demand(pod));
        Ok(PreScored::Ready)
    }
}

impl Score for Fit {
    fn score(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let demand = cx.cycle.get(self.demand).ok_or_else(|| without("PreScore"))?;
        Ok(self.formula.score(demand.of_node(node)))
    }
}

fn without(point: &str) -> Failure {
    Failure::new(format!("reading \"{point}{NAME}\" from cycleState: not found"))
}

impl Fit {
    fn demand(&self, pod: &PodInfo) -> Demand {
        Demand::new(&self.scored, Basis::Nonzero, &PodRequests::of_containers(&pod.template.spec))
    }
}

impl Ignored {
    fn contains(&self, resource: &str) -> bool {
        let group = resource.split('/').next().unwrap_or_default();
        let listed = |list: &[String], name: &str| list.iter().any(|known| known == name);
        (listed(&self.resources, resource) || listed(&self.groups, group)) && is_extended(resource)
    }
}

impl Needs {
    fn new(pod: &PodInfo, ignored: Option<&Ignored>) -> Needs {
        let wanted = &pod.template.requests.resources;
        let ignores = |resource: &Resource| match (resource, ignored) {
            (Resource::Scalar(name), Some(ignored)) => ignored.contains(name),
            _ => false,
        };
        let all =
            Resource::all_of(wanted).filter(|(resource, amount)| *amount > 0 && !ignores(resource));
        Needs(all.collect())
    }

    /// Turns a node down that has less than this; `amounts` are what it offers of a resource and what its pods ask for.
    fn check(
        &self,
        n_pods: i64,
        n_pods_max: i64,
        amounts: impl Fn(&Resource) -> (i64, i64),
    ) -> Result<(), Rejection> {
        let mut reasons = Reasons::new();
        let mut never = false;
        if kernel::pods_lacking(n_pods_max, n_pods) < 0 {
            reasons.push(Reason::Text(TOO_MANY_PODS));
        }
        for (resource, wanted) in &self.0 {
            let (allocatable, used) = amounts(resource);
            if kernel::lacking(allocatable, used, *wanted) < 0 {
                reasons.push(resource.insufficient());
                never |= *wanted > allocatable;
            }
        }
        match (reasons.is_empty(), never) {
            (true, _) => Ok(()),
            (false, false) => Err(Rejection::Unschedulable(reasons)),
            (false, true) => Err(Rejection::Unresolvable(reasons)),
        }
    }

    /// Whether the pod would fit if it was alone on the node.
    fn fit_empty(&self, offered: &Resources) -> bool {
        self.check(0, offered.pods, |resource| (resource.of(offered), 0)).is_ok()
    }
}

impl Prepare for Fit {
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> Prepared {
        let nodes = world.nodes();
        let needs = Needs::new(pod, Some(&self.ignored)).0.into_iter();
        Prepared::Run(Box::new(FitRun {
            needs: needs.map(|(resource, wanted)| (Place::new(resource, nodes), wanted)).collect(),
            scorer: Scorer::new(self.formula.clone(), self.demand(pod), nodes),
        }))
    }
}

struct FitRun {
    needs: SmallVec<[(Place, i64); 3]>,
    scorer: Scorer,
}

impl Run for FitRun {
    fn reads(&self) -> Reads {
        Reads { filter: Some(RowPart::Pods), score: Some(RowPart::Pods), ..Reads::default() }
    }

    fn filter_row(&self, nodes: &NodeTable, row: Row) -> bool {
        let at = row.index();
        let c = nodes.columns();
        let enough = |(place, wanted): &(Place, i64)| {
            // A resource without a column is offered by no node.
            place.columns(nodes, Basis::Requested).is_some_and(|[allocatable, used]| {
                kernel::lacking(allocatable[at], used[at], *wanted) >= 0
            })
        };
        kernel::pods_lacking(c.allocatable_pods[at], c.pods[at]) >= 0
            && self.needs.iter().all(enough)
    }

    fn filter_all(&self, nodes: &NodeTable, set: &mut RowSet) {
        let mut lanes: SmallVec<[Lane<'_>; 4]> = SmallVec::new();
        for (place, wanted) in &self.needs {
            let Some([allocatable, used]) = place.columns(nodes, Basis::Requested) else {
                return set.fill(0);
            };
            lanes.push(Lane { allocatable, used, wanted: *wanted });
        }
        let c = nodes.columns();
        kernel::retain_fitting(set, [&c.allocatable_pods, &c.pods], &lanes);
    }

    fn score_row(&self, nodes: &NodeTable, row: Row) -> i64 {
        self.scorer.score_row(nodes, row.index())
    }

    fn score_all(
        &self,
        nodes: &NodeTable,
        set: &RowSet,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), OutOfRange> {
        self.scorer.score_all(nodes, set, weight, out)
    }

    fn is_stale(&self, world: &World) -> bool {
        let nodes = world.nodes();
        self.scorer.is_stale(nodes) || self.needs.iter().any(|(place, _)| place.is_stale(nodes))
    }
}

/// A pod that had a node is gone, or one asks for less: the rejected pod itself, or one on a node, of something that the
/// rejected pod wants.
fn after_pod_event(question: &HintQuestion<'_>) -> Result<Hint, Failure> {
    let pods = (question.old.and_then(EventObject::pod), question.new.and_then(EventObject::pod));
    let freed = match pods {
        (Some(old), None) => !old.node_name.is_empty() || !old.nominated_node_name.is_empty(),
        (Some(old), Some(new)) => {
            new.uid == question.pod.uid || frees_wanted(question.pod, old, new)
        }
        (None, _) => return Err(Failure::new("expected a pod")),
    };
    Ok(if freed { Hint::Queue } else { Hint::Skip })
}

fn frees_wanted(pod: &PodInfo, old: &PodInfo, new: &PodInfo) -> bool {
    let wanted = &pod.requests().resources;
    let [before, after] = [old, new].map(|pod| &pod.requests().resources);
    let less = |(resource, wanted): (Resource, i64)| {
        wanted != 0 && resource.of(before).max(0) > resource.of(after).max(0)
    };
    !new.node_name.is_empty() && Resource::all_of(wanted).any(less)
}

/// A node appeared on which the pod would fit if it was alone, or one now has more of something that the pod wants.
fn after_node_change(question: &HintQuestion<'_>) -> Result<Hint, Failure> {
    let offers = |node: &Node| Resources::from_list(&node.status.allocatable);
    let Some(new) = question.new.and_then(EventObject::node).map(offers) else {
        return Ok(Hint::Skip);
    };
    let old = question.old.and_then(EventObject::node).map(offers);
    // Upstream does not leave out ignored resources here.
    let needs = Needs::new(question.pod, None);
    let more = |old: &Resources| {
        let grew = |(resource, _): &(Resource, i64)| resource.of(&new) > resource.of(old);
        new.pods > old.pods || needs.0.iter().any(grew)
    };
    let helps = needs.fit_empty(&new) && old.as_ref().is_none_or(more);
    Ok(if helps { Hint::Queue } else { Hint::Skip })
}

impl Sign for Fit {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        Ok(vec![super::requests_fragment(pod)])
    }
}

#[cfg(test)]
mod hint_tests;
#[cfg(test)]
mod tests;
