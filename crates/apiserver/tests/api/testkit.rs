//! Test servers, and helpers for requests.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use expect_test::Expect;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use loadmaster_apiserver::authentication::User;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, Body, ClusterOptions, Options};
use serde_json::Value;

pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server and its clock, in seconds since 2026-01-02T03:04:05Z, which stands still until it is set.
pub struct Bench {
    pub server: ApiServer,
    pub seconds: Arc<AtomicI64>,
}

impl Bench {
    pub fn new(limits: StoreLimits, setup: ClusterOptions) -> Bench {
        let start: Timestamp = "2026-01-02T03:04:05Z".parse().expect("a time");
        let seconds = Arc::new(AtomicI64::new(0));
        let passed = Arc::clone(&seconds);
        let clock = move || start + SignedDuration::from_secs(passed.load(Ordering::Relaxed));
        let options = Options { clock: Arc::new(clock), seed: 1, limits, also_serve: Vec::new() };
        Bench { server: ApiServer::with_cluster_options(options, setup).expect("starts"), seconds }
    }
}

/// A server where everybody known may do everything.
pub fn server() -> ApiServer {
    server_with(StoreLimits::default())
}

pub fn server_with(limits: StoreLimits) -> ApiServer {
    Bench::new(limits, ClusterOptions::default()).server
}

/// Runs what does not wait.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(future)
}

/// Sends a request as a user.
pub fn send_as(
    server: &ApiServer,
    user: &User,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.handle(user, &request.body(body.into()).expect("a request"))
}

/// Asks as administrator.
pub fn send(
    server: &ApiServer,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Response<Body> {
    send_as(server, &User::admin(), method, path, headers, body)
}

pub fn bytes(response: Response<Body>) -> Bytes {
    block_on(response.into_body().collect()).expect("never fails").to_bytes()
}

/// Code and answer of a request with JSON; null is no body.
pub fn call(
    server: &ApiServer,
    method: Method,
    path: &str,
    body: impl Borrow<Value>,
) -> (u16, Value) {
    call_with(server, method, path, JSON, body)
}

/// The same with another form of body.
pub fn call_with(
    server: &ApiServer,
    method: Method,
    path: &str,
    content_type: &str,
    body: impl Borrow<Value>,
) -> (u16, Value) {
    let response =
        send(server, method, path, &[("content-type", content_type)], text(body.borrow()));
    let code = response.status().as_u16();
    (code, serde_json::from_slice(&bytes(response)).expect("JSON"))
}

/// A body as it is sent.
pub fn text(body: &Value) -> String {
    if body.is_null() { String::new() } else { body.to_string() }
}

#[track_caller]
pub fn get(server: &ApiServer, path: &str) -> Value {
    let (code, value) = call(server, Method::GET, path, Value::Null);
    assert_eq!(code, 200, "{value}");
    value
}

#[track_caller]
pub fn create(server: &ApiServer, path: &str, value: impl Borrow<Value>) -> Value {
    let (code, value) = call(server, Method::POST, path, value);
    assert_eq!(code, 201, "{value}");
    value
}

/// A merge patch that is carried out.
#[track_caller]
pub fn patch(server: &ApiServer, path: &str, value: impl Borrow<Value>) -> Value {
    let (code, value) = call_with(server, Method::PATCH, path, MERGE, value);
    assert_eq!(code, 200, "{value}");
    value
}

/// The error of a rejected request: code, reason and message.
pub fn said((code, status): (u16, Value)) -> String {
    let text = |field: &str| status[field].as_str().unwrap_or_default();
    format!("{code} {}: {}", text("reason"), text("message"))
}

#[track_caller]
pub fn refused(
    server: &ApiServer,
    method: Method,
    path: &str,
    body: impl Borrow<Value>,
    want: &Expect,
) {
    let answer = call(server, method, path, body);
    assert_eq!(answer.1["code"], answer.0, "{}", answer.1);
    want.assert_eq(&said(answer));
}
