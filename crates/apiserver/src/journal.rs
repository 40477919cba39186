//! Durability: a shell around the store that gets its changes in order, and says which revision cannot be lost any more.
//!
//! A folder holds one snapshot (all objects at a revision) and the log of the changes after it. One thread takes whatever
//! changes have come up, writes them as one frame, and waits for the disk once for all of them; requests are answered and
//! watchers told when that is done. When the log has outgrown the snapshot, the thread begins a new log, a second one
//! writes a new snapshot, and the old files go. After a restart the log is the history of watches, too.
//!
//! | part | what it is |
//! | --- | --- |
//! | `frame` | bytes with checksums: what is whole, torn, or damaged; pure |
//! | `record` | changes as bytes and back; pure |
//! | `folder` | the files, their lock, and reading them at the start |
//! | `writer` | the thread |

mod folder;
mod frame;
mod record;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use tokio::sync::{oneshot, watch};

use crate::store::{Change, Limits, Object, Store, TableId};
use folder::Folder;
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
pub struct Compaction {
    /// A log smaller than this stays, however small the snapshot is.
    pub log_bytes_min: u64,
}

impl Default for Compaction {
    fn default() -> Self {
        // Reading that much again takes a fraction of a second.
        Compaction { log_bytes_min: 64 << 20 }
    }
}

/// Where changes come from.
pub trait Source: Send + 'static {
    /// The changes since the last call, and with `whole` all objects after them; none when the store is gone.
    fn take(&mut self, whole: bool) -> Option<Taken>;

    /// The change of a table is durable: watchers may see it.
    fn publish(&self, table: TableId, revision: u64);
}

/// What [`Source::take`] gives.
#[derive(Debug, Default)]
pub struct Taken {
    /// Names of all tables, by number.
    pub names: Arc<[Box<str>]>,
    pub changes: Vec<(TableId, Change)>,
    /// Objects as of the last change.
    pub whole: Option<Whole>,
}

/// A revision and all objects at it.
pub type Whole = (u64, Vec<(TableId, Arc<Object>)>);

/// What was found in a folder, which stays locked.
pub struct Opened {
    /// As it was, history since the last snapshot included.
    pub store: Store,
    /// Nothing was there.
    pub is_new: bool,
    /// The facts kept beside objects were made by another version of this program.
    pub is_outdated: bool,
    folder: Folder,
    fingerprint: u32,
}

impl Opened {
    /// Reads a folder, or makes it. `fingerprint` stands for how labels and fields are taken from objects.
    ///
    /// # Errors
    ///
    /// When it cannot be read or written, another server uses it, or a file is damaged. A write that was cut off and
    /// that nobody was told of is no damage.
    pub fn open(path: &Path, limits: Limits, fingerprint: u32) -> Result<Opened, DataError> {
        let mut folder = Folder::lock(path)?;
        let read = folder.read(limits, fingerprint)?;
        let (is_new, is_outdated) = (read.is_new, read.is_outdated);
        Ok(Opened { store: read.store, is_new, is_outdated, folder, fingerprint })
    }

    /// A journal that goes on from here, and the store it belongs to. The store's changes from now on are to be had from
    /// the source that [`Pending::start`] is given.
    pub fn into_parts(mut self) -> (Store, Pending) {
        self.store.open_outbox();
        let (wake, inbox) = mpsc::channel();
        let (durable, seen) = watch::channel(self.store.revision());
        let handle = Handle { wake: wake.clone(), durable: seen };
        let parts = (self.folder, self.fingerprint);
        (
            self.store,
            Pending { handle, wake, inbox, durable, folder: parts.0, fingerprint: parts.1 },
        )
    }
}

/// A journal before its thread runs.
pub struct Pending {
    handle: Handle,
    wake: mpsc::Sender<Wake>,
    inbox: mpsc::Receiver<Wake>,
    durable: watch::Sender<u64>,
    folder: Folder,
    fingerprint: u32,
}

impl Pending {
    /// What the server waits with.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Starts the thread.
    pub fn start(self, source: impl Source, compaction: Compaction) -> Journal {
        let (failed, failure) = oneshot::channel();
        let writer = Writer::new(source, self.folder, self.fingerprint, compaction);
        let (inbox, durable, wake) = (self.inbox, self.durable, self.wake.clone());
        #[expect(clippy::disallowed_methods, reason = "a shell: it waits for the disk")]
        let thread = std::thread::spawn(move || {
            if let Err(error) = writer.run(&inbox, &wake, &durable) {
                // Nobody may listen; then the waiters find out by themselves.
                let _ = failed.send(error);
            }
        });
        Journal { thread, wake: self.wake, failure }
    }
}

/// How requests wait for the disk. Clones are the same.
#[derive(Clone)]
pub struct Handle {
    wake: mpsc::Sender<Wake>,
    durable: watch::Receiver<u64>,
}

/// The journal has ended: nothing more becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

impl Handle {
    /// There are changes to be written.
    pub fn wake(&self) {
        // When the thread is gone, whoever waits is told.
        let _ = self.wake.send(Wake::Changes);
    }

    /// All changes up to this revision are on disk.
    pub fn durable(&self) -> u64 {
        *self.durable.borrow()
    }

    /// Waits until a revision is on disk.
    ///
    /// # Errors
    ///
    /// When it will not be.
    pub async fn wait(&self, revision: u64) -> Result<(), Ended> {
        let mut durable = self.durable.clone();
        durable.wait_for(|it| *it >= revision).await.map(drop).map_err(|_| Ended)
    }
}

/// A journal that runs.
pub struct Journal {
    thread: std::thread::JoinHandle<()>,
    wake: mpsc::Sender<Wake>,
    failure: oneshot::Receiver<DataError>,
}

impl Journal {
    /// Returns when the disk cannot be written any more, and why. The server must end then: what it has in memory is
    /// ahead of what it will find after a restart.
    pub async fn failed(&mut self) -> DataError {
        match (&mut self.failure).await {
            Ok(error) => error,
            // It was closed in good order.
            Err(_) => std::future::pending().await,
        }
    }

    /// Writes what there is, and gives the folder back.
    ///
    /// # Errors
    ///
    /// When not all was written, and [`Journal::failed`] has not told it.
    pub fn close(mut self) -> Result<(), DataError> {
        let _ = self.wake.send(Wake::Close);
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
        self.failure.try_recv().map_or(Ok(()), Err)
    }
}
