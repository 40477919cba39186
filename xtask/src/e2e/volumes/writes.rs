//! Compares what two schedulers wrote: requests, their order for each object, and their bodies, without values of one run and without
//! fields that change nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

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

    /// What differs from those of the reference, one line each, after a line with the object. What may be missing, see [`missing_writes`].
    pub fn differences(&self, reference: &WritesByObject) -> Vec<String> {
        let mut lines = Vec::new();
        let objects: BTreeSet<&String> = reference.0.keys().chain(self.0.keys()).collect();
        for object in objects {
            let of = |writes: &WritesByObject| writes.0.get(object).cloned().unwrap_or_default();
            let (found, wanted) = (of(self), of(reference));
            if missing_writes(&found, &wanted).is_some() {
                continue;
            }
            lines.push(format!("{object}:"));
            lines.extend(wanted.iter().map(|write| format!("  - {write}")));
            lines.extend(found.iter().map(|write| format!("  + {write}")));
        }
        if !self.has_nomination() && reference.has_nomination() {
            lines.push("no pod is nominated to its node".to_owned());
        }
        lines
    }

    fn has_nomination(&self) -> bool {
        self.0.values().flatten().any(|write| nominated_node(write).is_some())
    }

    /// Number of the reference's writes that may be missing, and are.
    pub fn n_missing(&self, reference: &WritesByObject) -> usize {
        let missing = |object: &String, wanted: &Vec<String>| {
            self.0.get(object).and_then(|found| missing_writes(found, wanted))
        };
        reference.0.iter().filter_map(|(object, wanted)| missing(object, wanted)).sum()
    }
}

/// Whether two schedulers wrote the same to an object: the number of the reference's writes that are missing, but may be. These are
///
/// - one that repeats the one before: kube-scheduler tries a pod again whose condition its watch has not delivered yet, and writes the same;
/// - a nomination before a bind to the same node: a bind overrides the patches of its pod that have not been sent yet.
fn missing_writes(found: &[String], wanted: &[String]) -> Option<usize> {
    let mut n_missing = 0;
    let mut found = found.iter().peekable();
    for (at, write) in wanted.iter().enumerate() {
        if found.next_if_eq(&write).is_some() {
            continue;
        }
        let is_repeated = at > 0 && wanted[at - 1] == *write;
        let is_overridden = nominated_node(write)
            .is_some_and(|node| wanted.get(at + 1).is_some_and(|next| is_bind_to(next, &node)));
        if !is_repeated && !is_overridden {
            return None;
        }
        n_missing += 1;
    }
    found.next().is_none().then_some(n_missing)
}

/// The node of a write that only nominates a pod to it.
fn nominated_node(write: &str) -> Option<String> {
    let body: Value = serde_json::from_str(write.strip_prefix("patch pods/status ")?).ok()?;
    let node = body.pointer("/status/nominatedNodeName")?.as_str()?;
    (body == json!({"status": {"nominatedNodeName": node}})).then(|| node.to_owned())
}

fn is_bind_to(write: &str, node: &str) -> bool {
    let body = write.strip_prefix("create pods/binding ");
    let body = body.and_then(|body| serde_json::from_str::<Value>(body).ok());
    body.is_some_and(|body| body["target"]["name"] == node)
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
        assert_eq!(same.n_missing(&want), 0);
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

    #[test]
    fn repeated_writes_and_overridden_nominations_may_be_missing() {
        let bind = |node: &str| format!(r#"create pods/binding {{"target":{{"name":"{node}"}}}}"#);
        let nominate = |node: &str| {
            format!(r#"patch pods/status {{"status":{{"nominatedNodeName":"{node}"}}}}"#)
        };
        let reject = || r#"patch pods/status {"status":{"conditions":[]}}"#.to_owned();
        let check = |found: &[String], wanted: &[String], want: Option<usize>| {
            assert_eq!(missing_writes(found, wanted), want, "{found:?}, {wanted:?}");
        };
        check(&[reject(), bind("a")], &[reject(), reject(), bind("a")], Some(1));
        check(&[reject(), reject(), bind("a")], &[reject(), bind("a")], None);
        check(&[bind("a")], &[reject(), bind("a")], None);
        check(&[bind("a")], &[nominate("a"), bind("a")], Some(1));
        check(&[nominate("a"), bind("a")], &[nominate("a"), bind("a")], Some(0));
        check(&[bind("b")], &[nominate("a"), bind("b")], None);
        check(&[], &[nominate("a")], None);
        check(&[nominate("a"), bind("a")], &[bind("a")], None);

        let of = |list: &[String]| WritesByObject([("pods p".to_owned(), list.to_vec())].into());
        let lines = of(&[bind("a")]).differences(&of(&[nominate("a"), bind("a")]));
        assert_eq!(lines, ["no pod is nominated to its node"]);
    }
}
