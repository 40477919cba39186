//! Folders of a run: removed after success, kept and reported after a failure.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// What happens to the folder when it is dropped.
#[derive(PartialEq, Eq)]
enum OnDrop {
    /// The user chose it: it is kept.
    Keep,
    /// It is kept, and its path is printed.
    KeepAndReport,
    Remove,
}

/// A folder of a run.
pub struct RunFolder {
    path: PathBuf,
    end: OnDrop,
}

impl RunFolder {
    /// A folder that the user chose; it is kept.
    pub fn named(path: &Path) -> Result<RunFolder> {
        std::fs::create_dir_all(path).with_context(|| format!("creating {}", path.display()))?;
        let path = path.canonicalize().with_context(|| format!("finding {}", path.display()))?;
        Ok(RunFolder { path, end: OnDrop::Keep })
    }

    /// A new folder below `parent`. It is kept and its path is printed to standard error, unless [`RunFolder::remove_on_drop`] is called.
    pub fn temporary(parent: &Path) -> Result<RunFolder> {
        static N_MADE: AtomicU32 = AtomicU32::new(0);
        let n = N_MADE.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("loadmaster-e2e-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(RunFolder { path, end: OnDrop::KeepAndReport })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folder when it is dropped, unless the user chose it.
    pub fn remove_on_drop(mut self) -> RunFolder {
        if self.end == OnDrop::KeepAndReport {
            self.end = OnDrop::Remove;
        }
        self
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        match self.end {
            OnDrop::Keep => {}
            OnDrop::KeepAndReport => eprintln!("logs are in {}", self.path.display()),
            OnDrop::Remove => {
                if let Err(error) = std::fs::remove_dir_all(&self.path) {
                    eprintln!("removing {}: {error}", self.path.display());
                }
            }
        }
    }
}
