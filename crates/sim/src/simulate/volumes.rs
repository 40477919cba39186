//! Claims and volumes in a simulation: the objects, the users and controllers that change them, and the invariants about them.
//!
//! | module | |
//! | --- | --- |
//! | `workload` | users and administrators: claims of pods, static volumes, classes, limits, capacities |
//! | `controllers` | binding of claims and volumes, their protection, claims of ephemeral volumes, CSINodes, VolumeAttachments |
//! | `provisioner` | a CSI driver with topology and capacity that provisions slowly, and fails |
//! | `model` | what the engine must do with claims |
//! | `invariants` | what must hold of the objects of the API server |
//! | `injected_bugs` | bugs that the invariants detect |

mod controllers;
mod injected_bugs;
mod invariants;
mod model;
mod provisioner;
mod workload;

use std::sync::LazyLock;

use loadmaster_api::{Pod, Str};
use loadmaster_framework::Gvr;
use loadmaster_framework::api_calls::ObjectRef;
use serde_json::Value;

use crate::fake_api_server::{FakeApiServer, WatchedKind};

pub(super) use injected_bugs::{alter_call, altered_event, is_not_sent};
pub(super) use invariants::{check_objects, check_settled};
pub(super) use model::{VolumeModel, check_reserved};
pub(super) use workload::VolumeWorkload;

/// The only CSI driver.
const DRIVER: &str = "disk.example.com";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const ZONE: &str = "topology.kubernetes.io/zone";
const ZONES: [&str; 3] = ["z1", "z2", "z3"];

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// A label of volumes whose user has reserved them for a claim.
const RESERVED_BY_USER: &str = "reserved-by-user";

/// The kinds around volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeKind {
    Claim,
    Volume,
    Class,
    CsiNode,
    CsiDriver,
    Capacity,
    Attachment,
}

impl VolumeKind {
    pub const ALL: [VolumeKind; 7] = [
        VolumeKind::Claim,
        VolumeKind::Volume,
        VolumeKind::Class,
        VolumeKind::CsiNode,
        VolumeKind::CsiDriver,
        VolumeKind::Capacity,
        VolumeKind::Attachment,
    ];

    fn group_resource(self) -> (&'static str, &'static str) {
        match self {
            VolumeKind::Claim => ("", "persistentvolumeclaims"),
            VolumeKind::Volume => ("", "persistentvolumes"),
            VolumeKind::Class => ("storage.k8s.io", "storageclasses"),
            VolumeKind::CsiNode => ("storage.k8s.io", "csinodes"),
            VolumeKind::CsiDriver => ("storage.k8s.io", "csidrivers"),
            VolumeKind::Capacity => ("storage.k8s.io", "csistoragecapacities"),
            VolumeKind::Attachment => ("storage.k8s.io", "volumeattachments"),
        }
    }

    fn gvr(self) -> Gvr {
        let (group, resource) = self.group_resource();
        Gvr::new(group, "v1", resource)
    }

    pub fn watched(self) -> &'static WatchedKind {
        static KINDS: LazyLock<[WatchedKind; 7]> =
            LazyLock::new(|| VolumeKind::ALL.map(|kind| WatchedKind::Other(kind.gvr())));
        &KINDS[self as usize]
    }

    /// The kind of an object, if it is one of these.
    pub fn of(object: &ObjectRef) -> Option<VolumeKind> {
        let kind = (object.group.as_str(), object.resource.as_str());
        VolumeKind::ALL.into_iter().find(|known| known.group_resource() == kind)
    }
}

/// The objects around volumes in the API server.
pub(super) struct Storage<'a>(&'a mut FakeApiServer);

impl Storage<'_> {
    fn get(&self, kind: VolumeKind, name: &str) -> Option<&Value> {
        self.0.custom_object(kind.watched(), name)
    }

    fn all(&self, kind: VolumeKind) -> impl Iterator<Item = (&Str, &Value)> {
        self.0.custom_objects(kind.watched())
    }

    fn names(&self, kind: VolumeKind) -> Vec<Str> {
        self.all(kind).map(|(name, _)| name.clone()).collect()
    }

    /// Creates or replaces an object.
    fn put(&mut self, kind: VolumeKind, object: Value) {
        let name = Str::new(&full_name(&object));
        self.0.upsert_custom_object(kind.watched().clone(), &name, object);
    }

    fn edit(&mut self, kind: VolumeKind, name: &str, change: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.get(kind, name).cloned() {
            change(&mut object);
            self.put(kind, object);
        }
    }

    fn delete(&mut self, kind: VolumeKind, name: &str) {
        self.0.delete_custom_object(kind.watched().clone(), &Str::new(name));
    }
}

/// A field of an object, by names with a slash before each; not in lists.
fn field<'v>(object: &'v Value, at: &str) -> Option<&'v Value> {
    at.split('/').skip(1).try_fold(object, |value, name| value.get(name))
}

/// A text in an object; empty if there is none.
fn text<'v>(object: &'v Value, at: &str) -> &'v str {
    field(object, at).and_then(Value::as_str).unwrap_or_default()
}

fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object["metadata"]["annotations"].get(key)?.as_str()
}

fn annotate(object: &mut Value, key: &str, value: &str) {
    object["metadata"]["annotations"][key] = value.into();
}

/// `name` or `namespace/name`.
fn full_name(object: &Value) -> String {
    let name = text(object, "/metadata/name");
    match text(object, "/metadata/namespace") {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    }
}

fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

fn is_terminating(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// Whether the binding of a claim is complete.
fn is_bound(claim: &Value) -> bool {
    !text(claim, "/spec/volumeName").is_empty() && annotation(claim, BIND_COMPLETED).is_some()
}

/// The claim reference of a volume: `namespace/name` and uid.
fn claim_ref(volume: &Value) -> Option<(String, &str)> {
    let reference = field(volume, "/spec/claimRef").filter(|it| !it.is_null())?;
    let name = format!("{}/{}", text(reference, "/namespace"), text(reference, "/name"));
    Some((name, text(reference, "/uid")))
}

/// Whether a volume is bound to this claim, or reserved for it.
fn is_for(volume: &Value, claim: &Value) -> bool {
    claim_ref(volume).is_some_and(|(name, known)| {
        name == full_name(claim) && (known.is_empty() || known == uid(claim))
    })
}

/// Whether nodes with these labels have access to a volume.
fn is_accessible(volume: &Value, label: impl Fn(&str) -> Option<String>) -> bool {
    let terms = field(volume, "/spec/nodeAffinity/required/nodeSelectorTerms");
    let Some(terms) = terms.and_then(Value::as_array) else { return true };
    let matches = |requirement: &Value| {
        let value = label(text(requirement, "/key"));
        let values = requirement["values"].as_array();
        values.into_iter().flatten().any(|wanted| wanted.as_str() == value.as_deref())
    };
    let all = |term: &Value| {
        let requirements = term["matchExpressions"].as_array();
        requirements.into_iter().flatten().all(matches)
    };
    terms.iter().any(all)
}

/// The full names of a pod's claims, with those of its ephemeral volumes.
pub(super) fn claim_names(pod: &Pod) -> impl Iterator<Item = String> {
    let metadata = &pod.metadata;
    pod.spec.volumes.iter().filter_map(move |volume| {
        let name = match &volume.persistent_volume_claim {
            Some(claim) => claim.claim_name.to_string(),
            None => format!(
                "{}-{}",
                metadata.name,
                volume.ephemeral.as_ref().map(|_| volume.name.as_str())?
            ),
        };
        Some(format!("{}/{name}", metadata.namespace))
    })
}

/// A number of GiB as a quantity, and back.
fn gi(n: i64) -> String {
    format!("{n}Gi")
}

fn gi_of(quantity: &Value) -> i64 {
    let number = quantity.as_str().and_then(|text| text.strip_suffix("Gi"));
    number.and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// The size of a volume or of a claim's request, in GiB.
fn size(object: &Value) -> i64 {
    let spec = &object["spec"];
    gi_of(field(spec, "/capacity/storage").unwrap_or(&spec["resources"]["requests"]["storage"]))
}
