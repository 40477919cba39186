//! The keys of one controller: which are due, which wait for answers, which wait for their time. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::kind::Key;

/// Pauses after failures: doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The pause after so many failures before this one.
pub(crate) fn pause(n_failures: u32) -> Duration {
    PAUSE_MAX.min(PAUSE_MIN * (1 << n_failures.min(16)))
}

/// What the cache should show may have been overtaken while the watch was broken: after so long a key is looked at anyway.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<Key, Entry>,
    /// Every entry that is not busy by its due time, every busy one by when patience ends.
    timers: BTreeSet<(Timestamp, Key)>,
    n_rounds: u64,
}

#[derive(Debug)]
struct Entry {
    timer: Timestamp,
    busy: Option<Busy>,
    n_failures: u32,
}

/// Requests are under way.
#[derive(Debug, Default)]
struct Busy {
    round: u64,
    n_answers: usize,
    n_sights: usize,
    /// Something changed meanwhile.
    is_dirty: bool,
    again_at: Option<Timestamp>,
    failed: bool,
    /// The server wants to be left alone for so long.
    hold: Duration,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Done,
    Failed { hold: Duration },
}

impl Queue {
    /// A key may have to be reconciled.
    pub fn touch(&mut self, key: &Key, now: Timestamp) {
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

    /// The next key that is due.
    pub fn due(&mut self, now: Timestamp) -> Option<Key> {
        loop {
            let (at, key) = self.timers.first()?.clone();
            if at > now {
                return None;
            }
            if self.entries.get(&key).is_some_and(|entry| entry.busy.is_none()) {
                return Some(key);
            }
            // Its patience is over.
            self.settle(&key, now, true);
        }
    }

    /// When something is due next.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// A key could not be reconciled.
    pub fn fail(&mut self, key: &Key, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(key) {
            let at = after(now, pause(entry.n_failures));
            entry.n_failures += 1;
            self.set_timer(key, at);
        }
    }

    /// A key was reconciled, and there is nothing to be sent.
    pub fn rest(&mut self, key: &Key, again: Option<Duration>, now: Timestamp) {
        match again {
            Some(again) => {
                if let Some(entry) = self.entries.get_mut(key) {
                    entry.n_failures = 0;
                }
                self.set_timer(key, after(now, again));
            }
            None => self.forget(key),
        }
    }

    /// A key was reconciled, and so many requests are to be sent. Answers the number of this round.
    pub fn begin(
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
            let again_at = again.map(|again| after(now, again));
            entry.busy = Some(Busy { round, n_answers: n_requests, again_at, ..Busy::default() });
        }
        round
    }

    /// An answer has come; `must_see` when the cache does not show yet what was done.
    pub fn answered(&mut self, key: &Key, end: End, must_see: bool, now: Timestamp) {
        let Some(busy) = self.entries.get_mut(key).and_then(|entry| entry.busy.as_mut()) else {
            return;
        };
        busy.n_answers = busy.n_answers.saturating_sub(1);
        busy.n_sights += usize::from(must_see);
        if let End::Failed { hold } = end {
            busy.failed = true;
            busy.hold = busy.hold.max(hold);
        }
        self.check(key, now);
    }

    /// The cache shows what one of the key's requests of a round did.
    pub fn seen(&mut self, key: &Key, round: u64, now: Timestamp) {
        let busy = self.entries.get_mut(key).and_then(|entry| entry.busy.as_mut());
        let Some(busy) = busy.filter(|busy| busy.round == round) else { return };
        busy.n_sights = busy.n_sights.saturating_sub(1);
        self.check(key, now);
    }

    fn check(&mut self, key: &Key, now: Timestamp) {
        let Some(Entry { busy: Some(busy), timer, .. }) = self.entries.get(key) else { return };
        match (busy.n_answers, busy.n_sights) {
            (0, 0) => self.settle(key, now, false),
            (0, _) if *timer == Timestamp::MAX => self.set_timer(key, after(now, PATIENCE)),
            _ => {}
        }
    }

    /// All answers are there and seen, or it has taken too long.
    fn settle(&mut self, key: &Key, now: Timestamp, is_overdue: bool) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(busy) = entry.busy.take() else { return };
        let at = if busy.failed {
            let pause = pause(entry.n_failures);
            entry.n_failures += 1;
            Some(after(now, pause.max(busy.hold)))
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

/// A moment so long after another; the end of time when there is none.
pub(crate) fn after(now: Timestamp, span: Duration) -> Timestamp {
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
    fn a_key_is_due_again_only_after_answers_and_sights() {
        let mut queue = Queue::default();
        queue.touch(&key("x"), at(0));
        assert_eq!(queue.due(at(0)), Some(key("x")));
        let round = queue.begin(&key("x"), 2, None, at(0));
        queue.touch(&key("x"), at(1));
        assert_eq!(queue.due(at(1_000_000)), None, "two answers are missing");
        queue.answered(&key("x"), End::Done, true, at(2));
        queue.answered(&key("x"), End::Done, false, at(3));
        assert_eq!(queue.due(at(4)), None, "the cache does not show it");
        queue.seen(&key("x"), round + 1, at(5));
        assert_eq!(queue.due(at(5)), None, "that is another round");
        queue.seen(&key("x"), round, at(5));
        assert_eq!(queue.due(at(5)), Some(key("x")), "it changed meanwhile");
        queue.rest(&key("x"), None, at(5));
        assert_eq!((queue.due(at(9)), queue.wake_at(), queue.entries.len()), (None, None, 0));
    }

    #[test]
    fn what_never_shows_is_given_up() {
        let mut queue = Queue::default();
        queue.touch(&key("x"), at(0));
        queue.begin(&key("x"), 1, None, at(0));
        queue.answered(&key("x"), End::Done, true, at(10));
        assert_eq!(queue.wake_at(), Some(at(30_010)));
        assert_eq!(queue.due(at(30_009)), None);
        assert_eq!(queue.due(at(30_010)), Some(key("x")));
    }

    #[test]
    fn failures_are_repeated_later_each_time() {
        let mut queue = Queue::default();
        queue.touch(&key("x"), at(0));
        for want in [50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
            queue.begin(&key("x"), 1, None, at(0));
            queue.answered(&key("x"), End::Failed { hold: Duration::ZERO }, false, at(0));
            assert_eq!(queue.wake_at(), Some(at(want)));
        }
        queue.begin(&key("x"), 1, None, at(0));
        queue.answered(&key("x"), End::Failed { hold: Duration::from_secs(60) }, false, at(0));
        assert_eq!(queue.wake_at(), Some(at(60_000)), "the server said so");
        queue.touch(&key("x"), at(7));
        assert_eq!(queue.wake_at(), Some(at(7)), "news may have mended it");
        queue.rest(&key("x"), Some(Duration::from_secs(1)), at(7));
        assert_eq!(queue.wake_at(), Some(at(1_007)));
        queue.begin(&key("x"), 1, None, at(1_007));
        queue.answered(&key("x"), End::Failed { hold: Duration::ZERO }, false, at(2_000));
        assert_eq!(queue.wake_at(), Some(at(2_050)), "a success makes it forget");
    }

    #[test]
    fn again_counts_from_the_reconciliation() {
        let mut queue = Queue::default();
        queue.touch(&key("x"), at(0));
        queue.begin(&key("x"), 1, Some(Duration::from_secs(1)), at(0));
        queue.answered(&key("x"), End::Done, false, at(400));
        assert_eq!(queue.wake_at(), Some(at(1_000)));
        queue.touch(&key("y"), at(500));
        assert_eq!(queue.due(at(1_000)), Some(key("y")));
        queue.rest(&key("y"), None, at(1_000));
        assert_eq!(queue.due(at(1_000)), Some(key("x")));
    }
}
