//! Queueing hints: a rejected pod is woken by events that may change a count or add or remove a domain.

use loadmaster_api::Labels;
use loadmaster_framework::cluster_event::{EventObject, QueueingHintArgs};
use loadmaster_framework::{Failure, PodInfo, QueueingHint};

use super::PodTopologySpread;
use super::constraint::{Constraint, has_all_keys};

impl PodTopologySpread {
    pub(super) fn after_pod_change(
        &self,
        hint_args: &QueueingHintArgs<'_>,
    ) -> Result<QueueingHint, Failure> {
        let pod = hint_args.pod;
        let old = hint_args.old.and_then(EventObject::pod);
        let new = hint_args.new.and_then(EventObject::pod);
        if ![old, new].into_iter().flatten().all(|other| is_involved(other, pod)) {
            return Ok(QueueingHint::Skip);
        }
        let constraints =
            self.hard_constraints(hint_args.world.cluster_objects(), &pod.template)?;
        let matches = |constraint: &Constraint, other: &PodInfo| {
            constraint.pods.selector.matches(&other.template.labels)
        };
        Ok(QueueingHint::queue_if(match (old, new) {
            (Some(old), Some(new)) => {
                tolerations_changed(pod, old, new, &constraints)
                    || constraints.iter().any(|c| matches(c, old) != matches(c, new))
            }
            (Some(other), None) | (None, Some(other)) => {
                constraints.iter().any(|constraint| matches(constraint, other))
            }
            (None, None) => false,
        }))
    }

    pub(super) fn after_node_change(
        &self,
        hint_args: &QueueingHintArgs<'_>,
    ) -> Result<QueueingHint, Failure> {
        let constraints =
            self.hard_constraints(hint_args.world.cluster_objects(), &hint_args.pod.template)?;
        let old = hint_args.old.and_then(EventObject::node);
        let new = hint_args.new.and_then(EventObject::node);
        let has_keys = |labels: &Labels| has_all_keys(labels, &constraints);
        Ok(QueueingHint::queue_if(match (old, new) {
            (Some(old), Some(new)) => {
                let (before, after) = (&old.metadata.labels, &new.metadata.labels);
                let moved = || constraints.iter().any(|c| before.get(&c.key) != after.get(&c.key));
                has_keys(before) != has_keys(after)
                    || has_keys(after) && (moved() || old.spec.taints != new.spec.taints)
            }
            (Some(node), None) | (None, Some(node)) => has_keys(&node.metadata.labels),
            (None, None) => false,
        }))
    }
}

/// Whether the changed pod can matter: it is the rejected pod itself, or an assigned or nominated pod
/// of the same namespace.
fn is_involved(other: &PodInfo, pod: &PodInfo) -> bool {
    let has_node = !other.node_name.is_empty() || !other.nominated_node_name.is_empty();
    other.uid == pod.uid || has_node && other.template.namespace == pod.template.namespace
}

/// Whether the tolerations of the rejected pod itself changed, and a constraint honors taints.
fn tolerations_changed(
    pod: &PodInfo,
    old: &PodInfo,
    new: &PodInfo,
    constraints: &[Constraint],
) -> bool {
    new.uid == pod.uid
        && old.template.spec.tolerations != new.template.spec.tolerations
        && constraints.iter().any(|constraint| constraint.nodes.honors_taints())
}
