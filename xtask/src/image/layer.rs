//! A layer: a tar archive in which everything is determined by the files in it, compressed without a time stamp.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// A file, link or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Folder { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Link { target: String },
}

/// Entries by path, without a leading slash; sorted, so that a folder comes before what is in it.
pub type Entries = BTreeMap<String, Entry>;

/// Adds a file and the folders that it is in.
pub fn add_file(entries: &mut Entries, path: &str, mode: u32, content: Vec<u8>) {
    add(entries, path, Entry::File { mode, content });
}

/// Adds a symbolic link and the folders that it is in.
pub fn add_link(entries: &mut Entries, path: &str, target: &str) {
    add(entries, path, Entry::Link { target: target.to_owned() });
}

fn add(entries: &mut Entries, path: &str, entry: Entry) {
    let path = path.trim_start_matches('/');
    for (at, _) in path.match_indices('/') {
        entries.entry(path[..at].to_owned()).or_insert(Entry::Folder { mode: 0o755 });
    }
    entries.insert(path.to_owned(), entry);
}

/// A tar archive with all entries, owned by root, with this time of modification in seconds since 1970.
pub fn tar(entries: &Entries, seconds: u64) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for (path, entry) in entries {
        let mut header = Header::new_ustar();
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(seconds);
        header.set_size(0);
        let adding = || format!("adding {path} to an archive");
        match entry {
            Entry::Folder { mode } => {
                header.set_entry_type(EntryType::Directory);
                header.set_mode(*mode);
                tar.append_data(&mut header, format!("{path}/"), &[][..]).with_context(adding)?;
            }
            Entry::File { mode, content } => {
                header.set_entry_type(EntryType::Regular);
                header.set_mode(*mode);
                header.set_size(content.len() as u64);
                tar.append_data(&mut header, path, &content[..]).with_context(adding)?;
            }
            Entry::Link { target } => {
                header.set_entry_type(EntryType::Symlink);
                header.set_mode(0o777);
                tar.append_link(&mut header, path, target).with_context(adding)?;
            }
        }
    }
    tar.into_inner().context("finishing an archive")
}

/// Compresses bytes: the same for the same input and version of the library.
pub fn gzip(bytes: &[u8], level: Compression) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), level);
    gzip.write_all(bytes).and_then(|()| gzip.finish()).context("compressing a layer")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn example() -> Entries {
        let mut entries = Entries::new();
        add_link(&mut entries, "/bin/other", "program");
        add_file(&mut entries, "/bin/program", 0o755, b"x".to_vec());
        add_file(&mut entries, "/a/very/deep/file", 0o644, Vec::new());
        entries
    }

    #[test]
    fn headers_are_determined_by_the_entries() {
        let archive = tar(&example(), 1_700_000_000).unwrap();
        let mut reader = tar::Archive::new(&archive[..]);
        let lines: Vec<String> = reader
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                let link = entry.link_name().unwrap();
                format!(
                    "{} {:?} {:o} {}:{} {} {}",
                    entry.path().unwrap().display(),
                    header.entry_type(),
                    header.mode().unwrap(),
                    header.uid().unwrap(),
                    header.gid().unwrap(),
                    header.mtime().unwrap(),
                    link.map_or(String::new(), |it| it.display().to_string())
                )
                .trim_end()
                .to_owned()
            })
            .collect();
        let want = [
            "a/ Directory 755 0:0 1700000000",
            "a/very/ Directory 755 0:0 1700000000",
            "a/very/deep/ Directory 755 0:0 1700000000",
            "a/very/deep/file Regular 644 0:0 1700000000",
            "bin/ Directory 755 0:0 1700000000",
            "bin/other Symlink 777 0:0 1700000000 program",
            "bin/program Regular 755 0:0 1700000000",
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn the_compressed_layer_has_no_time_stamp() {
        let archive = tar(&example(), 1).unwrap();
        let compressed = gzip(&archive, Compression::best()).unwrap();
        // Magic number, method, no flags, and four bytes of time (RFC 1952).
        assert_eq!(compressed[..8], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
        let mut back = Vec::new();
        flate2::read::GzDecoder::new(&compressed[..]).read_to_end(&mut back).unwrap();
        assert_eq!(back, archive);
    }
}
