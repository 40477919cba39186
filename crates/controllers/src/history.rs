//! ControllerRevisions: the templates that StatefulSets and DaemonSets have had.

use std::cmp::Ordering;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use crate::workload::by_age;

/// The label of a pod that says from which revision it was made.
pub(crate) const REVISION_HASH: &str = "controller-revision-hash";

/// A template as a revision keeps it: a strategic merge patch that brings it back, which is what `kubectl rollout undo` sends.
pub(crate) fn data(template: &PodTemplateSpec) -> RawExtension {
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

/// Older revisions first.
pub(crate) fn by_revision(a: &ControllerRevision, b: &ControllerRevision) -> Ordering {
    a.revision.cmp(&b.revision).then_with(|| by_age(&a.metadata, &b.metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    #[test]
    fn a_revision_brings_its_template_back() {
        let made: PodTemplateSpec = from_value(json!({"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}))
        .unwrap();
        let revision = ControllerRevision { data: Some(data(&made)), ..Default::default() };
        assert_eq!(template(&revision), Some(made));
        let patch = serde_json::to_value(revision.data).unwrap();
        assert_eq!(patch["spec"]["template"]["$patch"], "replace");
        assert_eq!(template(&ControllerRevision::default()), None);
    }
}
