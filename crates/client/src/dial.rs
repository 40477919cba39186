//! Opens one connection: TCP, a proxy's tunnel, TLS, HTTP.

mod batched_reads;

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
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::GaiResolver;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::ServiceExt as _;

use batched_reads::BatchedReads;

use crate::connect::{Address, Cluster, Proxy, tls_server_name};
use crate::status::error_chain;

/// Time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for TCP, which the addresses of a name share: shorter than a request for the lease, so that it still gets an address that
/// answers. Addresses of the other IP version are tried beside them after 300 ms (happy eyeballs).
const TCP_TIMEOUT: Duration = Duration::from_secs(4);

/// TCP keepalive notices a dead peer of an idle HTTP/1.1 connection, which has no pings.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const TCP_KEEPALIVE_PROBES: u32 = 3;

/// HTTP/2 flow control windows of a stream and of a connection. The connection's window is larger than those of all its watches
/// together, so that one slow reader does not delay the others.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 128 << 20;

/// What differs between the connections of different kinds of traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionSettings {
    /// An HTTP/2 connection from which nothing has arrived for this time is checked with a ping.
    pub ping_interval: Duration,
    /// It is closed when there is no response in this time.
    pub ping_timeout: Duration,
    /// What arrives within a moment is read together ([`BatchedReads`]).
    pub batches_reads: bool,
}

impl ConnectionSettings {
    /// As in client-go (its HTTP/2 read-idle and ping timeouts).
    pub const DEFAULT: ConnectionSettings = ConnectionSettings {
        ping_interval: Duration::from_secs(30),
        ping_timeout: Duration::from_secs(15),
        batches_reads: false,
    };
    /// For leader election: a dead connection is noticed within 4 s, before a request times out (5 s by default), so that a leader has the
    /// rest of the renew deadline for another connection.
    pub const LEASE: ConnectionSettings = ConnectionSettings {
        ping_interval: Duration::from_secs(2),
        ping_timeout: Duration::from_secs(2),
        batches_reads: false,
    };
    /// For lists and watches, which deliver many objects after each other.
    pub const WATCH: ConnectionSettings =
        ConnectionSettings { batches_reads: true, ..ConnectionSettings::DEFAULT };
}

/// Size limit of a proxy's response.
const TUNNEL_RESPONSE_BYTES_MAX: usize = 8 << 10;

/// The sending half of a connection.
pub(crate) enum Sender {
    /// HTTP/2: as many concurrent requests as the server's SETTINGS allow.
    H2(http2::SendRequest<Full<Bytes>>, Arc<AtomicUsize>),
    /// HTTP/1.1: one request at a time.
    H1(http1::SendRequest<Full<Bytes>>),
}

/// TCP, or TLS over another stream. HTTP is compiled for this one type.
pub(crate) type BoxStream = Box<dyn Stream>;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A future that is compiled here, not in each crate that awaits it.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// No connection was opened.
struct DialError {
    text: String,
    /// Whether certificates were rejected, by the server or by us.
    is_tls: bool,
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> DialError {
        DialError { is_tls: is_tls_error(&error), text: error_chain(&error) }
    }
}

impl From<String> for DialError {
    fn from(text: String) -> DialError {
        DialError { text, is_tls: false }
    }
}

/// Opens a connection, and returns the generation of its credentials. When certificates are rejected they are loaded again, once. Errors are
/// texts: the caller retries after any of them.
pub(crate) fn dial(
    cluster: &Cluster,
    settings: ConnectionSettings,
) -> BoxFuture<'_, Result<(Sender, u64), String>> {
    Box::pin(dial_in_time(cluster, settings))
}

async fn dial_in_time(
    cluster: &Cluster,
    settings: ConnectionSettings,
) -> Result<(Sender, u64), String> {
    let mut generation = cluster.access_generation();
    let opened = async {
        match open(cluster, generation, settings).await {
            Err(error) if error.is_tls && cluster.reload_access(generation).await => {
                generation = cluster.access_generation();
                open(cluster, generation, settings).await
            }
            opened => opened,
        }
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, opened).await {
        Ok(opened) => Ok((opened.map_err(|error| error.text)?, generation)),
        Err(_) => Err(format!("no connection in {} s", CONNECT_TIMEOUT.as_secs())),
    }
}

async fn open(
    cluster: &Cluster,
    generation: u64,
    settings: ConnectionSettings,
) -> Result<Sender, DialError> {
    let address = cluster.address();
    let Some(proxy) = cluster.proxy() else {
        let stream = connect(address, settings).await?;
        return handshake(cluster, generation, settings, stream).await;
    };
    let through_proxy = |error: DialError| {
        let text = format!("connecting to the proxy {}: {}", proxy.address.authority, error.text);
        DialError { text, ..error }
    };
    let mut stream =
        connect(&proxy.address, settings).await.map_err(|error| through_proxy(error.into()))?;
    let Some(tls) = cluster.tls().filter(|_| proxy.address.is_https) else {
        open_proxy_tunnel(&mut stream, proxy, address).await?;
        return handshake(cluster, generation, settings, stream).await;
    };
    // As in Go, the proxy's certificate is verified with the same CA as the server's.
    let mut tls = (*tls).clone();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = tls_server_name(proxy.address.host.clone()).map_err(|error| error.to_string())?;
    let connected = TlsConnector::from(Arc::new(tls)).connect(name, stream).await;
    let mut stream = connected.map_err(|error| through_proxy(error.into()))?;
    open_proxy_tunnel(&mut stream, proxy, address).await?;
    handshake(cluster, generation, settings, Box::new(stream)).await
}

async fn connect(address: &Address, settings: ConnectionSettings) -> io::Result<BoxStream> {
    let stream = connect_tcp(address).await?;
    Ok(match settings.batches_reads {
        true => Box::new(BatchedReads::new(stream)),
        false => Box::new(stream),
    })
}

/// Connects to one of the addresses of a host.
pub(crate) async fn connect_tcp(address: &Address) -> io::Result<TcpStream> {
    connect_with(connector(GaiResolver::new(), TCP_TIMEOUT), address).await
}

fn connector<R>(resolver: R, timeout: Duration) -> HttpConnector<R> {
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.set_connect_timeout(Some(timeout));
    connector.set_keepalive(Some(TCP_KEEPALIVE));
    connector.set_keepalive_interval(Some(TCP_KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(TCP_KEEPALIVE_PROBES));
    // Requests are small and must not be delayed.
    connector.set_nodelay(true);
    connector
}

async fn connect_with<R>(connector: HttpConnector<R>, address: &Address) -> io::Result<TcpStream>
where
    HttpConnector<R>: tower::Service<http::Uri, Response = TokioIo<TcpStream>>,
    <HttpConnector<R> as tower::Service<http::Uri>>::Error: Into<tower::BoxError>,
{
    // It always has a port; TLS is not for this connector.
    let url = format!("http://{}/", address.authority);
    let url = url.parse::<http::Uri>().map_err(io::Error::other)?;
    match connector.oneshot(url).await {
        Ok(stream) => Ok(stream.into_inner()),
        Err(error) => {
            let error: tower::BoxError = error.into();
            // The error of the last address, whose kind matters to callers.
            let cause = find_cause::<io::Error>(&*error);
            let kind = cause.map_or(io::ErrorKind::Other, io::Error::kind);
            let text = cause.map_or_else(|| error_chain(&*error), |cause| error_chain(cause));
            Err(io::Error::new(kind, text))
        }
    }
}

/// The first error of a type among an error and its causes.
fn find_cause<'a, E: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a E> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref::<E>())
}

/// Whether TLS failed, for instance because a certificate has expired.
pub(crate) fn is_tls_error(error: &(dyn std::error::Error + 'static)) -> bool {
    // `io::Error::source` skips the error that it carries.
    let carried =
        |error: &io::Error| error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|error| {
        error.is::<rustls::Error>() || error.downcast_ref::<io::Error>().is_some_and(carried)
    })
}

async fn open_proxy_tunnel<T>(stream: &mut T, proxy: &Proxy, to: &Address) -> Result<(), String>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let to_text = |error: io::Error| format!("connecting through the proxy: {error}");
    let authority = &to.authority;
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n").into_bytes();
    if let Some(authorization) = &proxy.authorization {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(authorization.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    stream.write_all(&request).await.map_err(to_text)?;
    stream.flush().await.map_err(to_text)?;
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

/// TLS, if the server has it, and HTTP over a stream to the server.
async fn handshake(
    cluster: &Cluster,
    generation: u64,
    settings: ConnectionSettings,
    stream: BoxStream,
) -> Result<Sender, DialError> {
    let Some((tls, name)) = cluster.tls().zip(cluster.server_name()) else {
        return Ok(Sender::H1(handshake_http1(stream).await?));
    };
    let stream = TlsConnector::from(tls).connect(name, stream).await?;
    let access = Some((cluster.clone(), generation));
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Ok(handshake_http2(Box::new(stream), settings, access).await?),
        _ => {
            let (sender, connection) = start_http1(Box::new(stream)).await?;
            tokio::spawn(report_end(connection, access));
            Ok(Sender::H1(sender))
        }
    }
}

/// Waits for the end of a connection. A server that rejects a client certificate says so after the handshake: then credentials and
/// certificates are loaded again.
async fn report_end(
    connection: impl Future<Output = Result<(), hyper::Error>>,
    access: Option<(Cluster, u64)>,
) {
    let Err(error) = connection.await else { return };
    tracing::debug!(error = %error_chain(&error), "Connection ended with an error");
    // h2 keeps only the text of an error.
    let is_rejected = is_tls_error(&error) || error_chain(&error).contains("received fatal alert");
    if let Some((cluster, generation)) = access.filter(|_| is_rejected) {
        cluster.reload_access(generation).await;
    }
}

async fn handshake_http2(
    stream: BoxStream,
    settings: ConnectionSettings,
    access: Option<(Cluster, u64)>,
) -> Result<Sender, String> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(settings.ping_interval)
        .keep_alive_timeout(settings.ping_timeout)
        .keep_alive_while_idle(true);
    let (sender, mut connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| error_chain(&error))?;
    let n_streams_max = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
    let n_streams = n_streams_max.clone();
    let ended = poll_fn(move |context| {
        let polled = Pin::new(&mut connection).poll(context);
        n_streams.store(connection.current_max_send_streams(), Ordering::Relaxed);
        polled
    });
    tokio::spawn(report_end(ended, access));
    Ok(Sender::H2(sender, n_streams_max))
}

/// HTTP/1.1 over a stream, until the returned sender is dropped.
pub(crate) async fn handshake_http1<B>(stream: BoxStream) -> Result<http1::SendRequest<B>, String>
where
    B: Body<Data: Send, Error: Into<tower::BoxError>> + Send + 'static,
{
    let (sender, connection) = start_http1(stream).await?;
    tokio::spawn(report_end(connection, None));
    Ok(sender)
}

async fn start_http1<B>(
    stream: BoxStream,
) -> Result<(http1::SendRequest<B>, http1::Connection<TokioIo<BoxStream>, B>), String>
where
    B: Body<Data: Send, Error: Into<tower::BoxError>> + Send + 'static,
{
    http1::handshake(TokioIo::new(stream)).await.map_err(|error| error_chain(&error))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tower::service_fn;

    use super::*;

    /// Connects to a name with these addresses, and returns the one that accepted.
    async fn connect(addresses: Vec<SocketAddr>, timeout: Duration) -> io::Result<SocketAddr> {
        let port = addresses.first().map_or(1, SocketAddr::port);
        let resolver = service_fn(move |_| {
            let addresses = addresses.clone();
            async move { Ok::<_, io::Error>(addresses.into_iter()) }
        });
        let address = Address {
            host: "a.example".to_owned(),
            port,
            is_https: true,
            authority: format!("a.example:{port}"),
            prefix: String::new(),
        };
        connect_with(connector(resolver, timeout), &address).await?.peer_addr()
    }

    /// A server, on the same port of two addresses of this machine, of which only the second one accepts connections.
    async fn one_of_two(first: &str, second: &str) -> (tokio::net::TcpListener, [SocketAddr; 2]) {
        let listener = tokio::net::TcpListener::bind((second, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        (listener, [address(first), address(second)])
    }

    #[tokio::test]
    async fn all_addresses_of_a_name_are_tried() {
        for first in ["127.0.0.2", "::1"] {
            let (_listener, [refused, accepting]) = one_of_two(first, "127.0.0.1").await;
            for addresses in [vec![refused, accepting], vec![accepting, refused]] {
                let connected = connect(addresses, TCP_TIMEOUT).await.unwrap();
                assert_eq!(connected, accepting, "{first}");
            }
            let error = connect(vec![refused, refused], TCP_TIMEOUT).await.unwrap_err();
            assert_ne!(error.to_string(), "");
        }
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_leaves_time_for_the_next_one() {
        // A listener whose queue is full ignores further connections.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let silent = full.local_addr().unwrap();
        let mut queued = Vec::new();
        let short = Duration::from_millis(50);
        while let Ok(Ok(stream)) = tokio::time::timeout(short, TcpStream::connect(silent)).await {
            queued.push(stream);
            assert!(queued.len() < 100, "the queue is never full");
        }
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", silent.port())).await.unwrap();
        let accepting = listener.local_addr().unwrap();
        let connected = connect(vec![silent, accepting], Duration::from_millis(400)).await;
        assert_eq!(connected.unwrap(), accepting);
        let error = connect(vec![silent], Duration::from_millis(100)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn tls_errors_are_recognized() {
        #[track_caller]
        fn check(error: io::Error, want: bool) {
            assert_eq!(is_tls_error(&error), want, "{error}");
        }
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateExpired);
        check(io::Error::new(io::ErrorKind::InvalidData, alert), true);
        check(io::ErrorKind::ConnectionReset.into(), false);
        check(io::Error::other("text"), false);
    }
}
