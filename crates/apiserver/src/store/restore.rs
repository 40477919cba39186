//! What durability needs of the store: the changes in order, all objects at a revision, and both put back.

use std::sync::Arc;

use super::{Change, ChangeKind, Object, Store, Table, TableId};

/// A kept change that does not follow from what the store has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// Changes between the two are missing, or it came twice.
    #[error("revision {found} follows revision {newest}")]
    Gap { found: u64, newest: u64 },
    /// The removal of what is not there.
    #[error("{key} is removed and was not there")]
    Missing { key: String },
}

impl Store {
    /// Puts an object in its place without history.
    pub fn restore(&mut self, table: TableId, object: Object) {
        let Table { objects, packer, .. } = &mut self.tables[table.0];
        objects.insert(object.shared_key(), Arc::new(object.packed(packer)));
    }

    /// Makes a change once more. `is_removed` says that `object` is a last state.
    ///
    /// # Errors
    ///
    /// When it is not the next change; nothing has happened then.
    pub fn replay(
        &mut self,
        table: TableId,
        object: Object,
        is_removed: bool,
    ) -> Result<(), Unfit> {
        if object.revision() != self.revision + 1 {
            return Err(Unfit::Gap { found: object.revision(), newest: self.revision });
        }
        let Table { objects, packer, .. } = &mut self.tables[table.0];
        let object = Arc::new(object.packed(packer));
        let previous = if is_removed {
            let Some(previous) = objects.remove(object.key()) else {
                return Err(Unfit::Missing { key: object.key().to_owned() });
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

    /// The changes since this was asked last, in order. Whoever opened the outbox has to empty it.
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
