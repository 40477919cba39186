//! The cluster of the cases, and how a case is run.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http::Method;
use serde_json::{Value, json};

use super::super::api_client::ApiClient;
use super::cases::{Case, Shape};
use super::scripted_extender::{ReceivedRequest, ScriptedExtender};

/// The timeout of a case.
const TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(25);
/// A case is complete when nothing has happened for this time.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// The same for cases with preemption: when victims are gone, the pod is tried again and again.
const PREEMPTION_SETTLE_TIME: Duration = Duration::from_millis(1_000);

const HIGH: &str = "extender-high";
/// The priority classes of the victims on p1 and p2.
const VICTIMS: [(&str, &str); 2] = [("p1", "extender-low"), ("p2", "extender-middle")];

/// Nodes and priority classes, for all cases.
pub async fn create_cluster(api: &ApiClient) -> Result<()> {
    for (name, pool, cpu) in [
        ("n1", "plain", "100"),
        ("n2", "plain", "100"),
        ("n3", "plain", "100"),
        ("p1", "small", "2"),
        ("p2", "small", "2"),
    ] {
        let amounts = json!({"cpu": cpu, "memory": "64Gi", "pods": "110"});
        let labels = json!({"kubernetes.io/hostname": name, "pool": pool});
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {"capacity": amounts, "allocatable": amounts}});
        api.create("/api/v1/nodes", &node).await.context("a node")?;
    }
    for (name, value) in [("extender-low", 10), ("extender-middle", 20), (HIGH, 1_000)] {
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value});
        api.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class).await?;
    }
    Ok(())
}

/// Runs a case and returns its outcome as lines: node, condition, Event, remaining pods, and requests to extenders.
pub async fn run_case(
    api: &ApiClient,
    namespace: &str,
    script: &ScriptedExtender,
    case: &Case,
) -> Result<Vec<String>> {
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    script.set_behaviors(case.behaviors.clone());
    let mut uids = BTreeMap::new();
    for (name, spec) in existing_pods(case) {
        uids.insert(create_pod(api, &pods, &name, spec).await?, name);
    }
    uids.insert(create_pod(api, &pods, case.name, spec(case)).await?, case.name.to_owned());
    let events = format!(
        "/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name%3D{}",
        case.name
    );
    let mut message = None;
    for _ in 0..TIMEOUT.as_millis() / PAUSE.as_millis() {
        let pod = api.get_json(&format!("{pods}/{}", case.name)).await?;
        let list = api.get_json(&events).await?;
        message = first_failure(&list);
        let is_reported = condition(&pod).is_some() && message.is_some();
        if !text(&pod["spec"]["nodeName"]).is_empty() || !case.is_bound && is_reported {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    let preempts = case.behaviors.keys().any(|(_, verb)| verb == "preempt");
    let settle_time = if preempts { PREEMPTION_SETTLE_TIME } else { SETTLE_TIME };
    let requests = settled(script, settle_time).await;
    let pod = api.get_json(&format!("{pods}/{}", case.name)).await?;
    let (reason, message_text) = match condition(&pod) {
        Some(condition) => (text(&condition["reason"]), text(&condition["message"])),
        None => ("", ""),
    };
    let or_none = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    let mut lines = vec![
        format!("node: {}", or_none(text(&pod["spec"]["nodeName"]))),
        format!("nominated: {}", or_none(text(&pod["status"]["nominatedNodeName"]))),
        format!("condition: {reason}: {message_text}"),
        format!("event: {}", message.unwrap_or_default()),
    ];
    let left = api.get_json(&pods).await?;
    let names = left["items"].as_array().into_iter().flatten();
    let mut names: Vec<&str> = names.map(|pod| text(&pod["metadata"]["name"])).collect();
    names.sort_unstable();
    lines.push(format!("pods: {names:?}"));
    lines.extend(request_lines(&requests));
    for name in names {
        api.request(Method::DELETE, &format!("{pods}/{name}"), Vec::new()).await?;
    }
    Ok(lines.into_iter().map(|line| mask_line(&line, namespace, &uids)).collect())
}

/// All requests, after a moment without a request: the update of its own condition may requeue a pod.
async fn settled(script: &ScriptedExtender, settle_time: Duration) -> Vec<ReceivedRequest> {
    let mut requests = script.received();
    loop {
        tokio::time::sleep(settle_time).await;
        let now = script.received();
        if now.len() == requests.len() || now.len() > 99 {
            return now;
        }
        requests = now;
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The condition `PodScheduled`, if it is false.
fn condition(pod: &Value) -> Option<&Value> {
    let mut conditions = pod["status"]["conditions"].as_array()?.iter();
    conditions.find(|it| it["type"] == "PodScheduled" && it["status"] == "False")
}

/// The message of the first Event FailedScheduling.
fn first_failure(events: &Value) -> Option<String> {
    let events = events["items"].as_array().into_iter().flatten();
    let failures = events.filter(|event| event["reason"] == "FailedScheduling");
    let first =
        failures.min_by_key(|event| text(&event["metadata"]["creationTimestamp"]).to_owned());
    first.map(|event| text(&event["message"]).to_owned())
}

async fn create_pod(api: &ApiClient, path: &str, name: &str, spec: Value) -> Result<String> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    let created = api.create(path, &pod).await.with_context(|| format!("creating pod {name}"))?;
    Ok(text(&created["metadata"]["uid"]).to_owned())
}

/// The pod of a case.
fn spec(case: &Case) -> Value {
    let named: BTreeMap<&str, &str> = case.resources().map(|name| (name, "1")).collect();
    let container = |name: &str, limits: Value| {
        let resources = json!({"limits": limits});
        json!({"name": name, "image": "registry.example/app", "resources": resources})
    };
    let mut limits = json!(named);
    if case.shape == Shape::Preempting {
        limits["cpu"] = "1500m".into();
    }
    let mut spec = json!({"terminationGracePeriodSeconds": 0});
    spec["containers"] = match case.shape {
        Shape::Init => json!([container("main", json!({}))]),
        _ => json!([container("main", limits.clone())]),
    };
    if case.shape == Shape::Init {
        spec["initContainers"] = json!([container("init", limits)]);
    }
    if case.shape == Shape::Preempting {
        spec["priorityClassName"] = HIGH.into();
    }
    let pool = if case.shape == Shape::Preempting { "small" } else { "plain" };
    spec["nodeSelector"] = json!({"pool": pool});
    if matches!(case.shape, Shape::Plain | Shape::Init) {
        let preferred = [("n1", 100), ("n2", 60), ("n3", 20)].map(|(node, weight)| {
            json!({"weight": weight, "preference": {"matchExpressions":
                [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}})
        });
        spec["affinity"] =
            json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
    }
    spec
}

/// Pods that are already assigned to nodes.
fn existing_pods(case: &Case) -> Vec<(String, Value)> {
    let on = |node: &str, cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}});
        json!({"terminationGracePeriodSeconds": 0, "nodeName": node, "containers": [
            {"name": "main", "image": "registry.example/app", "resources": resources}]})
    };
    match case.shape {
        Shape::Plain | Shape::Init => Vec::new(),
        Shape::BesideLarge => vec![("large".to_owned(), on("n1", "90"))],
        Shape::Preempting => VICTIMS
            .iter()
            .map(|&(node, class)| {
                let mut spec = on(node, "1500m");
                spec["priorityClassName"] = class.into();
                (format!("victim-{node}"), spec)
            })
            .collect(),
    }
}

/// Requests as lines. Prioritize requests are concurrent, so their order is not compared.
fn request_lines(requests: &[ReceivedRequest]) -> Vec<String> {
    let line = |it: &ReceivedRequest| {
        let body = normalized_body(&it.body);
        (
            it.verb == "prioritize",
            format!("called {}/{} {} {body}", it.extender, it.verb, it.content_type),
        )
    };
    let lines: Vec<(bool, String)> = requests.iter().map(line).collect();
    let groups = lines.chunk_by(|one, next| one.0 && next.0);
    let sorted = groups.flat_map(|group| {
        let mut group: Vec<String> = group.iter().map(|(_, line)| line.clone()).collect();
        group.sort();
        group
    });
    sorted.collect()
}

/// A request body without values that differ between runs: sorted keys, nodes sorted by name, resource versions and times masked.
/// kube-scheduler also sends the `managedFields` of nodes (not of pods); that Loadmaster removes them is an intended deviation.
fn normalized_body(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<&String, Value> = fields
                .iter()
                .filter(|(key, _)| *key != "managedFields")
                .map(|(key, value)| {
                    let is_masked =
                        ["resourceVersion", "creationTimestamp", "lastTransitionTime", "startTime"];
                    let is_masked = is_masked.contains(&key.as_str());
                    (key, if is_masked { "*".into() } else { normalized_body(value) })
                })
                .collect();
            fields.into_iter().map(|(key, value)| (key.clone(), value)).collect()
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(normalized_body).collect();
            if items.iter().all(|it| it.is_string() || it["metadata"]["name"].is_string()) {
                items.sort_by_key(|it| {
                    it.as_str().map_or_else(|| it["metadata"]["name"].to_string(), str::to_owned)
                });
            }
            Value::Array(items)
        }
        other => other.clone(),
    }
}

/// The prefix of the name that admission gives to token volumes; five random characters follow.
const TOKEN_VOLUME: &str = "kube-api-access-";

/// Masks uids, the namespace, names of token volumes and socket addresses.
fn mask_line(line: &str, namespace: &str, uids: &BTreeMap<String, String>) -> String {
    let mut line = line.replace(namespace, "NAMESPACE");
    for (uid, name) in uids {
        line = line.replace(uid, &format!("UID-OF-{name}"));
    }
    let mut parts = line.split(TOKEN_VOLUME);
    let first = parts.next().unwrap_or_default().to_owned();
    line =
        parts.fold(first, |line, part| line + TOKEN_VOLUME + "*" + part.get(5..).unwrap_or(part));
    // Upstream: `read tcp 127.0.0.1:40000->127.0.0.1:50000: read: connection reset by peer`.
    while let Some(at) = line.find("read tcp ") {
        let end = line[at..].find(": ").map_or(line.len(), |len| at + len + 2);
        line.replace_range(at..end, "");
    }
    line
}
