//! Small maps sorted by key.

mod key_set;

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use self::key_set::KeySet;
use crate::interned_str::Str;

/// A small map sorted by key: a node has about ten labels, and most nodes have labels of the same names. So the keys are shared by all
/// maps that have the same ones, and what is read for one node after the other is the values alone.
#[derive(PartialEq, Eq, Hash)]
pub struct SortedMap<V> {
    keys: KeySet,
    /// As many as keys, in their order.
    values: Arc<[V]>,
}

/// A value of a [`SortedMap`].
pub trait MapValue: Sized {
    /// The slice of these values, which may be shared with an equal one.
    fn shared(values: Vec<Self>) -> Arc<[Self]> {
        values.into()
    }
}

impl MapValue for Str {}

/// Shares both; values need not be cloneable.
impl<V> Clone for SortedMap<V> {
    fn clone(&self) -> Self {
        SortedMap { keys: self.keys.clone(), values: self.values.clone() }
    }
}

impl<V> Default for SortedMap<V> {
    fn default() -> Self {
        SortedMap { keys: KeySet::default(), values: Arc::default() }
    }
}

impl<V> SortedMap<V> {
    /// The value at `key`.
    #[inline]
    pub fn get(&self, key: &str) -> Option<&V> {
        self.values.get(self.keys.position(key)?)
    }

    /// Whether `key` is present.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Pairs in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Str, &V)> + Clone {
        self.keys.iter().zip(&*self.values)
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl<V: Clone + MapValue> SortedMap<V> {
    /// This map with `key` set to `value`.
    #[must_use]
    pub fn with(self, key: &str, value: V) -> Self {
        let known = self.iter().map(|(key, value)| (key.clone(), value.clone()));
        known.chain([(Str::new(key), value)]).collect()
    }
}

/// Pair by pair.
impl<V: Ord> Ord for SortedMap<V> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.iter().cmp(other.iter())
    }
}

impl<V: Ord> PartialOrd for SortedMap<V> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Later pairs win over earlier ones of the same key.
impl<K: Into<Str>, V: MapValue> FromIterator<(K, V)> for SortedMap<V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut all: Vec<(Str, V)> = pairs.into_iter().map(|(k, v)| (k.into(), v)).collect();
        if all.is_empty() {
            return SortedMap::default();
        }
        // Mostly they are as the API server writes them: in order.
        if !all.is_sorted_by(|a, b| a.0 < b.0) {
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all.dedup_by(|later, kept| {
                let is_same = later.0 == kept.0;
                if is_same {
                    std::mem::swap(later, kept);
                }
                is_same
            });
        }
        let (keys, values): (Vec<Str>, Vec<V>) = all.into_iter().unzip();
        SortedMap { keys: KeySet::shared(&keys), values: V::shared(values) }
    }
}

impl<V: fmt::Debug> fmt::Debug for SortedMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'de, V: Deserialize<'de> + Default + MapValue> Deserialize<'de> for SortedMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de> + Default + MapValue> Visitor<'de> for Map<V> {
            type Value = SortedMap<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SortedMap<V>, A::Error> {
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

impl<V: Serialize> Serialize for SortedMap<V> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use loadmaster_stdx::Rng;

    use super::*;
    use crate::Quantity;

    impl MapValue for u64 {}

    /// Against the standard library's map, which also keeps the last of several values.
    #[test]
    fn maps_are_sorted_and_the_last_value_of_a_key_wins() {
        let mut rng = Rng::new(1);
        for _ in 0..2_000 {
            let n = rng.below(30);
            let pairs: Vec<(String, u64)> =
                (0..n).map(|at| (format!("k{}", rng.below(20)), at)).collect();
            let expected: BTreeMap<String, u64> = pairs.iter().cloned().collect();
            let map: SortedMap<u64> = pairs.into_iter().collect();
            assert!(
                map.iter()
                    .map(|(key, value)| (key.as_str(), value))
                    .eq(expected.iter().map(|(key, value)| (key.as_str(), value)))
            );
            for key in 0..21 {
                let key = format!("k{key}");
                assert_eq!(map.get(&key), expected.get(&key));
            }
        }
    }

    #[test]
    fn maps_with_amounts_that_are_written_alike_share_them() {
        let map = |cpu: &str| -> SortedMap<Quantity> {
            let amounts = [("cpu", cpu), ("memory", "64Gi")];
            amounts.map(|(key, amount)| (key, amount.parse().unwrap())).into_iter().collect()
        };
        let check = |a: &str, b: &str, are_shared: bool| {
            assert_eq!(Arc::ptr_eq(&map(a).values, &map(b).values), are_shared, "{a} {b}");
        };
        check("4", "4", true);
        check("4", "8", false);
        // Equal amounts.
        check("4", "4000m", false);
        let (small, others) = (map("1"), 2..100);
        others.for_each(|n| drop(map(&n.to_string())));
        assert!(map("1") == small && !Arc::ptr_eq(&map("1").values, &small.values), "forgotten");
    }

    #[test]
    fn maps_with_the_same_keys_share_them() {
        let map =
            |value: &str| SortedMap::from_iter([("zone", Str::new(value)), ("arch", "x".into())]);
        let (a, b) = (map("a"), map("b"));
        assert!(std::ptr::eq(&*a.keys, &*b.keys));
        assert!(a < b && a != b && a == map("a"));
        assert_eq!(a.clone().with("zone", "b".into()), b);
        let (none, others) =
            (SortedMap::<Str>::default(), SortedMap::<u64>::from_iter([("", 1); 0]));
        assert!(std::ptr::eq(&*none.keys, &*others.keys));
    }
}
