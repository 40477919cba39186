//! The server behind real sockets on the loopback address: TLS, and who is who.

#![expect(clippy::expect_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use loadmaster_apiserver::auth::User;
use loadmaster_apiserver::http::{Identity, Pki, serve};
use loadmaster_apiserver::store::Limits;
use loadmaster_apiserver::{ApiServer, Options};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

fn server() -> ApiServer {
    let options = Options {
        clock: Arc::new(jiff::Timestamp::now),
        seed: 1,
        limits: Limits::default(),
        also_serve: Vec::new(),
    };
    ApiServer::new(options).expect("starts")
}

fn connector(pki: &Pki, identity: Option<&Identity>) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(pki.authority_pem().as_bytes()).expect("PEM");
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
fn certificates_and_tokens_say_who_asks() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let pki = Arc::new(Pki::new(&["localhost"]).expect("certificates"));
        let ann = pki.client("ann", "readers").expect("a certificate");
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
