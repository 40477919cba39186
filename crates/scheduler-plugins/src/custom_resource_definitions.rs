//! The CustomResourceDefinitions of the set, as manifests. Objects that were written for scheduler-plugins are valid.

/// One YAML document each: PodGroup, ElasticQuota.
pub const CUSTOM_RESOURCE_DEFINITIONS: [&str; 2] = [
    include_str!("custom_resource_definitions/podgroups.yaml"),
    include_str!("custom_resource_definitions/elasticquotas.yaml"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::elastic_quota::{ElasticQuotaSpec, ElasticQuotaStatus, elastic_quotas};
    use crate::pod_group::{self, PodGroupSpec, PodGroupStatus};

    fn definition(nth: usize) -> Value {
        serde_saphyr::from_str(CUSTOM_RESOURCE_DEFINITIONS[nth]).unwrap()
    }

    fn keys(object: &Value) -> BTreeSet<&str> {
        object.as_object().unwrap().keys().map(String::as_str).collect()
    }

    /// The schema of a field of the object.
    fn properties<'a>(definition: &'a Value, section: &str) -> &'a Value {
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        &schema["properties"][section]["properties"]
    }

    #[test]
    fn the_schema_of_pod_groups_has_the_fields_of_the_types() {
        let definition = definition(0);
        let spec: PodGroupSpec = serde_json::from_value(json!({
            "minMember": 1, "minResources": {"cpu": "1"}, "scheduleTimeoutSeconds": 1,
        }))
        .unwrap();
        let spec = serde_json::to_value(spec).unwrap();
        assert_eq!(keys(properties(&definition, "spec")), keys(&spec));
        let status: PodGroupStatus = serde_json::from_value(json!({
            "phase": "Running", "occupiedBy": "a/b", "running": 1, "succeeded": 1, "failed": 1,
            "scheduleStartTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap();
        let status = serde_json::to_value(status).unwrap();
        assert_eq!(keys(properties(&definition, "status")), keys(&status));
    }

    #[test]
    fn the_schema_of_elastic_quotas_has_the_fields_of_the_types() {
        let definition = definition(1);
        let spec = json!({"min": {"cpu": "1"}, "max": {"cpu": "2"}});
        let read: ElasticQuotaSpec = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), spec);
        assert_eq!(keys(properties(&definition, "spec")), keys(&spec));
        let status = json!({"used": {"cpu": "1"}});
        let read: ElasticQuotaStatus = serde_json::from_value(status.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), status);
        assert_eq!(keys(properties(&definition, "status")), keys(&status));
    }

    #[test]
    fn names_agree_with_the_kinds_that_plugins_watch() {
        for (nth, kind) in [pod_group::pod_groups(), elastic_quotas()].iter().enumerate() {
            let definition = definition(nth);
            assert_eq!(definition["spec"]["group"], *kind.group);
            assert_eq!(definition["spec"]["names"]["plural"], *kind.resource);
            assert_eq!(definition["spec"]["versions"][0]["name"], *kind.version);
        }
    }

    #[test]
    fn every_definition_is_named_after_its_resource_and_has_a_status() {
        for nth in 0..CUSTOM_RESOURCE_DEFINITIONS.len() {
            let definition = definition(nth);
            let spec = &definition["spec"];
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let name = format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"]));
            assert_eq!(definition["metadata"]["name"], name);
            assert_eq!(spec["versions"][0]["subresources"], json!({"status": {}}), "{name}");
        }
    }
}
