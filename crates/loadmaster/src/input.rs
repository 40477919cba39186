//! Input of commands: manifests, saved objects, configurations, feature gates.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use loadmaster_api::document::{Document, DocumentError};
use loadmaster_config::{
    AllFeatureGates, CheckedConfiguration, ConfigurationDocuments, POLICY_CONFIG_MAP_KEY,
    PolicySource, check_documents_with_overrides, policy_source,
};
use loadmaster_engine::Profile;
use loadmaster_engine::world_loader;
use loadmaster_framework::{FeatureGates, Registry};
use loadmaster_stdx::ErrorChain;

use crate::exit::{CommandResult, Failure, print_to_stderr};

/// Maximum size of a configuration file.
pub(crate) const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Files of at least this size are read by two threads.
const LONG_FILE_BYTES: usize = 16 << 20;

/// The flag --feature-gates.
#[derive(clap::Args, Default)]
pub(crate) struct GateArgs {
    /// A set of key=value pairs that describe feature gates, as for kube-scheduler: Name=true,Name=false.
    #[arg(long, value_name = "GATES")]
    feature_gates: Vec<String>,
}

impl GateArgs {
    /// The values of the flag.
    #[cfg(feature = "cluster")]
    pub fn flag_values(&self) -> &[String] {
        &self.feature_gates
    }

    /// Parses the flag.
    pub fn parse(&self) -> CommandResult<AllFeatureGates> {
        let flags = self.feature_gates.iter().map(String::as_str);
        let with_flag = |error| format!("--feature-gates: {error}");
        AllFeatureGates::parse(flags)
            .map_err(|errors| Failure::invalid_inputs(errors.into_iter().map(with_flag)))
    }
}

/// The flags --config and --feature-gates.
#[derive(clap::Args)]
pub(crate) struct ConfigArgs {
    /// Path to a KubeSchedulerConfiguration file [default: kube-scheduler's defaults].
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    #[command(flatten)]
    pub gates: GateArgs,
}

/// The profiles and feature gates of a configuration.
pub(crate) struct ProfilesAndGates {
    pub profiles: Vec<Profile>,
    pub gates: FeatureGates,
}

impl ConfigArgs {
    /// Reads the configuration and builds its profiles.
    pub fn read_profiles_and_gates(&self, registry: &Registry) -> CommandResult<ProfilesAndGates> {
        let gates = self.gates.parse()?;
        let checked = match &self.config {
            Some(file) => read_configuration(file, registry, &gates)?,
            None => loadmaster_config::default_configuration(registry, &gates)
                .map_err(Failure::invalid_inputs)?,
        };
        // Settings of a file that have no effect are noted; those of the defaults are documented in the manual.
        let notes = checked.notes.iter().filter(|_| self.config.is_some());
        notes.for_each(|note| print_to_stderr(&format!("note: {note}")));
        let gates = gates.framework_gates();
        let profiles = world_loader::build_profiles(&checked, &gates);
        Ok(ProfilesAndGates { profiles, gates })
    }
}

/// The form in which a command writes a configuration.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConfigurationFormat {
    Yaml,
    Json,
}

/// The arguments of commands that read a configuration and write one.
#[derive(clap::Args)]
pub(crate) struct ConfigurationArgs {
    /// KubeSchedulerConfiguration of any version, or Policy, in YAML or JSON; `-` reads standard input.
    file: String,
    /// The Policy, in place of the file or ConfigMap that the configuration names.
    #[arg(long, value_name = "FILE")]
    policy: Option<String>,
    #[command(flatten)]
    gates: GateArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = ConfigurationFormat::Yaml)]
    pub output: ConfigurationFormat,
}

impl ConfigurationArgs {
    /// Reads the files and parses the feature gates.
    pub fn read(&self) -> CommandResult<(ConfigurationFiles, AllFeatureGates)> {
        let gates = self.gates.parse()?;
        Ok((ConfigurationFiles::read(&self.file, self.policy.as_deref())?, gates))
    }
}

/// The documents of a configuration, read from files.
pub(crate) struct ConfigurationFiles {
    configuration: Document,
    policy: Option<Document>,
}

impl ConfigurationFiles {
    /// Reads a configuration file (`-` is standard input), and the Policy of this file, else of the one that the configuration names.
    pub fn read(file: &str, policy: Option<&str>) -> CommandResult<ConfigurationFiles> {
        let read = |file: &str| {
            Document::read(file, Some(CONFIG_BYTES_MAX))
                .map_err(|error| Failure::invalid_input(ErrorChain(&error)))
        };
        let configuration = read(file)?;
        let policy = match policy {
            Some(policy) => Some(read(policy)?),
            None => match policy_source(&configuration).map_err(Failure::invalid_inputs)? {
                None => None,
                Some(PolicySource::File { path }) => Some(read(&path)?),
                Some(PolicySource::ConfigMap { namespace, name }) => {
                    return Err(Failure::invalid_input(format_args!(
                        "the Policy of {file} is in ConfigMap {namespace}/{name}, key {POLICY_CONFIG_MAP_KEY}: save it to a file, and \
                         use `config check`, `config convert` or `config rbac` with --policy FILE"
                    )));
                }
            },
        };
        Ok(ConfigurationFiles { configuration, policy })
    }

    /// The documents.
    pub fn documents(&self) -> ConfigurationDocuments<'_> {
        ConfigurationDocuments {
            configuration: Some(&self.configuration),
            policy: self.policy.as_ref(),
        }
    }

    /// The namespace and name of the ConfigMap in which the configuration says its Policy is.
    pub fn policy_config_map(&self) -> CommandResult<Option<(String, String)>> {
        match policy_source(&self.configuration).map_err(Failure::invalid_inputs)? {
            Some(PolicySource::ConfigMap { namespace, name }) => Ok(Some((namespace, name))),
            Some(PolicySource::File { .. }) | None => Ok(None),
        }
    }

    /// Checks the configuration.
    pub fn check(
        &self,
        registry: &Registry,
        gates: &AllFeatureGates,
    ) -> CommandResult<CheckedConfiguration> {
        check_documents_with_overrides(self.documents(), registry, gates, |_| ())
            .map_err(Failure::invalid_inputs)
    }
}

/// Reads and checks a configuration file; `-` is standard input.
pub(crate) fn read_configuration(
    file: &str,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> CommandResult<CheckedConfiguration> {
    ConfigurationFiles::read(file, None)?.check(registry, gates)
}

/// Reads files, all manifests of directories, and standard input (`-`).
///
/// # Errors
///
/// All files that cannot be read.
pub(crate) fn documents(names: &[String]) -> CommandResult<Vec<Document>> {
    let (mut documents, mut errors) = (Vec::new(), Vec::new());
    let mut stdin_taken = false;
    for name in names {
        if name == "-" && std::mem::replace(&mut stdin_taken, true) {
            return Err(Failure::invalid_input("standard input (-) can be read only once"));
        }
        let files = if name != "-" && Path::new(name).is_dir() {
            manifests_in(name)?
        } else {
            vec![name.clone()]
        };
        for file in files {
            match read_whole(&file) {
                Ok(document) => documents.push(document),
                Err(error) => errors.push(ErrorChain(&error).to_string()),
            }
        }
    }
    if errors.is_empty() { Ok(documents) } else { Err(Failure::invalid_inputs(errors)) }
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
        // Reads it again for an error with the position of the invalid byte.
        Err(error) => Document::from_reader(name, error.as_bytes(), None),
    }
}

/// Reads the bytes of a file. The two halves of a large file are read in parallel, because reading hundreds of megabytes into new memory
/// takes noticeable time.
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
        // The file changed meanwhile: read it again from start to end.
        _ => std::fs::read(name),
    }
}

/// Manifest files in a directory, sorted; subdirectories are ignored, as kubectl does.
fn manifests_in(folder: &str) -> CommandResult<Vec<String>> {
    let failed = |error| Failure::invalid_input(format_args!("reading {folder}: {error}"));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path: PathBuf = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_file() && matches!(extension, Some("json" | "yaml" | "yml")) {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    if files.is_empty() {
        return Err(Failure::invalid_input(format_args!(
            "{folder}: expected files that end in .json, .yaml or .yml"
        )));
    }
    files.sort_unstable();
    Ok(files)
}
