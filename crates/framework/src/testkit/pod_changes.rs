//! Changed copies of a pod, for tests of what depends on which of its fields.

mod vocabulary;

use serde_json::{Map, Value, json};

pub use self::vocabulary::PodVocabulary;

/// A changed copy of a pod.
#[derive(Clone, Debug)]
pub struct PodChange {
    /// What was changed: a description such as `ordinal label`, or the field's JSON pointer and its new value, such as
    /// `/spec/priority = 7`.
    pub name: String,
    /// The changed pod, which may be invalid.
    pub pod: Value,
}

/// Changes each field of a pod in turn: other values (those of the vocabulary and typical ones), removed, a list's items removed,
/// repeated or in reverse order, and additions in which the pods of a cluster differ, such as `ordinal label`, `token volume` or `resized`.
pub fn pod_changes(pod: &Value, vocabulary: &PodVocabulary) -> Vec<PodChange> {
    let mut pod = pod.clone();
    for part in ["metadata", "spec"] {
        if pod[part].is_null() {
            pod[part] = json!({});
        }
    }
    let mut changes =
        Changes { pod: &pod, vocabulary, typical: typical_values(), made: Vec::new() };
    changes.change_value("", "", &pod);
    changes.add_additions();
    changes.made
}

/// Stands for all words of the vocabulary in [`typical_values`].
const ANY_WORD: &str = "*";

/// By parent (a member's name; for items of lists, the list's name) and field: values, for fields that are present and for absent ones.
/// A pod of any plugin may have fields that are not here; those are changed when they are present.
fn typical_values() -> Value {
    let words = json!([ANY_WORD]);
    let requests = json!([{}, {"cpu": "1"}, {"memory": "1Gi"}, {"example.com/device": "1"}]);
    let amounts = json!(["0", "1", "100m", "3", "512Mi", "3Gi"]);
    let amounts = json!({"cpu": amounts, "memory": amounts, "ephemeral-storage": amounts,
        "example.com/device": amounts, "hugepages-2Mi": amounts});
    let resources = json!([{}, {"requests": {"cpu": "1"}}, {"limits": {"memory": "1Gi"}}]);
    let selectors = json!([null, {}, {"matchLabels": {"app": "web"}},
        {"matchExpressions": [{"key": "app", "operator": "Exists"}]}]);
    let term = json!({"topologyKey": words, "labelSelector": selectors, "namespaceSelector": selectors,
        "namespaces": [[], ["default"], ["other"]], "matchLabelKeys": [[], ["app"], ["version"]],
        "mismatchLabelKeys": [[], ["app"], ["version"]]});
    let node_term =
        json!({"key": words, "operator": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]});
    let container = json!({"image": words, "restartPolicy": [null, "Always"], "resources": resources,
        "ports": [[], [{"hostPort": 80}], [{"containerPort": 80}]],
        "restartPolicyRules": [[{"action": "Restart"}], [{"action": "RestartAllContainers"}]]});
    json!({
        "metadata": {"namespace": words, "deletionTimestamp": ["2026-01-01T00:00:00Z"]},
        "spec": {
            "nodeName": words, "hostNetwork": [true, false], "hostUsers": [null, true, false], "overhead": requests, "resources": resources,
            "tolerations": [[], [{"operator": "Exists"}], [{"effect": "NoSchedule", "operator": "Exists"}]],
            "schedulingGates": [[{"name": "gate"}]], "resourceClaims": [[{"name": "device"}]],
            "preemptionPolicy": ["Never"], "priorityClassName": ["high"],
            "initContainers": [[], [{"name": "init", "image": "unknown", "ports": [{"hostPort": 80}]}],
                [{"name": "init", "restartPolicy": "Always", "ports": [{"hostPort": 80}]}]],
            "volumes": [[], [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
                [{"name": "v", "ephemeral": {}}], [{"name": "v", "image": {"reference": "app"}}]],
            "topologySpreadConstraints": [[]], "affinity": [null],
        },
        "containers": container, "initContainers": container,
        "requests": amounts, "limits": amounts, "overhead": amounts,
        "ports": {"hostPort": [0, 80, 443], "containerPort": [80], "protocol": ["TCP", "UDP", "SCTP"],
            "hostIP": ["", "0.0.0.0", "10.0.0.1", "10.0.0.2"]},
        "tolerations": {"key": words, "value": words, "operator": ["", "Exists", "Equal", "Gt", "Lt"],
            "effect": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"], "tolerationSeconds": [null, 5]},
        "topologySpreadConstraints": {
            "whenUnsatisfiable": ["DoNotSchedule", "ScheduleAnyway"], "topologyKey": words,
            "labelSelector": selectors, "minDomains": [null, 1, 5], "maxSkew": [1, 2, 5],
            "nodeAffinityPolicy": [null, "Honor", "Ignore"], "nodeTaintsPolicy": [null, "Honor", "Ignore"],
            "matchLabelKeys": [[], ["app"], ["version"]]},
        "requiredDuringSchedulingIgnoredDuringExecution": term, "podAffinityTerm": term,
        "preferredDuringSchedulingIgnoredDuringExecution": {"weight": [1, 50, 100]},
        "matchExpressions": node_term, "matchFields": node_term,
        "ownerReferences": {"controller": [null, true, false], "name": words,
            "kind": ["ReplicaSet", "StatefulSet", "ReplicationController", "Job"],
            "apiVersion": ["v1", "apps/v1", "batch/v1"]},
    })
}

type Addition = fn(&mut Value);

/// Additions in which the pods of a cluster differ, by name.
const ADDITIONS: &[(&str, Addition)] = &[
    ("pod name", |pod| pod["metadata"]["name"] = "web-7".into()),
    ("uid", |pod| pod["metadata"]["uid"] = "5eb6f7b1-7".into()),
    ("generation", |pod| pod["metadata"]["generation"] = 7.into()),
    ("creation time", |pod| pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into()),
    ("annotation", |pod| pod["metadata"]["annotations"]["example.com/note"] = "7".into()),
    ("ordinal label", |pod| {
        pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = "7".into();
    }),
    ("pod name label", |pod| {
        pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = "web-7".into();
    }),
    ("job index label", |pod| {
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = "7".into();
    }),
    ("token volume", |pod| {
        let sources =
            json!([{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]);
        let volume = json!({"name": "kube-api-access-x7b2q", "projected": {"sources": sources}});
        push(&mut pod["spec"]["volumes"], volume);
    }),
    ("hostname", |pod| pod["spec"]["hostname"] = "web-7".into()),
    ("subdomain", |pod| pod["spec"]["subdomain"] = "web".into()),
    ("service account", |pod| pod["spec"]["serviceAccountName"] = "web".into()),
    ("scheduler name", |pod| pod["spec"]["schedulerName"] = "other".into()),
    ("priority", |pod| pod["spec"]["priority"] = 7.into()),
    ("nominated node", |pod| pod["status"]["nominatedNodeName"] = "unknown".into()),
    ("environment", |pod| {
        let variable = json!({"name": "ORDINAL", "value": "7"});
        change_containers(pod, |container| push(&mut container["env"], variable.clone()));
    }),
    ("resized", |pod| {
        let mut statuses = Vec::new();
        change_containers(pod, |container| {
            let resources = json!({"requests": {"cpu": "3500m", "memory": "3Gi"}});
            let name = container["name"].clone();
            statuses.push(json!({"name": name, "resources": resources, "allocatedResources": {"cpu": "3500m"}}));
        });
        pod["status"]["containerStatuses"] = statuses.into();
    }),
];

fn change_containers(pod: &mut Value, change: impl FnMut(&mut Value)) {
    if let Value::Array(containers) = &mut pod["spec"]["containers"] {
        containers.iter_mut().for_each(change);
    }
}

/// Adds an item to a list that may be absent.
fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        absent => *absent = Value::Array(vec![item]),
    }
}

struct Changes<'a> {
    pod: &'a Value,
    vocabulary: &'a PodVocabulary,
    typical: Value,
    made: Vec<PodChange>,
}

impl Changes<'_> {
    /// Makes all changes of a value and of what it contains, the innermost first: the first that fails names the field. `name` is the name of the member that it is, or of the list that contains it.
    fn change_value(&mut self, pointer: &str, name: &str, value: &Value) {
        match value {
            Value::Object(members) => self.change_object(pointer, name, members),
            Value::Array(items) => self.change_list(pointer, name, items),
            Value::String(_) => {
                for word in &self.vocabulary.words {
                    self.set(pointer, word.as_str().into());
                }
            }
            Value::Number(number) => {
                let number = number.as_i64().unwrap_or_default();
                for other in [0, 7, number.saturating_sub(1), number.saturating_add(1)] {
                    self.set(pointer, other.into());
                }
            }
            Value::Bool(is_true) => self.set(pointer, (!is_true).into()),
            Value::Null => {}
        }
    }

    fn change_object(&mut self, pointer: &str, name: &str, members: &Map<String, Value>) {
        for (member, value) in members {
            self.change_value(&format!("{pointer}/{}", escaped(member)), member, value);
            self.edit(&format!("{pointer}/{} removed", escaped(member)), pointer, |object| {
                if let Value::Object(members) = object {
                    members.remove(member);
                }
            });
        }
        if ["labels", "nodeSelector", "matchLabels"].contains(&name) {
            for (key, value) in &self.vocabulary.pairs {
                self.set_member(pointer, key, value.as_str().into());
            }
        }
        let Value::Object(typical) = self.typical[name].clone() else { return };
        for (member, values) in typical {
            for value in values.as_array().into_iter().flatten() {
                if *value != ANY_WORD {
                    self.set_member(pointer, &member, value.clone());
                } else if !members.contains_key(&member) {
                    for word in &self.vocabulary.words {
                        self.set_member(pointer, &member, word.as_str().into());
                    }
                }
            }
        }
    }

    fn change_list(&mut self, pointer: &str, name: &str, items: &[Value]) {
        for (at, item) in items.iter().enumerate() {
            self.change_value(&format!("{pointer}/{at}"), name, item);
            self.edit(&format!("{pointer}/{at} removed"), pointer, |list| {
                if let Value::Array(items) = list {
                    items.remove(at);
                }
            });
            self.edit(&format!("{pointer}/{at} repeated"), pointer, |list| {
                push(list, item.clone());
            });
        }
        self.edit(&format!("{pointer} reversed"), pointer, |list| {
            if let Value::Array(items) = list {
                items.reverse();
            }
        });
    }

    fn add_additions(&mut self) {
        for (name, add) in ADDITIONS {
            self.edit(name, "", add);
        }
        for (key, value) in &self.vocabulary.pairs {
            self.edit(&format!("label {key}={value}"), "", |pod| {
                pod["metadata"]["labels"][key] = value.as_str().into();
            });
            self.edit(&format!("node selector {key}={value}"), "", |pod| {
                pod["spec"]["nodeSelector"][key] = value.as_str().into();
            });
        }
        for (version, kind, name) in &self.vocabulary.owners {
            let owner =
                json!({"apiVersion": version, "kind": kind, "name": name, "controller": true});
            self.edit(&format!("owner {kind} {name}"), "", |pod| {
                pod["metadata"]["ownerReferences"] = json!([owner]);
            });
        }
    }

    fn set(&mut self, pointer: &str, value: Value) {
        self.edit(&format!("{pointer} = {value}"), pointer, |old| *old = value);
    }

    fn set_member(&mut self, pointer: &str, member: &str, value: Value) {
        self.edit(&format!("{pointer}/{} = {value}", escaped(member)), pointer, |object| {
            object[member] = value;
        });
    }

    /// Changes the value at a pointer in a copy of the pod; nothing if the copy is still equal.
    fn edit(&mut self, name: &str, pointer: &str, edit: impl FnOnce(&mut Value)) {
        let mut pod = self.pod.clone();
        if let Some(value) = pod.pointer_mut(pointer) {
            edit(value);
        }
        if pod != *self.pod {
            self.made.push(PodChange { name: name.into(), pod });
        }
    }
}

/// A member's name as a step of a JSON pointer.
fn escaped(member: &str) -> String {
    member.replace('~', "~0").replace('/', "~1")
}
