//! Folders of a run: removed when all went well, kept and named when not.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// What happens to the folder in the end.
#[derive(PartialEq, Eq)]
enum End {
    /// Somebody chose it: it stays without a word.
    Stays,
    /// It stays, and we say where.
    Told,
    Removed,
}

/// A folder that is ours.
pub struct Folder {
    path: PathBuf,
    end: End,
}

impl Folder {
    /// A folder that somebody chose; it stays.
    pub fn named(path: &Path) -> Result<Folder> {
        std::fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
        let path = path.canonicalize().with_context(|| format!("finding {}", path.display()))?;
        Ok(Folder { path, end: End::Stays })
    }

    /// A new folder below `parent`. It stays, and is named on standard error, unless it is told to be [removed](Folder::removed).
    pub fn temporary(parent: &Path) -> Result<Folder> {
        static N_MADE: AtomicU32 = AtomicU32::new(0);
        let n = N_MADE.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("loadmaster-e2e-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Folder { path, end: End::Told })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same folder, to be removed in the end unless somebody chose it.
    pub fn removed(mut self) -> Folder {
        if self.end == End::Told {
            self.end = End::Removed;
        }
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        match self.end {
            End::Stays => {}
            End::Told => eprintln!("logs are in {}", self.path.display()),
            End::Removed => {
                if let Err(error) = std::fs::remove_dir_all(&self.path) {
                    eprintln!("removing {}: {error}", self.path.display());
                }
            }
        }
    }
}
