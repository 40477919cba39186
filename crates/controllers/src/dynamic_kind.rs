//! Dynamic kinds: found by API discovery, not built in. Only the metadata of their objects is read.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::kind::{Kind, KindInfo};

/// A kind that was found by API discovery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DynamicKind(&'static KindInfo);

impl DynamicKind {
    /// Its group, version, kind and resource.
    pub const fn info(self) -> KindInfo {
        *self.0
    }
}

impl fmt::Debug for DynamicKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.kind)
    }
}

impl Kind {
    /// A kind that is not built in. It is leaked: create each only once.
    pub fn dynamic(
        (group, version): (&str, &str),
        (kind, resource): (&str, &str),
        is_namespaced: bool,
    ) -> Kind {
        fn leak(text: &str) -> &'static str {
            Box::leak(text.into())
        }
        let api_version = match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        };
        Kind::Other(DynamicKind(Box::leak(Box::new(KindInfo {
            group: leak(group),
            version: leak(version),
            api_version: leak(&api_version),
            kind: leak(kind),
            resource: leak(resource),
            is_namespaced,
        }))))
    }
}

/// The metadata of an object of a dynamic kind, as upstream's `PartialObjectMetadata`.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialObjectMetadata {
    /// Its kind.
    pub kind: Kind,
    /// Its metadata.
    pub metadata: ObjectMeta,
}

impl PartialObjectMetadata {
    /// Decodes the metadata of an object.
    ///
    /// # Errors
    ///
    /// When the metadata cannot be decoded.
    pub fn from_json(
        kind: Kind,
        mut value: Value,
    ) -> Result<PartialObjectMetadata, serde_json::Error> {
        let metadata = serde_json::from_value(value["metadata"].take())?;
        Ok(PartialObjectMetadata { kind, metadata })
    }
}
