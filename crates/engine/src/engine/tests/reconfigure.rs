//! Another configuration replaces the running one.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use loadmaster_framework::{
    Filter, PluginStateSlot, PodChange, PodEventHandler, PublishedValueSlot, QueueSort,
    QueuedPodInfo,
};

use super::*;

/// Counts reserved pods in its state, and pods that it has seen on a node; holds pods at Permit that have the label `permit`; can order pods
/// by name, the last first; accepts no node while a value is published.
struct Counting {
    reserved: PluginStateSlot<Vec<String>>,
    placed: PluginStateSlot<BTreeSet<String>>,
    closed: PublishedValueSlot<bool>,
}

const COUNTING: PluginDef = PluginDef { name: "Counting", build: build_counting, args: None };

fn build_counting(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Counting {
        reserved: points.plugin_state_slot(Vec::new()),
        placed: points.plugin_state_slot(BTreeSet::new()),
        closed: points.published_value_slot(),
    });
    points.filter = Some(plugin.clone());
    points.pod_event_handler = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin.clone());
    points.queue_sort = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl Reserve for Counting {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        cx.states.get_mut(self.reserved).unwrap().push(pod.name.to_string());
        cx.states.get_mut(self.placed).unwrap().insert(pod.name.to_string());
        Ok(())
    }
    fn unreserve(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        cx.states.get_mut(self.placed).unwrap().remove(&*pod.name);
        let reserved = cx.states.get_mut(self.reserved).unwrap();
        let before = reserved.len();
        reserved.retain(|name| **name != *pod.name);
        assert_eq!(reserved.len() + 1, before, "only what this state reserved");
    }
}

impl Permit for Counting {
    fn permit(
        &self,
        _: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        match label_of(pod, "permit") {
            "" => Ok(PermitResult::Allow),
            _ => Ok(PermitResult::Wait(Duration::from_secs(60))),
        }
    }
}

impl PodEventHandler for Counting {
    fn on_pod_change(&self, cx: SerialCx<'_>, change: &PodChange) {
        let placed = cx.states.get_mut(self.placed).unwrap();
        if let (None, Some(old)) = (&change.new, &change.old) {
            placed.remove(&*old.name);
        }
        if let (Some(new), None) = (&change.new, &change.old)
            && cx.world.row_of_pod(&new.uid).is_some()
        {
            placed.insert(new.name.to_string());
        }
    }
}

impl Filter for Counting {
    fn filter(&self, cx: Cx<'_>, _: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        match cx.published_value(self.closed) {
            Some(true) => Err(Rejection::unschedulable("closed")),
            _ => Ok(()),
        }
    }
}

impl QueueSort for Counting {
    fn compare(&self, _: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        b.pod.name.cmp(&a.pod.name)
    }
}

/// A profile with the plugin that counts, other arguments of it, and other plugins.
fn profile(name: &str, args: Value, plugins: Value) -> Value {
    let mut profile = json!({
        "schedulerName": name,
        "plugins": {"multiPoint": {"enabled": [{"name": "Counting"}]}, "queueSort": {
            "enabled": [{"name": "PrioritySort"}], "disabled": [{"name": "*"}],
        }},
        "pluginConfig": [{"name": "Counting", "args": args}],
    });
    for (key, value) in plugins.as_object().unwrap() {
        profile["plugins"][key] = value.clone();
    }
    profile
}

fn plain(name: &str) -> Value {
    profile(name, json!({}), json!({}))
}

fn profiles(profiles: Value, extenders: Value) -> Vec<Arc<Profile>> {
    let registry: Registry = loadmaster_plugins::in_tree_registry().with(COUNTING);
    let gates = AllFeatureGates::default();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": extenders,
        "profiles": profiles,
    });
    let checked = check_configuration_value(config, &registry, &gates).unwrap();
    let gates = gates.framework_gates();
    checked.profiles.iter().map(|it| Arc::new(Profile::new(it, &gates))).collect()
}

fn bench(first: Value, extenders: Value) -> Bench {
    let gates = AllFeatureGates::default().framework_gates();
    let mut bench = Bench::new();
    bench.engine = Engine::new(profiles(first, extenders), gates, EngineOptions::default());
    bench.node("a", "2");
    bench
}

impl Bench {
    fn reconfigure(&mut self, to: Value) {
        self.apply(EngineEvent::Reconfigured(Arc::new(EngineConfiguration {
            profiles: profiles(to, json!([])),
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            yaml: String::new(),
        })));
    }

    fn pod_of(&mut self, name: &str, scheduler: &str, labels: Value) {
        self.set_pod(name, labels, json!({"schedulerName": scheduler}), json!({}));
    }

    /// The pods that the state of the first profile has reserved.
    fn reserved(&self) -> Vec<String> {
        let states = self.engine.plugin_states(0).unwrap();
        plugin_state::<Vec<String>>(states).unwrap().clone()
    }

    /// The pods that the first profile's plugin has seen on a node.
    fn placed(&self) -> Vec<String> {
        let states = self.engine.plugin_states(0).unwrap();
        plugin_state::<BTreeSet<String>>(states).unwrap().iter().cloned().collect()
    }

    fn permit(&mut self, name: &str, decision: PermitDecision) {
        self.apply(EngineEvent::Permit { uid: name.into(), plugin: None, decision });
    }
}

#[test]
fn a_waiting_pod_finishes_under_its_profile_and_the_state_of_an_unchanged_plugin_stays() {
    let mut bench = bench(json!([plain("default-scheduler")]), json!([]));
    bench.pod("one", json!({"permit": "wait"}));
    bench.pod("two", json!({"permit": "wait"}));
    bench.cycle();
    bench.cycle();
    // A weight has changed, twice: the state moves twice.
    for weight in [5, 6] {
        let score = json!({"enabled": [{"name": "ImageLocality", "weight": weight}]});
        bench.reconfigure(json!([profile(
            "default-scheduler",
            json!({}),
            json!({"score": score})
        )]));
    }
    assert_eq!(bench.reserved(), ["one", "two"]);
    assert_eq!((bench.engine.configuration(), bench.engine.earliest_configuration()), (2, 0));
    bench.permit("one", PermitDecision::Allow);
    bench.check(&expect![[r#"
        call pods/one/status {"nominatedNodeName":"a"}
        call pods/two/status {"nominatedNodeName":"a"}
        call pods/one/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    bench.calls.retain(|call| &*call.request.subresource == "binding");
    bench.reply(Ok(()));
    // The rejected pod is unreserved in the state that has it now, and is tried again at once.
    bench.permit("two", PermitDecision::Reject("no".to_owned()));
    assert_eq!(bench.reserved(), ["one"]);
    bench.check(&expect![[r#"
        Scheduled one: Successfully assigned default/one to a
        FailedScheduling two: 0/1 nodes are available: 1 no.
        1 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.advance(2);
    assert_eq!(bench.engine.earliest_configuration(), 2, "nothing uses the old profiles");
    bench.cycle();
    assert_eq!(bench.reserved(), ["one", "two"]);
}

#[test]
fn the_state_of_a_changed_plugin_begins_anew() {
    let mut bench = bench(json!([plain("default-scheduler")]), json!([]));
    bench.pod("one", json!({"permit": "wait"}));
    bench.cycle();
    bench.reconfigure(json!([profile("default-scheduler", json!({"a": 1}), json!({}))]));
    assert!(bench.reserved().is_empty());
    // The old state still has the pod: the plugin checks that.
    bench.permit("one", PermitDecision::Reject("no".to_owned()));
    bench.cycle();
    assert_eq!(bench.reserved(), ["one"]);
}

#[test]
fn pods_of_removed_profiles_leave_and_pods_of_added_ones_enter() {
    let mut bench = bench(json!([plain("a"), plain("b")]), json!([]));
    bench.pod_of("waits", "b", json!({"permit": "wait"}));
    bench.pod_of("gone", "b", json!({"permit": "wait"}));
    bench.pod_of("mine", "a", json!({}));
    bench.pod_of("later", "c", json!({}));
    bench.cycle();
    bench.check(&expect![[r#"
        call pods/waits/status {"nominatedNodeName":"a"}
        2 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.reconfigure(json!([plain("a"), plain("c")]));
    let pending: Vec<&str> = bench.engine.pending_pods().iter().map(|pod| &*pod.name).collect();
    assert_eq!(pending, ["later", "mine", "waits"]);
    assert_eq!(bench.engine.profile_names().collect::<Vec<_>>(), ["a", "c"]);
    // A new version of the pod that is in flight is not lost.
    bench.pod_of("waits", "b", json!({"permit": "wait", "new": "yes"}));
    bench.permit("waits", PermitDecision::Reject("no".to_owned()));
    assert!(bench.engine.pending_pod("waits").is_none());
    while bench.cycle() == CycleResult::Ran {}
    bench.check(&expect![[r#"
        FailedScheduling waits: 0/1 nodes are available: 1 no.
        call pods/mine/binding
        call pods/later/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    // Both come back in the order in which they came; only one of them was deleted meanwhile.
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("gone".into())));
    bench.reconfigure(json!([plain("a"), plain("b")]));
    assert!(bench.engine.pending_pod("waits").is_some());
    assert!(bench.engine.pending_pod("gone").is_none());
}

#[test]
fn another_queue_sort_orders_the_queue_again() {
    let mut bench = bench(json!([plain("default-scheduler")]), json!([]));
    bench.node("a", "9");
    for name in ["a", "c", "b"] {
        bench.pod(name, json!({}));
    }
    bench.cycle();
    let by_name = json!({"enabled": [{"name": "Counting"}], "disabled": [{"name": "*"}]});
    bench.reconfigure(json!([profile(
        "default-scheduler",
        json!({}),
        json!({"queueSort": by_name})
    )]));
    bench.pod("d", json!({}));
    while bench.cycle() == CycleResult::Ran {}
    bench.check(&expect![[r#"
        call pods/a/binding
        call pods/d/binding
        call pods/c/binding
        call pods/b/binding
        0 active, 0 backing off, 0 unschedulable, 4 assumed, 4 on a"#]]);
}

#[test]
fn rejected_and_gated_pods_are_tried_again_and_failed_binds_after_their_backoff() {
    let filter = json!({"filter": {"disabled": [{"name": "NodeAffinity"}]}});
    let gates = json!({"preEnqueue": {"disabled": [{"name": "SchedulingGates"}]}});
    let mut bench = bench(json!([plain("default-scheduler")]), json!([]));
    bench.set_pod("picky", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.set_pod("gated", json!({}), json!({"schedulingGates": [{"name": "g"}]}), json!({}));
    bench.pod("failed", json!({}));
    while bench.cycle() == CycleResult::Ran {}
    let bind = bench.calls.len() - 1;
    bench.calls.swap(0, bind);
    bench.reply(Err("busy"));
    bench.lines.clear();
    bench.check(&expect!["0 active, 1 backing off, 1 unschedulable, 0 assumed, 0 on a"]);
    let mut both = filter;
    both["preEnqueue"] = gates["preEnqueue"].clone();
    bench.reconfigure(json!([profile("default-scheduler", json!({}), both)]));
    while bench.cycle() == CycleResult::Ran {}
    bench.check(&expect![[r#"
        call pods/picky/binding
        call pods/gated/binding
        0 active, 1 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn an_attempt_that_waits_for_an_extender_ends_under_its_profile() {
    let extender = json!([{"urlPrefix": "http://e", "filterVerb": "f", "nodeCacheCapable": true}]);
    let mut bench = bench(json!([plain("default-scheduler")]), extender);
    bench.pod("web", json!({}));
    bench.cycle();
    bench.reconfigure(json!([plain("default-scheduler")]));
    assert_eq!(bench.engine.configuration(), 0);
    assert_eq!(bench.extender_calls[0].configuration, 0);
    bench.extender_replies(0, json!({"nodenames": ["a"]}));
    assert_eq!(bench.engine.configuration(), 1);
    bench.pod("next", json!({}));
    bench.cycle();
    bench.check(&expect![[r#"
        0 filter web: a
        call pods/web/binding
        call pods/next/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn the_state_of_a_profile_that_comes_back_stays_while_pods_finish_under_it() {
    let mut bench = bench(json!([plain("a"), plain("b")]), json!([]));
    bench.pod_of("one", "b", json!({"permit": "wait"}));
    bench.cycle();
    bench.reconfigure(json!([plain("a")]));
    bench.reconfigure(json!([plain("b")]));
    assert_eq!(bench.reserved(), ["one"]);
    bench.permit("one", PermitDecision::Reject("no".to_owned()));
    assert!(bench.reserved().is_empty());
    bench.cycle();
    assert_eq!(bench.reserved(), ["one"]);
}

#[test]
fn a_new_state_learns_that_a_pod_is_not_reserved_any_more() {
    let mut bench = bench(json!([plain("default-scheduler")]), json!([]));
    bench.pod("one", json!({"permit": "wait"}));
    bench.cycle();
    bench.reconfigure(json!([profile("default-scheduler", json!({"a": 1}), json!({}))]));
    assert_eq!(bench.placed(), ["one"]);
    bench.permit("one", PermitDecision::Reject("no".to_owned()));
    assert!(bench.placed().is_empty());
}

#[test]
fn published_values_stay_and_expire() {
    let mut bench = bench(json!([plain("default-scheduler")]), json!([]));
    let (plugin, value, ttl) = ("Counting".into(), json!(true), Duration::from_secs(60));
    bench.apply(EngineEvent::Published { plugin, value, ttl });
    bench.pod("one", json!({}));
    for args in [json!({"a": 1}), json!({"a": 1}), json!({"a": 2})] {
        bench.reconfigure(json!([profile("default-scheduler", args, json!({}))]));
        bench.cycle();
        assert_eq!(bench.engine.n_assumed_pods(), 0);
    }
    bench.advance(60);
    bench.reconfigure(json!([plain("default-scheduler")]));
    bench.cycle();
    assert_eq!(bench.engine.n_assumed_pods(), 1);
}

#[test]
fn a_condition_that_was_not_written_while_a_profile_was_removed_is_written_again() {
    let mut bench = bench(json!([plain("a"), plain("b")]), json!([]));
    let picky = json!({"schedulerName": "b", "nodeSelector": {"disk": "ssd"}});
    bench.set_pod("picky", json!({}), picky, json!({}));
    bench.cycle();
    assert_eq!(bench.calls.len(), 1);
    bench.reconfigure(json!([plain("a")]));
    bench.reply(Err("busy"));
    bench.reconfigure(json!([plain("b")]));
    bench.cycle();
    assert_eq!(bench.calls.len(), 1);
}

#[test]
fn a_pod_that_was_bound_under_a_profile_that_is_gone_and_is_deleted_stays_without_one() {
    let mut bench = bench(json!([plain("a"), plain("b")]), json!([]));
    bench.pod_of("one", "b", json!({}));
    bench.cycle();
    bench.reconfigure(json!([plain("a")]));
    let mut object = json!({
        "metadata": {"name": "one", "namespace": "default", "uid": "one", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"schedulerName": "b", "containers": [{"name": "c"}]},
    });
    let mut update = |bench: &mut Bench, label: &str| {
        object["metadata"]["labels"] = json!({"nth": label});
        let pod: Pod = serde_json::from_value(object.clone()).unwrap();
        bench.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))));
    };
    update(&mut bench, "first");
    bench.reply(Ok(()));
    update(&mut bench, "second");
    assert!(bench.engine.pending_pods().is_empty());
    bench.reconfigure(json!([plain("b")]));
    assert_eq!(bench.engine.queue().counts().active, 1, "it is dropped when it is popped");
}

#[test]
fn a_value_for_a_plugin_that_was_removed_is_dropped_although_a_pod_finishes_under_it() {
    let mut bench = bench(json!([plain("default-scheduler")]), json!([]));
    bench.pod("waits", json!({"permit": "wait"}));
    bench.cycle();
    bench.reconfigure(json!([{"schedulerName": "default-scheduler"}]));
    bench.lines.clear();
    let (plugin, value, ttl) = ("Counting".into(), json!(true), Duration::from_secs(60));
    bench.apply(EngineEvent::Published { plugin, value, ttl });
    bench.reconfigure(json!([plain("default-scheduler")]));
    bench.pod("one", json!({}));
    bench.cycle();
    bench.check(&expect![[r#"
        no plugin "Counting" accepts published values
        call pods/one/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}
