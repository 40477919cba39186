//! Kinds that no controller knows by name: only an API server's discovery tells of them, and of their objects only metadata is read.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::cache::Stored;
use crate::kind::{Kind, KindInfo};

/// A kind that is known only while the program runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OtherKind(&'static KindInfo);

impl OtherKind {
    /// How it is asked for.
    pub const fn info(self) -> KindInfo {
        *self.0
    }
}

impl fmt::Debug for OtherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.kind)
    }
}

impl Kind {
    /// A kind that is not in the table. It is remembered for as long as the program runs: make each once.
    pub fn other(
        (group, version): (&str, &str),
        (kind, resource): (&str, &str),
        is_namespaced: bool,
    ) -> Kind {
        fn keep(text: &str) -> &'static str {
            Box::leak(text.into())
        }
        let api_version = match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        };
        Kind::Other(OtherKind(Box::leak(Box::new(KindInfo {
            group: keep(group),
            version: keep(version),
            api_version: keep(&api_version),
            kind: keep(kind),
            resource: keep(resource),
            is_namespaced,
        }))))
    }
}

/// The metadata of an object of such a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// Its kind.
    pub kind: Kind,
    /// Its metadata.
    pub metadata: ObjectMeta,
}

impl Partial {
    /// Takes the metadata of an object.
    ///
    /// # Errors
    ///
    /// When they are not as metadata are.
    pub fn from_json(kind: Kind, mut value: Value) -> Result<Partial, serde_json::Error> {
        let metadata = serde_json::from_value(value["metadata"].take())?;
        Ok(Partial { kind, metadata })
    }
}

impl Stored for Partial {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}
