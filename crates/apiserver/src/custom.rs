//! Custom resources: definitions (`apiextensions.k8s.io/v1`), and the objects they define.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`structural`] | reads schemas |
//! | [`check`] | what makes a definition invalid |
//! | [`definition`] | names and conditions of a definition, and the resources it leads to |
//! | [`registry`] | what is served now |
//! | [`decode`], [`validate`], [`cel`] | an object against its schema |
//! | [`strategy`], [`table`], [`openapi`], [`path`] | an object as it is stored and shown |

pub mod cel;
pub mod check;
mod decode;
pub mod definition;
mod formats;
pub mod openapi;
pub mod path;
pub mod registry;
pub mod strategy;
pub mod structural;
pub mod table;
mod validate;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use crate::managed::{TypeRef, Types};
use crate::schema::{Problem, Reading};
use cel::Rules;
use path::Path;
use structural::Schema;
use table::Column;

/// A custom resource in one version.
#[derive(Debug)]
pub struct Version {
    pub list_kind: String,
    /// `group/version` of this version.
    pub api_version: String,
    /// `group/version` in which objects are stored.
    pub storage: String,
    /// The schemas of all versions, by `group/version`.
    schemas: Arc<BTreeMap<String, Arc<Schema>>>,
    pub schema: Arc<Schema>,
    /// The schema as it was written.
    pub written: Value,
    /// What server-side apply has to know of it.
    pub types: (Types, TypeRef),
    /// What its rules say of an object.
    pub rules: Rules,
    /// Only the status subresource writes the status.
    pub has_status: bool,
    pub scale: Option<Scale>,
    pub columns: Vec<Column>,
    /// Names of fields that selectors may use, with their place in `slots`.
    pub selectable: Vec<(String, usize)>,
    /// The selectable fields of all versions, as the store keeps them.
    pub slots: Arc<[Path]>,
    /// What clients of a deprecated version are told.
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

impl Version {
    /// Reads an object that a client sent.
    ///
    /// # Errors
    ///
    /// When its metadata is not what metadata is.
    pub fn decode(&self, value: Value) -> Result<Reading, Problem> {
        decode::decode(&self.schema, value)
    }

    /// A stored object in this version: converting changes `apiVersion` only.
    pub fn shown(&self, mut value: Value) -> Value {
        let stored = value["apiVersion"].as_str().unwrap_or_default();
        if let Some(schema) = self.schemas.get(stored) {
            decode::refresh(&mut value, schema);
        }
        if value["apiVersion"] != self.api_version.as_str() {
            value["apiVersion"] = self.api_version.as_str().into();
            decode::prune(&mut value, &self.schema);
        }
        value
    }

    /// An object of this version as it is stored.
    pub fn stored(&self, mut value: Value) -> Value {
        if self.storage != self.api_version {
            value["apiVersion"] = self.storage.as_str().into();
            if let Some(schema) = self.schemas.get(&self.storage) {
                decode::prune(&mut value, schema);
            }
        }
        value
    }
}

/// A custom resource in one version as its definition is now: watches outlive changes of a schema.
#[derive(Clone, Debug)]
pub struct Live(Arc<RwLock<Arc<Version>>>);

impl Live {
    fn new(version: Version) -> Live {
        Live(Arc::new(RwLock::new(Arc::new(version))))
    }

    /// As it is now.
    pub fn get(&self) -> Arc<Version> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, version: Arc<Version>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = version;
    }
}
