//! What wakes a pod that was turned down: events that may move a count, or open or close a domain.

use loadmaster_api::Labels;
use loadmaster_framework::event::{EventObject, HintQuestion};
use loadmaster_framework::{Failure, Hint, PodInfo};

use super::PodTopologySpread;
use super::constraint::{Constraint, has_all_keys};

impl PodTopologySpread {
    pub(super) fn after_pod_change(&self, question: &HintQuestion<'_>) -> Result<Hint, Failure> {
        let pod = question.pod;
        let old = question.old.and_then(EventObject::pod);
        let new = question.new.and_then(EventObject::pod);
        if ![old, new].into_iter().flatten().all(|other| is_involved(other, pod)) {
            return Ok(Hint::Skip);
        }
        let constraints = self.hard(question.world.cluster(), &pod.template)?;
        let picked = |constraint: &Constraint, other: &PodInfo| {
            constraint.pods.selector.matches(&other.template.labels)
        };
        Ok(queue_if(match (old, new) {
            (Some(old), Some(new)) => {
                tolerates_otherwise(pod, old, new, &constraints)
                    || constraints.iter().any(|c| picked(c, old) != picked(c, new))
            }
            (Some(other), None) | (None, Some(other)) => {
                constraints.iter().any(|constraint| picked(constraint, other))
            }
            (None, None) => false,
        }))
    }

    pub(super) fn after_node_change(&self, question: &HintQuestion<'_>) -> Result<Hint, Failure> {
        let constraints = self.hard(question.world.cluster(), &question.pod.template)?;
        let old = question.old.and_then(EventObject::node);
        let new = question.new.and_then(EventObject::node);
        let counts = |labels: &Labels| has_all_keys(labels, &constraints);
        Ok(queue_if(match (old, new) {
            (Some(old), Some(new)) => {
                let (before, after) = (&old.metadata.labels, &new.metadata.labels);
                let moved = || constraints.iter().any(|c| before.get(&c.key) != after.get(&c.key));
                counts(before) != counts(after)
                    || counts(after) && (moved() || old.spec.taints != new.spec.taints)
            }
            (Some(node), None) | (None, Some(node)) => counts(&node.metadata.labels),
            (None, None) => false,
        }))
    }
}

/// Whether a pod can matter: it is the rejected one, or it is on or promised to a node and of the
/// same namespace.
fn is_involved(other: &PodInfo, pod: &PodInfo) -> bool {
    let has_node = !other.node_name.is_empty() || !other.nominated_node_name.is_empty();
    other.uid == pod.uid || has_node && other.template.namespace == pod.template.namespace
}

/// Whether the rejected pod itself got other tolerations, and a constraint looks at them.
fn tolerates_otherwise(
    pod: &PodInfo,
    old: &PodInfo,
    new: &PodInfo,
    constraints: &[Constraint],
) -> bool {
    new.uid == pod.uid
        && old.template.spec.tolerations != new.template.spec.tolerations
        && constraints.iter().any(|constraint| constraint.nodes.honors_taints())
}

fn queue_if(may_help: bool) -> Hint {
    if may_help { Hint::Queue } else { Hint::Skip }
}
