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

    /// Whether request and use together are more. Of other resources than CPU, memory and ephemeral storage, only those count that the
    /// request has.
    pub fn is_exceeded(&self, request: &Resources, used: &Resources) -> bool {
        exceeds(&self.amounts, self.missing, request, used)
    }
}

/// [`Bound::is_exceeded`] by a bound with these amounts, and this amount of other resources that it does not list.
pub(super) fn exceeds(
    bound: &Resources,
    missing: i64,
    request: &Resources,
    used: &Resources,
) -> bool {
    let is_more = |request: i64, used: i64, bound: i64| request.saturating_add(used) > bound;
    is_more(request.cpu_milli, used.cpu_milli, bound.cpu_milli)
        || is_more(request.memory_bytes, used.memory_bytes, bound.memory_bytes)
        || is_more(
            request.ephemeral_storage_bytes,
            used.ephemeral_storage_bytes,
            bound.ephemeral_storage_bytes,
        )
        || request.scalars.iter().any(|(name, amount)| {
            let bound = bound.scalar(name).unwrap_or(missing);
            is_more(*amount, used.scalar(name).unwrap_or(0), bound)
        })
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

/// Amounts in base units: `cpu 1500m, memory 1073741824`; `0` if there are none.
pub(super) fn resource_text(resources: &Resources) -> String {
    let native = [
        ("memory", resources.memory_bytes),
        ("ephemeral-storage", resources.ephemeral_storage_bytes),
    ];
    let scalars =
        resources.scalars.iter().map(|(name, amount): &(Str, i64)| (name.as_str(), *amount));
    let others = native.into_iter().chain(scalars).filter(|(_, amount)| *amount != 0);
    let cpu = (resources.cpu_milli != 0).then(|| format!("cpu {}m", resources.cpu_milli));
    let texts = cpu.into_iter().chain(others.map(|(name, amount)| format!("{name} {amount}")));
    let all = texts.collect::<Vec<_>>().join(", ");
    if all.is_empty() { "0".to_owned() } else { all }
}
