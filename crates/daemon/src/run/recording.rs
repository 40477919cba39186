//! `--record`: writes everything that the engine's thread does to a file. The thread never waits for the disk.
//!
//! ```text
//! engine's thread ──entries──► block ──queue of at most 64 MiB──► writer thread ──► file
//! ```
//!
//! If the disk fails or is too slow, or if the file reaches its maximum size, the recording ends; this is logged and shown in metrics.
//! Scheduling continues.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use loadmaster_api::RawObject;
use loadmaster_config::{AllFeatureGates, PrintError};
use loadmaster_engine::engine::{CycleResult, EngineOptions};
use loadmaster_engine::recording::{
    RecordingEndReason, RecordingHeader, RecordingWriter, encode_block, encode_preamble,
};
use loadmaster_engine::{Effect, EngineEvent, Now};
use loadmaster_serving::private_file;

use crate::LoadedConfig;
use crate::metrics::Metrics;

/// A block is closed when it has this length or age.
const BLOCK_LEN: usize = 256 << 10;
const BLOCK_NANOS_MAX: u64 = 1_000_000_000;

/// The maximum number of blocks that wait for the disk.
const N_PENDING_BLOCKS_MAX: usize = 256;

/// How long the end of a recording waits for the disk.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a recording cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file cannot be created.
    #[error("--record {}: {}", path.display(), create_error_text(source))]
    Create {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The header cannot be written.
    #[error("--record {}", path.display())]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The configuration cannot be serialized.
    #[error("--record: serializing the configuration")]
    Print(#[from] PrintError),
    /// The writer thread cannot be started.
    #[error("--record: starting a thread")]
    Thread(#[source] io::Error),
}

fn create_error_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            "the file already exists, and recordings are never overwritten".to_owned()
        }
        _ => error.to_string(),
    }
}

/// The header of a recording.
pub(super) fn header(
    loaded: &LoadedConfig,
    options: &EngineOptions,
    plugins: &[String],
) -> Result<RecordingHeader, RecordingError> {
    Ok(RecordingHeader {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        configuration: loaded.config.redacted().to_v1_yaml()?,
        feature_gates: changed_feature_gates(&loaded.gates),
        plugins: plugins.to_vec(),
        ..RecordingHeader::from_engine_options(options)
    })
}

/// Feature gates that are not at their default, in the form of `--feature-gates`.
fn changed_feature_gates(gates: &AllFeatureGates) -> Vec<String> {
    let changed = gates.iter().filter(|(_, _, default, on)| default != on);
    changed.map(|(name, _, _, on)| format!("{name}={on}")).collect()
}

/// A running recording, used by the engine's thread.
pub(super) struct Recording {
    writer: RecordingWriter,
    /// When the current block was begun, in nanoseconds.
    begun_at: u64,
    /// `None` if the recording has ended.
    blocks: Option<SyncSender<Vec<u8>>>,
    shared: Arc<Shared>,
    /// Closed when everything has been written.
    written: Receiver<()>,
}

/// State shared by both threads.
struct Shared {
    /// Why the recording ended.
    reason: OnceLock<RecordingEndReason>,
    metrics: Arc<Metrics>,
}

impl Recording {
    /// Creates the file and starts the writer thread.
    pub fn start(
        path: &Path,
        bytes_max: u64,
        header: &RecordingHeader,
        metrics: Arc<Metrics>,
    ) -> Result<Recording, RecordingError> {
        let file = private_file::open_options().create_new(true).open(path);
        let mut file =
            file.map_err(|source| RecordingError::Create { path: path.to_owned(), source })?;
        let first = encode_preamble(header);
        file.write_all(&first)
            .map_err(|source| RecordingError::Write { path: path.to_owned(), source })?;
        let (blocks, waiting) = sync_channel(N_PENDING_BLOCKS_MAX);
        let shared = Arc::new(Shared { reason: OnceLock::new(), metrics });
        shared.metrics.loadmaster.set_recording(true);
        let disk = FileWriter {
            path: path.to_owned(),
            file,
            n_bytes: first.len() as u64,
            bytes_max,
            shared: shared.clone(),
        };
        disk.shared.metrics.loadmaster.recorded_bytes(first.len());
        let (done, written) = sync_channel(0);
        let thread = std::thread::Builder::new().name("recorder".to_owned()).spawn(move || {
            let _done: SyncSender<()> = done;
            disk.run(&waiting);
        });
        thread.map_err(RecordingError::Thread)?;
        tracing::info!(
            file = %path.display(),
            "Recording all events and decisions of the scheduler, including the objects of the cluster"
        );
        Ok(Recording {
            writer: RecordingWriter::new(),
            begun_at: 0,
            blocks: Some(blocks),
            shared,
            written,
        })
    }

    /// Records an event before the engine applies it.
    pub fn record_event(&mut self, now: Now, event: &EngineEvent, raw: Option<&RawObject>) {
        if self.begin_entry(now) && self.writer.write_apply_event(now, event, raw).is_err() {
            tracing::error!("The recording ends: an object was received without its raw bytes");
            self.stop(RecordingEndReason::Unrecordable);
        }
    }

    /// Records a scheduling cycle before the engine runs it.
    pub fn record_cycle(&mut self, now: Now) {
        if self.begin_entry(now) {
            self.writer.write_cycle(now);
        }
    }

    /// Records that the engine handles timeouts, before it does.
    pub fn record_timeouts(&mut self, now: Now) {
        if self.begin_entry(now) {
            self.writer.write_handle_timeouts(now);
        }
    }

    /// Records the effects of the last recorded step.
    pub fn record_effects(&mut self, now: Now, effects: &[Effect], cycled: Option<CycleResult>) {
        if self.blocks.is_none() {
            return;
        }
        self.writer.write_effects(effects, cycled);
        let is_old = now.mono.0.saturating_sub(self.begun_at) >= BLOCK_NANOS_MAX;
        if self.writer.len() >= BLOCK_LEN || is_old {
            self.submit_block();
        }
    }

    /// Writes an old, incomplete block while the engine is idle.
    pub fn flush_old_block(&mut self, now: Now) {
        if now.mono.0.saturating_sub(self.begun_at) >= BLOCK_NANOS_MAX {
            self.submit_block();
        }
    }

    /// The number of the last entry, which `replay` shows, while the recording runs.
    pub fn last_entry(&self) -> Option<u64> {
        self.blocks.as_ref().map(|_| self.writer.n_entries())
    }

    /// Whether an entry is to be written. The first entry of a block sets the block's age.
    fn begin_entry(&mut self, now: Now) -> bool {
        if self.writer.is_empty() {
            self.begun_at = now.mono.0;
        }
        self.blocks.is_some()
    }

    fn submit_block(&mut self) {
        let Some(blocks) = &self.blocks else { return };
        if self.writer.is_empty() {
            return;
        }
        match blocks.try_send(self.writer.take_block()) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                tracing::error!("The recording ends: the disk is too slow; scheduling continues");
                self.stop(RecordingEndReason::DiskTooSlow);
            }
            // The writer thread has logged the reason.
            Err(TrySendError::Disconnected(_)) => self.blocks = None,
        }
    }

    /// Ends the recording; queued blocks are still written.
    fn stop(&mut self, reason: RecordingEndReason) {
        let _ = self.shared.reason.set(reason);
        self.blocks = None;
        self.shared.metrics.loadmaster.set_recording(false);
    }
}

/// Queued blocks are written and the recording is closed properly. After a panic of the engine's thread the end entry is missing.
impl Drop for Recording {
    fn drop(&mut self) {
        self.submit_block();
        if self.blocks.is_some() && !std::thread::panicking() {
            self.stop(RecordingEndReason::Stopped);
        }
        self.blocks = None;
        if self.written.recv_timeout(CLOSE_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(
                "The end of the recording may be missing: timed out waiting for the disk"
            );
        }
    }
}

/// The writer thread.
struct FileWriter {
    path: PathBuf,
    file: File,
    n_bytes: u64,
    bytes_max: u64,
    shared: Arc<Shared>,
}

impl FileWriter {
    fn run(mut self, blocks: &Receiver<Vec<u8>>) {
        let ended = self.write_all(blocks);
        let path = self.path.display();
        if let Err(error) = ended {
            tracing::error!(file = %path, "The recording ends: {error}; scheduling continues");
        }
        self.shared.metrics.loadmaster.set_recording(false);
        tracing::info!(file = %path, bytes = self.n_bytes, "Recording ended");
    }

    fn write_all(&mut self, blocks: &Receiver<Vec<u8>>) -> io::Result<()> {
        let full = end_block(RecordingEndReason::Full);
        for content in blocks {
            let block = encode_block(&content);
            let n_bytes = self.n_bytes + (block.len() + full.len()) as u64;
            if self.bytes_max > 0 && n_bytes > self.bytes_max {
                tracing::warn!(
                    file = %self.path.display(),
                    bytes_max = self.bytes_max,
                    "The recording ends: it has reached --record-max-size; scheduling continues"
                );
                self.write(&full)?;
                return self.file.sync_data();
            }
            self.write(&block)?;
        }
        if let Some(reason) = self.shared.reason.get() {
            self.write(&end_block(*reason))?;
        }
        self.file.sync_data()
    }

    fn write(&mut self, block: &[u8]) -> io::Result<()> {
        self.file.write_all(block)?;
        self.n_bytes += block.len() as u64;
        self.shared.metrics.loadmaster.recorded_bytes(block.len());
        Ok(())
    }
}

fn end_block(reason: RecordingEndReason) -> Vec<u8> {
    let mut writer = RecordingWriter::new();
    writer.write_end(reason);
    encode_block(&writer.take_block())
}
