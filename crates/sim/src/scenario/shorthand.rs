//! Shorthand for nodes and pods in scenario files. Fields without a shorthand are given as in the object itself (`spec`, `metadata`,
//! `status`), or in a full object under `objects`.
//!
//! **Nodes** `{cpu, memory, pods, offers: {example.com/gpu: 1}, zone, labels, taints: [key=value:Effect], unschedulable,
//! images: {web:1: 100Mi}, declaredFeatures: [...]}`. The label `kubernetes.io/hostname` is the node's name; a label that is null is left out.
//!
//! **Pods** `{node, nominated, namespace, labels, priority, cpu, memory, asks: {example.com/gpu: 1}, images, hostPorts, gates,
//! terminating, owner: Kind/name, tolerations, nodeSelector, requires, prefers, near, apart, nearPreferred, apartPreferred,
//! spread}` and the fields of a pod's spec that hold lists of containers, volumes and the like.
//!
//! - `tolerations`: `key=value:Effect`, `key:Effect` (any value), `key` (any effect), `*`, or full objects.
//! - `requires`: terms of node affinity, each a list of requirements such as `disk In ssd hdd`; `metadata.name` is a field.
//! - `prefers`: `{weight, match: [requirements]}`.
//! - `near`, `apart`: terms `{key, labels | selector, namespaces, namespaceSelector}`, preferred ones with `weight`.
//! - `spread`: `{key, skew, hard, labels | selector, minDomains, matchLabelKeys, nodeAffinityPolicy, nodeTaintsPolicy}`.
//! - `key`: `zone` and `host` stand for the well-known labels.

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A shorthand that cannot be expanded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShorthandError {
    #[error("expected a taint such as key=value:NoSchedule, found {0:?}")]
    Taint(String),
    #[error("expected a requirement such as `disk In ssd`, found {0:?}")]
    Requirement(String),
    #[error("expected an owner such as ReplicaSet/web, found {0:?}")]
    Owner(String),
    #[error("expected fields, found {0}")]
    NotAnObject(String),
}

type ObjectResult = Result<Value, ShorthandError>;

/// Shorthand for a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeShorthand {
    /// Only used for objects of events.
    pub name: Option<String>,
    cpu: Option<Value>,
    memory: Option<Value>,
    pods: Option<Value>,
    offers: IndexMap<String, Value>,
    zone: Option<String>,
    labels: IndexMap<String, Option<String>>,
    taints: Vec<String>,
    unschedulable: bool,
    /// Image sizes by name.
    images: IndexMap<String, Value>,
    declared_features: Vec<String>,
}

impl NodeShorthand {
    /// Expands the shorthand to an object.
    pub fn expand_object(&self, name: &str) -> ObjectResult {
        let mut labels: IndexMap<&str, Option<&str>> = IndexMap::from([(HOST, Some(name))]);
        if let Some(zone) = &self.zone {
            labels.insert(ZONE, Some(zone));
        }
        labels.extend(self.labels.iter().map(|(key, value)| (key.as_str(), value.as_deref())));
        labels.retain(|_, value| value.is_some());
        let own = [("cpu", &self.cpu), ("memory", &self.memory), ("pods", &self.pods)];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let offers = own.chain(self.offers.iter().map(|(name, value)| (name.as_str(), value)));
        let offers: Map<String, Value> =
            offers.map(|(name, value)| (name.to_owned(), quantity(value))).collect();
        let taints = self.taints.iter().map(|text| taint(text)).collect::<Result<Vec<_>, _>>()?;
        let images =
            self.images.iter().map(|(name, size)| json!({"names": [name], "sizeBytes": size}));
        let images: Vec<Value> = images.collect();
        Ok(remove_empty_fields(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, "unschedulable": self.unschedulable.then_some(true)},
            "status": {
                "allocatable": offers,
                "images": images,
                "declaredFeatures": self.declared_features,
            },
        })))
    }
}

/// Shorthand for a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PodShorthand {
    /// Only used for objects of events.
    pub name: Option<String>,
    node: Option<String>,
    nominated: Option<String>,
    namespace: Option<String>,
    labels: IndexMap<String, String>,
    priority: Option<i32>,
    cpu: Option<Value>,
    memory: Option<Value>,
    asks: IndexMap<String, Value>,
    images: Vec<String>,
    host_ports: Vec<HostPort>,
    gates: Vec<String>,
    terminating: bool,
    owner: Option<String>,
    tolerations: Vec<Value>,
    node_selector: IndexMap<String, String>,
    requires: Option<Vec<Vec<String>>>,
    prefers: Vec<Preference>,
    near: Vec<Term>,
    apart: Vec<Term>,
    near_preferred: Vec<Term>,
    apart_preferred: Vec<Term>,
    spread: Vec<Spread>,
    /// Merged into the expanded object.
    metadata: Option<Value>,
    spec: Option<Value>,
    status: Option<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum HostPort {
    Number(i32),
    Whole(Value),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Preference {
    weight: i32,
    r#match: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Term {
    key: String,
    weight: Option<i32>,
    labels: Option<IndexMap<String, String>>,
    selector: Option<Value>,
    #[serde(default)]
    namespaces: Vec<String>,
    namespace_selector: Option<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Spread {
    key: String,
    #[serde(default = "one")]
    skew: i32,
    #[serde(default)]
    hard: bool,
    labels: Option<IndexMap<String, String>>,
    selector: Option<Value>,
    min_domains: Option<i32>,
    #[serde(default)]
    match_label_keys: Vec<String>,
    node_affinity_policy: Option<String>,
    node_taints_policy: Option<String>,
}

fn one() -> i32 {
    1
}

impl PodShorthand {
    /// Expands the shorthand to an object.
    pub fn expand_object(&self, name: &str) -> ObjectResult {
        let owners: Vec<Value> =
            self.owner.iter().map(|text| owner(text)).collect::<Result<_, _>>()?;
        let tolerations: Vec<Value> = self.tolerations.iter().map(toleration).collect();
        let gates: Vec<Value> = self.gates.iter().map(|name| json!({"name": name})).collect();
        let spread: Vec<Value> = self.spread.iter().map(Spread::object).collect();
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": self.labels,
                "deletionTimestamp": self.terminating.then_some("2026-01-31T12:00:00Z"),
                "ownerReferences": owners,
            },
            "spec": {
                "nodeName": self.node,
                "priority": self.priority,
                "containers": self.containers(),
                "schedulingGates": gates,
                "tolerations": tolerations,
                "nodeSelector": self.node_selector,
                "affinity": self.affinity()?,
                "topologySpreadConstraints": spread,
            },
            "status": {"nominatedNodeName": self.nominated},
        });
        pod = remove_empty_fields(pod);
        for (field, more) in
            [("metadata", &self.metadata), ("spec", &self.spec), ("status", &self.status)]
        {
            let Some(more) = more else { continue };
            let more =
                more.as_object().ok_or_else(|| ShorthandError::NotAnObject(more.to_string()))?;
            for (key, value) in more {
                pod[field][key] = value.clone();
            }
        }
        Ok(pod)
    }

    fn containers(&self) -> Vec<Value> {
        let own = [("cpu", &self.cpu), ("memory", &self.memory)];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let asks = own.chain(self.asks.iter().map(|(name, value)| (name.as_str(), value)));
        let asks: Map<String, Value> =
            asks.map(|(name, value)| (name.to_owned(), quantity(value))).collect();
        let ports = self.host_ports.iter().map(|port| match port {
            HostPort::Number(port) => json!({"containerPort": port, "hostPort": port}),
            HostPort::Whole(port) => port.clone(),
        });
        let mut first = json!({"name": "c0", "resources": {"requests": asks}, "ports": ports.collect::<Vec<_>>()});
        if let Some(image) = self.images.first() {
            first["image"] = json!(image);
        }
        let more = self.images.iter().enumerate().skip(1);
        let more = more.map(|(at, image)| json!({"name": format!("c{at}"), "image": image}));
        [remove_empty_fields(first)].into_iter().chain(more).collect()
    }

    fn affinity(&self) -> ObjectResult {
        let mut node = json!({});
        if let Some(terms) = &self.requires {
            let terms = terms.iter().map(|term| node_term(term)).collect::<Result<Vec<_>, _>>()?;
            node[REQUIRED] = json!({"nodeSelectorTerms": terms});
        }
        let preferred = self.prefers.iter().map(|preference| {
            Ok(json!({"weight": preference.weight, "preference": node_term(&preference.r#match)?}))
        });
        node[PREFERRED] = preferred.collect::<Result<Vec<_>, _>>()?.into();
        let between = |required: &[Term], preferred: &[Term]| {
            let weighted =
                |term: &Term| json!({"weight": term.weight, "podAffinityTerm": term.object()});
            let required: Vec<Value> = required.iter().map(Term::object).collect();
            let preferred: Vec<Value> = preferred.iter().map(weighted).collect();
            json!({REQUIRED: required, PREFERRED: preferred})
        };
        // An empty list of terms matches nothing and must not be removed by `tidy`.
        let node = if node[REQUIRED]["nodeSelectorTerms"] == json!([]) {
            node
        } else {
            remove_empty_fields(node)
        };
        let mut affinity = json!({
            "podAffinity": remove_empty_fields(between(&self.near, &self.near_preferred)),
            "podAntiAffinity": remove_empty_fields(between(&self.apart, &self.apart_preferred)),
        });
        affinity = remove_empty_fields(affinity);
        if node.as_object().is_some_and(|fields| !fields.is_empty()) {
            affinity["nodeAffinity"] = node;
        }
        Ok(affinity)
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

fn topology_key(short: &str) -> &str {
    match short {
        "zone" => ZONE,
        "host" => HOST,
        other => other,
    }
}

fn selector(labels: Option<&IndexMap<String, String>>, whole: Option<&Value>) -> Value {
    match (labels, whole) {
        (Some(labels), _) => json!({"matchLabels": labels}),
        (None, Some(whole)) => whole.clone(),
        (None, None) => Value::Null,
    }
}

impl Term {
    fn object(&self) -> Value {
        let selector = selector(self.labels.as_ref(), self.selector.as_ref());
        let mut term = Map::from_iter([("topologyKey".to_owned(), json!(topology_key(&self.key)))]);
        if !selector.is_null() {
            term.insert("labelSelector".into(), selector);
        }
        if !self.namespaces.is_empty() {
            term.insert("namespaces".into(), json!(self.namespaces));
        }
        // An empty selector means every namespace, unlike an absent one.
        if let Some(selector) = &self.namespace_selector {
            term.insert("namespaceSelector".into(), selector.clone());
        }
        Value::Object(term)
    }
}

impl Spread {
    fn object(&self) -> Value {
        let mut spread = remove_empty_fields(json!({
            "topologyKey": topology_key(&self.key),
            "maxSkew": self.skew,
            "whenUnsatisfiable": if self.hard { "DoNotSchedule" } else { "ScheduleAnyway" },
            "minDomains": self.min_domains,
            "matchLabelKeys": self.match_label_keys,
            "nodeAffinityPolicy": self.node_affinity_policy,
            "nodeTaintsPolicy": self.node_taints_policy,
        }));
        let selector = selector(self.labels.as_ref(), self.selector.as_ref());
        if !selector.is_null() {
            spread["labelSelector"] = selector;
        }
        spread
    }
}

/// Quantities may be written as numbers.
fn quantity(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.to_string()),
        other => other.clone(),
    }
}

fn taint(text: &str) -> ObjectResult {
    let wrong = || ShorthandError::Taint(text.to_owned());
    let (pair, effect) = text.rsplit_once(':').ok_or_else(wrong)?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    Ok(json!({"key": key, "value": value, "effect": effect}))
}

fn toleration(value: &Value) -> Value {
    let Some(text) = value.as_str() else { return value.clone() };
    let (pair, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    let (key, value, operator) = match pair.split_once('=') {
        Some((key, value)) => (key, value, "Equal"),
        None => (if pair == "*" { "" } else { pair }, "", "Exists"),
    };
    json!({"key": key, "operator": operator, "value": value, "effect": effect})
}

fn node_term(requirements: &[String]) -> ObjectResult {
    let mut term = json!({});
    for text in requirements {
        let wrong = || ShorthandError::Requirement(text.clone());
        let mut words = text.split_whitespace();
        let (key, operator) = (words.next().ok_or_else(wrong)?, words.next().ok_or_else(wrong)?);
        let values: Vec<&str> = words.collect();
        let list = if key == "metadata.name" { "matchFields" } else { "matchExpressions" };
        let requirement = remove_empty_fields(
            json!({"key": topology_key(key), "operator": operator, "values": values}),
        );
        match term[list].as_array_mut() {
            Some(all) => all.push(requirement),
            None => term[list] = json!([requirement]),
        }
    }
    Ok(term)
}

fn owner(text: &str) -> ObjectResult {
    let (kind, name) =
        text.split_once('/').ok_or_else(|| ShorthandError::Owner(text.to_owned()))?;
    let version = match kind {
        "ReplicaSet" | "StatefulSet" | "DaemonSet" => "apps/v1",
        "Job" => "batch/v1",
        _ => "v1",
    };
    Ok(json!({"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": true}))
}

/// Removes fields that are null or empty, down to two levels: deeper ones were written on purpose.
fn remove_empty_fields(mut value: Value) -> Value {
    remove_empty_fields_to_depth(&mut value, 2);
    value
}

fn remove_empty_fields_to_depth(value: &mut Value, depth: u32) {
    let Some(fields) = value.as_object_mut().filter(|_| depth > 0) else { return };
    fields.values_mut().for_each(|value| remove_empty_fields_to_depth(value, depth - 1));
    fields.retain(|_, value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check_pod(short: Value, want: &Expect) {
        let short: PodShorthand = serde_json::from_value(short).unwrap();
        let object = short.expand_object("web").unwrap();
        want.assert_eq(&json!([object["metadata"], object["spec"], object["status"]]).to_string());
    }

    #[test]
    fn pods() {
        check_pod(json!({}), &expect![[r#"[{"name":"web"},{"containers":[{"name":"c0"}]},null]"#]]);
        check_pod(
            json!({"tolerations": ["a=b:NoSchedule", "a", "*"], "requires": [["disk In ssd", "metadata.name In a"], []]}),
            &expect![[
                r#"[{"name":"web"},{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"disk","operator":"In","values":["ssd"]}],"matchFields":[{"key":"metadata.name","operator":"In","values":["a"]}]},{}]}}},"containers":[{"name":"c0"}],"tolerations":[{"effect":"NoSchedule","key":"a","operator":"Equal","value":"b"},{"effect":"","key":"a","operator":"Exists","value":""},{"effect":"","key":"","operator":"Exists","value":""}]},null]"#
            ]],
        );
        check_pod(
            json!({"near": [{"key": "zone", "selector": {}, "namespaceSelector": {}}], "spread": [{"key": "host", "hard": true, "labels": {"a": "b"}}]}),
            &expect![[
                r#"[{"name":"web"},{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"labelSelector":{},"namespaceSelector":{},"topologyKey":"topology.kubernetes.io/zone"}]}},"containers":[{"name":"c0"}],"topologySpreadConstraints":[{"labelSelector":{"matchLabels":{"a":"b"}},"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"DoNotSchedule"}]},null]"#
            ]],
        );
    }

    #[test]
    fn invalid_shorthands() {
        let wrong = |short: Value| {
            serde_json::from_value::<PodShorthand>(short).unwrap().expand_object("web").unwrap_err()
        };
        assert_eq!(
            wrong(json!({"requires": [["disk"]]})),
            ShorthandError::Requirement("disk".into())
        );
        assert_eq!(wrong(json!({"owner": "web"})), ShorthandError::Owner("web".into()));
        assert_eq!(taint("x").unwrap_err(), ShorthandError::Taint("x".into()));
    }
}
