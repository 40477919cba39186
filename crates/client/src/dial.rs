//! Opening one connection: TCP, a proxy's tunnel, TLS, HTTP.

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

use crate::answer::causes;
use crate::connect::{Address, Cluster};

/// Time for all of it.
const CONNECT: Duration = Duration::from_secs(10);

/// What a stream and a connection may hold before the reader has taken it. The connection's window exceeds that of all its
/// watches together, so that one slow reader does not hold up the others.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 128 << 20;

/// A connection that says nothing is asked, as client-go does (its HTTP/2 read-idle and ping timeouts).
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// A proxy's answer may be so long.
const TUNNEL_ANSWER_MAX: usize = 8 << 10;

/// The sending half of a connection.
pub(crate) enum Sender {
    /// As many requests at a time as the server's SETTINGS say.
    H2(http2::SendRequest<Full<Bytes>>, Arc<AtomicUsize>),
    /// One request at a time.
    H1(http1::SendRequest<Full<Bytes>>),
}

/// Opens a connection. Errors are texts: all are answered by dialling again later.
pub(crate) async fn dial(cluster: &Cluster) -> Result<Sender, String> {
    match tokio::time::timeout(CONNECT, open(cluster)).await {
        Ok(opened) => opened,
        Err(_) => Err(format!("no connection in {} s", CONNECT.as_secs())),
    }
}

async fn open(cluster: &Cluster) -> Result<Sender, String> {
    let told = |error: io::Error| causes(&error);
    let address = cluster.address();
    let next = cluster.proxy().unwrap_or(address);
    let mut stream = TcpStream::connect((&*next.host, next.port)).await.map_err(told)?;
    // Requests are small and must not wait for more of them.
    stream.set_nodelay(true).map_err(told)?;
    if cluster.proxy().is_some() {
        tunnel(&mut stream, address).await?;
    }
    let Some((tls, name)) = cluster.tls().await else {
        return speak_h1(stream).await.map(Sender::H1);
    };
    let stream = TlsConnector::from(tls).connect(name, stream).await.map_err(told)?;
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => speak_h2(stream).await,
        _ => speak_h1(stream).await.map(Sender::H1),
    }
}

async fn tunnel(stream: &mut TcpStream, to: &Address) -> Result<(), String> {
    let told = |error: io::Error| format!("asking the proxy: {error}");
    let authority = &to.authority;
    let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(told)?;
    let mut answer = Vec::new();
    // Byte by byte: what follows the blank line belongs to the tunnel.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= TUNNEL_ANSWER_MAX {
            return Err("the proxy's answer is too long".to_owned());
        }
        answer.push(stream.read_u8().await.map_err(told)?);
    }
    let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
    match line.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(format!("the proxy refused: {line}")),
    }
}

async fn speak_h2<T>(stream: T) -> Result<Sender, String>
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
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| causes(&error))?;
    let n_streams_max = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
    let told = n_streams_max.clone();
    tokio::spawn(async move {
        let ended = poll_fn(|context| {
            let polled = Pin::new(&mut connection).poll(context);
            told.store(connection.current_max_send_streams(), Ordering::Relaxed);
            polled
        });
        if let Err(error) = ended.await {
            tracing::debug!(error = %causes(&error), "connection ended");
        }
    });
    Ok(Sender::H2(sender, n_streams_max))
}

/// HTTP/1.1 over a stream, as long as somebody asks.
pub(crate) async fn speak_h1<T, B>(stream: T) -> Result<http1::SendRequest<B>, String>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| causes(&error))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = %causes(&error), "connection ended");
        }
    });
    Ok(sender)
}
