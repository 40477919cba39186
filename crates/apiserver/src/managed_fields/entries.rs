//! Parses and writes `metadata.managedFields`.

use std::collections::BTreeMap;

use loadmaster_stdx::SortCompactly as _;
use serde_json::{Value, json};

use super::field_path;
use super::field_set::FieldSet;
use super::value;
use crate::object::list_entries;

/// A field manager. An applier is one manager whatever the API version, others are one per version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ManagerId {
    pub name: String,
    pub operation: Operation,
    /// Empty for appliers.
    pub api_version: String,
    pub subresource: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl ManagerId {
    pub fn is_applier(&self) -> bool {
        self.operation == Operation::Apply
    }

    /// The identifier that upstream distinguishes and sorts managers by.
    pub fn identifier(&self) -> String {
        let fields = [
            ("manager", self.name.as_str()),
            ("operation", self.operation.text()),
            ("apiVersion", &self.api_version),
            ("subresource", &self.subresource),
        ];
        let members: Vec<String> = fields
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| format!("{name:?}:{}", value::to_go_json(&text.into())))
            .collect();
        format!("{{{}}}", members.join(","))
    }
}

impl Operation {
    pub fn text(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// The fields of one manager, in one API version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub api_version: String,
    pub fields: FieldSet,
}

pub(super) type Owners = BTreeMap<ManagerId, Owned>;

/// Parsed `metadata.managedFields`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ManagedFields {
    pub owners: Owners,
    /// When managers last changed something, including managers that own nothing any more.
    pub times: BTreeMap<ManagerId, String>,
}

/// Why entries cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManagedFieldsError {
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    NoVersion,
    #[error("missing fieldsType in managed fields entry {at}")]
    NoFieldsType { at: usize },
    #[error("invalid fieldsType {found:?} in managed fields entry {at}")]
    FieldsType { found: String, at: usize },
    #[error(
        "error decoding versioned set from managed fields entry {at}: error decoding set: {source}"
    )]
    Fields { at: usize, source: field_path::PathElementError },
}

impl ManagedFields {
    /// Reads `metadata.managedFields` of an object.
    pub fn of(object: &Value) -> Result<ManagedFields, ManagedFieldsError> {
        ManagedFields::read(&object["metadata"]["managedFields"])
    }

    pub fn read(list: &Value) -> Result<ManagedFields, ManagedFieldsError> {
        let mut managed = ManagedFields::default();
        for (at, entry) in list_entries(list).iter().enumerate() {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            let operation = match text("operation").as_str() {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err(ManagedFieldsError::Operation),
            };
            let api_version = text("apiVersion");
            if api_version.is_empty() {
                return Err(ManagedFieldsError::NoVersion);
            }
            match text("fieldsType").as_str() {
                "FieldsV1" => {}
                "" => return Err(ManagedFieldsError::NoFieldsType { at }),
                found => {
                    return Err(ManagedFieldsError::FieldsType { found: found.to_owned(), at });
                }
            }
            let fields = FieldSet::from_json(&entry["fieldsV1"])
                .map_err(|source| ManagedFieldsError::Fields { at, source })?;
            let id = ManagerId {
                name: text("manager"),
                operation,
                api_version: match operation {
                    Operation::Apply => String::new(),
                    Operation::Update => api_version.clone(),
                },
                subresource: text("subresource"),
            };
            if let Some(time) = entry["time"].as_str() {
                managed.times.insert(id.clone(), time.to_owned());
            }
            managed.owners.insert(id, Owned { api_version, fields });
        }
        Ok(managed)
    }

    /// The list, or none when no manager owns a field.
    pub fn write(&self) -> Option<Value> {
        let mut list: Vec<(&ManagerId, &Owned, &str)> = self
            .owners
            .iter()
            .map(|(id, owned)| (id, owned, self.times.get(id).map_or("", String::as_str)))
            .collect();
        list.sort_compactly_by_key(|(id, owned, time)| {
            (id.operation, *time, &id.name, &owned.api_version, &id.subresource)
        });
        (!list.is_empty()).then(|| list.into_iter().map(|it| entry(it.0, it.1, it.2)).collect())
    }
}

fn entry(id: &ManagerId, owned: &Owned, time: &str) -> Value {
    let mut entry = json!({
        "operation": id.operation.text(),
        "apiVersion": owned.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": owned.fields.to_json(),
    });
    for (name, text) in
        [("manager", id.name.as_str()), ("subresource", &id.subresource), ("time", time)]
    {
        if !text.is_empty() {
            entry[name] = text.into();
        }
    }
    entry
}
