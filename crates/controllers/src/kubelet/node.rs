//! Creates nodes and keeps them Ready.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use loadmaster_stdx::CollectByInsertion as _;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::ip_pool::{IpPool, IpRange};
use super::{ManagedNodes, node_template};
use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta;
use crate::request::{ControllerRequest, ControllerResponse, Patch};
use crate::work_queue::saturating_add;

/// The conditions of a healthy node: type, status, reason, message; as in upstream's `pkg/kubelet/nodestatus`, except for the network,
/// whose condition a cloud's route controller sets.
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

/// With leases, an unchanged status is reported at this interval, as by kubelets (`nodeStatusReportFrequency`); without them, before the
/// grace period of the node lifecycle controller ends, which is 50 s.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(300);
pub(super) const HEARTBEAT_WITHOUT_LEASES: Duration = Duration::from_secs(20);

/// Addresses of nodes.
pub(super) const NODE_IP_RANGE: &str = "10.64.0.0/10";

/// Creates nodes and reports their statuses.
pub struct NodeController {
    /// Nodes to create unless they exist.
    absent: BTreeMap<String, Node>,
    managed: ManagedNodes,
    /// None: another controller reports the statuses.
    heartbeat: Option<Duration>,
    addresses: IpPool,
    has_looked: bool,
}

impl NodeController {
    /// Creates these nodes once, and reports the statuses of all managed nodes at this interval.
    pub fn new(
        nodes: Vec<Node>,
        managed: ManagedNodes,
        heartbeat: Option<Duration>,
    ) -> NodeController {
        let named = |node: Node| (node.metadata.name.clone().unwrap_or_default(), node);
        let absent = nodes.into_iter().map(named).collect_by_insertion();
        NodeController {
            absent,
            managed,
            heartbeat,
            addresses: IpPool::default(),
            has_looked: false,
        }
    }

    /// When an unchanged status is reported again: spread over time.
    fn due(
        heartbeat: Duration,
        name: &str,
        ready: Option<&NodeCondition>,
        now: Timestamp,
    ) -> Timestamp {
        let Some(last) = ready.and_then(|it| it.last_heartbeat_time.as_ref()) else { return now };
        let spread = heartbeat.as_millis() as u64 / 5;
        let earlier = Rng::new(last.0.as_second() as u64).split(name).below(spread.max(1));
        saturating_add(last.0, heartbeat - Duration::from_millis(earlier))
    }

    /// Reserves the addresses that nodes already have.
    fn reserve_used_addresses(&mut self, cache: &Cache) {
        for node in cache.store::<Node>().iter() {
            if let Some(address) = address_of(node).and_then(|address| address.parse().ok()) {
                self.addresses.reserve(&Key::from_object(&**node), uid(node), address);
            }
        }
    }
}

impl Controller for NodeController {
    fn name(&self) -> &'static str {
        "kubelet-nodes"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Node]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
        change.new_or_old_typed::<Node>().map(Key::from_object).into_iter().collect()
    }

    fn initial_keys(&self) -> Vec<Key> {
        self.absent.keys().map(|name| Key::new(Kind::Node, "", &**name)).collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.reserve_used_addresses(cache);
        }
        let Some(node) = cache.get::<Node>("", &key.name) else {
            self.addresses.release(key);
            let wanted = self.absent.get(&*key.name).cloned();
            return wanted.map_or_else(ReconcileResult::none, |node| {
                ReconcileResult::with_request(ControllerRequest::create(node))
            });
        };
        // A node that is deleted later is not created again, as with a machine that was removed.
        self.absent.remove(&*key.name);
        let Some(heartbeat) = self.heartbeat else { return ReconcileResult::none() };
        if !self.managed.contains(node) || meta::is_terminating(&node.metadata) {
            return ReconcileResult::none();
        }
        let ready = condition(node, "Ready");
        let is_ready = ready.is_some_and(|it| it.status == "True") && address_of(node).is_some();
        let due = NodeController::due(heartbeat, &key.name, ready, now);
        if is_ready && due > now && extended_resource_changes(node).is_empty() {
            return ReconcileResult::requeue_after(now.duration_until(due).unsigned_abs());
        }
        let range = IpRange::parse(NODE_IP_RANGE);
        let address = match address_of(node) {
            Some(_) => None,
            None => range.and_then(|range| self.addresses.allocate(key, uid(node), range)),
        };
        let patch = Patch::Strategic(json!({"status": status(node, address, now)}));
        ReconcileResult {
            requests: vec![ControllerRequest::patch_status(key.clone(), patch)],
            requeue_after: Some(heartbeat),
        }
    }

    fn on_response(
        &mut self,
        key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        _: Timestamp,
    ) {
        match (request, response) {
            (ControllerRequest::Create(_), ControllerResponse::Success(_)) => {
                self.absent.remove(&*key.name);
            }
            (
                ControllerRequest::Create(_),
                ControllerResponse::Rejected { status, message, .. },
            ) if *status != 409 => {
                tracing::warn!(node = %key.name, status, message, "failed to create the node");
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

/// The conditions of a healthy node, without times.
pub(super) fn conditions() -> Vec<Value> {
    let one = |(kind, status, reason, message)| json!({"type": kind, "status": status, "reason": reason, "message": message});
    CONDITIONS.into_iter().map(one).collect()
}

/// The status of a node; with an address if it has none yet.
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
    all["nodeInfo"] = node_template::node_info(&info.unwrap_or_default());
    // As KWOK: a node without capacity gets a very large one.
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
    for (name, amount) in extended_resource_changes(node) {
        all["allocatable"][name] = amount;
    }
    all
}

/// What changes in `allocatable` because somebody advertised an extended resource, or withdrew it, in `capacity`, as
/// `pkg/kubelet/nodestatus` does. An amount that is in both is not changed. Null removes an entry.
fn extended_resource_changes(node: &Node) -> BTreeMap<&str, Value> {
    let status = node.status.as_ref();
    let capacity = status.and_then(|it| it.capacity.as_ref());
    let allocatable = status.and_then(|it| it.allocatable.as_ref());
    let advertised = capacity.into_iter().flatten().map(|(name, amount)| (name, json!(amount)));
    let withdrawn = allocatable.into_iter().flatten().map(|(name, _)| (name, Value::Null));
    let is_in = |amounts: Option<&BTreeMap<String, Quantity>>, name: &String| {
        amounts.is_some_and(|amounts| amounts.contains_key(name))
    };
    let is_extended = |name: &str| name.contains('/') && !name.contains("kubernetes.io/");
    advertised
        .chain(withdrawn)
        .filter(|(name, _)| is_in(capacity, name) != is_in(allocatable, name) && is_extended(name))
        .map(|(name, amount)| (name.as_str(), amount))
        .collect_by_insertion()
}

/// A time as Kubernetes writes it.
pub(super) fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}
