//! Plugins that do as labels say, pods in one line, and a queue with its clock.
//!
//! Two profiles with the same six plugins:
//!
//! | | rejects at | wakes on |
//! | --- | --- | --- |
//! | 0 | Filter | Node/Add, and any node update without a hint |
//! | 1 | Filter | Pod/Delete, Pod/Update |
//! | 2 | Filter | everything: it named no events |
//! | 3 | Filter | nothing |
//! | 4 | PreEnqueue | Pod/UpdatePodLabel |
//! | 5 | PreEnqueue | everything: it named the wildcard, without a hint |
//!
//! A hint says yes if the object's label `wakes` equals the pod's label `likes`, and fails if it is `broken`. PreEnqueue of plugins 4
//! and 5 holds pods with the label `held: "4"` or `held: "5"` until the plugin is opened.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{Labels, Node, Pod, Timestamp};
use loadmaster_framework::event::{EventWithHint, HintQuestion};
use loadmaster_framework::testkit::Bench;
use loadmaster_framework::{
    Action, ClusterEvent, EventObject, EventResource, Failure, FeatureGates, Hint, PodInfo,
    QueueSort, Rejection, World,
};
use serde_json::{Value, json};

use super::*;

pub const SEATS: [SeatIdx; 2] = [SeatIdx(0), SeatIdx(1)];

pub struct FakePlugins {
    world: World,
    events: Vec<Option<Vec<EventWithHint>>>,
    pub opened: BTreeSet<u32>,
    /// Every question to PreEnqueue: the pod and who was to be asked first.
    pub asked: RefCell<Vec<(String, Option<u32>)>>,
}

fn hint(question: &HintQuestion<'_>) -> Result<Hint, Failure> {
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
        Some(wakes) if question.pod.template.labels.get("likes") == Some(wakes) => Ok(Hint::Queue),
        _ => Ok(Hint::Skip),
    }
}

impl Default for FakePlugins {
    fn default() -> Self {
        let on = |resource, action, asks: bool| EventWithHint {
            event: ClusterEvent::new(resource, action),
            hint: asks.then(|| Arc::new(hint) as loadmaster_framework::HintFn),
        };
        FakePlugins {
            world: World::new(FeatureGates::default()),
            events: vec![
                Some(vec![
                    on(EventResource::Node, Action::ADD, true),
                    on(EventResource::Node, Action::UPDATE, false),
                ]),
                Some(vec![on(EventResource::Pod, Action::DELETE | Action::UPDATE, true)]),
                None,
                Some(vec![]),
                Some(vec![on(EventResource::Pod, Action::UPDATE_POD_LABEL, true)]),
                Some(vec![on(EventResource::WildCard, Action::ALL, false)]),
            ],
            opened: BTreeSet::new(),
            asked: RefCell::default(),
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
        Arc::new(self.world.parse(&pod).unwrap())
    }
}

impl Plugins for FakePlugins {
    fn pre_enqueue(
        &self,
        _seat: SeatIdx,
        pod: &PodInfo,
        first: Option<PluginIdx>,
    ) -> Result<(), Held> {
        self.asked.borrow_mut().push((pod.name.to_string(), first.map(|plugin| plugin.0)));
        let holds = |plugin: &u32| {
            let held = pod.template.labels.get("held");
            held.is_some_and(|held| held.contains(&plugin.to_string()))
                && !self.opened.contains(plugin)
        };
        let order = if first == Some(PluginIdx(5)) { [5, 4] } else { [4, 5] };
        match order.into_iter().find(holds) {
            Some(plugin) => {
                Err(Held { plugin: PluginIdx(plugin), rejection: Rejection::unschedulable("held") })
            }
            None => Ok(()),
        }
    }

    fn events(&self, _seat: SeatIdx, plugin: PluginIdx) -> Option<&[EventWithHint]> {
        self.events[plugin.0 as usize].as_deref()
    }

    fn is_of_interest(&self, event: &ClusterEvent) -> bool {
        // Plugins that listen to everything do not listen to this one, so that there is an event that nobody wants.
        *event != boring()
    }

    fn world(&self) -> &World {
        &self.world
    }
}

/// An event that nobody wants.
pub fn boring() -> ClusterEvent {
    ClusterEvent::new(EventResource::CsiNode, Action::ADD)
}

/// A node with this label `wakes`.
pub fn node(wakes: &str) -> Object {
    let node = json!({"metadata": {"name": "node", "labels": {"wakes": wakes}}});
    Object::Node(Arc::new(serde_json::from_value::<Node>(node).unwrap()))
}

/// A node came whose label `wakes` is this.
pub fn node_added(wakes: &str) -> Happened {
    let event = ClusterEvent::new(EventResource::Node, Action::ADD);
    Happened::new(event, None, Some(node(wakes)))
}

/// Upstream's default, priority and then time.
pub fn priority_sort() -> Arc<dyn QueueSort> {
    let bench = Bench::new(&loadmaster_plugins::priority_sort::DEF, json!({})).unwrap();
    bench.points().queue_sort.clone().unwrap()
}

/// The wall clock shows the same as the other.
pub fn at(millis: u64) -> Now {
    let nanos = Duration::from_millis(millis).as_nanos();
    Now { mono: Mono(nanos as u64), wall: Timestamp(nanos as i64) }
}

pub fn set(plugins: &[u32]) -> PluginSet {
    plugins.iter().copied().map(PluginIdx).collect()
}

/// A queue with its plugins and its clock, driven by names.
pub struct Kit {
    pub queue: Queue,
    pub plugins: FakePlugins,
    pub now: Now,
}

impl Kit {
    /// An empty queue at second 0.
    pub fn new(options: Options) -> Kit {
        let queue = Queue::new(options, priority_sort());
        Kit { queue, plugins: FakePlugins::default(), now: at(0) }
    }

    /// It is so late now; what is due happens.
    pub fn wait_until(&mut self, millis: u64) {
        self.now = at(millis);
        self.queue.flush(self.now, &self.plugins);
    }

    pub fn add(&mut self, name: &str, labels: Value, spec: Value) {
        let pod = self.plugins.pod(name, labels, spec);
        self.queue.add(self.now, &self.plugins, SEATS[0], pod);
    }

    pub fn update(&mut self, name: &str, labels: Value) {
        let pod = self.plugins.pod(name, labels, json!({}));
        self.queue.update(self.now, &self.plugins, SEATS[0], pod);
    }

    pub fn pop(&mut self) -> Option<QueuedPod> {
        self.queue.pop()
    }

    /// Names of all pods that are ready, in order; they are in flight then.
    pub fn pop_all(&mut self) -> String {
        let names = std::iter::from_fn(|| self.queue.pop()).take(100);
        names.map(|pod| pod.info.pod.name.to_string()).collect::<Vec<_>>().join(" ")
    }

    /// An attempt at the pod ended: these plugins rejected it, the second list as Pending.
    pub fn requeue(&mut self, mut pod: QueuedPod, unschedulable: &[u32], pending: &[u32]) {
        pod.set_rejecters(set(unschedulable), set(pending));
        self.queue.requeue(self.now, &self.plugins, pod);
    }

    /// Adds a pod, and the first attempt at it ends so. Nobody else must be ready.
    pub fn add_rejected(&mut self, name: &str, labels: Value, by: &[u32], pending: &[u32]) {
        self.add(name, labels, json!({}));
        let pod = self.pop().unwrap();
        assert_eq!(&*pod.info.pod.name, name);
        self.requeue(pod, by, pending);
    }

    pub fn happened(&mut self, happened: Happened) {
        self.queue.happened(self.now, &self.plugins, happened);
    }

    pub fn activate(&mut self, uids: &[&str]) {
        self.queue.activate(self.now, &self.plugins, uids);
    }

    /// Where a pod is: a place, `InFlight` or `-`.
    pub fn place(&self, uid: &str) -> String {
        match self.queue.get(uid) {
            Some((_, place)) => format!("{place:?}"),
            None if self.queue.is_in_flight(uid) => "InFlight".into(),
            None => "-".into(),
        }
    }

    /// What came in since the last call, sorted: `active NodeAdd 2`.
    pub fn incoming(&mut self) -> Vec<String> {
        let taken = self.queue.take_incoming().into_iter();
        let mut lines: Vec<String> =
            taken.map(|line| format!("{} {} {}", line.queue.name(), line.cause, line.n)).collect();
        lines.sort();
        lines
    }
}
