//! The multi-version store: pure and synchronous. It holds objects as packed JSON with labels and selectable fields,
//! one revision counter over all tables, and a bounded log of changes per table.
//!
//! Lists and watches read the same log. A watch is a [`Cursor`]: the revision after which it continues. It owns no
//! queue, so no change can be lost, duplicated or reordered between the store and a watcher; one that is too slow
//! gets an error that its revision is compacted. A list at an older revision undoes the changes since then.
//!
//! | | |
//! | --- | --- |
//! | write | O(log n), and packing the bytes (see `packed_json`) |
//! | watch, a change | O(1), shares the object |
//! | list at the newest revision | O(log n + objects passed) |
//! | list at an older revision | the same, plus O(changes of the table since then) |

mod change;
mod filter;
mod object;
mod packed_json;
mod reindex;
mod restore;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

pub use change::{Change, ChangeKind, Cursor, WatchEvent};
pub use filter::{FieldRequirement, Filter, FilterField};
pub use object::{Draft, Object};
pub use restore::ReplayError;

/// Objects of one resource, by key. Made by [`Store::add_table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(usize);

impl TableId {
    /// Tables are numbered from 0 in the order they were added.
    pub fn index(self) -> usize {
        self.0
    }
}

/// How much history a table keeps for watchers and paged lists.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    /// Changes per table.
    pub n_changes_max: usize,
    /// Bytes of old versions that only the log refers to, per table.
    pub superseded_bytes_max: usize,
}

impl Default for StoreLimits {
    fn default() -> Self {
        StoreLimits { n_changes_max: 200_000, superseded_bytes_max: 64 << 20 }
    }
}

/// What must be true of the stored object for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing is stored under the key.
    Absent,
    /// The object has this revision.
    Revision(u64),
}

/// Why a write was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteConflict {
    /// An object with this key is there already.
    #[error("an object with this key already exists")]
    Exists,
    /// There is no such object.
    #[error("there is no object with this key")]
    Missing,
    /// The object has another revision.
    #[error("the object has changed")]
    Changed,
}

/// Why a revision cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevisionError {
    /// Changes up to `compacted` are no longer in the log.
    #[error("revision {asked} is compacted, the oldest that can be read is {compacted}")]
    Compacted { asked: u64, compacted: u64 },
    /// The revision does not exist yet.
    #[error("revision {asked} is in the future, the newest is {newest}")]
    Future { asked: u64, newest: u64 },
}

/// What to list.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListOptions<'a> {
    /// Only keys that start with this; empty for all. A namespace is `name/`.
    pub prefix: &'a str,
    /// Only keys behind this one.
    pub after: Option<&'a str>,
    /// At most so many objects; 0 is no limit.
    pub limit: usize,
    /// At this revision; the newest if absent.
    pub at: Option<u64>,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct Page {
    /// In the order of their keys.
    pub objects: Vec<Arc<Object>>,
    /// The revision of the list.
    pub revision: u64,
    /// The last key, if there are objects behind it.
    pub next: Option<Arc<str>>,
    /// How many keys, selected or not, are behind `next`.
    pub n_remaining: usize,
}

/// The store: all tables and the revision counter. See the module.
#[derive(Debug)]
pub struct Store {
    revision: u64,
    /// The revision before which there is no history.
    first: u64,
    tables: Vec<Table>,
    limits: StoreLimits,
    /// Changes for the journal that it has not taken yet, if there is one.
    outbox: Option<Vec<(TableId, Change)>>,
}

#[derive(Debug, Default)]
struct Table {
    name: Box<str>,
    objects: BTreeMap<Arc<str>, Arc<Object>>,
    log: VecDeque<Change>,
    /// Changes up to this revision are not in the log.
    compacted: u64,
    superseded_bytes: usize,
    packer: packed_json::Packer,
    /// The older revisions listed last, the oldest first: a paged list needs the same one for every page.
    undone: RefCell<Vec<Earlier>>,
}

/// How many older revisions are cached per table.
const N_UNDONE_MAX: usize = 8;

/// What the keys that changed after a revision had then.
#[derive(Debug)]
struct Earlier {
    at: u64,
    /// Changes up to this revision have been seen.
    up_to: u64,
    keys: BTreeMap<Arc<str>, Option<Arc<Object>>>,
}

impl Store {
    /// An empty store at revision 1, as etcd's.
    pub fn new(limits: StoreLimits) -> Store {
        Store::starting_at(1, limits)
    }

    /// An empty store at a revision, without history.
    pub fn starting_at(revision: u64, limits: StoreLimits) -> Store {
        Store { revision, first: revision, tables: Vec::new(), limits, outbox: None }
    }

    /// The table of this name; a new, empty one if there is none. Numbers of tables may differ after a restart, names do
    /// not.
    pub fn add_table(&mut self, name: &str) -> TableId {
        if let Some(known) = self.tables.iter().position(|table| *table.name == *name) {
            return TableId(known);
        }
        let table = Table { name: name.into(), compacted: self.first, ..Table::default() };
        self.tables.push(table);
        TableId(self.tables.len() - 1)
    }

    /// All tables, in the order of their numbers.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = TableId> {
        (0..self.tables.len()).map(TableId)
    }

    /// The name of a table.
    pub fn table_name(&self, table: TableId) -> &str {
        &self.tables[table.0].name
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision of the last change of a table.
    pub fn last_changed(&self, table: TableId) -> u64 {
        let table = &self.tables[table.0];
        table.log.back().map_or(table.compacted, Change::revision)
    }

    /// The newest version of an object.
    pub fn get(&self, table: TableId, key: &str) -> Option<&Arc<Object>> {
        self.tables[table.0].objects.get(key)
    }

    /// How many objects a table has.
    pub fn len(&self, table: TableId) -> usize {
        self.tables[table.0].objects.len()
    }

    /// Whether a table has no objects.
    pub fn is_empty(&self, table: TableId) -> bool {
        self.tables[table.0].objects.is_empty()
    }

    /// Stores a new version and gives it the next revision.
    ///
    /// # Errors
    ///
    /// When `expect` is not met; nothing has happened then.
    pub fn put(
        &mut self,
        table: TableId,
        expect: Precondition,
        draft: Draft,
    ) -> Result<Arc<Object>, WriteConflict> {
        let stored = self.tables[table.0].objects.get(draft.key());
        match (expect, stored) {
            (Precondition::Absent, None) => {}
            (Precondition::Absent, Some(_)) => return Err(WriteConflict::Exists),
            (Precondition::Revision(_), None) => return Err(WriteConflict::Missing),
            (Precondition::Revision(wanted), Some(object)) if object.revision() != wanted => {
                return Err(WriteConflict::Changed);
            }
            (Precondition::Revision(_), Some(_)) => {}
        }
        self.revision += 1;
        let key = stored.map(|object| object.shared_key());
        let Table { objects, packer, .. } = &mut self.tables[table.0];
        let object = Arc::new(draft.into_object(self.revision, key).packed(packer));
        let previous = objects.insert(object.shared_key(), Arc::clone(&object));
        let kind = if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        self.record(table, Change { kind, object: Arc::clone(&object), previous });
        Ok(object)
    }

    /// Removes an object and returns its last state, which carries the revision of the removal. `last` is a state to
    /// show instead of the stored one.
    ///
    /// # Errors
    ///
    /// When there is no such object or it has another revision; nothing has happened then.
    pub fn remove(
        &mut self,
        table: TableId,
        key: &str,
        revision: u64,
        last: Option<Draft>,
    ) -> Result<Arc<Object>, WriteConflict> {
        let stored = self.tables[table.0].objects.get(key).ok_or(WriteConflict::Missing)?;
        if stored.revision() != revision {
            return Err(WriteConflict::Changed);
        }
        self.revision += 1;
        let object = match last {
            Some(draft) => draft.into_object(self.revision, Some(stored.shared_key())),
            None => stored.at_revision(self.revision),
        };
        let Table { objects, packer, .. } = &mut self.tables[table.0];
        let object = Arc::new(object.packed(packer));
        let previous = objects.remove(key);
        let change = Change { kind: ChangeKind::Deleted, object: Arc::clone(&object), previous };
        self.record(table, change);
        Ok(object)
    }

    fn record(&mut self, table: TableId, change: Change) {
        if let Some(outbox) = &mut self.outbox {
            outbox.push((table, change.clone()));
        }
        self.tables[table.0].record(change, &self.limits);
    }

    /// The objects that `filter` selects, in the order of their keys.
    ///
    /// # Errors
    ///
    /// When `span.at` is compacted or in the future.
    pub fn list(
        &self,
        table: TableId,
        span: &ListOptions<'_>,
        filter: &Filter,
    ) -> Result<Page, RevisionError> {
        let at = span.at.unwrap_or(self.revision);
        let table = &self.tables[table.0];
        self.check_readable(table, at)?;
        let mut known = table.undone.borrow_mut();
        let undone = table.undone_since(at, &mut known);
        let mut objects = Vec::new();
        let mut keys = Merged::new(&table.objects, undone, span);
        let mut next = None;
        for object in keys.by_ref() {
            if filter.matches(object) {
                objects.push(Arc::clone(object));
                if objects.len() == span.limit {
                    next = Some(object.shared_key());
                    break;
                }
            }
        }
        let n_remaining = if next.is_some() { keys.count() } else { 0 };
        let next = next.filter(|_| n_remaining > 0);
        Ok(Page { objects, revision: at, next, n_remaining })
    }

    /// A watch over the changes after a revision.
    ///
    /// # Errors
    ///
    /// When `after` is compacted or in the future.
    pub fn watch(
        &self,
        table: TableId,
        after: u64,
        prefix: &str,
        filter: Filter,
    ) -> Result<Cursor, RevisionError> {
        self.check_readable(&self.tables[table.0], after)?;
        Ok(Cursor::new(table, after, prefix, filter))
    }

    fn check_readable(&self, table: &Table, asked: u64) -> Result<(), RevisionError> {
        if asked > self.revision {
            return Err(RevisionError::Future { asked, newest: self.revision });
        }
        if asked < table.compacted {
            return Err(RevisionError::Compacted { asked, compacted: table.compacted });
        }
        Ok(())
    }

    /// Drops the history of a table up to a revision; its readers get an error.
    pub fn compact(&mut self, table: TableId, revision: u64) {
        let revision = revision.min(self.revision);
        let table = &mut self.tables[table.0];
        while table.log.front().is_some_and(|change| change.revision() <= revision) {
            table.forget_oldest();
        }
        table.compacted = table.compacted.max(revision);
    }
}

impl Table {
    fn record(&mut self, change: Change, limits: &StoreLimits) {
        self.superseded_bytes += change.superseded_bytes();
        self.log.push_back(change);
        while self.log.len() > limits.n_changes_max
            || self.superseded_bytes > limits.superseded_bytes_max
        {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(change) = self.log.pop_front() else { return };
        self.superseded_bytes -= change.superseded_bytes();
        self.compacted = change.revision();
        if !self.undone.get_mut().is_empty() {
            self.undone.get_mut().retain(|it| it.at >= self.compacted);
        }
    }

    /// The changes after a revision, in order.
    fn since(&self, after: u64) -> impl DoubleEndedIterator<Item = &Change> {
        let start = self.log.partition_point(|change| change.revision() <= after);
        self.log.range(start..)
    }

    /// The states, at a revision, of the keys that changed after it. Only changes since the last call are read.
    fn undone_since<'a>(
        &self,
        at: u64,
        known: &'a mut Vec<Earlier>,
    ) -> &'a BTreeMap<Arc<str>, Option<Arc<Object>>> {
        static NOTHING: BTreeMap<Arc<str>, Option<Arc<Object>>> = BTreeMap::new();
        let Some(last) = self.log.back().map(Change::revision).filter(|last| *last > at) else {
            return &NOTHING;
        };
        let place = known.iter().position(|it| it.at == at).unwrap_or_else(|| {
            if known.len() == N_UNDONE_MAX {
                known.remove(0);
            }
            known.push(Earlier { at, up_to: at, keys: BTreeMap::new() });
            known.len() - 1
        });
        let undone = &mut known[place];
        for change in self.since(undone.up_to) {
            let earlier = || change.previous.clone();
            undone.keys.entry(change.object.shared_key()).or_insert_with(earlier);
        }
        undone.up_to = last;
        &undone.keys
    }
}

type Present<'a> = std::collections::btree_map::Range<'a, Arc<str>, Arc<Object>>;
type Undone<'a> = std::collections::btree_map::Range<'a, Arc<str>, Option<Arc<Object>>>;

/// The objects of a span in key order: those of now, with older states laid over them.
struct Merged<'a> {
    present: std::iter::Peekable<Present<'a>>,
    undone: std::iter::Peekable<Undone<'a>>,
    prefix: &'a str,
}

impl<'a> Merged<'a> {
    fn new(
        present: &'a BTreeMap<Arc<str>, Arc<Object>>,
        undone: &'a BTreeMap<Arc<str>, Option<Arc<Object>>>,
        span: &ListOptions<'a>,
    ) -> Merged<'a> {
        let start = match span.after {
            Some(key) if key >= span.prefix => Bound::Excluded(key),
            _ => Bound::Included(span.prefix),
        };
        let bounds = (start, Bound::Unbounded);
        Merged {
            present: present.range::<str, _>(bounds).peekable(),
            undone: undone.range::<str, _>(bounds).peekable(),
            prefix: span.prefix,
        }
    }
}

impl<'a> Iterator for Merged<'a> {
    type Item = &'a Arc<Object>;

    fn next(&mut self) -> Option<&'a Arc<Object>> {
        loop {
            let now = self.present.peek().map(|(key, _)| &***key);
            let then = self.undone.peek().map(|(key, _)| &***key);
            let key = match (now, then) {
                (Some(now), Some(then)) => now.min(then),
                (Some(key), None) | (None, Some(key)) => key,
                (None, None) => return None,
            };
            if !key.starts_with(self.prefix) {
                return None;
            }
            let (has_now, has_then) = (now == Some(key), then == Some(key));
            let present = if has_now { self.present.next() } else { None };
            let undone = if has_then { self.undone.next() } else { None };
            match (undone, present) {
                (Some((_, Some(object))), _) | (None, Some((_, object))) => return Some(object),
                // Not there at that revision.
                _ => {}
            }
        }
    }
}
