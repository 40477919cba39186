//! Operations of the store for the journal: taking changes in order and all objects at a revision, and restoring
//! both.

use std::sync::Arc;

use super::{Change, ChangeKind, Object, Store, Table, TableId};

/// A change in the log that does not follow from the store's state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Changes between the two are missing, or it came twice.
    #[error("revision {found} follows revision {newest}")]
    Gap { found: u64, newest: u64 },
    /// The removal of what is not there.
    #[error("{key} is removed, but does not exist")]
    Missing { key: String },
}

impl Store {
    /// Puts an object in its place without history.
    pub fn restore(&mut self, table: TableId, object: Object) {
        let Table { objects, packer, .. } = &mut self.tables[table.0];
        objects.insert(object.shared_key(), Arc::new(object.packed(packer)));
    }

    /// Applies a change from the log. With `is_removed`, `object` is the last state of a deleted object.
    ///
    /// # Errors
    ///
    /// When it is not the next change; nothing has happened then.
    pub fn replay(
        &mut self,
        table: TableId,
        object: Object,
        is_removed: bool,
    ) -> Result<(), ReplayError> {
        if object.revision() != self.revision + 1 {
            return Err(ReplayError::Gap { found: object.revision(), newest: self.revision });
        }
        let Table { objects, packer, .. } = &mut self.tables[table.0];
        let object = Arc::new(object.packed(packer));
        let previous = if is_removed {
            let Some(previous) = objects.remove(object.key()) else {
                return Err(ReplayError::Missing { key: object.key().to_owned() });
            };
            Some(previous)
        } else {
            objects.insert(object.shared_key(), Arc::clone(&object))
        };
        let kind = match (is_removed, &previous) {
            (true, _) => ChangeKind::Deleted,
            (false, Some(_)) => ChangeKind::Modified,
            (false, None) => ChangeKind::Added,
        };
        self.revision += 1;
        self.record(table, Change { kind, object, previous });
        Ok(())
    }

    /// Collects changes for [`Store::take_outbox`] from now on.
    pub fn open_outbox(&mut self) {
        self.outbox = Some(Vec::new());
    }

    /// The changes since the last call, in order. Who opened the outbox must keep taking them.
    pub fn take_outbox(&mut self) -> Vec<(TableId, Change)> {
        self.outbox.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// All objects of all tables now.
    pub fn all(&self) -> Vec<(TableId, Arc<Object>)> {
        let tables = self.tables.iter().enumerate();
        tables
            .flat_map(|(at, table)| table.objects.values().map(move |it| (TableId(at), it.clone())))
            .collect()
    }
}
