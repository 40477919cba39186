//! A connection pool. A slot is the capacity of a connection for one request.

#![expect(clippy::disallowed_types, reason = "connections are shared between tasks")]

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Response;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ConnectionLimits;
use crate::connect::{Cluster, Unsigned};
use crate::dial::{self, ConnectionSettings, Sender};

type H1 = http1::SendRequest<http_body_util::Full<bytes::Bytes>>;
type H2 = http2::SendRequest<http_body_util::Full<bytes::Bytes>>;

/// The connections of a client, up to a limit.
pub(super) struct Pool {
    cluster: Cluster,
    name: &'static str,
    limits: ConnectionLimits,
    settings: ConnectionSettings,
    state: Mutex<State>,
    /// Notified when a slot becomes free, and all waiters when dialing ends.
    freed: Notify,
}

#[derive(Default)]
struct State {
    h2: Vec<Http2Connection>,
    /// Idle connections.
    h1_idle: Vec<Http1Connection>,
    /// Number of HTTP/1.1 connections, busy ones included.
    n_h1: usize,
    /// Whether the last connection was HTTP/1.1.
    is_h1: bool,
    n_dialing: usize,
    n_failures: u64,
    failure: Option<Arc<str>>,
    next_id: u64,
}

/// An HTTP/2 connection.
struct Http2Connection {
    id: u64,
    sender: H2,
    n_requests: usize,
    n_requests_max: Arc<AtomicUsize>,
    info: ConnectionInfo,
}

/// An HTTP/1.1 connection.
struct Http1Connection {
    sender: H1,
    info: ConnectionInfo,
}

/// What decides whether a connection is used again.
#[derive(Clone, Copy)]
struct ConnectionInfo {
    /// When a response last began; at first, when it was opened.
    last_response_at: Instant,
    /// The generation of its client certificate.
    generation: u64,
}

/// HTTP/1.1 connections that are opened concurrently; of HTTP/2 connections only one, because it carries many requests.
const N_DIALING_H1: usize = 8;

enum Next {
    Take(SlotConnection, ConnectionInfo),
    Dial,
    Wait,
    Fail(Arc<str>),
}

impl Pool {
    pub(super) fn new(
        cluster: Cluster,
        name: &'static str,
        limits: ConnectionLimits,
        settings: ConnectionSettings,
    ) -> Pool {
        let (state, freed) = (Mutex::default(), Notify::new());
        Pool { cluster, name, limits, settings, state, freed }
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for one request. Opens a connection when all are busy, and waits when the limit is reached.
    pub(super) async fn acquire_slot(self: &Arc<Self>) -> Result<Slot, Arc<str>> {
        let n_failures = self.state().n_failures;
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            let next = self.next(n_failures);
            match next {
                Next::Take(connection, info) => {
                    let mut slot = Slot {
                        pool: self.clone(),
                        connection: Some(connection),
                        info,
                        is_finished: false,
                    };
                    if slot.is_ready().await {
                        return Ok(slot);
                    }
                }
                Next::Dial => self.dial().await?,
                Next::Wait => freed.await,
                Next::Fail(text) => return Err(text),
            }
        }
    }

    fn next(&self, n_failures_before: u64) -> Next {
        let generation = self.cluster.access_generation();
        let mut state = self.state();
        let state = &mut *state;
        let is_current = |info: ConnectionInfo| info.generation == generation;
        state.h2.retain(|shared| !shared.sender.is_closed() && is_current(shared.info));
        let least = state.h2.iter_mut().min_by_key(|shared| shared.n_requests);
        if let Some(shared) = least
            && shared.n_requests < shared.n_requests_max.load(Ordering::Relaxed).max(1)
        {
            shared.n_requests += 1;
            let connection = SlotConnection::H2(shared.id, shared.sender.clone());
            return Next::Take(connection, shared.info);
        }
        while let Some(Http1Connection { sender, info }) = state.h1_idle.pop() {
            if !sender.is_closed() && is_current(info) {
                return Next::Take(SlotConnection::H1(sender), info);
            }
            state.n_h1 -= 1;
        }
        // A request that waited for a connection which could not be opened fails, too.
        if let Some(failure) = &state.failure
            && state.n_failures > n_failures_before
            && state.n_dialing == 0
            && state.h2.is_empty()
            && state.n_h1 == 0
        {
            return Next::Fail(failure.clone());
        }
        let (n_open, n_open_max, n_dialing_max) = if state.is_h1 {
            (state.n_h1, self.limits.http1_connections_max, N_DIALING_H1)
        } else {
            (state.h2.len(), self.limits.http2_connections_max, 1)
        };
        if n_open + state.n_dialing < n_open_max && state.n_dialing < n_dialing_max {
            state.n_dialing += 1;
            return Next::Dial;
        }
        Next::Wait
    }

    /// Opens a connection, which is then used by the first request that needs one.
    async fn dial(self: &Arc<Self>) -> Result<(), Arc<str>> {
        // Decremented also when the dialing request is canceled.
        let _dialing = Dialing(self);
        let dialed = dial::dial(&self.cluster, self.settings).await;
        let mut state = self.state();
        let state = &mut *state;
        match dialed {
            Ok((Sender::H2(sender, n_requests_max), generation)) => {
                tracing::debug!(client = self.name, "Connected over HTTP/2");
                state.is_h1 = false;
                state.next_id += 1;
                let id = state.next_id;
                let info = ConnectionInfo { last_response_at: Instant::now(), generation };
                state.h2.push(Http2Connection { id, sender, n_requests: 0, n_requests_max, info });
                Ok(())
            }
            Ok((Sender::H1(sender), generation)) => {
                tracing::debug!(client = self.name, "Connected over HTTP/1.1");
                state.is_h1 = true;
                state.n_h1 += 1;
                let info = ConnectionInfo { last_response_at: Instant::now(), generation };
                state.h1_idle.push(Http1Connection { sender, info });
                Ok(())
            }
            Err(text) => {
                let text: Arc<str> = text.into();
                state.n_failures += 1;
                state.failure = Some(text.clone());
                Err(text)
            }
        }
    }

    /// A request that was sent at this time got no response in time: its HTTP/2 connection, and all from which nothing has arrived since
    /// then, get no more requests. Those in flight on them still finish.
    pub(super) fn retire(&self, connection: Option<u64>, sent_at: Instant) {
        let mut state = self.state();
        state.h2.retain(|shared| {
            Some(shared.id) != connection && shared.info.last_response_at >= sent_at
        });
        let n_idle = state.h1_idle.len();
        state.h1_idle.retain(|idle| idle.info.last_response_at >= sent_at);
        state.n_h1 -= n_idle - state.h1_idle.len();
        drop(state);
        self.freed.notify_waiters();
    }
}

struct Dialing<'a>(&'a Pool);

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        self.0.state().n_dialing -= 1;
        self.0.freed.notify_waiters();
    }
}

enum SlotConnection {
    H2(u64, H2),
    H1(H1),
}

/// The capacity of a connection for one request, until its response has been read.
pub(super) struct Slot {
    pool: Arc<Pool>,
    connection: Option<SlotConnection>,
    info: ConnectionInfo,
    is_finished: bool,
}

impl Slot {
    /// The id of an HTTP/2 connection.
    pub(super) fn h2_id(&self) -> Option<u64> {
        match self.connection {
            Some(SlotConnection::H2(id, _)) => Some(id),
            _ => None,
        }
    }

    /// The generation of the credentials of the connection.
    pub(super) fn generation(&self) -> u64 {
        self.info.generation
    }

    /// The rest of the response did not arrive, and nothing has since this time.
    pub(super) fn retire(&self, silent_since: Instant) {
        self.pool.retire(self.h2_id(), silent_since);
    }

    /// Waits until the connection accepts a request. An HTTP/1.1 connection may still be busy with its last response, or be closed.
    async fn is_ready(&mut self) -> bool {
        match &mut self.connection {
            Some(SlotConnection::H1(sender)) => sender.ready().await.is_ok(),
            connection => connection.is_some(),
        }
    }

    /// Sends a request. The error is `None` when the connection did not accept the request.
    pub(super) async fn send(
        &mut self,
        request: Unsigned,
    ) -> Result<Response<Incoming>, Option<hyper::Error>> {
        let sent = match &mut self.connection {
            Some(SlotConnection::H2(_, sender)) => sender.try_send_request(request).await,
            Some(SlotConnection::H1(sender)) => sender.try_send_request(request).await,
            None => return Err(None),
        };
        let response = sent.map_err(|mut error| match error.take_message() {
            Some(_) => None,
            None => Some(error.into_error()),
        })?;
        self.info.last_response_at = Instant::now();
        if let Some(id) = self.h2_id()
            && let Some(shared) = self.pool.state().h2.iter_mut().find(|shared| shared.id == id)
        {
            shared.info.last_response_at = self.info.last_response_at;
        }
        Ok(response)
    }

    /// The response has been read to its end: an HTTP/1.1 connection can be reused.
    pub(super) fn finish(&mut self) {
        self.is_finished = true;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        match self.connection.take() {
            Some(SlotConnection::H2(id, _)) => {
                if let Some(shared) = state.h2.iter_mut().find(|shared| shared.id == id) {
                    shared.n_requests -= 1;
                }
            }
            Some(SlotConnection::H1(sender)) if self.is_finished && !sender.is_closed() => {
                state.h1_idle.push(Http1Connection { sender, info: self.info });
            }
            Some(SlotConnection::H1(_)) => state.n_h1 -= 1,
            None => {}
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}
