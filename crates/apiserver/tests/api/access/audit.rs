//! What is written down about requests.

use std::io::Write;
use std::sync::Arc;
#[expect(clippy::disallowed_types, reason = "a log is written on any thread")]
use std::sync::Mutex;
use std::sync::atomic::AtomicI64;

use loadmaster_apiserver::audit::{AuditLog, AuditPolicy};
use loadmaster_apiserver::{ApiServer, Options};

use super::super::testkit::block_on;
use super::*;

/// What has been written.
#[derive(Clone, Default)]
#[expect(clippy::disallowed_types, reason = "a log is written on any thread")]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("whole").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn requests_are_audited() {
    let written = Written::default();
    let audit = AuditLog::new(AuditPolicy::everything(), Box::new(written.clone()));
    let cluster = with(ClusterOptions {
        mode: AuthorizationMode::Rbac,
        audit: Some(audit),
        ..ClusterOptions::default()
    });
    let pods = "/api/v1/namespaces/default/pods";
    let headers =
        [("audit-id", "one"), ("user-agent", "test"), ("x-forwarded-for", "10.0.0.1, 10.0.0.2")];
    cluster.send(&User::admin(), Method::POST, pods, &headers, &pod("a", json!({})));
    let headers = [("audit-id", "two"), ("impersonate-user", "bob")];
    cluster.send(&User::admin(), Method::GET, &format!("{pods}/a?x=y"), &headers, &Value::Null);
    let watch = format!("{pods}?watch=true&resourceVersion=1&timeoutSeconds=1");
    cluster.send(&ann(), Method::GET, &watch, &[("audit-id", "three")], &Value::Null);
    cluster.bind("rolebindings", "ClusterRole", "view", "ann");
    cluster.send(&ann(), Method::GET, pods, &[("audit-id", "list")], &Value::Null);
    let watch = format!("{pods}?watch=true&timeoutSeconds=1");
    cluster.send(&ann(), Method::GET, &watch, &[("audit-id", "watch")], &Value::Null);
    let error = cluster.server.authenticate(None, "/api", &{
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, "Bearer secret".parse().expect("a header"));
        headers
    });
    let mut headers = HeaderMap::new();
    headers.insert("audit-id", "four".parse().expect("a header"));
    let uri = "/api".parse().expect("a path");
    let _ = cluster.server.refuse_unauthenticated(
        &Method::GET,
        &uri,
        &headers,
        None,
        error.expect_err("nobody"),
    );
    let text = String::from_utf8(written.0.lock().expect("whole").clone()).expect("text");
    assert!(!text.contains("secret"), "{text}");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        lines[0],
        json!({"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
        "auditID": "one", "stage": "ResponseComplete", "requestURI": pods, "verb": "create",
        "user": {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]},
        "sourceIPs": ["10.0.0.1", "10.0.0.2"], "userAgent": "test",
        "objectRef": {"resource": "pods", "namespace": "default", "name": "a", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 201},
        "requestReceivedTimestamp": "2026-01-02T03:04:05.000000Z", "stageTimestamp": "2026-01-02T03:04:05.000000Z",
        "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""}})
    );
    assert_eq!(lines[1]["impersonatedUser"]["username"], "bob");
    assert_eq!(lines[1]["responseStatus"]["code"], 403);
    assert_eq!(lines[1]["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(lines[2]["verb"], "watch");
    let stages = |id: &str| -> Vec<&str> {
        let own = lines.iter().filter(|it| it["auditID"] == id);
        own.filter_map(|it| it["stage"].as_str()).collect()
    };
    assert_eq!(stages("list"), ["ResponseComplete"]);
    assert_eq!(stages("watch"), ["ResponseStarted", "ResponseComplete"]);
    let refused = lines.last().expect("a line");
    assert_eq!(
        (&refused["auditID"], &refused["responseStatus"]["reason"]),
        (&"four".into(), &"Unauthorized".into())
    );
}

/// Wherever it is that a request panics.
#[test]
fn requests_that_panic_are_audited() {
    let written = Written::default();
    let audit = AuditLog::new(AuditPolicy::everything(), Box::new(written.clone()));
    let setup = ClusterOptions { audit: Some(audit), ..ClusterOptions::default() };
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let counted = Arc::clone(&left);
    let clock = move || {
        assert_ne!(counted.fetch_sub(1, Ordering::Relaxed), 0, "the clock is broken");
        jiff::Timestamp::UNIX_EPOCH
    };
    let limits = StoreLimits::default();
    let options = Options { clock: Arc::new(clock), seed: 1, limits, also_serve: Vec::new() };
    let server = ApiServer::with_cluster_options(options, setup).expect("starts");
    let request = http::Request::get("/openapi/v3/apis/policy/v1").header("audit-id", "mine");
    let request = request.body(bytes::Bytes::new()).expect("a request");
    let mut codes = Vec::new();
    while codes.last() != Some(&200) {
        left.store(codes.len() as i64, Ordering::Relaxed);
        codes.push(block_on(server.handle_durably(&User::admin(), &request)).status().as_u16());
    }
    assert!(codes.len() > 2 && codes.iter().filter(|it| **it == 500).count() == codes.len() - 1);
    let text = String::from_utf8(written.0.lock().expect("whole").clone()).expect("text");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let panicked = lines.iter().find(|it| it["stage"] == "Panic").expect("a line");
    assert_eq!(panicked["auditID"], "mine");
    let status = &panicked["responseStatus"];
    assert_eq!((&status["code"], &status["reason"]), (&500.into(), &"InternalError".into()));
    let message = status["message"].as_str().expect("a message");
    assert!(message.starts_with("APIServer panic'd: ") && message.contains("the clock is broken"));
}
