//! Our answers, in the words of `conformance/README.md`, so that they can be held against kube-scheduler's.

use std::collections::BTreeMap;

use loadmaster_api::document::Document;
use loadmaster_api::snapshot::{Snapshot, SnapshotError};
use loadmaster_api::{Namespace, Node, Pod, Str};
use loadmaster_config::{Checked, Gates, Point, check_default, check_value};
use loadmaster_engine::evaluate::filters::Filters;
use loadmaster_engine::evaluate::one_by_one;
use loadmaster_engine::explain::{self, Explanation, Status};
use loadmaster_engine::{NodeVerdict, Profile, ProfileError, Verdict, diagnosis};
use loadmaster_framework::args::decode;
use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::request::{Input, Step};
use loadmaster_framework::{
    Action, ClusterEvent, Cx, CycleState, EventObject, EventResource, FieldError, Hint, PodInfo,
    Registry, SerialCx, TemplateError, Unfit, World,
};
use loadmaster_stdx::{Chain, Rng};
use serde_json::{Map, Value, json};

use super::{Ask, Case, Event};
use crate::load::{self, LoadError, Loaded};

/// Answers questions with these plugins.
pub struct Answerer {
    registry: Registry,
    gates: Gates,
    /// Most cases have the default configuration.
    default: (Checked, Vec<Profile>),
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    #[error("configuration: {}", .0.iter().map(FieldError::to_string).collect::<Vec<_>>().join("; "))]
    Config(Vec<FieldError>),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("expected one pod {0:?} among the objects")]
    NoPod(String),
    #[error("{side} object")]
    Object {
        side: &'static str,
        #[source]
        source: ObjectError,
    },
    #[error("profile {profile:?} has no plugin {plugin:?}")]
    NoPlugin { profile: String, plugin: String },
    #[error("unknown event {0:?}")]
    Event(String),
}

/// An event's object cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    #[error("{0}")]
    Field(FieldError),
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl Answerer {
    /// Answers with the plugins of the registry, under the default gates.
    pub fn new(registry: Registry) -> Result<Answerer, AnswerError> {
        let gates = Gates::default();
        let checked = check_default(&registry, &gates).map_err(AnswerError::Config)?;
        let profiles = load::profiles(&checked, &registry, &gates.framework())?;
        Ok(Answerer { registry, gates, default: (checked, profiles) })
    }

    /// The plugins.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The profiles of the default configuration.
    pub fn default_profiles(&self) -> &[Profile] {
        &self.default.1
    }

    /// The answer, or `{"error": ...}`.
    pub fn answer(&self, case: &Case) -> Value {
        self.try_answer(case).unwrap_or_else(|error| json!({"error": Chain(&error).to_string()}))
    }

    fn try_answer(&self, case: &Case) -> Result<Value, AnswerError> {
        if case.ask == Ask::Config {
            let own = case.config.as_ref().map(|config| self.configure(config)).transpose()?;
            let checked = own.as_ref().map_or(&self.default.0, |(checked, _)| checked);
            return Ok(json!({"plugins": plugins(checked)}));
        }
        self.with_loaded(case, |loaded| match &case.ask {
            Ask::Hint(event) => hint(loaded, event),
            Ask::Sign => Ok(json!({"signature": signature(loaded.profile, &loaded.pod)})),
            Ask::Preemption => Ok(preemption(loaded, case.id)),
            Ask::Explain | Ask::Config => Ok(explanation(loaded)),
        })?
    }

    /// Does something with the world of a case and the pod that it asks about.
    ///
    /// # Errors
    ///
    /// When the case makes no world.
    pub fn with_loaded<R>(
        &self,
        case: &Case,
        act: impl FnOnce(&mut Loaded<'_>) -> R,
    ) -> Result<R, AnswerError> {
        let own = case.config.as_ref().map(|config| self.configure(config)).transpose()?;
        let profiles = own.as_ref().map_or(&self.default.1, |(_, profiles)| profiles);
        // The asked pod apart: it may name a node that does not exist, which a cluster file may not.
        let (asked, others): (Vec<&Value>, Vec<&Value>) =
            case.objects.iter().partition(|object| is_pod(object, &case.pod));
        let [asked] = asked[..] else { return Err(AnswerError::NoPod(case.pod.clone())) };
        let snapshot = snapshot(&others)?;
        let asked = pod(asked).map_err(|source| AnswerError::Object { side: "asked", source })?;
        let mut loaded = load::load_for(&snapshot, profiles, &self.gates.framework(), &asked)?;
        Ok(act(&mut loaded))
    }

    fn configure(&self, config: &Value) -> Result<(Checked, Vec<Profile>), AnswerError> {
        let checked = check_value(config.clone(), &self.registry, &self.gates)
            .map_err(AnswerError::Config)?;
        let profiles = load::profiles(&checked, &self.registry, &self.gates.framework())?;
        Ok((checked, profiles))
    }
}

/// Objects as a cluster file would hold them.
fn snapshot(objects: &[&Value]) -> Result<Snapshot, SnapshotError> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    Snapshot::read(&[Document::new("case.json", list.to_string())])
}

fn is_pod(object: &Value, full_name: &str) -> bool {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    object["kind"] == "Pod" && full_name.split_once('/') == Some((namespace, name))
}

fn pod(value: &Value) -> Result<Pod, ObjectError> {
    let mut pod: Pod = decode(value).map_err(ObjectError::Field)?;
    if pod.metadata.namespace.is_empty() {
        pod.metadata.namespace = Str::new("default");
    }
    Ok(pod)
}

fn explanation(loaded: &Loaded<'_>) -> Value {
    let Explanation { pod, profile, pre_filter, nodes, best, message, .. } =
        explain::explain(loaded.profile, &loaded.world, &loaded.profile.states, &loaded.pod);
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
    if let Some(rejected) = pre_filter.filter(|_| !loaded.world.nodes().is_empty()) {
        answer["preFilter"] = status(&rejected);
    }
    if let Some(held) = held_back(loaded) {
        answer["preEnqueue"] = held;
    }
    answer
}

/// What DefaultPreemption shows, and what it does.
fn preemption(loaded: &Loaded<'_>, seed: u64) -> Value {
    let Loaded { world, profile, pod } = loaded;
    let mut states = profile.states.clone();
    let attempted = one_by_one::attempt(profile, world, &mut states, pod);
    let evaluation = &attempted.evaluation;
    let mut answer = json!({"pod": pod.full_name(), "fits": false, "candidates": {}, "best": []});
    // A node that was promised to the pod is taken without asking for scores, so that nobody's failure there counts.
    let promised = world.nodes().row(&pod.nominated_node_name);
    let is_taken = |node: &NodeVerdict| {
        node.verdict == Verdict::Feasible
            && (evaluation.failure.is_none() || promised == Some(node.row))
    };
    if evaluation.nodes.iter().any(is_taken) {
        answer["fits"] = json!(true);
        return answer;
    }
    if evaluation.failure.is_some() || world.nodes().is_empty() {
        answer["cycleError"] = json!(diagnosis::message(evaluation, world.nodes().len()));
        return answer;
    }
    if let Some(shown) = explain::explain(profile, world, &profile.states, pod).preemption {
        let candidates = shown.candidates.into_iter().map(|candidate| {
            let victims =
                json!({"victims": candidate.victims, "pdbViolations": candidate.n_pdb_violations});
            (candidate.node, victims)
        });
        answer["candidates"] = Value::Object(candidates.collect());
        answer["best"] = json!(shown.best);
    }
    let member = profile.post_filter.iter().find(|member| member.name == "DefaultPreemption");
    let Some(member) = member else { return answer };
    let filters = Filters { profile, skipped: &attempted.skipped };
    let verdicts = evaluation.codes(world, pod);
    let unfit = Unfit { verdicts: &verdicts, feasibility: &filters, extenders: false };
    let mut cycle = attempted.cycle.clone();
    let cx = SerialCx { world, cycle: &mut cycle, states: &mut states };
    let step = member.point.post_filter(cx, pod, unfit, &mut Rng::new(seed), Input::Start);
    let Step::Done(done) = step else { return answer };
    answer["status"] = match &done.rejection {
        None => json!({"code": "Success"}),
        Some(rejection) => {
            json!({"code": rejection.code().name(), "reasons": rejection.reasons()})
        }
    };
    if let Some(node) = done.nominated_node {
        answer["nominated"] = json!(node);
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

/// What the first PreEnqueue plugin says that keeps the pod out of the queue.
fn held_back(loaded: &Loaded<'_>) -> Option<Value> {
    let cycle = CycleState::default();
    let cx = Cx { world: &loaded.world, cycle: &cycle, states: &loaded.profile.states };
    loaded.profile.pre_enqueue.iter().find_map(|member| {
        let rejection = member.point.pre_enqueue(cx, &loaded.pod).err()?;
        let (code, reasons) = (rejection.code().name(), rejection.reasons());
        Some(json!({"code": code, "plugin": member.name, "reasons": reasons}))
    })
}

/// The fragments of all plugins, under their keys; null where one refuses to sign.
pub fn signature(profile: &Profile, pod: &PodInfo) -> Value {
    let mut fragments = Map::new();
    // The framework's own part.
    fragments.insert("v1.Pod.Spec.SchedulerName".to_owned(), json!(pod.template.scheduler_name()));
    for (at, plugin) in profile.plugins.iter().enumerate() {
        if !must_sign(profile, at) {
            continue;
        }
        match profile.sign.iter().find(|member| member.plugin == at) {
            Some(signer) => match signer.point.sign(pod) {
                Ok(signed) => fragments
                    .extend(signed.into_iter().map(|part| (part.key.to_owned(), part.value))),
                Err(_) => return Value::Null,
            },
            // A plugin that filters or scores and does not know how to sign: no pod has a signature.
            None => return json!({"notSignedBy": plugin.name}),
        }
    }
    Value::Object(fragments)
}

/// A configuration may take a plugin out at every point.
fn runs_anywhere(profile: &Profile, plugin: usize) -> bool {
    must_sign(profile, plugin)
        || profile.pre_enqueue.iter().any(|member| member.plugin == plugin)
        || profile.queue_sort.iter().any(|member| member.plugin == plugin)
}

fn must_sign(profile: &Profile, plugin: usize) -> bool {
    profile.pre_filter.iter().any(|member| member.plugin == plugin)
        || profile.filter.iter().any(|member| member.plugin == plugin)
        || profile.pre_score.iter().any(|member| member.plugin == plugin)
        || profile.score.iter().any(|member| member.plugin == plugin)
}

fn hint(loaded: &mut Loaded<'_>, event: &Event) -> Result<Value, AnswerError> {
    let plugins = loaded.profile.plugins.iter().enumerate();
    let mut running =
        plugins.filter(|(at, _)| runs_anywhere(loaded.profile, *at)).map(|(_, plugin)| plugin);
    let plugin = running.find(|plugin| plugin.name == event.plugin);
    let plugin = plugin.ok_or_else(|| AnswerError::NoPlugin {
        profile: loaded.profile.scheduler_name.clone(),
        plugin: event.plugin.clone(),
    })?;
    let happened = cluster_event(event)?;
    let parse = |world: &mut World, side, value: &Value| {
        object(world, &happened.resource, value)
            .map_err(|source| AnswerError::Object { side, source })
    };
    let old = parse(&mut loaded.world, "old", &event.old)?;
    let new = parse(&mut loaded.world, "new", &event.new)?;
    let question = HintQuestion {
        pod: &loaded.pod,
        event: &happened,
        old: old.as_ref().map(Object::borrow),
        new: new.as_ref().map(Object::borrow),
        world: &loaded.world,
    };
    // No list of events means that every event wakes the plugin's pods.
    let Some(events) = &plugin.events else {
        return Ok(json!({"hint": "Queue", "registered": [["*", "All"]]}));
    };
    let mut strongest = (0, "Unregistered", String::new());
    for registered in events.iter().filter(|registered| registered.event.matches(&happened)) {
        let answer = match registered.hint.as_ref().map_or(Ok(Hint::Queue), |hint| hint(&question))
        {
            Ok(Hint::Skip) => (1, "QueueSkip", String::new()),
            Err(failure) => (2, "Error", failure.to_string()),
            Ok(Hint::Queue) => (3, "Queue", String::new()),
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

/// Reads an event as upstream spells it.
pub fn cluster_event(event: &Event) -> Result<ClusterEvent, AnswerError> {
    let unknown = || AnswerError::Event(format!("{} {}", event.resource, event.action));
    let mut action: Option<Action> = None;
    for name in event.action.split('|') {
        let one = Action::from_name(name.trim()).ok_or_else(unknown)?;
        action = Some(action.map_or(one, |others| others | one));
    }
    let known = [
        EventResource::Pod,
        EventResource::AssignedPod,
        EventResource::UnschedulablePod,
        EventResource::Node,
    ];
    let resource = known.into_iter().find(|known| known.name() == event.resource);
    let resource = resource.unwrap_or_else(|| EventResource::Other(Str::new(&event.resource)));
    Ok(ClusterEvent::new(resource, action.ok_or_else(unknown)?))
}

/// The object of an event.
enum Object {
    Pod(PodInfo),
    Node(Node),
    Namespace(Namespace),
}

impl Object {
    fn borrow(&self) -> EventObject<'_> {
        match self {
            Object::Pod(pod) => EventObject::Pod(pod),
            Object::Node(node) => EventObject::Node(node),
            Object::Namespace(namespace) => EventObject::Namespace(namespace),
        }
    }
}

fn object(
    world: &mut World,
    resource: &EventResource,
    value: &Value,
) -> Result<Option<Object>, ObjectError> {
    if value.is_null() {
        return Ok(None);
    }
    Ok(Some(match resource {
        EventResource::Node => Object::Node(decode(value).map_err(ObjectError::Field)?),
        EventResource::Pod | EventResource::AssignedPod | EventResource::UnschedulablePod => {
            Object::Pod(world.parse(&pod(value)?)?)
        }
        _ => Object::Namespace(decode(value).map_err(ObjectError::Field)?),
    }))
}

/// Per profile and extension point the plugins that run, in order, with their weights where they score.
fn plugins(checked: &Checked) -> Value {
    let mut profiles = Map::new();
    for profile in &checked.profiles {
        let mut points: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for (point, placed) in profile.points.iter().filter(|(_, placed)| !placed.is_empty()) {
            let weight = |weight: i32| if point == Point::Score { weight } else { 0 };
            let all = placed.iter().map(|plugin| json!([plugin.name, weight(plugin.weight)]));
            points.insert(point.field(), all.collect());
        }
        profiles.insert(profile.scheduler_name.clone(), json!(points));
    }
    Value::Object(profiles)
}
