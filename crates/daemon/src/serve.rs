//! The HTTPS endpoints: health, metrics, configuration, status.
//!
//! ```text
//! listener ─TLS─► connection ─► authentication ─► authorization ─► endpoint
//!                     │               │                │
//!                certificates     Authenticator     Authorizer ──► ReviewClient (TokenReview, SubjectAccessReview)
//! ```
//!
//! [`start_server`] needs the flags and an [`EndpointsConfig`]: closures and values that the scheduler supplies. Nothing
//! here depends on a Kubernetes client; the few API requests go through [`ReviewClient`]. Read `endpoints` first.

mod authentication;
mod authorization;
mod certificates;
mod endpoints;
mod expiring_cache;
mod health;
mod reply;
mod review_client;
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

pub use endpoints::{Route, RouteFuture, RouteRequest};
pub use health::{Health, HealthCheck, HealthState, SHUTTING_DOWN};
pub use reply::HttpReply;
pub use review_client::{ReviewClient, ReviewFuture, ReviewRequest, ReviewResponse};
pub use user::User;

use crate::LoadedConfig;
use crate::flags::{Options, SecureServingFlags, Versions};
use crate::metrics::{Metrics, PodResources};
use authentication::Authenticator;
use authorization::Authorizer;
use certificates::Certificates;
use endpoints::{Endpoints, Peer};

/// What the endpoints serve.
pub struct EndpointsConfig {
    /// `/metrics`.
    pub metrics: Arc<Metrics>,
    /// `/healthz`, `/livez`, `/readyz`.
    pub health: Health,
    /// `/configz`: the running configuration as JSON, without keys and passwords.
    pub configz: Arc<dyn Fn() -> String + Send + Sync>,
    /// Further lines of `/statusz`.
    pub status_lines: Arc<dyn Fn() -> String + Send + Sync>,
    /// `/flagz`; `None` if it is not served (feature gate ComponentFlagz).
    pub flagz: Option<Vec<(String, String)>>,
    /// Whether `/statusz` is served (feature gate ComponentStatusz).
    pub has_statusz: bool,
    /// Whether `/debug/` is served (`enableProfiling`).
    pub has_debug: bool,
    /// The emulation version shown by `/statusz`.
    pub versions: Versions,
    /// The binary version shown by `/statusz`: `1.36.3`.
    pub binary_version: String,
    /// For TokenReviews and the client CAs of the cluster; `None` without delegated authentication.
    pub authentication: Option<Arc<dyn ReviewClient>>,
    /// For SubjectAccessReviews; `None` without delegated authorization: only always-allowed paths are served.
    pub authorization: Option<Arc<dyn ReviewClient>>,
    /// `/metrics/resources`; returns `None` if there is nothing to show.
    pub pod_resources: Arc<dyn Fn() -> Option<Vec<PodResources>> + Send + Sync>,
    /// `PUT /debug/flags/v`.
    pub set_verbosity: Arc<dyn Fn(u32) + Send + Sync>,
    /// Endpoints that upstream does not have.
    pub routes: Vec<Route>,
}

impl EndpointsConfig {
    /// The settings of flags and configuration; the rest as for a scheduler without a cluster.
    pub fn new(options: &Options, loaded: &LoadedConfig, metrics: Arc<Metrics>) -> EndpointsConfig {
        let release = options.reported_version.trim_start_matches('v');
        let flagz = loaded.gates.enabled("ComponentFlagz");
        let configz = loaded.config.redacted().to_v1_json().unwrap_or_default();
        EndpointsConfig {
            metrics,
            health: Health::default(),
            configz: Arc::new(move || configz.clone()),
            status_lines: Arc::new(String::new),
            flagz: flagz.then(|| options.all_flag_values().to_vec()),
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

/// Why the server cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port is in use, or the process may not bind to it.
    #[error("failed to create listener on {address}")]
    Listen {
        /// The address.
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
    /// The self-signed certificate cannot be created.
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
    /// The lookup of the authentication configuration failed, and failures are not tolerated.
    #[error("unable to load configmap based request-header-client-ca-file: {0}")]
    Lookup(String),
    /// A value of a `--tls-*` flag is not supported.
    #[error("{0}")]
    Tls(String),
    /// The system's random number generator failed.
    #[error("getting random numbers from the system")]
    Random,
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    refresh: JoinHandle<()>,
    certificates: Arc<Certificates>,
    authenticator: Arc<Authenticator>,
}

/// The maximum number of concurrent connections; more wait.
const CONNECTIONS_MAX: usize = 1000;
/// Go's default of concurrent streams per HTTP/2 connection.
const STREAMS_MAX: u32 = 250;
const HEADER_BYTES_MAX: u32 = 1 << 20;
/// As upstream's server.
const HEADER_TIME_MAX: Duration = Duration::from_secs(32);
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// As Go's HTTP/2 server.
const LINGER: Duration = Duration::from_millis(25);
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(5);
/// How often files are reloaded; the ConfigMap is read every twelfth time.
const REFRESH_PERIOD: Duration = Duration::from_secs(5);
const LOOKUP_EVERY: u32 = 12;

/// Listens as the flags say and serves until [`Server::shutdown`]; `None` for `--secure-port=0`.
pub async fn start_server(
    options: &Options,
    config: EndpointsConfig,
) -> Result<Option<Server>, ServeError> {
    match listen(&options.serving)? {
        Some(listener) => start_server_on(listener, options, config).await.map(Some),
        None => Ok(None),
    }
}

/// As [`start_server`], on an existing listener, for example of systemd socket activation.
pub async fn start_server_on(
    listener: TcpListener,
    options: &Options,
    mut config: EndpointsConfig,
) -> Result<Server, ServeError> {
    let certificates = Arc::new(Certificates::new(&options.serving)?);
    let metrics = config.metrics.clone();
    let api = config.authentication.take();
    let authenticator = Authenticator::new(&options.authentication, api, metrics.clone()).await?;
    let authenticator = Arc::new(authenticator);
    let api = config.authorization.take();
    let authorizer = Authorizer::new(&options.authorization, api, metrics)?;
    let tls = tls::server_config(&options.serving, certificates.clone(), authenticator.clone())?;
    let unknown = |source| ServeError::File { path: "the listener".to_owned(), source };
    let address = listener.local_addr().map_err(unknown)?;
    let (stop, stopped) = watch::channel(false);
    let server = Arc::new(ServerState {
        endpoints: Endpoints::new(config, authenticator.clone(), authorizer),
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
    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reloads certificate and CA files now instead of within five seconds; returns whether a serving
    /// certificate changed.
    pub fn reload(&self) -> Result<bool, ServeError> {
        self.authenticator.reload_ca_files()?;
        self.certificates.reload()
    }

    /// Stops accepting connections, and waits up to five seconds for requests in flight.
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

/// Opens the socket; an unspecified address means both address families.
fn listen(flags: &SecureServingFlags) -> Result<Option<TcpListener>, ServeError> {
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
        // Without IPv6 support, use the given address.
        open(all).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => open(address),
        })
    } else {
        open(address)
    };
    result.map(Some).map_err(|source| ServeError::Listen { address, source })
}

struct ServerState {
    endpoints: Endpoints,
    tls: TlsAcceptor,
    http: auto::Builder<TokioExecutor>,
}

fn http(flags: &SecureServingFlags) -> auto::Builder<TokioExecutor> {
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

/// Accepts connections until the server stops, then waits for open connections.
async fn accept(
    listener: TcpListener,
    server: Arc<ServerState>,
    mut stopped: watch::Receiver<bool>,
) {
    let connection_slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(slot) = connection_slots.clone().acquire_owned().await else { return };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(err = %error, "Accepting a connection failed");
                    // Most likely out of file descriptors: wait for other connections to close.
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            _ = stopped.changed() => break,
        };
        let (server, stopped) = (server.clone(), stopped.clone());
        connections.spawn(async move {
            connection(stream, server, stopped).await;
            drop(slot);
        });
    }
    drop(listener);
    tracing::info!("Secure server has stopped listening");
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    server: Arc<ServerState>,
    mut stopped: watch::Receiver<bool>,
) {
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
        async move { Ok::<_, Infallible>(handle_request(server, peer, request).await) }
    });
    let connection = server.http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut is_closing = false;
    loop {
        tokio::select! {
            // Pending responses are written first.
            biased;
            // Errors of the connection are ignored.
            _ = connection.as_mut() => return,
            _ = stopped.changed(), if !is_closing => {}
            () = after_last_response(&peer), if !is_closing => {}
        }
        is_closing = true;
        connection.as_mut().graceful_shutdown();
    }
}

/// Waits until the connection's last response was sent, plus a moment: some clients miss the response
/// if GOAWAY arrives together with it.
async fn after_last_response(peer: &Peer) {
    peer.close.notified().await;
    sleep(LINGER).await;
}

/// A response body that closes its connection after it was sent. If the connection were closed earlier,
/// the client could receive GOAWAY before the response.
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

/// Handles one request in a separate task, so that a panic fails only this request.
async fn handle_request(
    server: Arc<ServerState>,
    peer: Arc<Peer>,
    request: Request<Incoming>,
) -> Response<Body> {
    let task_peer = peer.clone();
    let is_head = request.method() == Method::HEAD;
    let task = tokio::spawn(async move { server.endpoints.handle(&task_peer, request).await });
    let (reply, is_last) = task.await.unwrap_or_else(|error| {
        tracing::error!(err = %error, "Handling a request panicked");
        let text = "This request caused a panic; see the log.".to_owned();
        (reply::text_line(http::StatusCode::INTERNAL_SERVER_ERROR, text), false)
    });
    let n_bytes = reply.body.len();
    let mut response = reply.into_response();
    if is_head {
        // The length of the body of GET, without a body: over HTTP/2 the server has to do this itself.
        response.headers_mut().insert(CONTENT_LENGTH, n_bytes.into());
        *response.body_mut() = Full::default();
    }
    response.map(|bytes| Body { bytes, ends: is_last.then_some(peer) })
}

/// Reloads files and the ConfigMap periodically. On an error the previous state is kept.
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
                tracing::warn!(err = %loadmaster_stdx::ErrorChain(&error), "Failed to reload the serving certificates; keeping the current ones");
            }
        }
        if let Err(error) = authenticator.reload_ca_files() {
            tracing::warn!(err = %loadmaster_stdx::ErrorChain(&error), "Failed to reload the client CAs; keeping the current ones");
        }
        if n.is_multiple_of(LOOKUP_EVERY)
            && let Err(error) = authenticator.read_config_map().await
        {
            tracing::warn!(
                err = error,
                "Failed to look up the authentication configuration of the cluster; keeping the current one"
            );
        }
    }
}

#[cfg(test)]
mod tests;
