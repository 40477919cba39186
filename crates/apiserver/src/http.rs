//! The HTTP server: one port for HTTP/1.1 and HTTP/2, with TLS or without.

mod fault_injection;
mod limits;
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
use loadmaster_stdx::catch_panic::catch_panic;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::audit::{LongRunning, PeerAddress};
use crate::authentication::User;
use crate::server::{ApiResponse, ApiServer, BODY_BYTES_MAX, Body};
use crate::status::ApiError;

pub use fault_injection::FaultInjector;
pub use limits::HttpLimits;
use limits::LimitSemaphores;
pub use tls::{CertificateAndKey, Pki, TlsError};

/// The most concurrent streams of an HTTP/2 connection; kube-apiserver's default is 100.
const N_STREAMS_MAX: u32 = 1_000;

/// How long to wait after a failed accept, and how often to retry: for a minute.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
const N_FAILED_MAX: u32 = 600;

/// How often periodic work is done without requests.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);

/// Hyper's minimum.
const HTTP1_BUFFER_MIN: usize = 8_192;

/// Serves connections until the listener fails. Without `pki` connections are plain HTTP and every client is admin:
/// for tests.
///
/// # Errors
///
/// When connections can no longer be accepted.
pub async fn serve(
    listener: TcpListener,
    server: ApiServer,
    pki: Option<Arc<Pki>>,
) -> io::Result<()> {
    serve_with_options(listener, server, pki, HttpLimits::default(), FaultInjector::default()).await
}

/// [`serve`] with limits and fault injection.
///
/// # Errors
///
/// When connections can no longer be accepted.
pub async fn serve_with_options(
    listener: TcpListener,
    server: ApiServer,
    pki: Option<Arc<Pki>>,
    bounds: HttpLimits,
    faults: FaultInjector,
) -> io::Result<()> {
    tokio::select! {
        ended = accept(listener, &server, pki, bounds, faults) => ended,
        never = run_maintenance(&server) => match never {},
    }
}

/// Does periodic work.
async fn run_maintenance(server: &ApiServer) -> Infallible {
    let mut interval = tokio::time::interval(MAINTENANCE_INTERVAL);
    loop {
        interval.tick().await;
        if let Err(panic) = catch_panic(|| server.run_maintenance()) {
            tracing::error!(%panic, "periodic work of the API server panicked");
        }
    }
}

async fn accept(
    listener: TcpListener,
    server: &ApiServer,
    pki: Option<Arc<Pki>>,
    bounds: HttpLimits,
    faults: FaultInjector,
) -> io::Result<()> {
    let faults = Arc::new(faults);
    let acceptor = pki.map(|pki| TlsAcceptor::from(pki.server_config()));
    let gates = LimitSemaphores::new(bounds);
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
            // A broken connection is the client's problem.
            let _ = connection(stream, service, acceptor).await;
            drop(permit);
        });
    }
}

/// How long to wait when accepting has failed for the `nth` time in a row; none to give up.
fn after_failed_accept(error: &io::Error, nth: u32) -> Option<Duration> {
    match error.kind() {
        // The client disconnected before.
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => Some(Duration::ZERO),
        // Such as too many open files, until other connections end.
        _ => (nth <= N_FAILED_MAX).then_some(ACCEPT_AGAIN),
    }
}

/// The state shared by the requests of a connection.
#[derive(Clone)]
struct Service {
    server: ApiServer,
    gates: LimitSemaphores,
    faults: Arc<FaultInjector>,
    peer: SocketAddr,
    /// The user of the client certificate.
    user: Option<User>,
}

/// Any error that ends a connection.
type Broken = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    mut service: Service,
    acceptor: Option<TlsAcceptor>,
) -> Result<(), Broken> {
    stream.set_nodelay(true)?;
    let Some(acceptor) = acceptor else {
        service.user = Some(User::admin());
        return serve_http(stream, service).await;
    };
    let patience = service.gates.bounds.header_time;
    let stream = tokio::time::timeout(patience, acceptor.accept(stream)).await??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    service.user = certificate.and_then(|it| tls::user_of(it));
    serve_http(stream, service).await
}

async fn serve_http(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    service: Service,
) -> Result<(), Broken> {
    let bounds = service.gates.bounds;
    let service = Arc::new(service);
    let service = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { fault_injection::respond_with_faults(&service, request).await }
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
    let peer = PeerAddress(peer.ip());
    let path = parts.uri.path();
    let user = match server.authenticate(user.as_ref(), path, &parts.headers) {
        Ok(user) => user,
        Err(error) => {
            return server.refuse_unauthenticated(
                &parts.method,
                &parts.uri,
                &parts.headers,
                Some(peer),
                error,
            );
        }
    };
    let Some(permit) = gates.request() else { return busy() };
    let whole = Limited::new(body, BODY_BYTES_MAX).collect();
    let refuse = |error: &ApiError| ApiResponse::error(error).into_response();
    let body: Bytes = match tokio::time::timeout(gates.bounds.body_time, whole).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return refuse(&ApiError::too_large(BODY_BYTES_MAX)),
        Err(_) => {
            return refuse(&ApiError::bad_request("the request body was not received in time"));
        }
    };
    // The token is not needed any more.
    parts.headers.remove(header::AUTHORIZATION);
    parts.extensions.insert(peer);
    let mut response = server.handle_durably(&user, &Request::from_parts(parts, body)).await;
    if response.extensions().get::<LongRunning>().is_some() {
        let Some(watch) = gates.watch() else { return busy() };
        response.body_mut().when_done(move || drop(watch));
    } else {
        // Held until all of it is sent, so that slow readers count against the limit.
        response.body_mut().when_done(move || drop(permit));
    }
    response
}

/// A 429 with upstream's message.
fn busy() -> Response<Body> {
    let answer = ApiResponse::text(429, "Too many requests, please try again later.\n");
    let mut response = answer.into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_accept_errors_are_retried() {
        let too_many_files = io::Error::from_raw_os_error(24);
        let disconnected = io::Error::from(io::ErrorKind::ConnectionAborted);
        assert_eq!(after_failed_accept(&disconnected, 10_000), Some(Duration::ZERO));
        assert_eq!(after_failed_accept(&too_many_files, 1), Some(ACCEPT_AGAIN));
        assert_eq!(after_failed_accept(&too_many_files, N_FAILED_MAX + 1), None);
    }
}
