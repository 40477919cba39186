//! Plugins that follow the pods' labels, and a queue with a virtual clock.
//!
//! Two profiles with the same six plugins:
//!
//! | plugin | rejects in | registered events |
//! | --- | --- | --- |
//! | 0 | Filter | Node/Add, and any node update without a hint |
//! | 1 | Filter | Pod/Delete, Pod/Update |
//! | 2 | Filter | all: it registered no list |
//! | 3 | Filter | none |
//! | 4 | PreEnqueue | Pod/UpdatePodLabel |
//! | 5 | PreEnqueue | the wildcard, without a hint |
//!
//! A hint returns Queue if the object's label `wakes` equals the pod's label `likes`, and fails if it is `broken`. PreEnqueue of plugins 4
//! and 5 gates pods with the label `gated-by: "4"` or `gated-by: "5"` until the plugin is in `ungated`.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{Labels, Node, Pod, Timestamp};
use loadmaster_framework::cluster_event::{ClusterEventWithHint, QueueingHintArgs};
use loadmaster_framework::testkit::PluginTestBench;
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, CycleState, EventObject, EventResource, Failure, FeatureGates,
    PluginStates, PodInfo, QueueSort, QueuedPodInfo, QueueingHint, Rejection, World,
};
use serde_json::{Value, json};

use super::*;

pub const TEST_PROFILES: [ProfileIdx; 2] = [ProfileIdx(0), ProfileIdx(1)];

pub struct FakePlugins {
    world: World,
    states: PluginStates,
    events: Vec<Option<Vec<ClusterEventWithHint>>>,
    sort: Arc<dyn QueueSort>,
    /// QueueSort orders pods the other way round.
    pub is_sort_reversed: bool,
    pub ungated: BTreeSet<u32>,
    /// Every call of PreEnqueue: the pod, and the plugin that had to run first.
    pub pre_enqueue_calls: RefCell<Vec<(String, Option<u32>)>>,
}

fn hint(question: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let labels = |object: EventObject<'_>| -> Labels {
        match object {
            EventObject::Pod(pod) => pod.template.labels.clone(),
            EventObject::Node(node) => node.metadata.labels.clone(),
            EventObject::Namespace(namespace) => namespace.metadata.labels.clone(),
            EventObject::Other(_) => Default::default(),
        }
    };
    let object = question.new.or(question.old).map(labels).unwrap_or_default();
    match object.get("wakes") {
        Some(wakes) if *wakes == "broken" => Err(Failure::new("broken")),
        Some(wakes) if question.pod.template.labels.get("likes") == Some(wakes) => {
            Ok(QueueingHint::Queue)
        }
        _ => Ok(QueueingHint::Skip),
    }
}

impl Default for FakePlugins {
    fn default() -> Self {
        let on = |resource, action, asks: bool| ClusterEventWithHint {
            event: ClusterEvent::new(resource, action),
            hint: asks.then(|| Arc::new(hint) as loadmaster_framework::QueueingHintFn),
            ignores_priority: false,
        };
        let of_every_priority = |known| ClusterEventWithHint { ignores_priority: true, ..known };
        FakePlugins {
            world: World::new(FeatureGates::default()),
            states: PluginStates::default(),
            events: vec![
                Some(vec![
                    on(EventResource::Node, ActionType::ADD, true),
                    on(EventResource::Node, ActionType::UPDATE, false),
                ]),
                Some(vec![on(EventResource::Pod, ActionType::DELETE | ActionType::UPDATE, true)]),
                None,
                Some(vec![]),
                Some(vec![
                    on(EventResource::Pod, ActionType::UPDATE_POD_LABEL, true),
                    of_every_priority(on(EventResource::Pod, ActionType::DELETE, true)),
                ]),
                Some(vec![on(EventResource::WildCard, ActionType::ALL, false)]),
            ],
            sort: priority_sort(),
            is_sort_reversed: false,
            ungated: BTreeSet::new(),
            pre_enqueue_calls: RefCell::default(),
        }
    }
}

impl FakePlugins {
    /// A pod from its labels and the rest of its spec.
    pub fn pod(&mut self, name: &str, labels: Value, spec: Value) -> Arc<PodInfo> {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels},
            "spec": spec,
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        Arc::new(self.world.parse_pod(&pod).unwrap())
    }
}

impl QueuePlugins for FakePlugins {
    fn pre_enqueue(
        &self,
        _profile_idx: ProfileIdx,
        pod: &PodInfo,
        first: Option<PluginIdx>,
    ) -> Result<(), PreEnqueueRejection> {
        self.pre_enqueue_calls
            .borrow_mut()
            .push((pod.name.to_string(), first.map(|plugin| plugin.0)));
        let gates = |plugin: &u32| {
            let gated_by = pod.template.labels.get("gated-by");
            gated_by.is_some_and(|gated_by| gated_by.contains(&plugin.to_string()))
                && !self.ungated.contains(plugin)
        };
        let order = if first == Some(PluginIdx(5)) { [5, 4] } else { [4, 5] };
        match order.into_iter().find(gates) {
            Some(plugin) => Err(PreEnqueueRejection {
                plugin: PluginIdx(plugin),
                rejection: Rejection::unschedulable("gated"),
            }),
            None => Ok(()),
        }
    }

    fn events(
        &self,
        _profile_idx: ProfileIdx,
        plugin: PluginIdx,
    ) -> Option<&[ClusterEventWithHint]> {
        self.events[plugin.0 as usize].as_deref()
    }

    fn is_event_of_interest(&self, event: &ClusterEvent) -> bool {
        // Even plugins that registered all events ignore this one, so that there is an event without any plugin.
        *event != unregistered_event()
    }

    fn compare(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let cycle = CycleState::default();
        let cx = Cx { world: &self.world, cycle: &cycle, states: &self.states };
        let order = self.sort.compare(cx, a, b);
        if self.is_sort_reversed { order.reverse() } else { order }
    }

    fn sort_key(&self, pod: &QueuedPodInfo) -> Option<[i64; 2]> {
        let key = self.sort.sort_key(pod)?;
        Some(if self.is_sort_reversed { key.map(|number| -number) } else { key })
    }

    fn world(&self) -> &World {
        &self.world
    }

    fn states(&self, _profile_idx: ProfileIdx) -> &PluginStates {
        &self.states
    }
}

/// An event that no plugin registered.
pub fn unregistered_event() -> ClusterEvent {
    ClusterEvent::new(EventResource::CsiNode, ActionType::ADD)
}

/// A node with the label `wakes`.
pub fn node(wakes: &str) -> OwnedEventObject {
    let node = json!({"metadata": {"name": "node", "labels": {"wakes": wakes}}});
    OwnedEventObject::Node(Arc::new(serde_json::from_value::<Node>(node).unwrap()))
}

/// A node was added with the label `wakes`.
pub fn node_added(wakes: &str) -> ClusterEventOccurrence {
    let event = ClusterEvent::new(EventResource::Node, ActionType::ADD);
    ClusterEventOccurrence::new(event, None, Some(node(wakes)))
}

/// Upstream's default: by priority, then by time.
fn priority_sort() -> Arc<dyn QueueSort> {
    let bench = PluginTestBench::new(&loadmaster_plugins::priority_sort::DEF, json!({})).unwrap();
    bench.extension_points().queue_sort.clone().unwrap()
}

/// A time at which both clocks show the same.
pub fn now_at_millis(millis: u64) -> Now {
    let nanos = Duration::from_millis(millis).as_nanos();
    Now { mono: MonoTime(nanos as u64), wall: Timestamp(nanos as i64) }
}

pub fn plugin_idx_set(plugins: &[u32]) -> PluginIdxSet {
    plugins.iter().copied().map(PluginIdx).collect()
}

/// A queue with its plugins and its clock, driven by names.
pub struct QueueTestBench {
    pub queue: Queue,
    pub plugins: FakePlugins,
    pub now: Now,
}

impl QueueTestBench {
    /// An empty queue at second 0.
    pub fn new(options: QueueOptions) -> QueueTestBench {
        let queue = Queue::new(options);
        QueueTestBench { queue, plugins: FakePlugins::default(), now: now_at_millis(0) }
    }

    /// Sets the clock and flushes the queue.
    pub fn wait_until(&mut self, millis: u64) {
        self.now = now_at_millis(millis);
        self.queue.flush(self.now, &self.plugins);
    }

    pub fn add(&mut self, name: &str, labels: Value, spec: Value) {
        let pod = self.plugins.pod(name, labels, spec);
        self.queue.add(self.now, &self.plugins, TEST_PROFILES[0], pod);
    }

    pub fn update(&mut self, name: &str, labels: Value) {
        let pod = self.plugins.pod(name, labels, json!({}));
        self.queue.update(self.now, &self.plugins, TEST_PROFILES[0], pod);
    }

    pub fn pop(&mut self) -> Option<QueuedPod> {
        self.queue.pop(&self.plugins)
    }

    /// Pops all ready pods. Returns their names in order.
    pub fn pop_all(&mut self) -> String {
        let names = std::iter::from_fn(|| self.queue.pop(&self.plugins)).take(100);
        names.map(|pod| pod.info.pod.name.to_string()).collect::<Vec<_>>().join(" ")
    }

    /// Requeues a popped pod that these plugins rejected, the second list with Pending.
    pub fn requeue(&mut self, mut pod: QueuedPod, unschedulable: &[u32], pending: &[u32]) {
        pod.set_rejecters(plugin_idx_set(unschedulable), plugin_idx_set(pending));
        self.queue.requeue(self.now, &self.plugins, pod);
    }

    /// Adds a pod, pops it and requeues it as rejected. No other pod must be ready.
    pub fn add_rejected(&mut self, name: &str, labels: Value, by: &[u32], pending: &[u32]) {
        self.add(name, labels, json!({}));
        let pod = self.pop().unwrap();
        assert_eq!(&*pod.info.pod.name, name);
        self.requeue(pod, by, pending);
    }

    pub fn on_cluster_event(&mut self, occurrence: ClusterEventOccurrence) {
        self.queue.on_cluster_event(self.now, &self.plugins, occurrence);
    }

    pub fn activate(&mut self, uids: &[&str]) {
        self.queue.activate(self.now, &self.plugins, uids);
    }

    /// The sub-queue of a pod, `InFlight` or `-`.
    pub fn sub_queue(&self, uid: &str) -> String {
        match self.queue.get(uid) {
            Some((_, sub_queue)) => format!("{sub_queue:?}"),
            None if self.queue.is_in_flight(uid) => "InFlight".into(),
            None => "-".into(),
        }
    }

    /// Incoming pods since the last call, sorted: `active NodeAdd 2`.
    pub fn incoming(&mut self) -> Vec<String> {
        let taken = self.queue.take_incoming_counts().into_iter();
        let mut lines: Vec<String> =
            taken.map(|line| format!("{} {} {}", line.queue.name(), line.cause, line.n)).collect();
        lines.sort();
        lines
    }
}
