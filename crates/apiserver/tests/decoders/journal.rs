//! The files of a data folder.

use std::path::{Path, PathBuf};

use loadmaster_api::Selector;
use loadmaster_apiserver::journal::OpenJournal;
use loadmaster_apiserver::store::{Filter, Store, StoreLimits};

const FINGERPRINT: u32 = 7;

/// A log that begins at revision 1, of these bytes: as they are behind its head, or as the payloads of frames. What can be
/// opened can be opened again and is the same; a log that was cut off gives what was whole before.
pub fn journal(bytes: &[u8]) {
    let Some((mode, rest)) = bytes.split_first() else { return };
    // A file's head: revision 1, and the fingerprint.
    let mut log = b"LMDATA1\n".to_vec();
    frame(&mut log, &[0x0a, 4, 0x08, 1, 0x10, FINGERPRINT as u8]);
    let n_head = log.len();
    if mode % 2 == 0 {
        log.extend_from_slice(rest);
    } else {
        rest.split(|it| *it == 0xff).for_each(|payload| frame(&mut log, payload));
    }
    let folder = folder();
    let Some(whole) = open(&folder, &log) else { return };
    assert_eq!(reopen(&folder).as_ref(), Some(&whole), "opened again");
    if mode % 2 == 1 {
        let cut = n_head + usize::from(*mode) * (log.len() - n_head) / 256;
        let part = open(&folder, &log[..cut]);
        assert!(part.is_some_and(|it| whole.starts_with(&it)), "cut at {cut}");
    }
}

/// All changes there are, as texts.
type Contents = Vec<String>;

fn frame(out: &mut Vec<u8>, payload: &[u8]) {
    let mut head = (payload.len() as u32).to_le_bytes().to_vec();
    head.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
    out.extend_from_slice(payload);
}

fn folder() -> PathBuf {
    let shared = Path::new("/dev/shm");
    let root = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    root.join(format!("loadmaster-decoders-{}", std::process::id()))
}

fn open(folder: &Path, log: &[u8]) -> Option<Contents> {
    std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{error}"));
    let file = folder.join(format!("log-{:020}", 1));
    std::fs::write(file, log).unwrap_or_else(|error| panic!("{error}"));
    reopen(folder)
}

fn reopen(folder: &Path) -> Option<Contents> {
    let opened = OpenJournal::open(folder, StoreLimits::default(), FINGERPRINT);
    Some(contents(&opened.map_err(|error| error.to_string()).ok()?.store))
}

fn contents(store: &Store) -> Contents {
    let mut found = Vec::new();
    for table in store.tables() {
        let all = Filter { labels: Selector::everything(), fields: Vec::new() };
        let cursor = store.watch(table, 1, "", all);
        let mut cursor = cursor.unwrap_or_else(|error| panic!("{error}"));
        let changes = cursor.read(store, u64::MAX, usize::MAX);
        for change in changes.unwrap_or_else(|error| panic!("{error}")) {
            let text = format!("{:?} {} {change:?}", change.revision, store.table_name(table));
            found.push((change.revision, text));
        }
    }
    found.sort();
    found.into_iter().map(|(_, text)| text).collect()
}
