//! Manifests: from files into the cluster, all or none.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_api::document::{Document, Located, Path};
use loadmaster_api::snapshot::Snapshot;
use loadmaster_stdx::Chain;
use serde_json::{Value, json};

use super::api::{Api, Refusal};
use crate::exit::{Answer, Failure};
use crate::input;

/// An object, and where it was read.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    document: Document,
    part: usize,
    /// Where it is in a list.
    at: Path,
    pub object: Value,
}

/// What the cluster, not a manifest, says about an object.
const OF_THE_SERVER: [&str; 6] =
    ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"];

/// Kinds whose objects are made by objects of other kinds.
const MADE_BY_CONTROLLERS: [&str; 6] =
    ["Pod", "ReplicaSet", "Job", "ControllerRevision", "EndpointSlice", "Endpoints"];

/// Reads files, folders and standard input.
pub(super) fn read(names: &[String]) -> Answer<Vec<Manifest>> {
    let mut all = Vec::new();
    let mut errors = Vec::new();
    let documents = input::documents(names)?;
    // What scheduling reads is read twice: here an amount or a selector that is none has a place, which the API server does not know.
    Snapshot::read(&documents).map_err(|error| Failure::input(Chain(&error)))?;
    for document in documents {
        match document.decode_values() {
            Ok(values) => {
                for (part, value) in values.into_iter().enumerate() {
                    take(&document, part, Path::ROOT, value, &mut all, &mut errors);
                }
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(all) } else { Err(Failure::inputs(errors)) }
}

/// Takes an object, or the items of a list.
fn take(
    document: &Document,
    part: usize,
    at: Path,
    value: Value,
    all: &mut Vec<Manifest>,
    errors: &mut Vec<Located>,
) {
    let (version, kind) = (value["apiVersion"].as_str(), value["kind"].as_str());
    let (Some(_), Some(kind)) = (version, kind) else {
        let found = match (version, kind) {
            _ if !value.is_object() => "something else",
            (None, _) => "no apiVersion",
            _ => "no kind",
        };
        let text = format!("expected apiVersion and kind, found {found}");
        errors.push(document.error_in(part, at, text));
        return;
    };
    if !kind.ends_with("List") || !value["items"].is_array() {
        all.push(Manifest { document: document.clone(), part, at, object: value });
        return;
    }
    // Items of a list of one kind may leave out what they are.
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

/// What was left out or added, for people.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    /// Objects by kind that controllers make anew, since what made them is among the manifests.
    pub remade: BTreeMap<String, usize>,
    /// Namespaces that no manifest creates.
    pub namespaces: BTreeSet<String>,
}

/// Creates all objects: what others stand on first. With `again`, those that are there already stay as they are.
///
/// # Errors
///
/// Every object that is refused, with its place.
pub(super) fn create(api: &mut Api, mut manifests: Vec<Manifest>, again: bool) -> Answer<Notes> {
    let mut notes = Notes::default();
    let there: BTreeSet<String> =
        manifests.iter().filter_map(|it| text(&it.object["metadata"]["uid"])).collect();
    manifests.retain(|it| {
        let is_remade = is_remade(&it.object, &there);
        if is_remade {
            *notes.remade.entry(text(&it.object["kind"]).unwrap_or_default()).or_default() += 1;
        }
        !is_remade
    });
    manifests.sort_by_key(|it| rank(&it.object));
    let mut errors = Vec::new();
    for manifest in &mut manifests {
        if manifest.object["metadata"].is_object() {
            clear(&mut manifest.object);
        }
        add_namespace(api, &manifest.object, &mut notes);
        if let Err(refusal) = api.create(&manifest.object)
            && !(again && refusal.is_there_already())
        {
            errors.extend(manifest.errors(&refusal));
        }
    }
    if errors.is_empty() { Ok(notes) } else { Err(Failure::Input(errors)) }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Definitions, then what objects refer to, then nodes, then all else.
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

fn is_remade(object: &Value, there: &BTreeSet<String>) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    MADE_BY_CONTROLLERS.contains(&kind)
        && owners
            .filter(|owner| owner["controller"] == true)
            .any(|owner| owner["uid"].as_str().is_some_and(|uid| there.contains(uid)))
}

/// Takes away what another cluster said about the object.
fn clear(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    for field in OF_THE_SERVER {
        metadata.remove(field);
    }
    // Owners with uids of another cluster would be gone here, and the object with them.
    metadata.remove("ownerReferences");
    if object["kind"] == "Service"
        && let Some(spec) = object["spec"].as_object_mut()
    {
        spec.retain(|field, value| {
            !(field.starts_with("clusterIP") && *value != "None" && *value != json!(["None"]))
        });
    }
}

/// Creates the namespace of an object, if it is not there. A name that cannot be one is refused with the object.
fn add_namespace(api: &mut Api, object: &Value, notes: &mut Notes) {
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
    /// What is wrong with it, a line each.
    fn errors(&self, refusal: &Refusal) -> Vec<String> {
        let place = |field: &str, text: &str| {
            let below: Path = field.parse().unwrap_or_default();
            let path = self.at.clone().join(&below);
            self.document.error_in(self.part, path, text).to_string()
        };
        if !refusal.causes.is_empty() {
            return refusal.causes.iter().map(|(field, text)| place(field, text)).collect();
        }
        // Of unknown fields only the message tells.
        let field =
            refusal.message.split_once("unknown field \"").and_then(|it| it.1.split_once('"'));
        match field {
            Some((field, _)) => vec![place(field, "unknown field")],
            None if refusal.code == 404 => vec![place("kind", &refusal.message)],
            None => vec![place("", &refusal.message)],
        }
    }
}
