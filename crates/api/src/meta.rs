//! Metadata and timestamps shared by all kinds.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

pub use crate::go_json::nullable;
use crate::go_json::objects;
use crate::interned_str::Str;
pub use crate::sorted_map::{MapValue, SortedMap};

/// `metadata` of an object, without annotations and managedFields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectMeta {
    #[serde(deserialize_with = "nullable")]
    pub name: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub namespace: Str,
    #[serde(deserialize_with = "nullable")]
    pub uid: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub labels: Labels,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_timestamp: Option<Timestamp>,
    /// How often the spec changed.
    #[serde(deserialize_with = "nullable")]
    pub generation: i64,
    #[serde(deserialize_with = "objects")]
    pub owner_references: Vec<OwnerReference>,
}

/// Who manages an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    #[serde(deserialize_with = "nullable")]
    pub api_version: Str,
    #[serde(deserialize_with = "nullable")]
    pub kind: Str,
    #[serde(deserialize_with = "nullable")]
    pub name: Str,
    #[serde(deserialize_with = "nullable")]
    pub uid: Str,
    pub controller: Option<bool>,
}

/// Label or node-selector pairs, sorted by key.
pub type Labels = SortedMap<Str>;

/// A point in time as objects carry it: nanoseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Before every other time: Go's zero time.
    pub const MIN: Timestamp = Timestamp(i64::MIN);
}

/// `Option<Timestamp>` in eight bytes: a pod has several, and clusters have many pods. The last nanosecond, in the year 2262, is none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OptionalTimestamp(i64);

impl OptionalTimestamp {
    /// The point in time, if there is one.
    pub fn get(self) -> Option<Timestamp> {
        (self.0 != i64::MAX).then_some(Timestamp(self.0))
    }
}

impl From<Option<Timestamp>> for OptionalTimestamp {
    fn from(time: Option<Timestamp>) -> Self {
        OptionalTimestamp(time.map_or(i64::MAX, |time| time.0))
    }
}

impl fmt::Debug for OptionalTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// As the API server writes it: RFC 3339 in UTC, whole seconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = jiff::Timestamp::from_second(self.0.div_euclid(1_000_000_000));
        write!(f, "{}", seconds.map_err(|_| fmt::Error)?)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        struct Rfc3339;
        impl Visitor<'_> for Rfc3339 {
            type Value = Timestamp;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as 2026-01-31T12:00:00Z")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Timestamp, E> {
                let parsed: Result<jiff::Timestamp, _> = text.parse();
                match parsed.ok().and_then(|time| i64::try_from(time.as_nanosecond()).ok()) {
                    Some(nanos) => Ok(Timestamp(nanos)),
                    None => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_str(Rfc3339)
    }
}
