//! What outside bytes meet first, a function each, for any bytes: used by the tests beside this and by the fuzz targets.
//! None may panic, and none may be answered with an error of the server's own.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{Method, Request, header};
use loadmaster_apiserver::auth::User;
use loadmaster_apiserver::schema::schema;
use loadmaster_apiserver::store::Limits;
use loadmaster_apiserver::{ApiServer, Options, proto};
use serde_json::json;

/// With an object of each kind that is patched.
static SERVER: LazyLock<ApiServer> = LazyLock::new(|| {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let limits = Limits::default();
    let options = Options { clock: Arc::new(move || now), seed: 1, limits, also_serve: Vec::new() };
    let server = ApiServer::new(options).unwrap_or_else(|error| panic!("{error}"));
    let containers = json!([{"name": "c", "image": "i"}]);
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}});
    for (path, value) in [
        (KINDS[0], json!({"metadata": {"name": "a"}, "data": {"k": "v"}})),
        (KINDS[1], json!({"metadata": {"name": "a"}, "spec": {"containers": containers}})),
        (
            KINDS[2],
            json!({"metadata": {"name": "a"}, "spec": {"template": template,
                "selector": {"matchLabels": {"a": "b"}}}}),
        ),
        (KINDS[3], json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})),
        (KINDS[4], json!({"metadata": {"name": "a"}})),
    ] {
        let code = ask(&server, Method::POST, path, "application/json", value.to_string().into());
        assert_eq!(code, Some(201), "{path}");
    }
    server
});

/// Paths of collections.
const KINDS: &[&str] = &[
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/pods",
    "/apis/apps/v1/namespaces/default/deployments",
    "/api/v1/namespaces/default/services",
    "/api/v1/nodes",
    "/apis/batch/v1/namespaces/default/jobs",
    "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
    "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
];

/// The code of the answer; none if the bytes cannot stand in a request.
fn ask(
    server: &ApiServer,
    method: Method,
    path: &str,
    content_type: &str,
    body: Bytes,
) -> Option<u16> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header(header::CONTENT_TYPE, content_type).body(body).ok()?;
    let response = server.handle(&User::admin(), &request);
    Some(response.status().as_u16())
}

/// Nothing is stored, and no error is the server's own.
fn try_out(method: Method, path: &str, content_type: &str, body: &[u8]) {
    let join = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{join}dryRun=All");
    let body = Bytes::copy_from_slice(body);
    let code = ask(&SERVER, method, &path, content_type, body);
    // 500 without a reason is upstream's, too, and 504 says that a revision has not come yet.
    assert!(code.is_none_or(|code| code <= 500 || code == 504), "{path}: {code:?}");
}

/// The first byte chooses, the others are what is decoded.
fn choose<'a, T>(bytes: &'a [u8], choices: &'a [T]) -> Option<(&'a T, &'a [u8])> {
    let (first, rest) = bytes.split_first()?;
    Some((&choices[usize::from(*first) % choices.len()], rest))
}

/// Bodies of objects in JSON, and the same in YAML.
pub fn json_body(bytes: &[u8]) {
    let Some((path, body)) = choose(bytes, KINDS) else { return };
    try_out(Method::POST, path, "application/json", body);
    try_out(Method::POST, path, "application/yaml", body);
}

/// Bodies in protobuf, whole, and as what is within the envelope. What is understood survives the way back and forth.
pub fn protobuf(bytes: &[u8]) {
    const TYPES: &[&str] = &[
        "core/v1.Pod",
        "core/v1.Node",
        "core/v1.Service",
        "apps/v1.Deployment",
        "meta/v1.DeleteOptions",
        "resource/v1.ResourceClaim",
    ];
    let Some((name, raw)) = choose(bytes, TYPES) else { return };
    try_out(Method::POST, KINDS[1], proto::MEDIA_TYPE, raw);
    try_out(Method::POST, KINDS[1], proto::MEDIA_TYPE, &proto::close("v1", "Pod", raw));
    let Some(id) = schema().find(name) else { return };
    let Ok(value) = proto::decode_message(schema(), id, raw) else { return };
    let again = proto::encode_message(schema(), id, &value);
    let once_more = proto::decode_message(schema(), id, &again);
    assert_eq!(once_more.ok().as_ref(), Some(&value), "{name}");
}

/// Patches of all kinds on all objects.
pub fn patch(bytes: &[u8]) {
    const TYPES: &[&str] = &[
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ];
    let Some((content_type, rest)) = choose(bytes, TYPES) else { return };
    let Some((path, body)) = choose(rest, &KINDS[..5]) else { return };
    let path = format!("{path}/a?fieldManager=fuzz");
    try_out(Method::PATCH, &path, content_type, body);
}

/// Label and field selectors, continue tokens and revisions.
pub fn selectors(bytes: &[u8]) {
    const PARAMETERS: &[&str] =
        &["labelSelector", "fieldSelector", "continue", "resourceVersion", "limit"];
    let Some((name, text)) = choose(bytes, PARAMETERS) else { return };
    let value: String = form_urlencoded::byte_serialize(text).collect();
    for kind in &KINDS[..3] {
        try_out(Method::GET, &format!("{kind}?{name}={value}"), "application/json", b"");
    }
}

/// Paths of requests, and the paths and rules within a definition: columns, selectable fields, CEL.
pub fn paths(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let escaped: String = form_urlencoded::byte_serialize(bytes).collect();
    try_out(Method::GET, &format!("/api/v1/{escaped}"), "application/json", b"");
    try_out(Method::GET, &format!("/{}", text.trim_start_matches('/')), "application/json", b"");
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"size": {"type": "integer"}, "text": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": text}]}}});
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": schema},
        "selectableFields": [{"jsonPath": text}],
        "additionalPrinterColumns": [{"name": "C", "type": "string", "jsonPath": text}]});
    let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "versions": [version],
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}}});
    let body = definition.to_string();
    try_out(Method::POST, KINDS[8], "application/json", body.as_bytes());
}
