//! Events of pods and nodes, and the state that plugins keep with them.

use std::collections::BTreeMap;

use loadmaster_framework::testkit::{PluginTestBench, node, pod};
use loadmaster_framework::{
    ActionType, EventResource, NodeChange, NodeEventHandler, PluginStateSlot, PodChange,
    PodEventHandler, PreFilter, PreFilterResult, QueueingHint,
};

use super::*;
use crate::guard::silence_caught_panics;
use crate::queue::SubQueue;

/// At most two pods of a team (label `team`) have a node at the same time, plus one for each node with the label `bonus`.
struct Quota {
    state: PluginStateSlot<QuotaState>,
}

#[derive(Clone, Default)]
struct QuotaState {
    /// Team by uid of each pod that has a node, assumed ones included.
    used: BTreeMap<Box<str>, String>,
    /// Team by uid of each pending pod, assumed ones included.
    pending: BTreeMap<Box<str>, String>,
    n_bonus: usize,
    /// Every event, for the tests.
    log: Vec<String>,
}

impl QuotaState {
    fn is_used_up(&self, team: &str) -> bool {
        self.used.values().filter(|known| *known == team).count() >= 2 + self.n_bonus
    }
}

const QUOTA: PluginDef = PluginDef { name: "Quota", build: build_quota, args: None };

fn build_quota(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let state = points.plugin_state_slot(QuotaState::default());
    let plugin = Arc::new(Quota { state });
    points.pre_filter = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.pod_event_handler = Some(plugin.clone());
    points.node_event_handler = Some(plugin);
    for resource in [EventResource::AssignedPod, EventResource::Node] {
        let hint = move |args: &loadmaster_framework::cluster_event::QueueingHintArgs<'_>| {
            let state = args.states.get(state).unwrap();
            let is_used_up = state.is_used_up(label_of(args.pod, "team"));
            Ok(if is_used_up { QueueingHint::Skip } else { QueueingHint::Queue })
        };
        let event = ClusterEvent::new(resource, ActionType::ALL);
        points.register_event(event, Some(Arc::new(hint)));
    }
    Ok(())
}

impl PodEventHandler for Quota {
    fn on_pod_change(&self, cx: SerialCx<'_>, change: &PodChange) {
        let describe = |pod: &Option<Arc<PodInfo>>| match pod {
            None => "-".to_owned(),
            Some(pod) if pod.node_name.is_empty() => "pending".to_owned(),
            Some(pod) => pod.node_name.to_string(),
        };
        let pod = change.new.as_ref().or(change.old.as_ref()).unwrap();
        assert!(label_of(pod, "panic-on-event").is_empty(), "injected");
        let line = format!("{} {}>{}", pod.name, describe(&change.old), describe(&change.new));
        let is_in_world = cx.world.row_of_pod(&pod.uid).is_some();
        let state = cx.states.get_mut(self.state).unwrap();
        state.log.push(line + if is_in_world { " in world" } else { "" });
        state.used.remove(&pod.uid);
        state.pending.remove(&pod.uid);
        let Some(new) = &change.new else { return };
        let all = if new.node_name.is_empty() { &mut state.pending } else { &mut state.used };
        all.insert(new.uid.clone(), label_of(new, "team").to_owned());
        if cx.world.row_of_pod(&new.uid).is_some() {
            state.used.insert(new.uid.clone(), label_of(new, "team").to_owned());
        }
    }
}

impl NodeEventHandler for Quota {
    fn on_node_change(&self, cx: SerialCx<'_>, change: &NodeChange) {
        let is_bonus = |node: &Option<Arc<Node>>| {
            node.as_ref().is_some_and(|node| node.metadata.labels.get("bonus").is_some())
        };
        let name = change.new.as_ref().or(change.old.as_ref()).unwrap().name().to_owned();
        let is_there = cx.world.nodes().row(&name).is_some();
        assert_eq!(is_there, change.new.is_some(), "the world is updated first");
        let state = cx.states.get_mut(self.state).unwrap();
        state.n_bonus += usize::from(is_bonus(&change.new));
        state.n_bonus -= usize::from(is_bonus(&change.old));
        let verb = match (&change.old, &change.new) {
            (None, _) => "added",
            (_, None) => "deleted",
            _ => "updated",
        };
        state.log.push(format!("{name} {verb}"));
    }
}

impl PreFilter for Quota {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        assert!(label_of(pod, "panic-on-filter").is_empty(), "injected");
        match cx.states.get(self.state).unwrap().is_used_up(label_of(pod, "team")) {
            true => Err(Rejection::unschedulable("quota used up")),
            false => Ok(PreFilterResult::Skip),
        }
    }
}

impl Reserve for Quota {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        let state = cx.states.get_mut(self.state).unwrap();
        state.used.insert(pod.uid.clone(), label_of(pod, "team").to_owned());
        Ok(())
    }
    fn unreserve(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        cx.states.get_mut(self.state).unwrap().used.remove(&pod.uid);
    }
}

impl Bench {
    fn quota() -> Bench {
        let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Quota"}]}}});
        Bench::of(EngineOptions::default(), QUOTA, &profile, json!([]))
    }

    fn quota_state(&self) -> QuotaState {
        let states = self.engine.profiles[0].scheduler.plugin_states();
        plugin_state::<QuotaState>(states).unwrap().clone()
    }

    fn quota_log(&self) -> String {
        self.quota_state().log.join(", ")
    }

    fn labelled_node(&mut self, name: &str, labels: Value) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
        }))
        .unwrap();
        self.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))));
    }

    fn assigned_pod(&mut self, name: &str, labels: Value, node: &str) {
        self.set_pod(name, labels, json!({"nodeName": node}), json!({}));
    }
}

#[test]
fn handlers_see_each_change_after_the_world() {
    let mut bench = Bench::quota();
    bench.labelled_node("a", json!({}));
    bench.labelled_node("a", json!({}));
    bench.assigned_pod("theirs", json!({}), "a");
    bench.assigned_pod("orphan", json!({}), "nowhere");
    bench.pod("ours", json!({}));
    bench.cycle();
    bench.assigned_pod("ours", json!({}), "a");
    bench.set_pod("theirs", json!({}), json!({"nodeName": "a"}), json!({"phase": "Succeeded"}));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("ours".into())));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("orphan".into())));
    bench.set_pod("foreign", json!({}), json!({"schedulerName": "other"}), json!({}));
    bench.pod("gone", json!({}));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("gone".into())));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Node("a".into())));
    let want = expect![[r#"
        a added
        a updated
        theirs ->a in world
        orphan ->nowhere
        ours ->pending
        ours pending>a in world
        theirs a>-
        ours a>-
        orphan nowhere>-
        gone ->pending
        gone pending>-
        a deleted"#]];
    want.assert_eq(&bench.quota_state().log.join("\n"));
}

#[test]
fn a_quota_counts_the_pods_of_every_scheduler() {
    let mut bench = Bench::quota();
    bench.labelled_node("a", json!({}));
    bench.assigned_pod("old", json!({"team": "x"}), "a");
    for name in ["x1", "x2"] {
        bench.pod(name, json!({"team": "x"}));
        bench.cycle();
    }
    assert_eq!(bench.engine.n_assumed_pods(), 1, "the old pod and x1 use up the quota");
    bench.advance(20);
    let at = |bench: &Bench| bench.engine.queue().get("x2").map(|(_, at)| at);
    // The binding of x1 is no second use, and frees nothing.
    bench.assigned_pod("x1", json!({"team": "x"}), "a");
    assert_eq!(at(&bench), Some(SubQueue::Unschedulable));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("old".into())));
    assert_eq!(at(&bench), Some(SubQueue::Active), "the hint sees the state after the deletion");
    bench.cycle();
    bench.pod("x3", json!({"team": "x"}));
    bench.cycle();
    bench.advance(20);
    assert_eq!(bench.engine.world().n_assigned_pods(), 2);
    bench.labelled_node("b", json!({"bonus": "yes"}));
    bench.cycle();
    assert_eq!(bench.engine.world().n_assigned_pods(), 3, "a node event raised the quota");
}

#[test]
fn a_panic_resets_the_state_and_everything_is_reported_again() {
    silence_caught_panics();
    let mut bench = Bench::quota();
    bench.labelled_node("b", json!({"bonus": "yes"}));
    bench.assigned_pod("placed", json!({"team": "x"}), "b");
    bench.assigned_pod("orphan", json!({"team": "x"}), "nowhere");
    bench.pod("assumed", json!({"team": "x"}));
    bench.cycle();
    let before = bench.quota_state();
    bench.pod("bad", json!({"panic-on-filter": "yes"}));
    bench.cycle();
    assert_eq!(
        bench.quota_log(),
        "a added, b added, assumed ->pending in world, bad ->pending, \
         placed ->b in world, orphan ->nowhere"
    );
    let after = bench.quota_state();
    assert_eq!((&after.used, after.n_bonus), (&before.used, before.n_bonus));
}

#[test]
fn a_panic_in_a_handler_concerns_only_its_plugin() {
    silence_caught_panics();
    let mut bench = Bench::quota();
    bench.pod("web", json!({"panic-on-event": "yes"}));
    let panics =
        bench.lines.iter().filter(|line| line.starts_with("panic of Quota in ObjectEvents"));
    assert_eq!(panics.count(), 1, "{:?}", bench.lines);
    bench.cycle();
    assert_eq!(bench.engine.n_assumed_pods(), 1);
}

#[test]
fn the_bench_calls_the_handlers() {
    let mut bench = PluginTestBench::new(&QUOTA, json!({})).unwrap();
    let member = |name: &str| pod(name).label("team", "x");
    bench.node(node("a")).unwrap();
    bench.add_assigned_pod("a", member("one")).unwrap();
    bench.add_pending_pod(member("two")).unwrap();
    assert_eq!(bench.pre_filter(member("three")).unwrap(), "Skip");
    let two = bench.add_assigned_pod("a", member("two")).unwrap();
    assert_eq!(bench.pre_filter(member("three")).unwrap(), "Unschedulable quota used up");
    bench.node(node("bonus").label("bonus", "yes")).unwrap();
    assert_eq!(bench.pre_filter(member("three")).unwrap(), "Skip");
    bench.delete_node("bonus");
    assert_eq!(bench.pre_filter(member("three")).unwrap(), "Unschedulable quota used up");
    bench.delete_pod(&two.uid);
    assert_eq!(bench.pre_filter(member("three")).unwrap(), "Skip");
    let state = ExtensionPoints::default().plugin_state_slot(QuotaState::default());
    assert_eq!(bench.state(state).unwrap().used.len(), 1);
}
