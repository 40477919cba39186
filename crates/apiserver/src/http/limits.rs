//! Limits on connections, requests in flight, watches, sizes and times.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Concurrent connections; others wait to be accepted.
    pub connections: usize,
    /// Concurrent requests without watches; others get 429.
    pub in_flight: usize,
    /// Concurrent watches.
    pub watches: usize,
    /// Bytes of a request's headers.
    pub header_bytes: u32,
    /// How long the TLS handshake, and the headers of an HTTP/1.1 request, may take: connections that are idle for
    /// that long are closed.
    pub header_time: Duration,
    /// How long a client may take to send a body, as kube-apiserver's default request timeout.
    pub body_time: Duration,
    /// A connection that did not answer a ping for that long is closed.
    pub ping_time: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
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

/// The limits as semaphores.
#[derive(Clone, Debug)]
pub(super) struct LimitSemaphores {
    pub bounds: HttpLimits,
    connections: Arc<Semaphore>,
    in_flight: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

impl LimitSemaphores {
    pub fn new(bounds: HttpLimits) -> LimitSemaphores {
        let gate = |n: usize| Arc::new(Semaphore::new(n.min(Semaphore::MAX_PERMITS)));
        LimitSemaphores {
            connections: gate(bounds.connections),
            in_flight: gate(bounds.in_flight),
            watches: gate(bounds.watches),
            bounds,
        }
    }

    /// Waits for a permit for a connection.
    pub async fn connection(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).acquire_owned().await.ok()
    }

    /// A permit for a request, if there is one.
    pub fn request(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.in_flight).try_acquire_owned().ok()
    }

    /// A permit for a watch, if there is one.
    pub fn watch(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.watches).try_acquire_owned().ok()
    }
}
