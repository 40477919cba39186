//! Files that only their owner can read: keys, and kubeconfigs with credentials.

use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

/// The permissions of a new file, and those that a replaced file may keep: its owner can read and write it.
const PRIVATE: u32 = 0o600;

/// Opens a file for writing; if it is created, only its owner can read it.
pub(super) fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(PRIVATE);
    options
}

/// Writes or replaces a file atomically with one that only its owner can read. Owner and permissions of the file `before` are kept, except
/// for permissions of others.
///
/// # Errors
///
/// If the file cannot be written. An existing file is then unchanged.
pub(super) fn replace(target: &Path, before: Option<&Metadata>, text: &str) -> io::Result<()> {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let unfinished = target.with_file_name(name);
    // Left behind by a process that was killed; in a container, every process may have the same id.
    let _ = fs::remove_file(&unfinished);
    let mut file = open_options().create_new(true).open(&unfinished)?;
    let written = (|| {
        if let Some(before) = before {
            // Only root can change the owner of a file; for others this is an error, and the file is unchanged.
            if before.uid() != file.metadata()?.uid() {
                fchown(&file, Some(before.uid()), Some(before.gid()))?;
            }
            let mode = before.permissions().mode() & PRIVATE;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, target)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}
