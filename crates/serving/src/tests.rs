//! The server over loopback, without TLS: connections, times, shutdown.

use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::Full;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

async fn start(limits: ConnectionLimits) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let handler = |_: Arc<Peer>, request: Request<Incoming>| async move {
        if request.uri().path() == "/never" {
            std::future::pending::<()>().await;
        }
        let mut response = Response::new(Full::new(Bytes::from("ok")));
        if request.uri().path() == "/last" {
            response.extensions_mut().insert(LastResponse);
        }
        response
    };
    let task = tokio::spawn(serve(listener, || None, limits, handler, async {
        let _ = stopped.await;
    }));
    (address, stop, task)
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
    let (address, _stop, _task) = start(limits).await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(get(address, "/").await.starts_with("HTTP/1.1 200"));
    // The first ones were closed; the last ones were not.
    assert_eq!(timeout(TEST_TIMEOUT, response(&mut idle[0])).await.unwrap(), "");
    let last = idle.last_mut().unwrap();
    send(last, "/").await;
    assert!(timeout(TEST_TIMEOUT, response(last)).await.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn requests_in_flight_keep_their_connections() {
    let limits = ConnectionLimits { connections_max: 2, ..ConnectionLimits::default() };
    let (address, _stop, _task) = start(limits).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The second request is answered after the first one: it is in flight when the first response has arrived.
        send(&mut stream, "/").await;
        send(&mut stream, "/never").await;
        assert!(response(&mut stream).await.starts_with("HTTP/1.1 200"));
        busy.push(stream);
    }
    // Both may be seen as idle for a moment.
    let mut answers = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        answers.push(timeout(TEST_TIMEOUT, response(&mut stream)).await.unwrap());
        if answers.last().is_some_and(String::is_empty) {
            break;
        }
    }
    assert!(answers.last().is_some_and(String::is_empty), "{answers:?}");
}

/// How long a client that sends nothing after `first` stays connected, in virtual time.
async fn connected_time(first: &str) -> Duration {
    let (address, _stop, _task) = start(ConnectionLimits::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(first.as_bytes()).await.unwrap();
    if first.ends_with("\r\n\r\n") {
        response(&mut stream).await;
    }
    let started = Instant::now();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn silent_clients_are_disconnected() {
    for (first, seconds) in
        [("", 32), ("GET / HTTP/1.1\r\n", 32), ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 32)]
    {
        let elapsed = connected_time(first).await;
        assert!(elapsed.as_secs().abs_diff(seconds) <= 6, "{first:?}: {elapsed:?}");
    }
}

#[tokio::test]
async fn a_last_response_closes_its_connection_and_stop_closes_all() {
    let (address, stop, task) = start(ConnectionLimits::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    send(&mut stream, "/last").await;
    let mut text = String::new();
    timeout(TEST_TIMEOUT, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    assert!(text.ends_with("ok"), "{text}");
    let _idle = TcpStream::connect(address).await.unwrap();
    assert!(get(address, "/").await.starts_with("HTTP/1.1 200"));
    stop.send(()).unwrap();
    timeout(TEST_TIMEOUT, task).await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
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
