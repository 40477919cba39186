//! Calls on a server that misbehaves.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// What the server does with each request on a connection.
#[derive(Clone, Copy)]
enum Script {
    /// Writes this, and waits for the next request.
    Say(&'static str),
    /// Writes this, and closes the connection.
    SayAndClose(&'static str),
    /// Writes this, and then nothing for ever.
    SayAndWait(&'static str),
    /// Writes body for ever.
    Endless,
}

/// A server, its URL, and how many connections it has had.
async fn server(script: Script) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let n_connections = Arc::new(AtomicUsize::new(0));
    let counted = n_connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(play(script, stream));
        }
    });
    (url, n_connections)
}

async fn play(script: Script, mut stream: TcpStream) {
    let mut heard = Vec::new();
    loop {
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(n) if n > 0 => heard.extend_from_slice(&piece[..n]),
            _ => return,
        }
        // Every test's question ends so.
        if !heard.ends_with(b"}") {
            continue;
        }
        heard.clear();
        let (Script::Say(text) | Script::SayAndClose(text) | Script::SayAndWait(text)) = script
        else {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while stream.write_all(&[b' '; 1 << 16]).await.is_ok() {}
            return;
        };
        let _ = stream.write_all(text.as_bytes()).await;
        match script {
            Script::SayAndClose(_) => return,
            Script::SayAndWait(_) => std::future::pending().await,
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

async fn ask(client: &ExtenderClient, url: &str, timeout: Duration) -> Result<String, String> {
    let url = format!("{url}/filter");
    let body = vec![Bytes::from_static(b"{"), Bytes::from_static(b"}")];
    let answer = client.call("filter", &url, body, timeout).await;
    answer.map(|body| String::from_utf8_lossy(&body).into_owned())
}

const SOON: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(60);

/// What a server's behaviour comes to; its URL is `URL` in errors.
async fn check(script: Script, timeout: Duration, want: Result<&str, &str>) {
    let (url, _) = server(script).await;
    let found = ask(&client(&url, json!({})).unwrap(), &url, timeout).await;
    let found = found.map_err(|error| error.replace(&url, "URL"));
    assert_eq!(found.as_deref().map_err(String::as_str), want);
}

#[tokio::test]
async fn what_a_server_may_do() {
    use Script::{Endless, Say, SayAndClose, SayAndWait};
    check(Say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"), LATE, Ok("{}")).await;
    let chunks =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
    check(Say(chunks), LATE, Ok("{}")).await;
    check(SayAndClose("HTTP/1.1 200 OK\r\n\r\n{}"), LATE, Ok("{}")).await;
    let code = |code| Err(code);
    let failed = "failed filter with extender at URL URL/filter, code 500";
    check(Say("HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n"), LATE, code(failed)).await;
    let failed = "failed filter with extender at URL URL/filter, code 201";
    check(Say("HTTP/1.1 201 X\r\ncontent-length: 0\r\n\r\n"), LATE, code(failed)).await;
    let redirect = "HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    let failed = "failed filter with extender at URL URL/filter, code 307";
    check(Say(redirect), LATE, code(failed)).await;
    check(SayAndClose(""), LATE, Err(r#"Post "URL/filter": EOF"#)).await;
    let cut = SayAndClose("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"");
    check(cut, LATE, Err("unexpected EOF")).await;
    // A whole value came.
    let cut = SayAndClose("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}");
    check(cut, LATE, Ok("{}")).await;
    let stalled = SayAndWait("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{} ");
    check(stalled, SOON, Ok("{} ")).await;
    check(
        SayAndWait(""),
        SOON,
        Err(r#"Post "URL/filter": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"#),
    )
    .await;
    check(
        SayAndWait("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\""),
        SOON,
        Err(
            "context deadline exceeded (Client.Timeout or context cancellation while reading body)",
        ),
    )
    .await;
    check(Endless, LATE, Err("the answer is longer than 16777220 bytes")).await;
    check(
        SayAndWait(""),
        Duration::ZERO,
        Err(r#"Post "URL/filter": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"#),
    )
    .await;
}

#[tokio::test]
async fn user_and_password_of_the_url_are_sent_and_not_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let heard = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"{}") {
            stream.read_buf(&mut heard).await.unwrap();
        }
        String::from_utf8_lossy(&heard).into_owned()
    });
    let url = format!("http://me:se%3Acret%@{at}");
    let error = ask(&client(&url, json!({})).unwrap(), &url, LATE).await.unwrap_err();
    assert_eq!(error, format!("Post \"http://me:***@{at}/filter\": EOF"));
    let heard = heard.await.unwrap();
    let want = format!("authorization: Basic {}\r\n", STANDARD.encode("me:se:cret%"));
    assert!(heard.contains(&want), "{heard}");
    let config = json!({"tlsConfig": {"caFile": "/nowhere"}});
    let error = client("https://me:secret@e", config).err().unwrap().to_string();
    assert!(error.starts_with("extender \"https://me:***@e\": "), "{error}");
}

#[tokio::test]
async fn connections_are_kept() {
    let (url, n_connections) =
        server(Script::Say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")).await;
    let it = client(&url, json!({})).unwrap();
    for _ in 0..5 {
        ask(&it, &url, LATE).await.unwrap();
    }
    assert_eq!(n_connections.load(Ordering::SeqCst), 1);
    // One that its server closed is replaced.
    let (url, n_connections) = server(Script::SayAndClose(
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
    ))
    .await;
    let it = client(&url, json!({})).unwrap();
    for _ in 0..3 {
        ask(&it, &url, LATE).await.unwrap();
    }
    assert_eq!(n_connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn nobody_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}");
    let found = ask(&client(&url, json!({})).unwrap(), &url, LATE).await;
    let want = format!("Post \"{url}/filter\": dial tcp {address}: connect: connection refused");
    assert_eq!(found, Err(want));
    for (url, text) in [
        ("x", "unsupported protocol scheme \"\""),
        ("ftp://x", "unsupported protocol scheme \"ftp\""),
    ] {
        let found = ask(&client(url, json!({})).unwrap(), url, LATE).await;
        assert_eq!(found, Err(format!("Post \"{url}/filter\": {text}")));
    }
}

/// An HTTPS server with a certificate of its own making, and the authority's PEM.
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
            let mut heard = [0; 4096];
            let _ = stream.read(&mut heard).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
            let _ = stream.flush().await;
            // Until the client has read it.
            let _ = stream.read(&mut heard).await;
        }
    });
    (url, pem)
}

#[tokio::test]
async fn certificates() {
    let (url, pem) = https("extender.example").await;
    let ca = STANDARD.encode(&pem);
    let check = async |config: serde_json::Value, want: bool| {
        let found = ask(&client(&url, config.clone()).unwrap(), &url, LATE).await;
        assert_eq!(found.is_ok(), want, "{config}: {found:?}");
    };
    check(json!({"tlsConfig": {"caData": ca, "serverName": "extender.example"}}), true).await;
    // It has no certificate for its address.
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
