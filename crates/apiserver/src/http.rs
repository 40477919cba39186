//! The sockets: one port for HTTP/1.1 and HTTP/2, with TLS or without, on the loopback address.

mod bounds;
mod faulty;
mod tls;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use loadmaster_stdx::caught::catch;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::audit::{Lasting, Peer};
use crate::auth::User;
use crate::server::{Answer, ApiServer, BODY_BYTES_MAX, Body};
use crate::status::ApiError;

pub use bounds::Bounds;
use bounds::Gates;
pub use faulty::FaultStream;
pub use tls::{Identity, Pki, TlsError};

/// Many small writes of many requests share a connection: as kube-apiserver's default is 100, ours is wider.
const N_STREAMS_MAX: u32 = 1_000;

/// How long to wait before a connection is accepted again after that failed, and how often: a minute.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
const N_FAILED_MAX: u32 = 600;

/// A watcher hears of what falls due so late at most.
const TEND_EVERY: Duration = Duration::from_secs(5);

/// Hyper's own.
const HTTP1_BUFFER_MIN: usize = 8_192;

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
    serve_within(listener, server, pki, Bounds::default(), FaultStream::default()).await
}

/// [`serve`] with bounds of one's own, and faults on purpose.
///
/// # Errors
///
/// When connections can no longer be accepted.
pub async fn serve_within(
    listener: TcpListener,
    server: ApiServer,
    pki: Option<Arc<Pki>>,
    bounds: Bounds,
    faults: FaultStream,
) -> io::Result<()> {
    tokio::select! {
        ended = accept(listener, &server, pki, bounds, faults) => ended,
        never = tend(&server) => match never {},
    }
}

/// What falls due though nobody asks.
async fn tend(server: &ApiServer) -> Infallible {
    let mut interval = tokio::time::interval(TEND_EVERY);
    loop {
        interval.tick().await;
        if let Err(panic) = catch(|| server.tend()) {
            tracing::error!(%panic, "what was due was not done");
        }
    }
}

async fn accept(
    listener: TcpListener,
    server: &ApiServer,
    pki: Option<Arc<Pki>>,
    bounds: Bounds,
    faults: FaultStream,
) -> io::Result<()> {
    let faults = Arc::new(faults);
    let acceptor = pki.map(|pki| TlsAcceptor::from(pki.server_config()));
    let gates = Gates::new(bounds);
    let mut n_failed = 0;
    loop {
        let permit = gates.connection().await;
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                n_failed += 1;
                match after_failed_accept(&error, n_failed) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(error),
                }
                continue;
            }
        };
        n_failed = 0;
        let service = Service {
            server: server.clone(),
            gates: gates.clone(),
            faults: Arc::clone(&faults),
            peer,
            user: None,
        };
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            // A connection that breaks off is the client's matter.
            let _ = connection(stream, service, acceptor).await;
            drop(permit);
        });
    }
}

/// How long to wait when a connection could not be accepted for the `nth` time in a row; none when it is no use any more.
fn after_failed_accept(error: &io::Error, nth: u32) -> Option<Duration> {
    match error.kind() {
        // The client was gone before we came to it.
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => Some(Duration::ZERO),
        // Such as too many open files: connections that end make room for others.
        _ => (nth <= N_FAILED_MAX).then_some(ACCEPT_AGAIN),
    }
}

/// What the requests of a connection have in common.
#[derive(Clone)]
struct Service {
    server: ApiServer,
    gates: Gates,
    faults: Arc<FaultStream>,
    peer: SocketAddr,
    /// Whom the client's certificate names.
    user: Option<User>,
}

/// A future's error of any kind: connections only end because of it.
type Broken = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    mut service: Service,
    acceptor: Option<TlsAcceptor>,
) -> Result<(), Broken> {
    stream.set_nodelay(true)?;
    let Some(acceptor) = acceptor else {
        service.user = Some(User::admin());
        return talk(stream, service).await;
    };
    let patience = service.gates.bounds.header_time;
    let stream = tokio::time::timeout(patience, acceptor.accept(stream)).await??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    service.user = certificate.and_then(|it| tls::user_of(it));
    talk(stream, service).await
}

async fn talk(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    service: Service,
) -> Result<(), Broken> {
    let bounds = service.gates.bounds;
    let service = Arc::new(service);
    let service = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { faulty::respond_or_fail(&service, request).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header_time)
        .max_buf_size((bounds.header_bytes as usize).max(HTTP1_BUFFER_MIN));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(N_STREAMS_MAX)
        .max_header_list_size(bounds.header_bytes)
        .keep_alive_interval(bounds.ping_time)
        .keep_alive_timeout(bounds.ping_time);
    builder.serve_connection(TokioIo::new(stream), service).await
}

async fn respond(service: &Service, request: Request<Incoming>) -> Response<Body> {
    let Service { server, gates, peer, user, .. } = service;
    let (mut parts, body) = request.into_parts();
    let peer = Peer(peer.ip());
    let path = parts.uri.path();
    let user = match server.authenticate(user.as_ref(), path, &parts.headers) {
        Ok(user) => user,
        Err(error) => {
            return server.refuse(&parts.method, &parts.uri, &parts.headers, Some(peer), error);
        }
    };
    let Some(permit) = gates.request() else { return busy() };
    let whole = Limited::new(body, BODY_BYTES_MAX).collect();
    let refuse = |error: &ApiError| Answer::error(error).into_response();
    let body: Bytes = match tokio::time::timeout(gates.bounds.body_time, whole).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return refuse(&ApiError::too_large(BODY_BYTES_MAX)),
        Err(_) => return refuse(&ApiError::bad_request("the body did not come in time")),
    };
    // A token has done its work: nothing behind this needs it.
    parts.headers.remove(header::AUTHORIZATION);
    parts.extensions.insert(peer);
    let mut response = server.respond(&user, &Request::from_parts(parts, body)).await;
    if response.extensions().get::<Lasting>().is_some() {
        let Some(watch) = gates.watch() else { return busy() };
        response.body_mut().when_done(move || drop(watch));
    } else {
        // Until all of it is sent: that a client reads slowly does not make room for more.
        response.body_mut().when_done(move || drop(permit));
    }
    response
}

/// 429 in upstream's words.
fn busy() -> Response<Body> {
    let answer = Answer::text(429, "Too many requests, please try again later.\n");
    let mut response = answer.into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_outlives_what_passes() {
        let too_many_files = io::Error::from_raw_os_error(24);
        let gone = io::Error::from(io::ErrorKind::ConnectionAborted);
        assert_eq!(after_failed_accept(&gone, 10_000), Some(Duration::ZERO));
        assert_eq!(after_failed_accept(&too_many_files, 1), Some(ACCEPT_AGAIN));
        assert_eq!(after_failed_accept(&too_many_files, N_FAILED_MAX + 1), None);
    }
}
