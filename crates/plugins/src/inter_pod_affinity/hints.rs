//! Queueing hints: which events wake a rejected pod. Here, unlike in Filter, upstream evaluates
//! namespace selectors against empty labels, in both directions: a term selects the namespaces that
//! it names, and all namespaces if its selector matches empty labels.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::cluster_event::{EventObject, QueueingHintArgs};
use loadmaster_framework::template::AffinityTerm;
use loadmaster_framework::{Failure, PodInfo, QueueingHint};

pub(super) fn after_pod_change(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let pod = hint_args.pod;
    let old = hint_args.old.and_then(EventObject::pod);
    let new = hint_args.new.and_then(EventObject::pod);
    // Its own labels changed: terms of existing pods may no longer match it.
    if let (Some(_), Some(new)) = (old, new)
        && new.uid == pod.uid
    {
        return Ok(QueueingHint::Queue);
    }
    if [old, new].into_iter().flatten().any(has_no_node) {
        return Ok(QueueingHint::Skip);
    }
    let matches_affinity =
        |other: &PodInfo| all_terms_match(&pod.template.required_affinity, other);
    let matches_anti_affinity =
        |other: &PodInfo| all_terms_match(&pod.template.required_anti_affinity, other);
    let has_anti_affinity =
        |other: &PodInfo| all_terms_match(&other.template.required_anti_affinity, pod);
    Ok(QueueingHint::queue_if(match (old, new) {
        (Some(old), Some(new)) => {
            !matches_affinity(old) && matches_affinity(new)
                || matches_anti_affinity(old) && !matches_anti_affinity(new)
        }
        (None, Some(new)) => matches_affinity(new),
        (Some(old), None) => matches_anti_affinity(old) || has_anti_affinity(old),
        (None, None) => false,
    }))
}

pub(super) fn after_node_change(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let (old, new) = hint_args.old_and_new_node()?;
    let pod = &hint_args.pod.template;
    let after = &new.metadata.labels;
    let Some(old) = old else {
        let joins = |term: &AffinityTerm| after.contains_key(&term.topology_key);
        let may_help =
            pod.required_affinity.iter().any(joins) || !pod.required_anti_affinity.is_empty();
        return Ok(QueueingHint::queue_if(may_help));
    };
    let before = &old.metadata.labels;
    let joins = |key: &Str| after.contains_key(key) && after.get(key) != before.get(key);
    let leaves = |key: &Str| before.contains_key(key) && after.get(key) != before.get(key);
    Ok(QueueingHint::queue_if(
        pod.required_affinity.iter().any(|term| joins(&term.topology_key))
            || pod.required_anti_affinity.iter().any(|term| leaves(&term.topology_key)),
    ))
}

fn has_no_node(pod: &PodInfo) -> bool {
    pod.node_name.is_empty() && pod.nominated_node_name.is_empty()
}

fn all_terms_match(terms: &[AffinityTerm], pod: &PodInfo) -> bool {
    let template = &pod.template;
    let matches = |term: &AffinityTerm| {
        term.matches(&template.namespace, &Labels::default(), &template.labels)
    };
    !terms.is_empty() && terms.iter().all(matches)
}
