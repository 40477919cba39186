//! The pods of a StatefulSet: names, identity labels, claims.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::history::REVISION_HASH;
use crate::kind::Typed;
use crate::meta::controller_reference;
use crate::workload::pod_from_template;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The name of the StatefulSet and the ordinal, from the name of a pod.
pub(super) fn identity(name: &str) -> Option<(&str, i32)> {
    let (set, digits) = name.rsplit_once('-')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((set, digits.parse().ok().filter(|_| is_number)?))
}

/// The ordinal of a pod; None if it does not belong to the set.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let (parent, ordinal) = identity(pod.metadata.name.as_deref()?)?;
    (Some(parent) == set.metadata.name.as_deref()).then_some(ordinal)
}

fn name_of(set: &StatefulSet) -> &str {
    set.metadata.name.as_deref().unwrap_or_default()
}

fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    let claim = template.metadata.name.as_deref().unwrap_or_default();
    format!("{claim}-{}-{ordinal}", name_of(set))
}

/// The claims of the pod with an ordinal.
pub(super) fn claims(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    ordinal: i32,
) -> Vec<PersistentVolumeClaim> {
    let make = |template: &PersistentVolumeClaim| {
        let mut claim = template.clone();
        claim.metadata.name = Some(claim_name(set, template, ordinal));
        claim.metadata.namespace = set.metadata.namespace.clone();
        if let Some(labels) = &spec.selector.match_labels {
            let all = claim.metadata.labels.get_or_insert_default();
            all.extend(labels.clone());
        }
        claim.status = None;
        claim
    };
    spec.volume_claim_templates.iter().flatten().map(make).collect()
}

/// Creates the pod with an ordinal from the template.
pub(super) fn new_pod(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    template: &PodTemplateSpec,
    revision: &str,
    ordinal: i32,
) -> Pod {
    let mut pod = pod_from_template(template, set);
    let name = format!("{}-{ordinal}", name_of(set));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(REVISION_HASH.to_owned(), revision.to_owned());
    if let Some(inner) = &mut pod.spec {
        inner.hostname = Some(name.clone());
        inner.subdomain = spec.service_name.clone().filter(|name| !name.is_empty());
    }
    pod.metadata.name = Some(name);
    update_identity(set, spec, ordinal, &mut pod);
    pod
}

/// Sets the identity labels and volumes of a pod.
pub(super) fn update_identity(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    ordinal: i32,
    pod: &mut Pod,
) {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name);
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    let templates = spec.volume_claim_templates.as_deref().unwrap_or_default();
    let Some(inner) = pod.spec.as_mut().filter(|_| !templates.is_empty()) else { return };
    let volume = |template: &PersistentVolumeClaim| Volume {
        name: template.metadata.name.clone().unwrap_or_default(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(set, template, ordinal),
            read_only: None,
        }),
        ..Volume::default()
    };
    let mut volumes: Vec<Volume> = templates.iter().map(volume).collect();
    let others = inner.volumes.take().into_iter().flatten();
    let others: Vec<Volume> =
        others.filter(|one| volumes.iter().all(|volume| volume.name != one.name)).collect();
    volumes.extend(others);
    inner.volumes = Some(volumes);
}

/// Whether a pod has its identity labels and volumes.
pub(super) fn identity_matches(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    ordinal: i32,
    pod: &Pod,
) -> bool {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(POD_NAME));
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    label == pod.metadata.name.as_ref()
        && spec.volume_claim_templates.iter().flatten().all(|template| {
            let volume =
                volumes.iter().find(|one| Some(&one.name) == template.metadata.name.as_ref());
            let source = volume.and_then(|one| one.persistent_volume_claim.as_ref());
            source.is_some_and(|one| one.claim_name == claim_name(set, template, ordinal))
        })
}

/// The revision that a pod was made from.
pub(super) fn revision(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(REVISION_HASH)).map_or("", String::as_str)
}

/// Whether claims are deleted when the set is deleted, and when it is scaled down.
pub(super) fn claim_retention_policy(spec: &StatefulSetSpec) -> (bool, bool) {
    let policy = spec.persistent_volume_claim_retention_policy.as_ref();
    let is_delete = |value: Option<&String>| value.is_some_and(|value| value == "Delete");
    (
        is_delete(policy.and_then(|one| one.when_deleted.as_ref())),
        is_delete(policy.and_then(|one| one.when_scaled.as_ref())),
    )
}

fn names<K: Typed>(reference: &OwnerReference, object: &K) -> bool {
    reference.kind == K::KIND
        && reference.api_version == K::API_VERSION
        && Some(&reference.name) == object.metadata().name.as_ref()
}

/// Whether a claim belongs to an earlier pod of the same name.
pub(super) fn is_claim_stale(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|one| names(one, pod) && Some(&one.uid) != pod.metadata.uid.as_ref())
}

/// The owner references that a claim should have by the retention policy; None if they are right, or must not be changed.
pub(super) fn owners(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    pod: &Pod,
    is_wanted: bool,
    claim: &PersistentVolumeClaim,
) -> Option<Vec<OwnerReference>> {
    let all = claim.metadata.owner_references.clone().unwrap_or_default();
    let is = |one: &OwnerReference, meta: &ObjectMeta| Some(&one.uid) == meta.uid.as_ref();
    let is_former = |one: &OwnerReference| {
        names(one, set) && !is(one, &set.metadata) || names(one, pod) && !is(one, &pod.metadata)
    };
    if all.iter().any(is_former) {
        return None;
    }
    let (with_set, with_scale) = claim_retention_policy(spec);
    let is_ours = |one: &OwnerReference| names(one, set) || names(one, pod);
    let is_others = |one: &OwnerReference| one.controller == Some(true) && !is_ours(one);
    let mut wanted: Vec<OwnerReference> = all.iter().filter(|one| !is_ours(one)).cloned().collect();
    let is_alien = (with_set || with_scale) && all.iter().any(is_others);
    if !is_alien && with_scale && !is_wanted {
        wanted
            .push(OwnerReference { block_owner_deletion: Some(true), ..controller_reference(pod) });
    } else if !is_alien && with_set {
        wanted.push(controller_reference(set));
    }
    let same = |one: &OwnerReference| {
        wanted.iter().any(|other| {
            other.uid == one.uid && (!is_ours(one) || other.controller == one.controller)
        })
    };
    let is_right = wanted.len() == all.len() && all.iter().all(same);
    (!is_right).then_some(wanted)
}
