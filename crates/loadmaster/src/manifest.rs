//! The objects of files, each with its position, so that all errors can be printed together.

use loadmaster_api::document::{Document, FieldPath, LocatedError};
use loadmaster_api::snapshot::{Snapshot, SnapshotError};
use loadmaster_stdx::ErrorChain;
use loadmaster_stdx::SortCompactly as _;
use serde_json::{Value, json};

use crate::exit::Failure;

/// An object and its position in a document.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub document: Document,
    pub part: usize,
    /// The path of the object within a list.
    pub at: FieldPath,
    pub object: Value,
}

/// All objects, and the errors of the others.
pub(crate) fn objects(documents: &[Document]) -> (Vec<Manifest>, Vec<LocatedError>) {
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for document in documents {
        for (part, value) in document.decode_values_or_errors().into_iter().enumerate() {
            match value {
                Ok(value) => take(document, part, FieldPath::ROOT, value, &mut all, &mut errors),
                Err(error) => errors.push(error),
            }
        }
    }
    (all, errors)
}

/// The failure of a command that reads these documents: each object that scheduling cannot read, beside the errors found before. `first` is
/// the error that [`Snapshot::read`] found.
pub(crate) fn failure(
    documents: &[Document],
    all: &[Manifest],
    mut errors: Vec<LocatedError>,
    first: &SnapshotError,
) -> Failure {
    errors.extend(all.iter().filter_map(Manifest::scheduling_error));
    if errors.len() < 2 {
        return Failure::invalid_input(ErrorChain(first));
    }
    errors.sort_compactly_by_key(|it| {
        (documents.iter().position(|one| one.name() == it.file), it.line)
    });
    Failure::invalid_inputs(errors)
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

impl Manifest {
    /// The first field of the object that scheduling cannot read.
    fn scheduling_error(&self) -> Option<LocatedError> {
        let alone = Document::new("", self.object.to_string());
        let error = Snapshot::read(&[alone]).err()?;
        let LocatedError { path, text, .. } = error.located_error()?;
        Some(self.document.error_in_part(self.part, self.at.clone().join(path), text))
    }
}
