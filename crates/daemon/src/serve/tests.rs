//! A server on loopback and a client without a library: what goes over the wire.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
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

/// A CA, and certificates it signed.
struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    fn new() -> Ca {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { pem, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, names: &[&str], common_name: &str, organization: &str) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        if !organization.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        (cert.pem(), key.serialize_pem())
    }

    fn client(&self, common_name: &str, organization: &str) -> Identity {
        let (cert, key) = self.sign(&[], common_name, organization);
        let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
        (cert, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
    }
}

/// A directory that is gone with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path =
            std::env::temp_dir().join(format!("loadmaster-serve-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn client_certificates_name_users() {
    let (ca, other) = (Ca::new(), Ca::new());
    let directory = Directory::new("client-ca");
    let flag = format!("--client-ca-file={}", directory.write("ca.crt", &ca.pem));
    let server = serve(&[&flag], |_| ()).await;
    let status = async |identity: Option<&Identity>, path: &str| {
        status_of(&request(&server, &format!("GET {path}"), "", identity).await.0)
    };
    assert_eq!(status(Some(&ca.client("root", "system:masters")), "/metrics").await, 200);
    assert_eq!(status(Some(&ca.client("jane", "devs")), "/metrics").await, 403);
    assert_eq!(status(Some(&ca.client("jane", "devs")), "/healthz").await, 200);
    assert_eq!(status(Some(&other.client("root", "system:masters")), "/healthz").await, 401);
    assert_eq!(status(None, "/healthz").await, 200);
    // A new CA in the file is believed, the old one no longer.
    directory.write("ca.crt", &other.pem);
    server.reload().unwrap();
    assert_eq!(status(Some(&other.client("root", "system:masters")), "/metrics").await, 200);
    assert_eq!(status(Some(&ca.client("root", "system:masters")), "/metrics").await, 401);
    server.shutdown().await;
}

#[tokio::test]
async fn front_proxies_name_users_in_headers() {
    let (users, proxies) = (Ca::new(), Ca::new());
    let lists = |names: &[&str]| json!(names).to_string();
    let config_map = json!({"data": {
        "client-ca-file": users.pem,
        "requestheader-client-ca-file": proxies.pem,
        "requestheader-allowed-names": lists(&["front-proxy-client"]),
        "requestheader-username-headers": lists(&["X-Remote-User"]),
        "requestheader-group-headers": lists(&["X-Remote-Group"]),
        "requestheader-extra-headers-prefix": lists(&["X-Remote-Extra-"]),
    }});
    let script = Script::new(&[("extension-apiserver-authentication", 200, config_map)]);
    let reviews =
        Script::new(&[("subjectaccessreviews", 201, json!({"status": {"allowed": true}}))]);
    let server = serve(&[], |parts| {
        parts.authentication = script.api();
        parts.authorization = reviews.api();
    })
    .await;
    let headers =
        "X-Remote-User: jane\r\nX-Remote-Group: devs\r\nX-Remote-Extra-Example.com%2fscope: a\r\n";
    let proxy = proxies.client("front-proxy-client", "");
    assert_eq!(status_of(&request(&server, "GET /configz", headers, Some(&proxy)).await.0), 200);
    let spec = reviews.asked()[0].body.as_ref().unwrap()["spec"].clone();
    assert_eq!(spec["user"], "jane");
    assert_eq!(spec["groups"], json!(["devs", "system:authenticated"]));
    assert_eq!(spec["extra"], json!({"example.com/scope": ["a"]}));
    // Neither a proxy of another name nor a user may speak for others.
    let impostor = proxies.client("other", "");
    assert_eq!(status_of(&request(&server, "GET /configz", headers, Some(&impostor)).await.0), 401);
    let user = users.client("joe", "");
    assert_eq!(status_of(&request(&server, "GET /configz", headers, Some(&user)).await.0), 200);
    assert_eq!(reviews.asked()[1].body.as_ref().unwrap()["spec"]["user"], "joe");
    server.shutdown().await;
}

#[tokio::test]
async fn a_lookup_that_is_forbidden() {
    let forbidden = json!({"message": "configmaps is forbidden"});
    let script = Script::new(&[("extension-apiserver-authentication", 403, forbidden)]);
    let strict = "--authentication-tolerate-lookup-failure=false";
    let error =
        try_serve(&[strict], |parts| parts.authentication = script.api()).await.err().unwrap();
    let text = error.to_string();
    assert!(text.contains("configmaps is forbidden"), "{text}");
    assert!(text.contains("Role extension-apiserver-authentication-reader"), "{text}");
    let server = serve(&[], |parts| parts.authentication = script.api()).await;
    assert_eq!(get(&server, "/healthz").await.0, 200);
    server.shutdown().await;
}

/// The common name of the certificate that is shown for a name.
async fn shown(server: &Server, name: &str) -> String {
    let stream = connect(server, name, b"http/1.1", None).await;
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    user::Subject::read(&chain[0]).unwrap().common_name
}

#[tokio::test]
async fn certificates_by_name_and_when_files_change() {
    let ca = Ca::new();
    let directory = Directory::new("certificates");
    let pair = |name: &str, dns: &[&str], common_name: &str| {
        let (cert, key) = ca.sign(dns, common_name, "");
        (
            directory.write(&format!("{name}.crt"), &cert),
            directory.write(&format!("{name}.key"), &key),
        )
    };
    let (cert, key) = pair("main", &["main.test"], "main");
    let (a_cert, a_key) = pair("a", &["a.test", "*.w.test"], "a");
    let (b_cert, b_key) = pair("b", &["a.test"], "b");
    let server = serve(
        &[
            &format!("--tls-cert-file={cert}"),
            &format!("--tls-private-key-file={key}"),
            &format!("--tls-sni-cert-key={a_cert},{a_key}"),
            &format!("--tls-sni-cert-key={b_cert},{b_key}:b.test,x.w.test"),
        ],
        |_| (),
    )
    .await;
    for (name, want) in [
        ("main.test", "main"),
        ("a.test", "a"),
        ("b.test", "b"),
        ("y.w.test", "a"),
        ("x.w.test", "b"),
        ("z", "main"),
    ] {
        assert_eq!(shown(&server, name).await, want, "{name}");
    }
    assert!(!server.reload().unwrap());
    pair("main", &["main.test"], "renewed");
    assert!(server.reload().unwrap());
    assert_eq!(shown(&server, "main.test").await, "renewed");
    directory.write("main.key", "broken");
    assert!(server.reload().is_err());
    assert_eq!(shown(&server, "main.test").await, "renewed", "what works stays");
    server.shutdown().await;
}

#[tokio::test]
async fn a_certificate_is_made_and_kept_in_a_directory() {
    let directory = Directory::new("made");
    let flag = format!("--cert-dir={}", directory.0.display());
    let first = serve(&[&flag], |_| ()).await;
    let der =
        |stream: TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let made = der(connect(&first, "localhost", b"http/1.1", None).await);
    first.shutdown().await;
    let second = serve(&[&flag], |_| ()).await;
    assert_eq!(der(connect(&second, "localhost", b"http/1.1", None).await), made);
    second.shutdown().await;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let key = std::fs::metadata(directory.0.join("kube-scheduler.key")).unwrap();
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
    }
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
