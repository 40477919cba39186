//! Panics, limits, and graceful shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loadmaster_extender_server::{ExtenderServer, RequestLimits};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use crate::{LONG, RunningServer, run};

const BIND: &str = r#"{"PodName":"web","Node":"a"}"#;
const SHORT: Duration = Duration::from_millis(50);

/// A request on a connection that is kept open.
fn request() -> String {
    format!("POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{BIND}", BIND.len())
}

#[test]
fn a_panic_fails_only_its_request() {
    run(async {
        let server = ExtenderServer::new().bind(|args| assert_eq!(args.node, "b"));
        let server = RunningServer::start(server).await;
        let want = "the handler of bind panicked; see the extender's log\n";
        assert_eq!(server.post("/bind", BIND).await, (500, want.to_owned()));
        let other = BIND.replace("\"a\"", "\"b\"");
        assert_eq!(server.post("/bind", &other).await, (200, r#"{"Error":""}"#.to_owned()));
        server.stop().await;
    });
}

#[test]
fn bodies_are_limited() {
    run(async {
        let limits =
            RequestLimits { body_bytes_max: 100, body_time_max: SHORT, ..RequestLimits::default() };
        let server = ExtenderServer::new().bind(|_| ()).limits(limits);
        let server = RunningServer::start(server).await;
        let want = (413, "the body has more than 100 bytes\n".to_owned());
        assert_eq!(server.post("/bind", &" ".repeat(101)).await, want);
        let late =
            "POST /bind HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{";
        let want = (408, "the body did not arrive in time\n".to_owned());
        assert_eq!(server.send(late).await, want);
        assert_eq!(server.post("/bind", BIND).await.0, 200);
        server.stop().await;
    });
}

#[test]
fn requests_beyond_the_limit_wait_and_are_then_rejected() {
    run(async {
        let limits = RequestLimits {
            requests_max: 1,
            body_time_max: SHORT,
            handler_time_max: SHORT,
            ..RequestLimits::default()
        };
        let proceed = Arc::new(Notify::new());
        let waits = proceed.clone();
        let handler = move |_| {
            let waits = waits.clone();
            async move { waits.notified().await }
        };
        let server = RunningServer::start(ExtenderServer::new().bind(handler).limits(limits)).await;
        let want = (504, "the handler of bind took more than 0.05 s\n".to_owned());
        assert_eq!(server.post("/bind", BIND).await, want);
        // The handler still runs and has the only permit.
        let want = (503, "too many requests in flight\n".to_owned());
        assert_eq!(server.post("/bind", BIND).await, want);
        assert_eq!(server.get("/healthz").await.0, 200);
        proceed.notify_one();
        proceed.notify_one();
        server.stop().await;
    });
}

/// A page of any site can send a POST without a preflight, through the browser of somebody who can reach the extender.
#[test]
fn web_pages_cannot_call_verbs() {
    run(async {
        let server = RunningServer::start(ExtenderServer::new().bind(|_| ()).version("1")).await;
        let check = async |request: &str, header: &str, want: u16| {
            let head = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}");
            let length = if request.starts_with("POST") { BIND.len() } else { 0 };
            let all = format!("{head}Content-Length: {length}\r\n\r\n{}", &BIND[..length]);
            assert_eq!(server.send(&all).await.0, want, "{request} {header}");
        };
        check("POST /bind", "", 200).await;
        check("POST /bind", "Origin: http://example.com\r\n", 403).await;
        check("POST /bind", "Origin: null\r\n", 403).await;
        check("OPTIONS /bind", "Origin: http://example.com\r\n", 405).await;
        check("GET /version", "Origin: http://example.com\r\n", 200).await;
        server.stop().await;
    });
}

/// Requests in flight complete, also when their client has disconnected; new connections are refused.
#[test]
fn a_shutdown_completes_requests_in_flight() {
    run(async {
        let (started, proceed) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
        let n_done = Arc::new(AtomicUsize::new(0));
        let (notifies, waits, counts) = (started.clone(), proceed.clone(), n_done.clone());
        let handler = move |_| {
            let (notifies, waits, counts) = (notifies.clone(), waits.clone(), counts.clone());
            async move {
                notifies.notify_one();
                let _ = waits.acquire().await;
                counts.fetch_add(1, Ordering::Relaxed);
            }
        };
        let server = RunningServer::start(ExtenderServer::new().bind(handler)).await;
        let mut open = TcpStream::connect(server.address).await.expect("connects");
        open.write_all(request().as_bytes()).await.expect("writes");
        started.notified().await;
        let mut disconnected = TcpStream::connect(server.address).await.expect("connects");
        disconnected.write_all(request().as_bytes()).await.expect("writes");
        started.notified().await;
        drop(disconnected);

        let RunningServer { address, stop, mut task } = server;
        stop.send(()).expect("it runs");
        assert!(timeout(SHORT, &mut task).await.is_err(), "it ended before its requests");
        assert!(TcpStream::connect(address).await.is_err(), "it still listens");
        proceed.add_permits(1);
        let mut response = String::new();
        timeout(LONG, open.read_to_string(&mut response)).await.expect("in time").expect("reads");
        assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
        timeout(LONG, task).await.expect("in time").expect("no panic");
        assert_eq!(n_done.load(Ordering::Relaxed), 2, "a handler was cut off");
    });
}

#[test]
fn a_shutdown_is_limited_in_time() {
    run(async {
        let limits = RequestLimits { stop_time_max: SHORT, ..RequestLimits::default() };
        let handler = |_| std::future::pending::<()>();
        let server = RunningServer::start(ExtenderServer::new().bind(handler).limits(limits)).await;
        let mut open = TcpStream::connect(server.address).await.expect("connects");
        open.write_all(request().as_bytes()).await.expect("writes");
        server.stop().await;
    });
}
