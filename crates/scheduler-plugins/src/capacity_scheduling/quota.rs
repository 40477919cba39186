//! One ElasticQuota: its bounds, and what exceeds them.

use std::fmt;

use loadmaster_api::{ResourceList, Str};
use loadmaster_framework::Resources;
use serde::Deserialize;

use crate::elastic_quota::ElasticQuotaSpec;

/// What the plugin reads of an ElasticQuota.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "ElasticQuotaObject")]
pub(super) struct ElasticQuota {
    /// Guaranteed: others may borrow it while it is not used.
    pub min: Bound,
    pub max: Bound,
    /// A resource of which more is guaranteed than allowed.
    pub min_above_max: Option<Str>,
}

#[derive(Default, Deserialize)]
struct ElasticQuotaObject {
    #[serde(default)]
    spec: Option<ElasticQuotaSpec>,
}

impl From<ElasticQuotaObject> for ElasticQuota {
    fn from(object: ElasticQuotaObject) -> Self {
        let spec = object.spec.unwrap_or_default();
        ElasticQuota {
            min: Bound::of(spec.min.as_ref(), 0),
            max: Bound::of(spec.max.as_ref(), i64::MAX),
            min_above_max: spec.min_above_max().map(Str::new),
        }
    }
}

/// An upper bound of resources. CPU, memory and ephemeral storage that are missing in a list are 0, as upstream; other missing resources
/// are not bounded by a maximum, and not guaranteed by a minimum.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    amounts: Resources,
    missing: i64,
}

impl Bound {
    /// Without a list, everything is missing.
    fn of(list: Option<&ResourceList>, missing: i64) -> Bound {
        let all_missing = || Resources {
            cpu_milli: missing,
            memory_bytes: missing,
            ephemeral_storage_bytes: missing,
            ..Resources::default()
        };
        let amounts = list.map_or_else(all_missing, Resources::from_resource_list);
        Bound { amounts, missing }
    }

    /// The amounts that it lists.
    pub fn amounts(&self) -> &Resources {
        &self.amounts
    }

    /// The bound of a resource; `i64::MAX` for none.
    pub fn amount(&self, resource: &str) -> i64 {
        if is_native(resource) {
            return self.amounts.amount(resource);
        }
        self.amounts.scalar(resource).unwrap_or(self.missing)
    }

    /// Whether request and use together are more. Of other resources than CPU, memory and ephemeral storage, only those count that the
    /// request has.
    pub fn is_exceeded(&self, request: &Resources, used: &Resources) -> bool {
        self.excess(request, used).next().is_some()
    }

    /// By how much they are more, by resource.
    pub fn excess<'a>(
        &'a self,
        request: &'a Resources,
        used: &'a Resources,
    ) -> impl Iterator<Item = (&'a str, i64)> {
        excess(&self.amounts, self.missing, request, used)
    }
}

/// [`Bound::excess`] of a bound with these amounts, and this amount of other resources that it does not list.
pub(super) fn excess<'a>(
    bound: &'a Resources,
    missing: i64,
    request: &'a Resources,
    used: &'a Resources,
) -> impl Iterator<Item = (&'a str, i64)> {
    let excess = move |(name, amount): (&'a str, i64)| {
        let (used, bound) = match is_native(name) {
            true => (used.amount(name), bound.amount(name)),
            false => (used.scalar(name).unwrap_or(0), bound.scalar(name).unwrap_or(missing)),
        };
        let sum = amount.saturating_add(used);
        (sum > bound).then(|| (name, sum.saturating_sub(bound)))
    };
    amounts(request).filter_map(excess)
}

fn is_native(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory" | "ephemeral-storage")
}

/// All amounts: milli-CPU, bytes, numbers.
pub(super) fn amounts(resources: &Resources) -> impl Iterator<Item = (&str, i64)> {
    let native = [
        ("cpu", resources.cpu_milli),
        ("memory", resources.memory_bytes),
        ("ephemeral-storage", resources.ephemeral_storage_bytes),
    ];
    native
        .into_iter()
        .chain(resources.scalars.iter().map(|(name, amount)| (name.as_str(), *amount)))
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.amounts.cpu_milli == i64::MAX {
            f.write_str("unlimited")
        } else {
            f.write_str(&resource_text(&self.amounts))
        }
    }
}

/// Amounts without zeros: `cpu 1500m, memory 1Gi`; `0` if there are none.
pub(super) fn resource_text(resources: &Resources) -> String {
    amounts_text(amounts(resources))
}

/// [`resource_text`] of these amounts.
pub(super) fn amounts_text<'a>(amounts: impl Iterator<Item = (&'a str, i64)>) -> String {
    let text = |(name, amount): (&str, i64)| match name {
        "cpu" => format!("cpu {amount}m"),
        "memory" | "ephemeral-storage" => format!("{name} {}", bytes_text(amount)),
        _ => format!("{name} {amount}"),
    };
    let texts: Vec<String> = amounts.filter(|(_, amount)| *amount != 0).map(text).collect();
    if texts.is_empty() { "0".to_owned() } else { texts.join(", ") }
}

/// Bytes in the largest binary unit of which they are a multiple: `1536Mi`.
fn bytes_text(bytes: i64) -> String {
    let (mut amount, mut unit) = (bytes, "");
    for larger in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
        if amount == 0 || amount % 1024 != 0 {
            break;
        }
        (amount, unit) = (amount / 1024, larger);
    }
    format!("{amount}{unit}")
}
