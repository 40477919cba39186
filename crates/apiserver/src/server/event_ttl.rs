//! Time to live of events (`--event-ttl`). Instead of a time per event, the newest revision is recorded every now and
//! then; an event is deleted if its last write is not newer than the revision recorded one time to live ago.

use std::collections::VecDeque;
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use super::ApiServer;
use crate::store::{Filter, ListOptions};

/// How often revisions are recorded, in seconds; more often for a shorter time to live.
const RECORD_INTERVAL_SECONDS: i64 = 60;

/// Recorded revisions, with their times in seconds.
#[derive(Debug, Default)]
pub(super) struct EventExpiry {
    due: AtomicI64,
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    notes: Mutex<VecDeque<(i64, u64)>>,
}

impl EventExpiry {
    /// Records a revision, and returns the one recorded one time to live ago.
    fn record_revision(&self, now: i64, revision: u64, ttl: i64) -> Option<u64> {
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
    /// Deletes expired events; cheap when there is nothing to do.
    pub(super) fn expire_events(&self) {
        let ttl = self.shared.setup.event_ttl.as_secs();
        let expiry = &self.shared.expiry;
        let now = self.now().as_second();
        if ttl <= 0 || now < expiry.due.load(Ordering::Relaxed) {
            return;
        }
        let every = RECORD_INTERVAL_SECONDS.min(ttl);
        // Another thread may have done it.
        let due = expiry.due.fetch_max(now + every, Ordering::Relaxed);
        if now < due {
            return;
        }
        let revision = self.state().store.revision();
        let Some(old) = expiry.record_revision(now, revision, ttl) else { return };
        let Some(table) = self.kinds().find_stable("", "events").and_then(|it| it.table) else {
            return;
        };
        let page = self.state().store.list(table, &ListOptions::default(), &Filter::everything());
        let Ok(page) = page else { return };
        for event in page.objects.iter().filter(|it| it.revision() <= old) {
            let removed = self.state().store.remove(table, event.key(), event.revision(), None);
            // One that was written meanwhile stays.
            if let Ok(last) = removed {
                self.on_write(table, last.revision());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_revisions_are_returned_after_the_ttl() {
        let expiry = EventExpiry::default();
        let notes = [(0, 10, None), (60, 20, None), (120, 30, Some(10)), (125, 40, None)];
        for (now, revision, want) in notes {
            assert_eq!(expiry.record_revision(now, revision, 100), want, "{now}");
        }
        assert_eq!(expiry.record_revision(400, 50, 100), Some(40));
    }
}
