//! Pods on the nodes that are served.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::Managed;
use super::address::{Addresses, Range};
use super::life::{self, Place, Step};
use super::node::address_of;
use crate::cache::Cache;
use crate::controller::{Change, Controller, Outcome};
use crate::kind::{Key, Kind};
use crate::request::{DeleteOptions, Patch, Request};

/// Addresses of pods on nodes without a `podCIDR` of their own.
pub(super) const RANGE: &str = "10.128.0.0/9";

/// Starts, ends and removes pods.
pub struct Pods {
    managed: Managed,
    addresses: Addresses,
    has_looked: bool,
}

impl Pods {
    /// Serves the pods on managed nodes.
    pub fn new(managed: Managed) -> Pods {
        Pods { managed, addresses: Addresses::default(), has_looked: false }
    }

    /// Addresses that pods have already are theirs.
    fn look_around(&mut self, cache: &Cache) {
        for pod in cache.of::<Pod>().iter() {
            self.note(pod);
        }
    }

    fn note(&mut self, pod: &Pod) {
        let key = Key::of(pod);
        let status = pod.status.as_ref();
        let is_over =
            matches!(status.and_then(|it| it.phase.as_deref()), Some("Succeeded" | "Failed"));
        let is_host = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        match status.and_then(|it| it.pod_ip.as_deref()?.parse().ok()) {
            Some(address) if !is_over && !is_host => {
                self.addresses.note(&key, pod.metadata.uid.as_deref().unwrap_or(""), address);
            }
            // One that is over uses none, whatever its status says.
            Some(_) => self.addresses.forget(&key),
            None => {}
        }
    }

    fn place(&mut self, key: &Key, pod: &Pod, node: &Node) -> Option<Place> {
        let host_ip = address_of(node)?.to_owned();
        let is_host = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        if is_host || !life::needs_address(pod) {
            return Some(Place { pod_ip: host_ip.clone(), host_ip });
        }
        let own = node.spec.as_ref().and_then(|spec| Range::parse(spec.pod_cidr.as_deref()?));
        let range = own.or_else(|| Range::parse(RANGE))?;
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let pod_ip = self.addresses.give(key, uid, range)?.to_string();
        Some(Place { host_ip, pod_ip })
    }
}

/// The node that a pod is on, if it is served.
pub(super) fn node_of<'a>(pod: &Pod, managed: &Managed, cache: &'a Cache) -> Option<&'a Arc<Node>> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    cache.get::<Node>("", name).filter(|node| managed.has(node))
}

/// Keys of the pods on a node that is served from now on, or can tell its address from now on.
pub(super) fn concerned_by_node(change: &Change<'_>, managed: &Managed, cache: &Cache) -> Vec<Key> {
    let Some(node) = change.new::<Node>() else { return Vec::new() };
    let can_run = |node: &Node| managed.has(node) && address_of(node).is_some();
    if !can_run(node) || change.old::<Node>().is_some_and(can_run) {
        return Vec::new();
    }
    let name = node.metadata.name.as_deref().unwrap_or("");
    cache.of::<Pod>().at(name).map(|pod| Key::of(&**pod)).collect()
}

impl Controller for Pods {
    fn name(&self) -> &'static str {
        "kubelet-pods"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::Pod]
    }

    fn concerns(&self, change: &Change<'_>, cache: &Cache) -> Vec<Key> {
        let Some(pod) = change.of::<Pod>() else {
            return concerned_by_node(change, &self.managed, cache);
        };
        node_of(pod, &self.managed, cache).map(|_| Key::of(pod)).into_iter().collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> Outcome {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.look_around(cache);
        }
        let Some(pod) = cache.get::<Pod>(&key.namespace, &key.name) else {
            self.addresses.forget(key);
            return Outcome::none();
        };
        let Some(node) = node_of(pod, &self.managed, cache) else { return Outcome::none() };
        self.note(pod);
        // A node that has no address yet says so before long.
        let Some(place) = self.place(key, pod, node) else { return Outcome::none() };
        match life::next(pod, &place, now) {
            Step::Rest => Outcome::none(),
            Step::Wait(until) => Outcome::later(now.duration_until(until).unsigned_abs()),
            Step::Tell(patch) => {
                Outcome::one(Request::patch_status(key.clone(), Patch::Strategic(patch)))
            }
            Step::Remove => {
                let uid = pod.metadata.uid.clone();
                let options = DeleteOptions {
                    uid,
                    grace_period_seconds: Some(0),
                    ..DeleteOptions::default()
                };
                Outcome::one(Request::Delete { key: key.clone(), options })
            }
        }
    }
}
