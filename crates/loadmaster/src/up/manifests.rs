//! Reads manifests and creates their objects in the cluster.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_api::document::{Document, FieldPath, LocatedError};
use loadmaster_api::snapshot::Snapshot;
use loadmaster_apiserver::schema::schema;
use loadmaster_stdx::{ErrorChain, did_you_mean};
use serde_json::{Value, json};

use super::api_client::{InProcessApiClient, RequestError};
use super::priority_classes;
use crate::exit::{CommandResult, Failure};
use crate::input;

/// An object and its position in a document.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    document: Document,
    part: usize,
    /// The path of the object within a list.
    at: FieldPath,
    pub object: Value,
}

/// Metadata fields that the API server sets.
const SERVER_SET_FIELDS: [&str; 6] =
    ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"];

/// Kinds whose objects are usually created by controllers.
const CONTROLLER_CREATED_KINDS: [&str; 6] =
    ["Pod", "ReplicaSet", "Job", "ControllerRevision", "EndpointSlice", "Endpoints"];

/// Reads files, directories and standard input.
pub(super) fn read(names: &[String]) -> CommandResult<Vec<Manifest>> {
    let mut all = Vec::new();
    let mut errors = Vec::new();
    let documents = input::documents(names)?;
    for document in &documents {
        for (part, value) in document.decode_values_or_errors().into_iter().enumerate() {
            match value {
                Ok(value) => take(document, part, FieldPath::ROOT, value, &mut all, &mut errors),
                Err(error) => errors.push(error),
            }
        }
    }
    // Fields that are relevant for scheduling are validated here first, for errors with a position in the file.
    if let Err(first) = Snapshot::read(&documents) {
        errors.extend(all.iter().filter_map(Manifest::scheduling_error));
        if errors.len() < 2 {
            return Err(Failure::invalid_input(ErrorChain(&first)));
        }
        errors.sort_by_key(|it| (documents.iter().position(|one| one.name() == it.file), it.line));
    }
    if errors.is_empty() { Ok(all) } else { Err(Failure::invalid_inputs(errors)) }
}

/// Adds an object, or the items of a list.
fn take(
    document: &Document,
    part: usize,
    at: FieldPath,
    value: Value,
    all: &mut Vec<Manifest>,
    errors: &mut Vec<LocatedError>,
) {
    let (version, kind) = (value["apiVersion"].as_str(), value["kind"].as_str());
    let (Some(_), Some(kind)) = (version, kind) else {
        let found = match (version, kind) {
            _ if !value.is_object() => "a different value",
            (None, _) => "no apiVersion",
            _ => "no kind",
        };
        let text = format!("expected apiVersion and kind, found {found}");
        errors.push(document.error_in_part(part, at, text));
        return;
    };
    if !kind.ends_with("List") || !value["items"].is_array() {
        all.push(Manifest { document: document.clone(), part, at, object: value });
        return;
    }
    // Items of a typed list may omit apiVersion and kind.
    let item_kind = kind.trim_end_matches("List").to_owned();
    let version = value["apiVersion"].clone();
    let Value::Object(mut list) = value else { return };
    let Some(Value::Array(items)) = list.remove("items") else { return };
    for (nth, mut item) in items.into_iter().enumerate() {
        if !item_kind.is_empty() && item.is_object() && item["kind"].is_null() {
            item["apiVersion"] = version.clone();
            item["kind"] = json!(item_kind);
        }
        let at = at.clone().field("items").index(nth);
        take(document, part, at, item, all, errors);
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

/// Creates all objects, dependencies first. With `again`, existing objects are not changed.
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
    manifests.sort_by_key(|it| rank(&it.object));
    let mut errors = Vec::new();
    for manifest in &mut manifests {
        if manifest.object["metadata"].is_object() {
            clear(&mut manifest.object);
        }
        add_namespace(api, &manifest.object, &mut notes);
        if let Err(error) = api.create(&manifest.object)
            && !(again && error.already_exists())
        {
            errors.extend(manifest.errors(&error));
        }
    }
    if errors.is_empty() { Ok(notes) } else { Err(Failure::Input(errors)) }
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
    /// The first field of the object that scheduling cannot read.
    fn scheduling_error(&self) -> Option<LocatedError> {
        let alone = Document::new("", self.object.to_string());
        let error = Snapshot::read(&[alone]).err()?;
        let LocatedError { path, text, .. } = error.located_error()?;
        Some(self.document.error_in_part(self.part, self.at.clone().join(path), text))
    }

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
