//! Small maps sorted by key.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::text::Str;

/// A small map sorted by key, kept as a slice: a node has about ten labels.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sorted<V>(Box<[(Str, V)]>);

impl<V> Default for Sorted<V> {
    fn default() -> Self {
        Sorted(Box::default())
    }
}

impl<V> Sorted<V> {
    /// The value at `key`.
    pub fn get(&self, key: &str) -> Option<&V> {
        // Linear below a dozen entries beats binary search, and pointers are mostly equal.
        if self.0.len() <= 12 {
            return self.0.iter().find(|(k, _)| same(k, key)).map(|(_, v)| v);
        }
        let at = self.0.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// Whether `key` is present.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Pairs in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Str, &V)> + Clone {
        self.0.iter().map(|(k, v)| (k, v))
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// This map with `key` set to `value`.
    #[must_use]
    pub fn with(self, key: &str, value: V) -> Self {
        self.0.into_vec().into_iter().chain([(Str::new(key), value)]).collect()
    }
}

/// Keys are interned, so equal ones mostly share their bytes.
fn same(known: &Str, key: &str) -> bool {
    std::ptr::eq(known.as_str(), key) || known.as_str() == key
}

/// Later pairs win over earlier ones of the same key.
impl<K: Into<Str>, V> FromIterator<(K, V)> for Sorted<V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut all: Vec<(Str, V)> = pairs.into_iter().map(|(k, v)| (k.into(), v)).collect();
        // As the API server writes them.
        if all.is_sorted_by(|a, b| a.0 < b.0) {
            return Sorted(all.into_boxed_slice());
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let mut kept: Vec<(Str, V)> = Vec::with_capacity(all.len());
        for pair in all {
            match kept.last_mut() {
                Some(last) if last.0 == pair.0 => *last = pair,
                _ => kept.push(pair),
            }
        }
        Sorted(kept.into_boxed_slice())
    }
}

impl<V: fmt::Debug> fmt::Debug for Sorted<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'de, V: Deserialize<'de> + Default> Deserialize<'de> for Sorted<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de> + Default> Visitor<'de> for Map<V> {
            type Value = Sorted<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sorted<V>, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(8).min(64));
                while let Some(key) = map.next_key::<Str>()? {
                    let value: Option<V> = map.next_value()?;
                    pairs.push((key, value.unwrap_or_default()));
                }
                Ok(pairs.into_iter().collect())
            }
        }
        deserializer.deserialize_map(Map(PhantomData))
    }
}

impl<V: Serialize> Serialize for Sorted<V> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}
