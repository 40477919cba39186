//! Leases of nodes, by which the node lifecycle controller knows that a kubelet lives.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use loadmaster_stdx::Rng;
use serde_json::json;

use super::Managed;
use crate::cache::Cache;
use crate::controller::{Change, Controller, Outcome};
use crate::kind::{Key, Kind, Object, Typed};
use crate::meta;
use crate::queue::after;
use crate::request::{Answer, Patch, Request};

const NAMESPACE: &str = "kube-node-lease";

/// Renews leases. They are not watched: whether there is one shows when it is written, which spares the server telling of every renewal.
pub struct Leases {
    managed: Managed,
    duration: Duration,
    rng: Rng,
    known: BTreeMap<Key, Known>,
}

struct Known {
    uid: Option<String>,
    /// There is one, as far as is known.
    exists: bool,
    due: Timestamp,
}

/// The node is older than that: most likely its lease is there.
const OLD: Duration = Duration::from_secs(60);

impl Leases {
    /// A lease holds so long, and is renewed in a quarter of it.
    pub fn new(managed: Managed, duration: Duration, seed: u64) -> Leases {
        Leases { managed, duration, rng: Rng::new(seed).split("leases"), known: BTreeMap::new() }
    }

    fn write(&self, node: &Node, key: &Key, now: Timestamp) -> Option<Request> {
        let renew_time = MicroTime(now);
        if self.known.get(key)?.exists {
            let patch = Patch::Merge(json!({"spec": {"renewTime": renew_time}}));
            return Some(Request::patch(Key::new(Kind::Lease, NAMESPACE, key.name.clone()), patch));
        }
        let info = Node::IS.info();
        let lease = json!({
            "metadata": {"namespace": NAMESPACE, "name": &*key.name, "ownerReferences": [{
                "apiVersion": info.api_version, "kind": info.kind, "name": &*key.name, "uid": node.metadata.uid}]},
            "spec": {"holderIdentity": &*key.name, "leaseDurationSeconds": self.duration.as_secs(), "renewTime": renew_time}});
        let lease: Lease = serde_json::from_value(lease).ok()?;
        Some(Request::Create(Object::from(lease)))
    }
}

impl Controller for Leases {
    fn name(&self) -> &'static str {
        "kubelet-leases"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Node]
    }

    fn concerns(&self, change: &Change<'_>, _: &Cache) -> Vec<Key> {
        let Some(node) = change.of::<Node>() else { return Vec::new() };
        // Statuses change all the time; only a node that comes or goes matters.
        let uid = |object: Option<&Object>| object.and_then(|it| it.metadata().uid.clone());
        let is_same = uid(change.old) == uid(change.new);
        let was_managed = change.old::<Node>().is_some_and(|node| self.managed.has(node));
        let is_managed = change.new::<Node>().is_some_and(|node| self.managed.has(node));
        if is_same && was_managed == is_managed { Vec::new() } else { vec![Key::of(node)] }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> Outcome {
        let node = cache.get::<Node>("", &key.name);
        let Some(node) =
            node.filter(|it| self.managed.has(it) && !meta::is_terminating(&it.metadata))
        else {
            self.known.remove(key);
            return Outcome::none();
        };
        let uid = &node.metadata.uid;
        let known = self.known.get(key).filter(|known| known.uid == *uid);
        match known.map(|known| known.due) {
            Some(due) if due > now => {
                return Outcome::later(now.duration_until(due).unsigned_abs());
            }
            Some(_) => {}
            None => {
                let made = node.metadata.creation_timestamp.as_ref();
                let exists = made.is_some_and(|made| after(made.0, OLD) < now);
                self.known.insert(key.clone(), Known { uid: uid.clone(), exists, due: now });
            }
        }
        Outcome {
            requests: self.write(node, key, now).into_iter().collect(),
            again: Some(Duration::ZERO),
        }
    }

    fn answered(&mut self, key: &Key, request: &Request, answer: &Answer, now: Timestamp) {
        // As kubelets: a quarter, and up to four percent more. The first time less, so that not all come together for ever.
        let quarter = self.duration / 4;
        let jitter = self.rng.below(quarter.as_millis() as u64 / 25 + 1);
        let first = self.rng.below(quarter.as_millis() as u64 + 1);
        let Some(known) = self.known.get_mut(key) else { return };
        match (request, answer) {
            (Request::Create(_), Answer::Done(_)) => {
                known.exists = true;
                known.due = after(now, Duration::from_millis(first));
            }
            (_, Answer::Done(_)) => known.due = after(now, quarter + Duration::from_millis(jitter)),
            (_, Answer::Refused { status: 404, .. }) => known.exists = false,
            (_, Answer::Refused { status: 409, .. }) => known.exists = true,
            _ => {}
        }
    }
}
