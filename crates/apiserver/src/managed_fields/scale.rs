//! Ownership of the number of replicas, between a workload and its Scale.

use serde_json::Value;

use super::entries::{ManagedFields, Owned};
use super::field_path::PathElement;
use super::field_set::FieldSet;

const SCALE_VERSION: &str = "autoscaling/v1";

/// Converts the managed fields of a workload to those of its Scale and back.
pub struct ScaleManagedFields<'a> {
    /// The workload's version.
    pub api_version: &'a str,
    /// Where a workload has its number of replicas, such as `["spec", "replicas"]`.
    pub replicas: &'a [&'a str],
}

/// A list of `metadata.managedFields`.
pub type ManagedFieldsList = Option<Value>;

impl ScaleManagedFields<'_> {
    /// The managed fields of the Scale.
    pub fn to_scale(&self, workload: &Value) -> ManagedFieldsList {
        let managed = ManagedFields::of(workload).ok()?;
        let path = self.path();
        let mut scale = ManagedFields::default();
        for (id, owned) in &managed.owners {
            if owned.api_version != self.api_version || !owned.fields.contains(&path) {
                continue;
            }
            let fields = FieldSet::of(&["spec", "replicas"]);
            scale
                .owners
                .insert(id.clone(), Owned { api_version: SCALE_VERSION.to_owned(), fields });
        }
        scale.times = managed.times;
        scale.write()
    }

    /// The managed fields of the workload, after those of its Scale have become `scale`.
    pub fn to_workload(&self, workload: &Value, scale: &Value) -> ManagedFieldsList {
        let mut managed = ManagedFields::of(workload).ok()?;
        let mut scale = ManagedFields::read(scale).ok()?;
        let path = self.path();
        let replicas = FieldSet::of(self.replicas);
        managed.owners.retain(|id, owned| {
            if owned.api_version != self.api_version {
                return false;
            }
            if owned.fields.contains(&path) && scale.owners.remove(id).is_none() {
                owned.fields = owned.fields.difference(&replicas);
            }
            !owned.fields.is_empty()
        });
        let scale_path = [PathElement::field("spec"), PathElement::field("replicas")];
        for (id, owned) in scale.owners {
            if owned.fields.contains(&scale_path) {
                let api_version = self.api_version.to_owned();
                managed.owners.insert(id, Owned { api_version, fields: replicas.clone() });
            }
        }
        managed.write()
    }

    fn path(&self) -> Vec<PathElement> {
        self.replicas.iter().map(|name| PathElement::field(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn replicas_change_their_owner() {
        let fields = ScaleManagedFields { api_version: "apps/v1", replicas: &["spec", "replicas"] };
        let entry = |manager: &str, operation: &str, fields: Value| {
            json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1",
                "fieldsType": "FieldsV1", "fieldsV1": fields, "time": "2026-01-02T03:04:05Z"})
        };
        let both = json!({"f:spec": {"f:paused": {}, "f:replicas": {}}});
        let workload = json!({"metadata": {"managedFields": [
            entry("a", "Apply", both), entry("b", "Update", json!({"f:spec": {"f:replicas": {}}})),
            entry("c", "Update", json!({"f:spec": {"f:paused": {}}}))]}});
        let scale = fields.to_scale(&workload).expect("two own replicas");
        assert_eq!(
            fields.to_workload(&workload, &scale).as_ref().map(|it| it.as_array().map(Vec::len)),
            Some(Some(3))
        );
        let taken = json!([{"manager": "d", "operation": "Update", "apiVersion": "autoscaling/v1",
            "subresource": "scale", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
        let left = fields.to_workload(&workload, &taken).expect("some own something");
        let lines: Vec<String> = crate::object::list_entries(&left)
            .iter()
            .map(|it| format!("{} {} {}", it["manager"], it["apiVersion"], it["fieldsV1"]))
            .collect();
        expect![[r#"
            "a" "apps/v1" {"f:spec":{"f:paused":{}}}
            "d" "apps/v1" {"f:spec":{"f:replicas":{}}}
            "c" "apps/v1" {"f:spec":{"f:paused":{}}}"#]]
        .assert_eq(&lines.join("\n"));
    }
}
