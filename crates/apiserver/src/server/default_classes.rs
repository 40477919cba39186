//! Admission plugins RuntimeClass, DefaultStorageClass and DefaultIngressClass: a pod's overhead and node selector,
//! and the default class of a PersistentVolumeClaim or Ingress.

use loadmaster_api::Quantity;
use serde_json::{Value, json};

use super::ApiServer;
use crate::object::{list_entries, members_mut, metadata_text, parsed};
use crate::schema::Kind;
use crate::status::ApiError;
use crate::store::{Filter, ListOptions};

/// Where objects of a kind name their class, and the annotation of the default class.
pub(super) struct DefaultClass {
    /// Of the `spec`.
    field: &'static str,
    /// The older annotation with the same meaning.
    old_name: &'static str,
    group: &'static str,
    resource: &'static str,
    /// A class is the default if one of these annotations is `true`.
    annotations: &'static [&'static str],
}

pub(super) const STORAGE: DefaultClass = DefaultClass {
    field: "storageClassName",
    old_name: "volume.beta.kubernetes.io/storage-class",
    group: "storage.k8s.io",
    resource: "storageclasses",
    annotations: &[
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ],
};

pub(super) const INGRESS: DefaultClass = DefaultClass {
    field: "ingressClassName",
    old_name: "kubernetes.io/ingress.class",
    group: "networking.k8s.io",
    resource: "ingressclasses",
    annotations: &["ingressclass.kubernetes.io/is-default-class"],
};

impl ApiServer {
    /// Sets a pod's overhead, node selector and tolerations from its RuntimeClass.
    pub(super) fn set_runtime(&self, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
        let pod_name = metadata_text(pod, "name").to_owned();
        let forbidden = |why: &str| ApiError::forbidden(kind, &pod_name, why);
        let spec = &mut pod["spec"];
        let class = match spec["runtimeClassName"].as_str() {
            Some(name) => {
                let classes = self.own_kind("node.k8s.io", "runtimeclasses")?;
                let stored = self.get_object(classes, "", name).map_err(|_| {
                    forbidden(&format!("pod rejected: RuntimeClass {name:?} not found"))
                })?;
                parsed(&stored)?
            }
            None => Value::Null,
        };
        if class["overhead"].is_null() {
            if !spec["overhead"].is_null() {
                let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
                return Err(forbidden(why));
            }
        } else {
            let overhead = &class["overhead"]["podFixed"];
            if !spec["overhead"].is_null() && !are_equal(&spec["overhead"], overhead) {
                let why =
                    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                return Err(forbidden(why));
            }
            if !overhead.is_null() {
                spec["overhead"] = overhead.clone();
            }
        }
        let scheduling = &class["scheduling"];
        for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
            let known = spec["nodeSelector"][key].as_str().unwrap_or_default();
            let has = spec["nodeSelector"].get(key).is_some();
            if has && known != value {
                let text = value.as_str().unwrap_or_default();
                return Err(forbidden(&format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {text}; pod.spec.nodeSelector[{key}] = {known}"
                )));
            }
            let selector = members_mut(spec).entry("nodeSelector").or_insert_with(|| json!({}));
            members_mut(selector).insert(key.clone(), value.clone());
        }
        if !scheduling.is_null() {
            let merged = merged(
                list_entries(&spec["tolerations"]),
                list_entries(&scheduling["tolerations"]),
            );
            if !merged.is_empty() {
                spec["tolerations"] = merged.into();
            }
        }
        Ok(())
    }

    /// Sets the default class of an object that names none. An empty name means no class.
    pub(super) fn set_default_class(
        &self,
        class: &DefaultClass,
        value: &mut Value,
    ) -> Result<(), ApiError> {
        let is_said = value["spec"].get(class.field).is_some_and(|it| !it.is_null());
        if is_said || value["metadata"]["annotations"].get(class.old_name).is_some() {
            return Ok(());
        }
        if let Some(name) = self.newest_default(class)? {
            value["spec"][class.field] = name.into();
        }
        Ok(())
    }

    /// The default class: of several, the newest, then the first by name.
    fn newest_default(&self, class: &DefaultClass) -> Result<Option<String>, ApiError> {
        let kind = self.own_kind(class.group, class.resource)?;
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        let page = self.state().store.list(table, &ListOptions::default(), &Filter::everything());
        let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
        let mut best: Option<(String, String)> = None;
        for object in &page.objects {
            let one = parsed(object)?;
            let said = &one["metadata"]["annotations"];
            let made = metadata_text(&one, "creationTimestamp");
            let is_newer = best.as_ref().is_none_or(|(known, _)| made > known.as_str());
            if class.annotations.iter().any(|it| said[*it] == "true") && is_newer {
                best = Some((made.to_owned(), metadata_text(&one, "name").to_owned()));
            }
        }
        Ok(best.map(|(_, name)| name))
    }
}

/// Whether two resource lists are equal.
fn are_equal(a: &Value, b: &Value) -> bool {
    let amounts = |list: &Value| -> Vec<(String, Option<Quantity>)> {
        let members = list.as_object().into_iter().flatten();
        let read = |it: &Value| Quantity::parse(it.as_str()?).ok();
        members.map(|(name, it)| (name.clone(), read(it))).collect()
    };
    amounts(a) == amounts(b)
}

/// The tolerations without those that another one covers.
fn merged(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut retained: Vec<&Value> = Vec::new();
    for (at, one) in all.iter().enumerate() {
        let is_in_later = all[at + 1..].iter().any(|it| it != one && contains(it, one));
        if !is_in_later && !retained.iter().any(|it| contains(it, one)) {
            retained.push(one);
        }
    }
    retained.into_iter().cloned().collect()
}

/// Whether `a` tolerates everything that `b` tolerates.
fn contains(a: &Value, b: &Value) -> bool {
    if a == b {
        return true;
    }
    let text = |it: &Value, field: &str| it[field].as_str().unwrap_or_default().to_owned();
    let is_for_all = text(a, "key").is_empty() && text(a, "operator") == "Exists";
    if text(a, "key") != text(b, "key") && !is_for_all {
        return false;
    }
    if text(a, "effect") != text(b, "effect") && !text(a, "effect").is_empty() {
        return false;
    }
    if let Some(seconds) = a["tolerationSeconds"].as_i64()
        && text(a, "effect") == "NoExecute"
        && b["tolerationSeconds"].as_i64().is_none_or(|it| it > seconds)
    {
        return false;
    }
    match text(a, "operator").as_str() {
        "Exists" => true,
        "Equal" | "" => text(b, "operator") == "Equal" && text(a, "value") == text(b, "value"),
        _ => false,
    }
}
