//! Loadmaster's answers in the format of `conformance/README.md`, so that they can be compared with kube-scheduler's.

mod gangs;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::document::Document;
use loadmaster_api::snapshot::{Snapshot, SnapshotError};
use loadmaster_api::{ExtraFields, ExtraFieldsByKind, Namespace, Node, Pod, Str, Timestamp};
use loadmaster_config::{
    AllFeatureGates, CheckedConfiguration, ExtensionPoint, FeatureGateError,
    check_configuration_value, default_configuration,
};
use loadmaster_engine::evaluate::filter_runner::ProfileFilters;
use loadmaster_engine::evaluate::per_node;
use loadmaster_engine::explain::{self, Explanation, Status};
use loadmaster_engine::{FilterResult, NodeEvaluation, Profile, diagnosis};
use loadmaster_framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::plugin_args::decode_json_value;
use loadmaster_framework::preemption::nodes_where_preemption_might_help;
use loadmaster_framework::watched_objects::ObjectInfo;
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, CycleState, EventObject, EventResource, FieldError,
    FitError, Now, PluginStates, PodInfo, PostFilterCx, QueuedPodInfo, QueueingHint, Registry,
    TemplateError,
};
use loadmaster_stdx::{ErrorChain, Rng};
use serde_json::{Map, Value, json};

use super::{
    CaseEvent, CaseQueuedPod, GangCase, GangStep, OracleCase, OracleCaseKind, watched_objects,
};
use loadmaster_engine::world_loader::{self, SchedulingInput, SchedulingInputError};

/// The time of every case, 2026-01-31: the oracle's is that of the run. What times decide must be the same at both.
const CASE_TIME: Timestamp = Timestamp(1_769_860_800_000_000_000);

/// Answers questions with Loadmaster's code, as the oracle does with kube-scheduler's.
pub struct LocalOracle {
    registry: Registry,
    /// Most cases have the default configuration and gates.
    default: BuiltConfiguration,
}

/// A configuration and what was built from it.
struct BuiltConfiguration {
    gates: AllFeatureGates,
    checked: CheckedConfiguration,
    profiles: Vec<Profile>,
}

/// Why a question cannot be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalOracleError {
    #[error("configuration: {}", .0.iter().map(FieldError::to_string).collect::<Vec<_>>().join("; "))]
    Config(Vec<FieldError>),
    #[error("feature gates: {}", .0.iter().map(FeatureGateError::to_string).collect::<Vec<_>>().join("; "))]
    FeatureGates(Vec<FeatureGateError>),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Load(#[from] SchedulingInputError),
    #[error("expected one pod {0:?} among the objects")]
    PodNotFound(String),
    #[error("{side} object")]
    Object {
        side: &'static str,
        #[source]
        source: EventObjectError,
    },
    #[error("{0}")]
    WatchedObject(String),
    #[error("profile {profile:?} has no plugin {plugin:?}")]
    PluginNotFound { profile: String, plugin: String },
    #[error("unknown event {0:?}")]
    Event(String),
}

/// An object of an event cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventObjectError {
    #[error("{0}")]
    Field(FieldError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("{0}")]
    Watched(String),
}

impl LocalOracle {
    /// Uses the plugins of the registry and the default feature gates.
    pub fn new(registry: Registry) -> Result<LocalOracle, LocalOracleError> {
        let default = build_configuration(None, &registry, AllFeatureGates::default())?;
        Ok(LocalOracle { registry, default })
    }

    /// The plugin registry.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The profiles of the default configuration.
    pub fn default_profiles(&self) -> &[Profile] {
        &self.default.profiles
    }

    /// The answer, or `{"error": ...}`.
    pub fn answer_case(&self, case: &OracleCase) -> Value {
        self.try_answer(case)
            .unwrap_or_else(|error| json!({"error": ErrorChain(&error).to_string()}))
    }

    fn try_answer(&self, case: &OracleCase) -> Result<Value, LocalOracleError> {
        if case.kind == OracleCaseKind::Config {
            let own = self.own_configuration(case)?;
            let checked = &own.as_ref().unwrap_or(&self.default).checked;
            return Ok(json!({"plugins": plugins(checked)}));
        }
        self.with_scheduling_input(case, |input| match &case.kind {
            OracleCaseKind::Hint(event) => hint(input, event),
            OracleCaseKind::Sign => {
                Ok(json!({"signature": pod_signature(input.profile, &input.pod)}))
            }
            OracleCaseKind::Preemption => Ok(preemption(input, case.id)),
            OracleCaseKind::Order(queued) => {
                let states = input.plugin_states();
                order(input, &states, &case.objects, queued)
            }
            OracleCaseKind::Gangs(gangs) => gangs::gangs(input, &case.objects, gangs),
            OracleCaseKind::Explain | OracleCaseKind::Config => Ok(explanation(input)),
        })?
    }

    /// Builds the world of a case and calls `act` with it and the pod to schedule.
    ///
    /// # Errors
    ///
    /// If no world can be built from the case.
    pub fn with_scheduling_input<R>(
        &self,
        case: &OracleCase,
        act: impl FnOnce(&mut SchedulingInput<'_>) -> R,
    ) -> Result<R, LocalOracleError> {
        let own = self.own_configuration(case)?;
        let BuiltConfiguration { gates, profiles, .. } = own.as_ref().unwrap_or(&self.default);
        // The pod to schedule is separate: it may have a node that does not exist, which a cluster file must not.
        let (target, others): (Vec<&Value>, Vec<&Value>) =
            case.objects.iter().partition(|object| is_pod(object, &case.pod));
        let [target] = target[..] else {
            return Err(LocalOracleError::PodNotFound(case.pod.clone()));
        };
        let mut snapshot = snapshot(&others)?;
        add_extra_fields(&mut snapshot, profiles, &others);
        let target =
            pod(target).map_err(|source| LocalOracleError::Object { side: "target", source })?;
        let mut input = world_loader::load_scheduling_input_for_pod(
            &snapshot,
            profiles,
            &gates.framework_gates(),
            &target,
        )?;
        watched_objects::add_to_world(&mut input, &case.objects)
            .map_err(LocalOracleError::WatchedObject)?;
        input.world.set_now(Now { wall: CASE_TIME, ..Now::default() });
        Ok(act(&mut input))
    }

    /// The configuration of a case that has not the default one.
    fn own_configuration(
        &self,
        case: &OracleCase,
    ) -> Result<Option<BuiltConfiguration>, LocalOracleError> {
        if case.config.is_none() && case.feature_gates.is_empty() {
            return Ok(None);
        }
        let flags: Vec<String> =
            case.feature_gates.iter().map(|(gate, on)| format!("{gate}={on}")).collect();
        let gates = AllFeatureGates::parse(flags.iter().map(String::as_str))
            .map_err(LocalOracleError::FeatureGates)?;
        build_configuration(case.config.as_ref(), &self.registry, gates).map(Some)
    }
}

fn build_configuration(
    config: Option<&Value>,
    registry: &Registry,
    gates: AllFeatureGates,
) -> Result<BuiltConfiguration, LocalOracleError> {
    let checked = match config {
        Some(config) => check_configuration_value(config.clone(), registry, &gates),
        None => default_configuration(registry, &gates),
    };
    let checked = checked.map_err(LocalOracleError::Config)?;
    let profiles = world_loader::build_profiles(&checked, &gates.framework_gates());
    Ok(BuiltConfiguration { gates, checked, profiles })
}

/// The objects as a cluster file. As in the oracle, a pod without a uid gets one from its name.
fn snapshot(objects: &[&Value]) -> Result<Snapshot, SnapshotError> {
    let objects = objects.iter().map(|object| {
        let mut object = (*object).clone();
        if object["kind"] == "Pod" && object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(super::full_name(&object));
        }
        object
    });
    let objects: Vec<Value> = objects.collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    Snapshot::read(&[Document::new("case.json", list.to_string())])
}

/// Adds the fields of nodes that plugins need beyond those that the scheduler reads, such as annotations.
fn add_extra_fields(snapshot: &mut Snapshot, profiles: &[Profile], objects: &[&Value]) {
    let needs = profiles.iter().fold(ExtraFieldsByKind::default(), |all, it| all.union(it.needs));
    for node in &mut snapshot.nodes {
        let is_this = |object: &&&Value| {
            object["kind"] == "Node" && object["metadata"]["name"] == *node.object.metadata.name
        };
        let found = objects.iter().find(is_this);
        node.object.extra = found.and_then(|object| ExtraFields::from_value(object, needs.nodes));
    }
}

fn is_pod(object: &Value, full_name: &str) -> bool {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    object["kind"] == "Pod" && full_name.split_once('/') == Some((namespace, name))
}

fn pod(value: &Value) -> Result<Pod, EventObjectError> {
    let mut pod: Pod = decode_json_value(value).map_err(EventObjectError::Field)?;
    if pod.metadata.namespace.is_empty() {
        pod.metadata.namespace = Str::new("default");
    }
    if pod.metadata.uid.is_empty() {
        pod.metadata.uid = pod.full_name().into();
    }
    Ok(pod)
}

fn explanation(input: &mut SchedulingInput<'_>) -> Value {
    let states = input.plugin_states();
    let Explanation { pod, profile, pre_filter, nodes, best, message, .. } =
        explain::explain_pod(input.profile, &mut input.world, &states, &input.pod);
    let nodes: Vec<Value> = nodes
        .into_iter()
        .map(|node| {
            let mut shown = json!({"name": node.name, "filter": status(&node.filter)});
            if !node.scores.is_empty() {
                shown["scores"] = node
                    .scores
                    .iter()
                    .map(|(name, score)| (name.to_string(), json!(score)))
                    .collect();
            }
            if let Some(total) = node.total {
                shown["total"] = json!(total);
            }
            shown
        })
        .collect();
    let mut answer =
        json!({"pod": pod, "profile": profile, "nodes": nodes, "best": best, "message": message});
    if let Some(rejected) = pre_filter.filter(|_| !input.world.nodes().is_empty()) {
        answer["preFilter"] = status(&rejected);
    }
    if let Some(rejection) = pre_enqueue_rejection(input) {
        answer["preEnqueue"] = rejection;
    }
    answer
}

/// Which of the pods comes before which, by the queue sort plugin of the first pod's profile.
fn order(
    input: &mut SchedulingInput<'_>,
    states: &PluginStates,
    objects: &[Value],
    queued: &[CaseQueuedPod],
) -> Result<Value, LocalOracleError> {
    let mut all = Vec::new();
    for CaseQueuedPod { pod: name, timestamp, initial_attempt } in queued {
        let object = objects.iter().find(|object| is_pod(object, name));
        let object = object.ok_or_else(|| LocalOracleError::PodNotFound(name.clone()))?;
        let error = |source| LocalOracleError::Object { side: "queued", source };
        let time = |text: &str| -> Result<Timestamp, LocalOracleError> {
            decode_json_value(&text.into()).map_err(EventObjectError::Field).map_err(error)
        };
        let pod = pod(object).map_err(error)?;
        let pod = input.world.parse_pod(&pod).map_err(|source| error(source.into()))?;
        let initial_attempt = initial_attempt.as_deref().map(time).transpose()?;
        all.push(QueuedPodInfo {
            pod: Arc::new(pod),
            queued: time(timestamp)?,
            initial_attempt: initial_attempt.map(|wall| Now { wall, ..Now::default() }),
            attempts: 0,
        });
    }
    let cycle = CycleState::default();
    let cx = Cx { world: &input.world, cycle: &cycle, states };
    let Some(sort) = input.profile.queue_sort.first() else { return Ok(json!({"less": []})) };
    let row = |a: &QueuedPodInfo| -> Value {
        all.iter().map(|b| json!(sort.point.compare(cx, a, b) == Ordering::Less)).collect()
    };
    Ok(json!({"less": all.iter().map(row).collect::<Value>()}))
}

/// The preview of the plugin that preempts, and the result of its PostFilter.
fn preemption(input: &mut SchedulingInput<'_>, seed: u64) -> Value {
    let first_states = input.plugin_states();
    let mut states = first_states.clone();
    let SchedulingInput { world, profile, pod, .. } = input;
    let attempted = per_node::evaluate_attempt(profile, world, &mut states, pod);
    let evaluation = &attempted.evaluation;
    let mut answer = json!({"pod": pod.full_name(), "fits": false, "candidates": {}, "best": []});
    // The pod's nominated node is selected without scoring, so that a failure of a Score plugin does not matter.
    let nominated_row = world.nodes().row(&pod.nominated_node_name);
    let is_taken = |node: &NodeEvaluation| {
        node.filter_result == FilterResult::Feasible
            && (evaluation.failure.is_none() || nominated_row == Some(node.row))
    };
    if evaluation.nodes.iter().any(is_taken) {
        answer["fits"] = json!(true);
        return answer;
    }
    if evaluation.failure.is_some() || world.nodes().is_empty() {
        answer["cycleError"] = json!(diagnosis::fit_error_message(evaluation, world.nodes().len()));
        return answer;
    }
    if let Some(shown) = explain::explain_pod(profile, world, &first_states, pod).preemption {
        let candidates = shown.candidates.into_iter().map(|candidate| {
            let victims =
                json!({"victims": candidate.victims, "pdbViolations": candidate.n_pdb_violations});
            (candidate.node, victims)
        });
        answer["candidates"] = Value::Object(candidates.collect());
        answer["best"] = json!(shown.best);
    }
    let filters = ProfileFilters { profile, skipped: &attempted.skipped, victims: None };
    let verdicts = evaluation.node_codes(world, pod);
    let fit_error = FitError {
        node_codes: &verdicts,
        rows_where_preemption_might_help: &nodes_where_preemption_might_help(&verdicts),
        filter_runner: &filters,
        has_preempting_extenders: false,
    };
    let mut reasons: Vec<String> = Vec::new();
    for member in profile.post_filter.iter().filter(|member| member.point.counts_as_preemption()) {
        let mut cycle = attempted.cycle.clone();
        let cx = PostFilterCx::new(world, &mut cycle, &mut states);
        let rng = &mut Rng::new(seed);
        let step = member.point.post_filter(cx, pod, fit_error, rng, PluginStepInput::Start);
        let PluginStep::Done(done) = step else { return answer };
        if let Some(node) = done.nominated_node {
            answer["nominated"] = json!(node);
        }
        let Some(rejection) = done.rejection else {
            answer["status"] = json!({"code": "Success"});
            break;
        };
        reasons.extend(rejection.reasons());
        answer["status"] = json!({"code": rejection.code().name(), "reasons": reasons});
        if rejection.code() != Code::Unschedulable {
            break;
        }
    }
    answer
}

fn status(status: &Status) -> Value {
    let mut shown = json!({"code": status.code});
    if let Some(plugin) = &status.plugin {
        shown["plugin"] = json!(plugin);
    }
    if !status.reasons.is_empty() {
        shown["reasons"] = json!(status.reasons);
    }
    shown
}

/// The rejection of the first PreEnqueue plugin that keeps the pod out of activeQ.
fn pre_enqueue_rejection(input: &SchedulingInput<'_>) -> Option<Value> {
    let cycle = CycleState::default();
    let cx = Cx { world: &input.world, cycle: &cycle, states: &input.profile.states };
    input.profile.pre_enqueue.iter().find_map(|member| {
        let rejection = member.point.pre_enqueue(cx, &input.pod).err()?;
        let (code, reasons) = (rejection.code().name(), rejection.reasons());
        Some(json!({"code": code, "plugin": member.name, "reasons": reasons}))
    })
}

/// The signature fragments of all plugins by key; null if a plugin returns an error.
pub fn pod_signature(profile: &Profile, pod: &PodInfo) -> Value {
    let mut fragments = Map::new();
    // The framework's own fragment.
    fragments.insert("v1.Pod.Spec.SchedulerName".to_owned(), json!(pod.template.scheduler_name()));
    for (at, plugin) in profile.plugins.iter().enumerate() {
        if !is_sign_required(profile, at) {
            continue;
        }
        match profile.sign.iter().find(|member| member.plugin == at) {
            Some(signer) => match signer.point.sign(pod) {
                Ok(signed) => fragments
                    .extend(signed.into_iter().map(|part| (part.key.to_owned(), part.value))),
                Err(_) => return Value::Null,
            },
            // If a plugin that filters or scores does not implement Sign, no pod has a signature.
            None => return json!({"notSignedBy": plugin.name}),
        }
    }
    Value::Object(fragments)
}

/// Whether a plugin is enabled at some extension point.
fn is_enabled(profile: &Profile, plugin: usize) -> bool {
    is_sign_required(profile, plugin)
        || profile.pre_enqueue.iter().any(|member| member.plugin == plugin)
        || profile.queue_sort.iter().any(|member| member.plugin == plugin)
}

fn is_sign_required(profile: &Profile, plugin: usize) -> bool {
    profile.pre_filter.iter().any(|member| member.plugin == plugin)
        || profile.filter.iter().any(|member| member.plugin == plugin)
        || profile.pre_score.iter().any(|member| member.plugin == plugin)
        || profile.score.iter().any(|member| member.plugin == plugin)
}

fn hint(input: &mut SchedulingInput<'_>, event: &CaseEvent) -> Result<Value, LocalOracleError> {
    let plugins = input.profile.plugins.iter().enumerate();
    let mut running =
        plugins.filter(|(at, _)| is_enabled(input.profile, *at)).map(|(_, plugin)| plugin);
    let plugin = running.find(|plugin| plugin.name == event.plugin);
    let plugin = plugin.ok_or_else(|| LocalOracleError::PluginNotFound {
        profile: input.profile.scheduler_name.clone(),
        plugin: event.plugin.clone(),
    })?;
    let cluster_event = parse_cluster_event(event)?;
    let mut parse = |side, value: &Value| {
        object(input, &cluster_event.resource, value)
            .map_err(|source| LocalOracleError::Object { side, source })
    };
    let (old, new) = (parse("old", &event.old)?, parse("new", &event.new)?);
    let states = input.plugin_states();
    let question = QueueingHintArgs {
        pod: &input.pod,
        event: &cluster_event,
        old: old.as_ref().map(CaseEventObject::borrow),
        new: new.as_ref().map(CaseEventObject::borrow),
        world: &input.world,
        states: &states,
    };
    // Without registered events every event requeues the plugin's pods.
    let Some(events) = &plugin.events else {
        return Ok(json!({"hint": "Queue", "registered": [["*", "All"]]}));
    };
    let mut strongest = (0, "Unregistered", String::new());
    for registered in events.iter().filter(|registered| registered.event.matches(&cluster_event)) {
        let answer = match registered
            .hint
            .as_ref()
            .map_or(Ok(QueueingHint::Queue), |hint| hint(&question))
        {
            Ok(QueueingHint::Skip) => (1, "QueueSkip", String::new()),
            Err(failure) => (2, "Error", failure.to_string()),
            Ok(QueueingHint::Queue) => (3, "Queue", String::new()),
        };
        strongest = strongest.max(answer);
    }
    let names: Vec<Value> = events
        .iter()
        .map(|known| json!([known.event.resource.name(), known.event.action.to_string()]))
        .collect();
    let mut answer = json!({"hint": strongest.1, "registered": names});
    if strongest.1 == "Error" {
        answer["error"] = json!(strongest.2);
    }
    Ok(answer)
}

/// Parses resource and action types as upstream spells them.
pub fn parse_cluster_event(event: &CaseEvent) -> Result<ClusterEvent, LocalOracleError> {
    let unknown = || LocalOracleError::Event(format!("{} {}", event.resource, event.action));
    let mut action: Option<ActionType> = None;
    for name in event.action.split('|') {
        let one = ActionType::from_name(name.trim()).ok_or_else(unknown)?;
        action = Some(action.map_or(one, |others| others | one));
    }
    let known = [
        EventResource::Pod,
        EventResource::AssignedPod,
        EventResource::UnschedulablePod,
        EventResource::Node,
        EventResource::PersistentVolume,
        EventResource::PersistentVolumeClaim,
        EventResource::StorageClass,
        EventResource::CsiNode,
        EventResource::CsiDriver,
        EventResource::CsiStorageCapacity,
        EventResource::VolumeAttachment,
    ];
    let resource = known.into_iter().find(|known| known.name() == event.resource);
    let resource = resource.unwrap_or_else(|| EventResource::Other(Str::new(&event.resource)));
    Ok(ClusterEvent::new(resource, action.ok_or_else(unknown)?))
}

/// The object of an event.
enum CaseEventObject {
    Pod(PodInfo),
    Node(Node),
    Namespace(Namespace),
    Watched(Arc<ObjectInfo>),
}

impl CaseEventObject {
    fn borrow(&self) -> EventObject<'_> {
        match self {
            CaseEventObject::Pod(pod) => EventObject::Pod(pod),
            CaseEventObject::Node(node) => EventObject::Node(node),
            CaseEventObject::Namespace(namespace) => EventObject::Namespace(namespace),
            CaseEventObject::Watched(object) => EventObject::Other(object),
        }
    }
}

fn object(
    input: &mut SchedulingInput<'_>,
    resource: &EventResource,
    value: &Value,
) -> Result<Option<CaseEventObject>, EventObjectError> {
    if value.is_null() {
        return Ok(None);
    }
    Ok(Some(match resource {
        EventResource::Node => {
            CaseEventObject::Node(decode_json_value(value).map_err(EventObjectError::Field)?)
        }
        EventResource::Pod | EventResource::AssignedPod | EventResource::UnschedulablePod => {
            CaseEventObject::Pod(input.world.parse_pod(&pod(value)?)?)
        }
        EventResource::PersistentVolume
        | EventResource::PersistentVolumeClaim
        | EventResource::StorageClass
        | EventResource::CsiNode
        | EventResource::CsiDriver
        | EventResource::CsiStorageCapacity
        | EventResource::VolumeAttachment => {
            let found = watched_objects::event_object(input, value);
            let found = found.map_err(EventObjectError::Watched)?;
            return Ok(found.map(CaseEventObject::Watched));
        }
        _ => CaseEventObject::Namespace(decode_json_value(value).map_err(EventObjectError::Field)?),
    }))
}

/// The enabled plugins per profile and extension point, in order, with their weights at Score.
fn plugins(checked: &CheckedConfiguration) -> Value {
    let mut profiles = Map::new();
    for profile in &checked.profiles {
        let mut points: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for (point, placed) in
            profile.extension_points.iter().filter(|(_, placed)| !placed.is_empty())
        {
            let weight = |weight: i32| if point == ExtensionPoint::Score { weight } else { 0 };
            let all = placed.iter().map(|plugin| json!([plugin.name, weight(plugin.weight)]));
            points.insert(point.field_name(), all.collect());
        }
        profiles.insert(profile.scheduler_name.clone(), json!(points));
    }
    Value::Object(profiles)
}
