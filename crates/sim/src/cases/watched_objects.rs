//! Gives the objects of a case to the plugins that watch them.

use std::sync::Arc;

use loadmaster_framework::Gvr;
use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_framework::watched_objects::{ObjectInfo, ObjectStore};
use serde_json::Value;

use super::namespace_of;
use loadmaster_engine::world_loader::SchedulingInput;

/// Kinds that plugins watch, with their resources and whether they have namespaces.
const KINDS: [(&str, &str, &str, bool); 10] = [
    ("PersistentVolume", "", "persistentvolumes", false),
    ("PersistentVolumeClaim", "", "persistentvolumeclaims", true),
    ("StorageClass", "storage.k8s.io", "storageclasses", false),
    ("CSINode", "storage.k8s.io", "csinodes", false),
    ("CSIDriver", "storage.k8s.io", "csidrivers", false),
    ("CSIStorageCapacity", "storage.k8s.io", "csistoragecapacities", true),
    ("VolumeAttachment", "storage.k8s.io", "volumeattachments", false),
    ("PriorityClass", "scheduling.k8s.io", "priorityclasses", false),
    ("ElasticQuota", "scheduling.x-k8s.io", "elasticquotas", true),
    ("PodGroup", "scheduling.x-k8s.io", "podgroups", true),
];

/// Identifies an object of these kinds; `None` for other objects.
fn object_ref(object: &Value) -> Option<ObjectRef> {
    let kind = KINDS.iter().find(|(kind, ..)| object["kind"] == *kind);
    let (_, group, resource, has_namespace) = kind?;
    let namespace = if *has_namespace { namespace_of(object) } else { "" };
    Some(ObjectRef {
        group: (*group).into(),
        resource: (*resource).into(),
        namespace: namespace.into(),
        name: object["metadata"]["name"].as_str().unwrap_or_default().into(),
    })
}

/// Whether this is an object of a volume.
pub(super) fn is_storage_object(object: &Value) -> bool {
    let reference = object_ref(object);
    reference.is_some_and(|it| matches!(it.group.as_str(), "" | "storage.k8s.io"))
}

/// The object as the API server has it: in the namespace `default` if it names none.
fn with_namespace(object: &Value, reference: &ObjectRef) -> Value {
    let mut object = object.clone();
    if !reference.namespace.is_empty() {
        object["metadata"]["namespace"] = reference.namespace.as_str().into();
    }
    object
}

/// Adds the objects that plugins of the pod's profile watch to its world.
///
/// # Errors
///
/// Why an object cannot be decoded.
pub(super) fn add_to_world(
    input: &mut SchedulingInput<'_>,
    objects: &[Value],
) -> Result<(), String> {
    for watch in &input.profile.watches {
        let Gvr { group, resource, .. } = &watch.kind;
        input.world.watch_objects(watch);
        input.world.set_synced(group, resource, true);
    }
    for object in objects {
        let Some(reference) = object_ref(object) else { continue };
        let object = with_namespace(object, &reference);
        let update = input.world.update_watched_object(&reference, Some(&object));
        update.decode_error.map_or(Ok(()), Err)?;
    }
    Ok(())
}

/// The object of an event, as the plugins that watch its kind see it; `None` if none does.
///
/// # Errors
///
/// Why it cannot be decoded.
pub(super) fn event_object(
    input: &SchedulingInput<'_>,
    object: &Value,
) -> Result<Option<Arc<ObjectInfo>>, String> {
    let Some(reference) = object_ref(object) else { return Ok(None) };
    let mut store = ObjectStore::default();
    input.profile.watches.iter().for_each(|watch| store.watch(watch));
    let update = store.update(&reference, Some(&with_namespace(object, &reference)));
    match update.decode_error {
        Some(error) => Err(error),
        None => Ok(update.change.and_then(|change| change.new)),
    }
}
