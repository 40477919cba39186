//! Opens one connection: TCP, a proxy's tunnel, TLS, HTTP.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::connect::{Address, Cluster};
use crate::status::error_chain;

/// Time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/2 flow control windows of a stream and of a connection. The connection's window is larger than those of all its watches
/// together, so that one slow reader does not delay the others.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 128 << 20;

/// An idle connection is checked with pings, as in client-go (its HTTP/2 read-idle and ping timeouts).
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Size limit of a proxy's response.
const TUNNEL_RESPONSE_BYTES_MAX: usize = 8 << 10;

/// The sending half of a connection.
pub(crate) enum Sender {
    /// HTTP/2: as many concurrent requests as the server's SETTINGS allow.
    H2(http2::SendRequest<Full<Bytes>>, Arc<AtomicUsize>),
    /// HTTP/1.1: one request at a time.
    H1(http1::SendRequest<Full<Bytes>>),
}

/// Opens a connection. Errors are texts: the caller retries after any of them.
pub(crate) async fn dial(cluster: &Cluster) -> Result<Sender, String> {
    match tokio::time::timeout(CONNECT_TIMEOUT, open(cluster)).await {
        Ok(opened) => opened,
        Err(_) => Err(format!("no connection in {} s", CONNECT_TIMEOUT.as_secs())),
    }
}

async fn open(cluster: &Cluster) -> Result<Sender, String> {
    let to_text = |error: io::Error| error_chain(&error);
    let address = cluster.address();
    let next = cluster.proxy().unwrap_or(address);
    let mut stream = TcpStream::connect((&*next.host, next.port)).await.map_err(to_text)?;
    // Requests are small and must not be delayed.
    stream.set_nodelay(true).map_err(to_text)?;
    if cluster.proxy().is_some() {
        open_proxy_tunnel(&mut stream, address).await?;
    }
    let Some((tls, name)) = cluster.tls().await else {
        return handshake_http1(stream).await.map(Sender::H1);
    };
    let stream = TlsConnector::from(tls).connect(name, stream).await.map_err(to_text)?;
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => handshake_http2(stream).await,
        _ => handshake_http1(stream).await.map(Sender::H1),
    }
}

async fn open_proxy_tunnel(stream: &mut TcpStream, to: &Address) -> Result<(), String> {
    let to_text = |error: io::Error| format!("connecting through the proxy: {error}");
    let authority = &to.authority;
    let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(to_text)?;
    let mut response = Vec::new();
    // Byte by byte: what follows the blank line belongs to the tunnel.
    while !response.ends_with(b"\r\n\r\n") {
        if response.len() >= TUNNEL_RESPONSE_BYTES_MAX {
            return Err("the response of the proxy is too long".to_owned());
        }
        response.push(stream.read_u8().await.map_err(to_text)?);
    }
    let line = String::from_utf8_lossy(&response).lines().next().unwrap_or_default().to_owned();
    match line.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(format!("the proxy refused: {line}")),
    }
}

async fn handshake_http2<T>(stream: T) -> Result<Sender, String>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let (sender, mut connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| error_chain(&error))?;
    let n_streams_max = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
    let n_streams = n_streams_max.clone();
    tokio::spawn(async move {
        let ended = poll_fn(|context| {
            let polled = Pin::new(&mut connection).poll(context);
            n_streams.store(connection.current_max_send_streams(), Ordering::Relaxed);
            polled
        });
        if let Err(error) = ended.await {
            tracing::debug!(error = %error_chain(&error), "Connection ended with an error");
        }
    });
    Ok(Sender::H2(sender, n_streams_max))
}

/// HTTP/1.1 over a stream, until the returned sender is dropped.
pub(crate) async fn handshake_http1<T, B>(stream: T) -> Result<http1::SendRequest<B>, String>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error_chain(&error))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = %error_chain(&error), "Connection ended with an error");
        }
    });
    Ok(sender)
}
