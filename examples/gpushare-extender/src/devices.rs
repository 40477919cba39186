//! Which pod uses how much memory of which device. No I/O: events in, decisions out.
//!
//! Memory is counted in the unit of the cluster's device plugin (GiB or MiB). A node's memory is divided evenly among its devices,
//! because the device plugin reports the sum only.
//!
//! A pod uses memory from the moment it is *assumed*, which is when its binding starts, until it is terminal or removed. For an assigned
//! pod the API server's object overrides what was assumed.

use std::collections::{BTreeMap, BTreeSet};

/// The capacity of a node, as reported by its device plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Memory of all devices.
    pub memory: u64,
    /// Number of devices.
    pub count: u32,
}

/// The memory of a device that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub node: String,
    pub device: u32,
    pub memory: u64,
}

/// Why a pod does not fit. The texts are those of the original.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    #[error("The node {node} is not for GPU share, need skip")]
    NotShared { node: String },
    #[error("Insufficient GPU Memory in one device")]
    Insufficient,
    #[error("the pod is being bound already")]
    BindingInProgress,
}

/// All devices of the cluster and their claims.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    nodes: BTreeMap<String, Node>,
    /// Claims by pod uid.
    claims: BTreeMap<String, Claim>,
    /// The uids of pods that are being bound.
    assumed: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    capacity: Option<Capacity>,
    unhealthy: BTreeSet<u32>,
    /// Used memory by device, the sum over `claims`. Unused devices are left out.
    used: BTreeMap<u32, u64>,
}

impl Capacity {
    /// Memory of each device.
    pub fn device_memory(self) -> u64 {
        self.memory.checked_div(self.count.into()).unwrap_or_default()
    }
}

impl Node {
    fn used(&self, device: u32) -> u64 {
        self.used.get(&device).copied().unwrap_or_default()
    }

    /// The device with the least free memory that is enough; the first one of equals.
    fn best_fit(&self, capacity: Capacity, memory: u64) -> Option<u32> {
        let room = |device| capacity.device_memory().saturating_sub(self.used(device));
        (0..capacity.count)
            .filter(|device| !self.unhealthy.contains(device) && room(*device) >= memory)
            .min_by_key(|device| room(*device))
    }

    fn is_empty(&self) -> bool {
        self.capacity.is_none() && self.unhealthy.is_empty() && self.used.is_empty()
    }
}

impl Devices {
    /// Updates the capacity of a node; `None` if it does not share devices or was deleted.
    pub fn set_capacity(&mut self, node: &str, capacity: Option<Capacity>) {
        self.update_node(node, |node| node.capacity = capacity);
    }

    /// Updates the devices of a node that must not be used.
    pub fn set_unhealthy(&mut self, node: &str, devices: BTreeSet<u32>) {
        self.update_node(node, |node| node.unhealthy = devices);
    }

    /// A pod was seen that has a node and a device.
    pub fn confirm(&mut self, uid: &str, claim: Claim) {
        self.release(uid);
        self.add_claim(uid, claim);
    }

    /// A pod is terminal, was deleted, or has a node but no device.
    pub fn release(&mut self, uid: &str) {
        self.assumed.remove(uid);
        let Some(claim) = self.claims.remove(uid) else { return };
        self.update_node(&claim.node, |node| {
            let left = node.used(claim.device).saturating_sub(claim.memory);
            match left {
                0 => node.used.remove(&claim.device),
                left => node.used.insert(claim.device, left),
            };
        });
    }

    /// The device of a node that a pod with this request would get.
    pub fn fit(&self, node: &str, memory: u64) -> Result<(u32, Capacity), FitError> {
        let found = self.nodes.get(node);
        let shared = found.and_then(|found| Some((found, found.capacity?)));
        let Some((found, capacity)) = shared else {
            return Err(FitError::NotShared { node: node.to_owned() });
        };
        let device = found.best_fit(capacity, memory).ok_or(FitError::Insufficient)?;
        Ok((device, capacity))
    }

    /// Assumes `claim` for a pod that is about to be bound, with the device that is selected here. Returns the device and its total
    /// memory. Must be followed by [`Devices::finish_binding`] or [`Devices::forget`].
    pub fn assume(&mut self, uid: &str, claim: Claim) -> Result<(u32, u64), FitError> {
        if self.assumed.contains(uid) {
            return Err(FitError::BindingInProgress);
        }
        let (device, capacity) = self.fit(&claim.node, claim.memory)?;
        self.release(uid);
        self.add_claim(uid, Claim { device, ..claim });
        self.assumed.insert(uid.to_owned());
        Ok((device, capacity.device_memory()))
    }

    /// The assumed pod was bound. Its watch event may come before or after.
    pub fn finish_binding(&mut self, uid: &str) {
        self.assumed.remove(uid);
    }

    /// The assumed pod was not bound.
    pub fn forget(&mut self, uid: &str) {
        if self.assumed.contains(uid) {
            self.release(uid);
        }
    }

    /// Uids of the pods that use memory and are not being bound: if a later list of pods does not contain one, it was deleted.
    pub fn confirmed_pods(&self) -> Vec<String> {
        self.claims.keys().filter(|uid| !self.assumed.contains(*uid)).cloned().collect()
    }

    /// The nodes that share devices, with their capacity.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, Capacity)> {
        self.nodes.iter().filter_map(|(name, node)| Some((name.as_str(), node.capacity?)))
    }

    /// The nodes with devices that must not be used.
    pub fn unhealthy(&self) -> impl Iterator<Item = &str> {
        let nodes = self.nodes.iter().filter(|(_, node)| !node.unhealthy.is_empty());
        nodes.map(|(name, _)| name.as_str())
    }

    /// The claims on a node's devices, in the order of their uids.
    pub fn claims(&self, node: &str) -> impl Iterator<Item = &Claim> {
        self.claims.values().filter(move |claim| claim.node == node)
    }

    fn add_claim(&mut self, uid: &str, claim: Claim) {
        self.update_node(&claim.node, |node| {
            let used = node.used(claim.device).saturating_add(claim.memory);
            node.used.insert(claim.device, used);
        });
        self.claims.insert(uid.to_owned(), claim);
    }

    /// Changes a node, and removes it if nothing is known about it.
    fn update_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let node = self.nodes.entry(name.to_owned()).or_default();
        change(node);
        if node.is_empty() {
            self.nodes.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
