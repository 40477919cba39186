//! Custom resources: CustomResourceDefinitions (`apiextensions.k8s.io/v1`), and the objects they define.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`structural`] | parses schemas |
//! | [`validate_definition`] | validation of definitions |
//! | [`definition`] | names and conditions of a definition, and the resources it defines |
//! | [`registry`] | the served resources |
//! | [`decode`], [`validate_object`], [`cel`] | decoding and validation of objects |
//! | [`strategy`], [`table`], [`openapi`], [`json_path`] | storage and output of objects |

pub mod cel;
mod decode;
pub mod definition;
mod formats;
pub mod json_path;
pub mod openapi;
pub mod registry;
pub mod strategy;
pub mod structural;
pub mod table;
pub mod validate_definition;
mod validate_object;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use crate::managed_fields::{TypeRef, Types};
use crate::schema::{DecodeError, Decoded};
use cel::Rules;
use json_path::Path;
use structural::StructuralSchema;
use table::Column;

/// A custom resource in one version.
#[derive(Debug)]
pub struct CustomResourceVersion {
    pub list_kind: String,
    /// `group/version` of this version.
    pub api_version: String,
    /// `group/version` in which objects are stored.
    pub storage: String,
    /// The schemas of all versions, by `group/version`.
    schemas: Arc<BTreeMap<String, Arc<StructuralSchema>>>,
    pub schema: Arc<StructuralSchema>,
    /// The schema as it was written.
    pub written: Value,
    /// Its types for server-side apply.
    pub types: (Types, TypeRef),
    /// Its validation rules (CEL).
    pub rules: Rules,
    /// Only the status subresource writes the status.
    pub has_status: bool,
    pub scale: Option<Scale>,
    pub columns: Vec<Column>,
    /// Names of fields that selectors may use, with their place in `slots`.
    pub selectable: Vec<(String, usize)>,
    /// The selectable fields of all versions, as the store keeps them.
    pub slots: Arc<[Path]>,
    /// The warning for clients of a deprecated version.
    pub warning: Option<String>,
    /// The definition is being deleted: nothing new is created.
    pub is_terminating: bool,
}

/// Where the numbers of the scale subresource are.
#[derive(Clone, Debug)]
pub struct Scale {
    pub replicas: Path,
    pub current: Path,
    pub selector: Option<Path>,
}

impl CustomResourceVersion {
    /// Decodes an object that a client sent.
    ///
    /// # Errors
    ///
    /// When its metadata is invalid.
    pub fn decode(&self, value: Value) -> Result<Decoded, DecodeError> {
        decode::decode(&self.schema, value)
    }

    /// A stored object in this version: converting changes `apiVersion` only.
    pub fn to_request_version(&self, mut value: Value) -> Value {
        let stored = value["apiVersion"].as_str().unwrap_or_default();
        if let Some(schema) = self.schemas.get(stored) {
            decode::apply_current_schema(&mut value, schema);
        }
        if value["apiVersion"] != self.api_version.as_str() {
            value["apiVersion"] = self.api_version.as_str().into();
            decode::prune(&mut value, &self.schema);
        }
        value
    }

    /// An object of this version as it is stored.
    pub fn to_storage_version(&self, mut value: Value) -> Value {
        if self.storage != self.api_version {
            value["apiVersion"] = self.storage.as_str().into();
            if let Some(schema) = self.schemas.get(&self.storage) {
                decode::prune(&mut value, schema);
            }
        }
        value
    }
}

/// The current definition of a custom resource in one version: watches outlive changes of the schema.
#[derive(Clone, Debug)]
pub struct CurrentCustomResourceVersion(Arc<RwLock<Arc<CustomResourceVersion>>>);

impl CurrentCustomResourceVersion {
    fn new(version: CustomResourceVersion) -> CurrentCustomResourceVersion {
        CurrentCustomResourceVersion(Arc::new(RwLock::new(Arc::new(version))))
    }

    /// As it is now.
    pub fn get(&self) -> Arc<CustomResourceVersion> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, version: Arc<CustomResourceVersion>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = version;
    }
}
