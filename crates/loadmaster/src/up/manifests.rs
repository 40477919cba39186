//! Reads manifests and creates their objects in the cluster.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_api::document::FieldPath;
use loadmaster_api::snapshot::Snapshot;
use loadmaster_apiserver::schema::schema;
use loadmaster_stdx::SortCompactly as _;
use loadmaster_stdx::did_you_mean;
use serde_json::{Value, json};

use super::api_client::{InProcessApiClient, RequestError};
use super::priority_classes;
use crate::exit::{CommandResult, Failure};
use crate::input;
use crate::manifest::{self, Manifest};

/// Metadata fields that the API server sets.
const SERVER_SET_FIELDS: [&str; 6] =
    ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"];

/// Kinds whose objects are usually created by controllers.
const CONTROLLER_CREATED_KINDS: [&str; 6] =
    ["Pod", "ReplicaSet", "Job", "ControllerRevision", "EndpointSlice", "Endpoints"];

/// Reads files, directories and standard input.
pub(super) fn read(names: &[String]) -> CommandResult<Vec<Manifest>> {
    let documents = input::documents(names)?;
    let (all, errors) = manifest::objects(&documents);
    // Fields that are relevant for scheduling are validated here first, for errors with a position in the file.
    match Snapshot::read(&documents) {
        Err(first) => Err(manifest::failure(&documents, &all, errors, &first)),
        Ok(_) if errors.is_empty() => Ok(all),
        Ok(_) => Err(Failure::invalid_inputs(errors)),
    }
}

/// Notes about objects that were left out or added.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    /// Number of objects by kind that are not created, because controllers will create them from their owners.
    pub created_by_controllers: BTreeMap<String, usize>,
    /// Namespaces that were created because no manifest contains them.
    pub namespaces: BTreeSet<String>,
    /// PriorityClasses that were created because pods have them and no manifest contains them.
    pub priority_classes: BTreeSet<String>,
}

/// Creates objects that the cluster has unless the manifests contain objects of these names, or an earlier run created them.
pub(super) fn create_unless_given(
    api: &mut InProcessApiClient,
    objects: Vec<Value>,
    manifests: &[Manifest],
) -> Result<(), RequestError> {
    let is_given = |object: &Value| {
        let name = |it: &Value| (it["kind"].clone(), it["metadata"]["name"].clone());
        manifests.iter().any(|it| name(&it.object) == name(object))
    };
    for object in objects.iter().filter(|object| !is_given(object)) {
        match api.create(object) {
            Err(error) if !error.already_exists() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Creates all objects, dependencies first. What every cluster has, such as the namespace `kube-system`, is changed to what the manifest
/// says. With `again`, existing objects are not changed.
///
/// # Errors
///
/// All rejected objects, with their positions.
pub(super) fn create(
    api: &mut InProcessApiClient,
    mut manifests: Vec<Manifest>,
    again: bool,
) -> CommandResult<Notes> {
    let mut notes = Notes::default();
    for class in priority_classes::complete(manifests.iter_mut().map(|it| &mut it.object)) {
        // If the name is invalid, the pods are rejected.
        if api.create(&class).is_ok() {
            notes.priority_classes.extend(text(&class["metadata"]["name"]));
        }
    }
    let there: BTreeSet<String> =
        manifests.iter().filter_map(|it| text(&it.object["metadata"]["uid"])).collect();
    manifests.retain(|it| {
        let is_created_by_controller = is_created_by_controller(&it.object, &there);
        if is_created_by_controller {
            *notes
                .created_by_controllers
                .entry(text(&it.object["kind"]).unwrap_or_default())
                .or_default() += 1;
        }
        !is_created_by_controller
    });
    manifests.sort_compactly_by_key(|it| rank(&it.object));
    let mut errors = Vec::new();
    let mut created = BTreeSet::new();
    for manifest in &mut manifests {
        if manifest.object["metadata"].is_object() {
            clear(&mut manifest.object);
        }
        add_namespace(api, &manifest.object, &mut notes);
        let is_new = created.insert(identity(&manifest.object));
        let done = match api.create(&manifest.object) {
            Err(error) if error.already_exists() && again => continue,
            // Unless two manifests are of one object, the cluster has it from the beginning.
            Err(error) if error.already_exists() && is_new => api.merge(&manifest.object),
            done => done,
        };
        if let Err(error) = done {
            errors.extend(manifest.errors(&error));
        }
    }
    if errors.is_empty() { Ok(notes) } else { Err(Failure::Input(errors)) }
}

/// Group, kind, namespace and name.
fn identity(object: &Value) -> [String; 4] {
    let of = |value: &Value| text(value).unwrap_or_default();
    let metadata = &object["metadata"];
    let group = of(&object["apiVersion"]).rsplit_once('/').map(|(group, _)| group.to_owned());
    let namespace = text(&metadata["namespace"]).filter(|it| !it.is_empty());
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    [group.unwrap_or_default(), of(&object["kind"]), namespace, of(&metadata["name"])]
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The order of creation: definitions, then objects that others refer to, then nodes, then everything else.
fn rank(object: &Value) -> u8 {
    match object["kind"].as_str().unwrap_or_default() {
        "CustomResourceDefinition" => 0,
        "Namespace" => 1,
        "PriorityClass" | "StorageClass" | "RuntimeClass" | "CSIDriver" | "DeviceClass" => 2,
        "Node" => 3,
        "ServiceAccount" | "ConfigMap" | "Secret" | "LimitRange" | "PersistentVolume" => 4,
        "PersistentVolumeClaim" | "Service" | "PodDisruptionBudget" => 5,
        _ => 6,
    }
}

fn is_created_by_controller(object: &Value, there: &BTreeSet<String>) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    CONTROLLER_CREATED_KINDS.contains(&kind)
        && owners
            .filter(|owner| owner["controller"] == true)
            .any(|owner| owner["uid"].as_str().is_some_and(|uid| there.contains(uid)))
}

/// Removes the metadata of another cluster.
fn clear(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    for field in SERVER_SET_FIELDS {
        metadata.remove(field);
    }
    // Owners of another cluster do not exist here, so that the object would be garbage collected.
    metadata.remove("ownerReferences");
    // A volume is bound to the claim of this name.
    if object["kind"] == "PersistentVolume"
        && let Some(claim) = object["spec"]["claimRef"].as_object_mut()
    {
        claim.retain(|field, _| !matches!(&**field, "uid" | "resourceVersion"));
    }
    if object["kind"] == "Service"
        && let Some(spec) = object["spec"].as_object_mut()
    {
        spec.retain(|field, value| {
            !(field.starts_with("clusterIP") && *value != "None" && *value != json!(["None"]))
        });
    }
}

/// Creates the namespace of an object, if it does not exist. An invalid name is reported with the object.
fn add_namespace(api: &mut InProcessApiClient, object: &Value, notes: &mut Notes) {
    let Some(namespace) = object["metadata"]["namespace"].as_str() else { return };
    if namespace.is_empty() || namespace == "default" || notes.namespaces.contains(namespace) {
        return;
    }
    let wanted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    if api.create(&wanted).is_ok() {
        notes.namespaces.insert(namespace.to_owned());
    }
}

impl Manifest {
    /// The other fields of the struct in which the object has an unknown field.
    fn known_fields(&self, unknown: &str) -> Vec<&'static str> {
        let text = |name: &str| self.object[name].as_str().unwrap_or_default();
        let (group, version) =
            text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
        let kind = schema().find_kind(group, version, text("kind"));
        kind.map(|it| schema().names_beside(it, unknown)).unwrap_or_default()
    }

    /// The errors of the object, one per line.
    fn errors(&self, error: &RequestError) -> Vec<String> {
        let place = |field: &str, text: &str| {
            let below: FieldPath = field.parse().unwrap_or_default();
            let path = self.at.clone().join(&below);
            self.document.error_in_part(self.part, path, text).to_string()
        };
        if !error.causes.is_empty() {
            return error.causes.iter().map(|(field, text)| place(field, text)).collect();
        }
        // Unknown fields are named in the message only.
        let unknown = error.message.split("unknown field \"").skip(1);
        let unknown = unknown.filter_map(|rest| rest.split('"').next()).map(|field| {
            let name = field.rsplit('.').next().unwrap_or(field);
            let suggestion = did_you_mean(name, self.known_fields(field));
            place(field, &format!("unknown field{suggestion}"))
        });
        let unknown: Vec<String> = unknown.collect();
        match error.code {
            _ if !unknown.is_empty() => unknown,
            404 => vec![place("kind", &error.message)],
            _ => vec![place("", &error.message)],
        }
    }
}
