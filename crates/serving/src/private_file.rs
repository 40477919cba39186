//! Files that only their owner can read: keys, kubeconfigs with credentials, recordings, audit logs, and the data of an API server.
//!
//! A path may be in a directory to which others can write, such as `/tmp`. They must not be able to redirect a file by a symbolic link, or
//! to offer a directory of theirs.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// The permissions of a new file, and those that a replaced file may keep: its owner can read and write it.
const PRIVATE: u32 = 0o600;

/// The permission of others to write.
const OTHERS_WRITE: u32 = 0o002;

/// Opens a file for writing; if it is created, only its owner can read it. A symbolic link is an error.
pub fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(PRIVATE).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Whether a file or symbolic link belongs to the user of this process, or to root.
fn is_trusted(metadata: &Metadata) -> bool {
    metadata.uid() == geteuid().as_raw() || metadata.uid() == 0
}

/// Checks that a path is no symbolic link of another user. One of the own user is followed on purpose, for example to a kubeconfig that
/// is kept elsewhere.
///
/// # Errors
///
/// If it is, or cannot be read. A path without a file is fine.
pub fn check_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(link) if link.is_symlink() && !is_trusted(&link) => {
            Err(io::Error::other("the symbolic link belongs to another user"))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Checks that nobody else can change the files of a directory.
///
/// # Errors
///
/// If it or a symbolic link to it belongs to another user, if others can write to it, or if it cannot be read.
pub fn check_directory(path: &Path) -> io::Result<()> {
    check_link(path)?;
    let directory = fs::metadata(path)?;
    if !is_trusted(&directory) {
        return Err(io::Error::other("it belongs to another user"));
    }
    if directory.permissions().mode() & OTHERS_WRITE != 0 {
        return Err(io::Error::other("other users can write to it"));
    }
    Ok(())
}

/// Writes or replaces a file atomically with one that only its owner can read. Owner and permissions of the file `before` are kept, except
/// for permissions of others. A symbolic link is replaced, not followed.
///
/// # Errors
///
/// If the file cannot be written. An existing file is then unchanged.
pub fn replace(
    target: &Path,
    before: Option<&Metadata>,
    content: impl AsRef<[u8]>,
) -> io::Result<()> {
    let unfinished = unfinished(target);
    let file = open_options().create_new(true).open(&unfinished)?;
    finish(&unfinished, target, || {
        if let Some(before) = before {
            // Only root can change the owner of a file; for others this is an error, and the file is unchanged.
            if before.uid() != file.metadata()?.uid() {
                fchown(&file, Some(before.uid()), Some(before.gid()))?;
            }
            let mode = before.permissions().mode() & PRIVATE;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        write(&file, content.as_ref())
    })
}

/// As [`replace`], for a file without secrets, which others may read.
///
/// # Errors
///
/// As [`replace`].
pub fn replace_public(target: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let unfinished = unfinished(target);
    let file = OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
    finish(&unfinished, target, || write(&file, content.as_ref()))
}

/// The name of a file until it is complete.
fn unfinished(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let unfinished = target.with_file_name(name);
    // Left behind by a process that was killed; in a container, every process may have the same id.
    let _ = fs::remove_file(&unfinished);
    unfinished
}

fn write(mut file: &File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    file.sync_all()
}

/// Gives a file its name after `complete`; on an error it is removed.
fn finish(
    unfinished: &Path,
    target: &Path,
    complete: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let written = complete().and_then(|()| fs::rename(unfinished, target));
    if written.is_err() {
        let _ = fs::remove_file(unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt as _, lchown, symlink};

    use super::*;

    /// An empty folder, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("private-{name}-{}", std::process::id()));
            fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_private_and_links_are_not_followed() {
        let folder = Folder::new("files");
        let (target, link) = (folder.0.join("target"), folder.0.join("link"));
        fs::write(&target, "untouched").unwrap();
        symlink(&target, &link).unwrap();
        for options in [
            open_options().create_new(true),
            open_options().create(true).truncate(true),
            open_options().append(true),
        ] {
            assert!(options.open(&link).is_err());
        }
        assert_eq!(fs::read(&target).unwrap(), b"untouched");
        // The link is replaced, not the file that it leads to.
        replace(&link, None, "secret").unwrap();
        assert_eq!((fs::read(&target).unwrap(), mode(&link)), (b"untouched".to_vec(), PRIVATE));
        assert_eq!(fs::read(&link).unwrap(), b"secret");
        // A temporary name that is a link, too.
        let unfinished = folder.0.join(format!("new.{}.tmp", std::process::id()));
        symlink(&target, unfinished).unwrap();
        replace(&folder.0.join("new"), None, "secret").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"untouched");
        assert_eq!(mode(&folder.0.join("new")), PRIVATE);
        replace_public(&link, "certificate").unwrap();
        assert_eq!(
            (fs::read(&link).unwrap(), mode(&link) & 0o400),
            (b"certificate".to_vec(), 0o400)
        );
    }

    #[test]
    fn directories() {
        let folder = Folder::new("directories");
        let check = |path: &Path, mode: u32, want: Option<&str>| {
            fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode)).unwrap();
            let found = check_directory(path).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), want, "{mode:o}");
        };
        check(&folder.0, 0o700, None);
        check(&folder.0, 0o755, None);
        check(&folder.0, 0o775, None);
        check(&folder.0, 0o777, Some("other users can write to it"));
        check(&folder.0, 0o1777, Some("other users can write to it"));
        let link = folder.0.join("link");
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&folder.0, &link).unwrap();
        check(&link, 0o700, None);
    }

    /// Only root can give files to another user.
    #[test]
    fn what_belongs_to_another_user_is_rejected() {
        if !geteuid().is_root() {
            return;
        }
        let folder = Folder::new("owners");
        let (link, directory) = (folder.0.join("link"), folder.0.join("directory"));
        fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
        symlink(&directory, &link).unwrap();
        let check = |owners: [u32; 2], want: Option<&str>| {
            lchown(&link, Some(owners[0]), None).unwrap();
            lchown(&directory, Some(owners[1]), None).unwrap();
            let found = check_directory(&link).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), want, "{owners:?}");
        };
        check([0, 0], None);
        check([1_000, 0], Some("the symbolic link belongs to another user"));
        check([0, 1_000], Some("it belongs to another user"));
    }
}
