//! Cycles from the queue to the API server, with a plugin that does at each point what the pod's labels say.

mod extenders;

use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use loadmaster_api::{Node, Pod, Str, Timestamp};
use loadmaster_config::{Gates, check_default, check_value};
use loadmaster_framework::points::{Bound, PreFlight, SerialCx};
use loadmaster_framework::request::{ApiRequest, Input, ObjectRef, Step, Verb};
use loadmaster_framework::{
    Bind, Cx, NodeInfo, Permit, Permitted, PluginDef, PluginError, PodInfo, Points, PreBind,
    Registry, Rejection, Reserve,
};
use serde_json::{Value, json};

use super::news::{ApiError, Name};
use super::*;

mod overdue;
mod panics;
mod points;
mod progress;
mod races;
mod samples;
mod search;

const SECOND: u64 = 1_000_000_000;

/// Does what the pod's labels say: `reserve: no`, `permit: no | wait | long`, `pre-bind: call | wait | for-ever | no`, `bind: skip`.
struct Obedient;

const OBEDIENT: PluginDef = PluginDef { name: "Obedient", build: build_obedient, args: None };

fn build_obedient(points: &mut Points, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Obedient);
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin.clone());
    points.pre_bind = Some(plugin.clone());
    points.bind = Some(plugin);
    Ok(())
}

fn told<'a>(pod: &'a PodInfo, point: &str) -> &'a str {
    pod.template.labels.get(point).map_or("", |value| value.as_str())
}

impl Reserve for Obedient {
    fn reserve(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        match told(pod, "reserve") {
            "no" => Err(Rejection::unschedulable("nothing left")),
            _ => Ok(()),
        }
    }
    fn unreserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {}
}

impl Permit for Obedient {
    fn permit(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<Permitted, Rejection> {
        match told(pod, "permit") {
            "no" => Err(Rejection::unschedulable("not today")),
            "wait" => Ok(Permitted::Wait(Duration::from_secs(10))),
            "long" => Ok(Permitted::Wait(Duration::from_secs(3600))),
            _ => Ok(Permitted::Allow),
        }
    }
}

impl PreBind for Obedient {
    fn pre_flight(&self, _: Cx<'_>, pod: &PodInfo, _: &str) -> Result<PreFlight, Rejection> {
        match told(pod, "pre-bind") {
            "" => Ok(PreFlight::Skip),
            _ => Ok(PreFlight::Work { parallel: true }),
        }
    }
    fn pre_bind(&self, _: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str, input: Input<'_>) -> Step<()> {
        match (told(pod, "pre-bind"), input) {
            ("call", Input::Start) => Step::Call(ApiRequest {
                verb: Verb::MergePatch,
                group: Str::default(),
                version: Str::new("v1"),
                resource: Str::new("persistentvolumeclaims"),
                namespace: pod.template.namespace.clone(),
                name: Str::new("data"),
                subresource: Str::default(),
                body: Some(json!({})),
            }),
            ("wait", Input::Start) => {
                Step::Wait { on: vec![claim()], timeout: Duration::from_secs(60) }
            }
            ("for-ever", Input::Start | Input::Deadline) => {
                Step::Wait { on: vec![claim()], timeout: Duration::from_secs(7) }
            }
            ("wait", Input::Deadline) => Step::Fail(Rejection::unschedulable("never came")),
            ("no", _) => {
                Step::Fail(Rejection::Failed(loadmaster_framework::Failure::new("broken")))
            }
            _ => Step::Done(()),
        }
    }
}

impl Bind for Obedient {
    fn bind(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str, _: Input<'_>) -> Step<Bound> {
        Step::Done(Bound::Skip)
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

/// An engine and what it wanted, in lines.
struct Bench {
    engine: Engine,
    now: Now,
    calls: Vec<Call>,
    /// Questions to extenders that have no answer yet.
    asks: Vec<Extend>,
    said: Vec<String>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(Options::default())
    }

    fn with(options: Options) -> Bench {
        Bench::extended(options, json!([]))
    }

    fn extended(options: Options, extenders: Value) -> Bench {
        let profile = json!({"plugins": {
            "multiPoint": {"enabled": [{"name": "Obedient"}], "disabled": [{"name": "DefaultBinder"}]},
            "bind": {"enabled": [{"name": "Obedient"}, {"name": "DefaultBinder"}]},
        }});
        Bench::of(options, OBEDIENT, &profile, extenders)
    }

    /// With one more plugin, this profile, and these extenders.
    fn of(options: Options, plugin: PluginDef, profile: &Value, extenders: Value) -> Bench {
        let registry: Registry = loadmaster_plugins::in_tree().with(plugin);
        let gates = Gates::default();
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "extenders": extenders,
            "profiles": [profile],
        });
        let checked = check_value(config, &registry, &gates).unwrap();
        let gates = gates.framework();
        let profiles = checked.profiles.iter();
        let profiles = profiles.map(|it| Arc::new(Profile::new(it, &registry, &gates).unwrap()));
        let now = Now { mono: Mono(10 * SECOND), wall: Timestamp(1_700_000_000 * SECOND as i64) };
        let mut bench = Bench {
            engine: Engine::new(profiles.collect(), gates, options),
            now,
            calls: Vec::new(),
            asks: Vec::new(),
            said: Vec::new(),
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
        self.apply(Event::Set(Object::Node(Arc::new(node))));
    }

    /// A pod that wants one CPU; its labels say what happens to it.
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
        self.apply(Event::Set(Object::Pod(Box::new(pod))));
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Effects::new();
        self.engine.apply(self.now, event, &mut effects);
        self.take(effects);
    }

    fn cycle(&mut self) -> Cycled {
        let mut effects = Effects::new();
        let cycled = self.engine.cycle(self.now, &mut effects);
        self.take(effects);
        cycled
    }

    /// Lets time pass.
    fn pass(&mut self, seconds: u64) {
        self.now.mono = Mono(self.now.mono.0 + seconds * SECOND);
        self.now.wall = Timestamp(self.now.wall.0 + (seconds * SECOND) as i64);
        let mut effects = Effects::new();
        self.engine.wake(self.now, &mut effects);
        self.take(effects);
    }

    /// Answers the oldest call.
    fn answer(&mut self, reply: Result<(), &str>) {
        let call = self.calls.remove(0);
        let reply = match reply {
            Ok(()) => Ok(Value::Null),
            Err(message) => Err(ApiError { code: 409, message: message.to_owned() }),
        };
        self.apply(Event::Replied { call: call.id, reply });
    }

    fn take(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Call(call) => {
                    let ApiRequest { resource, subresource, name, body, .. } = &call.request;
                    let status = body.as_ref().map(|body| &body["status"]);
                    let status = status.filter(|status| !status.is_null());
                    let status = status.map_or(String::new(), |status| format!(" {status}"));
                    self.said.push(format!("call {resource}/{name}/{subresource}{status}"));
                    self.calls.push(call);
                }
                Effect::Extend(extend) => {
                    self.said.push(extenders::asked(&extend));
                    self.asks.push(extend);
                }
                Effect::Tell(tell) => {
                    self.said
                        .push(format!("{} {}: {}", tell.reason, tell.regarding.name, tell.note));
                }
                Effect::Observe(Observation::Trouble { what }) => self.said.push(what),
                Effect::Observe(Observation::Panicked(panic)) => {
                    let (plugin, site) = (panic.who.plugin, panic.site.name());
                    let (times, message) = (panic.times, &panic.message);
                    self.said.push(format!("panic of {plugin} in {site}, {times}x: {message}"));
                }
                Effect::Observe(Observation::Overdue(overdue)) => {
                    let Overdue { who, site, pod, node } = *overdue;
                    let (plugin, site) = (who.plugin, site.name());
                    self.said.push(format!("overdue: {plugin} in {site}, {pod} on {node:?}"));
                }
                Effect::Observe(Observation::LostRace(lost)) => {
                    self.said.push(format!("LostRace {}: {lost}", lost.kind.name()));
                }
                Effect::Observe(_) => {}
            }
        }
    }

    #[track_caller]
    fn check(&mut self, want: &Expect) {
        let counts = self.engine.queue().counts();
        self.said.push(format!(
            "{} active, {} backing off, {} unschedulable, {} assumed, {} on a",
            counts.active,
            counts.backoff,
            counts.unschedulable,
            self.engine.n_assumed(),
            self.engine.world().n_assigned(),
        ));
        want.assert_eq(&std::mem::take(&mut self.said).join("\n"));
    }
}

#[test]
fn a_pod_is_bound() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    assert_eq!(bench.cycle(), Cycled::Ran);
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.answer(Ok(()));
    bench.check(&expect![[r#"
        Scheduled web: Successfully assigned default/web to a
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.set_pod("web", json!({}), json!({"nodeName": "a"}), json!({}));
    assert_eq!(bench.cycle(), Cycled::Idle);
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 1 on a"]);
}

#[test]
fn news_may_be_faster_than_the_answer() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.set_pod("web", json!({}), json!({"nodeName": "a"}), json!({}));
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 1 on a"#]]);
    bench.answer(Ok(()));
    bench.check(&expect![[r#"
        Scheduled web: Successfully assigned default/web to a
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 1 on a"#]]);
}

#[test]
fn a_binding_that_fails_gives_everything_back() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.answer(Err("the server is busy"));
    bench.check(&expect![[r#"
        call pods/web/binding
        FailedScheduling web: running Bind plugin "DefaultBinder": the server is busy
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"running Bind plugin \"DefaultBinder\": the server is busy","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    // Its backoff is over after a second.
    assert_eq!(bench.cycle(), Cycled::Idle);
    bench.pass(3);
    assert_eq!(bench.cycle(), Cycled::Ran);
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn what_fits_nowhere_says_so_once() {
    let mut bench = Bench::new();
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling db: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.
        call pods/db/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
    bench.answer(Ok(()));
    // A node that does not help is no reason to try again; one that may help is.
    bench.node("b", "4");
    bench.pass(5);
    assert_eq!(bench.cycle(), Cycled::Idle);
    bench.check(&expect!["0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"]);
    let labels = json!({"disk": "ssd"});
    let node = json!({"metadata": {"name": "c", "labels": labels}, "status": {"allocatable": {"pods": "1"}}});
    let node: Node = serde_json::from_value(node).unwrap();
    bench.apply(Event::Set(Object::Node(Arc::new(node))));
    assert_eq!(bench.cycle(), Cycled::Ran);
    bench.check(&expect![[r#"
        FailedScheduling db: 0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.
        call pods/db/status {"conditions":[{"message":"0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn a_pod_that_is_deleted_on_its_way_makes_room_at_once() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.apply(Event::Gone(Name::Pod("web".into())));
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 0 on a"#]]);
    bench.answer(Err("not found"));
    bench.check(&expect![[r#"
        FailedScheduling web: running Bind plugin "DefaultBinder": not found
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    // The same while Permit holds it: nobody waits any longer.
    bench.pod("gang", json!({"permit": "wait"}));
    bench.cycle();
    bench.apply(Event::Gone(Name::Pod("gang".into())));
    bench.check(&expect![[r#"
        call pods/gang/status {"nominatedNodeName":"a"}
        FailedScheduling gang: 0/1 nodes are available: 1 removed.
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn at_most_a_window_of_pods_is_being_bound() {
    let mut bench = Bench::with(Options { bind_window: 1, ..Options::default() });
    bench.pod("web", json!({}));
    bench.pod("api", json!({}));
    assert_eq!([bench.cycle(), bench.cycle()], [Cycled::Ran, Cycled::Waiting]);
    bench.answer(Ok(()));
    assert_eq!([bench.cycle(), bench.cycle()], [Cycled::Ran, Cycled::Waiting]);
    bench.check(&expect![[r#"
        call pods/web/binding
        Scheduled web: Successfully assigned default/web to a
        call pods/api/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn an_urgent_pod_is_behind_one_window_of_twenty_thousand() {
    let mut bench = Bench::new();
    let node = json!({"metadata": {"name": "z"}, "status": {"allocatable": {"cpu": "99999", "pods": "99999"}}});
    let node: Node = serde_json::from_value(node).unwrap();
    bench.apply(Event::Set(Object::Node(Arc::new(node))));
    let spec = json!({"containers": [{"name": "c"}], "priority": -1});
    let mut pod: Pod =
        serde_json::from_value(json!({"metadata": {"namespace": "default"}, "spec": spec}))
            .unwrap();
    for n in 0..20_000 {
        pod.metadata.name = format!("low-{n}").into();
        pod.metadata.uid = pod.metadata.name.clone();
        bench.apply(Event::Set(Object::Pod(Box::new(pod.clone()))));
    }
    // The API server answers nothing yet.
    while bench.cycle() == Cycled::Ran {}
    let n_ahead = bench.calls.len();
    pod.metadata.name = "urgent".into();
    pod.metadata.uid = "urgent".into();
    pod.spec.priority = Some(1000);
    bench.apply(Event::Set(Object::Pod(Box::new(pod))));
    assert_eq!(bench.cycle(), Cycled::Waiting);
    bench.answer(Ok(()));
    assert_eq!(bench.cycle(), Cycled::Ran);
    let last = bench.calls.last().map(|call| call.request.name.to_string());
    assert_eq!((n_ahead, last.as_deref()), (Options::default().bind_window, Some("urgent")));
}

#[test]
fn pods_on_a_node_that_comes_later_are_on_it() {
    let mut bench = Bench::new();
    bench.set_pod("old", json!({}), json!({"nodeName": "z"}), json!({}));
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
    bench.node("z", "1");
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 1 on a"]);
    bench.apply(Event::Gone(Name::Node("z".into())));
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
    bench.apply(Event::Gone(Name::Pod("old".into())));
    bench.node("z", "1");
    bench.check(&expect!["0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
}

#[test]
fn patches_of_one_pod_follow_each_other() {
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
    bench.pass(3);
    bench.apply(Event::Activate(vec!["db".into()]));
    bench.cycle();
    bench.check(&expect![[r#"
        FailedScheduling db: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.
        call pods/db/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        FailedScheduling db: 0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
    bench.answer(Ok(()));
    bench.check(&expect![[r#"
        call pods/db/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:23Z","message":"0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}],"nominatedNodeName":null}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
}

#[test]
fn a_condition_that_was_refused_is_written_again() {
    let mut bench = Bench::new();
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    // It fails in the same way while its patch is under way: what follows says nothing about the condition.
    bench.apply(Event::Activate(vec!["db".into()]));
    bench.cycle();
    bench.answer(Err("the server is busy"));
    bench.answer(Ok(()));
    bench.apply(Event::Activate(vec!["db".into()]));
    bench.cycle();
    let body = bench.calls[0].request.body.as_ref().unwrap();
    assert_eq!(body["status"]["conditions"][0]["reason"], "Unschedulable");
}

#[test]
fn a_bound_pod_that_is_gone_before_the_news_of_its_node_leaves_nothing() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.answer(Ok(()));
    bench.apply(Event::Gone(Name::Pod("web".into())));
    assert_eq!((bench.engine.n_assumed(), bench.engine.world().n_assigned()), (0, 0));
}

#[test]
fn the_default_profile_makes_an_engine() {
    let registry = loadmaster_plugins::in_tree();
    let gates = Gates::default();
    let checked = check_default(&registry, &gates).unwrap();
    let gates = gates.framework();
    let profile = Profile::new(&checked.profiles[0], &registry, &gates).unwrap();
    let mut engine = Engine::new(vec![Arc::new(profile)], gates, Options::default());
    let now = Now { mono: Mono(0), wall: Timestamp(0) };
    assert_eq!(engine.cycle(now, &mut Effects::new()), Cycled::Idle);
}
