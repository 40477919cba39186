//! A server for tests: HTTP/1.1 on loopback, or HTTP/2 over TLS, with scripted replies. `network` has proxies that fail on demand.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod network;

use std::future::Future;
use std::io::{Error, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use loadmaster_client::{Cluster, ClusterOptions};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Longer than any test takes.
pub const LONG: Duration = Duration::from_secs(20);

/// A request as received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    pub body: String,
    pub headers: http::HeaderMap,
}

/// A scripted reply.
pub enum ServerReply {
    Reply(u16, String),
    RetryAfter(u16, u64, String),
    /// A response in chunks; it ends when the channel is closed.
    Stream(mpsc::Receiver<String>),
    /// The connection is closed.
    Disconnect,
}

type ReplyFuture = Pin<Box<dyn Future<Output = ServerReply> + Send>>;
type Script = Arc<dyn Fn(ReceivedRequest) -> ReplyFuture + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Error>;

pub struct Server {
    pub kubeconfig: PathBuf,
    pub n_connections: Arc<AtomicUsize>,
    /// The server's side of TLS.
    pub tls: Option<rustls::ServerConfig>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

pub fn script<F>(reply: impl Fn(ReceivedRequest) -> F + Send + Sync + 'static) -> Script
where
    F: Future<Output = ServerReply> + Send + 'static,
{
    Arc::new(move |received| Box::pin(reply(received)))
}

/// Serves plain HTTP/1.1 until the runtime ends.
pub async fn serve(script: Script) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let n_connections = Arc::new(AtomicUsize::new(0));
    let count = n_connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let script = script.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| reply_to(script.clone(), request));
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    let kubeconfig = kubeconfig(&url, "", "token: secret");
    Server { kubeconfig, n_connections, tls: None }
}

/// Serves HTTP/2 over TLS, with at most `n_streams_max` concurrent requests per connection.
pub async fn serve_h2(script: Script, n_streams_max: u32) -> Server {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let ca_file = write_file("pem", &cert.pem());
    serve_tls(script, n_streams_max, tls, &ca_file, "token: secret").await
}

/// Serves HTTP/2 with these certificates. `ca_file` and `user` are those of the client's kubeconfig.
pub async fn serve_tls(
    script: Script,
    n_streams_max: u32,
    mut tls: rustls::ServerConfig,
    ca_file: &Path,
    user: &str,
) -> Server {
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let n_connections = Arc::new(AtomicUsize::new(0));
    let count = n_connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let (script, acceptor) = (script.clone(), acceptor.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request| reply_to(script.clone(), request));
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.max_concurrent_streams(n_streams_max);
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    let kubeconfig = kubeconfig(&url, &format!(", certificate-authority: {ca_file:?}"), user);
    Server { kubeconfig, n_connections, tls: Some(tls) }
}

async fn reply_to(script: Script, request: Request<Incoming>) -> Result<Response<Body>, Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(Error::other)?.to_bytes();
    let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let received = ReceivedRequest {
        method: head.method.to_string(),
        path,
        body: String::from_utf8_lossy(&body).into_owned(),
        headers: head.headers,
    };
    let whole = |status: u16, text: String| {
        Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .body(http_body_util::Full::from(text).map_err(|never| match never {}).boxed_unsync())
            .map_err(Error::other)
    };
    match script(received).await {
        ServerReply::Reply(status, text) => whole(status, text),
        ServerReply::RetryAfter(status, seconds, text) => {
            let mut response = whole(status, text)?;
            response.headers_mut().insert("retry-after", seconds.into());
            Ok(response)
        }
        ServerReply::Stream(chunks) => {
            let frames = Chunks(chunks);
            Response::builder()
                .header("content-type", "application/json")
                .body(StreamBody::new(frames).boxed_unsync())
                .map_err(Error::other)
        }
        ServerReply::Disconnect => Err(Error::other("disconnected by the script")),
    }
}

struct Chunks(mpsc::Receiver<String>);

impl futures_core::Stream for Chunks {
    type Item = Result<Frame<Bytes>, Error>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk.into()))))
    }
}

pub fn write_file(extension: &str, text: &str) -> PathBuf {
    static NTH: AtomicU32 = AtomicU32::new(0);
    let nth = NTH.fetch_add(1, Ordering::Relaxed);
    let name = format!("loadmaster-client-{}-{nth}.{extension}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    path
}

/// A kubeconfig with more fields of the cluster and these of the user.
pub fn kubeconfig(url: &str, more: &str, user: &str) -> PathBuf {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters: [{{name: it, cluster: {{server: {url:?}{more}}}}}]\n\
         users: [{{name: me, user: {{{user}}}}}]\n\
         contexts: [{{name: here, context: {{cluster: it, user: me}}}}]\n"
    );
    write_file("yaml", &text)
}

impl Server {
    pub fn url(&self) -> String {
        let text = std::fs::read_to_string(&self.kubeconfig).unwrap();
        text.split('"').nth(1).unwrap().to_owned()
    }

    pub fn address(&self) -> SocketAddr {
        self.url().split("://").nth(1).unwrap().parse().unwrap()
    }

    /// Changes the kubeconfig.
    pub fn edit(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.kubeconfig).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&self.kubeconfig, text.replace(from, to)).unwrap();
    }

    pub async fn cluster(&self) -> Cluster {
        let options = ClusterOptions {
            kubeconfig: Some(self.kubeconfig.clone()),
            context: None,
            master: None,
            user_agent: "tester".to_owned(),
        };
        Cluster::from_options(&options).await.unwrap()
    }
}

/// Waits, but not forever.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, what).await.expect("timed out")
}
