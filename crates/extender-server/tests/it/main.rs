//! Extenders behind real sockets on the loopback address.

#![expect(clippy::expect_used, reason = "helpers of tests")]

mod arbitrary_bytes;
mod limits;
mod tls;
mod verbs;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use loadmaster_extender_server::ExtenderServer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(20);

/// A running extender.
struct RunningServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl RunningServer {
    async fn start(server: ExtenderServer) -> RunningServer {
        let server = server.listen(("127.0.0.1", 0)).await.expect("a port");
        let address = server.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.run(async { stopped.await.unwrap_or_default() }));
        RunningServer { address, stop, task }
    }

    /// Posts a body; the status and body of the response.
    async fn post(&self, path: &str, body: &str) -> (u16, String) {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
        self.send(&format!("{head}Host: x\r\nConnection: close\r\n\r\n{body}")).await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    async fn send(&self, request: &str) -> (u16, String) {
        let stream = TcpStream::connect(self.address).await.expect("connects");
        exchange(stream, request).await
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        timeout(LONG, self.task).await.expect("in time").expect("no panic");
    }
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    request: &str,
) -> (u16, String) {
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut response = Vec::new();
    // The response is complete even if the peer closes without a TLS close_notify.
    let _ = timeout(LONG, stream.read_to_end(&mut response)).await.expect("in time");
    let response = String::from_utf8(response).expect("text");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, body.to_owned())
}

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().expect("a runtime").block_on(test);
}
