//! The open connections, and which one is closed when there are too many.

use std::collections::BTreeMap;
use std::net::IpAddr;
#[expect(clippy::disallowed_types, reason = "connections are served by many threads")]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The open connections of a server.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionTable {
    connections_max: usize,
    per_peer_max: usize,
    #[expect(clippy::disallowed_types, reason = "connections are served by many threads")]
    state: Arc<Mutex<TableState>>,
}

#[derive(Debug, Default)]
struct TableState {
    next_id: u64,
    open: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    peer: IpAddr,
    n_requests: usize,
    has_had_request: bool,
    /// Since when no request is in flight; meaningless while one is.
    idle_since: Instant,
    /// Tells the connection to end at once.
    close: Arc<Notify>,
}

/// A connection in the table; dropping it takes the connection out.
#[derive(Debug)]
pub(crate) struct RegisteredConnection {
    table: ConnectionTable,
    id: u64,
    /// Notified when the connection has to end at once.
    pub close: Arc<Notify>,
}

/// A request in flight; dropping it ends the request.
#[derive(Debug)]
pub(crate) struct RequestInFlight(Arc<RegisteredConnection>);

impl ConnectionTable {
    pub fn new(connections_max: usize, per_peer_max: usize) -> ConnectionTable {
        ConnectionTable { connections_max, per_peer_max, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection and closes an idle one if there are too many. `None` if there are too many and none of them is idle.
    pub fn register(&self, peer: IpAddr, now: Instant) -> Option<RegisteredConnection> {
        // An IPv4 address may come as an IPv6 address that contains it.
        let peer = peer.to_canonical();
        let mut state = self.lock();
        if state.n_connections(peer) >= self.per_peer_max {
            let longest_idle = state.longest_idle(|entry| entry.peer == peer)?;
            state.close(longest_idle);
        } else if state.open.len() >= self.connections_max {
            let longest_idle = state.longest_idle_of_busiest_peer()?;
            state.close(longest_idle);
        }
        let (id, close) = (state.next_id, Arc::new(Notify::new()));
        state.next_id += 1;
        let entry = Entry {
            peer,
            n_requests: 0,
            has_had_request: false,
            idle_since: now,
            close: close.clone(),
        };
        state.open.insert(id, entry);
        drop(state);
        Some(RegisteredConnection { table: self.clone(), id, close })
    }

    /// Closes the connection that is idle for the longest time, of the peer with the most connections.
    pub fn close_an_idle_connection(&self) {
        let mut state = self.lock();
        if let Some(id) = state.longest_idle_of_busiest_peer() {
            state.close(id);
        }
    }
}

impl TableState {
    fn n_connections(&self, peer: IpAddr) -> usize {
        self.open.values().filter(|entry| entry.peer == peer).count()
    }

    fn longest_idle(&self, is_candidate: impl Fn(&Entry) -> bool) -> Option<u64> {
        let idle =
            self.open.iter().filter(|(_, entry)| entry.n_requests == 0 && is_candidate(entry));
        idle.min_by_key(|(id, entry)| (entry.idle_since, **id)).map(|(id, _)| *id)
    }

    /// Of the peers with an idle connection, the one with the most connections loses one.
    fn longest_idle_of_busiest_peer(&self) -> Option<u64> {
        let mut n_by_peer: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for entry in self.open.values() {
            *n_by_peer.entry(entry.peer).or_default() += 1;
        }
        let n_of = |entry: &Entry| n_by_peer.get(&entry.peer).copied();
        let idle = self.open.values().filter(|entry| entry.n_requests == 0);
        let n_max = idle.filter_map(n_of).max();
        self.longest_idle(|entry| n_of(entry) == n_max)
    }

    fn close(&mut self, id: u64) {
        if let Some(entry) = self.open.remove(&id) {
            entry.close.notify_one();
        }
    }
}

impl RegisteredConnection {
    /// A request has arrived.
    pub fn start_request(self: &Arc<Self>) -> RequestInFlight {
        if let Some(entry) = self.table.lock().open.get_mut(&self.id) {
            entry.n_requests += 1;
            entry.has_had_request = true;
        }
        RequestInFlight(self.clone())
    }

    /// When the connection has been idle for too long, if no request arrives before; `None` while one is in flight.
    pub fn idle_deadline(&self, before_first: Duration, after: Duration) -> Option<Instant> {
        let state = self.table.lock();
        let entry = state.open.get(&self.id).filter(|entry| entry.n_requests == 0)?;
        Some(entry.idle_since + if entry.has_had_request { after } else { before_first })
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        self.table.lock().open.remove(&self.id);
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        if let Some(entry) = self.0.table.lock().open.get_mut(&self.0.id) {
            entry.n_requests -= 1;
            entry.idle_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the connections were closed after `steps`: `+a` opens a connection of peer a, `!3` starts a request on the fourth one,
    /// `.3` ends it. A new connection that was not accepted is listed as `x` and its number.
    #[track_caller]
    fn check(connections_max: usize, per_peer_max: usize, steps: &str, want: &str) {
        let table = ConnectionTable::new(connections_max, per_peer_max);
        let mut connections: Vec<Option<Arc<RegisteredConnection>>> = Vec::new();
        let mut requests = BTreeMap::new();
        let start = Instant::now();
        let mut rejected = String::new();
        for (at, step) in steps.split(' ').enumerate() {
            let (action, on) = step.split_at(1);
            if action == "+" {
                let peer = IpAddr::from([10, 0, 0, on.as_bytes()[0]]);
                let opened = table.register(peer, start + Duration::from_secs(at as u64));
                if opened.is_none() {
                    rejected.push_str(&format!(" x{}", connections.len()));
                }
                connections.push(opened.map(Arc::new));
                continue;
            }
            let on: usize = on.parse().unwrap();
            match action {
                "!" => drop(requests.insert(on, connections[on].as_ref().unwrap().start_request())),
                _ => drop(requests.remove(&on)),
            }
        }
        let state = table.lock();
        let is_closed = |it: &&Option<Arc<RegisteredConnection>>| {
            it.as_ref().is_some_and(|it| !state.open.contains_key(&it.id))
        };
        let closed: Vec<String> = connections
            .iter()
            .enumerate()
            .filter(|(_, it)| is_closed(it))
            .map(|(at, _)| at.to_string())
            .collect();
        drop(state);
        assert_eq!(format!("{}{rejected}", closed.join(" ")), want, "{steps}");
    }

    #[test]
    fn the_connection_idle_for_the_longest_time_is_closed() {
        // In total: of the peer with the most connections.
        check(3, 9, "+a +a +a", "");
        check(3, 9, "+a +a +a +a", "0");
        check(3, 9, "+b +a +a +c", "1");
        check(3, 9, "+b +a +a +c +d", "0 1");
        // Per peer: one of its own.
        check(9, 2, "+b +a +a +a +a", "1 2");
        // Requests in flight are not disturbed; afterwards the connection is idle for the shortest time.
        check(2, 9, "+a +a !0 +a", "1");
        check(2, 9, "+a +a !0 !1 +a", " x2");
        check(9, 2, "+a +a !0 !1 +a +b", " x2");
        check(2, 9, "+a !0 .0 +b !1 +c", "0");
        // The busiest peer has requests in flight only.
        check(3, 9, "+a +a +b !0 !1 +c", "2");
    }
}
