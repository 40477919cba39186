//! The server behind real sockets on the loopback address: TLS, and who is who.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use loadmaster_apiserver::authentication::User;
use loadmaster_apiserver::http::{
    CertificateAndKey, FaultInjector, HttpLimits, Pki, serve, serve_with_options,
};
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, Clock, Options};
use loadmaster_serving::ConnectionLimits;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

fn server() -> ApiServer {
    server_with(Arc::new(jiff::Timestamp::now))
}

fn server_with(clock: Clock) -> ApiServer {
    let options =
        Options { clock, seed: 1, limits: StoreLimits::default(), also_serve: Vec::new() };
    ApiServer::new(options).expect("starts")
}

fn connector(pki: &Pki, identity: Option<&CertificateAndKey>) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    let authority =
        CertificateDer::from_pem_slice(pki.ca_certificate_pem().as_bytes()).expect("PEM");
    roots.add(authority).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let certificate =
                CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).expect("PEM");
            config.with_client_auth_cert(vec![certificate], key).expect("a key that fits")
        }
    };
    Arc::new(config).into()
}

/// Sends a request over a connection of its own and returns all of the answer.
async fn ask(
    address: std::net::SocketAddr,
    tls: &TlsConnector,
    path: &str,
    header: &str,
) -> String {
    let stream = TcpStream::connect(address).await.expect("connects");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = tls.connect(name, stream).await.expect("shakes hands");
    let (method, body) = if path == REVIEW { ("POST", "{}") } else { ("GET", "") };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer));
    // A peer that closes without goodbye has still said all.
    let _ = reading.await.expect("in time");
    String::from_utf8(answer).expect("text")
}

#[test]
fn certificates_and_tokens_authenticate() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let pki = Arc::new(Pki::new(&["localhost"], jiff::Timestamp::now()).expect("certificates"));
        let ann = pki.client("ann", "readers", jiff::Timestamp::now()).expect("a certificate");
        let server = server();
        server.tokens().add("secret", User::service_account("default", "robot"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(serve(listener, server, Some(Arc::clone(&pki))));

        let known = connector(&pki, Some(&ann));
        let answer = ask(address, &known, REVIEW, "").await;
        assert!(answer.contains(r#""username":"ann""#), "{answer}");
        assert!(answer.contains(r#""groups":["readers","system:authenticated"]"#), "{answer}");

        let unknown = connector(&pki, None);
        let token = "Authorization: Bearer secret\r\n";
        let answer = ask(address, &unknown, REVIEW, token).await;
        assert!(answer.contains("system:serviceaccount:default:robot"), "{answer}");
        for header in ["", "Authorization: Bearer wrong\r\n"] {
            let answer = ask(address, &unknown, REVIEW, header).await;
            assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        }
        assert!(ask(address, &unknown, "/healthz", "").await.starts_with("HTTP/1.1 200"));
        serving.abort();
    });
}

/// The server's clock is not that of TLS: for the server a certificate ends while a connection lasts.
#[test]
fn a_certificate_that_has_ended_is_rejected_on_an_open_connection() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (hours, now) = (Arc::new(AtomicI64::new(0)), jiff::Timestamp::now());
        let passed = Arc::clone(&hours);
        let server = server_with(Arc::new(move || {
            now + jiff::SignedDuration::from_hours(passed.load(Ordering::Relaxed))
        }));
        let pki = Arc::new(Pki::new(&["localhost"], now).expect("certificates"));
        let ann = pki.client("ann", "readers", now).expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(serve(listener, server, Some(Arc::clone(&pki))));
        let stream = TcpStream::connect(address).await.expect("connects");
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = connector(&pki, Some(&ann));
        let mut stream = tls.connect(name, stream).await.expect("shakes hands");
        let mut check = async |at_hours: i64, want: &str| {
            hours.store(at_hours, Ordering::Relaxed);
            stream.write_all(b"HEAD /api HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("writes");
            let mut bytes = [0; 4096];
            let n = stream.read(&mut bytes).await.expect("reads");
            let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
            assert!(text.starts_with(want), "after {at_hours} h: {text}");
        };
        check(0, "HTTP/1.1 200").await;
        check(7 * 24 - 1, "HTTP/1.1 200").await;
        check(7 * 24 + 1, "HTTP/1.1 401").await;
        serving.abort();
    });
}

/// Sends bytes over a plain connection and returns what comes until the server closes it or is silent.
async fn say(address: std::net::SocketAddr, text: impl AsRef<[u8]>) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(text.as_ref()).await.expect("writes");
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(2), reading).await;
    String::from_utf8(answer).expect("text")
}

#[test]
fn connections_and_requests_are_limited() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let bounds = HttpLimits {
            in_flight: 1,
            watches: 1,
            connections: ConnectionLimits {
                header_bytes_max: 8_192,
                header_time_max: Duration::from_millis(300),
                ..HttpLimits::default().connections
            },
            body_time: Duration::from_millis(600),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let faults = FaultInjector::default();
        let serving = tokio::spawn(serve_with_options(listener, server(), None, bounds, faults));
        let get = |path: &str, more: &str| {
            format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n")
        };

        let long = format!("X-Long: {}\r\n", "x".repeat(9_000));
        assert!(say(address, get("/healthz", &long)).await.starts_with("HTTP/1.1 431"));
        // A client that says nothing is not waited for.
        assert_eq!(say(address, "GET /healthz HTTP/1.1\r\n").await, "");

        // A body that does not come holds the only place, until its time is over.
        let post = "POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n";
        let slow = tokio::spawn(say(address, post));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let refused = say(address, get("/healthz", "")).await;
        assert!(
            refused.starts_with("HTTP/1.1 429") && refused.contains("retry-after: 1"),
            "{refused}"
        );
        assert!(slow.await.expect("ends").contains("the request body was not received in time"));
        assert!(say(address, get("/healthz", "")).await.starts_with("HTTP/1.1 200"));

        // One watch holds no place of a request, but the only one of a watch.
        let watch = get("/api/v1/pods?watch=1", "");
        let first = tokio::spawn(say(address, watch.clone()));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut second = say(address, watch.clone()).await;
        assert!(second.starts_with("HTTP/1.1 429"), "{second}");
        assert!(first.await.expect("ends").starts_with("HTTP/1.1 200"));
        // The first one's client has gone by now.
        tokio::time::sleep(Duration::from_millis(100)).await;
        second = say(address, watch.clone()).await;
        assert!(second.starts_with("HTTP/1.1 200"), "{second}");
        serving.abort();
    });
}

#[test]
fn a_panic_fails_one_request() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let is_broken = Arc::new(AtomicBool::new(false));
        let breaks = Arc::clone(&is_broken);
        let server = server_with(Arc::new(move || {
            assert!(!breaks.load(Ordering::Relaxed), "the clock is broken");
            jiff::Timestamp::now()
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(serve(listener, server, None));
        let mut stream = TcpStream::connect(address).await.expect("connects");
        for (breaks, want, body) in [
            (false, "HTTP/1.1 200 OK\r\n", "\r\n\r\nok"),
            (
                true,
                "HTTP/1.1 500 Internal Server Error\r\n",
                "\r\n\r\nThis request caused apiserver to panic. Look in the logs for details.\n",
            ),
            (false, "HTTP/1.1 200 OK\r\n", "\r\n\r\nok"),
        ] {
            is_broken.store(breaks, Ordering::Relaxed);
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("writes");
            let mut answer = String::new();
            while !answer.ends_with(body) {
                let mut bytes = [0; 4096];
                let reading =
                    tokio::time::timeout(Duration::from_secs(10), stream.read(&mut bytes));
                let n = reading.await.expect("in time").expect("reads");
                assert_ne!(n, 0, "the connection is over: {answer}");
                answer.push_str(std::str::from_utf8(&bytes[..n]).expect("text"));
            }
            assert!(answer.starts_with(want), "{answer}");
        }
        assert!(!serving.is_finished());
        serving.abort();
    });
}
