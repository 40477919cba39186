//! Whole cycles from the queue to the API server, with a plugin that follows the pod's labels at each extension point.

mod extenders;

use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use loadmaster_api::{Node, Pod, Str, Timestamp};
use loadmaster_config::{AllFeatureGates, check_configuration_value, default_configuration};
use loadmaster_framework::api_calls::{ApiRequest, ObjectRef, PluginStep, PluginStepInput, Verb};
use loadmaster_framework::extension_points::{BindResult, PreBindPreFlight, SerialCx};
use loadmaster_framework::{
    Bind, ClusterEvent, Cx, CycleState, ExtensionPoints, NodeInfo, Permit, PermitResult, PluginDef,
    PluginError, PodInfo, PreBind, Registry, Rejection, Reserve,
};
use serde_json::{Value, json};

use super::event::{ApiError, DeletedObjectKey};
use super::*;

/// The state of this type, which only one plugin has.
fn plugin_state<T: Clone + Default + Send + Sync + 'static>(
    states: &loadmaster_framework::PluginStates,
) -> Option<&T> {
    let mut slots = ExtensionPoints::default();
    (0..states.len()).find_map(|_| states.get(slots.plugin_state_slot(T::default())))
}

mod build_once;
mod conflicts;
mod explain_details;
mod gang_actions;
mod hash_seeds;
mod hints_with_state;
mod node_results;
mod node_values;
mod nodes_to_score;
mod nominated_pods;
mod plugin_metrics;
mod plugin_panics;
mod pod_and_node_events;
mod pod_index;
mod queue_sort;
mod reconfigure;
mod reserve_permit_pre_bind;
mod scheduling_state;
mod shadow;
mod shared_diagnosis;
mod stuck_plugins;
mod time_and_deadlines;

const SECOND: u64 = 1_000_000_000;

/// Follows the pod's labels: `reserve: no`, `permit: no | wait | long`, `pre-bind: call | wait | for-ever | no`.
struct LabelDriven;

const LABEL_DRIVEN: PluginDef =
    PluginDef { name: "LabelDriven", build: build_label_driven, args: None };

fn build_label_driven(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(LabelDriven);
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin.clone());
    points.pre_bind = Some(plugin.clone());
    points.bind = Some(plugin);
    Ok(())
}

fn label_of<'a>(pod: &'a PodInfo, point: &str) -> &'a str {
    pod.template.labels.get(point).map_or("", |value| value.as_str())
}

impl Reserve for LabelDriven {
    fn reserve(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        match label_of(pod, "reserve") {
            "no" => Err(Rejection::unschedulable("nothing left")),
            _ => Ok(()),
        }
    }
    fn unreserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {}
}

impl Permit for LabelDriven {
    fn permit(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        match label_of(pod, "permit") {
            "no" => Err(Rejection::unschedulable("not today")),
            "wait" => Ok(PermitResult::Wait(Duration::from_secs(10))),
            "long" => Ok(PermitResult::Wait(Duration::from_secs(3600))),
            _ => Ok(PermitResult::Allow),
        }
    }
}

impl PreBind for LabelDriven {
    fn pre_flight(&self, _: Cx<'_>, pod: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        match label_of(pod, "pre-bind") {
            "" => Ok(PreBindPreFlight::Skip),
            _ => Ok(PreBindPreFlight::Work { parallel: true }),
        }
    }
    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        let until = |seconds| cx.now().mono.after(Duration::from_secs(seconds));
        match (label_of(pod, "pre-bind"), input) {
            ("call", PluginStepInput::Start) => PluginStep::Call(ApiRequest {
                verb: Verb::MergePatch,
                group: Str::default(),
                version: Str::new("v1"),
                resource: Str::new("persistentvolumeclaims"),
                namespace: pod.template.namespace.clone(),
                name: Str::new("data"),
                subresource: Str::default(),
                body: Some(json!({})),
            }),
            ("wait", PluginStepInput::Start) => {
                PluginStep::Wait { on: vec![claim()], until: until(60) }
            }
            ("for-ever", PluginStepInput::Start | PluginStepInput::Deadline) => {
                PluginStep::Wait { on: vec![claim()], until: until(7) }
            }
            ("wait", PluginStepInput::Deadline) => {
                PluginStep::Fail(Rejection::unschedulable("never came"))
            }
            ("no", _) => {
                PluginStep::Fail(Rejection::Failed(loadmaster_framework::Failure::new("broken")))
            }
            _ => PluginStep::Done(()),
        }
    }
}

impl Bind for LabelDriven {
    fn bind(
        &self,
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: &str,
        _: PluginStepInput<'_>,
    ) -> PluginStep<BindResult> {
        PluginStep::Done(BindResult::Skip)
    }
}

fn claim() -> ObjectRef {
    ObjectRef {
        group: Str::default(),
        resource: Str::new("persistentvolumeclaims"),
        namespace: Str::new("default"),
        name: Str::new("data"),
    }
}

/// An engine, and its effects as lines.
struct Bench {
    engine: Engine,
    now: Now,
    calls: Vec<ApiServerCall>,
    /// Calls to extenders without a reply.
    extender_calls: Vec<ExtenderCall>,
    lines: Vec<String>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(EngineOptions::default())
    }

    fn with(options: EngineOptions) -> Bench {
        Bench::extended(options, json!([]))
    }

    fn extended(options: EngineOptions, extenders: Value) -> Bench {
        let profile = json!({"plugins": {
            "multiPoint": {"enabled": [{"name": "LabelDriven"}], "disabled": [{"name": "DefaultBinder"}]},
            "bind": {"enabled": [{"name": "LabelDriven"}, {"name": "DefaultBinder"}]},
        }});
        Bench::of(options, LABEL_DRIVEN, &profile, extenders)
    }

    /// With an additional plugin, this profile, and these extenders.
    fn of(options: EngineOptions, plugin: PluginDef, profile: &Value, extenders: Value) -> Bench {
        let registry: Registry = loadmaster_plugins::in_tree_registry().with(plugin);
        let gates = AllFeatureGates::default();
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "extenders": extenders,
            "profiles": [profile],
        });
        let checked = check_configuration_value(config, &registry, &gates).unwrap();
        let gates = gates.framework_gates();
        let profiles = checked.profiles.iter();
        let profiles = profiles.map(|it| Arc::new(Profile::new(it, &gates)));
        let now =
            Now { mono: MonoTime(10 * SECOND), wall: Timestamp(1_700_000_000 * SECOND as i64) };
        let mut bench = Bench {
            engine: Engine::new(profiles.collect(), gates, options),
            now,
            calls: Vec::new(),
            extender_calls: Vec::new(),
            lines: Vec::new(),
        };
        bench.node("a", "2");
        bench
    }

    fn node(&mut self, name: &str, cpu: &str) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
        }))
        .unwrap();
        self.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))));
    }

    /// A pod that requests one CPU; the plugin follows its labels.
    fn pod(&mut self, name: &str, labels: Value) {
        self.set_pod(name, labels, json!({}), json!({}));
    }

    fn set_pod(&mut self, name: &str, labels: Value, spec: Value, status: Value) {
        let mut object = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels, "generation": 1},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": status,
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(object).unwrap();
        self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))));
    }

    fn apply(&mut self, event: EngineEvent) {
        let mut effects = Effects::new();
        self.engine.apply_event(self.now, event, &mut effects);
        self.collect(effects);
    }

    fn cycle(&mut self) -> CycleResult {
        let mut effects = Effects::new();
        let cycled = self.engine.cycle(self.now, &mut effects);
        self.collect(effects);
        cycled
    }

    /// Advances the clock and handles timeouts.
    fn advance(&mut self, seconds: u64) {
        self.now.mono = MonoTime(self.now.mono.0 + seconds * SECOND);
        self.now.wall = Timestamp(self.now.wall.0 + (seconds * SECOND) as i64);
        let mut effects = Effects::new();
        self.engine.handle_timeouts(self.now, &mut effects);
        self.collect(effects);
    }

    /// Replies to the oldest call.
    fn reply(&mut self, reply: Result<(), &str>) {
        let call = self.calls.remove(0);
        let reply = match reply {
            Ok(()) => Ok(Value::Null),
            Err(message) => Err(ApiError { code: 409, message: message.to_owned() }),
        };
        self.apply(EngineEvent::Replied { call: call.id, reply });
    }

    fn collect(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Call(call) => {
                    let ApiRequest { resource, subresource, name, body, .. } = &call.request;
                    let status = body.as_ref().map(|body| &body["status"]);
                    let status = status.filter(|status| !status.is_null());
                    let status = status.map_or(String::new(), |status| format!(" {status}"));
                    self.lines.push(format!("call {resource}/{name}/{subresource}{status}"));
                    self.calls.push(call);
                }
                Effect::CallExtender(extend) => {
                    self.lines.push(extenders::call_line(&extend));
                    self.extender_calls.push(extend);
                }
                Effect::RecordEvent(event) => {
                    self.lines
                        .push(format!("{} {}: {}", event.reason, event.regarding.name, event.note));
                }
                Effect::Observe(Observation::InternalError { message }) => self.lines.push(message),
                Effect::Observe(Observation::PluginPanicked(panic)) => {
                    let (plugin, point) = (panic.plugin.name, panic.extension_point.name());
                    let (times, message) = (panic.times, &panic.message);
                    self.lines.push(format!("panic of {plugin} in {point}, {times}x: {message}"));
                }
                Effect::Observe(Observation::PluginStuck(stuck)) => {
                    let StuckPlugin { plugin, extension_point, pod, node } = *stuck;
                    let (plugin, point) = (plugin.name, extension_point.name());
                    self.lines.push(format!("stuck: {plugin} in {point}, {pod} on {node:?}"));
                }
                Effect::Observe(Observation::Conflict(conflict)) => {
                    self.lines
                        .push(format!("SchedulingConflict {}: {conflict}", conflict.kind.name()));
                }
                Effect::Observe(_) => {}
            }
        }
    }

    #[track_caller]
    fn check(&mut self, want: &Expect) {
        let counts = self.engine.queue().counts();
        self.lines.push(format!(
            "{} active, {} backing off, {} unschedulable, {} assumed, {} on a",
            counts.active,
            counts.backoff,
            counts.unschedulable,
            self.engine.n_assumed_pods(),
            self.engine.world().n_assigned_pods(),
        ));
        want.assert_eq(&std::mem::take(&mut self.lines).join("\n"));
    }
}

#[test]
fn a_pod_is_bound() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    assert_eq!(bench.cycle(), CycleResult::Ran);
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.reply(Ok(()));
    bench.check(&expect![[r#"
        Scheduled web: Successfully assigned default/web to a
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.set_pod("web", json!({}), json!({"nodeName": "a"}), json!({}));
    assert_eq!(bench.cycle(), CycleResult::Idle);
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 1 on a"]);
}

#[test]
fn the_watch_may_confirm_a_bind_before_its_reply() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.set_pod("web", json!({}), json!({"nodeName": "a"}), json!({}));
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 1 on a"#]]);
    bench.reply(Ok(()));
    bench.check(&expect![[r#"
        Scheduled web: Successfully assigned default/web to a
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 1 on a"#]]);
}

#[test]
fn a_failed_binding_cycle_releases_everything() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.reply(Err("the server is busy"));
    bench.check(&expect![[r#"
        call pods/web/binding
        FailedScheduling web: running Bind plugin "DefaultBinder": the server is busy
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running Bind plugin \"DefaultBinder\": the server is busy","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    // Its backoff is completed after a second.
    assert_eq!(bench.cycle(), CycleResult::Idle);
    bench.advance(3);
    assert_eq!(bench.cycle(), CycleResult::Ran);
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn an_unschedulable_pod_is_reported_once_and_requeued_by_events() {
    let mut bench = Bench::new();
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling db: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.
        call pods/db/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
    bench.reply(Ok(()));
    // A node that does not help does not requeue the pod; one that may help does.
    bench.node("b", "4");
    bench.advance(5);
    assert_eq!(bench.cycle(), CycleResult::Idle);
    bench.check(&expect!["0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"]);
    let labels = json!({"disk": "ssd"});
    let node = json!({"metadata": {"name": "c", "labels": labels}, "status": {"allocatable": {"pods": "1"}}});
    let node: Node = serde_json::from_value(node).unwrap();
    bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))));
    assert_eq!(bench.cycle(), CycleResult::Ran);
    bench.check(&expect![[r#"
        FailedScheduling db: 0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.
        call pods/db/status {"conditions":[{"message":"0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn deleting_an_assumed_pod_releases_its_resources_at_once() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("web".into())));
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 0 on a"#]]);
    bench.reply(Err("not found"));
    bench.check(&expect![[r#"
        FailedScheduling web: running Bind plugin "DefaultBinder": not found
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    // The same while it waits on Permit.
    bench.pod("gang", json!({"permit": "wait"}));
    bench.cycle();
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("gang".into())));
    bench.check(&expect![[r#"
        call pods/gang/status {"nominatedNodeName":"a"}
        FailedScheduling gang: 0/1 nodes are available: 1 removed.
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn the_bind_window_limits_the_number_of_binding_pods() {
    let mut bench = Bench::with(EngineOptions { bind_window: 1, ..EngineOptions::default() });
    bench.pod("web", json!({}));
    bench.pod("api", json!({}));
    assert_eq!([bench.cycle(), bench.cycle()], [CycleResult::Ran, CycleResult::Waiting]);
    bench.reply(Ok(()));
    assert_eq!([bench.cycle(), bench.cycle()], [CycleResult::Ran, CycleResult::Waiting]);
    bench.check(&expect![[r#"
        call pods/web/binding
        Scheduled web: Successfully assigned default/web to a
        call pods/api/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn a_high_priority_pod_waits_for_one_bind_window_only() {
    let mut bench = Bench::new();
    let node = json!({"metadata": {"name": "z"}, "status": {"allocatable": {"cpu": "99999", "pods": "99999"}}});
    let node: Node = serde_json::from_value(node).unwrap();
    bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))));
    let spec = json!({"containers": [{"name": "c"}], "priority": -1});
    let mut pod: Pod =
        serde_json::from_value(json!({"metadata": {"namespace": "default"}, "spec": spec}))
            .unwrap();
    for n in 0..20_000 {
        pod.metadata.name = format!("low-{n}").into();
        pod.metadata.uid = pod.metadata.name.clone();
        bench.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod.clone()))));
    }
    // The API server has not replied yet.
    while bench.cycle() == CycleResult::Ran {}
    let n_ahead = bench.calls.len();
    pod.metadata.name = "urgent".into();
    pod.metadata.uid = "urgent".into();
    pod.spec.change(|spec| spec.priority = Some(1000));
    bench.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))));
    assert_eq!(bench.cycle(), CycleResult::Waiting);
    bench.reply(Ok(()));
    assert_eq!(bench.cycle(), CycleResult::Ran);
    let last = bench.calls.last().map(|call| call.request.name.to_string());
    assert_eq!((n_ahead, last.as_deref()), (EngineOptions::default().bind_window, Some("urgent")));
}

#[test]
fn orphaned_pods_are_added_to_their_node_when_it_appears() {
    let mut bench = Bench::new();
    bench.set_pod("old", json!({}), json!({"nodeName": "z"}), json!({}));
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
    bench.node("z", "1");
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 1 on a"]);
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Node("z".into())));
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("old".into())));
    bench.node("z", "1");
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
}

#[test]
fn status_patches_of_a_pod_are_sent_one_at_a_time() {
    let mut bench = Bench::new();
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    bench.set_pod(
        "db",
        json!({"new": "label"}),
        json!({"nodeSelector": {"disk": "hdd"}}),
        json!({}),
    );
    bench.node("b", "4");
    bench.advance(3);
    bench.apply(EngineEvent::Activate(vec!["db".into()]));
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling db: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.
        call pods/db/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        FailedScheduling db: 0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
    bench.reply(Ok(()));
    bench.check(&expect![[r#"
        call pods/db/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:23Z","message":"0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
}

/// Written after the bind, the condition would be that of an earlier attempt, and the API server rejects the nominated node.
#[test]
fn a_bind_overrides_patches_that_were_not_sent() {
    let mut bench = Bench::new();
    bench.pod("gang", json!({"permit": "wait"}));
    bench.cycle();
    let decide = |bench: &mut Bench, decision| {
        bench.apply(EngineEvent::Permit { uid: "gang".into(), plugin: None, decision });
    };
    decide(&mut bench, PermitDecision::Reject("quorum lost".to_owned()));
    bench.apply(EngineEvent::Activate(vec!["gang".into()]));
    bench.cycle();
    decide(&mut bench, PermitDecision::Allow);
    bench.reply(Ok(()));
    bench.check(&expect![[r#"
        call pods/gang/status {"nominatedNodeName":"a"}
        FailedScheduling gang: 0/1 nodes are available: 1 quorum lost.
        call pods/gang/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn a_condition_is_written_again_after_an_error() {
    let mut bench = Bench::new();
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    // It fails in the same way while its patch is in flight: no patch follows.
    bench.apply(EngineEvent::Activate(vec!["db".into()]));
    bench.cycle();
    bench.reply(Err("the server is busy"));
    assert!(bench.calls.is_empty());
    bench.apply(EngineEvent::Activate(vec!["db".into()]));
    bench.cycle();
    let body = bench.calls[0].request.body.as_ref().unwrap();
    assert_eq!(body["status"]["conditions"][0]["reason"], "Unschedulable");
}

/// As after a change of leaders: the last one nominated the node for two pods with preemptionPolicy Never, one after the other.
#[test]
fn a_bound_pod_deleted_before_its_binding_is_observed_leaves_nothing() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.reply(Ok(()));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("web".into())));
    assert_eq!((bench.engine.n_assumed_pods(), bench.engine.world().n_assigned_pods()), (0, 0));
}

#[test]
fn an_engine_runs_with_the_default_profile() {
    let registry = loadmaster_plugins::in_tree_registry();
    let gates = AllFeatureGates::default();
    let checked = default_configuration(&registry, &gates).unwrap();
    let gates = gates.framework_gates();
    let profile = Profile::new(&checked.profiles[0], &gates);
    let mut engine = Engine::new(vec![Arc::new(profile)], gates, EngineOptions::default());
    let now = Now { mono: MonoTime(0), wall: Timestamp(0) };
    assert_eq!(engine.cycle(now, &mut Effects::new()), CycleResult::Idle);
}
