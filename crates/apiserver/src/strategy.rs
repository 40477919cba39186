//! Upstream's registry strategies (`PrepareForCreate`, `PrepareForUpdate`): fields that a client may not set are
//! reset.

use loadmaster_api::Quantity;
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Map, Value, json};

use crate::custom_resource::{definition, strategy};
use crate::managed_fields::ResetFields;
use crate::object::{list_entries, members_mut, meta_mut, metadata_text};
use crate::schema::{Kind, schema, zero_value};

/// Resources whose `metadata.generation` counts changes of the spec.
const COUNTED: &[&str] = &[
    "cronjobs",
    "customresourcedefinitions",
    "daemonsets",
    "deployments",
    "deviceclasses",
    "devicetaintrules",
    "endpointslices",
    "ingressclasses",
    "ingresses",
    "jobs",
    "networkpolicies",
    "poddisruptionbudgets",
    "pods",
    "podtemplates",
    "priorityclasses",
    "replicasets",
    "replicationcontrollers",
    "resourceslices",
    "statefulsets",
];

/// Metadata that an update cannot change.
const PRESERVED_METADATA: &[&str] = &[
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "resourceVersion",
];

/// In a PersistentVolume's status: when its phase last changed.
pub const PHASE_SINCE: &str = "lastPhaseTransitionTime";

/// Prepares a decoded object with defaults for creation.
pub fn prepare_create(kind: &Kind, value: &mut Value) {
    if let Some(custom) = kind.custom() {
        return strategy::prepare_create(&custom, value);
    }
    meta_mut(value).remove("generation");
    if COUNTED.contains(&kind.resource) {
        meta_mut(value).insert("generation".to_owned(), 1.into());
    }
    if kind.is("apps", "daemonsets") {
        note_template(value, template_generation(value).max(1));
    }
    match (kind.group, kind.resource) {
        // A kubelet registers its node with a status; kinds without a status subresource have none to reset.
        ("", "nodes") => {}
        ("", "pods") => {
            value["status"] = json!({"phase": "Pending", "qosClass": qos_class(&value["spec"])});
        }
        ("", "namespaces") => {
            value["status"] = json!({"phase": "Active"});
            let finalizers = members_mut(&mut value["spec"]).entry("finalizers");
            finalizers.or_insert_with(|| json!(["kubernetes"]));
        }
        ("", "persistentvolumeclaims") => value["status"] = json!({"phase": "Pending"}),
        ("", "persistentvolumes") => {
            let made = metadata_text(value, "creationTimestamp");
            value["status"] = json!({"phase": "Pending", PHASE_SINCE: made});
        }
        ("batch", "jobs") => {
            reset_status(kind, value);
            job_selector(value);
            job_labels(value);
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            members_mut(value).remove("status");
            definition::add_stored_version(value);
        }
        _ if kind.has_status() => reset_status(kind, value),
        _ => {}
    }
}

fn reset_status(kind: &Kind, value: &mut Value) {
    let Some(field) = schema().field(kind.type_id, "status") else { return };
    match zero_value(schema(), field) {
        Some(status) => value["status"] = status,
        None => drop(members_mut(value).remove("status")),
    }
}

/// The default selector of a Job: its own uid.
fn job_selector(job: &mut Value) {
    if job["spec"]["manualSelector"] == true {
        return;
    }
    let (name, uid) = (metadata_text(job, "name").to_owned(), metadata_text(job, "uid").to_owned());
    let labels = json!({
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    });
    let template = members_mut(&mut job["spec"]["template"]["metadata"]);
    let known = members_mut(template.entry("labels").or_insert_with(|| json!({})));
    if let Value::Object(labels) = labels {
        known.extend(labels);
    }
    job["spec"]["selector"] = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
}

/// The default labels of a Job: those of its pod template.
fn job_labels(job: &mut Value) {
    let labels = job["spec"]["template"]["metadata"]["labels"].clone();
    let is_bare = entries_of(&job["metadata"]["labels"]) == 0;
    if is_bare && entries_of(&labels) > 0 {
        meta_mut(job).insert("labels".to_owned(), labels);
    }
}

fn entries_of(map: &Value) -> usize {
    map.as_object().map_or(0, Map::len)
}

/// Restores the metadata that clients cannot change.
pub fn preserve_metadata(old: &Value, new: &mut Value) {
    for field in PRESERVED_METADATA {
        copy(&old["metadata"], meta_mut(new), field);
    }
    meta_mut(new).remove("selfLink");
}

/// Restores what an update through this (sub)resource cannot change.
pub fn prepare_update(kind: &Kind, subresource: &str, old: &Value, new: &mut Value) {
    if let Some(custom) = kind.custom() {
        return strategy::prepare_update(&custom, subresource, old, new);
    }
    preserve_metadata(old, new);
    match subresource {
        "" if kind.has_status() => {
            copy(old, members_mut(new), "status");
            if definition::is_custom_resource_definition(kind) {
                definition::add_stored_version(new);
            }
            if kind.is("certificates.k8s.io", "certificatesigningrequests") {
                // The spec stays as it was.
                copy(old, members_mut(new), "spec");
            }
            if kind.is("", "namespaces") {
                // Only the finalize subresource removes a namespace's finalizers.
                let finalizers = &old["spec"]["finalizers"];
                members_mut(&mut new["spec"]).insert("finalizers".to_owned(), finalizers.clone());
            }
        }
        "status" => {
            let own: Vec<String> = members_mut(new).keys().cloned().collect();
            for field in own.iter().map(String::as_str).chain(["spec"]) {
                if !matches!(field, "status" | "metadata" | "kind" | "apiVersion") {
                    copy(old, members_mut(new), field);
                }
            }
            for field in fields_preserved_by_status_update(kind) {
                copy(&old["metadata"], meta_mut(new), field);
            }
            if kind.is("", "pods") {
                copy(&old["status"], members_mut(&mut new["status"]), "qosClass");
            }
        }
        "ephemeralcontainers" => {
            let containers = new["spec"]["ephemeralContainers"].clone();
            restore(old, new);
            new["spec"]["ephemeralContainers"] = containers;
        }
        "resize" => {
            let (containers, inits) =
                (new["spec"]["containers"].clone(), new["spec"]["initContainers"].clone());
            restore(old, new);
            take_resources(&containers, &mut new["spec"]["containers"]);
            take_resources(&inits, &mut new["spec"]["initContainers"]);
        }
        "finalize" => {
            let finalizers = new["spec"]["finalizers"].clone();
            restore(old, new);
            new["spec"]["finalizers"] = finalizers;
        }
        "approval" => {
            let conditions = new["status"]["conditions"].clone();
            restore(old, new);
            new["status"]["conditions"] = conditions;
        }
        _ => {}
    }
    let counts = COUNTED.contains(&kind.resource) && subresource != "status";
    // The annotations of a deployment say things its controller acts on.
    let notes_differ = kind.is("apps", "deployments")
        && old["metadata"]["annotations"] != new["metadata"]["annotations"];
    if counts && (notes_differ || wanted_differs(old, new)) {
        bump_generation(new);
    }
    if kind.is("apps", "daemonsets") {
        let is_changed = old["spec"]["template"] != new["spec"]["template"];
        note_template(new, template_generation(old) + i64::from(is_changed));
    }
}

/// How often the template of a DaemonSet was changed: `templateGeneration` of older API versions, which apps/v1 has
/// as an annotation; pods and revisions are labelled with it.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(value: &Value) -> i64 {
    let said = value["metadata"]["annotations"][TEMPLATE_GENERATION].as_str();
    said.and_then(|it| it.parse().ok()).unwrap_or(0)
}

fn note_template(value: &mut Value, generation: i64) {
    let annotations = meta_mut(value).entry("annotations").or_insert_with(|| json!({}));
    members_mut(annotations).insert(TEMPLATE_GENERATION.to_owned(), generation.to_string().into());
}

/// Metadata that an update of the status cannot change.
fn fields_preserved_by_status_update(kind: &Kind) -> &'static [&'static str] {
    const BASE: &[&str] = &["ownerReferences", "deletionTimestamp"];
    match kind {
        _ if ResetFields::status_keeps_metadata(kind) => {
            &["ownerReferences", "deletionTimestamp", "labels", "annotations", "finalizers"]
        }
        _ if kind.is("apps", "deployments") => &["ownerReferences", "deletionTimestamp", "labels"],
        _ => BASE,
    }
}

/// Everything but metadata as it was.
fn restore(old: &Value, new: &mut Value) {
    let metadata = new["metadata"].take();
    *new = old.clone();
    new["metadata"] = metadata;
}

fn take_resources(from: &Value, to: &mut Value) {
    for container in to.as_array_mut().into_iter().flatten() {
        if let Some(same) = list_entries(from).iter().find(|it| it["name"] == container["name"]) {
            copy(same, members_mut(container), "resources");
        }
    }
}

fn copy(from: &Value, to: &mut Map<String, Value>, field: &str) {
    match from.get(field) {
        Some(value) => drop(to.insert(field.to_owned(), value.clone())),
        None => drop(to.remove(field)),
    }
}

/// Whether anything but metadata and status differs.
fn wanted_differs(old: &Value, new: &Value) -> bool {
    let wanted = |value: &Value| -> Map<String, Value> {
        let members = value.as_object().cloned().unwrap_or_default();
        members
            .into_iter()
            .filter(|(name, _)| name != "metadata" && name != "status")
            .collect_by_insertion()
    };
    wanted(old) != wanted(new)
}

/// Increments `metadata.generation`, on kinds that have it.
pub fn bump_generation(value: &mut Value) {
    if let Some(generation) = value["metadata"]["generation"].as_i64() {
        meta_mut(value).insert("generation".to_owned(), (generation + 1).into());
    }
}

/// The QoS class of a pod.
pub fn qos_class(spec: &Value) -> &'static str {
    let mut any = false;
    let mut all_limited = true;
    // Pod-level resources count if they are set, else those of the containers.
    let own = &spec["resources"];
    let containers =
        list_entries(&spec["containers"]).iter().chain(list_entries(&spec["initContainers"]));
    let resources: Vec<&Value> = match own {
        Value::Null => containers.map(|it| &it["resources"]).collect(),
        own => vec![own],
    };
    for it in resources {
        let amount = |list: &str, name: &str| {
            let text = it[list][name].as_str()?;
            Quantity::parse(text).ok().filter(|it| !it.is_zero())
        };
        for name in ["cpu", "memory"] {
            let (request, limit) = (amount("requests", name), amount("limits", name));
            any |= request.is_some() || limit.is_some();
            all_limited &= limit.is_some() && request == limit;
        }
    }
    match (any, all_limited) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(resources: &[Value], want: &str) {
        let containers: Vec<Value> =
            resources.iter().map(|it| json!({"name": "c", "resources": it})).collect();
        assert_eq!(qos_class(&json!({"containers": containers})), want);
    }

    #[test]
    fn qos_classes() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        check(&[json!({})], "BestEffort");
        check(&[json!({"requests": {"cpu": "1"}})], "Burstable");
        check(&[json!({"requests": full, "limits": full})], "Guaranteed");
        check(&[json!({"requests": full, "limits": full}), json!({})], "Burstable");
        check(&[json!({"requests": {"example.com/x": "1"}})], "BestEffort");
        let of_pod =
            |own: &Value| qos_class(&json!({"containers": [{"name": "c"}], "resources": own}));
        assert_eq!(of_pod(&json!({"requests": full, "limits": full})), "Guaranteed");
        assert_eq!(of_pod(&json!({"requests": {"cpu": "1"}})), "Burstable");
    }
}
