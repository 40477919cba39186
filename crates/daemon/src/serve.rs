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
mod cpu_profile;
mod endpoints;
mod expiring_cache;
mod health;
mod pprof_format;
mod reply;
mod review_client;
mod tls;
mod user;
mod zpages;

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use loadmaster_serving::{ConnectionLimits, LastResponse, Peer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{interval, timeout};

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
use endpoints::Endpoints;

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
    #[error("failed to create listener on {address} (--secure-port selects another port)")]
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
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    refresh: JoinHandle<()>,
    certificates: Arc<Certificates>,
    authenticator: Arc<Authenticator>,
}

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
    let endpoints = Arc::new(Endpoints::new(config, authenticator.clone(), authorizer));
    let handler = move |peer, request| handle_request(endpoints.clone(), peer, request);
    let tls = Arc::new(tls);
    let (stop, stopped) = oneshot::channel();
    let limits = limits(&options.serving);
    let serving = async move {
        let stopped = async {
            let _ = stopped.await;
            tracing::info!("Secure server has stopped listening");
        };
        loadmaster_serving::serve(listener, || Some(tls.clone()), limits, handler, stopped).await;
    };
    tracing::info!(address = %address, "Serving securely");
    Ok(Server {
        address,
        stop,
        task: tokio::spawn(serving),
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
        let _ = self.stop.send(());
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

/// The limits of connections.
fn limits(flags: &SecureServingFlags) -> ConnectionLimits {
    let default = ConnectionLimits::default();
    let streams_max = match flags.http2_max_streams_per_connection {
        0 => default.streams_max,
        given => given,
    };
    ConnectionLimits { streams_max, ..default }
}

/// Ends a task when it is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Handles one request in a separate task, so that a panic fails only this request. It ends when the client goes away.
async fn handle_request(
    endpoints: Arc<Endpoints>,
    peer: Arc<Peer>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let task = tokio::spawn(async move { endpoints.handle(&peer, request).await });
    let _abort = AbortOnDrop(task.abort_handle());
    let (reply, is_last) = task.await.unwrap_or_else(|error| {
        tracing::error!(err = %error, "Handling a request panicked");
        let text = "This request caused a panic; see the log.".to_owned();
        (reply::text_line(http::StatusCode::INTERNAL_SERVER_ERROR, text), false)
    });
    let mut response = reply.into_response();
    if is_last {
        response.extensions_mut().insert(LastResponse);
    }
    response
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
