//! The HTTPS endpoints: health, metrics, configuration, status.
//!
//! ```text
//! listener ─TLS─► connection ─► who asks? ─► may they? ─► endpoint
//!                     │             │             │
//!                certificates   Authenticator  Authorizer ──► Api (TokenReview, SubjectAccessReview)
//! ```
//!
//! [`start`] needs the flags and [`Parts`]: closures and values of whoever schedules. Nothing here
//! knows a client for Kubernetes; the few calls go through [`Api`]. Read `endpoints` first.

mod api;
mod authentication;
mod authorization;
mod cache;
mod certificates;
mod endpoints;
mod health;
mod reply;
mod tls;
mod user;
mod zpages;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;

pub use api::{Api, ApiCall, ApiFuture, ApiReply};
pub use endpoints::{Route, RouteFuture, RouteRequest};
pub use health::{Check, Condition, Health, SHUTTING_DOWN};
pub use reply::Reply;
pub use user::User;

use crate::Loaded;
use crate::flags::{Options, SecureServing, Versions};
use crate::metrics::{Metrics, PodResources};
use authentication::Authenticator;
use authorization::Authorizer;
use certificates::Certificates;
use endpoints::{Endpoints, Peer};

/// What is served, from whoever knows it.
pub struct Parts {
    /// `/metrics`.
    pub metrics: Arc<Metrics>,
    /// `/healthz`, `/livez`, `/readyz`.
    pub health: Health,
    /// `/configz`: the configuration as JSON.
    pub configz: String,
    /// `/flagz`; `None`: not served (gate ComponentFlagz).
    pub flagz: Option<Vec<(String, String)>>,
    /// Whether `/statusz` is served (gate ComponentStatusz).
    pub has_statusz: bool,
    /// Whether `/debug/` is served (`enableProfiling`).
    pub has_debug: bool,
    /// Shown by `/statusz`.
    pub versions: Versions,
    /// Shown by `/statusz`: `1.36.3`.
    pub binary_version: String,
    /// Reviews tokens and knows the client CAs; `None`: nobody does.
    pub authentication: Option<Arc<dyn Api>>,
    /// Reviews access; `None`: nobody may but where all may.
    pub authorization: Option<Arc<dyn Api>>,
    /// `/metrics/resources`; `None` from it: not the leader, nothing to show.
    pub pod_resources: Arc<dyn Fn() -> Option<Vec<PodResources>> + Send + Sync>,
    /// `PUT /debug/flags/v`.
    pub set_verbosity: Arc<dyn Fn(u32) + Send + Sync>,
    /// Endpoints beyond upstream's.
    pub routes: Vec<Route>,
}

impl Parts {
    /// What flags and configuration say; the rest as for a scheduler that is not connected to
    /// anything.
    pub fn new(options: &Options, loaded: &Loaded, metrics: Arc<Metrics>) -> Parts {
        let release = options.reported_version.trim_start_matches('v');
        let flagz = loaded.gates.enabled("ComponentFlagz");
        Parts {
            metrics,
            health: Health::default(),
            configz: loaded.config.to_v1_json().unwrap_or_default(),
            flagz: flagz.then(|| options.listing().to_vec()),
            has_statusz: loaded.gates.enabled("ComponentStatusz"),
            has_debug: loaded.config.enable_profiling,
            versions: loaded.versions,
            binary_version: release.split(['+', '-']).next().unwrap_or_default().to_owned(),
            authentication: None,
            authorization: None,
            pod_resources: Arc::new(|| None),
            set_verbosity: Arc::new(|_| ()),
            routes: Vec::new(),
        }
    }
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port is taken, or not ours to take.
    #[error("failed to create listener on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A file of a flag cannot be read or written.
    #[error("{path}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A certificate of a flag cannot be used.
    #[error("certificate {file}: {reason}")]
    Certificate {
        /// Which.
        file: String,
        /// Why.
        reason: String,
    },
    /// No certificate could be made.
    #[error("error creating self-signed certificates: {0}")]
    SelfSigned(String),
    /// A CA bundle of a flag cannot be used.
    #[error("unable to load client CA provider: {file}: {reason}")]
    ClientCa {
        /// Which.
        file: String,
        /// Why.
        reason: String,
    },
    /// The cluster does not say whom to trust, and that is not tolerated.
    #[error("unable to load configmap based request-header-client-ca-file: {0}")]
    Lookup(String),
    /// `--tls-*` ask for what there is not.
    #[error("{0}")]
    Tls(String),
    /// The system has no random numbers.
    #[error("no random numbers from the system")]
    Random,
}

/// A server that runs.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    refresh: JoinHandle<()>,
    certificates: Arc<Certificates>,
    authenticator: Arc<Authenticator>,
}

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 1000;
/// Go's default of streams in an HTTP/2 connection.
const STREAMS_MAX: u32 = 250;
const HEADER_BYTES_MAX: u32 = 1 << 20;
/// As upstream's server.
const HEADER_TIME_MAX: Duration = Duration::from_secs(32);
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// As Go's HTTP/2 server.
const LINGER: Duration = Duration::from_millis(25);
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(5);
/// How often files are looked at; the ConfigMap every twelfth time.
const REFRESH_PERIOD: Duration = Duration::from_secs(5);
const LOOKUP_EVERY: u32 = 12;

/// Listens as the flags say and serves until [`Server::shutdown`]; `None` for `--secure-port=0`.
pub async fn start(options: &Options, parts: Parts) -> Result<Option<Server>, ServeError> {
    match listen(&options.serving)? {
        Some(listener) => start_on(listener, options, parts).await.map(Some),
        None => Ok(None),
    }
}

/// As [`start`], on a listener that is there already, such as one that systemd handed over.
pub async fn start_on(
    listener: TcpListener,
    options: &Options,
    mut parts: Parts,
) -> Result<Server, ServeError> {
    let certificates = Arc::new(Certificates::new(&options.serving)?);
    let metrics = parts.metrics.clone();
    let api = parts.authentication.take();
    let authenticator = Authenticator::new(&options.authentication, api, metrics.clone()).await?;
    let authenticator = Arc::new(authenticator);
    let api = parts.authorization.take();
    let authorizer = Authorizer::new(&options.authorization, api, metrics)?;
    let tls = tls::config(&options.serving, certificates.clone(), authenticator.clone())?;
    let unknown = |source| ServeError::File { path: "the listener".to_owned(), source };
    let address = listener.local_addr().map_err(unknown)?;
    let (stop, stopped) = watch::channel(false);
    let server = Arc::new(Shared {
        endpoints: Endpoints::new(parts, authenticator.clone(), authorizer),
        tls: TlsAcceptor::from(Arc::new(tls)),
        http: http(&options.serving),
    });
    tracing::info!(address = %address, "Serving securely");
    Ok(Server {
        address,
        stop,
        task: tokio::spawn(accept(listener, server, stopped)),
        refresh: tokio::spawn(refresh(certificates.clone(), authenticator.clone())),
        certificates,
        authenticator,
    })
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Looks at certificate and CA files now instead of within five seconds; whether a certificate
    /// changed.
    pub fn reload(&self) -> Result<bool, ServeError> {
        self.authenticator.read_files()?;
        self.certificates.reload()
    }

    /// Takes no more connections, lets requests end for five seconds, and is gone.
    pub async fn shutdown(self) {
        self.refresh.abort();
        let _ = self.stop.send(true);
        let mut task = self.task;
        if timeout(SHUTDOWN_TIME_MAX, &mut task).await.is_err() {
            task.abort();
        }
        tracing::info!("Secure server is exiting");
    }
}

/// The socket; an unspecified address means both address families.
fn listen(flags: &SecureServing) -> Result<Option<TcpListener>, ServeError> {
    let port = u16::try_from(flags.secure_port).unwrap_or(0);
    if port == 0 {
        return Ok(None);
    }
    let address = SocketAddr::new(flags.bind_address, port);
    let all = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
    let open = |address: SocketAddr| -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address == all {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        #[cfg(unix)]
        socket.set_reuse_port(flags.permit_port_sharing)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        TcpListener::from_std(socket.into())
    };
    let result = if flags.bind_address.is_unspecified() {
        // Where there is no IPv6, the address as it was given.
        open(all).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => open(address),
        })
    } else {
        open(address)
    };
    result.map(Some).map_err(|source| ServeError::Listen { address, source })
}

struct Shared {
    endpoints: Endpoints,
    tls: TlsAcceptor,
    http: auto::Builder<TokioExecutor>,
}

fn http(flags: &SecureServing) -> auto::Builder<TokioExecutor> {
    let streams = match flags.http2_max_streams_per_connection {
        0 => STREAMS_MAX,
        given => given,
    };
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME_MAX)
        .max_buf_size(HEADER_BYTES_MAX as usize);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(HEADER_TIME_MAX);
    http
}

/// Takes connections until told to stop, then waits for those there are.
async fn accept(listener: TcpListener, server: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(err = %error, "Accepting a connection failed");
                    // Out of file descriptors, most likely: others must end first.
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            _ = stopped.changed() => break,
        };
        let (server, stopped) = (server.clone(), stopped.clone());
        connections.spawn(async move {
            connection(stream, server, stopped).await;
            drop(place);
        });
    }
    drop(listener);
    tracing::info!("Secure server has stopped listening");
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, server: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let stream = match timeout(HANDSHAKE_TIME_MAX, server.tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::info!(v = 2, err = %error, "TLS handshake error");
            return;
        }
        Err(_) => return,
    };
    let chain = stream.get_ref().1.peer_certificates().map(<[CertificateDer<'_>]>::to_vec);
    let peer = Arc::new(Peer { chain: chain.unwrap_or_default(), close: Notify::new() });
    let service = service_fn(|request: Request<Incoming>| {
        let (server, peer) = (server.clone(), peer.clone());
        async move { Ok::<_, Infallible>(answer(server, peer, request).await) }
    });
    let connection = server.http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut is_closing = false;
    loop {
        tokio::select! {
            // First of all, what waits to be written goes out.
            biased;
            // How a connection ends is the client's business.
            _ = connection.as_mut() => return,
            _ = stopped.changed(), if !is_closing => {}
            () = last_answer(&peer), if !is_closing => {}
        }
        is_closing = true;
        connection.as_mut().graceful_shutdown();
    }
}

/// The connection's last answer is on its way, and the client had a moment to read it: some take the
/// word of the end for the answer if both come at once.
async fn last_answer(peer: &Peer) {
    peer.close.notified().await;
    sleep(LINGER).await;
}

/// A body that ends its connection when it was sent. Earlier, the client would hear of the end before
/// the answer.
struct Body {
    bytes: Full<Bytes>,
    ends: Option<Arc<Peer>>,
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.bytes).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.size_hint()
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(peer) = &self.ends {
            peer.close.notify_one();
        }
    }
}

/// One request in a task of its own, so that a panic costs only itself.
async fn answer(
    server: Arc<Shared>,
    peer: Arc<Peer>,
    request: Request<Incoming>,
) -> Response<Body> {
    let asking = peer.clone();
    let is_head = request.method() == Method::HEAD;
    let task = tokio::spawn(async move { server.endpoints.answer(&asking, request).await });
    let (reply, is_last) = task.await.unwrap_or_else(|error| {
        tracing::error!(err = %error, "Handling a request panicked");
        let text = "This request caused a panic; see the log.".to_owned();
        (reply::plain(http::StatusCode::INTERNAL_SERVER_ERROR, text), false)
    });
    let n_bytes = reply.body.len();
    let mut response = reply.into_response();
    if is_head {
        // The length of what GET would get, and nothing of it: over HTTP/2 this is left to us.
        response.headers_mut().insert(CONTENT_LENGTH, n_bytes.into());
        *response.body_mut() = Full::default();
    }
    response.map(|bytes| Body { bytes, ends: is_last.then_some(peer) })
}

/// Looks at files and the ConfigMap from time to time. What cannot be read leaves all as it was.
async fn refresh(certificates: Arc<Certificates>, authenticator: Arc<Authenticator>) {
    let mut ticks = interval(REFRESH_PERIOD);
    ticks.tick().await;
    let mut n: u32 = 0;
    loop {
        ticks.tick().await;
        n = n.wrapping_add(1);
        match certificates.reload() {
            Ok(true) => tracing::info!("Loaded a new serving certificate"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(err = %loadmaster_stdx::Chain(&error), "Keeping the serving certificates");
            }
        }
        if let Err(error) = authenticator.read_files() {
            tracing::warn!(err = %loadmaster_stdx::Chain(&error), "Keeping the client CAs");
        }
        if n.is_multiple_of(LOOKUP_EVERY)
            && let Err(error) = authenticator.look_up().await
        {
            tracing::warn!(err = error, "Keeping the authentication configuration of the cluster");
        }
    }
}

#[cfg(test)]
mod tests;
