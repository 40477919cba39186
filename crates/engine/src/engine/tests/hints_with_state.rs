//! Hints read the plugin's state after the event.

use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::testkit::{PluginTestBench, pod};
use loadmaster_framework::{
    ActionType, Gvr, ObjectChange, ObjectEventHandler, PluginStateSlot, PreFilter, PreFilterResult,
    QueueingHint, WatchRequirement,
};

use super::*;
use crate::queue::SubQueue;

/// Pods take tokens (label `tokens`) of a budget, which is the sum over all objects of the kind `tokens`.
struct Tokens {
    budget: PluginStateSlot<u64>,
}

const TOKENS: PluginDef = PluginDef { name: "Tokens", build: build_tokens, args: None };

fn tokens() -> Gvr {
    Gvr::new("example.com", "v1", "tokens")
}

fn build_tokens(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let budget = points.plugin_state_slot(0u64);
    points.watch::<Value>(tokens(), WatchRequirement::Optional);
    let plugin = Arc::new(Tokens { budget });
    points.pre_filter = Some(plugin.clone());
    points.object_event_handler = Some(plugin);
    let hint = move |args: &QueueingHintArgs<'_>| {
        let is_enough = args.states.get(budget) >= Some(&wanted(args.pod));
        Ok(if is_enough { QueueingHint::Queue } else { QueueingHint::Skip })
    };
    let event = ClusterEvent::new(tokens().event_resource(), ActionType::ALL);
    points.register_event(event, Some(Arc::new(hint)));
    Ok(())
}

fn wanted(pod: &PodInfo) -> u64 {
    label_of(pod, "tokens").parse().unwrap_or(0)
}

impl ObjectEventHandler for Tokens {
    fn on_object_change(&self, cx: SerialCx<'_>, change: &ObjectChange) {
        let n = |object: &Option<Arc<loadmaster_framework::ObjectInfo>>| {
            let value = object.as_ref().and_then(|object| object.decoded_as::<Value>());
            value.map_or(0, |value| value["n"].as_u64().unwrap())
        };
        let budget = cx.states.get_mut(self.budget).unwrap();
        *budget = *budget + n(&change.new) - n(&change.old);
    }
}

impl PreFilter for Tokens {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        match cx.states.get(self.budget) {
            Some(budget) if *budget >= wanted(pod) => Ok(PreFilterResult::Skip),
            _ => Err(Rejection::unresolvable("too few tokens")),
        }
    }
}

#[test]
fn a_hint_sees_the_state_after_the_event() {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Tokens"}]}}});
    let mut bench = Bench::of(EngineOptions::default(), TOKENS, &profile, json!([]));
    for (name, tokens) in [("small", "2"), ("large", "3")] {
        bench.pod(name, json!({"tokens": tokens}));
        bench.cycle();
    }
    bench.advance(20);
    let mut check = |n: Option<u64>, want: [SubQueue; 2]| {
        let object = ObjectRef {
            group: tokens().group,
            resource: tokens().resource,
            namespace: Str::new("default"),
            name: Str::new("t"),
        };
        let value = n.map(|n| json!({"metadata": {"name": "t", "namespace": "default"}, "n": n}));
        bench.apply(EngineEvent::ObjectChanged { object, value });
        let sub_queue = |name: &str| bench.engine.queue().get(name).map(|(_, at)| at);
        assert_eq!(["small", "large"].map(sub_queue), want.map(Some), "{n:?} tokens");
    };
    check(Some(1), [SubQueue::Unschedulable; 2]);
    check(Some(2), [SubQueue::Active, SubQueue::Unschedulable]);
    check(None, [SubQueue::Active, SubQueue::Unschedulable]);
    check(Some(3), [SubQueue::Active; 2]);
}

#[test]
fn the_bench_gives_hints_the_state() {
    let mut bench = PluginTestBench::new(&TOKENS, json!({})).unwrap();
    let pod = pod("web").label("tokens", "2");
    for (n, want) in [(1, "Skip"), (2, "Queue")] {
        let object = json!({"metadata": {"name": "t", "namespace": "default"}, "n": n});
        bench.object(&tokens(), object).unwrap();
        let event = ClusterEvent::new(tokens().event_resource(), ActionType::UPDATE);
        assert_eq!(bench.queueing_hint(event, pod.clone().into(), None, None).unwrap(), want);
    }
}
