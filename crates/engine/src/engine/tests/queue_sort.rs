//! QueueSort with a state: the queue is sorted again when the plugin says that its order has changed.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use loadmaster_framework::testkit::{PluginTestBench, pod};
use loadmaster_framework::{
    Gvr, ObjectChange, ObjectEventHandler, PluginStateSlot, PreFilter, PreFilterResult, QueueSort,
    QueuedPodInfo, WatchRequirement,
};

use super::*;

/// Orders pods by the rank of their group (label `group`), then by the first attempt. Objects of the kind `ranks` set the rank of a
/// group; a pod with the label `fails` sends its group behind all others.
struct GroupOrder {
    ranks: PluginStateSlot<BTreeMap<String, i64>>,
}

const GROUP_ORDER: PluginDef =
    PluginDef { name: "GroupOrder", build: build_group_order, args: None };

fn ranks() -> Gvr {
    Gvr::new("example.com", "v1", "ranks")
}

fn build_group_order(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.watch::<Value>(ranks(), WatchRequirement::Optional);
    let plugin = Arc::new(GroupOrder { ranks: points.plugin_state_slot(BTreeMap::new()) });
    points.queue_sort = Some(plugin.clone());
    points.pre_filter = Some(plugin.clone());
    points.object_event_handler = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl QueueSort for GroupOrder {
    fn compare(&self, cx: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let key = |queued: &QueuedPodInfo| {
            let rank = cx.states.get(self.ranks)?.get(label_of(&queued.pod, "group"));
            Some((rank.copied().unwrap_or(0), queued.initial_attempt))
        };
        key(a).cmp(&key(b))
    }
}

impl ObjectEventHandler for GroupOrder {
    fn on_object_change(&self, mut cx: SerialCx<'_>, change: &ObjectChange) {
        let Some(object) = &change.new else { return };
        let rank = object.decoded_as::<Value>().and_then(|value| value["rank"].as_i64()).unwrap();
        cx.states.get_mut(self.ranks).unwrap().insert(object.name.to_string(), rank);
        cx.sort_queue();
    }
}

impl PreFilter for GroupOrder {
    fn pre_filter(
        &self,
        mut cx: SerialCx<'_>,
        pod: &PodInfo,
    ) -> Result<PreFilterResult, Rejection> {
        if label_of(pod, "fails").is_empty() {
            return Ok(PreFilterResult::Skip);
        }
        let group = label_of(pod, "group").to_owned();
        cx.states.get_mut(self.ranks).unwrap().insert(group, i64::MAX);
        cx.sort_queue();
        Err(Rejection::unresolvable("the group has to wait"))
    }
}

fn group_bench() -> Bench {
    let profile = json!({"plugins": {
        "multiPoint": {"enabled": [{"name": "GroupOrder"}]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "GroupOrder"}]},
    }});
    let mut bench = Bench::of(EngineOptions::default(), GROUP_ORDER, &profile, json!([]));
    bench.node("a", "100");
    bench
}

fn set_rank(bench: &mut Bench, group: &str, rank: i64) {
    let object = ObjectRef {
        group: ranks().group,
        resource: ranks().resource,
        namespace: Str::default(),
        name: Str::new(group),
    };
    let value = Some(json!({"metadata": {"name": group}, "rank": rank}));
    bench.apply(EngineEvent::ObjectChanged { object, value });
}

/// Runs all attempts; returns the pods in the order in which they were bound.
fn bound(bench: &mut Bench) -> Vec<String> {
    bench.lines.clear();
    while bench.cycle() == CycleResult::Ran {}
    let lines = std::mem::take(&mut bench.lines).into_iter();
    let bindings = lines.filter_map(|line| Some(line.strip_prefix("call pods/")?.to_owned()));
    bindings.filter_map(|line| Some(line.strip_suffix("/binding")?.to_owned())).collect()
}

#[test]
fn an_event_that_changes_the_order_sorts_the_queue() {
    let mut bench = group_bench();
    for nth in 0..9 {
        let group = ["a", "b", "c"][nth % 3];
        bench.pod(&format!("{group}{nth}"), json!({"group": group}));
    }
    set_rank(&mut bench, "c", -1);
    set_rank(&mut bench, "a", 1);
    bench.pod("c9", json!({"group": "c"}));
    assert_eq!(bound(&mut bench), ["c2", "c5", "c8", "c9", "b1", "b4", "b7", "a0", "a3", "a6"]);
}

#[test]
fn a_failed_attempt_sends_its_group_back() {
    let mut bench = group_bench();
    bench.pod("a0", json!({"group": "a", "fails": "yes"}));
    for (name, group) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a"), ("b2", "b")] {
        bench.pod(name, json!({"group": group}));
    }
    assert_eq!(bound(&mut bench), ["b1", "b2", "a1", "a2", "a3"]);
}

#[test]
fn the_first_attempt_orders_pods_that_were_requeued() {
    let mut bench = group_bench();
    bench.set_pod("early", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    for name in ["late", "later"] {
        bench.advance(20);
        bench.pod(name, json!({}));
    }
    bench.apply(EngineEvent::Activate(vec!["early".into()]));
    let first = |name: &str| {
        let (queued, _) = bench.engine.queue().get(name).unwrap();
        (queued.info.initial_attempt.unwrap().mono, queued.info.queued)
    };
    assert!(first("early").0 < first("late").0 && first("late").0 < first("later").0);
    let handle =
        PluginHandle::new(&bench.engine.profiles, &bench.engine.registrations, &bench.engine.world);
    assert_eq!(bench.engine.queue.pop(&handle).unwrap().info.pod.uid, "early".into());
}

#[test]
fn the_bench_sorts_pods() {
    let mut bench = PluginTestBench::new(&GROUP_ORDER, json!({})).unwrap();
    bench.object(&ranks(), json!({"metadata": {"name": "b"}, "rank": -1})).unwrap();
    let pods = [("a1", "a"), ("b1", "b"), ("none", ""), ("b2", "b")];
    let pods = pods.map(|(name, group)| pod(name).label("group", group));
    assert_eq!(bench.queue_order(pods).unwrap(), ["b1", "b2", "a1", "none"]);
}

/// Says of any two different pods that the first one is less.
struct NoOrder;

impl QueueSort for NoOrder {
    fn compare(&self, _: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        if a.pod.name == b.pod.name { Ordering::Equal } else { Ordering::Less }
    }
}

#[test]
fn the_bench_finds_an_order_that_is_none() {
    let def = PluginDef {
        name: "NoOrder",
        build: |points, _| {
            points.queue_sort = Some(Arc::new(NoOrder));
            Ok(())
        },
        args: None,
    };
    let mut bench = PluginTestBench::new(&def, json!({})).unwrap();
    let error = bench.queue_order([pod("a"), pod("b")]).unwrap_err();
    assert_eq!(error.0, "comparing a with b and the other way round gives no order");
}
