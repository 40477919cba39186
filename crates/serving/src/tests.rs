//! The server over loopback, without TLS: connections, times, shutdown.

use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

struct TestServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// Gets an item for each request to `/never`.
    never: mpsc::UnboundedReceiver<()>,
}

async fn start(limits: ConnectionLimits) -> TestServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let (entered, never) = mpsc::unbounded_channel();
    let handler = move |_: Arc<Peer>, request: Request<Incoming>| {
        let entered = entered.clone();
        async move {
            let mut response = Response::new(Full::new(Bytes::from("ok")));
            match request.uri().path() {
                "/never" => {
                    entered.send(()).unwrap();
                    std::future::pending().await
                }
                "/last" => drop(response.extensions_mut().insert(LastResponse)),
                "/disconnect" => drop(response.extensions_mut().insert(Disconnect)),
                _ => {}
            }
            response
        }
    };
    let task = tokio::spawn(serve(listener, || None, limits, handler, async {
        let _ = stopped.await;
    }));
    TestServer { address, stop, task, never }
}

async fn send(stream: &mut TcpStream, path: &str) {
    let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// The response up to its body, which is `ok`; nothing if the connection is closed.
async fn response(stream: &mut TcpStream) -> String {
    let (mut text, mut bytes) = (String::new(), [0; 1024]);
    while !text.ends_with("ok") {
        match stream.read(&mut bytes).await {
            Ok(n) if n > 0 => text.push_str(std::str::from_utf8(&bytes[..n]).unwrap()),
            _ => break,
        }
    }
    text
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    send(&mut stream, path).await;
    timeout(TEST_TIMEOUT, response(&mut stream)).await.unwrap()
}

#[tokio::test]
async fn idle_connections_do_not_keep_new_ones_from_being_served() {
    let limits = ConnectionLimits { connections_per_peer_max: 20, ..ConnectionLimits::default() };
    let server = start(limits).await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    assert!(get(server.address, "/").await.starts_with("HTTP/1.1 200"));
    // The first ones were closed; the last ones were not.
    assert_eq!(timeout(TEST_TIMEOUT, response(&mut idle[0])).await.unwrap(), "");
    let last = idle.last_mut().unwrap();
    send(last, "/").await;
    assert!(timeout(TEST_TIMEOUT, response(last)).await.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn requests_in_flight_keep_their_connections() {
    let limits = ConnectionLimits { connections_max: 2, ..ConnectionLimits::default() };
    let mut server = start(limits).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        send(&mut stream, "/never").await;
        server.never.recv().await.unwrap();
        busy.push(stream);
    }
    let mut rejected = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(timeout(TEST_TIMEOUT, response(&mut rejected)).await.unwrap(), "");
}

/// How long a client that sends nothing after `first` stays connected.
async fn http1_connected_time(first: &str) -> Duration {
    let server = start(ConnectionLimits::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(first.as_bytes()).await.unwrap();
    if first.ends_with("\r\n\r\n") {
        response(&mut stream).await;
    }
    let started = Instant::now();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    started.elapsed()
}

/// Times are virtual.
#[tokio::test(start_paused = true)]
async fn silent_clients_are_disconnected() {
    pass_time_in_small_steps();
    let check = async |first: &str, seconds: u64| {
        assert_eq!(http1_connected_time(first).await.as_secs(), seconds, "{first:?}");
    };
    check("", 32).await;
    check("GET / HTTP/1.1\r\n", 32).await;
    check("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 32).await;
    // HTTP/2, without a request. The client does not answer the server's GOAWAY: it has five seconds.
    check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0", 37).await;
}

/// Lets virtual time pass in small steps: a step begins although bytes are on their way, so that a longer one could end a time limit
/// before them.
fn pass_time_in_small_steps() {
    tokio::spawn(async {
        loop {
            sleep(Duration::from_millis(100)).await;
        }
    });
}

/// An HTTP/2 client that answers pings.
async fn http2_client(
    address: SocketAddr,
) -> (http2::SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new());
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

fn http2_request(path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://x{path}")).body(Full::default()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn http2_connections_are_closed_when_they_are_idle() {
    pass_time_in_small_steps();
    let server = start(ConnectionLimits::default()).await;
    let check = async |has_request: bool, seconds: u64| {
        let (mut sender, connection) = http2_client(server.address).await;
        let started = Instant::now();
        if has_request {
            let response = sender.send_request(http2_request("/")).await.unwrap();
            response.into_body().collect().await.unwrap();
        }
        let _ = connection.await.unwrap();
        assert_eq!(started.elapsed().as_secs(), seconds, "{has_request}");
    };
    check(false, 32).await;
    check(true, 90).await;
}

/// Such as a watch.
#[tokio::test]
async fn a_request_in_flight_keeps_an_http2_connection_open() {
    let short = Duration::from_millis(20);
    let limits = ConnectionLimits {
        header_time_max: short,
        idle_time_max: short,
        ..ConnectionLimits::default()
    };
    let mut server = start(limits).await;
    let (mut sender, connection) = http2_client(server.address).await;
    let in_flight = tokio::spawn(sender.send_request(http2_request("/never")));
    server.never.recv().await.unwrap();
    // Others are closed meanwhile.
    for _ in 0..3 {
        let (_sender, idle) = http2_client(server.address).await;
        let _ = timeout(TEST_TIMEOUT, idle).await.unwrap();
    }
    assert!(!connection.is_finished() && !in_flight.is_finished());
}

/// A request in flight does not keep the connection of a client that has vanished: the ping after 30 s is not answered for 15 s.
#[tokio::test(start_paused = true)]
async fn http2_clients_that_do_not_answer_pings_are_disconnected() {
    pass_time_in_small_steps();
    let mut server = start(ConnectionLimits::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // HEADERS with END_STREAM and END_HEADERS on stream 1: GET http://x/never.
    bytes.extend_from_slice(b"\0\0\x0d\x01\x05\0\0\0\x01\x82\x86\x04\x06/never\x01\x01x");
    stream.write_all(&bytes).await.unwrap();
    server.never.recv().await.unwrap();
    let started = Instant::now();
    let _ = stream.read_to_end(&mut bytes).await;
    assert_eq!(started.elapsed().as_secs(), 45);
}

#[tokio::test]
async fn head_has_the_length_of_the_body_and_disconnect_has_no_response() {
    let server = start(ConnectionLimits::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let text = timeout(TEST_TIMEOUT, response(&mut stream)).await.unwrap();
    assert!(text.contains("\r\ncontent-length: 2\r\n") && text.ends_with("\r\n\r\n"), "{text}");
    assert_eq!(get(server.address, "/disconnect").await, "");
    assert!(get(server.address, "/").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_last_response_closes_its_connection_and_stop_closes_all() {
    let server = start(ConnectionLimits::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    send(&mut stream, "/last").await;
    let mut text = String::new();
    timeout(TEST_TIMEOUT, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    assert!(text.ends_with("ok"), "{text}");
    let _idle = TcpStream::connect(server.address).await.unwrap();
    assert!(get(server.address, "/").await.starts_with("HTTP/1.1 200"));
    server.stop.send(()).unwrap();
    timeout(TEST_TIMEOUT, server.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_failed_accept_is_tried_again_after_a_moment() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let n_tries = AtomicUsize::new(0);
    let accept = || async {
        match n_tries.fetch_add(1, Ordering::Relaxed) {
            0..1_000 => Err(io::Error::from_raw_os_error(24)),
            _ => listener.accept().await,
        }
    };
    let table = ConnectionTable::new(9, 9);
    let idle = table.register(address.ip(), Instant::now()).unwrap();
    let started = Instant::now();
    let _client = TcpStream::connect(address).await.unwrap();
    accept_next(accept, &table).await;
    assert!(started.elapsed() >= 1_000 * ACCEPT_AGAIN, "it does not spin");
    // An idle connection gave its file descriptor.
    idle.close.notified().await;
}
