//! Runs the pods on managed nodes.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::ManagedNodes;
use super::ip_pool::{IpPool, IpRange};
use super::lifecycle::{self, PodAction, PodAddresses};
use super::node::address_of;
use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::request::{ControllerRequest, DeleteOptions, Patch};

/// Addresses of pods on nodes without a `podCIDR` of their own.
pub(super) const POD_IP_RANGE: &str = "10.128.0.0/9";

/// Starts, completes and removes pods.
pub struct PodController {
    managed: ManagedNodes,
    addresses: IpPool,
    has_looked: bool,
}

impl PodController {
    /// Runs the pods on these nodes.
    pub fn new(managed: ManagedNodes) -> PodController {
        PodController { managed, addresses: IpPool::default(), has_looked: false }
    }

    /// Reserves the addresses that pods already have.
    fn reserve_used_addresses(&mut self, cache: &Cache) {
        for pod in cache.store::<Pod>().iter() {
            self.reserve_address_of(pod);
        }
    }

    fn reserve_address_of(&mut self, pod: &Pod) {
        let key = Key::from_object(pod);
        let status = pod.status.as_ref();
        let is_over =
            matches!(status.and_then(|it| it.phase.as_deref()), Some("Succeeded" | "Failed"));
        let is_host = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        match status.and_then(|it| it.pod_ip.as_deref()?.parse().ok()) {
            Some(address) if !is_over && !is_host => {
                self.addresses.reserve(&key, pod.metadata.uid.as_deref().unwrap_or(""), address);
            }
            // A terminated pod uses none, whatever its status contains.
            Some(_) => self.addresses.release(&key),
            None => {}
        }
    }

    fn addresses(&mut self, key: &Key, pod: &Pod, node: &Node) -> Option<PodAddresses> {
        let host_ip = address_of(node)?.to_owned();
        let is_host = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        if is_host || !lifecycle::needs_pod_ip(pod) {
            return Some(PodAddresses { pod_ip: host_ip.clone(), host_ip });
        }
        let own = node.spec.as_ref().and_then(|spec| IpRange::parse(spec.pod_cidr.as_deref()?));
        let range = own.or_else(|| IpRange::parse(POD_IP_RANGE))?;
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let pod_ip = self.addresses.allocate(key, uid, range)?.to_string();
        Some(PodAddresses { host_ip, pod_ip })
    }
}

/// The node of a pod, if it is managed.
pub(super) fn managed_node_of<'a>(
    pod: &Pod,
    managed: &ManagedNodes,
    cache: &'a Cache,
) -> Option<&'a Arc<Node>> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    cache.get::<Node>("", name).filter(|node| managed.contains(node))
}

/// Keys of the pods on a node that has become managed, or has got its address.
pub(super) fn pod_keys_for_node_change(
    change: &ObjectChange<'_>,
    managed: &ManagedNodes,
    cache: &Cache,
) -> Vec<Key> {
    let Some(node) = change.new::<Node>() else { return Vec::new() };
    let can_run = |node: &Node| managed.contains(node) && address_of(node).is_some();
    if !can_run(node) || change.old::<Node>().is_some_and(can_run) {
        return Vec::new();
    }
    let name = node.metadata.name.as_deref().unwrap_or("");
    cache.store::<Pod>().by_index_key(name).map(|pod| Key::from_object(&**pod)).collect()
}

impl Controller for PodController {
    fn name(&self) -> &'static str {
        "kubelet-pods"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let Some(pod) = change.new_or_old_typed::<Pod>() else {
            return pod_keys_for_node_change(change, &self.managed, cache);
        };
        managed_node_of(pod, &self.managed, cache)
            .map(|_| Key::from_object(pod))
            .into_iter()
            .collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.reserve_used_addresses(cache);
        }
        let Some(pod) = cache.get::<Pod>(&key.namespace, &key.name) else {
            self.addresses.release(key);
            return ReconcileResult::none();
        };
        let Some(node) = managed_node_of(pod, &self.managed, cache) else {
            return ReconcileResult::none();
        };
        self.reserve_address_of(pod);
        // The node gets its address soon.
        let Some(place) = self.addresses(key, pod, node) else { return ReconcileResult::none() };
        match lifecycle::next_pod_action(pod, &place, now) {
            PodAction::Nothing => ReconcileResult::none(),
            PodAction::WaitUntil(until) => {
                ReconcileResult::requeue_after(now.duration_until(until).unsigned_abs())
            }
            PodAction::PatchStatus(patch) => ReconcileResult::with_request(
                ControllerRequest::patch_status(key.clone(), Patch::Strategic(patch)),
            ),
            PodAction::Delete => {
                let uid = pod.metadata.uid.clone();
                let options = DeleteOptions {
                    uid,
                    grace_period_seconds: Some(0),
                    ..DeleteOptions::default()
                };
                ReconcileResult::with_request(ControllerRequest::Delete {
                    key: key.clone(),
                    options,
                })
            }
        }
    }
}
