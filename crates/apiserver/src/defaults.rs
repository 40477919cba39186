//! Defaulting of objects, as upstream's `SetDefaults_*` functions. Types are visited wherever they occur, so that a
//! pod template has the same defaults in every workload.

use base64::Engine as _;
use serde_json::{Map, Value, json};

use crate::object::{list_entries, members_mut, meta_mut};
use crate::schema::{Kind, Schema, Shape, TypeId, schema};

/// Sets the defaults of an object and of everything in it.
pub fn apply_defaults(kind: &Kind, value: &mut Value) {
    if kind.is("", "secrets") {
        encode_texts(value);
    }
    if let Value::Object(members) = value {
        visit(schema(), kind.type_id, members);
    }
}

/// `stringData` is write-only: its values become entries of `data`.
fn encode_texts(secret: &mut Value) {
    let texts = members_mut(secret).remove("stringData");
    let Some(Value::Object(texts)) = texts else { return };
    let data = inner(members_mut(secret), "data");
    for (key, text) in &texts {
        let bytes = text.as_str().unwrap_or_default();
        let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
        data.insert(key.clone(), encoded.into());
    }
}

fn visit(schema: &Schema, id: TypeId, members: &mut Map<String, Value>) {
    of_type(schema.get(id).name, members);
    for field in &schema.get(id).fields {
        if let (Shape::Object(inner), true) = (&field.shape, field.is_inline) {
            visit(schema, *inner, members);
        } else if let Some(value) = members.get_mut(field.name) {
            within(schema, &field.shape, value);
        }
    }
}

fn within(schema: &Schema, shape: &Shape, value: &mut Value) {
    match (shape, value) {
        (Shape::Object(id), Value::Object(members)) => visit(schema, *id, members),
        (Shape::List(inner), Value::Array(list)) if has_types(inner) => {
            list.iter_mut().for_each(|entry| within(schema, inner, entry));
        }
        (Shape::Map(inner), Value::Object(map)) if has_types(inner) => {
            map.values_mut().for_each(|entry| within(schema, inner, entry));
        }
        _ => {}
    }
}

fn has_types(shape: &Shape) -> bool {
    match shape {
        Shape::Object(_) => true,
        Shape::List(inner) | Shape::Map(inner) => has_types(inner),
        _ => false,
    }
}

/// Sets a field that is absent or empty.
fn set(members: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    let is_empty = match members.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if is_empty {
        members.insert(name.to_owned(), value.into());
    }
}

/// Sets a number that is absent or zero.
fn set_number(members: &mut Map<String, Value>, name: &str, value: i64) {
    if members.get(name).and_then(Value::as_i64).unwrap_or(0) == 0 {
        members.insert(name.to_owned(), value.into());
    }
}

fn text<'a>(members: &'a Map<String, Value>, name: &str) -> &'a str {
    members.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The members of a struct, which is created if absent.
fn inner<'a>(members: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    members_mut(members.entry(name).or_insert_with(|| json!({})))
}

fn of_type(name: &str, it: &mut Map<String, Value>) {
    match name {
        "core/v1.Pod" => pod(it),
        "apiextensions/v1.CustomResourceDefinition" => {
            crate::custom_resource::definition::set_definition_defaults(it)
        }
        "core/v1.PodSpec" => pod_spec(it),
        "core/v1.PodStatus" => pod_status(it),
        "core/v1.Container" | "core/v1.EphemeralContainerCommon" => container(it),
        "core/v1.ContainerPort" | "core/v1.EndpointPort" => set(it, "protocol", "TCP"),
        "core/v1.Probe" => {
            set_number(it, "timeoutSeconds", 1);
            set_number(it, "periodSeconds", 10);
            set_number(it, "successThreshold", 1);
            set_number(it, "failureThreshold", 3);
        }
        "core/v1.HTTPGetAction" => {
            set(it, "path", "/");
            set(it, "scheme", "HTTP");
        }
        "core/v1.GRPCAction" => set(it, "service", ""),
        "core/v1.Volume" => volume(it),
        "core/v1.SecretVolumeSource"
        | "core/v1.ConfigMapVolumeSource"
        | "core/v1.DownwardAPIVolumeSource"
        | "core/v1.ProjectedVolumeSource" => set(it, "defaultMode", 420),
        "core/v1.ServiceAccountTokenProjection" => set(it, "expirationSeconds", 3600),
        "core/v1.HostPathVolumeSource" => set(it, "type", ""),
        "core/v1.ObjectFieldSelector" => set(it, "apiVersion", "v1"),
        "core/v1.Service" => service(inner(it, "spec")),
        "core/v1.Secret" => set(it, "type", "Opaque"),
        "core/v1.PersistentVolumeSpec" => {
            set(it, "persistentVolumeReclaimPolicy", "Retain");
            set(it, "volumeMode", "Filesystem");
        }
        "core/v1.PersistentVolumeClaimSpec" => set(it, "volumeMode", "Filesystem"),
        "core/v1.Namespace" => namespace(it),
        "core/v1.NodeSpec" => node_spec(it),
        "core/v1.NodeStatus" => node_status(it),
        "core/v1.LimitRangeItem" => limit_range_item(it),
        "core/v1.ReplicationController" => set(inner(it, "spec"), "replicas", 1),
        "apps/v1.Deployment" => deployment(inner(it, "spec")),
        "apps/v1.ReplicaSet" => set(inner(it, "spec"), "replicas", 1),
        "apps/v1.DaemonSet" => daemon_set(inner(it, "spec")),
        "apps/v1.StatefulSet" => stateful_set(inner(it, "spec")),
        "batch/v1.Job" => job(it),
        "batch/v1.CronJobSpec" => {
            set(it, "concurrencyPolicy", "Allow");
            set(it, "suspend", false);
            set(it, "successfulJobsHistoryLimit", 3);
            set(it, "failedJobsHistoryLimit", 1);
        }
        "storage/v1.StorageClass" => {
            set(it, "reclaimPolicy", "Delete");
            set(it, "volumeBindingMode", "Immediate");
        }
        "storage/v1.CSIDriverSpec" => {
            set(it, "attachRequired", true);
            set(it, "podInfoOnMount", false);
            set(it, "storageCapacity", false);
            set(it, "fsGroupPolicy", "ReadWriteOnceWithFSType");
            set(it, "requiresRepublish", false);
            set(it, "seLinuxMount", false);
            set(it, "volumeLifecycleModes", json!(["Persistent"]));
        }
        // Both have the fields of v2 here.
        "autoscaling/v1.HorizontalPodAutoscalerSpec"
        | "autoscaling/v2.HorizontalPodAutoscalerSpec" => autoscaler(it),
        "scheduling/v1.PriorityClass" => set(it, "preemptionPolicy", "PreemptLowerPriority"),
        "rbac/v1.RoleRef" => set(it, "apiGroup", "rbac.authorization.k8s.io"),
        "rbac/v1.Subject" if matches!(text(it, "kind"), "User" | "Group") => {
            set(it, "apiGroup", "rbac.authorization.k8s.io");
        }
        "networking/v1.NetworkPolicyPort" => set(it, "protocol", "TCP"),
        "networking/v1.NetworkPolicySpec" => {
            let has_egress = it.get("egress").is_some_and(|rules| !list_entries(rules).is_empty());
            let types = if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            set(it, "policyTypes", types);
        }
        "resource/v1.ExactDeviceRequest" | "resource/v1.DeviceSubRequest" => {
            set(it, "allocationMode", "ExactCount");
            if text(it, "allocationMode") == "ExactCount" {
                set_number(it, "count", 1);
            }
        }
        _ => {}
    }
}

fn pod(it: &mut Map<String, Value>) {
    let spec = inner(it, "spec");
    for list in ["containers", "initContainers"] {
        let Some(Value::Array(containers)) = spec.get_mut(list) else { continue };
        for container in containers {
            request_limits(container);
        }
    }
    set(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
            {
                host_ports(container);
            }
        }
    }
}

/// A resource with a limit and no request requests its limit.
fn request_limits(container: &mut Value) {
    let Some(limits) = container["resources"]["limits"].as_object().cloned() else { return };
    let requests = members_mut(&mut container["resources"]["requests"]);
    for (name, amount) in limits {
        requests.entry(name).or_insert(amount);
    }
}

/// With `hostNetwork`, a container port is a host port.
fn host_ports(container: &mut Value) {
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let number = port["containerPort"].as_i64().unwrap_or(0);
        if let Value::Object(port) = port {
            set_number(port, "hostPort", number);
        }
    }
}

fn pod_spec(it: &mut Map<String, Value>) {
    set(it, "dnsPolicy", "ClusterFirst");
    set(it, "restartPolicy", "Always");
    set(it, "securityContext", json!({}));
    set(it, "terminationGracePeriodSeconds", 30);
    set(it, "schedulerName", "default-scheduler");
    // Two names of one field; the newer one takes precedence.
    let account = match text(it, "serviceAccountName") {
        "" => text(it, "serviceAccount").to_owned(),
        name => name.to_owned(),
    };
    if !account.is_empty() {
        it.insert("serviceAccountName".to_owned(), account.clone().into());
        it.insert("serviceAccount".to_owned(), account.into());
    }
}

fn container(it: &mut Map<String, Value>) {
    let policy = if is_latest(text(it, "image")) { "Always" } else { "IfNotPresent" };
    set(it, "imagePullPolicy", policy);
    set(it, "terminationMessagePath", "/dev/termination-log");
    set(it, "terminationMessagePolicy", "File");
}

/// Whether an image's tag is `latest`, written or not; a digest is a tag of its own.
fn is_latest(image: &str) -> bool {
    if image.is_empty() {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains('@') {
        return false;
    }
    name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn volume(it: &mut Map<String, Value>) {
    if it.keys().all(|key| key == "name") {
        it.insert("emptyDir".to_owned(), json!({}));
    }
}

fn service(spec: &mut Map<String, Value>) {
    set(spec, "sessionAffinity", "None");
    set(spec, "type", "ClusterIP");
    if text(spec, "sessionAffinity") == "ClientIP" {
        let client = inner(inner(spec, "sessionAffinityConfig"), "clientIP");
        set(client, "timeoutSeconds", 10_800);
    } else if text(spec, "sessionAffinity") == "None" {
        spec.remove("sessionAffinityConfig");
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let number = port["port"].clone();
        if let Value::Object(port) = port {
            set(port, "protocol", "TCP");
            if port.get("targetPort").and_then(Value::as_i64) == Some(0) {
                port.remove("targetPort");
            }
            set(port, "targetPort", number);
        }
    }
    let kind = text(spec, "type").to_owned();
    let has_more = spec.get("externalIPs").is_some_and(|it| !list_entries(it).is_empty());
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") || kind == "ClusterIP" && has_more {
        set(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        set(spec, "allocateLoadBalancerNodePorts", true);
    }
    if kind != "ExternalName" {
        set(spec, "internalTrafficPolicy", "Cluster");
    }
}

/// The first entry of a list is also a field of its own; where the two differ, the single field counts.
fn twins(
    it: &mut Map<String, Value>,
    single: &str,
    list: &str,
    first: fn(&Value) -> &Value,
    item: fn(&str) -> Value,
) {
    let one = text(it, single).to_owned();
    let of_list = it.get(list).map_or("", |list| first(&list[0]).as_str().unwrap_or_default());
    if one.is_empty() && !of_list.is_empty() {
        it.insert(single.to_owned(), of_list.into());
    } else if one != of_list {
        it.insert(list.to_owned(), json!([item(&one)]));
    }
}

fn pod_status(it: &mut Map<String, Value>) {
    twins(it, "podIP", "podIPs", |item| &item["ip"], |ip| json!({"ip": ip}));
}

fn node_spec(it: &mut Map<String, Value>) {
    twins(it, "podCIDR", "podCIDRs", |item| item, |range| range.into());
}

fn namespace(it: &mut Map<String, Value>) {
    let mut value = Value::Object(std::mem::take(it));
    let name = value["metadata"]["name"].clone();
    if name.is_string() {
        let labels = meta_mut(&mut value).entry("labels").or_insert_with(|| json!({}));
        members_mut(labels).insert("kubernetes.io/metadata.name".to_owned(), name);
    }
    *it = std::mem::take(members_mut(&mut value));
}

fn node_status(it: &mut Map<String, Value>) {
    if let (None, Some(capacity)) = (it.get("allocatable"), it.get("capacity").cloned()) {
        it.insert("allocatable".to_owned(), capacity);
    }
}

fn limit_range_item(it: &mut Map<String, Value>) {
    if text(it, "type") != "Container" {
        return;
    }
    let amounts = |it: &Map<String, Value>, name: &str| {
        it.get(name).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    for (to, from) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")]
    {
        let from = amounts(it, from);
        if from.is_empty() {
            continue;
        }
        let to = inner(it, to);
        for (name, amount) in from {
            to.entry(name).or_insert(amount);
        }
    }
}

fn deployment(spec: &mut Map<String, Value>) {
    set(spec, "replicas", 1);
    let strategy = inner(spec, "strategy");
    set(strategy, "type", "RollingUpdate");
    if text(strategy, "type") == "RollingUpdate" {
        let rolling = inner(strategy, "rollingUpdate");
        set(rolling, "maxUnavailable", "25%");
        set(rolling, "maxSurge", "25%");
    }
    set(spec, "revisionHistoryLimit", 10);
    set(spec, "progressDeadlineSeconds", 600);
}

fn daemon_set(spec: &mut Map<String, Value>) {
    let strategy = inner(spec, "updateStrategy");
    set(strategy, "type", "RollingUpdate");
    if text(strategy, "type") == "RollingUpdate" {
        let rolling = inner(strategy, "rollingUpdate");
        set(rolling, "maxUnavailable", 1);
        set(rolling, "maxSurge", 0);
    }
    set(spec, "revisionHistoryLimit", 10);
}

fn stateful_set(spec: &mut Map<String, Value>) {
    set(spec, "podManagementPolicy", "OrderedReady");
    let strategy = inner(spec, "updateStrategy");
    if text(strategy, "type").is_empty() {
        set(strategy, "type", "RollingUpdate");
        set(inner(strategy, "rollingUpdate"), "partition", 0);
    } else if strategy.get("rollingUpdate").is_some_and(Value::is_object) {
        set(inner(strategy, "rollingUpdate"), "partition", 0);
    }
    let retention = inner(spec, "persistentVolumeClaimRetentionPolicy");
    set(retention, "whenDeleted", "Retain");
    set(retention, "whenScaled", "Retain");
    set(spec, "replicas", 1);
    set(spec, "revisionHistoryLimit", 10);
}

fn autoscaler(spec: &mut Map<String, Value>) {
    set(spec, "minReplicas", 1);
    if spec.get("metrics").is_none_or(|it| list_entries(it).is_empty()) {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        spec.insert("metrics".to_owned(), json!([metric]));
    }
    let Some(Value::Object(behavior)) = spec.get_mut("behavior") else { return };
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let up = json!([{"type": "Pods", "value": 4, "periodSeconds": 15}, percent]);
    set(inner(behavior, "scaleUp"), "stabilizationWindowSeconds", 0);
    for (rules, policies) in [("scaleUp", up), ("scaleDown", json!([percent]))] {
        let rules = inner(behavior, rules);
        set(rules, "selectPolicy", "Max");
        set(rules, "policies", policies);
    }
}

fn job(it: &mut Map<String, Value>) {
    let spec = inner(it, "spec");
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        set(spec, "completions", 1);
    }
    set(spec, "parallelism", 1);
    let per_index = spec.contains_key("backoffLimitPerIndex");
    set(spec, "backoffLimit", if per_index { i64::from(i32::MAX) } else { 6 });
    set(spec, "completionMode", "NonIndexed");
    set(spec, "suspend", false);
    let has_policy = spec.contains_key("podFailurePolicy");
    let replaced = if has_policy { "Failed" } else { "TerminatingOrFailed" };
    set(spec, "podReplacementPolicy", replaced);
    set(spec, "manualSelector", false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn autoscalers() {
        let mut spec = json!({"behavior": {"scaleUp": {"policies": []}}});
        autoscaler(members_mut(&mut spec));
        assert_eq!(spec["minReplicas"], 1);
        assert_eq!(spec["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
        let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
        let up = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": []});
        let down = json!({"selectPolicy": "Max", "policies": [percent]});
        assert_eq!(spec["behavior"], json!({"scaleUp": up, "scaleDown": down}));
    }

    #[test]
    fn tags() {
        let cases = [
            ("nginx", true),
            ("nginx:latest", true),
            ("nginx:1.2", false),
            ("a.io:5000/nginx", true),
            ("a.io:5000/nginx:1", false),
            ("nginx@sha256:00", false),
            ("", false),
        ];
        for (image, want) in cases {
            assert_eq!(is_latest(image), want, "{image}");
        }
    }
}
