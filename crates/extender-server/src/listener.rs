//! Sockets, TLS files and graceful shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::Request;
use loadmaster_serving::{ConnectionLimits, Incoming, Peer};
use loadmaster_stdx::ErrorChain;
use rustls::ServerConfig;
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{interval, sleep};

use crate::endpoints::Service;
use crate::{ExtenderServer, RequestLimits, Tls, TlsError};

/// How often TLS files are read again.
const RELOAD_PERIOD: Duration = Duration::from_secs(60);

/// The server cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port is in use, or not permitted.
    #[error("listening")]
    Listen(#[source] io::Error),
    /// TLS files cannot be used.
    #[error("preparing HTTPS")]
    Tls(#[source] TlsError),
    /// Signal handlers cannot be installed.
    #[error("listening for signals")]
    Signals(#[source] io::Error),
}

/// A server that has bound its port.
pub struct BoundServer {
    listener: TcpListener,
    address: SocketAddr,
    service: Arc<Service>,
    https: Option<Https>,
}

/// The TLS files, and the configuration last read from them.
struct Https {
    files: Tls,
    config: RwLock<Arc<ServerConfig>>,
}

/// Completes on SIGTERM or Ctrl-C.
pub(crate) fn signals() -> Result<impl Future<Output = ()>, ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

pub(crate) async fn listen(
    server: ExtenderServer,
    address: impl ToSocketAddrs,
) -> Result<BoundServer, ServeError> {
    let needs_certificate = server.tls.as_ref().is_some_and(Tls::needs_certificate);
    let https = server.tls.map(|files| {
        let config = RwLock::new(files.config()?);
        Ok(Https { files, config })
    });
    let https = https.transpose().map_err(ServeError::Tls)?;
    let listener = TcpListener::bind(address).await.map_err(ServeError::Listen)?;
    let address = listener.local_addr().map_err(ServeError::Listen)?;
    let service = Arc::new(Service {
        endpoints: server.endpoints,
        limits: server.limits,
        needs_certificate,
        permits: Arc::new(Semaphore::new(server.limits.requests_max.into())),
        is_stopping: AtomicBool::new(false),
    });
    Ok(BoundServer { listener, address, service, https })
}

impl BoundServer {
    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` completes; then accepts no more connections, waits up to `stop_time_max` for requests in flight, and
    /// returns.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let BoundServer { listener, address, service, https } = self;
        tracing::info!(address = %address, https = https.is_some(), "Serving");
        let RequestLimits { stop_time_max, requests_max, .. } = service.limits;
        let handler = {
            let service = service.clone();
            move |peer: Arc<Peer>, request: Request<Incoming>| {
                let service = service.clone();
                let has_certificate = !peer.certificates.is_empty();
                async move { service.handle_request(request, has_certificate).await }
            }
        };
        let stopping = Notify::new();
        let stop = async {
            stop.await;
            service.is_stopping.store(true, Ordering::Relaxed);
            stopping.notify_one();
        };
        let tls = || https.as_ref().map(Https::current);
        let serving = async {
            let limits = ConnectionLimits::default();
            loadmaster_serving::serve(listener, tls, limits, handler, stop).await;
            // Handlers whose clients have disconnected.
            let _ = service.permits.acquire_many(requests_max.into()).await;
        };
        let too_late = async {
            stopping.notified().await;
            sleep(stop_time_max).await;
        };
        tokio::select! {
            () = serving => tracing::info!("Stopped"),
            () = too_late => tracing::warn!("Stopped with requests still in flight"),
            never = reload(https.as_ref()) => match never {},
        }
    }
}

/// Reads the TLS files again periodically. On an error the old configuration stays in use.
async fn reload(https: Option<&Https>) -> Infallible {
    let Some(https) = https else { return std::future::pending().await };
    let mut ticks = interval(RELOAD_PERIOD);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        https.reload();
    }
}

impl Https {
    fn current(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn reload(&self) {
        match self.files.config() {
            Ok(config) => *self.config.write().unwrap_or_else(PoisonError::into_inner) = config,
            Err(error) => {
                tracing::warn!(err = %ErrorChain(&error), "Reading the TLS files again failed, keeping the old certificates")
            }
        }
    }
}
