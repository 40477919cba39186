//! What commands read: manifests, snapshots, configurations, feature gates.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use loadmaster_api::document::{Document, DocumentError};
use loadmaster_config::Gates;
use loadmaster_engine::Profile;
use loadmaster_framework::{FeatureGates, Registry};
use loadmaster_sim::load;
use loadmaster_stdx::Chain;

use crate::exit::{Answer, Failure, complain};

/// No configuration is larger than this.
pub(crate) const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Files from this size on are read by two threads.
const LONG_FILE_BYTES: usize = 16 << 20;

/// Feature gates on a command line.
#[derive(clap::Args)]
pub(crate) struct GateArgs {
    /// Feature gates, as kube-scheduler takes them: Name=true,Name=false.
    #[arg(long, value_name = "GATES")]
    feature_gates: Vec<String>,
}

impl GateArgs {
    /// As they were given.
    pub fn given(&self) -> &[String] {
        &self.feature_gates
    }

    /// The gates they make.
    pub fn parse(&self) -> Answer<Gates> {
        let flags = self.feature_gates.iter().map(String::as_str);
        let with_flag = |error| format!("--feature-gates: {error}");
        Gates::parse(flags).map_err(|errors| Failure::inputs(errors.into_iter().map(with_flag)))
    }
}

/// A configuration on a command line.
#[derive(clap::Args)]
pub(crate) struct ConfigArgs {
    /// A KubeSchedulerConfiguration; without it kube-scheduler's defaults count.
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    #[command(flatten)]
    pub gates: GateArgs,
}

/// A configuration with its profiles built.
pub(crate) struct Setup {
    pub profiles: Vec<Profile>,
    pub gates: FeatureGates,
}

impl ConfigArgs {
    /// Reads it and builds its profiles.
    pub fn setup(&self, registry: &Registry) -> Answer<Setup> {
        let gates = self.gates.parse()?;
        let checked = match &self.config {
            Some(file) => {
                let document = Document::read(file, Some(CONFIG_BYTES_MAX));
                let document = document.map_err(|error| Failure::input(Chain(&error)))?;
                loadmaster_config::check(&document, registry, &gates).map_err(Failure::inputs)?
            }
            None => loadmaster_config::check_default(registry, &gates).map_err(Failure::inputs)?,
        };
        // What a file says and does not have is news; what the defaults have and we do not is in the manual.
        let notes = checked.notes.iter().filter(|_| self.config.is_some());
        notes.for_each(|note| complain(&format!("note: {note}")));
        let gates = gates.framework();
        let profiles = load::profiles(&checked, registry, &gates);
        let profiles = profiles.map_err(|error| Failure::input(Chain(&error)))?;
        Ok(Setup { profiles, gates })
    }
}

/// Reads files, all manifests of folders, and standard input (`-`).
pub(crate) fn documents(names: &[String]) -> Answer<Vec<Document>> {
    let mut documents = Vec::new();
    let mut stdin_taken = false;
    for name in names {
        if name == "-" && std::mem::replace(&mut stdin_taken, true) {
            return Err(Failure::input("standard input (-) can be read only once"));
        }
        let files = if name != "-" && Path::new(name).is_dir() {
            manifests_in(name)?
        } else {
            vec![name.clone()]
        };
        for file in files {
            let document = read_whole(&file);
            documents.push(document.map_err(|error| Failure::input(Chain(&error)))?);
        }
    }
    Ok(documents)
}

/// Reads a file of any size.
fn read_whole(name: &str) -> Result<Document, DocumentError> {
    if name == "-" {
        return Document::read(name, None);
    }
    let bytes =
        read_bytes(name).map_err(|source| DocumentError::Read { name: name.to_owned(), source })?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Document::new(name, text)),
        // Once more, to learn where it is not text.
        Err(error) => Document::from_reader(name, error.as_bytes(), None),
    }
}

/// The bytes of a file; those of a long one in two halves at the same time, since fetching hundreds of megabytes into fresh memory takes
/// a noticeable part of a second.
fn read_bytes(name: &str) -> io::Result<Vec<u8>> {
    let file = File::open(name)?;
    let metadata = file.metadata()?;
    let len = usize::try_from(metadata.len()).unwrap_or_default();
    if !metadata.is_file() || len < LONG_FILE_BYTES {
        return std::fs::read(name);
    }
    let mut bytes = vec![0; len];
    let (first, second) = bytes.split_at_mut(len / 2);
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| file.read_exact_at(second, (len / 2) as u64));
        (file.read_exact_at(first, 0), other.join())
    });
    match (first, second) {
        (Ok(()), Ok(Ok(()))) if file.metadata()?.len() == len as u64 => Ok(bytes),
        // It changed meanwhile: what counts is what it says to one who reads it from begin to end.
        _ => std::fs::read(name),
    }
}

/// Files in a folder that look like manifests, by name; folders in it are left alone, as kubectl does.
fn manifests_in(folder: &str) -> Answer<Vec<String>> {
    let failed = |error| Failure::input(format_args!("reading {folder}: {error}"));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path: PathBuf = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_file() && matches!(extension, Some("json" | "yaml" | "yml")) {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    if files.is_empty() {
        return Err(Failure::input(format_args!(
            "{folder}: expected files that end in .json, .yaml or .yml"
        )));
    }
    files.sort_unstable();
    Ok(files)
}
