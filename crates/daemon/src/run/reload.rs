//! Reads the configuration again, after SIGHUP or when a file has changed, and replaces that of the running engine.
//!
//! ```text
//! SIGHUP, changed file ──► read and validate, as at start ──► build profiles ──► engine's thread: between two cycles
//!                                     │ invalid                                      │
//!                                     └──► nothing changes ──► log, metric, /statusz, Event ◄── has taken effect
//! ```
//!
//! A ConfigMap volume changes by the swap of a symbolic link, and editors replace files: therefore the metadata of what the path leads to
//! is read every few seconds.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use loadmaster_api::document::Document;
use loadmaster_client::Kind;
use loadmaster_client::event_recorder::{EventRecorder, NewEvent, ObjectReference};
use loadmaster_config::{PolicySource, SchedulerConfiguration, policy_source};
use loadmaster_framework::Registry;
use loadmaster_stdx::ErrorChain;
use serde_json::Value;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::build_configuration;
use super::engine_loop::{Command, ReloadRequest};
use super::extender_calls::ConnectedExtenders;
use super::missing_kinds::Lease;
use crate::LoadedConfig;
use crate::flags::Options;
use crate::metrics::Metrics;

/// How often the metadata of the files is read.
const POLL_PERIOD: Duration = Duration::from_secs(2);

/// The longest note of an Event, in bytes.
const NOTE_LEN_MAX: usize = 1024;

/// What is necessary to read the configuration again.
pub(super) struct ReloadSource {
    pub options: Options,
    pub registry: Registry,
    pub hangup: Signal,
}

/// What `/configz` and `/statusz` show.
#[derive(Clone, Default)]
pub(super) struct ReloadStatus {
    /// The running configuration as JSON.
    pub configz: String,
    last_success: Option<Timestamp>,
    /// Fields of the file that differ from the running values and need a restart.
    needs_restart: Vec<String>,
    last_error: Option<(Timestamp, String)>,
}

impl ReloadStatus {
    /// Of a scheduler that has started with this configuration.
    pub fn new(config: &SchedulerConfiguration) -> ReloadStatus {
        let configz = config.redacted().to_v1_json().unwrap_or_default();
        ReloadStatus { configz, ..ReloadStatus::default() }
    }

    /// The lines of `/statusz`.
    pub fn lines(&self) -> String {
        let time = |time: Timestamp| format!("{time:.0}");
        let success = self.last_success.map_or_else(|| "never".to_owned(), time);
        let mut lines = format!("Last successful reload: {success}\n");
        if !self.needs_restart.is_empty() {
            lines.push_str(&format!("Needs a restart: {}\n", self.needs_restart.join(", ")));
        }
        if let Some((at, error)) = &self.last_error {
            lines.push_str(&format!("Last failed reload: {}: {}\n", time(*at), one_line(error)));
        }
        lines
    }
}

/// Reloads the configuration of a running scheduler.
pub(super) struct Reloader {
    pub source: ReloadSource,
    /// The configuration at start.
    pub first: SchedulerConfiguration,
    pub commands: mpsc::UnboundedSender<Command>,
    pub metrics: Arc<Metrics>,
    pub status: watch::Sender<ReloadStatus>,
    pub recorder: Arc<EventRecorder>,
    /// Events regard the Lease, like those of leader election: the scheduler has no other object.
    pub lease: Option<Lease>,
    /// Starts to watch further kinds.
    pub watch_kinds: Box<dyn Fn(Vec<Kind>) + Send + Sync>,
}

/// A configuration that has taken effect.
struct Reloaded {
    config: SchedulerConfiguration,
    needs_restart: Vec<String>,
    notes: Vec<String>,
}

/// Reads the configuration and builds its profiles and extenders.
struct Prepared {
    loaded: LoadedConfig,
    needs_restart: Vec<String>,
    request: ReloadRequest,
    done: oneshot::Receiver<Result<Vec<Kind>, Vec<String>>>,
}

impl Reloader {
    /// Runs for ever.
    pub async fn run(mut self) {
        let mut files = WatchedFiles::new(&self.source.options);
        let is_watching = self.source.options.loadmaster.watch_config && !files.is_empty();
        let mut ticks = interval(POLL_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_requested = tokio::select! {
                received = self.source.hangup.recv() => match received {
                    Some(()) => true,
                    None => return,
                },
                _ = ticks.tick(), if is_watching => false,
            };
            let (checked, has_changed) = match spawn_blocking(move || files.check()).await {
                Ok(checked) => checked,
                // The runtime is stopping.
                Err(_) => return,
            };
            files = checked;
            if is_requested || has_changed {
                let why = if is_requested { "SIGHUP" } else { "the file has changed" };
                tracing::info!(why, "Reloading the configuration");
                let outcome = self.reload().await;
                self.report(outcome);
            }
        }
    }

    async fn reload(&self) -> Result<Reloaded, String> {
        let (options, registry) = (self.source.options.clone(), self.source.registry.clone());
        let first = self.first.clone();
        let prepared = spawn_blocking(move || Prepared::new(&options, &registry, first)).await;
        let Prepared { loaded, needs_restart, request, done } =
            prepared.map_err(|error| error.to_string())??;
        for profile in &request.configuration.profiles {
            for plugin in &profile.plugins {
                for metric in &plugin.metrics {
                    let registered = self.metrics.register_plugin_metric(plugin.name, metric);
                    registered.map_err(|error| {
                        format!("initializing plugin {:?}: {}", plugin.name, ErrorChain(&error))
                    })?;
                }
            }
        }
        let stopping = || "the scheduler is stopping".to_owned();
        self.commands.send(Command::Reload(Box::new(request))).map_err(|_| stopping())?;
        let added = done.await.map_err(|_| stopping())?;
        let added =
            added.map_err(|obstacles| format!("needs a restart: {}", obstacles.join("; ")))?;
        if !added.is_empty() {
            (self.watch_kinds)(added);
        }
        Ok(Reloaded { config: loaded.config, needs_restart, notes: loaded.notes })
    }

    fn report(&self, outcome: Result<Reloaded, String>) {
        self.metrics.loadmaster.configuration_reloaded(outcome.is_ok());
        match outcome {
            Ok(Reloaded { config, needs_restart, notes }) => {
                notes.iter().for_each(|note| tracing::warn!("{note}"));
                let mut note = "the configuration was reloaded".to_owned();
                if needs_restart.is_empty() {
                    tracing::info!("Reloaded the configuration");
                } else {
                    let fields = needs_restart.join(", ");
                    tracing::warn!(
                        fields,
                        "Reloaded the configuration, except for fields that need a restart"
                    );
                    note = format!("{note}, except for fields that need a restart: {fields}");
                }
                self.record_event(!needs_restart.is_empty(), "ConfigurationReloaded", note);
                self.status.send_modify(|status| {
                    status.configz = config.redacted().to_v1_json().unwrap_or_default();
                    status.last_success = Some(Timestamp::now());
                    status.needs_restart = needs_restart;
                });
            }
            Err(error) => {
                tracing::error!("The configuration was not reloaded: {error}");
                let note = format!("the configuration was not reloaded: {}", one_line(&error));
                self.record_event(true, "ConfigurationRejected", note);
                self.status.send_modify(|status| {
                    status.last_error = Some((Timestamp::now(), error));
                });
            }
        }
    }

    fn record_event(&self, is_warning: bool, reason: &str, mut note: String) {
        let Some(lease) = &self.lease else { return };
        note.truncate(note.floor_char_boundary(NOTE_LEN_MAX));
        let uid = lease.status.borrow().uid.as_str().into();
        self.recorder.record(NewEvent {
            regarding: ObjectReference { uid, ..lease.name.clone() },
            related: None,
            is_warning,
            reason: reason.into(),
            action: "Reloading".into(),
            note,
            controller: "kube-scheduler".into(),
        });
    }
}

impl Prepared {
    fn new(
        options: &Options,
        registry: &Registry,
        first: SchedulerConfiguration,
    ) -> Result<Prepared, String> {
        let loaded = options.load_config(registry);
        let mut loaded = loaded.map_err(|error| ErrorChain(&error).to_string())?;
        let needs_restart = fields_that_need_restart(&first, &loaded.config);
        loaded.config = running_configuration(first, loaded.config);
        let configuration = build_configuration(&loaded.config, &loaded.profiles, &loaded.gates);
        let configuration = configuration.map_err(|error| ErrorChain(&error).to_string())?;
        let extenders = ConnectedExtenders::new(&loaded.config.extenders)
            .map_err(|error| format!("couldn't build extenders: {}", ErrorChain(&error)))?;
        let (sender, done) = oneshot::channel();
        let configuration = Arc::new(configuration);
        let request = ReloadRequest { configuration, extenders, done: sender };
        Ok(Prepared { loaded, needs_restart, request, done })
    }
}

/// The configuration of the running process: the fields that can change are those of the file.
fn running_configuration(
    first: SchedulerConfiguration,
    file: SchedulerConfiguration,
) -> SchedulerConfiguration {
    SchedulerConfiguration {
        percentage_of_nodes_to_score: file.percentage_of_nodes_to_score,
        pod_initial_backoff_seconds: file.pod_initial_backoff_seconds,
        pod_max_backoff_seconds: file.pod_max_backoff_seconds,
        profiles: file.profiles,
        extenders: file.extenders,
        ..first
    }
}

/// The paths of the fields that differ and cannot change in a running process.
fn fields_that_need_restart(
    first: &SchedulerConfiguration,
    file: &SchedulerConfiguration,
) -> Vec<String> {
    let value = |config: &SchedulerConfiguration| serde_json::to_value(config).unwrap_or_default();
    let running = running_configuration(first.clone(), file.clone());
    let mut paths = Vec::new();
    add_differences(&value(&running), &value(file), "", &mut paths);
    paths
}

fn add_differences(a: &Value, b: &Value, path: &str, paths: &mut Vec<String>) {
    match (a, b) {
        _ if a == b => {}
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            let null = Value::Null;
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned();
                let (a, b) = (of(a).unwrap_or(null.clone()), of(b).unwrap_or(null.clone()));
                add_differences(&a, &b, &path, paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ")
}

/// The files of the configuration, with the metadata and the content that was last seen.
struct WatchedFiles(Vec<WatchedFile>);

struct WatchedFile {
    path: String,
    seen: Option<FileVersion>,
    content: Option<Vec<u8>>,
}

/// Differs if the path leads to another file, or the file was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<Metadata> for FileVersion {
    fn from(metadata: Metadata) -> FileVersion {
        FileVersion {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl WatchedFiles {
    /// The file of `--config`, and that of a Policy.
    fn new(options: &Options) -> WatchedFiles {
        let mut paths =
            vec![options.misc.config.clone(), options.legacy.policy_config_file.clone()];
        let document = Document::read(&options.misc.config, None).ok();
        if let Some(Ok(Some(PolicySource::File { path }))) = document.as_ref().map(policy_source) {
            paths.push(path);
        }
        paths.retain(|path| !path.is_empty());
        let file = |path: String| WatchedFile { path, seen: None, content: None };
        let (files, _) = WatchedFiles(paths.into_iter().map(file).collect()).check();
        files
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a file has another content than at the last check. A file that cannot be read has none.
    fn check(mut self) -> (WatchedFiles, bool) {
        let mut has_changed = false;
        for file in &mut self.0 {
            let version = std::fs::metadata(&file.path).ok().map(FileVersion::from);
            if version == file.seen {
                continue;
            }
            file.seen = version;
            let content = std::fs::read(&file.path).ok();
            has_changed |= content != file.content;
            file.content = content;
        }
        (self, has_changed)
    }
}

#[cfg(test)]
mod tests;
