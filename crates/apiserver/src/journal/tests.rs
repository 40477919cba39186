//! The journal under a store that is written at random, with files cut off and damaged at every place.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
#[expect(clippy::disallowed_types, reason = "the writer has a thread of its own")]
use std::sync::{Arc, Mutex};

use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::*;
use crate::store::{ChangeKind, Draft, Filter, Precondition};

/// A folder for one test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NTH: AtomicU32 = AtomicU32::new(0);
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let name = format!("loadmaster-journal-{}-{nth}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }

    fn files(&self, prefix: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).expect("a folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let named = |path: &PathBuf| {
            path.file_name().and_then(|it| it.to_str()).is_some_and(|it| it.starts_with(prefix))
        };
        let mut found: Vec<PathBuf> = paths.filter(named).collect();
        found.sort();
        found
    }

    fn open(&self) -> Result<OpenJournal, DataError> {
        OpenJournal::open(&self.0, StoreLimits::default(), 7)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A store and its journal, as the server has them.
struct Server {
    #[expect(clippy::disallowed_types, reason = "the writer has a thread of its own")]
    store: Arc<Mutex<Store>>,
    handle: JournalHandle,
    journal: Journal,
}

#[expect(clippy::disallowed_types, reason = "the writer has a thread of its own")]
struct Shared(Arc<Mutex<Store>>);

impl ChangeSource for Shared {
    fn take(&mut self, whole: bool) -> Option<PendingChanges> {
        let mut store = self.0.lock().expect("whole");
        let names = store.tables().map(|it| store.table_name(it).into()).collect();
        let changes = store.take_outbox();
        Some(PendingChanges {
            names,
            changes,
            whole: whole.then(|| (store.revision(), store.all())),
        })
    }

    fn publish(&self, _table: TableId, _revision: u64) {}
}

fn start(opened: OpenJournal, log_bytes_min: u64) -> Server {
    let (store, pending) = opened.into_parts();
    #[expect(clippy::disallowed_types, reason = "the writer has a thread of its own")]
    let store = Arc::new(Mutex::new(store));
    let handle = pending.handle();
    let journal = pending.start(Shared(Arc::clone(&store)), SnapshotPolicy { log_bytes_min });
    Server { store, handle, journal }
}

/// A random write to one of two tables.
fn write(store: &mut Store, rng: &mut Rng) {
    let table = store.add_table(["pods", "nodes"][rng.below(2) as usize]);
    let key = format!("ns/{}", rng.below(6));
    let revision = store.get(table, &key).map(|it| it.revision());
    if let (Some(revision), true) = (revision, rng.one_in(3)) {
        store.remove(table, &key, revision, None).expect("it is there");
        return;
    }
    let value = json!({"metadata": {"labels": {"a": "b"}}, "n": rng.below(100),
        "long": "xy ".repeat(rng.below(700) as usize)});
    let labels = [("a", "b".into())].into_iter().collect();
    let draft = Draft::new(key, labels, Box::new(["f".into()]), &value).expect("encodes");
    store
        .put(table, revision.map_or(Precondition::Absent, Precondition::Revision), draft)
        .expect("fits");
}

/// All there is, as text: objects with their labels and fields by table.
fn picture(store: &Store) -> Vec<String> {
    let mut lines: Vec<String> = store
        .all()
        .iter()
        .map(|(table, object)| {
            let value: Value = serde_json::from_slice(&object.json()).expect("whole");
            assert_eq!(value["metadata"]["resourceVersion"], object.revision().to_string());
            let name = store.table_name(*table);
            format!(
                "{name} {} {:?} {:?} {value}",
                object.key(),
                object.labels(),
                object.selectable_values()
            )
        })
        .collect();
    lines.sort();
    lines
}

/// The events that a watcher of a table gets.
fn history(store: &mut Store, table: &str, after: u64) -> Vec<(ChangeKind, u64, String)> {
    let table = store.add_table(table);
    let cursor = store.watch(table, after, "", Filter::everything());
    let events = cursor.expect("not compacted").read(store, u64::MAX, usize::MAX).expect("told");
    events.iter().map(|it| (it.kind, it.revision, it.object.key().to_owned())).collect()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// Writes at random and waits for the disk now and then. Pictures by revision.
fn run(server: &Server, rng: &mut Rng, n: usize) -> Vec<(u64, Vec<String>)> {
    let mut pictures = Vec::new();
    for _ in 0..n {
        let revision = {
            let mut store = server.store.lock().expect("whole");
            write(&mut store, rng);
            pictures.push((store.revision(), picture(&store)));
            store.revision()
        };
        server.handle.wake();
        if rng.one_in(3) {
            block_on(server.handle.wait(revision)).expect("is written");
        }
    }
    let last = pictures.last().map_or(0, |(revision, _)| *revision);
    block_on(server.handle.wait(last)).expect("is written");
    pictures
}

#[test]
fn writes_are_restored_with_their_history() {
    let scratch = Scratch::new();
    let mut rng = Rng::new(1);
    let mut want = Vec::new();
    let mut events = Vec::new();
    for round in 0..5 {
        let opened = scratch.open().expect("opens");
        assert_eq!(opened.is_new, round == 0);
        assert_eq!(picture(&opened.store), want);
        let server = start(opened, u64::MAX);
        run(&server, &mut rng, 40);
        {
            let mut store = server.store.lock().expect("whole");
            want = picture(&store);
            let now = history(&mut store, "pods", 1);
            assert!(now.starts_with(&events), "nothing before is told otherwise");
            events = now;
        }
        server.journal.close().expect("all is written");
    }
}

#[test]
fn the_log_is_compacted_and_a_watch_from_before_gets_an_error() {
    let scratch = Scratch::new();
    let mut rng = Rng::new(2);
    let mut want = Vec::new();
    for _ in 0..20 {
        // A snapshot may take as long as it likes, and the log grows meanwhile; closing waits for it.
        let server = start(scratch.open().expect("opens"), 20_000);
        want = run(&server, &mut rng, 50).pop().expect("a picture").1;
        server.journal.close().expect("all is written");
    }
    let n_bytes: u64 = [scratch.files("log-"), scratch.files("snapshot-")]
        .concat()
        .iter()
        .map(|path| path.metadata().expect("is there").len())
        .sum();
    assert!(n_bytes < 120_000, "{n_bytes} bytes of 1,000 writes");
    let opened = scratch.open().expect("opens");
    assert_eq!(picture(&opened.store), want);
    let mut store = opened.store;
    let pods = store.add_table("pods");
    assert!(store.watch(pods, 2, "", Filter::everything()).is_err(), "410, not a gap");
}

/// As a power cut leaves it: cut off anywhere, the log has some of the last writes, and those before all of them.
#[test]
fn a_truncated_log_restores_an_earlier_state() {
    let scratch = Scratch::new();
    let server = start(scratch.open().expect("opens"), u64::MAX);
    let pictures = run(&server, &mut Rng::new(3), 8);
    server.journal.close().expect("all is written");
    let path = scratch.files("log-").pop().expect("a log");
    let whole = std::fs::read(&path).expect("reads");
    let mut last = u64::MAX;
    for len in (0..=whole.len()).rev().step_by(9).chain([0]) {
        std::fs::write(&path, &whole[..len]).expect("writes");
        let opened = scratch.open().unwrap_or_else(|error| panic!("{len} bytes: {error}"));
        let revision = opened.store.revision();
        assert!(revision <= last, "a shorter log has no more");
        last = revision;
        let want = pictures.iter().find(|(it, _)| *it == revision);
        let want = want.map_or_else(Vec::new, |(_, picture)| picture.clone());
        assert_eq!(picture(&opened.store), want, "{len} bytes");
        let n_bytes = path.metadata().expect("is there").len() as usize;
        assert!(n_bytes <= len.max(64), "what was cut off is gone");
    }
    assert_eq!(last, 1);
}

#[test]
fn damage_is_an_error_with_its_offset() {
    let scratch = Scratch::new();
    let server = start(scratch.open().expect("opens"), 5_000);
    run(&server, &mut Rng::new(4), 60);
    server.journal.close().expect("all is written");
    // One of each kind is there: closing has waited for the snapshot, and what it replaces is gone.
    let files = [scratch.files("snapshot-"), scratch.files("log-")].concat();
    assert_eq!(files.len(), 2, "{files:?}");
    for path in files {
        let whole = std::fs::read(&path).expect("reads");
        for at in (0..whole.len()).step_by(211) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, &damaged).expect("writes");
            match scratch.open() {
                Err(DataError::Corrupt { path: said, at: byte, .. }) => {
                    assert_eq!(said, path);
                    assert!(byte <= at as u64, "byte {at}: {byte}");
                }
                Err(other) => panic!("byte {at}: {other}"),
                // The length in the last head may now point behind the end, as in a frame that was cut off: but its
                // own checksum then differs.
                Ok(_) => panic!("{}: byte {at} went unnoticed", path.display()),
            }
        }
        std::fs::write(&path, &whole).expect("writes");
    }
    scratch.open().expect("as it was, it opens");
}

#[test]
fn write_errors_are_returned_on_close() {
    let scratch = Scratch::new();
    let server = start(scratch.open().expect("opens"), 0);
    // A new log has no place to be in.
    std::fs::remove_dir_all(&scratch.0).expect("removes");
    write(&mut server.store.lock().expect("whole"), &mut Rng::new(6));
    write(&mut server.store.lock().expect("whole"), &mut Rng::new(7));
    server.handle.wake();
    block_on(server.handle.wait(u64::MAX)).expect_err("the journal has ended");
    let error = server.journal.close().expect_err("not all is written").to_string();
    assert!(error.contains("log-0000"), "{error}");
}

#[test]
fn a_data_directory_is_locked() {
    let scratch = Scratch::new();
    let first = scratch.open().expect("opens");
    let second = scratch.open().err().map(|error| error.to_string());
    assert_eq!(second, Some(format!("{} is in use by another server", scratch.0.display())));
    drop(first);
    scratch.open().expect("is free again");
}

#[test]
fn a_missing_log_is_an_error() {
    let scratch = Scratch::new();
    let server = start(scratch.open().expect("opens"), 5_000);
    run(&server, &mut Rng::new(5), 60);
    server.journal.close().expect("all is written");
    for path in scratch.files("log-") {
        std::fs::remove_file(path).expect("removes");
    }
    let error = scratch.open().err().expect("refused").to_string();
    assert!(error.contains("there is no log-0000"), "{error}");
}
