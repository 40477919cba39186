use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:01:00Z".parse().unwrap()
}

fn counted(name: &str) -> QuotaResource<'_> {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    QuotaResource { group, resource }
}

fn shown(amounts: &ResourceAmounts) -> String {
    let shown = amounts.iter().map(|(name, amount)| format!("{name}={amount}"));
    shown.collect::<Vec<_>>().join(",")
}

/// What an object uses, without the counts of objects.
#[track_caller]
fn check(resource: &str, object: Value, want: &str) {
    let mut used = counted(resource).usage(&object, now());
    let count = format!("count/{resource}");
    assert_eq!(used.remove(&count), Some(ONE), "{object}");
    assert!(used.keys().all(|name| counted(resource).matches_quota_name(name)), "{used:?}");
    assert_eq!(shown(&used), want, "{object}");
}

#[test]
fn resource_names_that_count_objects() {
    #[track_caller]
    fn check(name: &str, want: &str) {
        let all = [
            "pods",
            "services",
            "persistentvolumeclaims",
            "configmaps",
            "events",
            "resourceclaims.resource.k8s.io",
            "deployments.apps",
            "foos.example.com",
        ];
        let found = all.iter().filter(|it| counted(it).matches_quota_name(name));
        assert_eq!(found.copied().collect::<Vec<_>>().join(" "), want, "{name}");
    }
    for name in ["pods", "count/pods", "cpu", "requests.memory", "limits.ephemeral-storage"] {
        check(name, "pods");
    }
    for name in ["hugepages-2Mi", "requests.hugepages-2Mi", "requests.example.com/gpu"] {
        check(name, "pods");
    }
    check("requests.deviceclass.resource.kubernetes.io/gpu", "pods");
    for name in ["example.com/gpu", "limits.example.com/gpu", "requests.kubernetes.io/x", "gpu"] {
        check(name, "");
    }
    check("services.nodeports", "services");
    check("requests.storage", "persistentvolumeclaims");
    check("gold.storageclass.storage.k8s.io/requests.storage", "persistentvolumeclaims");
    check("gold.storageclass.storage.k8s.io/persistentvolumeclaims", "persistentvolumeclaims");
    check("gold.storageclass.storage.k8s.io/other", "");
    check("gpu.deviceclass.resource.k8s.io/devices", "resourceclaims.resource.k8s.io");
    check("configmaps", "configmaps");
    check("count/configmaps", "configmaps");
    check("count/configmaps.apps", "");
    check("count/deployments.apps", "deployments.apps");
    check("count/deployments", "");
    check("deployments", "");
    check("count/foos.example.com", "foos.example.com");
    check("count/events", "");
}

#[test]
fn pods() {
    let pod = |containers: Value| json!({"spec": {"containers": containers}});
    let asks = |requests: Value, limits: Value| {
        pod(json!([{"name": "c", "resources": {"requests": requests, "limits": limits}}]))
    };
    check("pods", pod(json!([{"name": "c"}])), "pods=1");
    check(
        "pods",
        asks(
            json!({"cpu": "500m", "memory": "1Gi"}),
            json!({"cpu": "1", "ephemeral-storage": "1G"}),
        ),
        "cpu=500m,limits.cpu=1,limits.ephemeral-storage=1G,memory=1Gi,pods=1,requests.cpu=500m,requests.memory=1Gi",
    );
    check(
        "pods",
        asks(
            json!({"hugepages-2Mi": "4Mi", "example.com/gpu": "2", "deviceclass.resource.kubernetes.io/gpu": "1"}),
            json!({"hugepages-2Mi": "4Mi", "example.com/gpu": "2"}),
        ),
        "hugepages-2Mi=4Mi,pods=1,requests.deviceclass.resource.kubernetes.io/gpu=1,requests.example.com/gpu=2,requests.hugepages-2Mi=4Mi",
    );
    let ended = |phase: &str| json!({"status": {"phase": phase}, "spec": asks(json!({"cpu": "1"}), json!({}))["spec"]});
    check("pods", ended("Running"), "cpu=1,pods=1,requests.cpu=1");
    check("pods", ended("Succeeded"), "");
    check("pods", ended("Failed"), "");
}

#[test]
fn pods_past_their_grace_period() {
    let marked = |at: &str, grace: i64| json!({"metadata": {"deletionTimestamp": at, "deletionGracePeriodSeconds": grace}});
    check("pods", marked("2026-01-01T00:00:30Z", 30), "pods=1");
    check("pods", marked("2026-01-01T00:00:29Z", 30), "");
    check("pods", marked("2026-01-01T00:00:59Z", i64::MAX), "pods=1");
}

#[test]
fn pod_level_resources() {
    let asks = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}});
    let sidecar = |name: &str, cpu: &str| {
        let mut container = asks(name, cpu);
        container["restartPolicy"] = "Always".into();
        container
    };
    let mut pod = json!({"spec": {"containers": [asks("a", "1"), asks("b", "500m")],
        "initContainers": [sidecar("s", "1"), asks("i", "2")]}});
    let cpu =
        |cpu: &str, limit: &str| format!("cpu={cpu},limits.cpu={limit},pods=1,requests.cpu={cpu}");
    check("pods", pod.clone(), &cpu("3", "3"));
    pod["spec"]["overhead"] = json!({"cpu": "250m", "memory": "1Mi"});
    check(
        "pods",
        pod.clone(),
        "cpu=3250m,limits.cpu=3250m,memory=1Mi,pods=1,requests.cpu=3250m,requests.memory=1Mi",
    );
    pod["spec"]["overhead"] = Value::Null;
    pod["spec"]["resources"] = json!({"requests": {"cpu": "7"}});
    check("pods", pod.clone(), &cpu("7", "3"));

    let mut resized = json!({"spec": {"containers": [asks("a", "1")]}, "status": {"containerStatuses": [
        {"name": "a", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}, "allocatedResources": {"cpu": "4"}}]}});
    check("pods", resized.clone(), &cpu("4", "3"));
    resized["spec"]["containers"][0] = asks("a", "9");
    check("pods", resized.clone(), &cpu("9", "9"));
    resized["status"]["conditions"] = json!([{"type": "PodResizePending", "reason": "Infeasible"}]);
    check("pods", resized, &cpu("4", "3"));
}

#[test]
fn services() {
    let service = |kind: &str, more: Value| {
        let mut spec =
            json!({"type": kind, "ports": [{"port": 80, "nodePort": 30_001}, {"port": 81}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"spec": spec})
    };
    let used = |balancers: i64, ports: i64| {
        format!("services=1,services.loadbalancers={balancers},services.nodeports={ports}")
    };
    check("services", service("ClusterIP", json!({})), &used(0, 0));
    check("services", service("NodePort", json!({})), &used(0, 2));
    check("services", service("LoadBalancer", json!({})), &used(1, 2));
    let few = json!({"allocateLoadBalancerNodePorts": false});
    check("services", service("LoadBalancer", few), &used(1, 1));
}

#[test]
fn claims() {
    let claim = |size: &str, more: Value| {
        let mut spec = json!({"resources": {"requests": {"storage": size}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"metadata": {}, "spec": spec})
    };
    let check = |claim: Value, want: &str| check("persistentvolumeclaims", claim, want);
    check(claim("1Gi", json!({})), "persistentvolumeclaims=1,requests.storage=1Gi");
    check(claim("100m", json!({})), "persistentvolumeclaims=1,requests.storage=1");
    check(
        claim("1Gi", json!({"storageClassName": "gold"})),
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/requests.storage=1Gi,\
         persistentvolumeclaims=1,requests.storage=1Gi",
    );
    let mut old = claim("1Gi", json!({"storageClassName": "gold"}));
    old["metadata"]["annotations"] = json!({"volume.beta.kubernetes.io/storage-class": ""});
    check(old, "persistentvolumeclaims=1,requests.storage=1Gi");
    let mut grown = claim("1Gi", json!({}));
    grown["status"]["allocatedResources"] = json!({"storage": "3Gi"});
    check(grown, "persistentvolumeclaims=1,requests.storage=3Gi");
    check(json!({"spec": {}}), "persistentvolumeclaims=1");
}

#[test]
fn devices() {
    let exactly = |class: &str, mode: &str, count: i64| json!({"deviceClassName": class, "allocationMode": mode, "count": count});
    let claim = json!({"spec": {"devices": {"requests": [
        {"name": "a", "exactly": exactly("gpu", "ExactCount", 2)},
        {"name": "b", "exactly": exactly("net", "All", 0)},
        {"name": "c", "firstAvailable": [
            exactly("gpu", "ExactCount", 1), exactly("gpu", "ExactCount", 3), exactly("net", "ExactCount", 1)]},
    ]}}});
    check(
        "resourceclaims.resource.k8s.io",
        claim,
        "gpu.deviceclass.resource.k8s.io/devices=5,net.deviceclass.resource.k8s.io/devices=33",
    );
}

#[test]
fn objects_that_only_count() {
    check("configmaps", json!({}), "configmaps=1");
    check("deployments.apps", json!({}), "");
    assert!(!counted("events").is_counted() && !counted("events.events.k8s.io").is_counted());
}

#[test]
fn scopes() {
    #[track_caller]
    fn check(resource: &str, spec: Value, object: &Value, want: bool) {
        assert_eq!(counted(resource).is_in_scope(&spec, object), want, "{spec}");
    }
    let scopes = |names: &[&str]| json!({"scopes": names});
    let selects = |scope: &str, operator: &str, values: &[&str]| {
        json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": scope, "operator": operator, "values": values}]}})
    };
    let term = json!([{"podAffinityTerm": {"namespaceSelector": {}}}]);
    let job = json!({"spec": {"activeDeadlineSeconds": 5, "priorityClassName": "high", "affinity": {"podAntiAffinity":
        {"preferredDuringSchedulingIgnoredDuringExecution": term}}}, "status": {"qosClass": "BestEffort"}});
    let plain = json!({"spec": {}, "status": {"qosClass": "Burstable"}});
    for (name, of_job) in [
        ("Terminating", true),
        ("NotTerminating", false),
        ("BestEffort", true),
        ("NotBestEffort", false),
        ("PriorityClass", true),
        ("CrossNamespacePodAffinity", true),
    ] {
        check("pods", scopes(&[name]), &job, of_job);
        check("pods", scopes(&[name]), &plain, !of_job);
        check("services", scopes(&[name]), &json!({}), false);
    }
    check("pods", json!({}), &plain, true);
    check("pods", scopes(&["Terminating", "BestEffort"]), &job, true);
    check("pods", scopes(&["Terminating", "NotBestEffort"]), &job, false);
    for (operator, values, of_job, of_plain) in [
        ("In", &["high", "low"][..], true, false),
        ("In", &["low"], false, false),
        ("NotIn", &["high"], false, true),
        ("Exists", &[], true, false),
        ("DoesNotExist", &[], false, true),
        ("Like", &[], false, false),
    ] {
        check("pods", selects("PriorityClass", operator, values), &job, of_job);
        check("pods", selects("PriorityClass", operator, values), &plain, of_plain);
    }
    let classy = json!({"spec": {"volumeAttributesClassName": "gold"},
        "status": {"currentVolumeAttributesClassName": "silver"}});
    for (operator, values, of_classy, of_plain) in [
        ("In", &["silver"][..], true, false),
        ("In", &["lead"], false, false),
        ("NotIn", &["gold"], true, true),
        ("NotIn", &["gold", "silver"], false, true),
        ("Exists", &[], true, false),
        ("DoesNotExist", &[], false, true),
    ] {
        let spec = selects("VolumeAttributesClass", operator, values);
        check("persistentvolumeclaims", spec.clone(), &classy, of_classy);
        check("persistentvolumeclaims", spec, &json!({}), of_plain);
    }
}

#[test]
fn resources_that_containers_must_specify() {
    #[track_caller]
    fn check(pod: &Value, names: &[&str], want: Option<&str>) {
        assert_eq!(missing_quota_resources(pod, names.iter().copied()).as_deref(), want);
    }
    let mut pod = json!({"spec": {
        "containers": [{"name": "b"}, {"name": "a", "resources": {"requests": {"cpu": "1"}}}],
        "initContainers": [{"name": "i", "resources": {"limits": {"memory": "1Gi"}}}]}});
    check(&pod, &["pods", "ephemeral-storage", "requests.example.com/gpu"], None);
    check(&pod, &["requests.cpu"], Some("must specify requests.cpu for: b,i"));
    check(
        &pod,
        &["memory", "limits.memory", "cpu", "pods"],
        Some("must specify cpu for: b,i; limits.memory for: a,b; memory for: a,b,i"),
    );
    pod["spec"]["resources"] = json!({"limits": {"cpu": "1"}});
    check(&pod, &["memory"], None);
}
