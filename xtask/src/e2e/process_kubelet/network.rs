//! Network namespaces: sockets in them, and forwarders between them in place of kube-proxy.
//!
//! A namespace has a loopback interface alone, with the addresses of its pod or node; what leaves it goes through a forwarder. So nothing of this
//! machine's network is changed, and nothing is left behind.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A network namespace; it exists as long as a process or this handle refers to it.
#[derive(Clone, Debug)]
pub struct NetworkNamespace(Arc<File>);

/// An address in a namespace.
#[derive(Clone, Debug)]
pub struct Target {
    pub namespace: NetworkNamespace,
    pub address: SocketAddr,
}

impl NetworkNamespace {
    /// That of a process.
    pub fn of_process(id: u32) -> Result<NetworkNamespace> {
        NetworkNamespace::open(&format!("/proc/{id}/ns/net"))
    }

    /// That of this process.
    pub fn own() -> Result<NetworkNamespace> {
        NetworkNamespace::open("/proc/self/ns/net")
    }

    fn open(path: &str) -> Result<NetworkNamespace> {
        let file = File::open(path).with_context(|| format!("opening {path}"))?;
        Ok(NetworkNamespace(Arc::new(file)))
    }

    /// Runs this on a thread in the namespace. A socket stays in the namespace in which it was made.
    fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
                work()
            });
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    }

    fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let listener = self.inside(|| std::net::TcpListener::bind(address))?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream =
            self.inside(|| std::net::TcpStream::connect_timeout(&address, CONNECT_TIMEOUT))?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        TcpStream::from_std(stream)
    }
}

/// Listens on an address and passes connections on. Dropping it closes the listener; connections end with their peers.
#[derive(Debug)]
pub struct Forwarder {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Forwarder {
    /// From an address in a namespace to the target at the time of a connection; without one, connections are closed at once.
    pub fn start(from: &Target, to: watch::Receiver<Option<Target>>) -> Result<Forwarder> {
        let listening = || format!("listening on {}", from.address);
        let listener = from.namespace.listen(from.address).with_context(listening)?;
        let address = listener.local_addr().with_context(listening)?;
        let task = tokio::spawn(async move {
            // An error is that of a connection which has ended already.
            loop {
                let Ok((inbound, _)) = listener.accept().await else { continue };
                let target = to.borrow().clone();
                let connected = target.map(|it| it.namespace.connect(it.address));
                if let Some(Ok(outbound)) = connected {
                    tokio::spawn(pass_on(inbound, outbound));
                }
            }
        });
        Ok(Forwarder { address, task })
    }

    /// To one target.
    pub fn to(from: &Target, to: Target) -> Result<Forwarder> {
        // The last value stays when the sender is gone.
        let (_, to) = watch::channel(Some(to));
        Forwarder::start(from, to)
    }

    /// From a free port of this machine's loopback.
    pub fn from_here(to: Target) -> Result<Forwarder> {
        let from = Target {
            namespace: NetworkNamespace::own()?,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        Forwarder::to(&from, to)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_on(mut inbound: TcpStream, mut outbound: TcpStream) {
    // Both ends see how the other one ended: that is all an error would say.
    let _ = inbound.set_nodelay(true);
    let _ = copy_bidirectional(&mut inbound, &mut outbound).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Also without a second namespace, for which one must be root.
    #[tokio::test]
    async fn connections_are_passed_on() {
        let own = NetworkNamespace::own().unwrap();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = TcpListener::bind(loopback).await.unwrap();
        let target = Target { namespace: own.clone(), address: server.local_addr().unwrap() };
        let (to, targets) = watch::channel(None);
        let from = Target { namespace: own, address: loopback };
        let Ok(forwarder) = Forwarder::start(&from, targets) else {
            return eprintln!("not tested: entering a namespace needs CAP_SYS_ADMIN");
        };
        let mut text = String::new();
        let mut closed = TcpStream::connect(forwarder.address()).await.unwrap();
        closed.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "");

        to.send(Some(target)).unwrap();
        let mut client = TcpStream::connect(forwarder.address()).await.unwrap();
        let (mut peer, _) = server.accept().await.unwrap();
        peer.write_all(b"hello").await.unwrap();
        drop(peer);
        client.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
    }
}
