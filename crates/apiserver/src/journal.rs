//! The write-ahead log of the store: it writes the store's changes to a data directory, in order, and reports which
//! revision is durable.
//!
//! A data directory holds one snapshot (all objects at a revision) and the log of the changes after it. One thread
//! takes all pending changes, writes them as one frame, and syncs once for all of them; then requests are answered
//! and watchers notified. When the log has outgrown the snapshot, the thread begins a new log, a second one writes a
//! new snapshot, and the old files are deleted. After a restart the log is also the history for watches.
//!
//! | part | what it is |
//! | --- | --- |
//! | `frame` | bytes with checksums: what is whole, torn, or damaged; pure |
//! | `record` | changes as bytes and back; pure |
//! | `data_dir` | the files, their lock, and reading them at start |
//! | `writer` | the thread |

mod data_dir;
mod frame;
mod record;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use tokio::sync::{oneshot, watch};

use crate::store::{Change, Object, Store, StoreLimits, TableId};
use data_dir::DataDir;
use writer::{Wake, Writer};

/// Why the data cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    #[error("{doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} is in use by another server", path.display())]
    Locked { path: PathBuf },
    #[error("{}, byte {at}: {what}", path.display())]
    Corrupt { path: PathBuf, at: u64, what: String },
    #[error("{}: there is no {}", folder.display(), missing)]
    Incomplete { folder: PathBuf, missing: String },
}

/// When a new snapshot is made.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPolicy {
    /// A log smaller than this stays, however small the snapshot is.
    pub log_bytes_min: u64,
}

impl Default for SnapshotPolicy {
    fn default() -> Self {
        // Reading so much at a restart takes a fraction of a second.
        SnapshotPolicy { log_bytes_min: 64 << 20 }
    }
}

/// The source of changes: the store behind its lock.
pub trait ChangeSource: Send + 'static {
    /// The changes since the last call, and with `whole` all objects after them; none when the store has been
    /// dropped.
    fn take(&mut self, whole: bool) -> Option<PendingChanges>;

    /// The change of a table is durable: watchers may see it.
    fn publish(&self, table: TableId, revision: u64);
}

/// What [`ChangeSource::take`] gives.
#[derive(Debug, Default)]
pub struct PendingChanges {
    /// Names of all tables, by number.
    pub names: Arc<[Box<str>]>,
    pub changes: Vec<(TableId, Change)>,
    /// Objects as of the last change.
    pub whole: Option<AllObjects>,
}

/// A revision and all objects at it.
pub type AllObjects = (u64, Vec<(TableId, Arc<Object>)>);

/// An opened data directory, which stays locked, and the store read from it.
pub struct OpenJournal {
    /// With the history since the last snapshot.
    pub store: Store,
    /// The directory was empty.
    pub is_new: bool,
    /// Labels and selectable fields were computed by another version of this program.
    pub is_outdated: bool,
    folder: DataDir,
    fingerprint: u32,
}

impl OpenJournal {
    /// Reads a data directory, or creates it. `fingerprint` identifies the rules for labels and selectable fields.
    ///
    /// # Errors
    ///
    /// When it cannot be read or written, another server uses it, or a file is damaged. An incomplete last write,
    /// which no client saw, is no damage.
    pub fn open(
        path: &Path,
        limits: StoreLimits,
        fingerprint: u32,
    ) -> Result<OpenJournal, DataError> {
        let mut folder = DataDir::lock(path)?;
        let read = folder.read(limits, fingerprint)?;
        let (is_new, is_outdated) = (read.is_new, read.is_outdated);
        Ok(OpenJournal { store: read.store, is_new, is_outdated, folder, fingerprint })
    }

    /// The store, and its journal before it runs. [`UnstartedJournal::start`] takes the source of the store's changes.
    pub fn into_parts(mut self) -> (Store, UnstartedJournal) {
        self.store.open_outbox();
        let (wake, inbox) = mpsc::channel();
        let (durable, seen) = watch::channel(self.store.revision());
        let handle = JournalHandle { wake: wake.clone(), durable: seen };
        let parts = (self.folder, self.fingerprint);
        (
            self.store,
            UnstartedJournal {
                handle,
                wake,
                inbox,
                durable,
                folder: parts.0,
                fingerprint: parts.1,
            },
        )
    }
}

/// A journal before its thread runs.
pub struct UnstartedJournal {
    handle: JournalHandle,
    wake: mpsc::Sender<Wake>,
    inbox: mpsc::Receiver<Wake>,
    durable: watch::Sender<u64>,
    folder: DataDir,
    fingerprint: u32,
}

impl UnstartedJournal {
    /// A handle for the server.
    pub fn handle(&self) -> JournalHandle {
        self.handle.clone()
    }

    /// Starts the thread.
    pub fn start(self, source: impl ChangeSource, compaction: SnapshotPolicy) -> Journal {
        let (failed, failure) = oneshot::channel();
        let writer = Writer::new(source, self.folder, self.fingerprint, compaction);
        let (inbox, durable, wake) = (self.inbox, self.durable, self.wake.clone());
        #[expect(clippy::disallowed_methods, reason = "a shell: it waits for the disk")]
        let thread = std::thread::spawn(move || {
            if let Err(error) = writer.run(&inbox, &wake, &durable) {
                // The receiver may have been dropped; then the waiters see that the journal is closed.
                let _ = failed.send(error);
            }
        });
        Journal { thread, wake: self.wake, failure }
    }
}

/// With which requests wait until a revision is durable. Clones share their state.
#[derive(Clone)]
pub struct JournalHandle {
    wake: mpsc::Sender<Wake>,
    durable: watch::Receiver<u64>,
}

/// The journal has ended: nothing more becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalClosed;

impl JournalHandle {
    /// Wakes the thread to write pending changes.
    pub fn wake(&self) {
        // If the thread has ended, [`JournalHandle::wait`] returns an error.
        let _ = self.wake.send(Wake::Changes);
    }

    /// The newest durable revision.
    pub fn durable_revision(&self) -> u64 {
        *self.durable.borrow()
    }

    /// Waits until a revision is on disk.
    ///
    /// # Errors
    ///
    /// When the journal has ended before.
    pub async fn wait(&self, revision: u64) -> Result<(), JournalClosed> {
        let mut durable = self.durable.clone();
        durable.wait_for(|it| *it >= revision).await.map(drop).map_err(|_| JournalClosed)
    }
}

/// A running journal.
pub struct Journal {
    thread: std::thread::JoinHandle<()>,
    wake: mpsc::Sender<Wake>,
    failure: oneshot::Receiver<DataError>,
}

impl Journal {
    /// Returns the error when the disk can no longer be written. The server must end then: its memory is ahead of
    /// what it will find after a restart.
    pub async fn failed(&mut self) -> DataError {
        match (&mut self.failure).await {
            Ok(error) => error,
            // It was closed without an error.
            Err(_) => std::future::pending().await,
        }
    }

    /// Writes pending changes, and releases the directory.
    ///
    /// # Errors
    ///
    /// When not all was written, and [`Journal::failed`] has not returned that error.
    pub fn close(mut self) -> Result<(), DataError> {
        let _ = self.wake.send(Wake::Close);
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
        self.failure.try_recv().map_or(Ok(()), Err)
    }
}
