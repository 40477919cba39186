//! Server-side apply and managed fields.

use std::sync::atomic::Ordering;

use expect_test::{Expect, expect};
use http::Method;
use loadmaster_apiserver::ClusterOptions;
use loadmaster_apiserver::store::StoreLimits;
use serde_json::{Value, json};

use super::testkit::{Bench, JSON, MERGE, bytes, said, send, text};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const APPLY: &str = "application/apply-patch+yaml";

fn bench() -> Bench {
    Bench::new(StoreLimits::default(), ClusterOptions::default())
}

impl Bench {
    fn call(&self, method: Method, path: &str, form: &str, body: Value) -> (u16, Value) {
        let headers = [("content-type", form), ("user-agent", "agent/v1 (test)")];
        let response = send(&self.server, method, path, &headers, text(&body));
        let code = response.status().as_u16();
        (code, serde_json::from_slice(&bytes(response)).expect("JSON"))
    }

    fn post(&self, path: &str, body: Value) -> Value {
        let (code, value) = self.call(Method::POST, path, JSON, body);
        assert_eq!(code, 201, "{value}");
        value
    }

    fn get(&self, path: &str) -> Value {
        self.call(Method::GET, path, JSON, Value::Null).1
    }

    fn apply(&self, path: &str, manager: &str, body: Value) -> (u16, Value) {
        let sign = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{sign}fieldManager={manager}");
        self.call(Method::PATCH, &path, APPLY, body)
    }

    #[track_caller]
    fn applied(&self, path: &str, manager: &str, body: Value) -> Value {
        let (code, value) = self.apply(path, manager, body);
        assert!(code < 300, "{value}");
        value
    }

    fn patched(&self, path: &str, body: Value) -> Value {
        let (code, value) = self.call(Method::PATCH, path, MERGE, body);
        assert_eq!(code, 200, "{value}");
        value
    }
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn deployment(replicas: Option<u64>) -> Value {
    let mut value = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}}}});
    if let Some(replicas) = replicas {
        value["spec"]["replicas"] = replicas.into();
    }
    value
}

/// The managed fields, one line per entry.
fn books(object: &Value) -> String {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let text = |it: &Value, name: &str| it[name].as_str().unwrap_or("-").to_owned();
    let lines: Vec<String> = entries
        .map(|it| {
            ["manager", "operation", "subresource", "apiVersion", "time"]
                .map(|name| text(it, name))
                .join(" ")
                + &format!(" {}", it["fieldsV1"])
        })
        .collect();
    lines.join("\n")
}

#[track_caller]
fn check(got: &str, want: &Expect) {
    want.assert_eq(got);
}

#[test]
fn every_write_updates_managed_fields() {
    let bench = bench();
    bench.post(MAPS, map(json!({"x": "1"})));
    bench.seconds.store(10, Ordering::Relaxed);
    let path = format!("{MAPS}/a");
    bench.patched(&format!("{path}?fieldManager=other"), json!({"data": {"y": "2"}}));
    let now = bench.patched(&path, json!({"data": {"z": "3"}}));
    check(
        &books(&now),
        &expect![[r#"
            agent Update - v1 2026-01-02T03:04:15Z {"f:data":{".":{},"f:x":{},"f:z":{}}}
            other Update - v1 2026-01-02T03:04:15Z {"f:data":{"f:y":{}}}"#]],
    );
    // What is written anew as it was is no write.
    bench.seconds.store(20, Ordering::Relaxed);
    assert_eq!(bench.patched(&path, json!({"data": {"z": "3"}})), now);
    let taken = bench
        .patched(&format!("{path}?fieldManager=other"), json!({"data": {"z": "4", "x": null}}));
    check(
        &books(&taken),
        &expect![[r#"
            agent Update - v1 2026-01-02T03:04:15Z {"f:data":{}}
            other Update - v1 2026-01-02T03:04:25Z {"f:data":{"f:y":{},"f:z":{}}}"#]],
    );
}

#[test]
fn managed_fields_can_be_reset() {
    let bench = bench();
    let path = format!("{MAPS}/a");
    for list in [json!([]), json!([{}])] {
        bench.call(Method::DELETE, &path, JSON, Value::Null);
        bench.post(MAPS, map(json!({"x": "1"})));
        let closed = bench.patched(&path, json!({"metadata": {"managedFields": list}}));
        assert_eq!(closed["metadata"]["managedFields"], Value::Null);
        // They stay empty until the next apply.
        let closed = bench.patched(&path, json!({"data": {"y": "2"}}));
        assert_eq!(closed["metadata"]["managedFields"], Value::Null);
    }
    let open = bench.applied(&path, "m", map(json!({"x": "1"})));
    check(
        &books(&open),
        &expect![[r#"
            m Apply - v1 - {"f:data":{"f:x":{}}}
            before-first-apply Update - v1 2026-01-02T03:04:05Z {"f:data":{".":{},"f:x":{},"f:y":{}}}"#]],
    );
}

#[test]
fn appliers_share_and_give_up_fields() {
    let bench = bench();
    let path = format!("{MAPS}/a");
    let (code, _) = bench.apply(&path, "m", map(json!({"x": "1", "y": "2"})));
    assert_eq!(code, 201);
    let (code, _) = bench.apply(&path, "n", map(json!({"x": "1", "z": "3"})));
    assert_eq!(code, 200);
    // x is still n's, y was only m's.
    let left = bench.applied(&path, "m", map(json!({})));
    assert_eq!(left["data"], json!({"x": "1", "z": "3"}));
    let conflict = bench.apply(&path, "m", map(json!({"x": "0", "z": "0"})));
    assert_eq!(
        conflict.1["details"],
        json!({"causes": [
        {"reason": "FieldManagerConflict", "message": "conflict with \"n\"", "field": ".data.x"},
        {"reason": "FieldManagerConflict", "message": "conflict with \"n\"", "field": ".data.z"}]})
    );
    check(
        &said(conflict),
        &expect![[r#"
            409 Conflict: Apply failed with 2 conflicts: conflicts with "n":
            - .data.x
            - .data.z"#]],
    );
    bench.patched(&path, json!({"data": {"x": "5"}}));
    check(
        &said(bench.apply(&path, "n", map(json!({"x": "1", "z": "3"})))),
        &expect![[
            r#"409 Conflict: Apply failed with 1 conflict: conflict with "agent" using v1: .data.x"#
        ]],
    );
    let forced = bench.applied(&format!("{path}?force=true"), "n", map(json!({"x": "1"})));
    assert_eq!(forced["data"], json!({"x": "1"}));
    check(
        &books(&forced),
        &expect![[r#"
            m Apply - v1 2026-01-02T03:04:05Z {"f:data":{}}
            n Apply - v1 2026-01-02T03:04:05Z {"f:data":{"f:x":{}}}"#]],
    );
}

#[test]
fn applied_objects_get_defaults_without_owner() {
    let bench = bench();
    let path = format!("{DEPLOYMENTS}/d");
    let made = bench.applied(&path, "m", deployment(Some(2)));
    assert_eq!(made["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"], "TCP");
    check(
        &books(&made),
        &expect![[
            r#"m Apply - apps/v1 2026-01-02T03:04:05Z {"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:metadata":{"f:labels":{"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}}}"#
        ]],
    );
    // Applying the same again changes nothing.
    bench.seconds.store(60, Ordering::Relaxed);
    assert_eq!(bench.applied(&path, "m", deployment(Some(2))), made);
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 7}, "status": {"replicas": 1}});
    let status = bench.applied(&format!("{path}/status"), "s", status);
    assert_eq!(
        (&status["spec"]["replicas"], &status["status"]["replicas"]),
        (&json!(2), &json!(1))
    );
    let lines = books(&status);
    check(
        lines.lines().last().unwrap_or_default(),
        &expect![[r#"s Apply status apps/v1 2026-01-02T03:05:05Z {"f:status":{"f:replicas":{}}}"#]],
    );
    let missing = bench.apply(&format!("{DEPLOYMENTS}/e/status"), "s", deployment(None));
    check(&said(missing), &expect![[r#"404 NotFound: deployments.apps "e" not found"#]]);
}

#[test]
fn a_scale_becomes_owner_of_replicas() {
    let bench = bench();
    let path = format!("{DEPLOYMENTS}/d");
    bench.applied(&path, "m", deployment(Some(2)));
    bench.patched(&format!("{path}/scale"), json!({"spec": {"replicas": 5}}));
    let taken = bench.get(&path);
    assert_eq!(taken["spec"]["replicas"], 5);
    let lines = books(&taken);
    check(
        lines.lines().last().unwrap_or_default(),
        &expect![[r#"agent Update scale apps/v1 - {"f:spec":{"f:replicas":{}}}"#]],
    );
    assert!(!lines.lines().next().unwrap_or_default().contains("f:replicas"));
    check(
        &said(bench.apply(&path, "m", deployment(Some(2)))),
        &expect![[
            r#"409 Conflict: Apply failed with 1 conflict: conflict with "agent" with subresource "scale" using apps/v1: .spec.replicas"#
        ]],
    );
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"},
        "spec": {"replicas": 3}});
    let scale_path = format!("{path}/scale");
    check(
        &said(bench.apply(&scale_path, "h", scale.clone())),
        &expect![[
            r#"409 Conflict: Apply failed with 1 conflict: conflict with "agent" with subresource "scale" using autoscaling/v1: .spec.replicas"#
        ]],
    );
    bench.applied(&format!("{scale_path}?force=true"), "h", scale);
    let lines = books(&bench.get(&path));
    check(
        lines.lines().nth(1).unwrap_or_default(),
        &expect![[
            r#"m Apply - apps/v1 2026-01-02T03:04:05Z {"f:spec":{"f:selector":{},"f:template":{"f:metadata":{"f:labels":{"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}}}"#
        ]],
    );
}

#[test]
fn kubectl_is_migrated_from_client_side_apply() {
    let bench = bench();
    let path = format!("{MAPS}/a");
    let last = "kubectl.kubernetes.io/last-applied-configuration";
    let mut client_side = map(json!({"x": "1", "y": "1"}));
    let text = client_side.to_string();
    client_side["metadata"]["annotations"] = json!({last: text});
    bench.post(&format!("{MAPS}?fieldManager=kubectl-client-side-apply"), client_side);
    // Anybody else is in conflict with what kubectl did.
    assert_eq!(bench.apply(&path, "m", map(json!({"x": "2"}))).0, 409);
    let server_side = map(json!({"x": "2"}));
    let now = bench.applied(&path, "kubectl", server_side.clone());
    assert_eq!(now["metadata"]["annotations"][last], format!("{server_side}\n"));
    assert_eq!(now["data"], json!({"x": "2", "y": "1"}));
}

#[test]
fn refusals() {
    let bench = bench();
    let path = format!("{MAPS}/a");
    let says = |path: &str, manager: &str, body: Value| said(bench.apply(path, manager, body));
    let with = |field: &str, value: Value| {
        let mut map = map(json!({}));
        map["metadata"][field] = value;
        map
    };
    let unknown =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "nope": 1});
    let cases = [
        says(&path, "", map(json!({}))),
        says(&path, &"x".repeat(129), map(json!({}))),
        says(&path, "m", json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}})),
        says(&path, "m", with("managedFields", json!([]))),
        says(&path, "m", with("name", "b".into())),
        says(&path, "m", with("namespace", "b".into())),
        says(&path, "m", with("uid", "u".into())),
        says(&path, "m", unknown),
        said(bench.call(Method::PATCH, &format!("{path}?force=true"), MERGE, json!({}))),
        said(bench.call(Method::PATCH, &path, "application/apply-patch+cbor", json!({}))),
    ];
    check(
        &cases.join("\n"),
        &expect![[r#"
            422 Invalid: PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch
            422 Invalid: PatchOptions.meta.k8s.io "" is invalid: fieldManager: Too long: may not be more than 128 bytes
            400 BadRequest: invalid object type: /v1, Kind=Secret
            400 BadRequest: metadata.managedFields must be nil
            400 BadRequest: the name of the object (b) does not match the name on the URL (a)
            400 BadRequest: the namespace of the provided object does not match the namespace sent on the request
            409 Conflict: Operation cannot be fulfilled on configmaps "a": uid mismatch: the provided object specified uid u, and no existing object was found
            500 : failed to create typed patch object (/a; /v1, Kind=ConfigMap): .nope: field not declared in schema
            422 Invalid: PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch
            415 UnsupportedMediaType: 415: Unsupported Media Type"#]],
    );
    bench.applied(&path, "m", map(json!({})));
    check(
        &says(&path, "m", with("resourceVersion", "1".into())),
        &expect![[
            r#"409 Conflict: Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again"#
        ]],
    );
    let dry = bench.applied(&format!("{path}?dryRun=All"), "m", map(json!({"x": "1"})));
    assert_eq!((&dry["data"]["x"], &bench.get(&path)["data"]), (&json!("1"), &Value::Null));
}

#[test]
fn many_managers_are_merged() {
    let bench = bench();
    let path = format!("{MAPS}/a");
    bench.post(MAPS, map(json!({"x": "1"})));
    for n in 0..12_i64 {
        bench.seconds.store(n, Ordering::Relaxed);
        bench
            .patched(&format!("{path}?fieldManager=m{n}"), json!({"data": {format!("k{n}"): "1"}}));
    }
    let books = books(&bench.get(&path));
    assert_eq!(books.lines().count(), 10);
    check(
        books.lines().next().unwrap_or_default(),
        &expect![[
            r#"ancient-changes Update - v1 2026-01-02T03:04:07Z {"f:data":{".":{},"f:k0":{},"f:k1":{},"f:k2":{},"f:x":{}}}"#
        ]],
    );
}

#[test]
fn managed_fields_of_events_use_the_written_version() {
    let bench = bench();
    let event = json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "a"},
        "note": "text", "reportingController": "c", "reportingInstance": "c-1", "action": "Testing",
        "reason": "Tested", "type": "Normal", "eventTime": "2026-01-02T03:04:05.000001Z"});
    bench.post("/apis/events.k8s.io/v1/namespaces/default/events", event);
    let path = "/api/v1/namespaces/default/events/e";
    let both = bench.patched(&format!("{path}?fieldManager=m"), json!({"message": "other"}));
    check(
        &books(&both),
        &expect![[r#"
            agent Update - events.k8s.io/v1 2026-01-02T03:04:05Z {"f:action":{},"f:eventTime":{},"f:reason":{},"f:regarding":{},"f:reportingController":{},"f:reportingInstance":{},"f:type":{}}
            m Update - v1 2026-01-02T03:04:05Z {"f:message":{}}"#]],
    );
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// A definition with two versions that have one schema.
fn widgets() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "size": {"type": "integer"},
            "plain": {"type": "array", "items": {"type": "string"}},
            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["number", "protocol"],
                "items": {"type": "object", "required": ["number"], "properties": {
                    "number": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"},
                    "name": {"type": "string"}}}},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}}}}});
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": schema,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size",
                "statusReplicasPath": ".status.count"}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", true), version("v2", false)]}})
}

fn widget(version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget",
        "metadata": {"name": "w"}, "spec": spec})
}

#[test]
fn custom_objects_are_applied_by_their_schema() {
    let bench = bench();
    let definition = bench.post(DEFINITIONS, widgets());
    assert!(books(&definition).contains("agent Update - apiextensions.k8s.io/v1"));
    let path = format!("{WIDGETS}/w");
    bench.applied(
        &path,
        "m",
        widget("v1", json!({"plain": ["a"], "ports": [{"number": 1}], "any": {"a": {"b": 1}}})),
    );
    let two = bench.applied(&path, "n", widget("v1", json!({"ports": [{"number": 1, "protocol": "UDP", "name": "u"}], "any": {"a": {"c": 2}}})));
    assert_eq!(
        two["spec"],
        json!({"plain": ["a"], "any": {"a": {"b": 1, "c": 2}}, "ports": [
            {"number": 1, "protocol": "TCP"}, {"number": 1, "protocol": "UDP", "name": "u"}]})
    );
    check(
        &books(&two),
        &expect![[r#"
        m Apply - example.com/v1 2026-01-02T03:04:05Z {"f:spec":{"f:any":{"f:a":{".":{},"f:b":{}}},"f:plain":{},"f:ports":{"k:{\"number\":1,\"protocol\":\"TCP\"}":{".":{},"f:number":{}}}}}
        n Apply - example.com/v1 2026-01-02T03:04:05Z {"f:spec":{"f:any":{"f:a":{".":{},"f:c":{}}},"f:ports":{"k:{\"number\":1,\"protocol\":\"UDP\"}":{".":{},"f:name":{},"f:number":{},"f:protocol":{}}}}}"#]],
    );
    check(
        &said(bench.apply(&path, "n", widget("v1", json!({"plain": ["b"]})))),
        &expect![[r#"409 Conflict: Apply failed with 1 conflict: conflict with "m": .spec.plain"#]],
    );
    check(
        &said(bench.apply(&path, "n", widget("v1", json!({"nope": 1})))),
        &expect![
            "500 : failed to create typed patch object (/w; example.com/v1, Kind=Widget): .spec.nope: field not declared in schema"
        ],
    );
    // The other version is the same object; what m gives up in it goes.
    let other =
        bench.applied(&path.replace("/v1/", "/v2/"), "m", widget("v2", json!({"plain": ["a"]})));
    assert_eq!(other["spec"]["any"], json!({"a": {"c": 2}}));
    check(
        &books(&other),
        &expect![[r#"
        m Apply - example.com/v2 2026-01-02T03:04:05Z {"f:spec":{"f:plain":{}}}
        n Apply - example.com/v1 2026-01-02T03:04:05Z {"f:spec":{"f:any":{"f:a":{".":{},"f:c":{}}},"f:ports":{"k:{\"number\":1,\"protocol\":\"UDP\"}":{".":{},"f:name":{},"f:number":{},"f:protocol":{}}}}}"#]],
    );
}

#[test]
fn custom_objects_have_a_status_and_a_scale() {
    let bench = bench();
    bench.post(DEFINITIONS, widgets());
    let path = format!("{WIDGETS}/w");
    bench.applied(&path, "m", widget("v1", json!({"size": 1})));
    let mut status = widget("v1", json!({"size": 9}));
    status["status"] = json!({"phase": "Up"});
    let up = bench.applied(&format!("{path}/status"), "s", status);
    assert_eq!((&up["spec"]["size"], &up["status"]["phase"]), (&json!(1), &json!("Up")));
    bench.patched(&format!("{path}/scale"), json!({"spec": {"replicas": 3}}));
    let scaled = bench.get(&path);
    assert_eq!(scaled["spec"]["size"], 3);
    check(
        &books(&scaled),
        &expect![[r#"
        s Apply status example.com/v1 2026-01-02T03:04:05Z {"f:status":{"f:phase":{}}}
        agent Update scale example.com/v1 - {"f:spec":{"f:size":{}}}"#]],
    );
}
