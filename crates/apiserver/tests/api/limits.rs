//! What one request may take: time, memory, and room in the store and in answers.

use expect_test::expect;
use http::Method;
use serde_json::{Value, json};

use super::testkit::{PODS, call, call_with, create, patch, refused, said, send, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BAGS: &str = "/apis/e.io/v1/namespaces/default/bags";

#[test]
fn json_patch_copies_are_bounded() {
    let server = server();
    create(&server, MAPS, json!({"metadata": {"name": "a"}, "data": {"a": "x".repeat(100_000)}}));
    let copies = (0..8).flat_map(|n| {
        let from = if n == 0 { "/data".to_owned() } else { format!("/x{}", n - 1) };
        [
            json!({"op": "add", "path": format!("/x{n}"), "value": {}}),
            json!({"op": "copy", "from": from, "path": format!("/x{n}/a")}),
            json!({"op": "copy", "from": from, "path": format!("/x{n}/b")}),
        ]
    });
    let operations: Vec<Value> = copies.collect();
    let form = "application/json-patch+json";
    let answer = call_with(&server, Method::PATCH, &format!("{MAPS}/a"), form, json!(operations));
    expect!["422 Invalid: the server rejected our request due to an error in our request"]
        .assert_eq(&said(answer));
}

#[test]
fn objects_have_a_size_limit() {
    let server = server();
    let large = "x".repeat(1_100_000);
    refused(
        &server,
        Method::POST,
        MAPS,
        json!({"metadata": {"name": "a"}, "data": {"a": large}}),
        &expect![[
            r#"422 Invalid: ConfigMap "a" is invalid: []: Too long: may not be more than 1048576 bytes"#
        ]],
    );
    refused(
        &server,
        Method::POST,
        "/api/v1/namespaces/default/secrets",
        json!({"metadata": {"name": "a"}, "stringData": {"a": large}}),
        &expect![[
            r#"422 Invalid: Secret "a" is invalid: data: Too long: may not be more than 1048576 bytes"#
        ]],
    );
    // Each patch is small enough, what they lead to is not.
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let rule = |verb: &str| json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods"]});
    create(&server, roles, json!({"metadata": {"name": "r"}, "rules": [rule("get")]}));
    let grow = json!([{"op": "add", "path": "/rules/-", "value": rule(&large)}]);
    let form = "application/json-patch+json";
    let path = format!("{roles}/r");
    assert_eq!(call_with(&server, Method::PATCH, &path, form, &grow).0, 200);
    let answer = call_with(&server, Method::PATCH, &path, form, &grow);
    expect!["500 : etcdserver: request is too large"].assert_eq(&said(answer));
}

#[test]
fn warnings_are_truncated_to_fit_into_headers() {
    let server = server();
    let warnings = |names: &[String]| -> Vec<String> {
        let mut pod = json!({"metadata": {"generateName": "p-"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        for name in names {
            pod["spec"][name] = 1.into();
        }
        let headers = [("content-type", "application/json")];
        let response = send(&server, Method::POST, PODS, &headers, pod.to_string());
        let all = response.headers().get_all("warning").iter();
        all.map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned()).collect()
    };
    assert_eq!(warnings(&["ödd".to_owned()]), [r#"299 - "unknown field \"spec.ödd\"""#]);
    let long = "o".repeat(3_000);
    assert_eq!(warnings(std::slice::from_ref(&long))[0].len(), 3_031);
    // Together they are too long, so each is cut.
    let cut = warnings(&[long.clone(), format!("{long}p")]);
    assert_eq!(cut.iter().map(String::len).collect::<Vec<_>>(), [265, 265]);
    let many: Vec<String> = (100..900).map(|n| format!("odd{n}")).collect();
    assert_eq!(warnings(&many).len(), 100);
}

/// Lists of 30,000 entries, which take minutes where each entry is compared with each other one.
#[test]
fn long_lists_take_linear_time() {
    const N: usize = 30_000;
    let server = server();
    let entry = json!({"type": "object", "required": ["k"], "properties": {
        "k": {"type": "string"}, "v": {"type": "integer"}}});
    let spec = json!({"type": "object", "properties": {
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "map": {"type": "array", "items": entry, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"]}},
        "x-kubernetes-validations": [{"rule": "!has(self.set) || self.set == oldSelf.set", "message": "fixed"}]});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    create(
        &server,
        CRDS,
        json!({"metadata": {"name": "bags.e.io"}, "spec": {"group": "e.io",
        "scope": "Namespaced", "names": {"plural": "bags", "kind": "Bag"}, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}}),
    );
    let bag = |name: &str, spec: Value| {
        json!({"apiVersion": "e.io/v1", "kind": "Bag",
        "metadata": {"name": name}, "spec": spec})
    };
    let set: Vec<String> = (0..N).map(|n| (n * 7_919 % N).to_string()).collect();
    create(&server, BAGS, bag("set", json!({"set": set})));
    let turned: Vec<&String> = set.iter().rev().collect();
    patch(&server, &format!("{BAGS}/set"), json!({"spec": {"set": turned}}));
    let map = |v: usize| -> Value {
        (0..N / 3).map(|n| json!({"k": (n * 7_919 % N).to_string(), "v": v})).collect()
    };
    create(&server, BAGS, bag("map", json!({"map": map(1)})));
    patch(&server, &format!("{BAGS}/map"), json!({"spec": {"map": map(2)}}));
    let config = bag("map", json!({"map": map(3)}));
    let path = format!("{BAGS}/map?fieldManager=m&force=true");
    let (code, answer) =
        call_with(&server, Method::PATCH, &path, "application/apply-patch+yaml", config);
    assert_eq!(code, 200, "{}", answer["message"]);
    let containers: Vec<Value> =
        (0..N / 3).map(|n| json!({"name": format!("c{n}"), "image": "i"})).collect();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": containers}});
    assert!(call(&server, Method::POST, PODS, pod).0 < 600);
}
