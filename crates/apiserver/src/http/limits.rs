//! Limits on connections, requests in flight, watches, sizes and times.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_serving::ConnectionLimits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Concurrent connections.
const CONNECTIONS_MAX: usize = 8_192;

/// Limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Of connections.
    pub connections: ConnectionLimits,
    /// Concurrent requests without watches; others get 429.
    pub in_flight: usize,
    /// Concurrent watches.
    pub watches: usize,
    /// How long a client may take to send a body, as kube-apiserver's default request timeout.
    pub body_time: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            connections: ConnectionLimits {
                // All clients have the loopback address.
                connections_max: CONNECTIONS_MAX,
                connections_per_peer_max: CONNECTIONS_MAX,
                // kube-apiserver's default is 100.
                streams_max: 1_000,
                header_bytes_max: 64 * 1024,
                // Also ends idle HTTP/1.1 connections, which upstream's server keeps for so long.
                header_time_max: Duration::from_secs(90),
                ..ConnectionLimits::default()
            },
            in_flight: 4_096,
            watches: 16_384,
            body_time: Duration::from_secs(60),
        }
    }
}

/// The limits as semaphores.
#[derive(Clone, Debug)]
pub(super) struct LimitSemaphores {
    pub bounds: HttpLimits,
    in_flight: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

impl LimitSemaphores {
    pub fn new(bounds: HttpLimits) -> LimitSemaphores {
        let gate = |n: usize| Arc::new(Semaphore::new(n.min(Semaphore::MAX_PERMITS)));
        LimitSemaphores { in_flight: gate(bounds.in_flight), watches: gate(bounds.watches), bounds }
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
