//! The sockets: one port for HTTP/1.1 and HTTP/2, with TLS or without, on the loopback address.

mod faulty;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::auth::User;
use crate::server::{Answer, ApiServer, BODY_BYTES_MAX, Body};
use crate::status::ApiError;

pub use faulty::FaultStream;
pub use tls::{Identity, Pki, TlsError};

/// Many small writes of many requests share a connection: as kube-apiserver's default is 100, ours is wider.
const N_STREAMS_MAX: u32 = 1_000;

/// How long a client may take to send a body, as kube-apiserver's default for a whole request.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);

/// Serves connections until the listener fails. Without `pki` connections are plain and everybody is admin: for tests.
///
/// # Errors
///
/// When connections can no longer be accepted.
pub async fn serve(
    listener: TcpListener,
    server: ApiServer,
    pki: Option<Arc<Pki>>,
) -> io::Result<()> {
    serve_with_faults(listener, server, pki, FaultStream::default()).await
}

/// The same, with faults on purpose.
///
/// # Errors
///
/// When connections can no longer be accepted.
pub async fn serve_with_faults(
    listener: TcpListener,
    server: ApiServer,
    pki: Option<Arc<Pki>>,
    faults: FaultStream,
) -> io::Result<()> {
    let faults = Arc::new(faults);
    let acceptor = pki.map(|pki| TlsAcceptor::from(pki.server_config()));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The client was gone before we came to it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(error),
        };
        let (server, acceptor) = (server.clone(), acceptor.clone());
        let faults = Arc::clone(&faults);
        tokio::spawn(async move {
            // A connection that breaks off is the client's matter.
            let _ = connection(stream, peer, server, acceptor, faults).await;
        });
    }
}

/// A future's error of any kind: connections only end because of it.
type Broken = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    _peer: SocketAddr,
    server: ApiServer,
    acceptor: Option<TlsAcceptor>,
    faults: Arc<FaultStream>,
) -> Result<(), Broken> {
    stream.set_nodelay(true)?;
    let Some(acceptor) = acceptor else {
        return talk(stream, server, Some(User::admin()), faults).await;
    };
    let stream = acceptor.accept(stream).await?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let user = certificate.and_then(|it| tls::user_of(it));
    talk(stream, server, user, faults).await
}

async fn talk(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    server: ApiServer,
    user: Option<User>,
    faults: Arc<FaultStream>,
) -> Result<(), Broken> {
    let service = service_fn(move |request| {
        let (server, user, faults) = (server.clone(), user.clone(), Arc::clone(&faults));
        async move { faulty::respond_or_fail(&faults, &server, user, request).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(N_STREAMS_MAX);
    builder.serve_connection(TokioIo::new(stream), service).await
}

async fn respond(
    server: &ApiServer,
    user: Option<User>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let refuse = |error: &ApiError| Answer::error(error).into_response();
    let Some(user) = who(server, user, parts.headers.get(header::AUTHORIZATION)) else {
        return refuse(&ApiError::unauthorized());
    };
    let is_public = matches!(parts.uri.path(), "/healthz" | "/livez" | "/readyz" | "/version");
    if user == User::anonymous() && !is_public {
        return refuse(&ApiError::unauthorized());
    }
    let whole = Limited::new(body, BODY_BYTES_MAX).collect();
    let body: Bytes = match tokio::time::timeout(BODY_TIME_MAX, whole).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return refuse(&ApiError::too_large(BODY_BYTES_MAX)),
        Err(_) => return refuse(&ApiError::bad_request("the body did not come in time")),
    };
    server.respond(&user, &Request::from_parts(parts, body)).await
}

/// Whom a request comes from; none if it brings a token nobody knows.
fn who(
    server: &ApiServer,
    user: Option<User>,
    authorization: Option<&http::HeaderValue>,
) -> Option<User> {
    if let Some(user) = user {
        return Some(user);
    }
    let Some(value) = authorization else { return Some(User::anonymous()) };
    let token = value.to_str().ok()?.strip_prefix("Bearer ")?;
    server.tokens().user(token.trim())
}
