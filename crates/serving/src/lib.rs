//! Serves HTTP/1.1 and HTTP/2 on a socket, with TLS or without: connections, handshakes, limits and times of every server of Loadmaster
//! (upstream's `SecureServingInfo.Serve`).
//!
//! ```text
//! listener ─► ConnectionTable ─► TLS handshake ─► HTTP ─► handler(Peer, request)
//!                  │
//!                  └─► closes the connection that is idle for the longest time, when there are too many
//! ```
//!
//! A new connection is served although others are open and idle, so that health probes are answered: above a limit, in total or
//! per peer address, an idle connection is closed for it. Only if a request is in flight on each of them, the new one is closed.
//!
//! Beside that: how long a server's certificates are valid ([`set_validity`]), and the files with its keys ([`private_file`]).

#![warn(missing_docs)]

mod certificate_subject;
mod certificate_validity;
mod connection;
mod connection_table;
pub mod private_file;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
pub use hyper::body::Incoming;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub use certificate_subject::{CREDENTIAL_ID, CertificateSubject};
pub use certificate_validity::set_validity;
use connection::{AnyHandler, Server};
pub use connection::{Disconnect, LastResponse, Peer};
use connection_table::ConnectionTable;

/// How long to wait after a failed accept. Most likely no file descriptor is left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Limits of a server's connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Open connections in total.
    pub connections_max: usize,
    /// Open connections of one peer address.
    pub connections_per_peer_max: usize,
    /// Concurrent streams of an HTTP/2 connection.
    pub streams_max: u32,
    /// Bytes of a request's headers.
    pub header_bytes_max: u32,
    /// How long the TLS handshake may take.
    pub handshake_time_max: Duration,
    /// How long the first request of a connection, and the headers of each HTTP/1.1 request after the response before it, may take to
    /// arrive.
    pub header_time_max: Duration,
    /// How long a connection may be open without a request in flight.
    pub idle_time_max: Duration,
    /// How often the peer of an HTTP/2 connection is pinged.
    pub ping_interval: Duration,
    /// How long the response to a ping may take.
    pub ping_time_max: Duration,
}

impl Default for ConnectionLimits {
    /// The times and sizes of upstream's server and of Go's HTTP/2 server.
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            connections_max: 1_000,
            connections_per_peer_max: 500,
            streams_max: 250,
            header_bytes_max: 1 << 20,
            handshake_time_max: Duration::from_secs(10),
            header_time_max: Duration::from_secs(32),
            idle_time_max: Duration::from_secs(90),
            ping_interval: Duration::from_secs(30),
            ping_time_max: Duration::from_secs(15),
        }
    }
}

/// Answers the requests of all connections: a function from the client and a request to a future of the response. The body of a response
/// to HEAD is not sent.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The body of a response.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static;

    /// Answers a request.
    fn handle(
        &self,
        peer: Arc<Peer>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;
}

impl<H, F, B> Handler for H
where
    H: Fn(Arc<Peer>, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
{
    type Body = B;

    fn handle(
        &self,
        peer: Arc<Peer>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<B>> + Send + 'static {
        self(peer, request)
    }
}

/// Serves until `stop` completes, and then until the requests in flight have their responses; the caller limits how long that may
/// take. A failed accept ends nothing: it is tried again after a moment.
///
/// `tls` returns the TLS configuration of the next connection, or none for plain HTTP. The size of request bodies, and how long they
/// may take, are the handler's to limit.
pub async fn serve(
    listener: TcpListener,
    tls: impl Fn() -> Option<Arc<ServerConfig>>,
    limits: ConnectionLimits,
    handler: impl Handler,
    stop: impl Future<Output = ()>,
) {
    let accept = || async { listener.accept().await };
    let table = ConnectionTable::new(limits.connections_max, limits.connections_per_peer_max);
    let server = Server::new(limits);
    let handler = AnyHandler::new(handler);
    let (stopping, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        while connections.try_join_next().is_some() {}
        let (stream, address) = tokio::select! {
            accepted = accept_next(accept, &table) => accepted,
            () = stop.as_mut() => break,
        };
        let Some(registered) = table.register(address.ip(), Instant::now()) else {
            tracing::info!(peer = %address, "Closing a new connection: too many have a request in flight");
            continue;
        };
        // Only an optimization.
        let _ = stream.set_nodelay(true);
        let connection = server.clone().serve(
            stream,
            address,
            registered,
            tls(),
            handler.clone(),
            stopped.clone(),
        );
        connections.spawn(connection);
    }
    drop(listener);
    let _ = stopping.send(());
    while connections.join_next().await.is_some() {}
}

/// The next connection. After an error the connection that is idle for the longest time is closed, because file descriptors are
/// what is probably missing.
async fn accept_next<A, F>(accept: A, table: &ConnectionTable) -> (TcpStream, SocketAddr)
where
    A: Fn() -> F,
    F: Future<Output = io::Result<(TcpStream, SocketAddr)>>,
{
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(err = %error, "Accepting a connection failed");
                table.close_an_idle_connection();
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}
