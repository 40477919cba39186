//! The default roles and bindings of a new cluster, from `bootstrap.txt`, which `conformance/cmd/policy` writes.

use serde_json::{Value, json};

use crate::object::{members_mut, meta_mut};

static TEXT: &str = include_str!("bootstrap.txt");

/// A role or binding to create.
#[derive(Debug)]
pub struct BootstrapObject {
    pub resource: &'static str,
    /// Empty for cluster-wide ones.
    pub namespace: &'static str,
    pub value: Value,
}

/// The roles and bindings that upstream's API server creates. Aggregated roles have no rules yet.
pub fn bootstrap_objects() -> Vec<BootstrapObject> {
    let mut all: Vec<BootstrapObject> = Vec::new();
    for line in TEXT.lines().filter(|line| !line.starts_with('#')) {
        match (line.strip_prefix("  "), all.last_mut()) {
            (Some(line), Some(last)) => add(&mut last.value, &words(line)),
            _ => all.extend(begun(&words(line))),
        }
    }
    all
}

fn words(line: &'static str) -> Vec<&'static str> {
    line.split(' ').collect()
}

fn begun(words: &[&'static str]) -> Option<BootstrapObject> {
    let &[kind, namespace, name] = words else { return None };
    let (resource, empty) = match kind {
        "clusterrole" => ("clusterroles", json!({"rules": []})),
        "role" => ("roles", json!({"rules": []})),
        "clusterrolebinding" => ("clusterrolebindings", json!({"subjects": []})),
        _ => ("rolebindings", json!({"subjects": []})),
    };
    let mut value = empty;
    value["metadata"] = json!({"name": name,
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}});
    Some(BootstrapObject { resource, namespace: absent(namespace), value })
}

fn absent(word: &'static str) -> &'static str {
    if word == "-" { "" } else { word }
}

fn list(word: &str) -> Option<Vec<&str>> {
    let unquoted = |it| if it == "\"\"" { "" } else { it };
    (word != "-").then(|| word.split(',').map(unquoted).collect())
}

/// Adds what an indented line says.
fn add(object: &mut Value, words: &[&'static str]) {
    match *words {
        ["label", name, value] => {
            let labels = meta_mut(object).entry("labels").or_insert_with(|| json!({}));
            members_mut(labels).insert(name.to_owned(), value.into());
        }
        ["gathers", name, value] => {
            let selector = json!({"matchLabels": {name: value}});
            object["aggregationRule"] = json!({"clusterRoleSelectors": [selector]});
        }
        ["to", kind, name] => {
            object["roleRef"] = json!({"apiGroup": super::RBAC_GROUP, "kind": kind, "name": name});
        }
        ["subject", kind, namespace, name] => {
            let mut subject = json!({"kind": kind, "name": name});
            if namespace == "-" {
                subject["apiGroup"] = super::RBAC_GROUP.into();
            } else {
                subject["namespace"] = namespace.into();
            }
            push(&mut object["subjects"], subject);
        }
        ["rule", verbs, groups, resources, names, paths] => {
            let mut rule = json!({});
            for (field, word) in [
                ("verbs", verbs),
                ("apiGroups", groups),
                ("resources", resources),
                ("resourceNames", names),
                ("nonResourceURLs", paths),
            ] {
                if let Some(list) = list(word) {
                    rule[field] = json!(list);
                }
            }
            push(&mut object["rules"], rule);
        }
        _ => {}
    }
}

fn push(list: &mut Value, entry: Value) {
    if let Value::Array(list) = list {
        list.push(entry);
    }
}
