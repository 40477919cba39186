//! Events do not stay for ever. Nobody writes down when each was written: now and then the newest revision is noted, and
//! an event whose last write is not newer than a note as old as the time to live goes.

use std::collections::VecDeque;
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use super::ApiServer;
use crate::store::{Filter, Span};

/// How often revisions are noted, in seconds; a shorter time to live is looked at oftener.
const NOTED_EVERY: i64 = 60;

/// Revisions noted, with their times in seconds.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    due: AtomicI64,
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    notes: Mutex<VecDeque<(i64, u64)>>,
}

impl Expiry {
    /// Notes a revision, and returns the one as old as the time to live.
    fn note(&self, now: i64, revision: u64, ttl: i64) -> Option<u64> {
        let mut notes = self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        notes.push_back((now, revision));
        let mut old = None;
        while let Some((at, revision)) = notes.front() {
            if now - at < ttl {
                break;
            }
            old = Some(*revision);
            notes.pop_front();
        }
        old
    }
}

impl ApiServer {
    /// Removes the events whose time is over; cheap when there is nothing to do.
    pub(super) fn expire_events(&self) {
        let ttl = self.shared.setup.event_ttl.as_secs();
        let expiry = &self.shared.expiry;
        let now = self.now().as_second();
        if ttl <= 0 || now < expiry.due.load(Ordering::Relaxed) {
            return;
        }
        let every = NOTED_EVERY.min(ttl);
        // Somebody else may have been faster.
        let due = expiry.due.fetch_max(now + every, Ordering::Relaxed);
        if now < due {
            return;
        }
        let revision = self.state().store.revision();
        let Some(old) = expiry.note(now, revision, ttl) else { return };
        let Some(table) = self.kinds().named("", "events").and_then(|it| it.table) else { return };
        let page = self.state().store.list(table, &Span::default(), &Filter::everything());
        let Ok(page) = page else { return };
        for event in page.objects.iter().filter(|it| it.revision() <= old) {
            let removed = self.state().store.remove(table, event.key(), event.revision(), None);
            // One that was written meanwhile stays.
            if let Ok(last) = removed {
                self.announce(table, last.revision());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_when_it_is_old() {
        let expiry = Expiry::default();
        let notes = [(0, 10, None), (60, 20, None), (120, 30, Some(10)), (125, 40, None)];
        for (now, revision, want) in notes {
            assert_eq!(expiry.note(now, revision, 100), want, "{now}");
        }
        assert_eq!(expiry.note(400, 50, 100), Some(40));
    }
}
