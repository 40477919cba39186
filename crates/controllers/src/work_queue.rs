//! The work queue of one controller: keys that are due, keys that wait for responses, keys that wait for a time. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::kind::Key;

/// Exponential backoff after failures: doubled from the minimum to the maximum.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The backoff after this number of earlier failures.
pub(crate) fn backoff_delay(n_failures: u32) -> Duration {
    BACKOFF_MAX.min(BACKOFF_MIN * (1 << n_failures.min(16)))
}

/// Expectations may be missed while the watch is interrupted: after this time a key is reconciled anyway.
const EXPECTATIONS_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    entries: BTreeMap<Key, Entry>,
    /// Idle entries by due time, busy ones by the timeout of their expectations.
    timers: BTreeSet<(Timestamp, Key)>,
    n_rounds: u64,
}

#[derive(Debug)]
struct Entry {
    timer: Timestamp,
    busy: Option<Busy>,
    n_failures: u32,
}

/// Requests are in flight.
#[derive(Debug, Default)]
struct Busy {
    round: u64,
    n_pending_responses: usize,
    n_pending_expectations: usize,
    /// The key was added again meanwhile.
    is_dirty: bool,
    again_at: Option<Timestamp>,
    failed: bool,
    /// Minimum backoff that the server requested.
    hold: Duration,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestResult {
    Done,
    Failed { retry_after: Duration },
}

impl WorkQueue {
    /// Adds a key, to be reconciled now.
    pub fn add(&mut self, key: &Key, now: Timestamp) {
        match self.entries.get_mut(key) {
            Some(Entry { busy: Some(busy), .. }) => busy.is_dirty = true,
            Some(entry) => {
                let at = entry.timer.min(now);
                self.set_timer(key, at);
            }
            None => {
                self.entries.insert(key.clone(), Entry { timer: now, busy: None, n_failures: 0 });
                self.timers.insert((now, key.clone()));
            }
        }
    }

    /// Returns the next key that is due.
    pub fn next_due(&mut self, now: Timestamp) -> Option<Key> {
        loop {
            let (at, key) = self.timers.first()?.clone();
            if at > now {
                return None;
            }
            if self.entries.get(&key).is_some_and(|entry| entry.busy.is_none()) {
                return Some(key);
            }
            // Its expectations timed out.
            self.finish_round(&key, now, true);
        }
    }

    /// When the next key is due.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Adds a key again after a failure, with exponential backoff.
    pub fn add_rate_limited(&mut self, key: &Key, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(key) {
            let at = saturating_add(now, backoff_delay(entry.n_failures));
            entry.n_failures += 1;
            self.set_timer(key, at);
        }
    }

    /// A key was reconciled without requests.
    pub fn finish(&mut self, key: &Key, again: Option<Duration>, now: Timestamp) {
        match again {
            Some(again) => {
                if let Some(entry) = self.entries.get_mut(key) {
                    entry.n_failures = 0;
                }
                self.set_timer(key, saturating_add(now, again));
            }
            None => self.forget(key),
        }
    }

    /// A key was reconciled with `n_requests` requests. Returns the number of this round.
    pub fn start_requests(
        &mut self,
        key: &Key,
        n_requests: usize,
        again: Option<Duration>,
        now: Timestamp,
    ) -> u64 {
        self.n_rounds += 1;
        let round = self.n_rounds;
        self.set_timer(key, Timestamp::MAX);
        if let Some(entry) = self.entries.get_mut(key) {
            let again_at = again.map(|again| saturating_add(now, again));
            entry.busy =
                Some(Busy { round, n_pending_responses: n_requests, again_at, ..Busy::default() });
        }
        round
    }

    /// Handles a response; `must_see` when the cache does not show its effect yet.
    pub fn handle_response(
        &mut self,
        key: &Key,
        end: RequestResult,
        must_see: bool,
        now: Timestamp,
    ) {
        let Some(busy) = self.entries.get_mut(key).and_then(|entry| entry.busy.as_mut()) else {
            return;
        };
        busy.n_pending_responses = busy.n_pending_responses.saturating_sub(1);
        busy.n_pending_expectations += usize::from(must_see);
        if let RequestResult::Failed { retry_after: hold } = end {
            busy.failed = true;
            busy.hold = busy.hold.max(hold);
        }
        self.check(key, now);
    }

    /// The cache shows the effect of one of the key's requests of a round.
    pub fn expectation_satisfied(&mut self, key: &Key, round: u64, now: Timestamp) {
        let busy = self.entries.get_mut(key).and_then(|entry| entry.busy.as_mut());
        let Some(busy) = busy.filter(|busy| busy.round == round) else { return };
        busy.n_pending_expectations = busy.n_pending_expectations.saturating_sub(1);
        self.check(key, now);
    }

    fn check(&mut self, key: &Key, now: Timestamp) {
        let Some(Entry { busy: Some(busy), timer, .. }) = self.entries.get(key) else { return };
        match (busy.n_pending_responses, busy.n_pending_expectations) {
            (0, 0) => self.finish_round(key, now, false),
            (0, _) if *timer == Timestamp::MAX => {
                self.set_timer(key, saturating_add(now, EXPECTATIONS_TIMEOUT))
            }
            _ => {}
        }
    }

    /// Ends a round: all responses have arrived and the cache shows them, or it timed out.
    fn finish_round(&mut self, key: &Key, now: Timestamp, is_overdue: bool) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(busy) = entry.busy.take() else { return };
        let at = if busy.failed {
            let pause = backoff_delay(entry.n_failures);
            entry.n_failures += 1;
            Some(saturating_add(now, pause.max(busy.hold)))
        } else {
            entry.n_failures = 0;
            if busy.is_dirty || is_overdue { Some(now) } else { busy.again_at }
        };
        match at {
            Some(at) => self.set_timer(key, at),
            None => self.forget(key),
        }
    }

    fn set_timer(&mut self, key: &Key, at: Timestamp) {
        if let Some(entry) = self.entries.get_mut(key)
            && entry.timer != at
        {
            let old = std::mem::replace(&mut entry.timer, at);
            let (_, key) =
                self.timers.take(&(old, key.clone())).unwrap_or_else(|| (old, key.clone()));
            self.timers.insert((at, key));
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.timers.remove(&(entry.timer, key.clone()));
        }
    }
}

/// `now` plus `span`; `Timestamp::MAX` on overflow.
pub(crate) fn saturating_add(now: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span)
        .ok()
        .and_then(|span| now.checked_add(span).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    fn key(name: &str) -> Key {
        Key::new(Kind::Pod, "a", name)
    }

    #[test]
    fn a_key_is_due_again_only_after_responses_and_expectations() {
        let mut queue = WorkQueue::default();
        queue.add(&key("x"), at(0));
        assert_eq!(queue.next_due(at(0)), Some(key("x")));
        let round = queue.start_requests(&key("x"), 2, None, at(0));
        queue.add(&key("x"), at(1));
        assert_eq!(queue.next_due(at(1_000_000)), None, "two answers are missing");
        queue.handle_response(&key("x"), RequestResult::Done, true, at(2));
        queue.handle_response(&key("x"), RequestResult::Done, false, at(3));
        assert_eq!(queue.next_due(at(4)), None, "the cache does not show it");
        queue.expectation_satisfied(&key("x"), round + 1, at(5));
        assert_eq!(queue.next_due(at(5)), None, "that is another round");
        queue.expectation_satisfied(&key("x"), round, at(5));
        assert_eq!(queue.next_due(at(5)), Some(key("x")), "it changed meanwhile");
        queue.finish(&key("x"), None, at(5));
        assert_eq!(
            (queue.next_due(at(9)), queue.next_wakeup(), queue.entries.len()),
            (None, None, 0)
        );
    }

    #[test]
    fn expectations_time_out() {
        let mut queue = WorkQueue::default();
        queue.add(&key("x"), at(0));
        queue.start_requests(&key("x"), 1, None, at(0));
        queue.handle_response(&key("x"), RequestResult::Done, true, at(10));
        assert_eq!(queue.next_wakeup(), Some(at(30_010)));
        assert_eq!(queue.next_due(at(30_009)), None);
        assert_eq!(queue.next_due(at(30_010)), Some(key("x")));
    }

    #[test]
    fn failures_are_retried_with_exponential_backoff() {
        let mut queue = WorkQueue::default();
        queue.add(&key("x"), at(0));
        for want in [50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
            queue.start_requests(&key("x"), 1, None, at(0));
            queue.handle_response(
                &key("x"),
                RequestResult::Failed { retry_after: Duration::ZERO },
                false,
                at(0),
            );
            assert_eq!(queue.next_wakeup(), Some(at(want)));
        }
        queue.start_requests(&key("x"), 1, None, at(0));
        queue.handle_response(
            &key("x"),
            RequestResult::Failed { retry_after: Duration::from_secs(60) },
            false,
            at(0),
        );
        assert_eq!(queue.next_wakeup(), Some(at(60_000)), "Retry-After of the server");
        queue.add(&key("x"), at(7));
        assert_eq!(queue.next_wakeup(), Some(at(7)), "a new event makes it due");
        queue.finish(&key("x"), Some(Duration::from_secs(1)), at(7));
        assert_eq!(queue.next_wakeup(), Some(at(1_007)));
        queue.start_requests(&key("x"), 1, None, at(1_007));
        queue.handle_response(
            &key("x"),
            RequestResult::Failed { retry_after: Duration::ZERO },
            false,
            at(2_000),
        );
        assert_eq!(queue.next_wakeup(), Some(at(2_050)), "a success resets the backoff");
    }

    #[test]
    fn requeue_after_counts_from_the_reconciliation() {
        let mut queue = WorkQueue::default();
        queue.add(&key("x"), at(0));
        queue.start_requests(&key("x"), 1, Some(Duration::from_secs(1)), at(0));
        queue.handle_response(&key("x"), RequestResult::Done, false, at(400));
        assert_eq!(queue.next_wakeup(), Some(at(1_000)));
        queue.add(&key("y"), at(500));
        assert_eq!(queue.next_due(at(1_000)), Some(key("y")));
        queue.finish(&key("y"), None, at(1_000));
        assert_eq!(queue.next_due(at(1_000)), Some(key("x")));
    }
}
