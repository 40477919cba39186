//! What wakes a pod that was turned down. Here, unlike in Filter, upstream evaluates namespace
//! selectors against no labels at all, in both directions: a term reaches the namespaces it names,
//! and all if its selector asks for no label.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::event::{EventObject, HintQuestion};
use loadmaster_framework::template::AffinityTerm;
use loadmaster_framework::{Failure, Hint, PodInfo};

pub(super) fn after_pod_change(question: &HintQuestion<'_>) -> Result<Hint, Failure> {
    let pod = question.pod;
    let old = question.old.and_then(EventObject::pod);
    let new = question.new.and_then(EventObject::pod);
    // Its own labels changed: pods on nodes may now think otherwise of it.
    if let (Some(_), Some(new)) = (old, new)
        && new.uid == pod.uid
    {
        return Ok(Hint::Queue);
    }
    if [old, new].into_iter().flatten().any(has_no_node) {
        return Ok(Hint::Skip);
    }
    let wanted = |other: &PodInfo| all_speak_of(&pod.template.required_affinity, other);
    let unwanted = |other: &PodInfo| all_speak_of(&pod.template.required_anti_affinity, other);
    let unwilling = |other: &PodInfo| all_speak_of(&other.template.required_anti_affinity, pod);
    Ok(queue_if(match (old, new) {
        (Some(old), Some(new)) => !wanted(old) && wanted(new) || unwanted(old) && !unwanted(new),
        (None, Some(new)) => wanted(new),
        (Some(old), None) => unwanted(old) || unwilling(old),
        (None, None) => false,
    }))
}

pub(super) fn after_node_change(question: &HintQuestion<'_>) -> Result<Hint, Failure> {
    let (old, new) = question.node_change()?;
    let pod = &question.pod.template;
    let after = &new.metadata.labels;
    let Some(old) = old else {
        let joins = |term: &AffinityTerm| after.contains_key(&term.topology_key);
        let may_help =
            pod.required_affinity.iter().any(joins) || !pod.required_anti_affinity.is_empty();
        return Ok(queue_if(may_help));
    };
    let before = &old.metadata.labels;
    let joins = |key: &Str| after.contains_key(key) && after.get(key) != before.get(key);
    let leaves = |key: &Str| before.contains_key(key) && after.get(key) != before.get(key);
    Ok(queue_if(
        pod.required_affinity.iter().any(|term| joins(&term.topology_key))
            || pod.required_anti_affinity.iter().any(|term| leaves(&term.topology_key)),
    ))
}

fn has_no_node(pod: &PodInfo) -> bool {
    pod.node_name.is_empty() && pod.nominated_node_name.is_empty()
}

fn all_speak_of(terms: &[AffinityTerm], pod: &PodInfo) -> bool {
    let template = &pod.template;
    let speaks = |term: &AffinityTerm| {
        term.matches(&template.namespace, &Labels::default(), &template.labels)
    };
    !terms.is_empty() && terms.iter().all(speaks)
}

fn queue_if(may_help: bool) -> Hint {
    if may_help { Hint::Queue } else { Hint::Skip }
}
