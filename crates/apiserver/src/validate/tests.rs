//! Objects that are refused, and why.

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;
use crate::schema::Kinds;
use crate::store::{Store, StoreLimits};

#[track_caller]
fn check(group: &str, resource: &str, value: Value, want: &Expect) {
    let kinds = Kinds::new(&mut Store::new(StoreLimits::default()), &[]);
    let kind = kinds.find_stable(group, resource).expect("a kind");
    let mut value = value;
    crate::defaults::apply_defaults(kind, &mut value);
    let lines: Vec<String> =
        create(kind, &value).iter().map(|it| format!("{}: {}", it.field, it.message)).collect();
    want.assert_eq(&lines.join("\n"));
}

#[test]
fn containers_mount_volumes_of_claim_templates() {
    let set = |volumes: Value, templates: Value| {
        let mounts: Vec<Value> = ["data", "logs"]
            .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
            .into();
        let containers = json!([{"name": "c", "image": "i", "volumeMounts": mounts}]);
        json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
            "volumeClaimTemplates": templates, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"volumes": volumes, "containers": containers}}}})
    };
    let template = |name: &str| json!({"metadata": {"name": name}});
    let check_set = |volumes: Value, templates: Value, want: &Expect| {
        check("apps", "statefulsets", set(volumes, templates), want);
    };
    let logs = json!([{"name": "logs", "emptyDir": {}}]);
    check_set(logs.clone(), json!([template("data")]), &expect![""]);
    check_set(json!([]), json!([template("logs"), template("data")]), &expect![""]);
    // A template's claim replaces the volume of that name.
    check_set(logs.clone(), json!([template("data"), template("logs")]), &expect![""]);
    check_set(
        logs,
        json!([template("other")]),
        &expect![[r#"spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data""#]],
    );
    check_set(
        json!([]),
        json!([template("data"), template("Logs")]),
        &expect![[r#"
            spec.template.spec.volumes[1].name: Invalid value: "Logs": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
            spec.template.spec.containers[0].volumeMounts[1].name: Not found: "logs""#]],
    );
}

#[test]
fn complaints() {
    check(
        "",
        "pods",
        json!({"metadata": {"name": "a"}, "spec": {}}),
        &expect!["spec.containers: Required value"],
    );
    check(
        "",
        "pods",
        json!({"metadata": {"name": "a"}, "spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
            {"name": "c", "ports": [{"containerPort": 0}]}]}}),
        &expect![[r#"
            spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1
            spec.containers[1].image: Required value
            spec.containers[1].ports[0].containerPort: Invalid value: 0: must be between 1 and 65535, inclusive
            spec.containers[1].name: Duplicate value: "c""#]],
    );
    check(
        "apps",
        "deployments",
        json!({"metadata": {"name": "a"}, "spec": {"replicas": -1, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "c"}}, "spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i"}]}}}}),
        &expect![[r#"
            spec.replicas: Invalid value: -1: must be greater than or equal to 0
            spec.template.metadata.labels: Invalid value: {"a":"c"}: `selector` does not match template `labels`
            spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always""#]],
    );
    check(
        "apps",
        "controllerrevisions",
        json!({"metadata": {"name": "a"}, "revision": -1}),
        &expect![[r#"
            revision: Invalid value: -1: must be greater than or equal to 0
            data: Required value: data is mandatory"#]],
    );
    check(
        "apps",
        "controllerrevisions",
        json!({"metadata": {"name": "a"}, "revision": 1, "data": [1]}),
        &expect!["data: Required value: data must be a valid JSON object"],
    );
    check(
        "scheduling.k8s.io",
        "priorityclasses",
        json!({"metadata": {"name": "high"}, "value": 1_000_000_001}),
        &expect![
            "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"
        ],
    );
    check(
        "",
        "namespaces",
        json!({"metadata": {"name": "a.b"}}),
        &expect![[r#"metadata.name: Invalid value: "a.b": must not contain dots"#]],
    );
}

#[test]
fn quotas() {
    let check = |spec: Value, want: &Expect| {
        check("", "resourcequotas", json!({"metadata": {"name": "a"}, "spec": spec}), want);
    };
    check(
        json!({"hard": {"pods": "1", "count/a.b": "1", "requests.hugepages-2Mi": "1", "requests.x.io/y": "1.5",
            "a.storageclass.storage.k8s.io/requests.storage": "1Gi"}, "scopes": []}),
        &expect![""],
    );
    check(
        json!({"hard": {"gpu": "1", "storage": "1Gi", "a b": "1", "pods": "1.5", "cpu": "-1", "x.io/y": "100m"}}),
        &expect![[r#"
            spec.hard[a b]: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
            spec.hard[a b]: Invalid value: "a b": must be a standard resource for quota
            spec.hard[cpu]: Invalid value: "-1": must be greater than or equal to 0
            spec.hard[gpu]: Invalid value: "gpu": must be a standard resource type or fully qualified
            spec.hard[gpu]: Invalid value: "gpu": must be a standard resource for quota
            spec.hard[pods]: Invalid value: "1.5": must be an integer
            spec.hard[storage]: Invalid value: "storage": must be a standard resource for quota
            spec.hard[x.io/y]: Invalid value: "100m": must be an integer"#]],
    );
    check(
        json!({"hard": {"cpu": "1", "secrets": "1", "x.io/y": "1"}, "scopes": ["BestEffort", "NotBestEffort", "Often"]}),
        &expect![[r#"
            spec.scopes: Invalid value: ["BestEffort","NotBestEffort","Often"]: unsupported scope applied to resource
            spec.scopes: Invalid value: ["BestEffort","NotBestEffort","Often"]: unsupported scope applied to resource
            spec.scopes: Invalid value: ["BestEffort","NotBestEffort","Often"]: unsupported scope applied to resource
            spec.scopes: Invalid value: ["BestEffort","NotBestEffort","Often"]: unsupported scope
            spec.scopes: Invalid value: ["BestEffort","NotBestEffort","Often"]: conflicting scopes"#]],
    );
    let selects = |scope: &str, operator: &str, values: Value| {
        json!({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": scope, "operator": operator, "values": values}]}})
    };
    check(selects("PriorityClass", "In", json!(["a"])), &expect![""]);
    check(
        selects("PriorityClass", "In", json!([])),
        &expect![
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
        ],
    );
    check(
        selects("Terminating", "DoesNotExist", json!(["a"])),
        &expect![[r#"
            spec.scopeSelector.matchExpressions.operator: Invalid value: "DoesNotExist": must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity
            spec.scopeSelector.matchExpressions.values: Invalid value: ["a"]: must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"#]],
    );
    check(
        selects("VolumeAttributesClass", "Like", json!(["a"])),
        &expect![[r#"
            spec.scopeSelector.matchExpressions: Invalid value: {"MatchExpressions":[{"ScopeName":"VolumeAttributesClass","Operator":"Like","Values":["a"]}]}: unsupported scope applied to resource
            spec.scopeSelector.matchExpressions.operator: Invalid value: "Like": not a valid selector operator"#]],
    );
}
