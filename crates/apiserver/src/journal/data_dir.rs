//! The files of a data directory. `log-N` has the changes after revision N, `snapshot-N` the objects at it, `lock` is
//! the lock file.

use std::fs::{File, TryLockError};
use std::io::{BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use loadmaster_serving::private_file;
use prost::Message as _;

use super::DataError;
use super::frame::{self, HEAD_BYTES, Head, MAGIC};
use super::record::{Frame, Record};
use crate::store::{Store, StoreLimits};

/// A locked data directory.
pub(super) struct DataDir {
    path: PathBuf,
    _lock: File,
    /// The log that is written, once the directory was read.
    pub log: Option<Log>,
    /// Of the snapshot it belongs to.
    pub snapshot_bytes: u64,
}

/// The log that is being written.
pub(super) struct Log {
    path: PathBuf,
    file: File,
    pub bytes: u64,
}

/// What a data directory contains.
pub(super) struct Contents {
    pub store: Store,
    pub is_new: bool,
    pub is_outdated: bool,
}

const LOG: &str = "log-";
const SNAPSHOT: &str = "snapshot-";
const UNFINISHED: &str = "snapshot.unfinished";

/// Records a frame, in bytes; one record may be longer.
pub(super) const FRAME_BYTES: usize = 4 << 20;

impl DataDir {
    /// Creates the directory if necessary, and locks it.
    pub fn lock(path: &Path) -> Result<DataDir, DataError> {
        let mut builder = std::fs::DirBuilder::new();
        // It contains Secrets.
        builder.mode(0o700);
        if !path.is_dir() {
            builder.recursive(true).create(path).map_err(io("creating the directory", path))?;
            let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
            sync_folder(parent.unwrap_or(Path::new(".")))?;
        }
        private_file::check_directory(path).map_err(io("using the directory", path))?;
        let file = path.join("lock");
        let lock = private_file::open_options().create(true).truncate(false).open(&file);
        let lock = lock.map_err(io("opening", &file))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DataError::Locked { path: path.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(io("locking", &file)(source)),
        }
        Ok(DataDir { path: path.to_owned(), _lock: lock, log: None, snapshot_bytes: 0 })
    }

    /// Reads everything, deletes what a crash left behind, and opens the log for appending.
    pub fn read(&mut self, limits: StoreLimits, fingerprint: u32) -> Result<Contents, DataError> {
        let logs = self.revisions(LOG)?;
        let snapshots = self.revisions(SNAPSHOT)?;
        let base = snapshots.last().copied();
        let mut contents = Contents {
            store: base.map_or_else(|| Store::new(limits), |it| Store::starting_at(it, limits)),
            is_new: logs.is_empty() && base.is_none(),
            is_outdated: false,
        };
        if contents.is_new {
            self.begin_log(contents.store.revision(), fingerprint)?;
            return Ok(contents);
        }
        if let Some(revision) = base {
            self.snapshot_bytes = self.read_snapshot(revision, fingerprint, &mut contents)?;
        }
        let start = contents.store.revision();
        let logs: Vec<u64> = logs.into_iter().filter(|it| *it >= start).collect();
        if logs.first() != Some(&start) {
            let missing = format!("{LOG}{start:020}");
            return Err(DataError::Incomplete { folder: self.path.clone(), missing });
        }
        for revision in &logs {
            let is_last = logs.last() == Some(revision);
            self.read_log(*revision, is_last, fingerprint, &mut contents)?;
        }
        self.forget_before(start)?;
        Ok(contents)
    }

    /// Starts an empty log and makes it the one that is written.
    pub fn begin_log(&mut self, revision: u64, fingerprint: u32) -> Result<(), DataError> {
        let path = self.file(LOG, revision);
        let mut bytes = MAGIC.to_vec();
        frame::append(&mut bytes, &Frame::head(revision, fingerprint).encode_to_vec());
        let file = private_file::open_options().create(true).truncate(true).open(&path);
        let mut file = file.map_err(io("creating", &path))?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(io("writing", &path))?;
        self.sync_names()?;
        self.log = Some(Log { path, file, bytes: bytes.len() as u64 });
        Ok(())
    }

    /// Deletes the files that a snapshot replaces.
    pub fn forget_before(&self, revision: u64) -> Result<(), DataError> {
        for prefix in [SNAPSHOT, LOG] {
            for old in self.revisions(prefix)?.into_iter().filter(|it| *it < revision) {
                let path = self.file(prefix, old);
                std::fs::remove_file(&path).map_err(io("removing", &path))?;
            }
        }
        let unfinished = self.path.join(UNFINISHED);
        match std::fs::remove_file(&unfinished) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io("removing", &unfinished)(error))
            }
            _ => Ok(()),
        }
    }

    /// The path for [`write_snapshot`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, prefix: &str, revision: u64) -> PathBuf {
        self.path.join(format!("{prefix}{revision:020}"))
    }

    /// The revisions of the files whose name begins so, in order.
    fn revisions(&self, prefix: &str) -> Result<Vec<u64>, DataError> {
        let listing = io("listing", &self.path);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(&listing)? {
            let name = entry.map_err(&listing)?.file_name();
            let revision = name.to_str().and_then(|name| name.strip_prefix(prefix));
            found.extend(revision.and_then(|digits| digits.parse::<u64>().ok()));
        }
        found.sort_unstable();
        Ok(found)
    }

    fn sync_names(&self) -> Result<(), DataError> {
        sync_folder(&self.path)
    }

    fn read_snapshot(
        &self,
        revision: u64,
        fingerprint: u32,
        contents: &mut Contents,
    ) -> Result<u64, DataError> {
        let mut reader = Reader::open(self.file(SNAPSHOT, revision), revision)?;
        contents.is_outdated |= reader.fingerprint != fingerprint;
        let mut n_objects = 0;
        loop {
            let Read::Frame(frame) = reader.next()? else {
                return Err(reader.corrupt("the snapshot is truncated: its last frame is missing"));
            };
            for record in &frame.records {
                let object = reader.object(record)?;
                let table = contents.store.add_table(&record.table);
                contents.store.restore(table, object);
                n_objects += 1;
            }
            match frame.n_objects {
                None => {}
                Some(n) if n == n_objects => return Ok(reader.at),
                Some(n) => {
                    let what = format!("the snapshot has {n_objects} objects and says {n}");
                    return Err(reader.corrupt(&what));
                }
            }
        }
    }

    fn read_log(
        &mut self,
        revision: u64,
        is_last: bool,
        fingerprint: u32,
        contents: &mut Contents,
    ) -> Result<(), DataError> {
        let path = self.file(LOG, revision);
        let mut reader = match Reader::open(path.clone(), revision) {
            // It was begun and nothing was written to it yet.
            Err(_) if is_last && is_unborn(&path)? && contents.store.revision() == revision => {
                return self.begin_log(revision, fingerprint);
            }
            reader => reader?,
        };
        contents.is_outdated |= reader.fingerprint != fingerprint;
        let newest = contents.store.revision();
        if newest != revision {
            let what = format!(
                "the log continues after revision {revision}, but the previous one ended at {newest}"
            );
            return Err(reader.corrupt(&what));
        }
        loop {
            match reader.next()? {
                Read::Frame(frame) => {
                    for record in &frame.records {
                        let object = reader.object(record)?;
                        let table = contents.store.add_table(&record.table);
                        let replayed = contents.store.replay(table, object, record.is_removed);
                        replayed.map_err(|error| reader.corrupt(&error.to_string()))?;
                    }
                }
                Read::End => break,
                Read::Torn if is_last => break,
                Read::Torn => {
                    return Err(reader.corrupt("the log is truncated, but another one follows"));
                }
            }
        }
        if is_last {
            let file = private_file::open_options().open(&path);
            let mut file = file.map_err(io("opening", &path))?;
            // The incomplete last write is removed; no client saw it.
            file.set_len(reader.at)
                .and_then(|()| file.sync_all())
                .and_then(|()| file.seek(SeekFrom::End(0)))
                .map_err(io("writing", &path))?;
            self.log = Some(Log { path, file, bytes: reader.at });
        }
        Ok(())
    }
}

impl Log {
    /// Appends frames and waits for the disk.
    pub fn append(&mut self, frames: &[u8]) -> Result<(), DataError> {
        let written = self.file.write_all(frames).and_then(|()| self.file.sync_data());
        written.map_err(io("writing", &self.path))?;
        self.bytes += frames.len() as u64;
        Ok(())
    }
}

/// Writes a snapshot under a temporary name first, so that one with the right name is complete. Returns its length.
pub(super) fn write_snapshot(
    folder: &Path,
    revision: u64,
    fingerprint: u32,
    records: impl Iterator<Item = Record>,
) -> Result<u64, DataError> {
    let path = folder.join(UNFINISHED);
    let file = private_file::open_options()
        .create(true)
        .truncate(true)
        .open(&path)
        .map_err(io("creating", &path))?;
    let mut writer = SnapshotWriter { file, path, bytes: 0, buffer: MAGIC.to_vec() };
    writer.frame(&Frame::head(revision, fingerprint))?;
    let (mut batch, mut batch_bytes, mut n_objects) = (Vec::new(), 0, 0);
    for record in records {
        n_objects += 1;
        batch_bytes += record.size();
        batch.push(record);
        if batch_bytes >= FRAME_BYTES {
            writer.frame(&Frame::records(std::mem::take(&mut batch)))?;
            batch_bytes = 0;
        }
    }
    writer.frame(&Frame::records(batch))?;
    writer.frame(&Frame::end(n_objects))?;
    let SnapshotWriter { file, path, bytes, .. } = writer;
    file.sync_all().map_err(io("writing", &path))?;
    let name = folder.join(format!("{SNAPSHOT}{revision:020}"));
    std::fs::rename(&path, &name).map_err(io("renaming", &path))?;
    sync_folder(folder)?;
    Ok(bytes)
}

struct SnapshotWriter {
    file: File,
    path: PathBuf,
    bytes: u64,
    buffer: Vec<u8>,
}

impl SnapshotWriter {
    fn frame(&mut self, frame: &Frame) -> Result<(), DataError> {
        frame::append(&mut self.buffer, &frame.encode_to_vec());
        self.file.write_all(&self.buffer).map_err(io("writing", &self.path))?;
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// A new name in a directory is durable when the directory is synced.
fn sync_folder(path: &Path) -> Result<(), DataError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(io("syncing the directory", path))
}

/// A log shorter than its first frame was being created when the server ended.
fn is_unborn(path: &Path) -> Result<bool, DataError> {
    let bytes = std::fs::read(path).map_err(io("reading", path))?;
    let rest = bytes.strip_prefix(MAGIC);
    Ok(rest.map_or(MAGIC.starts_with(&bytes), |rest| frame::is_torn(rest, MAGIC.len() as u64)))
}

/// What comes next in a file.
enum Read {
    Frame(Frame),
    End,
    /// The rest was cut off while it was written.
    Torn,
}

/// Reads a file frame by frame.
struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    len: u64,
    /// Where the next frame begins; after [`Reader::next`], where the good part ends.
    at: u64,
    /// Where the frame that was read last begins.
    frame_at: u64,
    fingerprint: u32,
}

impl Reader {
    /// Opens a file and reads its head, which must name the revision.
    fn open(path: PathBuf, revision: u64) -> Result<Reader, DataError> {
        let file = File::open(&path).map_err(io("opening", &path))?;
        let len = file.metadata().map_err(io("reading", &path))?.len();
        let at = MAGIC.len() as u64;
        let mut reader =
            Reader { path, file: BufReader::new(file), len, at, frame_at: 0, fingerprint: 0 };
        let mut magic = [0; MAGIC.len()];
        if reader.file.read_exact(&mut magic).is_err() || magic != *MAGIC {
            return Err(reader.corrupt("not a data file of this version of loadmaster"));
        }
        let head = match reader.next()? {
            Read::Frame(frame) => frame.head,
            _ => None,
        };
        match head {
            Some(head) if head.revision == revision => {
                reader.fingerprint = head.fingerprint;
                Ok(reader)
            }
            Some(head) => {
                let what = format!("the file says it begins at revision {}", head.revision);
                Err(reader.corrupt(&what))
            }
            None => Err(reader.corrupt("the file has no header")),
        }
    }

    fn next(&mut self) -> Result<Read, DataError> {
        self.frame_at = self.at;
        let left = self.len - self.at;
        if left == 0 {
            return Ok(Read::End);
        }
        let mut bytes = [0; HEAD_BYTES];
        let head = match left >= HEAD_BYTES as u64 {
            true => {
                self.file.read_exact(&mut bytes).map_err(io("reading", &self.path))?;
                Head::read(&bytes)
            }
            false => None,
        };
        let Some(head) = head.filter(|it| u64::from(it.len) + HEAD_BYTES as u64 <= left) else {
            return self.broken();
        };
        let mut payload = vec![0; head.len as usize];
        self.file.read_exact(&mut payload).map_err(io("reading", &self.path))?;
        if !head.fits(&payload) {
            return self.broken();
        }
        let frame = Frame::decode(Bytes::from(payload))
            .map_err(|error| self.corrupt(&format!("a frame cannot be decoded: {error}")))?;
        self.at += HEAD_BYTES as u64 + u64::from(head.len);
        Ok(Read::Frame(frame))
    }

    /// The frame at hand is not whole.
    fn broken(&mut self) -> Result<Read, DataError> {
        let mut tail = Vec::new();
        let read = self.file.seek(SeekFrom::Start(self.at));
        let read = read.and_then(|_| self.file.read_to_end(&mut tail));
        read.map_err(io("reading", &self.path))?;
        if frame::is_torn(&tail, self.at) {
            return Ok(Read::Torn);
        }
        Err(self.corrupt("checksum mismatch: the file was changed or the disk has lost data"))
    }

    fn object(&self, record: &Record) -> Result<crate::store::Object, DataError> {
        let what = || format!("the record of {} {} contradicts itself", record.table, record.key);
        record.object().ok_or_else(|| self.corrupt(&what()))
    }

    fn corrupt(&self, what: &str) -> DataError {
        DataError::Corrupt { path: self.path.clone(), at: self.frame_at, what: what.to_owned() }
    }
}

fn io(doing: &'static str, path: &Path) -> impl Fn(std::io::Error) -> DataError {
    let path = path.to_owned();
    move |source| DataError::Io { doing, path: path.clone(), source }
}
