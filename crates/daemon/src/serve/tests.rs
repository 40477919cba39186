//! Tests of the server over loopback, with a minimal HTTP client.

use std::sync::{PoisonError, RwLock};

use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::flags::{ParsedCommandLine, parse_command_line};
use crate::metrics::MetricsSettings;
use certificates::TempDirectory;

mod certificates;
mod cpu_profile;

/// How long a test waits for a response.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A scripted API server: responses by path, and the requests it received.
#[derive(Clone, Default)]
struct ScriptedApi {
    received: Arc<RwLock<Vec<ReviewRequest>>>,
    replies: Arc<Vec<(&'static str, u16, Value)>>,
}

impl ScriptedApi {
    fn new(replies: &[(&'static str, u16, Value)]) -> ScriptedApi {
        ScriptedApi { received: Arc::default(), replies: Arc::new(replies.to_vec()) }
    }

    fn api(&self) -> Option<Arc<dyn ReviewClient>> {
        let script = self.clone();
        Some(Arc::new(move |call: ReviewRequest| {
            let reply = script.replies.iter().find(|(path, ..)| call.path.ends_with(path));
            let reply = reply
                .map(|(_, status, body)| ReviewResponse { status: *status, body: body.clone() });
            script.received.write().unwrap_or_else(PoisonError::into_inner).push(call);
            async move { reply.ok_or_else(|| "connection refused".to_owned()) }
        }))
    }

    fn requests(&self) -> Vec<ReviewRequest> {
        self.received.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn options(args: &[&str]) -> Options {
    match parse_command_line(["kube-scheduler"].iter().chain(args)).unwrap() {
        ParsedCommandLine::Run(options) => *options,
        ParsedCommandLine::Print(text) => panic!("printed {text}"),
    }
}

async fn try_serve(
    args: &[&str],
    change: impl FnOnce(&mut EndpointsConfig),
) -> Result<Server, ServeError> {
    let mut args = args.to_vec();
    args.push("--bind-address=127.0.0.1");
    let options = options(&args);
    let loaded = options.load_config(&loadmaster_plugins::in_tree_registry()).unwrap();
    let metrics = Arc::new(Metrics::new(&MetricsSettings::default()).unwrap());
    let mut parts = EndpointsConfig::new(&options, &loaded, metrics);
    change(&mut parts);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    start_server_on(listener, &options, parts).await
}

async fn serve(args: &[&str], change: impl FnOnce(&mut EndpointsConfig)) -> Server {
    try_serve(args, change).await.unwrap()
}

/// All paths are always allowed.
const OPEN: &str = "--authorization-always-allow-paths=/*";

/// Accepts any server certificate.
#[derive(Debug)]
struct SkipTlsVerification;

impl ServerCertVerifier for SkipTlsVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        tls::provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A certificate and its key, as DER.
type Identity = (CertificateDer<'static>, PrivateKeyDer<'static>);

async fn connect(
    server: &Server,
    name: &str,
    alpn: &[u8],
    identity: Option<&Identity>,
) -> TlsStream<TcpStream> {
    let builder = ClientConfig::builder_with_provider(Arc::new(tls::provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(SkipTlsVerification));
    let mut config = match identity {
        Some((cert, key)) => {
            builder.with_client_auth_cert(vec![cert.clone()], key.clone_key()).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    timeout(TEST_TIMEOUT, connecting).await.unwrap().unwrap()
}

/// Sends one request on a new connection; returns head and body of the response.
async fn request(
    server: &Server,
    line: &str,
    headers: &str,
    identity: Option<&Identity>,
) -> (String, String) {
    let (head, body) = request_bytes(server, line, headers, identity).await;
    (head, String::from_utf8(body).unwrap())
}

/// As [`request`], for a body that is not text.
async fn request_bytes(
    server: &Server,
    line: &str,
    headers: &str,
    identity: Option<&Identity>,
) -> (String, Vec<u8>) {
    let mut stream = connect(server, "localhost", b"http/1.1", identity).await;
    let (line, body) = line.split_once('|').unwrap_or((line, ""));
    let text = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    // Ignore a missing TLS close_notify.
    let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await.unwrap();
    let end = response.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
    let body = response.split_off(end + 4);
    (String::from_utf8(response).unwrap().trim_end().to_owned(), body)
}

async fn get(server: &Server, path: &str) -> (u16, String) {
    let (head, body) = request(server, &format!("GET {path}"), "", None).await;
    (status_of(&head), body)
}

fn status_of(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn endpoints_over_tls() {
    let level = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let set = level.clone();
    let server = serve(&[OPEN, "--profiling"], |parts| {
        parts.set_verbosity =
            Arc::new(move |to| set.store(to, std::sync::atomic::Ordering::Relaxed));
        parts.routes.push(Route::new("/explain", |it: RouteRequest| async move {
            HttpReply::text(http::StatusCode::OK, format!("{} {}", it.path, it.query))
        }));
    })
    .await;
    assert_eq!(get(&server, "/healthz").await, (200, "ok".to_owned()));
    assert_eq!(get(&server, "/nope").await, (404, "404 page not found\n".to_owned()));
    let (status, metrics) = get(&server, "/metrics").await;
    assert_eq!(status, 200);
    assert!(metrics.contains("authentication_attempts{result=\"success\"} 3"), "{metrics}");
    assert!(
        get(&server, "/metrics/slis")
            .await
            .1
            .contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1")
    );
    assert_eq!(get(&server, "/metrics/resources").await, (200, String::new()));
    let configz: Value = serde_json::from_str(&get(&server, "/configz").await.1).unwrap();
    assert_eq!(configz["componentconfig"]["kind"], "KubeSchedulerConfiguration");
    assert!(get(&server, "/flagz").await.1.contains("\nauthorization-always-allow-paths=[/*]\n"));
    assert!(get(&server, "/statusz").await.1.contains("Binary version: 1.36.3"));
    assert_eq!(get(&server, "/explain/ns/pod?x=1").await, (200, "/explain/ns/pod x=1".to_owned()));
    assert_eq!(get(&server, "/explained").await.0, 404);
    assert_eq!(get(&server, "/debug/pprof/heap").await.0, 501);
    let put = |body: &'static str| format!("PUT /debug/flags/v|{body}");
    let (head, body) = request(&server, &put("5"), "", None).await;
    assert_eq!(
        (status_of(&head), body.as_str()),
        (200, "successfully set klog.logging.verbosity to 5\n")
    );
    assert!(head.contains("cache-control: no-cache, private"), "{head}");
    assert_eq!(level.load(std::sync::atomic::Ordering::Relaxed), 5);
    let (head, body) = request(&server, &put("abc"), "", None).await;
    let wrong = "strconv.ParseUint: parsing \"abc\": invalid syntax\n";
    assert_eq!((status_of(&head), body.as_str()), (400, wrong));
    assert_eq!(get(&server, "/debug/flags/v").await.0, 406);
    let (_, body) = request(&server, "DELETE /metrics", "", None).await;
    assert_eq!(body, "metrics reset\n");
    server.shutdown().await;
}

#[tokio::test]
async fn without_profiling_there_is_no_debug() {
    let server = serve(&[OPEN, "--profiling=false"], |_| ()).await;
    assert_eq!(get(&server, "/debug/pprof/").await.0, 404);
    assert_eq!(get(&server, "/debug/pprof/profile?seconds=1").await.0, 404);
    assert_eq!(get(&server, "/debug/flags/v").await.0, 404);
    server.shutdown().await;
}

#[tokio::test]
async fn anonymous_users_are_authorized_for_health_only() {
    let server = serve(&[], |_| ()).await;
    assert_eq!(get(&server, "/healthz").await.0, 200);
    let (status, body) = get(&server, "/metrics").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 403);
    // The message of kube-scheduler 1.36.3.
    let message = "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"";
    assert_eq!(
        body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "Forbidden", "details": {}, "code": 403})
    );
    server.shutdown().await;
}

#[tokio::test]
async fn explain_requires_authorization() {
    let no = [("subjectaccessreviews", 201, json!({"status": {"allowed": false}}))];
    let script = ScriptedApi::new(&no);
    let server = serve(&[], |parts| {
        parts.authorization = script.api();
        parts.routes.push(Route::new("/explain", |_| async {
            HttpReply::text(http::StatusCode::OK, "secret")
        }));
    })
    .await;
    let (status, body) = get(&server, "/explain/ns/pod?last").await;
    assert_eq!((status, body.contains("secret")), (403, false));
    let review = &script.requests()[0].body.clone().unwrap()["spec"];
    assert_eq!(review["user"], "system:anonymous");
    let wanted = json!({"path": "/explain/ns/pod", "verb": "get"});
    assert_eq!(review["nonResourceAttributes"], wanted);
    server.shutdown().await;
}

#[tokio::test]
async fn a_panic_fails_one_request() {
    let server = serve(&[OPEN], |parts| {
        parts.routes.push(Route::new("/panic", |_| async { panic!("on purpose") }));
    })
    .await;
    assert_eq!(get(&server, "/panic").await.0, 500);
    assert_eq!(get(&server, "/healthz").await.0, 200);
    server.shutdown().await;
}

#[tokio::test]
async fn http2_closes_an_anonymous_connection_after_one_response() {
    let server = serve(&[], |_| ()).await;
    let stream = connect(&server, "localhost", b"h2", None).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::head("https://localhost/livez").body(Full::<Bytes>::default()).unwrap();
    let response = timeout(TEST_TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-length"], "2");
    assert!(hyper::body::Body::is_end_stream(response.body()), "no body for HEAD");
    drop(response);
    timeout(TEST_TIMEOUT, connection)
        .await
        .expect("the server ends the connection")
        .unwrap()
        .unwrap();
    server.shutdown().await;

    let server = serve(&["--disable-http2-serving"], |_| ()).await;
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(tls::provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(SkipTlsVerification))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    assert!(TlsConnector::from(Arc::new(config)).connect(name, stream).await.is_err());
    server.shutdown().await;
}

#[tokio::test]
async fn token_and_access_reviews_are_cached() {
    let user = json!({"username": "prometheus", "uid": "7", "groups": ["monitoring"], "extra": {"k": ["v"]}});
    let script = ScriptedApi::new(&[
        ("tokenreviews", 201, json!({"status": {"authenticated": true, "user": user}})),
        ("subjectaccessreviews", 201, json!({"status": {"allowed": true}})),
    ]);
    let server = serve(&["--authentication-skip-lookup"], |parts| {
        parts.authentication = script.api();
        parts.authorization = script.api();
    })
    .await;
    for _ in 0..3 {
        let (head, _) =
            request(&server, "GET /configz", "Authorization: Bearer secret\r\n", None).await;
        assert_eq!(status_of(&head), 200);
    }
    let requests = script.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert_eq!(requests[0].body.as_ref().unwrap()["spec"], json!({"token": "secret"}));
    assert_eq!(
        requests[1].body.as_ref().unwrap()["spec"],
        json!({"user": "prometheus", "uid": "7", "groups": ["monitoring", "system:authenticated"],
            "extra": {"k": ["v"]}, "nonResourceAttributes": {"path": "/configz", "verb": "get"}})
    );
    server.shutdown().await;
}

#[tokio::test]
async fn bad_tokens_denials_and_outages() {
    let denied = json!({"status": {"allowed": false, "reason": "no RBAC policy matched"}});
    let script = ScriptedApi::new(&[
        ("tokenreviews", 201, json!({"status": {"authenticated": false}})),
        ("subjectaccessreviews", 201, denied),
    ]);
    let server = serve(&["--authentication-skip-lookup"], |parts| {
        parts.authentication = script.api();
        parts.authorization = script.api();
    })
    .await;
    let bearer = "Authorization: Bearer wrong\r\n";
    let (head, body) = request(&server, "GET /healthz", bearer, None).await;
    assert_eq!(status_of(&head), 401);
    assert!(body.contains("\"message\": \"Unauthorized\""), "{body}");
    let (status, body) = get(&server, "/metrics").await;
    assert_eq!(status, 403);
    assert!(body.contains("cannot get path \\\"/metrics\\\": no RBAC policy matched"), "{body}");
    server.shutdown().await;

    let broken = ScriptedApi::new(&[("subjectaccessreviews", 400, json!({"message": "no"}))]);
    let server = serve(&["--authentication-skip-lookup"], |parts| {
        parts.authorization = broken.api();
    })
    .await;
    let (status, body) = get(&server, "/metrics").await;
    assert_eq!(status, 500);
    assert!(body.starts_with("Internal Server Error: \"/metrics\""), "{body}");
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reviews_are_retried() {
    let script = ScriptedApi::new(&[("reviews", 429, json!({"message": "later"}))]);
    let api = script.api().unwrap();
    let attempts = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let record = |code: Option<u16>, _: f64| {
        assert_eq!(code, Some(429));
        attempts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let error =
        review_client::review(api.as_ref(), "/reviews", json!({}), record).await.unwrap_err();
    assert_eq!(error, "/reviews: status 429: later");
    assert_eq!(attempts.load(std::sync::atomic::Ordering::Relaxed), 5);
}

#[tokio::test]
async fn invalid_tls_files_and_flags_are_rejected() {
    let directory = TempDirectory::new("bad");
    let bad = directory.write("bad.pem", "nothing");
    for (args, want) in [
        (vec!["--tls-cipher-suites=FOO".to_owned()], "Cipher suite FOO not supported"),
        (vec![format!("--client-ca-file={bad}")], "unable to load client CA provider"),
        (
            vec![format!("--tls-cert-file={bad}"), format!("--tls-private-key-file={bad}")],
            "it holds no certificate",
        ),
        (
            vec!["--tls-cert-file=/nope/x".to_owned(), "--tls-private-key-file=/nope/y".to_owned()],
            "/nope/x",
        ),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let error = try_serve(&args, |_| ()).await.err().expect("an error").to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[tokio::test]
async fn port_0_is_off_and_a_taken_port_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = format!("--secure-port={}", taken.local_addr().unwrap().port());
    let metrics = || Arc::new(Metrics::new(&MetricsSettings::default()).unwrap());
    let at = |args: &[&str]| {
        let options = options(args);
        let loaded = options.load_config(&loadmaster_plugins::in_tree_registry()).unwrap();
        let parts = EndpointsConfig::new(&options, &loaded, metrics());
        (options, parts)
    };
    let (off, parts) = at(&["--secure-port=0"]);
    assert!(start_server(&off, parts).await.unwrap().is_none());
    let (on, parts) = at(&[&port, "--bind-address=127.0.0.1"]);
    let error = start_server(&on, parts).await.err().unwrap();
    assert!(error.to_string().starts_with("failed to create listener on 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn a_request_in_flight_is_answered_while_shutting_down() {
    let (go, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (waiting, entered) = (go.clone(), gate.clone());
    let server = serve(&[OPEN], |parts| {
        parts.routes.push(Route::new("/slow", move |_| {
            let (waiting, entered) = (waiting.clone(), entered.clone());
            async move {
                entered.notify_one();
                waiting.notified().await;
                HttpReply::text(http::StatusCode::OK, "done")
            }
        }));
    })
    .await;
    let mut stream = connect(&server, "localhost", b"http/1.1", None).await;
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    timeout(TEST_TIMEOUT, gate.notified()).await.unwrap();
    let shutdown = tokio::spawn(server.shutdown());
    go.notify_one();
    let mut response = Vec::new();
    let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await.unwrap();
    assert!(String::from_utf8_lossy(&response).ends_with("done"));
    timeout(TEST_TIMEOUT, shutdown).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_liveness_probe_is_answered_with_1000_idle_connections() {
    // Two file descriptors for each connection.
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limits.maximum, ..limits };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let server = serve(&[], |_| ()).await;
    let mut before_handshake = Vec::new();
    for _ in 0..1_000 {
        before_handshake.push(TcpStream::connect(server.address()).await.unwrap());
    }
    // At once: not when the handshakes of the others have timed out.
    let probe = timeout(Duration::from_secs(5), get(&server, "/livez"));
    assert_eq!(probe.await.unwrap(), (200, "ok".to_owned()));
    let mut after_handshake = Vec::new();
    for at in 0..60 {
        let alpn: &[u8] = if at % 2 == 0 { b"h2" } else { b"http/1.1" };
        after_handshake.push(connect(&server, "localhost", alpn, None).await);
    }
    assert_eq!(get(&server, "/livez").await, (200, "ok".to_owned()));
    server.shutdown().await;
}
