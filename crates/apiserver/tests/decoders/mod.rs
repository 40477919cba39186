//! What outside bytes meet first, a function each, for any bytes: used by the tests beside this and by the fuzz targets.
//! None may panic, and none may be answered with an error of the server's own; what is understood keeps its meaning.

mod accounts;
mod fields;
mod journal;
mod objects;
mod patches;
mod queries;
mod rules;

use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Method, Request, header};
use http_body::Body as _;
use loadmaster_apiserver::authentication::User;
use loadmaster_apiserver::schema::Kind;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, Body, Options, protobuf};
use serde_json::{Value, json};

pub use accounts::accounts;
pub use fields::fields;
pub use journal::journal;
pub use objects::{json_body, protobuf};
pub use patches::patch;
pub use queries::{paths, selectors};
pub use rules::{rules, schemas};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";

/// Which nothing changes.
static SERVER: LazyLock<ApiServer> = LazyLock::new(server);

/// Objects that are there, by the paths of their collections; all are called `a`.
const OBJECTS: &[(&str, &str)] = &[
    ("/api/v1/namespaces/default/configmaps", r#"{"data": {"k": "v"}}"#),
    (
        "/api/v1/namespaces/default/pods",
        r#"{"spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}}"#,
    ),
    (
        "/apis/apps/v1/namespaces/default/deployments",
        r#"{"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]}}}}"#,
    ),
    ("/api/v1/namespaces/default/services", r#"{"spec": {"ports": [{"port": 80}]}}"#),
    ("/api/v1/nodes", r#"{"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}"#),
    (
        "/apis/example.com/v1/namespaces/default/things",
        r#"{"apiVersion": "example.com/v1", "kind": "Thing", "spec": {"list": [{"name": "x", "n": 1}], "any": {"a": [1]}}}"#,
    ),
];

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A server with all of [`OBJECTS`].
fn server() -> ApiServer {
    let now = jiff::Timestamp::constant(1_767_323_045, 0);
    let limits = StoreLimits { n_changes_max: 1_000, superseded_bytes_max: 1 << 20 };
    let options = Options { clock: Arc::new(move || now), seed: 1, limits, also_serve: Vec::new() };
    let server = ApiServer::new(options).unwrap_or_else(|error| panic!("{error}"));
    let spec = json!({"type": "object", "properties": {
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"],
                "properties": {"name": {"type": "string"}, "n": {"type": "integer", "default": 2}}}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let made = create(&server, DEFINITIONS, JSON, definition(&spec, &json!({})).to_string());
    assert_eq!(made.map(|it| it.code), Some(201));
    for (path, _) in OBJECTS {
        put_object(&server, path);
    }
    server
}

/// Makes the object of a collection.
fn put_object(server: &ApiServer, path: &str) {
    let (_, text) = OBJECTS.iter().find(|it| it.0 == path).unwrap_or_else(|| panic!("{path}"));
    let mut object: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}"));
    object["metadata"] = json!({"name": "a", "labels": {"a": "b"}});
    let made = create(server, path, JSON, object.to_string());
    assert_eq!(made.map(|it| it.code), Some(201), "{path}");
}

/// The definition of `things.example.com`, whose version has some more.
fn definition(spec: &Value, more: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let mut version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    for (name, value) in more.as_object().into_iter().flatten() {
        version[name] = value.clone();
    }
    json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "versions": [version],
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}}})
}

/// What a server says.
struct Answer {
    code: u16,
    body: Bytes,
}

impl Answer {
    fn is_good(&self) -> bool {
        self.code < 300
    }

    /// The body in JSON.
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("{error} in {:?}", String::from_utf8_lossy(&self.body));
        })
    }
}

/// Asks for JSON. None if the bytes cannot stand in a request.
fn ask(
    server: &ApiServer,
    method: Method,
    path: &str,
    media_type: &str,
    body: impl Into<Bytes>,
) -> Option<Answer> {
    ask_for(server, method, path, (media_type, JSON), body)
}

/// Asks for a form: the media types are those of the body and of the answer.
fn ask_for(
    server: &ApiServer,
    method: Method,
    path: &str,
    (given, wanted): (&str, &str),
    body: impl Into<Bytes>,
) -> Option<Answer> {
    let request = Request::builder().method(method).uri(path).header(header::ACCEPT, wanted);
    let request = request.header(header::CONTENT_TYPE, given).body(body.into()).ok()?;
    let response = server.handle(&User::admin(), &request);
    let code = response.status().as_u16();
    let answer = Answer { code, body: collected(response.into_body()) };
    // 500 without a reason is upstream's, too, and 504 says that a revision has not come yet.
    let is_own =
        code == 500 && wanted != protobuf::MEDIA_TYPE && answer.json()["reason"] == "InternalError";
    assert!(code <= 500 && !is_own || code == 504, "{path}: {code} {:?}", answer.body);
    Some(answer)
}

fn create(
    server: &ApiServer,
    path: &str,
    media_type: &str,
    body: impl Into<Bytes>,
) -> Option<Answer> {
    ask(server, Method::POST, path, media_type, body)
}

/// All of a body that is there; of a watch, what it has to say now.
fn collected(body: Body) -> Bytes {
    let (mut body, mut all) = (pin!(body), Vec::new());
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut cx) {
        all.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    all.into()
}

/// What there is a choice of: the first byte chooses, the others are what is decoded.
fn choose<'a, T>(bytes: &'a [u8], choices: &'a [T]) -> Option<(&'a T, &'a [u8])> {
    let (first, rest) = bytes.split_first()?;
    Some((&choices[usize::from(*first) % choices.len()], rest))
}

/// The path of a kind's collection.
fn collection(kind: &Kind) -> String {
    let root = if kind.group.is_empty() { "/api" } else { "/apis" };
    let place = if kind.is_namespaced { "/namespaces/default" } else { "" };
    format!("{root}/{}{place}/{}", kind.api_version(), kind.resource)
}

/// A path with one more parameter.
fn with(path: &str, parameter: &str) -> String {
    let join = if path.contains('?') { '&' } else { '?' };
    format!("{path}{join}{parameter}")
}

/// Whether an object says something that protobuf cannot say: to Go, the first second of 1970 is no time at all.
fn is_lost_in_protobuf(object: &Value) -> bool {
    object.to_string().contains("1970-01-01T00:00:00")
}

/// An object without what differs each time it is made.
fn stable(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("uid");
        metadata.remove("resourceVersion");
    }
    object
}
