//! The random number generator of a case, and small pools of values: few enough that equal values are common.

use loadmaster_stdx::Rng;
use serde_json::{Map, Value};

use super::features::{CaseFeature, CaseFeatureSet};

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const REGION: &str = "topology.kubernetes.io/region";
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";
pub(super) const RACK: &str = "rack";

/// Keys of pod labels with their values.
pub(super) const POD_LABELS: [(&str, &[&str]); 3] = [
    ("app", &["web", "web", "db", "cache"]),
    ("tier", &["front", "back", ""]),
    ("hash", &["1", "2"]),
];

pub(super) const NAMESPACES: [&str; 3] = ["default", "blue", "green"];

/// The random number generator of a case, and the features that the case uses.
pub(super) struct CaseRng {
    rng: Rng,
    focus: CaseFeatureSet,
}

impl CaseRng {
    pub(super) fn new(mut rng: Rng) -> CaseRng {
        let focus = CaseFeatureSet::random(&mut rng);
        CaseRng { rng, focus }
    }

    /// Whether the case uses this feature.
    pub(super) fn has(&self, feature: CaseFeature) -> bool {
        self.focus.has(feature)
    }

    /// Removes all features from the case.
    pub(super) fn clear_features(&mut self) {
        self.focus = CaseFeatureSet::default();
    }

    /// Adds this feature to the case.
    pub(super) fn add(&mut self, feature: CaseFeature) {
        self.focus.add(feature);
    }

    /// True with this probability in percent.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    /// True with this probability in percent if the case uses this feature, else never.
    pub(super) fn when(&mut self, feature: CaseFeature, percent: u64) -> bool {
        self.has(feature) && self.percent(percent)
    }

    /// Uniform in `low..=high`.
    pub(super) fn range(&mut self, low: i64, high: i64) -> i64 {
        self.rng.range(low, high)
    }

    /// Uniform in `low..=high`.
    pub(super) fn count(&mut self, low: usize, high: usize) -> usize {
        self.rng.range(low as i64, high as i64) as usize
    }

    /// One of the pool.
    pub(super) fn pick<T: Copy>(&mut self, pool: &[T]) -> T {
        *self.rng.pick(pool)
    }

    /// In 88 percent of cases one of `usual`, else one of `odd`.
    pub(super) fn mostly<T: Copy>(&mut self, usual: &[T], odd: &[T]) -> T {
        if self.percent(88) { self.pick(usual) } else { self.pick(odd) }
    }

    /// `low` to `high` different items, in the order of the pool.
    pub(super) fn some<T: Copy>(&mut self, pool: &[T], low: usize, high: usize) -> Vec<T> {
        let mut left = self.count(low, high.min(pool.len()));
        let mut chosen = Vec::with_capacity(left);
        for (at, item) in pool.iter().enumerate() {
            let n_behind = (pool.len() - at) as u64;
            if left > 0 && self.rng.below(n_behind) < left as u64 {
                chosen.push(*item);
                left -= 1;
            }
        }
        chosen
    }

    /// Shuffles the items.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
    }
}

/// Builder of a JSON object.
#[derive(Default)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Sets a field.
    pub(super) fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// Sets a field, unless the value is null, an empty list or an empty object.
    pub(super) fn put_some(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        let is_empty = match &value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        if !is_empty {
            self.put(name, value);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Value {
        Value::Object(fields.0)
    }
}
