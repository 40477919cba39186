//! Which device of which node holds which pod. Pure: news in, decisions out.
//!
//! Memory is counted in the unit of the cluster's device plugin (GiB or MiB). A node's memory is divided evenly among its devices,
//! as the device plugin says no more.
//!
//! A pod holds memory from the moment it is *assumed*, which is when its binding begins, until it has ended or is gone. What the API
//! server says of a pod that has a node goes before what was assumed.

use std::collections::{BTreeMap, BTreeSet};

/// What the device plugin says of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Memory of all its devices.
    pub memory: u64,
    /// How many devices it has.
    pub count: u32,
}

/// Memory of a device that a pod holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub node: String,
    pub device: u32,
    pub memory: u64,
}

/// Why a pod does not fit. The texts are what users of the original know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("The node {node} is not for GPU share, need skip")]
    NotShared { node: String },
    #[error("Insufficient GPU Memory in one device")]
    Insufficient,
    #[error("the pod is being bound already")]
    BeingBound,
}

/// All devices, with who holds them.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    nodes: BTreeMap<String, Node>,
    /// By uid.
    claims: BTreeMap<String, Claim>,
    /// The uids of pods that are being bound.
    assumed: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    capacity: Option<Capacity>,
    unhealthy: BTreeSet<u32>,
    /// By device, the sum over `claims`. Devices that hold nothing are left out.
    used: BTreeMap<u32, u64>,
}

impl Capacity {
    /// Of each device.
    pub fn device_memory(self) -> u64 {
        self.memory.checked_div(self.count.into()).unwrap_or_default()
    }
}

impl Node {
    fn used(&self, device: u32) -> u64 {
        self.used.get(&device).copied().unwrap_or_default()
    }

    /// The device with the least room that is enough; of equals the first.
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
    /// News of a node: what its device plugin says now, or that it has none or is gone.
    pub fn set_capacity(&mut self, node: &str, capacity: Option<Capacity>) {
        self.change(node, |node| node.capacity = capacity);
    }

    /// News of a node's devices that must not be used.
    pub fn set_unhealthy(&mut self, node: &str, devices: BTreeSet<u32>) {
        self.change(node, |node| node.unhealthy = devices);
    }

    /// News of a pod that has a node and a device.
    pub fn confirm(&mut self, uid: &str, claim: Claim) {
        self.release(uid);
        self.hold(uid, claim);
    }

    /// News of a pod that has ended or is gone, or has a node and no device.
    pub fn release(&mut self, uid: &str) {
        self.assumed.remove(uid);
        let Some(claim) = self.claims.remove(uid) else { return };
        self.change(&claim.node, |node| {
            let left = node.used(claim.device).saturating_sub(claim.memory);
            match left {
                0 => node.used.remove(&claim.device),
                left => node.used.insert(claim.device, left),
            };
        });
    }

    /// Which device of a node a pod that asks for memory would get.
    pub fn fit(&self, node: &str, memory: u64) -> Result<(u32, Capacity), Misfit> {
        let found = self.nodes.get(node);
        let shared = found.and_then(|found| Some((found, found.capacity?)));
        let Some((found, capacity)) = shared else {
            return Err(Misfit::NotShared { node: node.to_owned() });
        };
        let device = found.best_fit(capacity, memory).ok_or(Misfit::Insufficient)?;
        Ok((device, capacity))
    }

    /// Takes memory for a pod that is to be bound: `claim` with the device that is chosen here. What it returns is the device and
    /// its memory. Must be followed by [`Devices::bound`] or [`Devices::forget`].
    pub fn assume(&mut self, uid: &str, claim: Claim) -> Result<(u32, u64), Misfit> {
        if self.assumed.contains(uid) {
            return Err(Misfit::BeingBound);
        }
        let (device, capacity) = self.fit(&claim.node, claim.memory)?;
        self.release(uid);
        self.hold(uid, Claim { device, ..claim });
        self.assumed.insert(uid.to_owned());
        Ok((device, capacity.device_memory()))
    }

    /// The pod that was assumed is bound. News of it may come before or after.
    pub fn bound(&mut self, uid: &str) {
        self.assumed.remove(uid);
    }

    /// The pod that was assumed is not bound after all.
    pub fn forget(&mut self, uid: &str) {
        if self.assumed.contains(uid) {
            self.release(uid);
        }
    }

    /// The pods that hold memory and are not being bound: each of them is in every later list of pods, or gone.
    pub fn settled(&self) -> Vec<String> {
        self.claims.keys().filter(|uid| !self.assumed.contains(*uid)).cloned().collect()
    }

    /// The nodes that share devices, each with its capacity.
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

    fn hold(&mut self, uid: &str, claim: Claim) {
        self.change(&claim.node, |node| {
            let used = node.used(claim.device).saturating_add(claim.memory);
            node.used.insert(claim.device, used);
        });
        self.claims.insert(uid.to_owned(), claim);
    }

    /// Nodes of which nothing is known are left out.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let node = self.nodes.entry(name.to_owned()).or_default();
        change(node);
        if node.is_empty() {
            self.nodes.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
