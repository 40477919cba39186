//! Reset fields: what a write through a resource or subresource cannot change, and so cannot own (upstream's
//! `GetResetFields`).

use super::field_set::FieldSet;
use crate::schema::Kind;

/// Fields that are left out of what a write changes.
#[derive(Clone, Debug, Default)]
pub enum ResetFields {
    /// None.
    #[default]
    Nothing,
    /// These and all below.
    Fields(FieldSet),
    /// All but what is under one of these paths; `None` is any step.
    AllBut(&'static [&'static [Option<&'static str>]]),
}

/// Resources whose status is written without touching their metadata.
const KEEP_METADATA: &[(&str, &str)] = &[
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
    ("internal.apiserver.k8s.io", "storageversions"),
    ("networking.k8s.io", "servicecidrs"),
    ("resource.k8s.io", "devicetaintrules"),
    ("resource.k8s.io", "resourceclaims"),
    ("resource.k8s.io", "resourcepoolstatusrequests"),
    ("scheduling.k8s.io", "podgroups"),
    ("storage.k8s.io", "volumeattachments"),
    ("storagemigration.k8s.io", "storageversionmigrations"),
];

const EPHEMERAL_CONTAINERS: &[&[Option<&str>]] = &[&[Some("spec"), Some("ephemeralContainers")]];

const RESIZE: &[&[Option<&str>]] = &[
    &[Some("spec"), Some("containers"), None, Some("resources")],
    &[Some("spec"), Some("containers"), None, Some("resizePolicy")],
    &[Some("spec"), Some("initContainers"), None, Some("resources")],
    &[Some("spec"), Some("initContainers"), None, Some("resizePolicy")],
];

impl ResetFields {
    /// `GetResetFields` of upstream's strategies.
    pub fn of(kind: &Kind, subresource: &str) -> ResetFields {
        let is_csr = kind.is("certificates.k8s.io", "certificatesigningrequests");
        let fields: &[&[&str]] = match subresource {
            "" if is_csr => &[&["spec"], &["status"]],
            "" if kind.is("certificates.k8s.io", "podcertificaterequests") => &[],
            "" if kind.has_status() => &[&["status"]],
            "status" if is_csr => &[&["spec"], &["status", "conditions"]],
            "approval" => &[&["spec"], &["status", "certificate"]],
            "status" if kind.is("apps", "deployments") => &[&["spec"], &["metadata", "labels"]],
            "status" if kind.is("", "pods") => {
                &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]]
            }
            "status" if ResetFields::status_keeps_metadata(kind) => &[&["metadata"], &["spec"]],
            "status" => &[&["spec"]],
            "finalize" => &[&["status"]],
            "ephemeralcontainers" => return ResetFields::AllBut(EPHEMERAL_CONTAINERS),
            "resize" => return ResetFields::AllBut(RESIZE),
            _ => &[],
        };
        ResetFields::fields(fields)
    }

    /// Whether a write of the status leaves all metadata alone.
    pub fn status_keeps_metadata(kind: &Kind) -> bool {
        KEEP_METADATA.iter().any(|(group, name)| kind.is(group, name))
    }

    /// Fields of custom resources with a status of their own.
    pub fn of_custom(has_status: bool, subresource: &str) -> ResetFields {
        match subresource {
            "" if has_status => ResetFields::fields(&[&["status"]]),
            "status" => ResetFields::fields(&[&["metadata"], &["spec"]]),
            _ => ResetFields::Nothing,
        }
    }

    fn fields(paths: &[&[&str]]) -> ResetFields {
        if paths.is_empty() {
            return ResetFields::Nothing;
        }
        ResetFields::Fields(
            paths.iter().fold(FieldSet::default(), |all, path| all.union(&FieldSet::of(path))),
        )
    }

    /// What is left of a set.
    pub(super) fn apply(&self, set: &FieldSet) -> FieldSet {
        match self {
            ResetFields::Nothing => set.clone(),
            ResetFields::Fields(fields) => set.without(fields),
            ResetFields::AllBut(patterns) => set.only(patterns),
        }
    }
}
