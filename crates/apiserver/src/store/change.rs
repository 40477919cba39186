//! Changes, and reading them in order.

use std::sync::Arc;

use super::filter::Filter;
use super::object::Object;
use super::{RevisionError, Store, TableId};

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was created (to a watcher: it began to match).
    Added,
    /// It has a new version.
    Modified,
    /// It was deleted (to a watcher: or it no longer matches).
    Deleted,
}

/// An entry of a table's log.
#[derive(Clone, Debug)]
pub struct Change {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The new version; of a deletion, the last state with the revision of the deletion.
    pub object: Arc<Object>,
    /// The version before.
    pub previous: Option<Arc<Object>>,
}

impl Change {
    /// The revision of the write.
    pub fn revision(&self) -> u64 {
        self.object.revision()
    }

    /// Bytes that only this entry keeps in memory.
    pub(super) fn superseded_bytes(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |object| object.size());
        let removed = if self.kind == ChangeKind::Deleted { self.object.size() } else { 0 };
        previous + removed
    }
}

/// A change as an event for a watcher.
#[derive(Clone, Debug)]
pub struct WatchEvent {
    /// The event's type for the watcher.
    pub kind: ChangeKind,
    /// The state to show. Of an object that stopped matching it is the last one that matched.
    pub object: Arc<Object>,
    /// The `resourceVersion` to show, which is that of the change.
    pub revision: u64,
}

/// A watcher's position in a table's log, and its filter.
#[derive(Clone, Debug)]
pub struct Cursor {
    table: TableId,
    after: u64,
    prefix: Box<str>,
    filter: Filter,
}

impl Cursor {
    pub(super) fn new(table: TableId, after: u64, prefix: &str, filter: Filter) -> Cursor {
        Cursor { table, after, prefix: prefix.into(), filter }
    }

    /// All changes up to this revision have been seen; what a bookmark says.
    pub fn revision(&self) -> u64 {
        self.after
    }

    /// The next changes up to a revision, looking at no more than `n_max` entries, and moves on. Empty when there are none
    /// yet, or when none of those looked at concerned the reader; then [`Cursor::revision`] tells how far it is.
    ///
    /// # Errors
    ///
    /// When changes the reader has not seen are compacted.
    pub fn read(
        &mut self,
        store: &Store,
        up_to: u64,
        n_max: usize,
    ) -> Result<Vec<WatchEvent>, RevisionError> {
        let table = &store.tables[self.table.0];
        if self.after < table.compacted {
            let (asked, compacted) = (self.after, table.compacted);
            return Err(RevisionError::Compacted { asked, compacted });
        }
        let mut changes = table.since(self.after).take_while(|change| change.revision() <= up_to);
        let mut deliveries = Vec::new();
        for change in changes.by_ref().take(n_max) {
            deliveries.extend(self.view(change));
            self.after = change.revision();
        }
        if changes.next().is_none() {
            // Later revisions are those of other tables.
            self.after = self.after.max(up_to.min(store.revision));
        }
        Ok(deliveries)
    }

    fn view(&self, change: &Change) -> Option<WatchEvent> {
        let wanted = |object: &Object| {
            object.key().starts_with(&*self.prefix) && self.filter.matches(object)
        };
        let is_seen = change.kind != ChangeKind::Deleted && wanted(&change.object);
        let was_seen = change.previous.as_deref().is_some_and(wanted);
        let (kind, object) = match (was_seen, is_seen) {
            (false, false) => return None,
            (false, true) => (ChangeKind::Added, &change.object),
            (true, true) => (ChangeKind::Modified, &change.object),
            (true, false) if change.kind == ChangeKind::Deleted => {
                (ChangeKind::Deleted, &change.object)
            }
            (true, false) => (ChangeKind::Deleted, change.previous.as_ref()?),
        };
        Some(WatchEvent { kind, object: Arc::clone(object), revision: change.revision() })
    }
}
