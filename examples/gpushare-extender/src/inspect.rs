//! The page that `kubectl inspect gpushare` reads: nodes, their devices, and the pods on them.

use http::StatusCode;
use loadmaster_extender_server::PageReply;
use serde::Serialize;

use crate::devices::{Capacity, Claim, Devices};

#[derive(Serialize)]
struct Report<'a> {
    nodes: Vec<Node<'a>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

#[derive(Serialize)]
struct Node<'a> {
    name: &'a str,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    devs: Vec<Device<'a>>,
}

#[derive(Serialize)]
struct Device<'a> {
    id: u32,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    pods: Vec<Pod<'a>>,
}

#[derive(Serialize)]
struct Pod<'a> {
    name: &'a str,
    namespace: &'a str,
    #[serde(rename = "usedGPU")]
    used: u64,
}

/// All nodes, or only the one with this name.
pub fn inspect(devices: &Devices, name: &str) -> PageReply {
    let nodes = devices.nodes().filter(|(node, _)| name.is_empty() || *node == name);
    let nodes: Vec<Node<'_>> = nodes.map(|(name, it)| node(devices, name, it)).collect();
    let (status, error) = match nodes.is_empty() && !name.is_empty() {
        true => (StatusCode::NOT_FOUND, format!("the node {name} does not share GPUs")),
        false => (StatusCode::OK, String::new()),
    };
    PageReply::json(status, &Report { nodes, error })
}

fn node<'a>(devices: &'a Devices, name: &'a str, capacity: Capacity) -> Node<'a> {
    let total = capacity.device_memory();
    let empty = |id| Device { id, total, used: 0, pods: Vec::new() };
    let mut devs: Vec<Device<'_>> = (0..capacity.count).map(empty).collect();
    for claim in devices.claims(name) {
        let at = devs.iter().position(|device| device.id == claim.device).unwrap_or_else(|| {
            // The node had more devices before.
            devs.push(Device { total: 0, ..empty(claim.device) });
            devs.len() - 1
        });
        devs[at].used = devs[at].used.saturating_add(claim.memory);
        let Claim { namespace, name, memory, .. } = claim;
        devs[at].pods.push(Pod { name, namespace, used: *memory });
    }
    let used = devs.iter().map(|device| device.used).fold(0, u64::saturating_add);
    Node { name, total: capacity.memory, used, devs }
}
