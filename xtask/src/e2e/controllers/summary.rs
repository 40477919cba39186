//! A summary of the cluster's objects: one line per object, without generated names, times and ids.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::e2e::api_client::ApiClient;

/// The compared kinds, and the compared fields of their specs.
const KINDS: &[(&str, &str, &[&str])] = &[
    ("Deployment", "/apis/apps/v1/deployments", &["replicas", "paused"]),
    ("ReplicaSet", "/apis/apps/v1/replicasets", &["replicas", "minReadySeconds"]),
    ("StatefulSet", "/apis/apps/v1/statefulsets", &["replicas"]),
    ("DaemonSet", "/apis/apps/v1/daemonsets", &[]),
    ("ControllerRevision", "/apis/apps/v1/controllerrevisions", &[]),
    ("Job", "/apis/batch/v1/jobs", &["suspend", "completions"]),
    ("CronJob", "/apis/batch/v1/cronjobs", &["suspend"]),
    ("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets", &[]),
    ("PersistentVolumeClaim", "/api/v1/persistentvolumeclaims", &["volumeName"]),
    ("PersistentVolume", "/api/v1/persistentvolumes", &["claimRef"]),
    // Without intermediate counts: kube-controller-manager may count pods before it has observed all of them.
    ("ResourceQuota", "/api/v1/resourcequotas", &["hard"]),
    ("Pod", "/api/v1/pods", &["hostname", "subdomain", "tolerations"]),
    ("Namespace", "/api/v1/namespaces", &["finalizers"]),
];

/// The controllers whose Events are compared; Events of kubelets and schedulers are not.
const EVENT_SOURCES: [&str; 9] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "job-controller",
    "cronjob-controller",
    "taint-eviction-controller",
    "persistentvolume-controller",
    "controllermanager",
];

/// The summary of the current objects.
pub(super) async fn read_summary(api: &ApiClient) -> Result<BTreeSet<String>> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (kind, path, fields) in KINDS {
        for object in api.list(path).await? {
            if is_compared(&object) {
                *counts.entry(line(kind, &object, fields)).or_default() += 1;
            }
        }
    }
    let times = |(line, count): (String, usize)| {
        if count == 1 { line } else { format!("{count} x {line}") }
    };
    let mut lines: BTreeSet<String> = counts.into_iter().map(times).collect();
    for event in api.list("/api/v1/events").await? {
        let source = event["source"]["component"].as_str().unwrap_or_default();
        if EVENT_SOURCES.contains(&source) && is_compared(&event) {
            let about = &event["involvedObject"];
            let text = |value: &Value| mask(value.as_str().unwrap_or_default());
            // The message is not compared: kube-controller-manager aggregates Events in quick succession.
            let (kind, name) = (text(&about["kind"]), text(&about["name"]));
            // Which pods are evicted depends on where the scheduler placed them.
            if event["reason"] == "TaintManagerEviction" {
                continue;
            }
            // Whether a disruption budget or its pods are observed first is random.
            if about["kind"] == "PodDisruptionBudget" {
                continue;
            }
            lines.insert(format!("Event {kind} {name} {}", text(&event["reason"])));
        }
    }
    Ok(lines)
}

fn is_compared(object: &Value) -> bool {
    let meta = &object["metadata"];
    let place = meta["namespace"].as_str().or(meta["name"].as_str()).unwrap_or_default();
    !place.starts_with("kube-")
}

fn line(kind: &str, object: &Value, fields: &[&str]) -> String {
    let meta = &object["metadata"];
    let mut shown = Map::new();
    for field in ["labels", "annotations", "ownerReferences", "finalizers", "generateName"] {
        if !meta[field].is_null() {
            shown.insert(field.to_owned(), meta[field].clone());
        }
    }
    if let Some(Value::Object(labels)) = shown.get_mut("labels") {
        // The node of a pod is chosen by the scheduler.
        labels.retain(|key, _| !key.starts_with("topology.kubernetes.io/"));
    }
    if let Some(Value::Object(notes)) = shown.get_mut("annotations") {
        notes.remove("kubectl.kubernetes.io/last-applied-configuration");
        notes.remove("kubectl.kubernetes.io/restartedAt");
    }
    for field in fields {
        if !object["spec"][field].is_null() {
            shown.insert((*field).to_owned(), object["spec"][field].clone());
        }
    }
    if kind == "Pod" {
        shown.insert("phase".to_owned(), object["status"]["phase"].clone());
        shown.insert("isGoing".to_owned(), json!(!meta["deletionTimestamp"].is_null()));
    } else if kind == "ControllerRevision" {
        shown.insert("revision".to_owned(), object["revision"].clone());
    } else if !object["status"].is_null() {
        shown.insert("status".to_owned(), object["status"].clone());
    }
    if kind == "ReplicaSet"
        && let Some(Value::Object(status)) = shown.get_mut("status")
    {
        // It counts the steps in which a set was scaled, which depend on how fast pods are created.
        status.remove("observedGeneration");
    }
    let mut shown = Value::Object(shown);
    remove_generated_fields(&mut shown);
    format!("{kind} {} {shown}", mask(meta["name"].as_str().unwrap_or_default()))
}

/// Masks names, and removes times and ids.
fn remove_generated_fields(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| {
                !matches!(key.as_str(), "uid" | "resourceVersion") && !value.is_null()
            });
            for (key, value) in map.iter_mut() {
                if key.ends_with("Time") || key.ends_with("timestamp") {
                    *value = json!("TIME");
                } else if key.ends_with("controller-uid") {
                    *value = json!("UID");
                } else {
                    remove_generated_fields(value);
                }
            }
        }
        Value::Array(all) => {
            all.iter_mut().for_each(remove_generated_fields);
            if all.iter().all(|one| !one["type"].is_null()) {
                all.sort_by_key(|one| one["type"].to_string());
            }
        }
        Value::String(text) => *text = mask(text),
        _ => {}
    }
}

/// Masks the generated parts of a name or message.
fn mask(text: &str) -> String {
    let is_generated = |part: &str| {
        let letters = part.len() >= 5
            && part.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte));
        let digits = part.len() >= 7 && part.bytes().all(|byte| byte.is_ascii_digit());
        letters || digits
    };
    let mut masked = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let end = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).len();
        let (word, rest) = piece.split_at(end);
        masked.push_str(if is_generated(word) { "#" } else { word });
        masked.push_str(rest);
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_parts_are_masked() {
        for (text, want) in [
            ("web-5d4f8c7b9-x2kzq", "web-#-#"),
            ("Created pod: web-5d4f8c7b9-x2kzq", "Created pod: web-#-#"),
            ("ReplicaSet \"web-5d4f8c7b9\" has", "ReplicaSet \"web-#\" has"),
            ("tick-29453762", "tick-#"),
            ("data-db-0", "data-db-0"),
            ("node-1", "node-1"),
        ] {
            assert_eq!(mask(text), want);
        }
    }

    #[test]
    fn lines_have_no_times() {
        let object = json!({"metadata": {"name": "a", "uid": "1", "annotations": {"x": "1"}},
            "spec": {"replicas": 2, "other": 1}, "status": {"conditions": [{"type": "B", "lastUpdateTime": "x"}, {"type": "A"}]}});
        let want = r#"Deployment a {"annotations":{"x":"1"},"replicas":2,"status":{"conditions":[{"type":"A"},{"lastUpdateTime":"TIME","type":"B"}]}}"#;
        assert_eq!(line("Deployment", &object, &["replicas"]), want);
    }
}
