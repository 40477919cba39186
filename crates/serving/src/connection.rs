//! One connection, from its handshake to its end.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use crate::connection_table::{RegisteredConnection, RequestInFlight};
use crate::{CertificateSubject, ConnectionLimits, Handler};

/// How long to wait after a connection's last response, as Go's HTTP/2 server: some clients miss the response if GOAWAY arrives
/// together with it.
const LINGER: Duration = Duration::from_millis(25);

/// How long the peer of a connection that was idle for too long may take to close it, too.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// Hyper's minimum.
const HTTP1_BUFFER_BYTES_MIN: usize = 8_192;

/// The client of a connection.
#[derive(Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificate chain, leaf first; empty without TLS or without a client certificate. What is verified depends on the TLS
    /// configuration.
    pub certificates: Vec<CertificateDer<'static>>,
    /// Read when it is first needed.
    subject: OnceLock<Result<Option<CertificateSubject>, String>>,
}

impl Peer {
    fn new(address: SocketAddr, certificates: Vec<CertificateDer<'static>>) -> Peer {
        Peer { address, certificates, subject: OnceLock::new() }
    }

    /// Whom the client certificate names; `None` without one. It is read once for each connection.
    ///
    /// # Errors
    ///
    /// As [`CertificateSubject::from_certificate`].
    pub fn subject(&self) -> Result<Option<&CertificateSubject>, &str> {
        let read =
            || self.certificates.first().map(CertificateSubject::from_certificate).transpose();
        self.subject.get_or_init(read).as_ref().map(Option::as_ref).map_err(String::as_str)
    }
}

/// Among the extensions of a response: its connection is closed after it was sent. If it were closed earlier, the client could receive
/// GOAWAY before the response.
#[derive(Clone, Copy, Debug)]
pub struct LastResponse;

/// Among the extensions of a response: it is not sent. Instead, an HTTP/1.1 connection is closed, and an HTTP/2 stream is reset.
#[derive(Clone, Copy, Debug)]
pub struct Disconnect;

impl fmt::Display for Disconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("disconnected without a response")
    }
}

impl Error for Disconnect {}

/// A [`Handler`] without its types: HTTP is compiled for this one, not for each server.
#[derive(Clone)]
pub(crate) struct AnyHandler(Arc<dyn Fn(Arc<Peer>, Request<Incoming>) -> AnyFuture + Send + Sync>);

type AnyFuture = Pin<Box<dyn Future<Output = Response<AnyBody>> + Send>>;

type AnyBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

impl AnyHandler {
    pub fn new(handler: impl Handler) -> AnyHandler {
        AnyHandler(Arc::new(move |peer, request| {
            let handled = handler.handle(peer, request);
            Box::pin(async { handled.await.map(|body| body.map_err(Into::into).boxed_unsync()) })
        }))
    }
}

/// TCP, or TLS over it.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What all connections have in common.
#[derive(Clone)]
pub(crate) struct Server {
    limits: ConnectionLimits,
    http: Arc<auto::Builder<TokioExecutor>>,
}

impl Server {
    pub fn new(limits: ConnectionLimits) -> Server {
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_time_max)
            .max_buf_size((limits.header_bytes_max as usize).max(HTTP1_BUFFER_BYTES_MIN));
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams_max)
            .max_header_list_size(limits.header_bytes_max)
            .keep_alive_interval(limits.ping_interval)
            .keep_alive_timeout(limits.ping_time_max);
        Server { limits, http: Arc::new(http) }
    }

    /// Serves a connection until it ends, or has to end because of the limits or `stopped`.
    pub async fn serve(
        self,
        stream: TcpStream,
        address: SocketAddr,
        registered: RegisteredConnection,
        tls: Option<Arc<ServerConfig>>,
        handler: AnyHandler,
        mut stopped: watch::Receiver<()>,
    ) {
        let peer = |certificates| Peer::new(address, certificates);
        let Some(tls) = tls else {
            let stream = Box::new(stream);
            return self.serve_http(stream, peer(Vec::new()), registered, handler, stopped).await;
        };
        let handshake = TlsAcceptor::from(tls).accept(stream);
        let handshake = tokio::select! {
            handshake = timeout(self.limits.handshake_time_max, handshake) => handshake,
            () = registered.close.notified() => return,
            _ = stopped.changed() => return,
        };
        match handshake {
            Ok(Ok(stream)) => {
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
                let stream = Box::new(stream);
                self.serve_http(stream, peer(chain), registered, handler, stopped).await;
            }
            Ok(Err(error)) => {
                tracing::info!(v = 2, peer = %address, err = %error, "TLS handshake error")
            }
            Err(_) => tracing::info!(v = 2, peer = %address, "TLS handshake took too long"),
        }
    }

    async fn serve_http(
        self,
        stream: Box<dyn Stream>,
        peer: Peer,
        registered: RegisteredConnection,
        handler: AnyHandler,
        mut stopped: watch::Receiver<()>,
    ) {
        let (peer, registered) = (Arc::new(peer), Arc::new(registered));
        let last_sent = Arc::new(Notify::new());
        let service = service_fn(|request: Request<Incoming>| {
            let in_flight = registered.start_request();
            let is_head = request.method() == Method::HEAD;
            let (handled, last_sent) = ((handler.0)(peer.clone(), request), last_sent.clone());
            async move {
                let mut response = handled.await;
                if response.extensions().get::<Disconnect>().is_some() {
                    return Err(Disconnect);
                }
                if is_head && let Some(n_bytes) = response.body().size_hint().exact() {
                    response.headers_mut().insert(CONTENT_LENGTH, n_bytes.into());
                }
                let is_last = response.extensions_mut().remove::<LastResponse>().is_some();
                let last_sent = is_last.then_some(last_sent);
                Ok(response.map(|body| CountedBody {
                    body: (!is_head).then_some(body),
                    last_sent,
                    _in_flight: in_flight,
                }))
            }
        });
        let connection = self.http.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let mut is_closing = false;
        loop {
            tokio::select! {
                // Pending responses are written first.
                biased;
                // Errors of the connection concern only its client.
                _ = connection.as_mut() => return,
                () = registered.close.notified() => return,
                () = self.idle_for_too_long(&registered), if !is_closing => {
                    connection.as_mut().graceful_shutdown();
                    let _ = timeout(CLOSE_TIME_MAX, connection).await;
                    return;
                }
                _ = stopped.changed(), if !is_closing => {}
                () = after_last_response(&last_sent), if !is_closing => {}
            }
            is_closing = true;
            connection.as_mut().graceful_shutdown();
        }
    }

    /// Completes when no request has been in flight for too long.
    async fn idle_for_too_long(&self, connection: &RegisteredConnection) {
        let ConnectionLimits { header_time_max, idle_time_max, .. } = self.limits;
        loop {
            let now = Instant::now();
            match connection.idle_deadline(header_time_max, idle_time_max) {
                Some(deadline) if deadline <= now => return,
                Some(deadline) => sleep_until(deadline).await,
                // A connection cannot have been idle for longer when its request ends.
                None => sleep(idle_time_max).await,
            }
        }
    }
}

async fn after_last_response(last_sent: &Notify) {
    last_sent.notified().await;
    sleep(LINGER).await;
}

/// A response body whose request is in flight until it was sent.
struct CountedBody {
    /// `None` in the response to a HEAD request.
    body: Option<AnyBody>,
    /// Notified when the body was sent, if the connection ends with it.
    last_sent: Option<Arc<Notify>>,
    _in_flight: RequestInFlight,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = <AnyBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        if let Some(last_sent) = &self.last_sent {
            last_sent.notify_one();
        }
    }
}
