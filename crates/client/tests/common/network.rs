//! TCP proxies on loopback: one whose connections fail on demand, and an HTTP proxy with authorization.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards connections to a server until they are told to fail.
pub struct FaultProxy {
    pub address: SocketAddr,
    pub n_connections: Arc<AtomicUsize>,
    faults: watch::Sender<Faults>,
}

/// Connections are numbered from 0; those below a number have its fault.
#[derive(Clone, Copy, Default)]
struct Faults {
    n_silent: usize,
    n_reset: usize,
}

impl FaultProxy {
    pub async fn start(server: SocketAddr) -> FaultProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (faults, state) = watch::channel(Faults::default());
        let n_connections = Arc::new(AtomicUsize::new(0));
        let count = n_connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let nth = count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(forward(stream, server, nth, state.clone()));
            }
        });
        FaultProxy { address, n_connections, faults }
    }

    /// All open connections stay open, but nothing is forwarded any more.
    pub fn silence_open_connections(&self) {
        let n_open = self.n_connections.load(Ordering::SeqCst);
        self.faults.send_modify(|faults| faults.n_silent = n_open);
    }

    /// All open connections are reset.
    pub fn reset_open_connections(&self) {
        let n_open = self.n_connections.load(Ordering::SeqCst);
        self.faults.send_modify(|faults| faults.n_reset = n_open);
    }

    /// New connections are accepted, but nothing is forwarded.
    pub fn silence_all(&self) {
        self.faults.send_modify(|faults| faults.n_silent = usize::MAX);
    }
}

async fn forward(
    mut client: TcpStream,
    server: SocketAddr,
    nth: usize,
    mut faults: watch::Receiver<Faults>,
) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let fails = |faults: &Faults| nth < faults.n_silent || nth < faults.n_reset;
    tokio::select! {
        biased;
        failed = faults.wait_for(fails) => drop(failed),
        _ = copy_bidirectional(&mut client, &mut server) => return,
    }
    if faults.wait_for(|faults| nth < faults.n_reset).await.is_ok() {
        client.set_zero_linger().unwrap();
    }
}

/// An HTTP proxy that opens tunnels for requests with this Proxy-Authorization header. With `tls` it is itself reached over TLS.
pub async fn http_proxy(
    authorization: &'static str,
    tls: Option<rustls::ServerConfig>,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let n_tunnels = Arc::new(AtomicUsize::new(0));
    let count = n_tunnels.clone();
    let acceptor = tls.map(|mut tls| {
        tls.alpn_protocols.clear();
        tokio_rustls::TlsAcceptor::from(Arc::new(tls))
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (count, acceptor) = (count.clone(), acceptor.clone());
            tokio::spawn(async move {
                match acceptor {
                    None => tunnel(stream, authorization, &count).await,
                    Some(acceptor) => {
                        tunnel(acceptor.accept(stream).await?, authorization, &count).await
                    }
                }
            });
        }
    });
    (address, n_tunnels)
}

async fn tunnel<T: AsyncRead + AsyncWrite + Unpin>(
    mut client: T,
    authorization: &str,
    count: &AtomicUsize,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let expected = format!("\r\nProxy-Authorization: {authorization}\r\n");
    let target = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    let Some(target) = target.filter(|_| head.contains(&expected)) else {
        let refused = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        return client.write_all(refused).await;
    };
    let mut server = TcpStream::connect(target).await?;
    count.fetch_add(1, Ordering::SeqCst);
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
