//! What every resource has in common: writes, lists, deletion, forms. Time stands still.

use bytes::Bytes;
use expect_test::{Expect, expect};
use http::{Method, header};
use loadmaster_apiserver::protobuf;
use loadmaster_apiserver::schema::schema;
use serde_json::{Value, json};

use super::testkit::{
    JSON, MERGE, PODS, bytes, call, call_with, create, get, refused, said, send, server,
};

pub(super) fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("a list");
    items.iter().filter_map(|it| it["metadata"]["name"].as_str()).collect()
}

#[test]
fn a_new_cluster_has_its_namespaces_and_classes() {
    let server = server();
    let namespaces = get(&server, "/api/v1/namespaces");
    assert_eq!(names(&namespaces), ["default", "kube-node-lease", "kube-public", "kube-system"]);
    let classes = get(&server, "/apis/scheduling.k8s.io/v1/priorityclasses");
    assert_eq!(names(&classes), ["system-cluster-critical", "system-node-critical"]);
}

#[test]
fn writes_with_an_old_resource_version_conflict() {
    let server = server();
    let first = create(&server, PODS, pod("a"));
    assert_eq!(first["metadata"]["generation"], 1);
    assert_eq!(first["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    let path = format!("{PODS}/a");
    let mut changed = first.clone();
    changed["metadata"]["labels"]["app"] = "b".into();
    let (code, second) = call(&server, Method::PUT, &path, changed.clone());
    assert_eq!(code, 200);
    assert_ne!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    refused(
        &server,
        Method::PUT,
        &path,
        changed,
        &expect![[
            r#"409 Conflict: Operation cannot be fulfilled on pods "a": the object has been modified; please apply your changes to the latest version and try again"#
        ]],
    );
    let unchanged = call(&server, Method::PUT, &path, second.clone()).1;
    assert_eq!(unchanged, second, "an equal object is not written");
}

#[test]
fn refusals() {
    let server = server();
    create(&server, PODS, pod("a"));
    let post = |value: Value, want: Expect| refused(&server, Method::POST, PODS, value, &want);
    post(pod("a"), expect![[r#"409 AlreadyExists: pods "a" already exists"#]]);
    post(
        json!({"kind": "Node"}),
        expect![[
            r#"400 BadRequest: Node in version "v1" cannot be handled as a Pod: no kind "Node" is registered for this path"#
        ]],
    );
    post(
        json!({"spec": {"containers": 1}}),
        expect![[
            r#"400 BadRequest: Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal number into Go struct field PodSpec.spec.containers of type []v1.Container"#
        ]],
    );
    post(
        json!({"metadata": {"name": "b"}}),
        expect![[r#"422 Invalid: Pod "b" is invalid: spec.containers: Required value"#]],
    );
    let got = |path: &str, want: Expect| refused(&server, Method::GET, path, Value::Null, &want);
    got(&format!("{PODS}/b"), expect![[r#"404 NotFound: pods "b" not found"#]]);
    got(
        "/api/v1/nothing",
        expect!["404 NotFound: the server could not find the requested resource"],
    );
    got(
        &format!("{PODS}?fieldSelector=spec.x=1"),
        expect!["400 BadRequest: field label not supported: spec.x"],
    );
    got(
        &format!("{PODS}?resourceVersion=99999"),
        expect!["504 Timeout: Too large resource version: 99999, current: 153"],
    );
    refused(
        &server,
        Method::POST,
        "/api/v1/namespaces/b/pods",
        pod("a"),
        &expect![[r#"404 NotFound: namespaces "b" not found"#]],
    );
    refused(
        &server,
        Method::DELETE,
        PODS.trim_end_matches("/pods"),
        json!({"preconditions": {"uid": "x"}}),
        &expect![[
            r#"403 Forbidden: namespaces "default" is forbidden: this namespace may not be deleted"#
        ]],
    );
}

#[test]
fn paged_lists_are_consistent() {
    let server = server();
    for name in ["a", "b", "c", "d", "e"] {
        create(&server, PODS, pod(name));
    }
    let first = get(&server, &format!("{PODS}?limit=2"));
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    create(&server, PODS, pod("bb"));
    call(&server, Method::DELETE, &format!("{PODS}/c"), Value::Null);
    let token = first["metadata"]["continue"].as_str().expect("a token");
    let second = get(&server, &format!("{PODS}?limit=2&continue={token}"));
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert_eq!(names(&get(&server, PODS)), ["a", "b", "bb", "d", "e"]);
}

#[test]
fn a_pod_is_bound_once() {
    let server = server();
    let zone = json!({"topology.kubernetes.io/zone": "z", "other": "o"});
    create(&server, "/api/v1/nodes", json!({"metadata": {"name": "n", "labels": zone}}));
    let mut nominated = pod("a");
    nominated["metadata"]["annotations"] = json!({"own": "1"});
    create(&server, PODS, nominated);
    let path = format!("{PODS}/a/binding");
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}});
    let (code, status) = call(&server, Method::POST, &path, binding.clone());
    assert_eq!((code, &status["status"]), (201, &json!("Success")));
    let bound = get(&server, &format!("{PODS}/a"));
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(
        bound["metadata"]["labels"],
        json!({"app": "a", "topology.kubernetes.io/zone": "z"})
    );
    expect![[r#"[{"lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:05Z","status":"True","type":"PodScheduled"}]"#]]
        .assert_eq(&bound["status"]["conditions"].to_string());
    refused(
        &server,
        Method::POST,
        &path,
        binding,
        &expect![[
            r#"409 Conflict: Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "n""#
        ]],
    );
    let selected = get(&server, "/api/v1/pods?fieldSelector=spec.nodeName=n");
    assert_eq!(names(&selected), ["a"]);
}

#[test]
fn a_pod_on_a_node_is_removed_by_its_kubelet() {
    let server = server();
    let mut placed = pod("a");
    placed["spec"]["nodeName"] = "n".into();
    create(&server, PODS, placed);
    let path = format!("{PODS}/a");
    let (code, marked) = call(&server, Method::DELETE, &path, Value::Null);
    assert_eq!((code, &marked["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(30)));
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-02T03:04:35Z");
    let now = json!({"gracePeriodSeconds": 0});
    assert_eq!(call(&server, Method::DELETE, &path, now).0, 200);
    refused(
        &server,
        Method::GET,
        &path,
        Value::Null,
        &expect![[r#"404 NotFound: pods "a" not found"#]],
    );
}

#[test]
fn finalizers_delay_the_deletion() {
    let server = server();
    let path = "/api/v1/namespaces/default/configmaps";
    create(&server, path, json!({"metadata": {"name": "a", "finalizers": ["x.io/y"]}}));
    let path = format!("{path}/a");
    let (code, marked) = call(&server, Method::DELETE, &path, Value::Null);
    assert_eq!(code, 200);
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-02T03:04:05Z");
    let patch = json!({"metadata": {"finalizers": null}});
    assert_eq!(call_with(&server, Method::PATCH, &path, MERGE, patch).0, 200);
    refused(
        &server,
        Method::GET,
        &path,
        Value::Null,
        &expect![[r#"404 NotFound: configmaps "a" not found"#]],
    );
}

#[test]
fn a_status_is_written_through_its_subresource_only() {
    let server = server();
    create(&server, PODS, pod("a"));
    let patch = json!({"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 5}});
    let path = format!("{PODS}/a");
    let spec = call_with(&server, Method::PATCH, &path, MERGE, patch.clone()).1;
    assert_eq!(
        (&spec["status"]["phase"], &spec["spec"]["activeDeadlineSeconds"]),
        (&json!("Pending"), &json!(5))
    );
    assert_eq!(spec["metadata"]["generation"], 2);
    let patch = json!({"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 7}});
    let status = call_with(&server, Method::PATCH, &format!("{path}/status"), MERGE, patch).1;
    assert_eq!(
        (&status["status"]["phase"], &status["spec"]["activeDeadlineSeconds"]),
        (&json!("Running"), &json!(5))
    );
    assert_eq!(status["metadata"]["generation"], 2);
}

#[test]
fn a_dry_run_writes_nothing() {
    let server = server();
    create(&server, &format!("{PODS}?dryRun=All"), pod("a"));
    assert_eq!(names(&get(&server, PODS)), Vec::<&str>::new());
}

#[test]
fn unknown_fields_are_warned_about_or_rejected() {
    let server = server();
    let mut odd = pod("a");
    odd["spec"]["odd"] = 1.into();
    let headers = [("content-type", JSON)];
    let response = send(&server, Method::POST, PODS, &headers, odd.to_string());
    let warning = response.headers().get(header::WARNING).and_then(|it| it.to_str().ok());
    assert_eq!(warning, Some(r#"299 - "unknown field \"spec.odd\"""#));
    refused(
        &server,
        Method::POST,
        &format!("{PODS}?fieldValidation=Strict"),
        odd,
        &expect![[
            r#"400 BadRequest: Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.odd""#
        ]],
    );
}

#[test]
fn events_have_two_forms() {
    let server = server();
    let event = json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "a"},
        "note": "text", "reportingController": "c", "reportingInstance": "c-1", "action": "Testing",
        "reason": "Tested", "type": "Normal", "eventTime": "2026-01-02T03:04:05.000001Z"});
    create(&server, "/apis/events.k8s.io/v1/namespaces/default/events", event);
    let core = get(&server, "/api/v1/namespaces/default/events/e");
    assert_eq!((&core["involvedObject"]["name"], &core["message"]), (&json!("a"), &json!("text")));
    assert_eq!(core["apiVersion"], "v1");
    let other = get(&server, "/apis/events.k8s.io/v1/namespaces/default/events/e");
    assert_eq!((&other["regarding"]["name"], &other["note"]), (&json!("a"), &json!("text")));
    let selected = get(&server, "/api/v1/events?fieldSelector=involvedObject.name=a");
    assert_eq!(names(&selected), ["e"]);
}

#[test]
fn protobuf_both_ways() {
    let server = server();
    let id = schema().find("core/v1.Pod").expect("a type");
    let mut value = pod("a");
    value["apiVersion"] = "v1".into();
    value["kind"] = "Pod".into();
    let headers = [("content-type", protobuf::MEDIA_TYPE), ("accept", protobuf::MEDIA_TYPE)];
    let body = protobuf::encode_object(id, &value);
    let response = send(&server, Method::POST, PODS, &headers, body);
    assert_eq!(response.status(), 201);
    let envelope = protobuf::decode_envelope(&bytes(response)).expect("an envelope");
    assert_eq!((envelope.api_version.as_str(), envelope.kind.as_str()), ("v1", "Pod"));
    let pod = protobuf::decode_message(schema(), id, &envelope.raw).expect("a pod");
    assert_eq!(pod["spec"]["containers"][0]["image"], "i:1");
    let list = send(&server, Method::GET, PODS, &headers, Bytes::new());
    let envelope = protobuf::decode_envelope(&bytes(list)).expect("an envelope");
    let id = schema().find("core/v1.PodList").expect("a type");
    let list = protobuf::decode_message(schema(), id, &envelope.raw).expect("a list");
    assert_eq!(names(&list), ["a"]);
}

#[test]
fn tables_have_the_columns_of_kubectl() {
    let server = server();
    create(&server, PODS, pod("a"));
    let headers = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let response = send(&server, Method::GET, PODS, &headers, Bytes::new());
    let table: Value = serde_json::from_slice(&bytes(response)).expect("JSON");
    assert_eq!(table["columnDefinitions"][2]["name"], "Status");
    expect![[r#"["a","0/1","Pending","0","0s","<none>","<none>","<none>","<none>"]"#]]
        .assert_eq(&table["rows"][0]["cells"].to_string());
}

#[test]
fn an_eviction_respects_the_disruption_budget() {
    let server = server();
    let mut placed = pod("a");
    placed["spec"]["nodeName"] = "n".into();
    create(&server, PODS, placed);
    let running = json!({"status": {"phase": "Running"}});
    call_with(&server, Method::PATCH, &format!("{PODS}/a/status"), MERGE, running);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 1});
    create(&server, budgets, json!({"metadata": {"name": "b"}, "spec": spec}));
    let path = format!("{PODS}/a/eviction");
    let eviction = json!({"metadata": {"name": "a"}});
    refused(
        &server,
        Method::POST,
        &path,
        eviction.clone(),
        &expect![
            "429 TooManyRequests: Cannot evict pod as it would violate the pod's disruption budget."
        ],
    );
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1}});
    call_with(&server, Method::PATCH, &format!("{budgets}/b/status"), MERGE, status);
    assert_eq!(call(&server, Method::POST, &path, eviction).0, 201);
    let budget = get(&server, &format!("{budgets}/b"));
    assert_eq!(budget["status"]["disruptionsAllowed"], 0);
}

#[test]
fn a_binding_must_have_the_namespace_of_its_request() {
    let server = server();
    create(&server, PODS, pod("a"));
    refused(
        &server,
        Method::POST,
        &format!("{PODS}/a/binding"),
        json!({"metadata": {"name": "a", "namespace": "x"}, "target": {"name": "n"}}),
        &expect![
            "400 BadRequest: the namespace of the provided object does not match the namespace sent on the request"
        ],
    );
}

#[test]
fn a_generated_name_in_use_is_generated_again() {
    let generated = json!({"metadata": {"generateName": "a-"}});
    let maps = "/api/v1/namespaces/default/configmaps";
    let first = server();
    create(&first, maps, json!({"metadata": {"name": "other"}}));
    let name = create(&first, maps, &generated)["metadata"]["name"].clone();
    // The same seed makes up the same name.
    let second = server();
    create(&second, maps, json!({"metadata": {"name": name}}));
    assert_ne!(create(&second, maps, &generated)["metadata"]["name"], name);
}

#[test]
fn some_kinds_are_created_by_an_update() {
    let server = server();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = |metadata: Value| json!({"metadata": metadata, "spec": {"holderIdentity": "h"}});
    let put = |name: &str, metadata: Value| {
        let path = format!("{leases}/{name}");
        said(call(&server, Method::PUT, &path, lease(metadata)))
    };
    let (code, made) =
        call(&server, Method::PUT, &format!("{leases}/a"), lease(json!({"name": "a"})));
    assert_eq!((code, &made["metadata"]["namespace"]), (201, &json!("default")));
    assert_eq!(put("b", json!({"name": "b", "resourceVersion": "5"})), "201 : ");
    expect![[r#"409 Conflict: Operation cannot be fulfilled on leases.coordination.k8s.io "c": Precondition failed: UID in precondition: u, UID in object meta: "#]]
        .assert_eq(&put("c", json!({"name": "c", "uid": "u"})));
    expect!["400 BadRequest: the name of the object (d based on URL) was undeterminable: name must be provided"]
        .assert_eq(&put("d", json!({})));
    refused(
        &server,
        Method::PUT,
        "/api/v1/namespaces/default/configmaps/a",
        json!({"metadata": {"name": "a"}}),
        &expect![[r#"404 NotFound: configmaps "a" not found"#]],
    );
}

#[test]
fn a_scale_must_name_its_object() {
    let server = server();
    let path = "/apis/apps/v1/namespaces/default/deployments";
    create(
        &server,
        path,
        json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
    );
    let path = format!("{path}/d/scale");
    let check = |metadata: Value, replicas: i64, want: Expect| {
        let scale = json!({"metadata": metadata, "spec": {"replicas": replicas}});
        refused(&server, Method::PUT, &path, scale, &want);
    };
    check(
        json!({"name": "e"}),
        2,
        expect![
            "400 BadRequest: the name of the object (e) does not match the name on the URL (d)"
        ],
    );
    check(
        json!({"name": "d", "namespace": "x"}),
        2,
        expect![
            "400 BadRequest: the namespace of the provided object does not match the namespace sent on the request"
        ],
    );
    let said = said(call(
        &server,
        Method::PUT,
        &path,
        json!({"metadata": {"name": "d", "uid": "u"}, "spec": {"replicas": 2}}),
    ));
    assert!(said.starts_with(r#"409 Conflict: Operation cannot be fulfilled on deployments/scale.apps "d": Precondition failed: UID in precondition: u"#), "{said}");
    check(
        json!({"name": "d"}),
        -1,
        expect![[
            r#"422 Invalid: Scale.autoscaling "d" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"#
        ]],
    );
}

#[test]
fn nothing_is_created_in_a_missing_namespace() {
    let server = server();
    let check = |path: &str, body: Value, want: &Expect| {
        refused(&server, Method::POST, path, body, want);
    };
    let eviction = json!({"metadata": {"name": "a"}});
    let binding = json!({"metadata": {"name": "a"}, "target": {"name": "n"}});
    let none = expect![[r#"404 NotFound: namespaces "none" not found"#]];
    let at = |namespace: &str, rest: &str| format!("/api/v1/namespaces/{namespace}/{rest}");
    check(&at("none", "pods/a/eviction"), eviction.clone(), &none);
    check(&at("none", "pods/a/binding"), binding, &none);
    check(&at("none", "serviceaccounts/a/token"), json!({"spec": {}}), &none);
    create(&server, "/api/v1/namespaces", json!({"metadata": {"name": "old"}}));
    assert_eq!(call(&server, Method::DELETE, "/api/v1/namespaces/old", Value::Null).0, 200);
    check(
        &at("old", "pods/a/eviction"),
        eviction,
        &expect![[
            r#"403 Forbidden: pods "a" is forbidden: unable to create new content in namespace old because it is being terminated"#
        ]],
    );
}

#[test]
fn users_of_deprecated_resources_are_warned() {
    let server = server();
    let warned = |resource: &str| {
        let path = format!("/api/v1/namespaces/default/{resource}");
        let response = send(&server, Method::GET, &path, &[], "");
        let warning = response.headers().get(header::WARNING);
        warning.and_then(|it| it.to_str().ok()).map(str::to_owned)
    };
    let want =
        r#"299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice""#;
    assert_eq!(warned("endpoints").as_deref(), Some(want));
    assert_eq!(warned("services"), None);
}

#[test]
fn health_checks_have_a_verbose_form() {
    let server = server();
    let messages = |path: &str| {
        String::from_utf8(bytes(send(&server, Method::GET, path, &[], "")).to_vec()).unwrap()
    };
    assert_eq!(messages("/livez"), "ok");
    assert_eq!(messages("/readyz?verbose"), "[+]ping ok\nreadyz check passed\n");
    assert_eq!(messages("/healthz?verbose=true&x=y"), "[+]ping ok\nhealthz check passed\n");
}

#[test]
fn daemon_sets_count_changes_of_their_template() {
    let server = server();
    let path = "/apis/apps/v1/namespaces/default/daemonsets";
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": pod("a")["spec"]});
    let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "template": template});
    let made = create(&server, path, json!({"metadata": {"name": "d"}, "spec": spec}));
    let shown = |object: &Value| {
        let metadata = &object["metadata"];
        let note = &metadata["annotations"]["deprecated.daemonset.template.generation"];
        (note.as_str().unwrap_or("none").to_owned(), metadata["generation"].clone())
    };
    assert_eq!(shown(&made), ("1".to_owned(), json!(1)));
    let check = |subresource: &str, change: Value, want: (&str, i64)| {
        let path = format!("{path}/d{subresource}");
        let (code, after) = call_with(&server, Method::PATCH, &path, MERGE, change);
        assert_eq!((code, shown(&after)), (200, (want.0.to_owned(), json!(want.1))));
    };
    check("", json!({"spec": {"minReadySeconds": 5}}), ("1", 2));
    check("", json!({"spec": {"template": {"metadata": {"labels": {"b": "c"}}}}}), ("2", 3));
    // Nobody else writes it.
    check("", json!({"metadata": {"annotations": null}}), ("2", 3));
    let other =
        json!({"metadata": {"annotations": {"deprecated.daemonset.template.generation": "7"}}});
    check("/status", other.clone(), ("2", 3));
    check("", other, ("2", 3));
}
