//! What `explain` says: how many volumes of the pod's drivers a node has, and how many it can have.

use loadmaster_framework::{Cx, Detail, Explain, NodeInfo, PodInfo};

use super::pod_volumes::CountedVolume;
use super::{NodeVolumeLimits, View};

impl Explain for NodeVolumeLimits {
    fn node_details(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let view = View { slots: &self.slots, world: cx.world, states: cx.states };
        let volumes = view.volumes(pod);
        let counted: Vec<&CountedVolume> =
            volumes.iter().filter_map(|volume| volume.as_ref().ok()).collect();
        let Some(csi_node) = view.csi_node(node.name()) else { return Vec::new() };
        // Volumes that cannot be counted fail the attempt, with their own message.
        let Ok(usage) = view.usage(csi_node, node.pods(), counted) else { return Vec::new() };
        let limited = usage.iter().filter_map(|it| {
            let (limit, n_attached, n_new) = (it.limit?, it.n_attached, it.n_new);
            Some(format!("{}: {n_attached} of {limit} attached, {n_new} more needed", it.driver))
        });
        let limited: Vec<String> = limited.collect();
        if limited.is_empty() {
            return Vec::new();
        }
        vec![Detail::new("attached", limited.join("; "))]
    }
}
