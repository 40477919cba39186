//! ElasticQuota: the custom resource of a namespace's quota, in the group `scheduling.x-k8s.io`.

use loadmaster_api::{Quantity, ResourceList, Str};
use loadmaster_framework::Gvr;
use serde::{Deserialize, Serialize};

use crate::pod_group::{GROUP, VERSION};

/// The kind.
pub fn elastic_quotas() -> Gvr {
    Gvr::new(GROUP, VERSION, "elasticquotas")
}

/// `spec` of an ElasticQuota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ElasticQuotaSpec {
    /// What is guaranteed to the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<ResourceList>,
    /// The most that its pods may request together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<ResourceList>,
}

/// `status` of an ElasticQuota, which its controller writes. The plugin does not read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ElasticQuotaStatus {
    /// What the running pods of the namespace request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<ResourceList>,
}

impl ElasticQuotaSpec {
    /// The first resource, by name, of which more is guaranteed than allowed. CPU, memory and ephemeral storage that `max` does not list
    /// are forbidden.
    pub fn min_above_max(&self) -> Option<&str> {
        let (min, max) = (self.min.as_ref()?, self.max.as_ref()?);
        let is_above = |(name, least): &(&Str, &Quantity)| match max.get(name) {
            Some(most) => *least > most,
            None => is_bounded_by_default(name) && **least > Quantity::default(),
        };
        min.iter().find(is_above).map(|(name, _)| name.as_str())
    }
}

/// Whether a maximum that does not list this resource forbids it; others are not bounded then.
fn is_bounded_by_default(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, want: Option<&str>) {
        let parsed: ElasticQuotaSpec = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(parsed.min_above_max(), want, "{spec}");
    }

    #[test]
    fn more_may_not_be_guaranteed_than_is_allowed() {
        check(json!({}), None);
        check(json!({"min": {"cpu": "4"}}), None);
        check(json!({"max": {"cpu": "4"}}), None);
        check(json!({"min": {"cpu": "4"}, "max": {"cpu": "4000m"}}), None);
        check(json!({"min": {"cpu": "4001m"}, "max": {"cpu": 4}}), Some("cpu"));
        check(
            json!({"min": {"cpu": 1, "memory": "2Gi"}, "max": {"cpu": 1, "memory": "1Gi"}}),
            Some("memory"),
        );
        // What a maximum does not list.
        check(json!({"min": {"memory": 1}, "max": {"cpu": 4}}), Some("memory"));
        check(json!({"min": {"memory": 0}, "max": {"cpu": 4}}), None);
        check(json!({"min": {"example.com/gpu": 1}, "max": {"cpu": 4}}), None);
    }
}
