//! How much clients may have under way.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How much clients may have under way, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at a time; others wait to be accepted.
    pub connections: usize,
    /// Requests being read or answered at a time, watches aside; others are told to come again (429).
    pub in_flight: usize,
    /// Watches at a time.
    pub watches: usize,
    /// Bytes of a request's headers.
    pub header_bytes: u32,
    /// How long a connection may take to shake hands, and an HTTP/1.1 client to send the headers of a request: connections
    /// that are idle for that long are closed.
    pub header_time: Duration,
    /// How long a client may take to send a body, as kube-apiserver's default for a whole request.
    pub body_time: Duration,
    /// A connection that did not answer a ping for that long is closed.
    pub ping_time: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 8_192,
            in_flight: 4_096,
            watches: 16_384,
            header_bytes: 64 * 1024,
            header_time: Duration::from_secs(90),
            body_time: Duration::from_secs(60),
            ping_time: Duration::from_secs(30),
        }
    }
}

/// The bounds, counted.
#[derive(Clone, Debug)]
pub(super) struct Gates {
    pub bounds: Bounds,
    connections: Arc<Semaphore>,
    in_flight: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

impl Gates {
    pub fn new(bounds: Bounds) -> Gates {
        let gate = |n: usize| Arc::new(Semaphore::new(n.min(Semaphore::MAX_PERMITS)));
        Gates {
            connections: gate(bounds.connections),
            in_flight: gate(bounds.in_flight),
            watches: gate(bounds.watches),
            bounds,
        }
    }

    /// Waits until another connection may come; none if that never is.
    pub async fn connection(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).acquire_owned().await.ok()
    }

    /// Room for a request, if there is some.
    pub fn request(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.in_flight).try_acquire_owned().ok()
    }

    /// Room for a watch, if there is some.
    pub fn watch(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.watches).try_acquire_owned().ok()
    }
}
