//! Sockets, and how they end.

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
use loadmaster_stdx::Chain;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::endpoints::Service;
use crate::{Bounds, ExtenderServer, Tls, TlsError};

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 1000;
/// How long a client may take to say what it wants.
const HEADER_TIME_MAX: Duration = Duration::from_secs(10);
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// How often the files of TLS are looked at.
const RELOAD_PERIOD: Duration = Duration::from_secs(60);

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port is taken, or not ours to take.
    #[error("listening")]
    Listen(#[source] io::Error),
    /// Files of TLS cannot be used.
    #[error("preparing HTTPS")]
    Tls(#[source] TlsError),
    /// The system does not say when to stop.
    #[error("listening for signals")]
    Signals(#[source] io::Error),
}

/// An extender that has its port.
pub struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    service: Arc<Service>,
    https: Option<Https>,
}

/// The files, and what was last made of them.
struct Https {
    files: Tls,
    acceptor: Arc<RwLock<TlsAcceptor>>,
}

/// When SIGTERM or Ctrl-C comes.
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
) -> Result<Listening, ServeError> {
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
        bounds: server.bounds,
        needs_certificate,
        places: Arc::new(Semaphore::new(server.bounds.requests_max.into())),
        is_stopping: AtomicBool::new(false),
    });
    Ok(Listening { listener, address, service, https })
}

impl Listening {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`; then takes no more connections, lets requests end for `stop_time_max`, and returns.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Listening { listener, address, service, https } = self;
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
        let Bounds { stop_time_max, requests_max, .. } = service.bounds;
        let ended = timeout(stop_time_max, async {
            while connections.join_next().await.is_some() {}
            // Handlers whose clients have left.
            let _ = service.places.acquire_many(requests_max.into()).await;
        });
        match ended.await {
            Ok(()) => tracing::info!("Stopped"),
            Err(_) => tracing::warn!("Stopped with requests still under way"),
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
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        while connections.try_join_next().is_some() {}
        let place = places.clone().acquire_owned().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(err = %error, "Accepting a connection failed");
                // Out of file descriptors, most likely: others must end first.
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (service, stopped) = (service.clone(), stopped.clone());
        let acceptor = acceptor.as_ref().map(|it| current(it));
        connections.spawn(async move {
            connection(stream, acceptor, service, stopped).await;
            drop(place);
        });
    }
}

fn current(acceptor: &RwLock<TlsAcceptor>) -> TlsAcceptor {
    acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
}

async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    service: Arc<Service>,
    mut stopped: watch::Receiver<()>,
) {
    // Only a matter of speed.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return talk(stream, service, false, stopped).await };
    let shaken = tokio::select! {
        shaken = timeout(HANDSHAKE_TIME_MAX, acceptor.accept(stream)) => shaken,
        _ = stopped.changed() => return,
    };
    match shaken {
        Ok(Ok(stream)) => {
            let has_certificate = stream.get_ref().1.peer_certificates().is_some();
            talk(stream, service, has_certificate, stopped).await;
        }
        Ok(Err(error)) => tracing::info!(err = %error, "TLS handshake failed"),
        Err(_) => tracing::info!("TLS handshake took too long"),
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Arc<Service>,
    has_certificate: bool,
    mut stopped: watch::Receiver<()>,
) {
    let answer = service_fn(|request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.answer(request, has_certificate).await) }
    });
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIME_MAX);
    http.http2().timer(TokioTimer::new()).keep_alive_interval(HEADER_TIME_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(connection);
    tokio::select! {
        // How a connection ends is the client's business.
        _ = connection.as_mut() => return,
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Looks at the files of TLS from time to time. What cannot be used leaves all as it was.
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
            Err(error) => tracing::warn!(err = %Chain(&error), "Keeping the certificates"),
        }
    }
}
