//! Whether so much is free in the cluster as a PodGroup requires (upstream's `CheckClusterResource`).

use std::collections::BTreeMap;
use std::fmt;

use loadmaster_api::{ResourceList, Str};
use loadmaster_framework::resources::{RESOURCE_CPU, RESOURCE_PODS};
use loadmaster_framework::{NodeInfo, NodeRow, PodInfo, World};

/// The resources that are missing, with the amounts: thousandths of a CPU, else bytes or a number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourceGap(Vec<(Str, i64)>);

/// `resource gap: cpu: 1500m, pods: 2`.
impl fmt::Display for ResourceGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("resource gap: ")?;
        for (nth, (name, amount)) in self.0.iter().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            let unit = if *name == RESOURCE_CPU { "m" } else { "" };
            write!(f, "{comma}{name}: {amount}{unit}")?;
        }
        Ok(())
    }
}

/// Checks that the nodes have these resources free for so many pods, if they were without the pods of the group, `members`.
pub(super) fn check_free_resources<'u>(
    world: &World,
    min_resources: &ResourceList,
    n_min: usize,
    members: impl Iterator<Item = &'u str>,
) -> Result<(), ResourceGap> {
    let mut by_row: BTreeMap<NodeRow, Vec<&PodInfo>> = BTreeMap::new();
    for uid in members {
        if let (Some(row), Some(pod)) = (world.row_of_pod(uid), world.assigned_pod(uid)) {
            by_row.entry(row).or_default().push(pod);
        }
    }
    let amounts = min_resources.iter().filter(|(name, _)| **name != *RESOURCE_PODS);
    let amounts = amounts.map(|(name, quantity)| match name.as_str() {
        RESOURCE_CPU => (name.clone(), quantity.milli_value()),
        _ => (name.clone(), quantity.value()),
    });
    let pods = (Str::new(RESOURCE_PODS), n_min as i64);
    let mut missing: Vec<(Str, i64)> = amounts.chain([pods]).collect();
    for node in world.node_infos() {
        let own = by_row.get(&node.row()).map_or(&[][..], Vec::as_slice);
        for (name, amount) in &mut missing {
            *amount -= free(node, name, own);
        }
        // As upstream does: a resource that is not missing after some nodes is not missing after the others.
        missing.retain(|(_, amount)| *amount > 0);
        if missing.is_empty() {
            return Ok(());
        }
    }
    missing.retain(|(_, amount)| *amount > 0);
    missing.sort_unstable();
    if missing.is_empty() { Ok(()) } else { Err(ResourceGap(missing)) }
}

/// How much of a resource a node would have free without these pods.
fn free(node: NodeInfo<'_>, name: &str, own: &[&PodInfo]) -> i64 {
    if name == RESOURCE_PODS {
        return node.allocatable_pods() - node.n_pods() + own.len() as i64;
    }
    let allocatable = node.allocatable(name);
    if allocatable == 0 {
        // As upstream does: pods that use a resource that the node no longer has take nothing away from other nodes.
        return 0;
    }
    let own: i64 = own.iter().map(|pod| pod.requests().resources.amount(name)).sum();
    allocatable - node.requested(name) + own
}
