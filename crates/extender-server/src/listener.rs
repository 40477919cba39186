//! Sockets, TLS and graceful shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use loadmaster_stdx::ErrorChain;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::endpoints::Service;
use crate::{ExtenderServer, RequestLimits, Tls, TlsError};

/// Concurrent connections; more wait.
const CONNECTIONS_MAX: usize = 1000;
/// Time limit for the head of a request.
const HEADER_TIME_MAX: Duration = Duration::from_secs(10);
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
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
    acceptor: Arc<RwLock<TlsAcceptor>>,
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
        let acceptor = TlsAcceptor::from(files.config()?);
        Ok(Https { files, acceptor: Arc::new(RwLock::new(acceptor)) })
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
        let acceptor = https.as_ref().map(|https| https.acceptor.clone());
        tracing::info!(address = %address, https = https.is_some(), "Serving");
        let (stopping, stopped) = watch::channel(());
        let mut connections = JoinSet::new();
        tokio::select! {
            never = accept(&listener, &service, acceptor, &stopped, &mut connections) => match never {},
            never = reload(https) => match never {},
            () = stop => {}
        }
        drop(listener);
        service.is_stopping.store(true, Ordering::Relaxed);
        let _ = stopping.send(());
        let RequestLimits { stop_time_max, requests_max, .. } = service.limits;
        let ended = timeout(stop_time_max, async {
            while connections.join_next().await.is_some() {}
            // Handlers whose clients have disconnected.
            let _ = service.permits.acquire_many(requests_max.into()).await;
        });
        match ended.await {
            Ok(()) => tracing::info!("Stopped"),
            Err(_) => tracing::warn!("Stopped with requests still in flight"),
        }
    }
}

async fn accept(
    listener: &TcpListener,
    service: &Arc<Service>,
    acceptor: Option<Arc<RwLock<TlsAcceptor>>>,
    stopped: &watch::Receiver<()>,
    connections: &mut JoinSet<()>,
) -> Infallible {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        while connections.try_join_next().is_some() {}
        let permit = permits.clone().acquire_owned().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(err = %error, "Accepting a connection failed");
                // Probably out of file descriptors: other connections must end first.
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (service, stopped) = (service.clone(), stopped.clone());
        let acceptor = acceptor.as_ref().map(|it| current(it));
        connections.spawn(async move {
            serve_connection(stream, acceptor, service, stopped).await;
            drop(permit);
        });
    }
}

fn current(acceptor: &RwLock<TlsAcceptor>) -> TlsAcceptor {
    acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    service: Arc<Service>,
    mut stopped: watch::Receiver<()>,
) {
    // Only an optimization.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return serve_http(stream, service, false, stopped).await };
    let handshake = tokio::select! {
        handshake = timeout(HANDSHAKE_TIME_MAX, acceptor.accept(stream)) => handshake,
        _ = stopped.changed() => return,
    };
    match handshake {
        Ok(Ok(stream)) => {
            let has_certificate = stream.get_ref().1.peer_certificates().is_some();
            serve_http(stream, service, has_certificate, stopped).await;
        }
        Ok(Err(error)) => tracing::info!(err = %error, "TLS handshake failed"),
        Err(_) => tracing::info!("TLS handshake took too long"),
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Arc<Service>,
    has_certificate: bool,
    mut stopped: watch::Receiver<()>,
) {
    let handler = service_fn(|request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.handle_request(request, has_certificate).await) }
    });
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIME_MAX);
    http.http2().timer(TokioTimer::new()).keep_alive_interval(HEADER_TIME_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), handler);
    tokio::pin!(connection);
    tokio::select! {
        // Errors of a connection concern only the client.
        _ = connection.as_mut() => return,
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Reads the TLS files again periodically. On an error the old configuration stays in use.
async fn reload(https: Option<Https>) -> Infallible {
    let Some(https) = https else { return std::future::pending().await };
    let mut ticks = interval(RELOAD_PERIOD);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        https.reload();
    }
}

impl Https {
    fn reload(&self) {
        match self.files.config() {
            Ok(config) => {
                let mut acceptor = self.acceptor.write().unwrap_or_else(PoisonError::into_inner);
                *acceptor = TlsAcceptor::from(config);
            }
            Err(error) => {
                tracing::warn!(err = %ErrorChain(&error), "Reading the TLS files again failed, keeping the old certificates")
            }
        }
    }
}
