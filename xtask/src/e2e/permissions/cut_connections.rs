//! A TCP proxy on loopback whose connections can be cut, so that responses are lost.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A running proxy. Dropping it stops it; connections that are open then stay until they are closed.
pub struct Proxy {
    port: u16,
    cut: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy to a port on loopback.
    pub async fn start(target: u16) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening")?;
        let port = listener.local_addr().context("listening")?.port();
        let cut = Arc::new(Notify::new());
        let for_connections = Arc::clone(&cut);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, target, Arc::clone(&for_connections)));
            }
        });
        Ok(Proxy { port, cut, task })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Closes all connections. Requests that have reached the API server are executed, and their responses are lost.
    pub fn cut_connections(&self) {
        self.cut.notify_waiters();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(mut client: TcpStream, target: u16, cut: Arc<Notify>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    tokio::select! {
        // A broken connection ends here, too: the client sees it.
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        () = cut.notified() => {}
    }
}
