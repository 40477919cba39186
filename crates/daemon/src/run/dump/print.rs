//! The dump's text: upstream's, which is Go's way to print structures.

use std::fmt::Write as _;
use std::sync::Arc;

use loadmaster_engine::queue::Counts;
use loadmaster_framework::{PodInfo, Resources};

use super::{Listed, Picture};

/// All nodes by name, a blank line between two.
pub(super) fn nodes(picture: &Picture, listed: &Listed) -> String {
    let mut text = String::new();
    for (name, node) in picture.sorted() {
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        let [requested, allocatable] = [&node.requested, &node.allocatable].map(resources);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "Node name: {name}\nDeleted: {}\nRequested Resources: {requested}\nAllocatable Resources:{allocatable}\n\
             Scheduled Pods(number: {}):\n{}",
            node.is_deleted,
            node.pods.len(),
            pods(&node.pods, listed),
        );
        if !node.nominated.is_empty() {
            let n = node.nominated.len();
            let _ = write!(text, "Nominated Pods(number: {n}):\n{}", pods(&node.nominated, listed));
        }
    }
    text
}

/// A line a pod. The phase is that of the list, since the scheduler keeps none; empty when it is not listed.
pub(super) fn pods(pods: &[Arc<PodInfo>], listed: &Listed) -> String {
    let mut text = String::new();
    for pod in pods {
        let phase = listed.pods.get(&pod.uid).map_or("", |pod| pod.phase.as_str());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "name: {}, namespace: {}, uid: {}, phase: {phase}, nominated node: {}",
            pod.name, pod.template.namespace, pod.uid, pod.nominated_node_name
        );
    }
    text
}

/// How many pods wait where. Gated pods are among the unschedulable ones, as upstream.
pub(super) fn summary(counts: Counts) -> String {
    let waiting = counts.unschedulable + counts.gated;
    format!("activeQ:{}; backoffQ:{}; unschedulablePods:{waiting}", counts.active, counts.backoff)
}

/// A pointer to upstream's `framework.Resource`, as `%+v` prints it.
fn resources(all: &Resources) -> String {
    let scalars: Vec<String> =
        all.scalars.iter().map(|(name, amount)| format!("{name}:{amount}")).collect();
    format!(
        "&{{MilliCPU:{} Memory:{} EphemeralStorage:{} AllowedPodNumber:{} ScalarResources:map[{}]}}",
        all.cpu_milli,
        all.memory_bytes,
        all.ephemeral_storage_bytes,
        all.pods,
        scalars.join(" ")
    )
}
