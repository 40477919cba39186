//! A TCP proxy on loopback whose connections die, stop answering or become slow on demand.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::control_plane::ControlPlane;

const CHUNK_BYTES: usize = 16 << 10;

/// A proxy in front of the API server. Dropping it ends its connections.
pub struct FaultProxy {
    url: String,
    n_connections: Arc<AtomicUsize>,
    faults: watch::Sender<Faults>,
    accepting: JoinHandle<()>,
}

/// What fails. Connections are numbered in the order in which they were accepted.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Connections below this number stay open, but nothing is forwarded.
    n_silent: usize,
    /// Connections below this number are reset.
    n_reset: usize,
    /// Every connection is reset as soon as it is accepted.
    is_down: bool,
    /// The delay of each chunk, in both directions.
    delay: Duration,
}

impl FaultProxy {
    /// Starts it.
    pub async fn start(plane: &ControlPlane) -> Result<FaultProxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening")?;
        let url = format!("https://{}", listener.local_addr().context("listening")?);
        let server = SocketAddr::from(([127, 0, 0, 1], plane.port()));
        let (faults, state) = watch::channel(Faults::default());
        let n_connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&n_connections);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let nth = count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(forward(stream, server, nth, state.clone()));
            }
        });
        Ok(FaultProxy { url, n_connections, faults, accepting })
    }

    /// A copy of a kubeconfig that has the proxy as its server.
    pub fn kubeconfig(&self, plane: &ControlPlane, original: &Path) -> Result<PathBuf> {
        let text = std::fs::read_to_string(original)
            .with_context(|| format!("reading {}", original.display()))?;
        let path = original.with_extension("proxied");
        std::fs::write(&path, text.replace(plane.url(), &self.url))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// All open connections die with a reset.
    pub fn reset_connections(&self) {
        let n_open = self.n_connections();
        self.faults.send_modify(|faults| faults.n_reset = n_open);
    }

    /// All open connections stay open, but nothing arrives any more, in either direction.
    pub fn silence_connections(&self) {
        let n_open = self.n_connections();
        self.faults.send_modify(|faults| faults.n_silent = n_open);
    }

    /// All chunks are delayed.
    pub fn delay(&self, delay: Duration) {
        self.faults.send_modify(|faults| faults.delay = delay);
    }

    /// The server cannot be reached, until this is false again.
    pub fn set_down(&self, is_down: bool) {
        let n_open = self.n_connections();
        self.faults.send_modify(|faults| {
            faults.is_down = is_down;
            faults.n_reset = n_open;
        });
    }

    /// The number of connections so far.
    pub fn n_connections(&self) -> usize {
        self.n_connections.load(Ordering::Relaxed)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(
    mut client: TcpStream,
    server: SocketAddr,
    nth: usize,
    mut faults: watch::Receiver<Faults>,
) {
    let is_reset = |faults: &Faults| faults.is_down || nth < faults.n_reset;
    let fails = |faults: &Faults| nth < faults.n_silent || is_reset(faults);
    let Ok(mut upstream) = TcpStream::connect(server).await else { return };
    // Chunks are delayed on demand only.
    let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = upstream.split();
    let (requests, responses) = (faults.clone(), faults.clone());
    tokio::select! {
        biased;
        failed = faults.wait_for(fails) => drop(failed),
        () = copy(from_client, to_server, requests) => return,
        () = copy(from_server, to_client, responses) => return,
    }
    // The server's side stays open, too, until the connection is reset.
    if faults.wait_for(is_reset).await.is_ok() {
        let _ = client.set_zero_linger();
    }
}

/// Copies until one side ends.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    faults: watch::Receiver<Faults>,
) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let Ok(n @ 1..) = from.read(&mut chunk).await else { return };
        let delay = faults.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if to.write_all(&chunk[..n]).await.is_err() {
            return;
        }
    }
}
