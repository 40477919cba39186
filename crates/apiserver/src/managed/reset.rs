//! What a write through a resource or subresource cannot change, and so nobody comes to own by it.

use super::set::Set;
use crate::schema::Kind;

/// Fields that are left out of what a write changes.
#[derive(Clone, Debug, Default)]
pub enum Reset {
    /// None.
    #[default]
    Nothing,
    /// These and all below.
    Fields(Set),
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

impl Reset {
    /// `GetResetFields` of upstream's strategies.
    pub fn of(kind: &Kind, subresource: &str) -> Reset {
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
            "status" if Reset::keeps_metadata(kind) => &[&["metadata"], &["spec"]],
            "status" => &[&["spec"]],
            "finalize" => &[&["status"]],
            "ephemeralcontainers" => return Reset::AllBut(EPHEMERAL_CONTAINERS),
            "resize" => return Reset::AllBut(RESIZE),
            _ => &[],
        };
        Reset::fields(fields)
    }

    /// Whether a write of the status leaves all metadata alone.
    pub fn keeps_metadata(kind: &Kind) -> bool {
        KEEP_METADATA.iter().any(|(group, name)| kind.is(group, name))
    }

    /// Fields of custom resources with a status of their own.
    pub fn of_custom(has_status: bool, subresource: &str) -> Reset {
        match subresource {
            "" if has_status => Reset::fields(&[&["status"]]),
            "status" => Reset::fields(&[&["metadata"], &["spec"]]),
            _ => Reset::Nothing,
        }
    }

    fn fields(paths: &[&[&str]]) -> Reset {
        if paths.is_empty() {
            return Reset::Nothing;
        }
        Reset::Fields(paths.iter().fold(Set::default(), |all, path| all.union(&Set::of(path))))
    }

    /// What is left of a set.
    pub(super) fn apply(&self, set: &Set) -> Set {
        match self {
            Reset::Nothing => set.clone(),
            Reset::Fields(fields) => set.without(fields),
            Reset::AllBut(patterns) => set.only(patterns),
        }
    }
}
