//! Custom resources through the API: definitions, and the objects they define.

use expect_test::expect;
use http::{Method, header};
use loadmaster_apiserver::ApiServer;
use serde_json::{Value, json};

use super::testkit::{
    MERGE, bytes, call, call_with, create, get, patch, refused, said, send, server,
};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GANGS: &str = "/apis/e.io/v1/namespaces/default/gangs";

fn definition() -> Value {
    json!({"metadata": {"name": "gangs.e.io"}, "spec": {"group": "e.io", "scope": "Namespaced",
        "names": {"plural": "gangs", "kind": "Gang", "shortNames": ["g"], "categories": ["all"]},
        "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {
                    "spec": {"type": "object", "required": ["size"], "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "mode": {"type": "string", "default": "Hard"},
                        "zone": {"type": "string"}},
                        "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size", "message": "gangs only grow"}]},
                    "status": {"type": "object", "properties": {"ready": {"type": "integer"}, "selector": {"type": "string"}}}}}},
             "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size",
                "statusReplicasPath": ".status.ready", "labelSelectorPath": ".status.selector"}},
             "selectableFields": [{"jsonPath": ".spec.zone"}],
             "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]},
            {"name": "v1beta1", "served": true, "storage": false, "deprecated": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

fn gang(name: &str, size: i64) -> Value {
    json!({"apiVersion": "e.io/v1", "kind": "Gang", "metadata": {"name": name}, "spec": {"size": size}})
}

fn with_gangs() -> ApiServer {
    let server = server();
    create(&server, CRDS, definition());
    server
}

#[test]
fn a_definition_is_served_at_once() {
    let server = with_gangs();
    let crd = get(&server, &format!("{CRDS}/gangs.e.io"));
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
    let conditions = crd["status"]["conditions"].as_array().expect("conditions");
    let held: Vec<&Value> =
        conditions.iter().filter(|it| it["status"] == "True").map(|it| &it["type"]).collect();
    assert_eq!(held, ["NamesAccepted", "Established"]);
    assert_eq!(crd["spec"]["names"]["listKind"], "GangList");
    let as_table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = bytes(send(&server, Method::GET, CRDS, &as_table, ""));
    let table: Value = serde_json::from_slice(&table).expect("JSON");
    assert_eq!(table["columnDefinitions"][1]["name"], "Created At");

    let group = get(&server, "/apis/e.io");
    assert_eq!(group["preferredVersion"]["version"], "v1");
    let resources = get(&server, "/apis/e.io/v1");
    let names: Vec<&Value> =
        resources["resources"].as_array().expect("a list").iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["gangs", "gangs/status", "gangs/scale"]);
    assert_eq!(resources["resources"][0]["shortNames"], json!(["g"]));
    let document = get(&server, "/openapi/v3/apis/e.io/v1");
    let schema = &document["components"]["schemas"]["io.e.v1.Gang"];
    assert_eq!(schema["properties"]["spec"]["properties"]["size"]["type"], "integer");
    assert_eq!(get(&server, GANGS)["kind"], "GangList");
}

#[test]
fn openapi_documents_of_definitions_can_be_cached() {
    let server = with_gangs();
    let place = || {
        let index = get(&server, "/openapi/v3");
        let place = index["paths"]["apis/e.io/v1"]["serverRelativeURL"].as_str();
        place.expect("a place").to_owned()
    };
    let first = place();
    let response = send(&server, Method::GET, &first, &[], "");
    assert_eq!(response.headers()[header::CACHE_CONTROL], "public, immutable");
    let tag = response.headers()[header::ETAG].to_str().expect("text").to_owned();
    assert!(first.ends_with(&format!("?hash={}", tag.trim_matches('"'))), "{first} {tag}");
    let path = "/openapi/v3/apis/e.io/v1";
    assert_eq!(bytes(response), bytes(send(&server, Method::GET, path, &[], "")));
    let with_tag = [("if-none-match", tag.as_str())];
    assert_eq!(send(&server, Method::GET, path, &with_tag, "").status(), 304);
    let crd = get(&server, &format!("{CRDS}/gangs.e.io"));
    let mut versions = crd["spec"]["versions"].clone();
    versions[0]["schema"]["openAPIV3Schema"]["description"] = "People who stick together".into();
    patch(&server, &format!("{CRDS}/gangs.e.io"), json!({"spec": {"versions": versions}}));
    assert_ne!(place(), first);
    assert_eq!(send(&server, Method::GET, path, &with_tag, "").status(), 200);
}

#[test]
fn objects_are_defaulted_pruned_and_validated() {
    let server = with_gangs();
    let mut made = gang("a", 2);
    made["spec"]["unknown"] = 1.into();
    made["status"] = json!({"ready": 7});
    let made = create(&server, GANGS, &made);
    assert_eq!(made["spec"], json!({"size": 2, "mode": "Hard"}));
    assert_eq!((&made["status"], &made["metadata"]["generation"]), (&Value::Null, &json!(1)));
    refused(
        &server,
        Method::POST,
        GANGS,
        gang("b", 0),
        &expect![[
            r#"422 Invalid: Gang.e.io "b" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"#
        ]],
    );
    let strict = format!("{GANGS}?fieldValidation=Strict");
    let mut unknown = gang("b", 1);
    unknown["spec"]["unknown"] = 1.into();
    refused(
        &server,
        Method::POST,
        &strict,
        &unknown,
        &expect![[
            r#"400 BadRequest: Gang in version "v1" cannot be handled as a Gang: strict decoding error: unknown field "spec.unknown""#
        ]],
    );
    let path = format!("{GANGS}/a");
    let smaller = json!({"spec": {"size": 1}});
    let (code, status) = call_with(&server, Method::PATCH, &path, MERGE, &smaller);
    assert_eq!(
        (code, status["message"].as_str()),
        (422, Some(r#"Gang.e.io "a" is invalid: spec: Invalid value: gangs only grow"#))
    );
}

#[test]
fn status_and_scale_are_subresources() {
    let server = with_gangs();
    create(&server, GANGS, gang("a", 2));
    let path = format!("{GANGS}/a");
    let both = json!({"spec": {"size": 9}, "status": {"ready": 1, "selector": "app=a"}, "metadata": {"labels": {"x": "y"}}});
    let after = patch(&server, &format!("{path}/status"), &both);
    assert_eq!((&after["spec"]["size"], &after["status"]["ready"]), (&json!(2), &json!(1)));
    assert_eq!(
        (&after["metadata"]["generation"], &after["metadata"]["labels"]),
        (&json!(1), &Value::Null)
    );
    let after = patch(&server, &path, json!({"spec": {"size": 3}, "status": {"ready": 5}}));
    assert_eq!(
        (&after["status"]["ready"], &after["metadata"]["generation"]),
        (&json!(1), &json!(2))
    );
    let scale = get(&server, &format!("{path}/scale"));
    assert_eq!(
        (&scale["spec"], &scale["status"]),
        (&json!({"replicas": 3}), &json!({"replicas": 1, "selector": "app=a"}))
    );
    let scale = patch(&server, &format!("{path}/scale"), json!({"spec": {"replicas": 4}}));
    assert_eq!(scale["spec"]["replicas"], 4);
    assert_eq!(get(&server, &path)["spec"]["size"], 4);
}

#[test]
fn api_versions_are_converted() {
    let server = with_gangs();
    create(&server, GANGS, gang("a", 2));
    let old = "/apis/e.io/v1beta1/namespaces/default/gangs/a";
    let response = send(&server, Method::GET, old, &[], "");
    let warning = response.headers()[header::WARNING].to_str().expect("text").to_owned();
    assert_eq!(warning, r#"299 - "e.io/v1beta1 Gang is deprecated; use e.io/v1 Gang""#);
    let shown: Value = serde_json::from_slice(&bytes(response)).expect("JSON");
    assert_eq!(shown["apiVersion"], "e.io/v1beta1");
    let after = patch(&server, old, json!({"spec": {"size": 5, "more": 1}}));
    assert_eq!(after["apiVersion"], "e.io/v1beta1");
    let shown = get(&server, &format!("{GANGS}/a"));
    assert_eq!(
        (&shown["apiVersion"], &shown["spec"]),
        (&json!("e.io/v1"), &json!({"size": 5, "mode": "Hard"}))
    );
}

#[test]
fn selectors_and_tables() {
    let server = with_gangs();
    for (name, zone) in [("a", "x"), ("b", "y")] {
        let mut gang = gang(name, 1);
        gang["spec"]["zone"] = zone.into();
        gang["metadata"]["labels"] = json!({"zone": zone});
        create(&server, GANGS, &gang);
    }
    for query in ["fieldSelector=spec.zone%3Dy", "labelSelector=zone%3Dy"] {
        let list = get(&server, &format!("{GANGS}?{query}"));
        assert_eq!(
            (list["items"].as_array().map(Vec::len), &list["items"][0]["metadata"]["name"]),
            (Some(1), &json!("b"))
        );
    }
    refused(
        &server,
        Method::GET,
        &format!("{GANGS}?fieldSelector=spec.size%3D1"),
        &Value::Null,
        &expect!["400 BadRequest: field label not supported: spec.size"],
    );
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = bytes(send(&server, Method::GET, GANGS, &table, ""));
    let table: Value = serde_json::from_slice(&table).expect("JSON");
    assert_eq!(table["rows"][0]["cells"], json!(["a", 1, "0s"]));
    assert_eq!(table["columnDefinitions"][1]["name"], "Size");

    // A field that becomes selectable later selects what is there already.
    let mut changed = get(&server, &format!("{CRDS}/gangs.e.io"));
    changed["spec"]["versions"][0]["selectableFields"] =
        json!([{"jsonPath": ".spec.mode"}, {"jsonPath": ".spec.zone"}]);
    let (code, changed) = call(&server, Method::PUT, &format!("{CRDS}/gangs.e.io"), &changed);
    assert_eq!(code, 200, "{changed}");
    let list = get(&server, &format!("{GANGS}?fieldSelector=spec.mode%3DHard,spec.zone%3Dx"));
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
}

#[test]
fn deleting_a_definition_deletes_its_objects() {
    let server = with_gangs();
    create(&server, GANGS, gang("a", 1));
    let mut held = gang("held", 1);
    held["metadata"]["finalizers"] = json!(["e.io/hold"]);
    create(&server, GANGS, &held);
    let path = format!("{CRDS}/gangs.e.io");
    let (code, marked) = call(&server, Method::DELETE, &path, &Value::Null);
    assert_eq!(
        (code, &marked["metadata"]["finalizers"]),
        (200, &json!(["customresourcecleanup.apiextensions.k8s.io"]))
    );
    let list = get(&server, GANGS);
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
    refused(
        &server,
        Method::POST,
        GANGS,
        gang("late", 1),
        &expect![[
            r#"403 Forbidden: gangs.e.io "late" is forbidden: create not allowed while custom resource definition is terminating"#
        ]],
    );
    patch(&server, &format!("{GANGS}/held"), json!({"metadata": {"finalizers": null}}));
    let (code, _) = call(&server, Method::GET, &path, &Value::Null);
    assert_eq!(code, 404);
    assert_eq!(send(&server, Method::GET, GANGS, &[], "").status(), 404);
    // It can come again, without what it had.
    create(&server, CRDS, definition());
    assert_eq!(get(&server, GANGS)["items"], json!([]));
}

#[test]
fn watches_outlive_a_schema_and_end_with_the_definition() {
    let server = with_gangs();
    let watch = send(&server, Method::GET, &format!("{GANGS}?watch=true"), &[], "");
    create(&server, GANGS, gang("a", 1));
    let mut changed = get(&server, &format!("{CRDS}/gangs.e.io"));
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["more"] = json!({"type": "string"});
    call(&server, Method::PUT, &format!("{CRDS}/gangs.e.io"), &changed);
    let mut later = gang("b", 1);
    later["spec"]["more"] = "x".into();
    create(&server, GANGS, &later);
    call(&server, Method::DELETE, &format!("{CRDS}/gangs.e.io"), &Value::Null);
    let all = bytes(watch);
    let events: Vec<Value> = all
        .split(|byte| *byte == b'\n')
        .filter(|it| !it.is_empty())
        .map(|it| serde_json::from_slice(it).expect("JSON"))
        .collect();
    let messages: Vec<String> = events
        .iter()
        .map(|it| format!("{} {}", it["type"], it["object"]["metadata"]["name"]))
        .collect();
    assert_eq!(
        messages,
        [r#""ADDED" "a""#, r#""ADDED" "b""#, r#""DELETED" "a""#, r#""DELETED" "b""#]
    );
    assert_eq!(events[1]["object"]["spec"]["more"], "x");
}

#[test]
fn names_in_use_are_not_accepted() {
    let server = with_gangs();
    let mut second = definition();
    second["metadata"]["name"] = "bands.e.io".into();
    second["spec"]["names"] = json!({"plural": "bands", "kind": "Gang"});
    create(&server, CRDS, &second);
    let path = format!("{CRDS}/bands.e.io");
    let crd = get(&server, &path);
    assert_eq!(crd["status"]["conditions"][0]["message"], r#""GangList" is already in use"#);
    refused(
        &server,
        Method::GET,
        "/apis/e.io/v1/bands",
        &Value::Null,
        &expect!["404 NotFound: the server could not find the requested resource"],
    );
    call(&server, Method::DELETE, &format!("{CRDS}/gangs.e.io"), &Value::Null);
    let crd = get(&server, &path);
    assert_eq!(crd["status"]["conditions"][1]["status"], "True", "{crd}");
    assert_eq!(get(&server, "/apis/e.io/v1/bands")["kind"], "GangList");
}

#[test]
fn unsupported_representations_of_custom_objects() {
    let server = with_gangs();
    create(&server, GANGS, gang("a", 1));
    let (code, _) = call_with(
        &server,
        Method::PATCH,
        &format!("{GANGS}/a"),
        "application/strategic-merge-patch+json",
        json!({}),
    );
    assert_eq!(code, 415);
    let (code, _) =
        call_with(&server, Method::POST, GANGS, "application/vnd.kubernetes.protobuf", json!({}));
    assert_eq!(code, 415);
    let accept = [("accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(send(&server, Method::GET, &format!("{GANGS}/a"), &accept, "").status(), 406);
}

#[test]
fn the_gang_example_works() {
    let server = server();
    // Its definition stands before its rights.
    let definition = include_str!("../../../../examples/gang/crd.yaml").split("\n---").next();
    let yaml = [("content-type", "application/yaml")];
    let made = send(&server, Method::POST, CRDS, &yaml, definition.expect("a part"));
    assert_eq!(made.status(), 201);
    let gangs = "/apis/example.com/v1/namespaces/default/gangs";
    let gang = |members: i64| {
        json!({"apiVersion": "example.com/v1", "kind": "Gang", "metadata": {"name": "x"},
            "spec": {"minMembers": members}})
    };
    refused(
        &server,
        Method::POST,
        gangs,
        gang(0),
        &expect![[
            r#"422 Invalid: Gang.example.com "x" is invalid: spec.minMembers: Invalid value: 0: spec.minMembers in body should be greater than or equal to 1"#
        ]],
    );
    create(&server, gangs, gang(3));
    // As a scheduler's reflector asks.
    let list = get(&server, "/apis/example.com/v1/gangs?limit=500&resourceVersion=0");
    assert_eq!(list["items"][0]["spec"]["minMembers"], 3);
}

#[test]
fn no_finalizers_are_added_during_deletion() {
    let server = with_gangs();
    let mut held = gang("a", 3);
    held["metadata"]["finalizers"] = json!(["x.io/y"]);
    create(&server, GANGS, &held);
    let path = format!("{GANGS}/a");
    call(&server, Method::DELETE, &path, Value::Null);
    let more = json!({"metadata": {"finalizers": ["x.io/y", "x.io/z"]}});
    let answer = call_with(&server, Method::PATCH, &path, MERGE, more);
    expect![[
        r#"422 Invalid: Gang.e.io "a" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"x.io/z"}"#
    ]]
    .assert_eq(&said(answer));
}
