//! Panics, limits, and the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loadmaster_extender_server::{Bounds, ExtenderServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use crate::{LONG, Running, run};

const BIND: &str = r#"{"PodName":"web","Node":"a"}"#;
const SHORT: Duration = Duration::from_millis(50);

/// On a connection that stays.
fn request() -> String {
    format!("POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{BIND}", BIND.len())
}

#[test]
fn a_panic_costs_its_request_only() {
    run(async {
        let server = ExtenderServer::new().bind(|args| assert_eq!(args.node, "b"));
        let server = Running::start(server).await;
        let want = "the handler of bind panicked; see the extender's log\n";
        assert_eq!(server.post("/bind", BIND).await, (500, want.to_owned()));
        let other = BIND.replace("\"a\"", "\"b\"");
        assert_eq!(server.post("/bind", &other).await, (200, r#"{"Error":""}"#.to_owned()));
        server.stop().await;
    });
}

#[test]
fn bodies_are_bounded() {
    run(async {
        let bounds = Bounds { body_bytes_max: 100, body_time_max: SHORT, ..Bounds::default() };
        let server = ExtenderServer::new().bind(|_| ()).bounds(bounds);
        let server = Running::start(server).await;
        let want = (413, "the body has more than 100 bytes\n".to_owned());
        assert_eq!(server.post("/bind", &" ".repeat(101)).await, want);
        let late =
            "POST /bind HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{";
        let want = (408, "the body did not come in time\n".to_owned());
        assert_eq!(server.ask(late).await, want);
        assert_eq!(server.post("/bind", BIND).await.0, 200);
        server.stop().await;
    });
}

#[test]
fn more_requests_than_places_wait_and_then_are_turned_down() {
    run(async {
        let bounds = Bounds {
            requests_max: 1,
            body_time_max: SHORT,
            handler_time_max: SHORT,
            ..Bounds::default()
        };
        let go_on = Arc::new(Notify::new());
        let waits = go_on.clone();
        let handler = move |_| {
            let waits = waits.clone();
            async move { waits.notified().await }
        };
        let server = Running::start(ExtenderServer::new().bind(handler).bounds(bounds)).await;
        let want = (504, "the handler of bind took more than 0.05 s\n".to_owned());
        assert_eq!(server.post("/bind", BIND).await, want);
        // It still runs, and has the only place.
        let want = (503, "too many requests are under way\n".to_owned());
        assert_eq!(server.post("/bind", BIND).await, want);
        assert_eq!(server.get("/healthz").await.0, 200);
        go_on.notify_one();
        go_on.notify_one();
        server.stop().await;
    });
}

/// What is under way ends, also a handler whose client has left; nobody new is let in.
#[test]
fn a_stop_finishes_what_is_under_way() {
    run(async {
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
        let n_done = Arc::new(AtomicUsize::new(0));
        let (tells, waits, counts) = (begun.clone(), go_on.clone(), n_done.clone());
        let handler = move |_| {
            let (tells, waits, counts) = (tells.clone(), waits.clone(), counts.clone());
            async move {
                tells.notify_one();
                let _ = waits.acquire().await;
                counts.fetch_add(1, Ordering::Relaxed);
            }
        };
        let server = Running::start(ExtenderServer::new().bind(handler)).await;
        let mut stays = TcpStream::connect(server.address).await.expect("connects");
        stays.write_all(request().as_bytes()).await.expect("writes");
        begun.notified().await;
        let mut leaves = TcpStream::connect(server.address).await.expect("connects");
        leaves.write_all(request().as_bytes()).await.expect("writes");
        begun.notified().await;
        drop(leaves);

        let Running { address, stop, mut task } = server;
        stop.send(()).expect("it runs");
        assert!(timeout(SHORT, &mut task).await.is_err(), "it ended before its requests");
        assert!(TcpStream::connect(address).await.is_err(), "it still listens");
        go_on.add_permits(1);
        let mut answer = String::new();
        timeout(LONG, stays.read_to_string(&mut answer)).await.expect("in time").expect("reads");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        timeout(LONG, task).await.expect("in time").expect("no panic");
        assert_eq!(n_done.load(Ordering::Relaxed), 2, "a handler was cut off");
    });
}

#[test]
fn a_stop_waits_so_long_and_no_longer() {
    run(async {
        let bounds = Bounds { stop_time_max: SHORT, ..Bounds::default() };
        let handler = |_| std::future::pending::<()>();
        let server = Running::start(ExtenderServer::new().bind(handler).bounds(bounds)).await;
        let mut stays = TcpStream::connect(server.address).await.expect("connects");
        stays.write_all(request().as_bytes()).await.expect("writes");
        server.stop().await;
    });
}
