//! Leases of nodes: the kubelets' heartbeats for the node lifecycle controller.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use loadmaster_stdx::Rng;
use serde_json::json;

use super::ManagedNodes;
use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind, Object, Typed};
use crate::meta;
use crate::request::{ControllerRequest, ControllerResponse, Patch};
use crate::work_queue::saturating_add;

const NAMESPACE: &str = "kube-node-lease";

/// Renews the leases of nodes. Leases are not watched, to save a watch event per renewal: whether one exists shows when it is written.
pub struct NodeLeaseController {
    managed: ManagedNodes,
    duration: Duration,
    rng: Rng,
    known: BTreeMap<Key, Known>,
}

struct Known {
    uid: Option<String>,
    /// Whether the lease is believed to exist.
    exists: bool,
    due: Timestamp,
}

/// A node that is older than this most likely has a lease.
const OLD: Duration = Duration::from_secs(60);

impl NodeLeaseController {
    /// Leases have this duration and are renewed every quarter of it.
    pub fn new(managed: ManagedNodes, duration: Duration, seed: u64) -> NodeLeaseController {
        NodeLeaseController {
            managed,
            duration,
            rng: Rng::new(seed).split("leases"),
            known: BTreeMap::new(),
        }
    }

    fn write(&self, node: &Node, key: &Key, now: Timestamp) -> Option<ControllerRequest> {
        let renew_time = MicroTime(now);
        if self.known.get(key)?.exists {
            let patch = Patch::Merge(json!({"spec": {"renewTime": renew_time}}));
            return Some(ControllerRequest::patch(
                Key::new(Kind::Lease, NAMESPACE, key.name.clone()),
                patch,
            ));
        }
        let info = Node::IS.info();
        let lease = json!({
            "metadata": {"namespace": NAMESPACE, "name": &*key.name, "ownerReferences": [{
                "apiVersion": info.api_version, "kind": info.kind, "name": &*key.name, "uid": node.metadata.uid}]},
            "spec": {"holderIdentity": &*key.name, "leaseDurationSeconds": self.duration.as_secs(), "renewTime": renew_time}});
        let lease: Lease = serde_json::from_value(lease).ok()?;
        Some(ControllerRequest::Create(Object::from(lease)))
    }
}

impl Controller for NodeLeaseController {
    fn name(&self) -> &'static str {
        "kubelet-leases"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Node]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
        let Some(node) = change.new_or_old_typed::<Node>() else { return Vec::new() };
        // Statuses change often; only added and deleted nodes matter.
        let uid = |object: Option<&Object>| object.and_then(|it| it.metadata().uid.clone());
        let is_same = uid(change.old) == uid(change.new);
        let was_managed = change.old::<Node>().is_some_and(|node| self.managed.contains(node));
        let is_managed = change.new::<Node>().is_some_and(|node| self.managed.contains(node));
        if is_same && was_managed == is_managed { Vec::new() } else { vec![Key::from_object(node)] }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let node = cache.get::<Node>("", &key.name);
        let Some(node) =
            node.filter(|it| self.managed.contains(it) && !meta::is_terminating(&it.metadata))
        else {
            self.known.remove(key);
            return ReconcileResult::none();
        };
        let uid = &node.metadata.uid;
        let known = self.known.get(key).filter(|known| known.uid == *uid);
        match known.map(|known| known.due) {
            Some(due) if due > now => {
                return ReconcileResult::requeue_after(now.duration_until(due).unsigned_abs());
            }
            Some(_) => {}
            None => {
                let made = node.metadata.creation_timestamp.as_ref();
                let exists = made.is_some_and(|made| saturating_add(made.0, OLD) < now);
                self.known.insert(key.clone(), Known { uid: uid.clone(), exists, due: now });
            }
        }
        ReconcileResult {
            requests: self.write(node, key, now).into_iter().collect(),
            requeue_after: Some(Duration::ZERO),
        }
    }

    fn on_response(
        &mut self,
        key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        now: Timestamp,
    ) {
        // As kubelets: a quarter, and up to four percent more. The first time less, so that renewals are spread.
        let quarter = self.duration / 4;
        let jitter = self.rng.below(quarter.as_millis() as u64 / 25 + 1);
        let first = self.rng.below(quarter.as_millis() as u64 + 1);
        let Some(known) = self.known.get_mut(key) else { return };
        match (request, response) {
            (ControllerRequest::Create(_), ControllerResponse::Success(_)) => {
                known.exists = true;
                known.due = saturating_add(now, Duration::from_millis(first));
            }
            (_, ControllerResponse::Success(_)) => {
                known.due = saturating_add(now, quarter + Duration::from_millis(jitter))
            }
            (_, ControllerResponse::Rejected { status: 404, .. }) => known.exists = false,
            (_, ControllerResponse::Rejected { status: 409, .. }) => known.exists = true,
            _ => {}
        }
    }
}
