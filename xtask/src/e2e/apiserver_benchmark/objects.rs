//! Pods of Deployments, about 2 KB of JSON each, in the encoding of upstream's components: protobuf for creations and
//! bindings, a strategic merge patch for a status.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::Method;
use loadmaster_apiserver::protobuf::{MEDIA_TYPE, encode_object};
use loadmaster_apiserver::schema::schema;
use loadmaster_client::api_client::{PROTOBUF_MEDIA_TYPES, Request};
use serde_json::{Value, json};

/// The namespace of the pods.
pub const NAMESPACE: &str = "e2e";

/// Pods of one ReplicaSet.
const N_REPLICAS: u32 = 50;

const PREFIX: &str = "web-";

/// The path of pod number `i`.
pub fn path(i: u32) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/{}", name(i))
}

/// The node that pod number `i` is bound to.
pub fn node_of(i: u32, n_nodes: u32) -> u32 {
    i % n_nodes
}

fn name(i: u32) -> String {
    format!("{PREFIX}{}-{i:06}", i / N_REPLICAS)
}

/// The number of the pod with this name.
pub fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.rsplit('-').next()?.parse().ok()
}

/// A request that creates pod number `i`.
pub fn creation(i: u32) -> Result<Request> {
    protobuf(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), "core/v1.Pod", &pod(i))
}

/// A request that binds pod number `i`.
pub fn binding(i: u32, n_nodes: u32) -> Result<Request> {
    let node = format!("node-{}", node_of(i, n_nodes));
    let binding = json!({"apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name(i), "namespace": NAMESPACE},
        "target": {"kind": "Node", "name": node}});
    protobuf(&format!("{}/binding", path(i)), "core/v1.Binding", &binding)
}

/// A request that sets the status of pod number `i` to Running.
pub fn status(i: u32) -> Request {
    let body = json!({"status": running(i)}).to_string();
    let content_type = "application/strategic-merge-patch+json";
    let accept = PROTOBUF_MEDIA_TYPES;
    let path = format!("{}/status", path(i));
    Request { accept, content_type, ..Request::with_body(Method::PATCH, path, body) }
}

fn protobuf(path: &str, type_name: &str, object: &Value) -> Result<Request> {
    let id = schema().find(type_name).with_context(|| format!("there is no type {type_name}"))?;
    let body = Bytes::from(encode_object(id, object));
    let (accept, content_type) = (PROTOBUF_MEDIA_TYPES, MEDIA_TYPE);
    Ok(Request { accept, content_type, ..Request::with_body(Method::POST, path, body) })
}

fn pod(i: u32) -> Value {
    let set = i / N_REPLICAS;
    let app = format!("{PREFIX}{set}");
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": 8080}, "initialDelaySeconds": 5, "periodSeconds": 10});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(i),
            "generateName": format!("{app}-"),
            "namespace": NAMESPACE,
            "labels": {"app": app, "pod-template-hash": "6d4cf56db6", "tier": "frontend"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app,
                "uid": format!("00000000-0000-4000-8000-{set:012}"), "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "containers": [{
                "name": "main",
                "image": format!("registry.example/team/{app}:v1.27.3"),
                "ports": [{"name": "http", "containerPort": 8080}],
                "env": [
                    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "LOG_LEVEL", "value": "info"}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "readinessProbe": probe("/ready"),
                "volumeMounts": [{"name": "config", "mountPath": "/etc/app", "readOnly": true}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": app}}],
        },
    })
}

fn running(i: u32) -> Value {
    const AT: &str = "2026-01-01T00:00:00Z";
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": AT});
    let kinds = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"];
    let ip = format!("10.{}.{}.{}", i >> 16 & 255, i >> 8 & 255, i & 255);
    let app = i / N_REPLICAS;
    json!({
        "phase": "Running",
        "conditions": kinds.map(condition),
        "hostIP": "192.168.1.1",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": AT,
        "containerStatuses": [{
            "name": "main",
            "state": {"running": {"startedAt": AT}},
            "lastState": {},
            "ready": true,
            "restartCount": 0,
            "started": true,
            "image": format!("registry.example/team/{PREFIX}{app}:v1.27.3"),
            "imageID": format!("registry.example/team/web@sha256:{app:064x}"),
            "containerID": format!("containerd://{i:064x}"),
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_numbers_are_parsed_from_names() {
        let check = |name: &str, want: Option<u32>| assert_eq!(number_of(name), want, "{name}");
        check(&name(7), Some(7));
        check(&name(123_456), Some(123_456));
        check("web-1-x", None);
        check("other-1-2", None);
    }

    #[test]
    fn pods_are_of_a_realistic_size() {
        let mut pod = pod(99_999);
        pod["status"] = running(99_999);
        let n_bytes = pod.to_string().len();
        assert!((1_500..2_500).contains(&n_bytes), "{n_bytes}");
    }
}
