//! Admission plugins of upstream's that need other objects: Priority, ServiceAccount, DefaultTolerationSeconds,
//! default classes, StorageObjectInUseProtection; and the allocation of addresses to services.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{ApiServer, default_classes, rfc3339_seconds};
use crate::object::{list_entries, meta_mut, metadata_text, parsed};
use crate::schema::Kind;
use crate::status::ApiError;
use crate::store::{Filter, ListOptions};
use crate::strategy::PHASE_SINCE;

/// How long a pod stays on a node that is not ready or unreachable, in seconds (upstream's DefaultTolerationSeconds).
const TOLERATION_SECONDS: i64 = 300;

impl ApiServer {
    pub(super) fn admit(&self, kind: &Kind, value: &mut Value) -> Result<(), ApiError> {
        if kind.custom().is_some_and(|it| it.is_terminating) {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(ApiError::forbidden(kind, metadata_text(value, "name"), why));
        }
        match (kind.group, kind.resource) {
            ("", "pods") => {
                self.set_priority(kind, value)?;
                self.set_limits(kind, value)?;
                self.set_service_account(kind, value)?;
                tolerate_lost_nodes(value);
                self.set_runtime(kind, value)?;
                self.set_topology_labels(value)
            }
            ("", "persistentvolumeclaims") => {
                self.add_protection_finalizer(value, "kubernetes.io/pvc-protection");
                self.set_default_class(&default_classes::STORAGE, value)
            }
            ("", "persistentvolumes") => {
                self.add_protection_finalizer(value, "kubernetes.io/pv-protection");
                Ok(())
            }
            ("storage.k8s.io", "volumeattributesclasses") => {
                self.add_protection_finalizer(value, "kubernetes.io/vac-protection");
                Ok(())
            }
            ("networking.k8s.io", "ingresses") => {
                self.set_default_class(&default_classes::INGRESS, value)
            }
            ("", "nodes") => {
                if self.shared.setup.admission.taint_nodes {
                    taint_new_node(value);
                }
                Ok(())
            }
            ("", "services") => self.allocate(kind, None, value),
            ("scheduling.k8s.io", "priorityclasses") => self.check_only_default(kind, value),
            _ => Ok(()),
        }
    }

    /// Admission of an update.
    pub(super) fn admit_update(
        &self,
        kind: &Kind,
        subresource: &str,
        old: &Value,
        value: &mut Value,
    ) -> Result<(), ApiError> {
        match (kind.group, kind.resource, subresource) {
            ("", "pods", "") => tolerate_lost_nodes(value),
            ("", "services", "") => self.allocate(kind, Some(old), value)?,
            ("", "persistentvolumes", "status") => {
                set_phase_transition_time(old, value, self.now())
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds the finalizer that protects storage while it is in use; a controller removes it (upstream's
    /// StorageObjectInUseProtection).
    fn add_protection_finalizer(&self, value: &mut Value, finalizer: &str) {
        if !self.shared.setup.admission.storage_protection {
            return;
        }
        let known = meta_mut(value).entry("finalizers").or_insert_with(|| json!([]));
        match known {
            Value::Array(list) if list.iter().any(|it| it == finalizer) => {}
            Value::Array(list) => list.push(finalizer.into()),
            other => *other = json!([finalizer]),
        }
    }

    /// Sets a pod's priority from its PriorityClass, or from the default class.
    fn set_priority(&self, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
        let classes = self.own_kind("scheduling.k8s.io", "priorityclasses")?;
        let name = pod["spec"]["priorityClassName"].as_str().unwrap_or_default();
        let class = if name.is_empty() {
            self.default_class()?
        } else {
            let Ok(stored) = self.get_object(classes, "", name) else {
                let why = format!("no PriorityClass with name {name} was found");
                return Err(ApiError::forbidden(kind, metadata_text(pod, "name"), &why));
            };
            Some(parsed(&stored)?)
        };
        let (name, value, policy) = match &class {
            Some(class) => (
                metadata_text(class, "name"),
                class["value"].as_i64().unwrap_or(0),
                class["preemptionPolicy"].as_str().unwrap_or("PreemptLowerPriority"),
            ),
            None => ("", 0, "PreemptLowerPriority"),
        };
        let spec = &mut pod["spec"];
        if let Some(given) = spec["priority"].as_i64()
            && given != value
        {
            let why = format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
            );
            return Err(ApiError::forbidden(kind, metadata_text(pod, "name"), &why));
        }
        if !name.is_empty() {
            spec["priorityClassName"] = name.into();
        }
        spec["priority"] = value.into();
        if spec["preemptionPolicy"].is_null() {
            spec["preemptionPolicy"] = policy.into();
        }
        Ok(())
    }

    /// The global default PriorityClass; of several, the one with the lowest value.
    fn default_class(&self) -> Result<Option<Value>, ApiError> {
        let classes = self.own_kind("scheduling.k8s.io", "priorityclasses")?;
        let table = classes.table.ok_or_else(ApiError::no_such_resource)?;
        let page = self.state().store.list(table, &ListOptions::default(), &Filter::everything());
        let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
        let mut best: Option<Value> = None;
        for object in &page.objects {
            let class = parsed(object)?;
            let value = class["value"].as_i64();
            let is_lower = best.as_ref().is_none_or(|best| value < best["value"].as_i64());
            if class["globalDefault"] == true && is_lower {
                best = Some(class);
            }
        }
        Ok(best)
    }

    fn check_only_default(&self, kind: &Kind, class: &Value) -> Result<(), ApiError> {
        if class["globalDefault"] != true {
            return Ok(());
        }
        match self.default_class()? {
            Some(known) if metadata_text(&known, "name") != metadata_text(class, "name") => {
                let why = format!(
                    "PriorityClass {} is already marked as default. Only one default can exist",
                    metadata_text(&known, "name")
                );
                Err(ApiError::forbidden(kind, metadata_text(class, "name"), &why))
            }
            _ => Ok(()),
        }
    }

    /// Copies the topology labels of the node to a pod that is created on it.
    fn set_topology_labels(&self, pod: &mut Value) -> Result<(), ApiError> {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        if node.is_empty() {
            return Ok(());
        }
        let labels = self.topology_labels(&node)?;
        if !labels.is_empty() {
            let known = meta_mut(pod).entry("labels").or_insert_with(|| json!({}));
            crate::object::members_mut(known).extend(labels);
        }
        Ok(())
    }
}

/// Taints a new node as not ready until a controller removes the taint (upstream's TaintNodesByCondition).
fn taint_new_node(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    match node["spec"].get_mut("taints") {
        Some(Value::Array(taints)) if taints.contains(&taint) => {}
        Some(Value::Array(taints)) => taints.push(taint),
        _ => node["spec"]["taints"] = json!([taint]),
    }
}

/// Sets when a PersistentVolume's phase changed, unless the writer did.
fn set_phase_transition_time(old: &Value, volume: &mut Value, now: Timestamp) {
    let (before, status) = (&old["status"], &mut volume["status"]);
    let is_set_by_client =
        !status[PHASE_SINCE].is_null() && status[PHASE_SINCE] != before[PHASE_SINCE];
    if status["phase"] != before["phase"] && !is_set_by_client {
        status[PHASE_SINCE] = rfc3339_seconds(now).into();
    }
}

fn tolerate_lost_nodes(pod: &mut Value) {
    let spec = &mut pod["spec"];
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let is_tolerated = list_entries(&spec["tolerations"]).iter().any(|it| {
            let has_key = it["key"].as_str().is_none_or(|it| it.is_empty() || it == key);
            let has_effect =
                it["effect"].as_str().is_none_or(|it| it.is_empty() || it == "NoExecute");
            has_key && has_effect
        });
        if is_tolerated {
            continue;
        }
        let toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": TOLERATION_SECONDS});
        match spec.get_mut("tolerations") {
            Some(Value::Array(list)) => list.push(toleration),
            _ => spec["tolerations"] = json!([toleration]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_have_a_phase_transition_time() {
        let check = |new: Value, want: &str| {
            let old = json!({"status": {"phase": "Available", PHASE_SINCE: "then"}});
            let mut volume = json!({"status": new});
            set_phase_transition_time(&old, &mut volume, Timestamp::UNIX_EPOCH);
            assert_eq!(volume["status"][PHASE_SINCE], want, "{volume}");
        };
        let now = "1970-01-01T00:00:00Z";
        check(json!({"phase": "Bound", PHASE_SINCE: "then"}), now);
        check(json!({"phase": "Bound"}), now);
        check(json!({"phase": "Bound", PHASE_SINCE: "told"}), "told");
        check(json!({"phase": "Available", PHASE_SINCE: "then"}), "then");
        check(json!({"phase": "Available", PHASE_SINCE: "told"}), "told");
    }
}
