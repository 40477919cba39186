//! ControllerRevisions: the templates that StatefulSets and DaemonSets have had.

use std::cmp::Ordering;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use crate::kind::Typed;
use crate::meta::controller_reference;
use crate::result_builder::ReconcileResultBuilder;
use crate::workload::by_age;

/// The label of a pod with the revision that it was created from.
pub(crate) const REVISION_HASH: &str = "controller-revision-hash";

/// A template as a revision keeps it: a strategic merge patch that brings it back, which is what `kubectl rollout undo` sends.
fn data(template: &PodTemplateSpec) -> RawExtension {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = "replace".into();
    RawExtension(json!({"spec": {"template": template}}))
}

/// The template that a revision keeps.
pub(crate) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let RawExtension(data) = revision.data.as_ref()?;
    let mut template: Value = data.get("spec")?.get("template")?.clone();
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template).ok()
}

/// Whether a revision keeps this template.
pub(crate) fn matches_template(revision: &ControllerRevision, made_from: &PodTemplateSpec) -> bool {
    template(revision).as_ref() == Some(made_from)
}

/// A new revision of a set's template. `hash` is a label beside the template's: its name and value.
pub(crate) fn new_revision<K: Typed>(
    set: &K,
    template: &PodTemplateSpec,
    name: &str,
    hash: (&str, &str),
    number: i64,
) -> ControllerRevision {
    let owner = set.metadata();
    let labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone());
    let mut labels = labels.unwrap_or_default();
    labels.insert(hash.0.to_owned(), hash.1.to_owned());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: owner.namespace.clone(),
            labels: Some(labels),
            annotations: owner.annotations.clone(),
            owner_references: Some(vec![controller_reference(set)]),
            ..ObjectMeta::default()
        },
        data: Some(data(template)),
        revision: number,
    }
}

/// Gives a revision that is current again the newest number, if it has an older one.
pub(crate) fn bump_revision(
    revision: &ControllerRevision,
    number: i64,
    writes: &mut ReconcileResultBuilder,
) {
    if revision.revision < number {
        writes.update(&ControllerRevision { revision: number, ..revision.clone() });
    }
}

/// How many of the old revisions are too many.
pub(crate) fn excess_revisions(n_old: usize, limit: Option<i32>) -> usize {
    n_old.saturating_sub(usize::try_from(limit.unwrap_or(10)).unwrap_or(usize::MAX))
}

/// Older revisions first.
pub(crate) fn by_revision(a: &ControllerRevision, b: &ControllerRevision) -> Ordering {
    a.revision.cmp(&b.revision).then_with(|| by_age(&a.metadata, &b.metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    #[test]
    fn a_revision_restores_its_template() {
        let made: PodTemplateSpec = from_value(json!({"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}))
        .unwrap();
        let revision = ControllerRevision { data: Some(data(&made)), ..Default::default() };
        assert_eq!(template(&revision), Some(made));
        let patch = serde_json::to_value(revision.data).unwrap();
        assert_eq!(patch["spec"]["template"]["$patch"], "replace");
        assert_eq!(template(&ControllerRevision::default()), None);
        assert_eq!(
            [
                excess_revisions(3, Some(1)),
                excess_revisions(12, None),
                excess_revisions(3, Some(-1))
            ],
            [2, 2, 0]
        );
    }
}
