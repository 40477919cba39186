//! NodeResourcesFit: a pod fits on nodes with enough unrequested resources; scores nodes by utilization.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, PreScore, Score |
//! | woken by | assigned pod deleted or scaled down, node added or its allocatable changed, device class added or updated |
//! | upstream | `plugins/noderesources/fit.go`, 1.36 |
//! | deviations | insufficient scalar resources are listed by name, not in random order; no resource is provided by dynamic resource allocation yet, and every device class event wakes pods |
//! | cost | O(resources of the pod) per node, no allocation unless it is rejected; over columns 1 ns per row to filter, 2 ns to score (AVX-512) |

use std::sync::Arc;

use loadmaster_api::meta::nullable;
use loadmaster_api::resource_names::is_extended_resource_name;
use loadmaster_api::selector::label_key_errors;
use loadmaster_api::{Node, SharedPodSpec};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{
    FilterScope, ResultDependencies, RowDependency, RowMask, ScoreOutOfRange,
};
use loadmaster_framework::node_amounts::{NodeAmount, NodeAmounts};
use loadmaster_framework::plugin_args::{self, FieldError};
use loadmaster_framework::pod_requests::PodRequests;
use loadmaster_framework::result::Reasons;
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, CycleStateSlot, EvaluatorCx, EventObject, EventResource,
    ExtensionPoints, Failure, FeatureGates, Filter, Incremental, NodeInfo, NodeRow, PluginDef,
    PluginError, PluginEvaluator, PodInfo, PreFilter, PreFilterResult, PreScore, PreScoreResult,
    PrepareCx, PrepareResult, QueueingHint, Reason, Rejection, Resources, Score, SerialCx, Sign,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smallvec::SmallVec;

use super::args::{ResourceSpec, complete, encode};
use super::column_scorer::ColumnScorer;
use super::resource_amounts::{
    ColumnRequest, RequestBasis, Resource, ResourceColumn, ScoredRequests, WantedResource,
    WeightedResources, of_node, weighted_resources,
};
use super::score_formula::ScoreFormula;
use super::simd;
use crate::DeclaredReasons;
use crate::utilization_shape::{Shape, UtilizationShapePoint, validate_shape};

/// The plugin's name in configurations.
pub const NAME: &str = "NodeResourcesFit";

const TOO_MANY_PODS: &str = "Too many pods";

/// The allocatable and the current number of pods.
const PODS: [NodeAmount; 2] = [NodeAmount::AllocatablePods, NodeAmount::Pods];

/// The reasons with which this plugin rejects nodes: every resource by its name, extended ones of any domain, and requests
/// above what the node has in total.
pub(crate) const REASONS: DeclaredReasons = &[
    (Code::Unschedulable, TOO_MANY_PODS),
    (Code::Unschedulable, "Insufficient cpu"),
    (Code::Unschedulable, "Insufficient memory"),
    (Code::Unschedulable, "Insufficient ephemeral-storage"),
    (Code::Unschedulable, "Insufficient example.com/"),
    (Code::UnschedulableAndUnresolvable, "Insufficient "),
];

/// The plugin's entry in the registry.
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

const LEAST_ALLOCATED: &str = "LeastAllocated";
const MOST_ALLOCATED: &str = "MostAllocated";
const REQUESTED_TO_CAPACITY_RATIO: &str = "RequestedToCapacityRatio";
const STRATEGIES: [&str; 3] = [LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO];

fn complete_args(given: &Value, _: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let mut args: Args = plugin_args::decode_given_args(given)?;
    let default =
        || ScoringStrategy { kind: LEAST_ALLOCATED.to_owned(), ..ScoringStrategy::default() };
    let strategy = args.scoring_strategy.get_or_insert_with(default);
    complete(&mut strategy.resources);
    let mut errors = Vec::new();
    validate_ignored(&args, &mut errors);
    if let Some(strategy) = &args.scoring_strategy {
        let mut found = Vec::new();
        validate_strategy(strategy, &mut found);
        errors.extend(found.into_iter().map(|error| error.with_path_prefix("scoringStrategy")));
    }
    encode(&args, errors)
}

fn validate_ignored(args: &Args, errors: &mut Vec<FieldError>) {
    for (at, name) in args.ignored_resources.iter().enumerate() {
        let invalid =
            |why| FieldError::invalid(format!("ignoredResources[{at}]"), format!("{name:?}"), why);
        errors.extend(label_key_errors(name).into_iter().map(invalid));
    }
    for (at, name) in args.ignored_resource_groups.iter().enumerate() {
        let invalid = |why| {
            FieldError::invalid(format!("ignoredResourceGroups[{at}]"), format!("{name:?}"), why)
        };
        if name.contains('/') {
            errors.push(invalid("resource group name can't contain '/'".to_owned()));
        }
        errors.extend(label_key_errors(name).into_iter().map(invalid));
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
            errors
                .extend(found.map(|error| error.with_path_prefix("shape").with_path_prefix(RATIO)));
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

struct Fit {
    ignored: IgnoredResources,
    formula: ScoreFormula,
    weighted_resources: WeightedResources,
    filter_requests: CycleStateSlot<FilterRequests>,
    scored_requests: CycleStateSlot<ScoredRequests>,
}

/// Extended resources that Filter ignores.
struct IgnoredResources {
    resources: Vec<String>,
    /// Domain prefixes: the part of the name before the slash.
    groups: Vec<String>,
}

/// The requests that Filter checks, in the order of its reasons; only amounts above 0 (upstream's `preFilterState`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FilterRequests(SmallVec<[(Resource, i64); 3]>);

/// A resource of which a node has too little.
struct Shortage<'a> {
    resource: &'a Resource,
    wanted: i64,
    allocatable: i64,
    /// Requested by the pods on the node.
    used: i64,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let invalid = |error| PluginError::Args { plugin: NAME, error };
    let args: Args = plugin_args::decode_json_value(args).map_err(invalid)?;
    let strategy = args.scoring_strategy.unwrap_or_default();
    let plugin = Arc::new(Fit {
        ignored: IgnoredResources {
            resources: args.ignored_resources,
            groups: args.ignored_resource_groups,
        },
        weighted_resources: weighted_resources(&strategy.resources),
        formula: formula_of(strategy).map_err(invalid)?,
        filter_requests: points.cycle_state_slot(),
        scored_requests: points.cycle_state_slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.sign = Some(plugin);
    let scaled_down = ActionType::DELETE | ActionType::UPDATE_POD_SCALE_DOWN;
    points.register_event(
        ClusterEvent::new(EventResource::Pod, scaled_down),
        Some(Arc::new(after_pod_event)),
    );
    let grown = ActionType::ADD | ActionType::UPDATE_NODE_ALLOCATABLE;
    points.register_event(
        ClusterEvent::new(EventResource::Node, grown),
        Some(Arc::new(after_node_change)),
    );
    // Upstream's hint checks whether the device class provides a resource that the pod requests. Hints do not receive device
    // classes yet, so every pod is woken.
    points.register_event(
        ClusterEvent::new(EventResource::DeviceClass, ActionType::ADD | ActionType::UPDATE),
        None,
    );
    Ok(())
}

fn formula_of(args: ScoringStrategy) -> Result<ScoreFormula, FieldError> {
    match args.kind.as_str() {
        LEAST_ALLOCATED => Ok(ScoreFormula::LeastAllocated),
        MOST_ALLOCATED => Ok(ScoreFormula::MostAllocated),
        REQUESTED_TO_CAPACITY_RATIO => {
            let points = args.requested_to_capacity_ratio.unwrap_or_default().shape.into_iter();
            Ok(ScoreFormula::RequestedToCapacityRatio(Shape::new(points)))
        }
        other => Err(FieldError::unsupported("scoringStrategy.type", other, &STRATEGIES)),
    }
}

impl PreFilter for Fit {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        cx.cycle.set(self.filter_requests, FilterRequests::new(pod, Some(&self.ignored)));
        Ok(PreFilterResult::All)
    }
}

impl Filter for Fit {
    fn filter(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let Some(filter_requests) = cx.cycle.get(self.filter_requests) else {
            return Err(missing_state().into());
        };
        filter_requests.check_node(node)
    }
}

impl PreScore for Fit {
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        cx.cycle.set(self.scored_requests, self.scored_requests(pod));
        Ok(PreScoreResult::Ready)
    }
}

impl Score for Fit {
    fn score(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(match cx.cycle.get(self.scored_requests) {
            Some(scored_requests) => self.formula.score(scored_requests.node_amounts(node)),
            // The profile disables PreScore.
            None => self.formula.score(self.scored_requests(pod).node_amounts(node)),
        })
    }
}

fn missing_state() -> Failure {
    Failure::new(format!("reading \"PreFilter{NAME}\" from cycleState: not found"))
}

impl Fit {
    fn scored_requests(&self, pod: &PodInfo) -> ScoredRequests {
        ScoredRequests::new(
            &self.weighted_resources,
            RequestBasis::NonZeroRequested,
            &PodRequests::container_requests(&pod.template.spec),
        )
    }
}

impl IgnoredResources {
    fn contains(&self, resource: &str) -> bool {
        let group = resource.split('/').next().unwrap_or_default();
        let listed = |list: &[String], name: &str| list.iter().any(|known| known == name);
        (listed(&self.resources, resource) || listed(&self.groups, group))
            && is_extended_resource_name(resource)
    }
}

impl FilterRequests {
    fn new(pod: &PodInfo, ignored: Option<&IgnoredResources>) -> FilterRequests {
        let wanted = &pod.template.requests.resources;
        let ignores = |resource: &Resource| match (resource, ignored) {
            (Resource::Scalar(name), Some(ignored)) => ignored.contains(name),
            _ => false,
        };
        let all = Resource::amounts_in(wanted)
            .filter(|(resource, amount)| *amount > 0 && !ignores(resource));
        FilterRequests(all.collect())
    }

    fn check_node(&self, node: NodeInfo<'_>) -> Result<(), Rejection> {
        self.check(node.n_pods(), node.allocatable_pods(), |_, resource| {
            resource.node_amounts(node)
        })
    }

    /// Rejects a node that has less than this; `amounts` returns the allocatable and the requested amount of the nth resource.
    fn check(
        &self,
        n_pods: i64,
        n_pods_max: i64,
        amounts: impl Fn(usize, &Resource) -> (i64, i64),
    ) -> Result<(), Rejection> {
        let mut reasons = Reasons::new();
        let mut unresolvable = false;
        if simd::pods_headroom(n_pods_max, n_pods) < 0 {
            reasons.push(Reason::Text(TOO_MANY_PODS));
        }
        for shortage in self.shortages(amounts) {
            reasons.push(shortage.resource.insufficient_reason());
            unresolvable |= shortage.wanted > shortage.allocatable;
        }
        match (reasons.is_empty(), unresolvable) {
            (true, _) => Ok(()),
            (false, false) => Err(Rejection::Unschedulable(reasons)),
            (false, true) => Err(Rejection::Unresolvable(reasons)),
        }
    }

    /// The resources of which a node has too little.
    fn shortages<'a>(
        &'a self,
        amounts: impl Fn(usize, &Resource) -> (i64, i64) + 'a,
    ) -> impl Iterator<Item = Shortage<'a>> {
        self.0.iter().enumerate().filter_map(move |(nth, (resource, wanted))| {
            let (allocatable, used) = amounts(nth, resource);
            let is_short = simd::headroom(allocatable, used, *wanted) < 0;
            is_short.then_some(Shortage { resource, wanted: *wanted, allocatable, used })
        })
    }

    /// Whether the pod would fit on the node if the node were empty.
    fn fits_empty_node(&self, offered: &Resources) -> bool {
        self.check(0, offered.pods, |_, resource| (resource.amount_in(offered), 0)).is_ok()
    }
}

impl Incremental for Fit {
    /// The requests that are filtered and those that are scored.
    type Key = (FilterRequests, ScoredRequests);

    fn key(&self, _cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Self::Key> {
        Some((FilterRequests::new(pod, Some(&self.ignored)), self.scored_requests(pod)))
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, (filtered, scored): &Self::Key) -> PrepareResult {
        let nodes = cx.world().nodes();
        let column = |(resource, wanted): &(Resource, i64)| {
            (ResourceColumn::new(resource.clone(), nodes), *wanted)
        };
        let filter_requests: SmallVec<[_; 3]> = filtered.0.iter().map(column).collect();
        let mut of_nodes = SmallVec::new();
        let mut others = SmallVec::new();
        for (column, wanted) in &filter_requests {
            match column.node_amounts(RequestBasis::Requested) {
                Some(amounts) => of_nodes.push(WantedResource { amounts, wanted: *wanted }),
                None => others.push((column.clone(), *wanted)),
            }
        }
        PrepareResult::Evaluator(Box::new(FitEvaluator {
            filter_requests,
            of_nodes,
            others,
            requests: filtered.clone(),
            scorer: ColumnScorer::new(self.formula.clone(), scored.clone(), nodes),
        }))
    }
}

struct FitEvaluator {
    filter_requests: SmallVec<[(ResourceColumn, i64); 3]>,
    /// Those for CPU and memory: what is read of each row, because finding that out takes as long as the comparison.
    of_nodes: SmallVec<[WantedResource<[NodeAmount; 2]>; 2]>,
    /// Those for other resources.
    others: SmallVec<[(ResourceColumn, i64); 1]>,
    /// All in the same order as in `filter_requests`, as Filter has them.
    requests: FilterRequests,
    scorer: ColumnScorer,
}

/// Negative when the node cannot take one more pod, or has less of a resource than the pod requests.
#[inline]
fn headroom_of_node(node: &NodeAmounts, resources: &[WantedResource<[NodeAmount; 2]>]) -> i64 {
    let (allowed, there) = of_node(node, PODS);
    resources.iter().fold(simd::pods_headroom(allowed, there), |least, resource| {
        let (allocatable, used) = of_node(node, resource.amounts);
        least | simd::headroom(allocatable, used, resource.wanted)
    })
}

impl PluginEvaluator for FitEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies {
            filter: Some(RowDependency::Pods),
            score: Some(RowDependency::Pods),
            ..ResultDependencies::default()
        }
    }

    fn filter_scope(&self) -> FilterScope {
        FilterScope::Node
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let (nodes, at) = (cx.nodes(), row.index());
        // Without a column, no node has the resource.
        let enough = |(column, wanted): &(ResourceColumn, i64)| {
            let amounts = column.of_row(nodes, RequestBasis::Requested, at);
            amounts
                .is_some_and(|(allocatable, used)| simd::headroom(allocatable, used, *wanted) >= 0)
        };
        let node = &nodes.amounts().rows()[at];
        headroom_of_node(node, &self.of_nodes) >= 0 && self.others.iter().all(enough)
    }

    fn filter_result(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> Option<Result<(), Rejection>> {
        let (nodes, at) = (cx.nodes(), row.index());
        let (n_pods_max, n_pods) = of_node(&nodes.amounts().rows()[at], PODS);
        Some(self.requests.check(n_pods, n_pods_max, |nth, _| {
            let column = &self.filter_requests[nth].0;
            column.of_row(nodes, RequestBasis::Requested, at).unwrap_or_default()
        }))
    }

    fn filter_rows(&self, cx: EvaluatorCx<'_>, first: NodeRow, set: &mut RowMask) {
        let nodes = cx.nodes();
        let rows = first.index()..first.index() + set.len();
        let columns = nodes.amounts().columns();
        let of_rows = |amounts: [NodeAmount; 2]| amounts.map(|it| &columns.of(it)[rows.clone()]);
        let resources = self.of_nodes.iter().map(|WantedResource { amounts, wanted }| {
            let wanted = amounts[0].request_in_column(*wanted);
            ColumnRequest { amounts: of_rows(*amounts), wanted }
        });
        let resources: SmallVec<[_; 2]> = resources.collect();
        let nodes_of_rows = &nodes.amounts().rows()[rows.clone()];
        let fits = |at: usize| headroom_of_node(&nodes_of_rows[at], &self.of_nodes) >= 0;
        let exact = &columns.exact()[rows.clone()];
        simd::columns::retain_fitting(set, exact, of_rows(PODS), &resources, &fits);
        for (column, wanted) in &self.others {
            let Some([allocatable, used]) = column.own_columns(nodes) else {
                return set.fill(0);
            };
            let amounts = allocatable[rows.clone()].iter().zip(&used[rows.clone()]);
            for (member, (allocatable, used)) in set.iter_mut().zip(amounts) {
                *member &= u8::from(simd::headroom(*allocatable, *used, *wanted) >= 0);
            }
        }
    }

    fn filter_listed_rows(&self, cx: EvaluatorCx<'_>, rows: &mut Vec<NodeRow>) {
        let nodes = cx.nodes();
        let amounts = nodes.amounts().rows();
        match *self.of_nodes {
            // Most pods request both: no loop over resources for each row.
            [one, other] => {
                simd::retain_listed(rows, |at| headroom_of_node(&amounts[at], &[one, other]));
            }
            _ => simd::retain_listed(rows, |at| headroom_of_node(&amounts[at], &self.of_nodes)),
        }
        for (column, wanted) in &self.others {
            match column.own_columns(nodes) {
                Some([allocatable, used]) => simd::retain_listed(rows, |at| {
                    simd::headroom(allocatable[at], used[at], *wanted)
                }),
                None => rows.clear(),
            }
        }
    }

    fn score_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
        self.scorer.score_row(cx.nodes(), row.index())
    }

    fn score_rows(
        &self,
        cx: EvaluatorCx<'_>,
        first: NodeRow,
        set: &RowMask,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        self.scorer.score_rows(cx.nodes(), first, set, weight, out)
    }

    fn score_listed_rows(
        &self,
        cx: EvaluatorCx<'_>,
        rows: &[NodeRow],
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        self.scorer.score_listed(cx.nodes(), rows, weight, out)
    }

    fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        let nodes = cx.nodes();
        self.scorer.is_stale(nodes)
            || self.filter_requests.iter().any(|(column, _)| column.is_stale(nodes))
    }
}

/// Wakes the pod when an assigned or nominated pod is deleted, or when a pod is scaled down: the rejected pod itself, or an
/// assigned pod, in a resource that the rejected pod requests.
fn after_pod_event(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let pods = (hint_args.old.and_then(EventObject::pod), hint_args.new.and_then(EventObject::pod));
    let freed = match pods {
        (Some(old), None) => !old.node_name.is_empty() || !old.nominated_node_name.is_empty(),
        (Some(old), Some(new)) => {
            new.uid == hint_args.pod.uid || frees_wanted(hint_args.pod, old, new)
        }
        (None, _) => return Err(Failure::new("expected a pod")),
    };
    Ok(QueueingHint::queue_if(freed))
}

fn frees_wanted(pod: &PodInfo, old: &PodInfo, new: &PodInfo) -> bool {
    let wanted = &pod.requests().resources;
    let [before, after] = [old, new].map(|pod| &pod.requests().resources);
    let less = |(resource, wanted): (Resource, i64)| {
        wanted != 0 && resource.amount_in(before).max(0) > resource.amount_in(after).max(0)
    };
    !new.node_name.is_empty() && Resource::amounts_in(wanted).any(less)
}

/// Wakes the pod when a node is added on which it would fit if the node were empty, or when the allocatable amount of a
/// resource that it requests grows on such a node.
fn after_node_change(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let offers = |node: &Node| Resources::from_resource_list(&node.status.allocatable);
    let Some(new) = hint_args.new.and_then(EventObject::node).map(offers) else {
        return Ok(QueueingHint::Skip);
    };
    let old = hint_args.old.and_then(EventObject::node).map(offers);
    // As upstream, ignored resources count here.
    let filter_requests = FilterRequests::new(hint_args.pod, None);
    let more = |old: &Resources| {
        let grew =
            |(resource, _): &(Resource, i64)| resource.amount_in(&new) > resource.amount_in(old);
        new.pods > old.pods || filter_requests.0.iter().any(grew)
    };
    let helps = filter_requests.fits_empty_node(&new) && old.as_ref().is_none_or(more);
    Ok(QueueingHint::queue_if(helps))
}

impl Sign for Fit {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        Ok(vec![super::requests_fragment(pod)])
    }
}

mod explain;
#[cfg(test)]
mod hint_tests;
#[cfg(test)]
mod tests;
