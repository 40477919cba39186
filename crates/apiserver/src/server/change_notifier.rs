//! Notifies watchers of changes.

#[expect(clippy::disallowed_types, reason = "a shell: watchers run on many threads")]
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::watch::{Receiver, Sender};

use crate::store::TableId;

/// The newest revision of each table, as channels that watchers wait on.
pub(super) struct ChangeNotifier {
    first: u64,
    senders: RwLock<Vec<Sender<u64>>>,
    /// Tables whose watches must end, with the revision after which they do.
    #[expect(clippy::disallowed_types, reason = "a shell: watchers run on many threads")]
    ending: Mutex<Vec<(TableId, u64)>>,
}

impl ChangeNotifier {
    #[expect(clippy::disallowed_types, reason = "a shell: watchers run on many threads")]
    pub fn new(first: u64) -> ChangeNotifier {
        ChangeNotifier { first, senders: RwLock::default(), ending: Mutex::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Sender<u64>>> {
        self.senders.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel that wakes a watcher of a table.
    pub fn subscribe(&self, table: TableId) -> Receiver<u64> {
        if let Some(sender) = self.read().get(table.index()) {
            return sender.subscribe();
        }
        let mut senders = self.senders.write().unwrap_or_else(PoisonError::into_inner);
        while senders.len() <= table.index() {
            senders.push(Sender::new(self.first));
        }
        senders[table.index()].subscribe()
    }

    /// Wakes the watchers of a table.
    pub fn notify(&self, table: TableId, revision: u64) {
        if let Some(sender) = self.read().get(table.index()) {
            sender.send_if_modified(|known| {
                let is_newer = revision > *known;
                *known = revision.max(*known);
                is_newer
            });
        }
    }

    /// Ends the watches of a table as soon as the changes up to a revision may be shown.
    pub fn end_watches_at(&self, table: TableId, revision: u64) {
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        ending.push((table, revision));
    }

    /// Ends the watches that must end up to a revision that may be shown. Watchers read all of it first.
    pub fn end_due_watches(&self, revision: u64) {
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        ending.retain(|(table, at)| {
            let is_due = *at <= revision;
            let mut senders = self.senders.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(sender) = senders.get_mut(table.index()).filter(|_| is_due) {
                *sender = Sender::new(self.first);
            }
            !is_due
        });
    }
}
