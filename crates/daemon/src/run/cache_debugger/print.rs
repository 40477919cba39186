//! The text of the dump, equal to upstream's (Go's format of structs).

use std::fmt::Write as _;
use std::sync::Arc;

use loadmaster_engine::queue::PendingCounts;
use loadmaster_framework::{PodInfo, Resources};

use super::{CacheDump, ListedObjects};

/// All nodes, sorted by name, separated by blank lines.
pub(super) fn nodes(dump: &CacheDump, listed: &ListedObjects) -> String {
    let mut text = String::new();
    for (name, node) in dump.sorted() {
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

/// One line per pod. The phase is taken from the list, because the scheduler does not cache it; empty if the pod is not listed.
pub(super) fn pods(pods: &[Arc<PodInfo>], listed: &ListedObjects) -> String {
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

/// The number of pods per queue. Gated pods are in unschedulablePods, as upstream.
pub(super) fn summary(counts: PendingCounts) -> String {
    let waiting = counts.unschedulable + counts.gated;
    format!("activeQ:{}; backoffQ:{}; unschedulablePods:{waiting}", counts.active, counts.backoff)
}

/// A pointer to upstream's `framework.Resource`, as Go's `%+v` prints it.
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
