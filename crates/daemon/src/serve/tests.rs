//! A server on loopback and a client without a library: what goes over the wire.

use std::sync::{PoisonError, RwLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::flags::{Parsed, parse};
use crate::metrics::Settings;
use certificates::Directory;

mod certificates;

/// No test waits longer than this for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A scripted API server: answers by path, and what it was asked.
#[derive(Clone, Default)]
struct Script {
    asked: Arc<RwLock<Vec<ApiCall>>>,
    replies: Arc<Vec<(&'static str, u16, Value)>>,
}

impl Script {
    fn new(replies: &[(&'static str, u16, Value)]) -> Script {
        Script { asked: Arc::default(), replies: Arc::new(replies.to_vec()) }
    }

    fn api(&self) -> Option<Arc<dyn Api>> {
        let script = self.clone();
        Some(Arc::new(move |call: ApiCall| {
            let reply = script.replies.iter().find(|(path, ..)| call.path.ends_with(path));
            let reply =
                reply.map(|(_, status, body)| ApiReply { status: *status, body: body.clone() });
            script.asked.write().unwrap_or_else(PoisonError::into_inner).push(call);
            async move { reply.ok_or_else(|| "connection refused".to_owned()) }
        }))
    }

    fn asked(&self) -> Vec<ApiCall> {
        self.asked.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn options(args: &[&str]) -> Options {
    match parse(["kube-scheduler"].iter().chain(args)).unwrap() {
        Parsed::Run(options) => *options,
        Parsed::Print(text) => panic!("printed {text}"),
    }
}

async fn try_serve(args: &[&str], change: impl FnOnce(&mut Parts)) -> Result<Server, ServeError> {
    let mut args = args.to_vec();
    args.push("--bind-address=127.0.0.1");
    let options = options(&args);
    let loaded = options.load(&loadmaster_plugins::in_tree()).unwrap();
    let metrics = Arc::new(Metrics::new(&Settings::default()).unwrap());
    let mut parts = Parts::new(&options, &loaded, metrics);
    change(&mut parts);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    start_on(listener, &options, parts).await
}

async fn serve(args: &[&str], change: impl FnOnce(&mut Parts)) -> Server {
    try_serve(args, change).await.unwrap()
}

/// All paths are open.
const OPEN: &str = "--authorization-always-allow-paths=/*";

/// Believes any server; remembers nothing.
#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
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
        .with_custom_certificate_verifier(Arc::new(Gullible));
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
    timeout(PATIENCE, connecting).await.unwrap().unwrap()
}

/// One request on a connection of its own; the answer's head and body.
async fn request(
    server: &Server,
    line: &str,
    headers: &str,
    identity: Option<&Identity>,
) -> (String, String) {
    let mut stream = connect(server, "localhost", b"http/1.1", identity).await;
    let (line, body) = line.split_once('|').unwrap_or((line, ""));
    let text = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A connection that ends without saying so has told all the same.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
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
            Reply::text(http::StatusCode::OK, format!("{} {}", it.path, it.query))
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
    assert_eq!(get(&server, "/debug/flags/v").await.0, 404);
    server.shutdown().await;
}

#[tokio::test]
async fn strangers_may_look_at_health_only() {
    let server = serve(&[], |_| ()).await;
    assert_eq!(get(&server, "/healthz").await.0, 200);
    let (status, body) = get(&server, "/metrics").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 403);
    // The words of kube-scheduler 1.36.3.
    let message = "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"";
    assert_eq!(
        body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "Forbidden", "details": {}, "code": 403})
    );
    server.shutdown().await;
}

#[tokio::test]
async fn what_is_explained_is_not_for_everybody() {
    let no = [("subjectaccessreviews", 201, json!({"status": {"allowed": false}}))];
    let script = Script::new(&no);
    let server = serve(&[], |parts| {
        parts.authorization = script.api();
        parts.routes.push(Route::new("/explain", |_| async {
            Reply::text(http::StatusCode::OK, "secret")
        }));
    })
    .await;
    let (status, body) = get(&server, "/explain/ns/pod?last").await;
    assert_eq!((status, body.contains("secret")), (403, false));
    let asked = &script.asked()[0].body.clone().unwrap()["spec"];
    assert_eq!(asked["user"], "system:anonymous");
    let wanted = json!({"path": "/explain/ns/pod", "verb": "get"});
    assert_eq!(asked["nonResourceAttributes"], wanted);
    server.shutdown().await;
}

#[tokio::test]
async fn a_panic_costs_one_answer() {
    let server = serve(&[OPEN], |parts| {
        parts.routes.push(Route::new("/panic", |_| async { panic!("on purpose") }));
    })
    .await;
    assert_eq!(get(&server, "/panic").await.0, 500);
    assert_eq!(get(&server, "/healthz").await.0, 200);
    server.shutdown().await;
}

#[tokio::test]
async fn http2_answers_a_stranger_once() {
    let server = serve(&[], |_| ()).await;
    let stream = connect(&server, "localhost", b"h2", None).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::head("https://localhost/livez").body(Full::<Bytes>::default()).unwrap();
    let response = timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-length"], "2");
    assert!(hyper::body::Body::is_end_stream(response.body()), "no body for HEAD");
    drop(response);
    timeout(PATIENCE, connection).await.expect("the server ends the connection").unwrap().unwrap();
    server.shutdown().await;

    let server = serve(&["--disable-http2-serving"], |_| ()).await;
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(tls::provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    assert!(TlsConnector::from(Arc::new(config)).connect(name, stream).await.is_err());
    server.shutdown().await;
}

#[tokio::test]
async fn tokens_and_permissions_are_reviewed_once() {
    let user = json!({"username": "prometheus", "uid": "7", "groups": ["monitoring"], "extra": {"k": ["v"]}});
    let script = Script::new(&[
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
    let asked = script.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(asked[0].body.as_ref().unwrap()["spec"], json!({"token": "secret"}));
    assert_eq!(
        asked[1].body.as_ref().unwrap()["spec"],
        json!({"user": "prometheus", "uid": "7", "groups": ["monitoring", "system:authenticated"],
            "extra": {"k": ["v"]}, "nonResourceAttributes": {"path": "/configz", "verb": "get"}})
    );
    server.shutdown().await;
}

#[tokio::test]
async fn bad_tokens_denials_and_outages() {
    let denied = json!({"status": {"allowed": false, "reason": "no RBAC policy matched"}});
    let script = Script::new(&[
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

    let broken = Script::new(&[("subjectaccessreviews", 400, json!({"message": "no"}))]);
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
async fn reviews_are_tried_again() {
    let script = Script::new(&[("reviews", 429, json!({"message": "later"}))]);
    let api = script.api().unwrap();
    let answers = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let record = |code: Option<u16>, _: f64| {
        assert_eq!(code, Some(429));
        answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let error = api::review(api.as_ref(), "/reviews", json!({}), record).await.unwrap_err();
    assert_eq!(error, "/reviews: status 429: later");
    assert_eq!(answers.load(std::sync::atomic::Ordering::Relaxed), 5);
}

#[tokio::test]
async fn what_cannot_be_served() {
    let directory = Directory::new("bad");
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
        let error = try_serve(&args, |_| ()).await.err().expect("refused").to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[tokio::test]
async fn port_0_is_off_and_a_taken_port_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = format!("--secure-port={}", taken.local_addr().unwrap().port());
    let metrics = || Arc::new(Metrics::new(&Settings::default()).unwrap());
    let at = |args: &[&str]| {
        let options = options(args);
        let loaded = options.load(&loadmaster_plugins::in_tree()).unwrap();
        let parts = Parts::new(&options, &loaded, metrics());
        (options, parts)
    };
    let (off, parts) = at(&["--secure-port=0"]);
    assert!(start(&off, parts).await.unwrap().is_none());
    let (on, parts) = at(&[&port, "--bind-address=127.0.0.1"]);
    let error = start(&on, parts).await.err().unwrap();
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
                Reply::text(http::StatusCode::OK, "done")
            }
        }));
    })
    .await;
    let mut stream = connect(&server, "localhost", b"http/1.1", None).await;
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    timeout(PATIENCE, gate.notified()).await.unwrap();
    let shutdown = tokio::spawn(server.shutdown());
    go.notify_one();
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap();
    assert!(String::from_utf8_lossy(&answer).ends_with("done"));
    timeout(PATIENCE, shutdown).await.unwrap().unwrap();
}
