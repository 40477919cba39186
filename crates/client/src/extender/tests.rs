//! Calls to a server with injected faults.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// How the server handles each request on a connection.
#[derive(Clone, Copy)]
enum Script {
    /// Writes this, and waits for the next request.
    Respond(&'static str),
    /// Writes this, and closes the connection.
    RespondAndClose(&'static str),
    /// Writes this, and then nothing more.
    RespondAndStall(&'static str),
    /// Writes an endless body.
    Endless,
}

/// Starts a server; its URL, and the number of connections that it has accepted.
async fn server(script: Script) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let n_connections = Arc::new(AtomicUsize::new(0));
    let counted = n_connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(serve_connection(script, stream));
        }
    });
    (url, n_connections)
}

async fn serve_connection(script: Script, mut stream: TcpStream) {
    let mut received = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).await {
            Ok(n) if n > 0 => received.extend_from_slice(&chunk[..n]),
            _ => return,
        }
        // The request body of every test ends so.
        if !received.ends_with(b"}") {
            continue;
        }
        received.clear();
        let (Script::Respond(text) | Script::RespondAndClose(text) | Script::RespondAndStall(text)) =
            script
        else {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while stream.write_all(&[b' '; 1 << 16]).await.is_ok() {}
            return;
        };
        let _ = stream.write_all(text.as_bytes()).await;
        match script {
            Script::RespondAndClose(_) => return,
            Script::RespondAndStall(_) => std::future::pending().await,
            _ => {}
        }
    }
}

fn client(url: &str, rest: serde_json::Value) -> Result<ExtenderClient, ExtenderError> {
    let mut config = json!({"urlPrefix": url});
    for (key, value) in rest.as_object().unwrap() {
        config[key] = value.clone();
    }
    ExtenderClient::new(&serde_json::from_value(config).unwrap())
}

async fn call_filter(
    client: &ExtenderClient,
    url: &str,
    timeout: Duration,
) -> Result<String, String> {
    let url = format!("{url}/filter");
    let body = vec![Bytes::from_static(b"{"), Bytes::from_static(b"}")];
    let response = client.call("filter", &url, body, timeout).await;
    response.map(|body| String::from_utf8_lossy(&body).into_owned())
}

const SOON: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(60);

/// The result of a call to a server with this script; its URL is `URL` in errors.
async fn check(script: Script, timeout: Duration, want: Result<&str, &str>) {
    let (url, _) = server(script).await;
    let found = call_filter(&client(&url, json!({})).unwrap(), &url, timeout).await;
    let found = found.map_err(|error| error.replace(&url, "URL"));
    assert_eq!(found.as_deref().map_err(String::as_str), want);
}

#[tokio::test]
async fn responses_and_transport_errors() {
    use Script::{Endless, Respond, RespondAndClose, RespondAndStall};
    check(Respond("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"), LATE, Ok("{}")).await;
    let chunks =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
    check(Respond(chunks), LATE, Ok("{}")).await;
    check(RespondAndClose("HTTP/1.1 200 OK\r\n\r\n{}"), LATE, Ok("{}")).await;
    let code = |code| Err(code);
    let failed = "failed filter with extender at URL URL/filter, code 500";
    check(Respond("HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n"), LATE, code(failed)).await;
    let failed = "failed filter with extender at URL URL/filter, code 201";
    check(Respond("HTTP/1.1 201 X\r\ncontent-length: 0\r\n\r\n"), LATE, code(failed)).await;
    let redirect = "HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    let failed = "failed filter with extender at URL URL/filter, code 307";
    check(Respond(redirect), LATE, code(failed)).await;
    check(RespondAndClose(""), LATE, Err(r#"Post "URL/filter": EOF"#)).await;
    let cut = RespondAndClose("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"");
    check(cut, LATE, Err("unexpected EOF")).await;
    // The JSON value is complete.
    let cut = RespondAndClose("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}");
    check(cut, LATE, Ok("{}")).await;
    let stalled = RespondAndStall("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{} ");
    check(stalled, SOON, Ok("{} ")).await;
    check(
        RespondAndStall(""),
        SOON,
        Err(r#"Post "URL/filter": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"#),
    )
    .await;
    check(
        RespondAndStall("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\""),
        SOON,
        Err(
            "context deadline exceeded (Client.Timeout or context cancellation while reading body)",
        ),
    )
    .await;
    check(Endless, LATE, Err("the response is longer than 16777220 bytes")).await;
    check(
        RespondAndStall(""),
        Duration::ZERO,
        Err(r#"Post "URL/filter": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"#),
    )
    .await;
}

#[tokio::test]
async fn user_and_password_of_the_url_are_sent_and_not_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let received = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"{}") {
            stream.read_buf(&mut received).await.unwrap();
        }
        String::from_utf8_lossy(&received).into_owned()
    });
    let url = format!("http://me:se%3Acret%@{at}");
    let error = call_filter(&client(&url, json!({})).unwrap(), &url, LATE).await.unwrap_err();
    assert_eq!(error, format!("Post \"http://me:***@{at}/filter\": EOF"));
    let received = received.await.unwrap();
    let want = format!("authorization: Basic {}\r\n", STANDARD.encode("me:se:cret%"));
    assert!(received.contains(&want), "{received}");
    let config = json!({"tlsConfig": {"caFile": "/nowhere"}});
    let error = client("https://me:secret@e", config).err().unwrap().to_string();
    assert!(error.starts_with("extender \"https://me:***@e\": "), "{error}");
}

#[tokio::test]
async fn idle_connections_are_reused() {
    let (url, n_connections) =
        server(Script::Respond("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")).await;
    let it = client(&url, json!({})).unwrap();
    for _ in 0..5 {
        call_filter(&it, &url, LATE).await.unwrap();
    }
    assert_eq!(n_connections.load(Ordering::SeqCst), 1);
    // A connection that the server closed is replaced.
    let (url, n_connections) = server(Script::RespondAndClose(
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
    ))
    .await;
    let it = client(&url, json!({})).unwrap();
    for _ in 0..3 {
        call_filter(&it, &url, LATE).await.unwrap();
    }
    assert_eq!(n_connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn an_unreachable_extender_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}");
    let found = call_filter(&client(&url, json!({})).unwrap(), &url, LATE).await;
    let want = format!("Post \"{url}/filter\": dial tcp {address}: connect: connection refused");
    assert_eq!(found, Err(want));
    for (url, text) in [
        ("x", "unsupported protocol scheme \"\""),
        ("ftp://x", "unsupported protocol scheme \"ftp\""),
    ] {
        let found = call_filter(&client(url, json!({})).unwrap(), url, LATE).await;
        assert_eq!(found, Err(format!("Post \"{url}/filter\": {text}")));
    }
}

/// An HTTPS server with a self-signed certificate: its URL, and the certificate as PEM.
async fn https(name: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
    let pem = certificate.pem();
    let der = certificate.der().clone();
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![der], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut received = [0; 4096];
            let _ = stream.read(&mut received).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
            let _ = stream.flush().await;
            // Until the client has read it.
            let _ = stream.read(&mut received).await;
        }
    });
    (url, pem)
}

#[tokio::test]
async fn tls_settings() {
    let (url, pem) = https("extender.example").await;
    let ca = STANDARD.encode(&pem);
    let check = async |config: serde_json::Value, want: bool| {
        let found = call_filter(&client(&url, config.clone()).unwrap(), &url, LATE).await;
        assert_eq!(found.is_ok(), want, "{config}: {found:?}");
    };
    check(json!({"tlsConfig": {"caData": ca, "serverName": "extender.example"}}), true).await;
    // The certificate is not valid for the address.
    check(json!({"tlsConfig": {"caData": ca}}), false).await;
    check(json!({"tlsConfig": {"insecure": true}}), true).await;
    check(json!({"enableHTTPS": true}), true).await;
    check(
        json!({"enableHTTPS": true, "tlsConfig": {"caData": ca, "serverName": "other.example"}}),
        false,
    )
    .await;
    check(json!({}), false).await;
    let error = |config| client(&url, config).err().map(|error| error.text).unwrap();
    assert_eq!(
        error(json!({"tlsConfig": {"insecure": true, "caData": ca}})),
        "specifying a root certificates file with the insecure flag is not allowed"
    );
    assert!(error(json!({"tlsConfig": {"caFile": "/nowhere"}})).starts_with("open /nowhere: "));
    let nothing = STANDARD.encode("nothing");
    assert!(
        error(json!({"tlsConfig": {"caData": nothing}}))
            .contains("unable to parse bytes as PEM block")
    );
}

#[tokio::test]
async fn certificates_that_were_replaced_are_read_again() {
    let ((_, old), (url, new)) = (https("extender.example").await, https("extender.example").await);
    let file = std::env::temp_dir().join(format!("loadmaster-extender-{}.pem", std::process::id()));
    std::fs::write(&file, old).unwrap();
    let tls_config = json!({"caFile": file, "serverName": "extender.example"});
    let client = client(&url, json!({"tlsConfig": tls_config})).unwrap();
    let refused = call_filter(&client, &url, LATE).await.unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
    std::fs::write(&file, new).unwrap();
    // This call notices that the certificate is not accepted; the next one has the new file.
    assert!(call_filter(&client, &url, LATE).await.is_err());
    assert!(call_filter(&client, &url, LATE).await.is_ok());
    std::fs::remove_file(&file).unwrap();
}
