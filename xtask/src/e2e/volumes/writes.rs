//! Compares what two schedulers wrote: requests, their order for each object, and their bodies, without values of one run and without
//! fields that change nothing.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::e2e::audit::AuditEntry;

/// Fields whose values are of one run: only whether they have a value counts.
const RUN_VALUES: [&str; 6] = [
    "creationTimestamp",
    "lastPhaseTransitionTime",
    "lastProbeTime",
    "lastTransitionTime",
    "resourceVersion",
    "uid",
];
/// Fields that do not change what is written: managed fields that the client has read are the API server's own; the order of conditions is
/// a hint for merging; preconditions and UIDs, which Loadmaster adds, prevent writes to a new object of the same name.
const WITHOUT_EFFECT: [&str; 3] = ["$setElementOrder/conditions", "managedFields", "preconditions"];
/// The name of a provisioned volume begins like this, and ends with the claim's uid.
const PROVISIONED: &str = "pvc-";

/// The writes to each object, in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WritesByObject(BTreeMap<String, Vec<String>>);

impl WritesByObject {
    /// Successful requests. One that conflicts with a controller's is repeated, by both schedulers.
    pub fn new(entries: &[AuditEntry]) -> WritesByObject {
        let mut entries: Vec<&AuditEntry> =
            entries.iter().filter(|entry| entry.is_success()).collect();
        entries.sort_by_key(|entry| entry.received);
        let mut writes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in entries {
            let (resource, _) = entry.resource.split_once('/').unwrap_or((&entry.resource, ""));
            let object = format!("{resource} {}", entry.name);
            let body = effective_body(&entry.resource, entry.body.clone());
            let write = format!("{} {} {body}", entry.verb, entry.resource);
            writes.entry(object).or_default().push(write);
        }
        WritesByObject(writes)
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// What differs from these writes, one line each, after a line with the object.
    pub fn differences(&self, want: &WritesByObject) -> Vec<String> {
        let mut lines = Vec::new();
        let objects: std::collections::BTreeSet<&String> =
            want.0.keys().chain(self.0.keys()).collect();
        for object in objects {
            let of = |writes: &WritesByObject| writes.0.get(object).cloned().unwrap_or_default();
            let (found, wanted) = (of(self), of(want));
            if found == wanted {
                continue;
            }
            lines.push(format!("{object}:"));
            lines.extend(wanted.iter().map(|write| format!("  - {write}")));
            lines.extend(found.iter().map(|write| format!("  + {write}")));
        }
        lines
    }
}

/// The body of a request, without what has no effect. In patches of a status, fields that stay as they are have no effect, either: those of
/// a condition whose message changes, and a time that was never set.
fn effective_body(resource: &str, mut body: Value) -> Value {
    if resource == "pods/status" {
        if let Some(fields) = body.as_object_mut() {
            fields.remove("metadata");
        }
        let conditions = body.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten() {
            let Some(fields) = condition.as_object_mut() else { continue };
            fields.remove("lastProbeTime");
            if !fields.contains_key("lastTransitionTime") {
                fields.retain(|name, _| name == "type" || name == "message");
            }
        }
    } else if resource == "pods/binding"
        && let Some(target) = body.pointer_mut("/target").and_then(Value::as_object_mut)
    {
        target.remove("apiVersion");
    }
    without_run_values(body)
}

/// An object without values that differ in each run.
pub fn without_run_values(mut object: Value) -> Value {
    mask(&mut object);
    object
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !WITHOUT_EFFECT.contains(&name.as_str()));
            for (name, value) in fields {
                let has_text = value.as_str().is_some_and(|text| !text.is_empty());
                if RUN_VALUES.contains(&name.as_str()) && has_text {
                    *value = "(set)".into();
                }
                mask(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::String(text) if text.starts_with(PROVISIONED) => *text = PROVISIONED.to_owned(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(second: i64, resource: &str, name: &str, body: Value, code: u16) -> AuditEntry {
        let at = jiff::Timestamp::from_second(second).unwrap();
        AuditEntry {
            user: "s".to_owned(),
            user_agent: String::new(),
            verb: "update".to_owned(),
            resource: resource.to_owned(),
            namespace: String::new(),
            name: name.to_owned(),
            uid: String::new(),
            body,
            code,
            received: at,
            answered: at,
        }
    }

    #[test]
    fn values_of_one_run_are_masked() {
        let check = |object: Value, want: Value| assert_eq!(without_run_values(object), want);
        check(
            json!({"metadata": {"uid": "a", "resourceVersion": "7", "name": "n"}}),
            json!({"metadata": {"uid": "(set)", "resourceVersion": "(set)", "name": "n"}}),
        );
        check(
            json!({"conditions": [{"lastTransitionTime": "t", "lastProbeTime": null, "reason": "r"}]}),
            json!({"conditions": [{"lastTransitionTime": "(set)", "lastProbeTime": null, "reason": "r"}]}),
        );
        check(json!({"volumeName": "pvc-1-2"}), json!({"volumeName": "pvc-"}));
        check(json!({"uid": ""}), json!({"uid": ""}));
    }

    #[test]
    fn fields_without_effect_are_removed() {
        let check = |resource: &str, body: Value, want: Value| {
            assert_eq!(effective_body(resource, body), want, "{resource}");
        };
        let uid = json!({"uid": "u"});
        check(
            "pods/binding",
            json!({"metadata": uid, "target": {"apiVersion": "v1", "name": "n"}}),
            json!({"metadata": {"uid": "(set)"}, "target": {"name": "n"}}),
        );
        check(
            "pods/status",
            json!({"metadata": uid, "status": {"nominatedNodeName": "n"}}),
            json!({"status": {"nominatedNodeName": "n"}}),
        );
        let condition = |more: Value| {
            let mut condition = json!({"type": "PodScheduled", "message": "m"});
            condition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"status": {"conditions": [condition]}})
        };
        check("pods/status", condition(json!({"reason": "r"})), condition(json!({})));
        check(
            "pods/status",
            condition(json!({"reason": "r", "lastProbeTime": null, "lastTransitionTime": "t"})),
            condition(json!({"reason": "r", "lastTransitionTime": "(set)"})),
        );
        let kept = json!({"spec": {"claimRef": {"name": "c"}}});
        let mut read = kept.clone();
        read["metadata"] = json!({"managedFields": [{}]});
        let mut want = kept;
        want["metadata"] = json!({});
        check("persistentvolumes", read, want);
        check("pods", json!({"preconditions": uid}), json!({}));
    }

    #[test]
    fn requests_and_fields_that_differ_are_reported() {
        let writes = |list: &[(i64, &str, &str, Value, u16)]| {
            let entries = list.iter().map(|(second, resource, name, body, code)| {
                entry(*second, resource, name, body.clone(), *code)
            });
            WritesByObject::new(&entries.collect::<Vec<_>>())
        };
        let want = writes(&[
            (2, "pods/binding", "a", json!({"target": "n"}), 201),
            (1, "pods/status", "a", json!({"status": 1}), 200),
            (3, "persistentvolumes", "v", json!({"uid": "1"}), 409),
            (4, "persistentvolumes", "v", json!({"uid": "1"}), 200),
        ]);
        assert_eq!(want.len(), 3);
        let same = writes(&[
            (1, "persistentvolumes", "v", json!({"uid": "2"}), 200),
            (1, "pods/status", "a", json!({"status": 1}), 200),
            (3, "pods/binding", "a", json!({"target": "n"}), 201),
        ]);
        assert!(same.differences(&want).is_empty());
        let other = writes(&[
            (1, "persistentvolumes", "v", json!({}), 200),
            (1, "pods/binding", "a", json!({"target": "n"}), 201),
            (2, "pods/status", "a", json!({"status": 1}), 200),
        ]);
        assert_eq!(
            other.differences(&want),
            [
                "persistentvolumes v:",
                r#"  - update persistentvolumes {"uid":"(set)"}"#,
                "  + update persistentvolumes {}",
                "pods a:",
                r#"  - update pods/status {"status":1}"#,
                r#"  - update pods/binding {"target":"n"}"#,
                r#"  + update pods/binding {"target":"n"}"#,
                r#"  + update pods/status {"status":1}"#,
            ]
        );
    }
}
