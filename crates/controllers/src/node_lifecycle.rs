//! The node lifecycle controller: conditions of unreachable nodes become Unknown, and taints follow conditions.
//!
//! | | |
//! | --- | --- |
//! | writes | conditions and taints of nodes, the Ready condition of their pods, Events |
//! | upstream | `pkg/controller/nodelifecycle`, 1.36 |
//! | deviations | NoExecute taints come at once: upstream adds one in ten seconds, and none where all nodes of a zone fail together |

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use serde_json::json;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::request::{ControllerRequest, Patch};
use crate::result_builder::ReconcileResultBuilder;
use crate::workload::{is_ready, stamp};

/// Grace period without heartbeats, and the one of a new node (`--node-monitor-grace-period`, `--node-startup-grace-period`).
const GRACE: SignedDuration = SignedDuration::from_secs(50);
const STARTUP_GRACE: SignedDuration = SignedDuration::from_secs(60);
const LEASES: &str = "kube-node-lease";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Taints that follow a condition, and the status of the condition that adds them.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
/// Conditions that become Unknown when heartbeats are missing.
const BY_KUBELET: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The node lifecycle controller.
#[derive(Debug, Default)]
pub(crate) struct NodeLifecycleController {
    signs: BTreeMap<Key, Heartbeat>,
}

/// The last heartbeat of a node, and when it was observed: clocks of nodes are not trusted.
#[derive(Clone, Debug, PartialEq)]
struct Heartbeat {
    seen: Timestamp,
    heartbeat: Option<Time>,
    renewal: Option<MicroTime>,
    is_event_recorded: bool,
}

impl Controller for NodeLifecycleController {
    fn name(&self) -> &'static str {
        "node-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::Lease, Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _cache: &Cache) -> Vec<Key> {
        match change.new_or_old() {
            Some(object) if object.kind() == Kind::Node => vec![object.key()],
            Some(object) if object.kind() == Kind::Lease => {
                let key = object.key();
                let is_node = &*key.namespace == LEASES;
                is_node.then(|| Key::new(Kind::Node, "", key.name)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(node) = cache.get::<Node>("", &key.name) else {
            self.signs.remove(key);
            return ReconcileResult::none();
        };
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        let silent_at = self.silent_at(key, node, cache, now, &mut writes);
        if silent_at < now {
            if let Some(changed) = doubted(node, now) {
                writes.update_status(&changed);
                return writes.build();
            }
        } else {
            // A moment later than the last one, as upstream's clock ticks.
            writes.requeue_after(
                silent_at.duration_since(now).unsigned_abs() + Duration::from_secs(1),
            );
        }
        mark_pods(node, cache, now, &mut writes);
        let before = taints(node);
        let after = desired_taints(node, now);
        if before != after.as_slice() {
            let version = &node.metadata.resource_version;
            let patch =
                json!({"metadata": {"resourceVersion": version}, "spec": {"taints": after}});
            writes.push(ControllerRequest::patch(key.clone(), Patch::Merge(patch)));
        }
        writes.build()
    }
}

impl NodeLifecycleController {
    /// Records heartbeats. Returns when the grace period ends.
    fn silent_at(
        &mut self,
        key: &Key,
        node: &Node,
        cache: &Cache,
        now: Timestamp,
        writes: &mut ReconcileResultBuilder,
    ) -> Timestamp {
        let ready = condition(node, "Ready");
        let heartbeat = ready.and_then(|one| one.last_heartbeat_time.clone());
        let lease = cache.get::<Lease>(LEASES, &key.name);
        let renewal = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
        let made = node.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
        let first = if ready.is_none() && renewal.is_none() { made } else { now };
        let sign = self.signs.entry(key.clone()).or_insert_with(|| {
            let (heartbeat, renewal) = (heartbeat.clone(), renewal.clone());
            Heartbeat { seen: first, heartbeat, renewal, is_event_recorded: false }
        });
        if sign.heartbeat != heartbeat || sign.renewal != renewal {
            *sign = Heartbeat {
                seen: now,
                heartbeat,
                renewal,
                is_event_recorded: sign.is_event_recorded,
            };
        }
        if !sign.is_event_recorded {
            sign.is_event_recorded = true;
            let text = format!("Node {0} event: Registered Node {0} in Controller", key.name);
            writes.event(node, "RegisteredNode", text);
        }
        let grace = if ready.is_some() { GRACE } else { STARTUP_GRACE };
        sign.seen.checked_add(grace).unwrap_or(Timestamp::MAX)
    }
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.iter().flatten().find(|one| one.type_ == kind)
}

fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

/// A node without heartbeats with its conditions set to Unknown; None if they are already.
fn doubted(node: &Node, now: Timestamp) -> Option<Node> {
    let mut changed = node.clone();
    let all = changed.status.get_or_insert_default().conditions.get_or_insert_default();
    for kind in BY_KUBELET {
        match all.iter_mut().find(|one| one.type_ == kind) {
            None => all.push(NodeCondition {
                type_: kind.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some("NodeStatusNeverUpdated".to_owned()),
                message: Some("Kubelet never posted node status.".to_owned()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(stamp(now)),
            }),
            Some(one) if one.status != "Unknown" => {
                one.status = "Unknown".to_owned();
                one.reason = Some("NodeStatusUnknown".to_owned());
                one.message = Some("Kubelet stopped posting node status.".to_owned());
                one.last_transition_time = Some(stamp(now));
            }
            Some(_) => {}
        }
    }
    let ready = |node: &Node| condition(node, "Ready").map(|one| one.status.clone());
    (ready(&changed) != ready(node)).then_some(changed)
}

/// The taints that a node should have. Taints that follow no condition stay unchanged.
fn desired_taints(node: &Node, now: Timestamp) -> Vec<Taint> {
    let is = |kind: &str, value: &str| condition(node, kind).is_some_and(|one| one.status == value);
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (kind, _, key) in BY_CONDITION.into_iter().filter(|(kind, value, _)| is(kind, value)) {
        wanted.push((key, "NoSchedule"));
        if kind == "Ready" {
            wanted.push((key, "NoExecute"));
        }
    }
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let is_ours = |taint: &Taint| match taint.effect.as_str() {
        "NoSchedule" => {
            taint.key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, key)| *key == taint.key)
        }
        // Before its first heartbeat a node keeps the taint that it was created with.
        "NoExecute" => {
            [NOT_READY, UNREACHABLE].contains(&taint.key.as_str())
                && condition(node, "Ready").is_some()
        }
        _ => false,
    };
    let is_wanted = |taint: &Taint| wanted.contains(&(taint.key.as_str(), taint.effect.as_str()));
    let before = taints(node);
    let mut after: Vec<Taint> =
        before.iter().filter(|taint| !is_ours(taint) || is_wanted(taint)).cloned().collect();
    for (key, effect) in wanted {
        if !after.iter().any(|taint| taint.key == key && taint.effect == effect) {
            after.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                value: None,
                time_added: Some(stamp(now)),
            });
        }
    }
    after
}

/// Marks the pods of a node that is not ready as not ready: its kubelet may be unable to.
fn mark_pods(node: &Node, cache: &Cache, now: Timestamp, writes: &mut ReconcileResultBuilder) {
    if condition(node, "Ready").is_none_or(|one| one.status == "True") {
        return;
    }
    let name = node.metadata.name.as_deref().unwrap_or_default();
    for pod in cache.store::<Pod>().by_index_key(name).filter(|pod| is_ready(pod)) {
        let ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": stamp(now)});
        let patch =
            json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [ready]}});
        writes.push(ControllerRequest::patch_status(
            Key::from_object(&**pod),
            Patch::Strategic(patch),
        ));
        writes.warning(&**pod, "NodeNotReady", "Node is not ready");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value};

    use super::*;
    use crate::test_kubelet::bench;
    use crate::testkit::ControllerBench;

    #[test]
    fn taints_follow_conditions() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let check = |conditions: &[(&str, &str)], spec: Value, want: &[&str]| {
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|(kind, value)| json!({"type": kind, "status": value}))
                .collect();
            let node = json!({"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": conditions}});
            let line = |taint: &Taint| {
                format!("{}:{}", taint.key.trim_start_matches("node.kubernetes.io/"), taint.effect)
            };
            let found: Vec<String> =
                desired_taints(&from_value(node).unwrap(), now).iter().map(line).collect();
            assert_eq!(found, want);
        };
        let taint = |key: &str, effect: &str| json!({"taints": [{"key": key, "effect": effect}]});
        check(&[], json!({}), &[]);
        check(&[], taint(NOT_READY, "NoSchedule"), &[]);
        check(&[], taint(NOT_READY, "NoExecute"), &["not-ready:NoExecute"]);
        check(&[("Ready", "True")], json!({}), &[]);
        check(&[("Ready", "True")], taint(NOT_READY, "NoSchedule"), &[]);
        check(&[("Ready", "True")], taint(UNREACHABLE, "NoExecute"), &[]);
        check(&[("Ready", "True")], taint("mine", "NoExecute"), &["mine:NoExecute"]);
        check(&[("Ready", "False")], json!({}), &["not-ready:NoSchedule", "not-ready:NoExecute"]);
        check(
            &[("Ready", "Unknown")],
            taint(NOT_READY, "NoExecute"),
            &["unreachable:NoSchedule", "unreachable:NoExecute"],
        );
        check(
            &[("MemoryPressure", "True"), ("DiskPressure", "False")],
            json!({}),
            &["memory-pressure:NoSchedule"],
        );
        check(
            &[("PIDPressure", "True"), ("NetworkUnavailable", "True")],
            json!({}),
            &["network-unavailable:NoSchedule", "pid-pressure:NoSchedule"],
        );
        check(&[], json!({"unschedulable": true}), &["unschedulable:NoSchedule"]);
        check(&[], taint(UNSCHEDULABLE, "NoSchedule"), &[]);
    }

    fn ready() -> ControllerBench {
        let mut bench = bench(vec![Box::<NodeLifecycleController>::default()]);
        bench.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        bench.create(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}));
        bench.run_until_idle();
        bench
    }

    fn state(bench: &ControllerBench) -> (String, usize) {
        let node: Node = bench.get("", "n").unwrap();
        (condition(&node, "Ready").unwrap().status.clone(), taints(&node).len())
    }

    fn renew(bench: &mut ControllerBench, is_first: bool) {
        let time = bench.now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "n", "namespace": LEASES}, "spec": {"renewTime": time}});
        if is_first {
            if bench.get::<k8s_openapi::api::core::v1::Namespace>("", LEASES).is_none() {
                bench.create(
                    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASES}}),
                );
            }
            bench.create(lease);
        } else {
            let key = Key::new(Kind::Lease, LEASES, "n");
            bench.send_as_client(&ControllerRequest::patch(
                key,
                Patch::Merge(json!({"spec": lease["spec"]})),
            ));
        }
        bench.run_until_idle();
    }

    #[test]
    fn a_node_without_heartbeats_is_unreachable_until_the_next_heartbeat() {
        let mut bench = ready();
        bench.wait(50);
        assert_eq!(state(&bench), ("True".into(), 0));
        bench.wait(2);
        assert_eq!(state(&bench), ("Unknown".into(), 2));
        let pod: Pod = bench.get("default", "p").unwrap();
        assert!(!is_ready(&pod));
        let time = bench.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let good = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time}]}});
        bench.send_as_client(&ControllerRequest::patch_status(
            Key::new(Kind::Node, "", "n"),
            Patch::Strategic(good),
        ));
        bench.run_until_idle();
        assert_eq!(state(&bench), ("True".into(), 0));
    }

    #[test]
    fn leases_are_heartbeats() {
        let mut bench = ready();
        renew(&mut bench, true);
        for _ in 0..10 {
            bench.wait(40);
            renew(&mut bench, false);
        }
        assert_eq!(state(&bench), ("True".into(), 0));
        bench.wait(52);
        assert_eq!(state(&bench), ("Unknown".into(), 2));
    }

    #[test]
    fn a_node_that_never_sent_a_heartbeat() {
        let mut bench = bench(vec![Box::<NodeLifecycleController>::default()]);
        bench.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
        bench.wait(59);
        let node: Node = bench.get("", "n").unwrap();
        assert_eq!(condition(&node, "Ready"), None);
        bench.wait(3);
        assert_eq!(state(&bench), ("Unknown".into(), 2));
    }
}
