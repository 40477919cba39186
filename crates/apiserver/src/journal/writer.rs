//! The writer thread. While it syncs, changes collect in the store's outbox; all of them go into the next frame.

use std::sync::{Arc, mpsc};

use prost::Message as _;
use tokio::sync::watch;

use super::data_dir::{DataDir, FRAME_BYTES, write_snapshot};
use super::frame;
use super::record::{Frame, Record};
use super::{ChangeSource, DataError, PendingChanges, SnapshotPolicy};
use crate::store::{Change, Object, TableId};

/// Why the thread is woken.
pub(super) enum Wake {
    Changes,
    /// The snapshot at a revision is there, with its length.
    Snapshot(Result<(u64, u64), DataError>),
    Close,
}

pub(super) struct Writer<S> {
    source: S,
    folder: DataDir,
    fingerprint: u32,
    compaction: SnapshotPolicy,
    /// Writes a snapshot.
    snapshot: Option<std::thread::JoinHandle<()>>,
    buffer: Vec<u8>,
}

impl<S: ChangeSource> Writer<S> {
    pub fn new(
        source: S,
        folder: DataDir,
        fingerprint: u32,
        compaction: SnapshotPolicy,
    ) -> Writer<S> {
        Writer { source, folder, fingerprint, compaction, snapshot: None, buffer: Vec::new() }
    }

    /// Writes until the store is dropped or the journal is closed.
    pub fn run(
        mut self,
        inbox: &mpsc::Receiver<Wake>,
        wake: &mpsc::Sender<Wake>,
        durable: &watch::Sender<u64>,
    ) -> Result<(), DataError> {
        let written = self.write_all(inbox, wake, durable);
        // The next one to open the directory must find it unused.
        if let Some(snapshot) = self.snapshot.take() {
            let _ = snapshot.join();
            for wake in inbox.try_iter() {
                if let Wake::Snapshot(done) = wake {
                    self.compacted(done?)?;
                }
            }
        }
        written
    }

    fn write_all(
        &mut self,
        inbox: &mpsc::Receiver<Wake>,
        wake: &mpsc::Sender<Wake>,
        durable: &watch::Sender<u64>,
    ) -> Result<(), DataError> {
        let mut is_closing = false;
        while !is_closing {
            let Ok(first) = inbox.recv() else { return Ok(()) };
            for wake in std::iter::once(first).chain(inbox.try_iter()) {
                match wake {
                    Wake::Changes => {}
                    Wake::Snapshot(done) => self.compacted(done?)?,
                    Wake::Close => is_closing = true,
                }
            }
            let log_bytes = self.folder.log.as_ref().map_or(0, |log| log.bytes);
            let enough = self.compaction.log_bytes_min.max(self.folder.snapshot_bytes);
            let compacts = self.snapshot.is_none() && !is_closing && log_bytes > enough;
            let Some(taken) = self.source.take(compacts) else { return Ok(()) };
            self.write(&taken, durable)?;
            if let Some((revision, objects)) = taken.whole {
                self.compact(revision, objects, taken.names, wake.clone())?;
            }
        }
        Ok(())
    }

    /// Makes changes durable, and says so.
    fn write(
        &mut self,
        taken: &PendingChanges,
        durable: &watch::Sender<u64>,
    ) -> Result<(), DataError> {
        let mut changes = taken.changes.as_slice();
        while !changes.is_empty() {
            let n = self.encode(&taken.names, changes);
            if let Some(log) = &mut self.folder.log {
                log.append(&self.buffer)?;
            }
            let (written, rest) = changes.split_at(n);
            changes = rest;
            if let Some((_, last)) = written.last() {
                durable.send_replace(last.revision());
            }
            for (table, change) in written {
                self.source.publish(*table, change.revision());
            }
        }
        Ok(())
    }

    /// The next frame, and how many changes are in it: at least one.
    fn encode(&mut self, names: &[Box<str>], changes: &[(TableId, Change)]) -> usize {
        let (mut records, mut n_bytes) = (Vec::new(), 0);
        for (table, change) in changes {
            let record = Record::of_change(&names[table.index()], change);
            n_bytes += record.size();
            records.push(record);
            if n_bytes >= FRAME_BYTES {
                break;
            }
        }
        let n = records.len();
        self.buffer.clear();
        frame::append(&mut self.buffer, &Frame::records(records).encode_to_vec());
        n
    }

    /// Begins a new log, and a snapshot beside it.
    fn compact(
        &mut self,
        revision: u64,
        objects: Vec<(TableId, Arc<Object>)>,
        names: Arc<[Box<str>]>,
        wake: mpsc::Sender<Wake>,
    ) -> Result<(), DataError> {
        self.folder.begin_log(revision, self.fingerprint)?;
        let (folder, fingerprint) = (self.folder.path().to_owned(), self.fingerprint);
        #[expect(clippy::disallowed_methods, reason = "a shell: it waits for the disk")]
        let snapshot = std::thread::spawn(move || {
            let records = objects
                .into_iter()
                .map(|(table, object)| Record::of_object(&names[table.index()], &object));
            let written = write_snapshot(&folder, revision, fingerprint, records);
            // If the receiver was dropped, the files are cleaned up at the next start.
            let _ = wake.send(Wake::Snapshot(written.map(|bytes| (revision, bytes))));
        });
        self.snapshot = Some(snapshot);
        Ok(())
    }

    fn compacted(&mut self, (revision, bytes): (u64, u64)) -> Result<(), DataError> {
        self.snapshot = None;
        self.folder.snapshot_bytes = bytes;
        self.folder.forget_before(revision)
    }
}
