//! Nodes: made when they are not there, and told to be Ready.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::address::{Addresses, Range};
use super::{Managed, template};
use crate::cache::Cache;
use crate::controller::{Change, Controller, Outcome};
use crate::kind::{Key, Kind};
use crate::meta;
use crate::queue::after;
use crate::request::{Answer, Patch, Request};

/// What a kubelet says when all is well: type, status, reason, message; as upstream's `pkg/kubelet/nodestatus`, but for the network,
/// which a cloud's route controller tells about.
const CONDITIONS: [(&str, &str, &str, &str); 5] = [
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    (
        "MemoryPressure",
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("NetworkUnavailable", "False", "RouteCreated", "there is no network to be unavailable"),
];

/// With leases a status without news is told this often, as by kubelets (`nodeStatusReportFrequency`); without them before the
/// node lifecycle controller loses its patience, which is after 50 s.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(300);
pub(super) const HEARTBEAT_WITHOUT_LEASES: Duration = Duration::from_secs(20);

/// Addresses of nodes.
pub(super) const RANGE: &str = "10.64.0.0/10";

/// Makes nodes and tells their statuses.
pub struct Nodes {
    /// To be made, unless they are there.
    absent: BTreeMap<String, Node>,
    managed: Managed,
    /// None: somebody else tells the statuses.
    heartbeat: Option<Duration>,
    addresses: Addresses,
    has_looked: bool,
}

impl Nodes {
    /// Makes these nodes once, and tells the statuses of all that are managed, when there is no news so often.
    pub fn new(nodes: Vec<Node>, managed: Managed, heartbeat: Option<Duration>) -> Nodes {
        let named = |node: Node| (node.metadata.name.clone().unwrap_or_default(), node);
        let absent = nodes.into_iter().map(named).collect();
        Nodes { absent, managed, heartbeat, addresses: Addresses::default(), has_looked: false }
    }

    /// When a node's status is told again without news: not all at the same time.
    fn due(
        heartbeat: Duration,
        name: &str,
        ready: Option<&NodeCondition>,
        now: Timestamp,
    ) -> Timestamp {
        let Some(last) = ready.and_then(|it| it.last_heartbeat_time.as_ref()) else { return now };
        let spread = heartbeat.as_millis() as u64 / 5;
        let earlier = Rng::new(last.0.as_second() as u64).split(name).below(spread.max(1));
        after(last.0, heartbeat - Duration::from_millis(earlier))
    }

    /// Addresses that nodes have already are theirs.
    fn look_around(&mut self, cache: &Cache) {
        for node in cache.of::<Node>().iter() {
            if let Some(address) = address_of(node).and_then(|address| address.parse().ok()) {
                self.addresses.note(&Key::of(&**node), uid(node), address);
            }
        }
    }
}

impl Controller for Nodes {
    fn name(&self) -> &'static str {
        "kubelet-nodes"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Node]
    }

    fn concerns(&self, change: &Change<'_>, _: &Cache) -> Vec<Key> {
        change.of::<Node>().map(Key::of).into_iter().collect()
    }

    fn at_start(&self) -> Vec<Key> {
        self.absent.keys().map(|name| Key::new(Kind::Node, "", &**name)).collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> Outcome {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.look_around(cache);
        }
        let Some(node) = cache.get::<Node>("", &key.name) else {
            self.addresses.forget(key);
            let wanted = self.absent.get(&*key.name).cloned();
            return wanted.map_or_else(Outcome::none, |node| Outcome::one(Request::create(node)));
        };
        // One that is deleted later stays deleted, as the kubelet of a machine that was taken away does not come back.
        self.absent.remove(&*key.name);
        let Some(heartbeat) = self.heartbeat else { return Outcome::none() };
        if !self.managed.has(node) || meta::is_terminating(&node.metadata) {
            return Outcome::none();
        }
        let ready = condition(node, "Ready");
        let is_ready = ready.is_some_and(|it| it.status == "True") && address_of(node).is_some();
        let due = Nodes::due(heartbeat, &key.name, ready, now);
        if is_ready && due > now {
            return Outcome::later(now.duration_until(due).unsigned_abs());
        }
        let range = Range::parse(RANGE);
        let address = match address_of(node) {
            Some(_) => None,
            None => range.and_then(|range| self.addresses.give(key, uid(node), range)),
        };
        let patch = Patch::Strategic(json!({"status": status(node, address, now)}));
        Outcome {
            requests: vec![Request::patch_status(key.clone(), patch)],
            again: Some(heartbeat),
        }
    }

    fn answered(&mut self, key: &Key, request: &Request, answer: &Answer, _: Timestamp) {
        match (request, answer) {
            (Request::Create(_), Answer::Done(_)) => {
                self.absent.remove(&*key.name);
            }
            (Request::Create(_), Answer::Refused { status, message, .. }) if *status != 409 => {
                tracing::warn!(node = %key.name, status, message, "the node cannot be made");
            }
            _ => {}
        }
    }
}

fn uid(node: &Node) -> &str {
    node.metadata.uid.as_deref().unwrap_or("")
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.iter().flatten().find(|it| it.type_ == kind)
}

/// The address that pods report as that of their host.
pub(super) fn address_of(node: &Node) -> Option<&str> {
    let addresses = node.status.as_ref()?.addresses.iter().flatten();
    addresses.filter(|it| it.type_ == "InternalIP").map(|it| &*it.address).next()
}

/// What a kubelet says when all is well, without times.
pub(super) fn conditions() -> Vec<Value> {
    let one = |(kind, status, reason, message)| json!({"type": kind, "status": status, "reason": reason, "message": message});
    CONDITIONS.into_iter().map(one).collect()
}

/// What is told of a node; an address if it has none yet.
fn status(node: &Node, address: Option<Ipv4Addr>, now: Timestamp) -> Value {
    let now = seconds(now);
    let conditions = CONDITIONS.map(|(kind, status, reason, message)| {
        let old = condition(node, kind).filter(|it| it.status == status);
        let since = old.and_then(|it| it.last_transition_time.as_ref());
        let since = since.map_or_else(|| now.clone(), |since| seconds(since.0));
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": since})
    });
    let mut all = json!({"conditions": conditions});
    if let Some(address) = address {
        let name = node.metadata.name.as_deref().unwrap_or("");
        all["addresses"] = json!([{"type": "InternalIP", "address": address.to_string()},
            {"type": "Hostname", "address": name}]);
    }
    let old = node.status.as_ref();
    let info = old.and_then(|status| serde_json::to_value(status.node_info.as_ref()?).ok());
    all["nodeInfo"] = template::node_info(&info.unwrap_or_default());
    // As KWOK: a node of which nobody said how large it is has room for all.
    let huge = || json!({"cpu": "1k", "memory": "1Ti", "pods": "1M"});
    let capacity = old.and_then(|status| status.capacity.as_ref()).filter(|it| !it.is_empty());
    if capacity.is_none() {
        all["capacity"] = huge();
    }
    let allocatable =
        old.and_then(|status| status.allocatable.as_ref()).filter(|it| !it.is_empty());
    if allocatable.is_none() {
        all["allocatable"] = capacity.map_or_else(huge, |capacity| json!(capacity));
    }
    all
}

/// A time as Kubernetes writes it.
pub(super) fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}
