//! Adds and removes the entries of an embedded cluster in the user's kubeconfig.
//!
//! As with kind and minikube, a cluster, a user and a context are merged into the file, the context becomes the current context, and all
//! other entries are kept. When the server stops, the entries are removed again.
//!
//! The file is replaced atomically with a rename; while it is read and replaced, it is locked with `FILE.lock`, as kubectl and kind do. A
//! symbolic link is followed if it leads to a regular file. Comments are lost, as with kubectl.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loadmaster_api::document::{Document, DocumentFormat, FieldPath as Field, LocatedError};
use loadmaster_serving::private_file;
use loadmaster_stdx::ErrorChain;
use serde_json::{Value, json};

use super::{cannot_write, failed};
use crate::exit::{CommandResult, Failure, print_to_stderr};
use crate::input::CONFIG_BYTES_MAX;

/// The lists of a kubeconfig, each with the field that its items have besides `name`.
const LISTS: [(&str, &str); 3] =
    [("clusters", "cluster"), ("contexts", "context"), ("users", "user")];

const CURRENT: &str = "current-context";

/// Prefix of the embedded server's URL. An entry with our name but another server belongs to another cluster.
const LOOPBACK: &str = "https://127.0.0.1:";

/// How often and with what delay the lock is retried while another program holds it.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A kubeconfig file as read from disk.
struct KubeconfigFile {
    /// The path of the file after symbolic links are resolved.
    target: PathBuf,
    /// `None` if the file does not exist.
    metadata: Option<Metadata>,
    document: Document,
    config: Value,
}

/// Entries that were added to a file. They are removed on drop, unless `stay` is set.
pub(super) struct KubeconfigEntries {
    path: PathBuf,
    name: String,
    cluster: Value,
    /// The previous current context.
    previous: Option<Value>,
    /// Whether the file was created.
    is_created: bool,
    stay: bool,
}

/// All added entries. They are removed in reverse order, because each restores the previous current context.
#[derive(Default)]
pub(super) struct AllKubeconfigEntries(Vec<KubeconfigEntries>);

impl AllKubeconfigEntries {
    pub fn push(&mut self, entries: KubeconfigEntries) {
        self.0.push(entries);
    }
}

impl Drop for AllKubeconfigEntries {
    fn drop(&mut self) {
        while let Some(last) = self.0.pop() {
            drop(last);
        }
    }
}

/// Checks whether entries with this name can be added to a file.
///
/// # Errors
///
/// If the file exists and is not a kubeconfig, or the name belongs to another cluster.
pub(super) fn check(path: &Path, name: &str) -> CommandResult<()> {
    read(path)?.check_name(name)
}

/// Adds the entries of a kubeconfig to a file, which is created if it does not exist.
///
/// # Errors
///
/// As [`check`], and if the file cannot be written. The file is then unchanged.
pub(super) fn add(
    path: &Path,
    name: &str,
    ours: &Value,
    stay: bool,
) -> CommandResult<KubeconfigEntries> {
    let _lock = FileLock::take(path)?;
    let mut found = read(path)?;
    found.check_name(name)?;
    let previous = found.config.get(CURRENT).cloned();
    merge(&mut found.config, ours);
    found.write().map_err(|error| cannot_write(path, &error))?;
    Ok(KubeconfigEntries {
        path: path.to_owned(),
        name: name.to_owned(),
        cluster: ours["clusters"][0].clone(),
        previous,
        is_created: found.metadata.is_none(),
        stay,
    })
}

/// Replaces the user of entries that were added, for example by one with a new certificate. Entries that belong to another server by now
/// are left alone.
///
/// # Errors
///
/// As [`add`].
pub(super) fn renew_user(path: &Path, name: &str, ours: &Value) -> CommandResult<()> {
    let _lock = FileLock::take(path)?;
    let mut found = read(path)?;
    let at = position(&found.config, "clusters", name);
    if at.is_none_or(|at| found.config["clusters"][at] != ours["clusters"][0]) {
        return Ok(());
    }
    merge(&mut found.config, &json!({"users": ours["users"]}));
    found.write().map_err(|error| cannot_write(path, &error))
}

/// A kubeconfig as YAML.
pub(super) fn yaml(config: &Value) -> io::Result<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let text = serde_saphyr::to_string_with_options(config, options).map_err(io::Error::other)?;
    // The user's values must not be changed by the conversion.
    match Document::new("kubeconfig", &*text).decode_value() {
        Ok(again) if again == *config => Ok(text),
        _ => Err(io::Error::other("a value cannot be written as YAML")),
    }
}

fn read(path: &Path) -> CommandResult<KubeconfigFile> {
    let shown = path.display().to_string();
    let reading = |error: &io::Error| failed(&format!("reading {shown}"), error);
    private_file::check_link(path).map_err(|error| reading(&error))?;
    let link = match fs::symlink_metadata(path) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (target, document) = (path.to_owned(), Document::new(shown, ""));
            return Ok(KubeconfigFile { target, metadata: None, document, config: json!({}) });
        }
        Err(error) => return Err(reading(&error)),
    };
    let target = match fs::canonicalize(path) {
        Ok(target) => target,
        Err(error) if link.is_symlink() && error.kind() == io::ErrorKind::NotFound => {
            return Err(Failure::invalid_input(format!(
                "{shown}: the symbolic link leads to a file that does not exist"
            )));
        }
        Err(error) => return Err(reading(&error)),
    };
    let metadata = fs::metadata(&target).map_err(|error| reading(&error))?;
    if !metadata.is_file() {
        return Err(Failure::invalid_input(format!("{shown}: not a regular file")));
    }
    let file = File::open(&target).map_err(|error| reading(&error))?;
    let document = Document::from_reader(&shown, file, Some(CONFIG_BYTES_MAX))
        .map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    let config = parse(&document).map_err(not_changed)?;
    Ok(KubeconfigFile { target, metadata: Some(metadata), document, config })
}

fn not_changed(error: LocatedError) -> Failure {
    Failure::invalid_input(format!("{error}; the file was not changed"))
}

/// Decodes a kubeconfig; an empty file is valid.
fn parse(document: &Document) -> Result<Value, LocatedError> {
    if document.is_empty() {
        return Ok(json!({}));
    }
    let config = document.decode_value()?;
    let Some(fields) = config.as_object() else {
        let text = "expected a kubeconfig (apiVersion: v1, kind: Config)";
        return Err(document.error_at(Field::ROOT, text));
    };
    for (field, want) in [("apiVersion", "v1"), ("kind", "Config")] {
        let is_kubeconfig = match fields.get(field) {
            // kubectl does not require apiVersion and kind, but then the file must have one of the lists.
            None => LISTS.iter().any(|(list, _)| fields.contains_key(*list)),
            Some(found) => found == want,
        };
        if !is_kubeconfig {
            let text = format!("expected a kubeconfig, with {field}: {want}");
            return Err(document.error_at(Field::ROOT.field(field), text));
        }
    }
    for (list, value) in LISTS {
        let at = Field::ROOT.field(list);
        let items = match fields.get(list) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(items)) => items,
            Some(_) => return Err(document.error_at(at, "expected a list")),
        };
        for (nth, item) in items.iter().enumerate() {
            if !item["name"].is_string() || !item[value].is_object() && !item[value].is_null() {
                let text = format!("expected an item with name and {value}");
                return Err(document.error_at(at.index(nth), text));
            }
        }
    }
    match fields.get(CURRENT) {
        None | Some(Value::Null | Value::String(_)) => Ok(config),
        Some(_) => Err(document.error_at(Field::ROOT.field(CURRENT), "expected a name")),
    }
}

fn position(config: &Value, list: &str, name: &str) -> Option<usize> {
    config[list].as_array()?.iter().position(|item| item["name"] == name)
}

fn merge(config: &mut Value, ours: &Value) {
    for (field, value) in ours.as_object().into_iter().flatten() {
        let Some(items) = value.as_array() else {
            config[field] = value.clone();
            continue;
        };
        if !config[field].is_array() {
            config[field] = json!([]);
        }
        for item in items {
            let name = item["name"].as_str().unwrap_or_default();
            match position(config, field, name) {
                Some(at) => config[field][at] = item.clone(),
                None => {
                    config[field].as_array_mut().into_iter().for_each(|it| it.push(item.clone()))
                }
            }
        }
    }
}

impl KubeconfigFile {
    /// Entries with our name are replaced only if they belong to an embedded server.
    fn check_name(&self, name: &str) -> CommandResult<()> {
        let at = |list| position(&self.config, list, name);
        let server = at("clusters").map(|at| &self.config["clusters"][at]["cluster"]["server"]);
        let server = server.and_then(Value::as_str).unwrap_or_default();
        let entry = LISTS.iter().find_map(|(list, _)| Some((*list, at(list)?)));
        match entry {
            Some((list, nth)) if !server.starts_with(LOOPBACK) => {
                let place = Field::ROOT.field(list).index(nth);
                let text = format!(
                    "the name {name:?} is used for another cluster, whose server is not at 127.0.0.1"
                );
                Err(not_changed(self.document.error_at(place, text)))
            }
            _ => Ok(()),
        }
    }

    fn write(&self) -> io::Result<()> {
        let text = match self.document.format() {
            DocumentFormat::Json => {
                serde_json::to_string_pretty(&self.config).map_err(io::Error::other)?
            }
            DocumentFormat::Yaml => yaml(&self.config)?,
        };
        private_file::replace(&self.target, self.metadata.as_ref(), &text)
    }
}

impl KubeconfigEntries {
    fn remove(&self) -> CommandResult<()> {
        let _lock = FileLock::take(&self.path)?;
        let KubeconfigFile { target, metadata, document, mut config } = read(&self.path)?;
        let is_ours = position(&config, "clusters", &self.name)
            .is_some_and(|at| config["clusters"][at] == self.cluster);
        if metadata.is_none() || !is_ours {
            return Ok(());
        }
        for (list, _) in LISTS {
            let items = config[list].as_array_mut();
            items.into_iter().for_each(|items| items.retain(|item| item["name"] != *self.name));
        }
        let is_empty =
            LISTS.iter().all(|(list, _)| config[list].as_array().is_none_or(Vec::is_empty));
        if self.is_created && is_empty {
            return fs::remove_file(&target).map_err(|error| cannot_write(&self.path, &error));
        }
        if config[CURRENT] == *self.name {
            let previous = self.previous.as_ref().and_then(Value::as_str);
            let previous = previous.filter(|name| position(&config, "contexts", name).is_some());
            config[CURRENT] = json!(previous.unwrap_or_default());
        }
        let found = KubeconfigFile { target, metadata, document, config };
        found.write().map_err(|error| cannot_write(&self.path, &error))
    }
}

impl Drop for KubeconfigEntries {
    fn drop(&mut self) {
        if !self.stay
            && let Err(Failure::Input(lines)) = self.remove()
        {
            lines.iter().for_each(|line| {
                print_to_stderr(&format!("warning: context {} was not removed: {line}", self.name));
            });
        }
    }
}

/// The lock file that kubectl and kind use while they change a kubeconfig.
struct FileLock(PathBuf);

impl FileLock {
    fn take(path: &Path) -> CommandResult<FileLock> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = PathBuf::from(name);
        let mut tries = 0;
        loop {
            tries += 1;
            match private_file::open_options().create_new(true).open(&lock) {
                Ok(_) => return Ok(FileLock(lock)),
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(cannot_write(path, &error));
                }
                Err(_) if tries < LOCK_TRIES => pause(),
                Err(_) => {
                    return Err(Failure::invalid_input(format!(
                        "{}: another program is changing the file; if there is none, remove {}",
                        path.display(),
                        lock.display()
                    )));
                }
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "another program holds the lock")]
fn pause() {
    std::thread::sleep(LOCK_PAUSE);
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests;
