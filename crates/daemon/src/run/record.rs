//! Recording a run: what the engine's thread does, on disk, without that thread ever waiting for the disk.
//!
//! ```text
//! engine's thread ──entries──► block ──at most 64 MiB of blocks wait──► thread of its own ──► file
//! ```
//!
//! When the disk fails or cannot keep up, or the file is as large as it may be, the recording ends, which is logged and shown in
//! metrics; scheduling goes on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use loadmaster_api::Raw;
use loadmaster_config::{Gates, PrintError};
use loadmaster_engine::engine::{Cycled, Options as EngineOptions};
use loadmaster_engine::log::{Ended, Header, Writer, begin, seal};
use loadmaster_engine::{Effect, Event, Now};

use crate::Loaded;
use crate::metrics::Metrics;

/// A block is closed when it is so long, or so old.
const BLOCK_LEN: usize = 256 << 10;
const BLOCK_NANOS_MAX: u64 = 1_000_000_000;

/// So many blocks may wait for the disk.
const N_WAITING_MAX: usize = 256;

/// In the end a disk that hangs is not waited for longer.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Why nothing can be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file cannot be made.
    #[error("--record {}: {}", path.display(), hint(source))]
    Create {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The first bytes cannot be written.
    #[error("--record {}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The configuration cannot be printed.
    #[error("--record: printing the configuration")]
    Print(#[from] PrintError),
    /// There is no thread.
    #[error("--record: starting a thread")]
    Thread(#[source] io::Error),
}

fn hint(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            "the file exists already, and a recording is never written over".to_owned()
        }
        _ => error.to_string(),
    }
}

/// What a recording begins with.
pub(super) fn header(
    loaded: &Loaded,
    options: &EngineOptions,
    plugins: &[String],
) -> Result<Header, RecordError> {
    Ok(Header {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        configuration: loaded.config.to_v1_yaml()?,
        feature_gates: changed(&loaded.gates),
        plugins: plugins.to_vec(),
        ..Header::of(options)
    })
}

/// As `--feature-gates` takes them.
fn changed(gates: &Gates) -> Vec<String> {
    let changed = gates.iter().filter(|(_, _, default, on)| default != on);
    changed.map(|(name, _, _, on)| format!("{name}={on}")).collect()
}

/// A recording under way, on the engine's thread.
pub(super) struct Recording {
    writer: Writer,
    /// When the block at hand was begun.
    begun_at: u64,
    /// `None` when the recording is over.
    blocks: Option<SyncSender<Vec<u8>>>,
    shared: Arc<Shared>,
    /// Closed when all is written.
    written: Receiver<()>,
}

/// What both threads see.
struct Shared {
    /// Why the last block is the last.
    reason: OnceLock<Ended>,
    metrics: Arc<Metrics>,
}

impl Recording {
    /// Makes the file and starts its thread.
    pub fn start(
        path: &Path,
        bytes_max: u64,
        header: &Header,
        metrics: Arc<Metrics>,
    ) -> Result<Recording, RecordError> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(path);
        let mut file =
            file.map_err(|source| RecordError::Create { path: path.to_owned(), source })?;
        let first = begin(header);
        file.write_all(&first)
            .map_err(|source| RecordError::Write { path: path.to_owned(), source })?;
        let (blocks, waiting) = sync_channel(N_WAITING_MAX);
        let shared = Arc::new(Shared { reason: OnceLock::new(), metrics });
        shared.metrics.own.set_recording(true);
        let disk = Disk {
            path: path.to_owned(),
            file,
            n_bytes: first.len() as u64,
            bytes_max,
            shared: shared.clone(),
        };
        disk.shared.metrics.own.recorded(first.len());
        let (done, written) = sync_channel(0);
        let thread = std::thread::Builder::new().name("recorder".to_owned()).spawn(move || {
            let _done: SyncSender<()> = done;
            disk.run(&waiting);
        });
        thread.map_err(RecordError::Thread)?;
        tracing::info!(
            file = %path.display(),
            "Recording everything the scheduler sees and decides, the objects of the cluster included"
        );
        Ok(Recording { writer: Writer::new(), begun_at: 0, blocks: Some(blocks), shared, written })
    }

    /// The engine is going to hear this.
    pub fn apply(&mut self, now: Now, event: &Event, raw: Option<&Raw>) {
        if self.goes_on(now) && self.writer.apply(now, event, raw).is_err() {
            tracing::error!(
                "The recording ends: an object came without the bytes it was read from"
            );
            self.stop(Ended::Unloggable);
        }
    }

    /// The engine is going to run a cycle.
    pub fn cycle(&mut self, now: Now) {
        if self.goes_on(now) {
            self.writer.cycle(now);
        }
    }

    /// The engine is going to be woken.
    pub fn wake(&mut self, now: Now) {
        if self.goes_on(now) {
            self.writer.wake(now);
        }
    }

    /// The engine has done what was last announced, and left this.
    pub fn left(&mut self, now: Now, effects: &[Effect], cycled: Option<Cycled>) {
        if self.blocks.is_none() {
            return;
        }
        self.writer.left(effects, cycled);
        let is_old = now.mono.0.saturating_sub(self.begun_at) >= BLOCK_NANOS_MAX;
        if self.writer.len() >= BLOCK_LEN || is_old {
            self.hand_over();
        }
    }

    /// Writes down what an idle engine would keep back.
    pub fn rest(&mut self, now: Now) {
        if now.mono.0.saturating_sub(self.begun_at) >= BLOCK_NANOS_MAX {
            self.hand_over();
        }
    }

    /// Whether an entry is to be written; a block that it begins is as old as it.
    fn goes_on(&mut self, now: Now) -> bool {
        if self.writer.is_empty() {
            self.begun_at = now.mono.0;
        }
        self.blocks.is_some()
    }

    fn hand_over(&mut self) {
        let Some(blocks) = &self.blocks else { return };
        if self.writer.is_empty() {
            return;
        }
        match blocks.try_send(self.writer.take()) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                tracing::error!(
                    "The recording ends: the disk does not keep up; scheduling goes on"
                );
                self.stop(Ended::Behind);
            }
            // It has said why.
            Err(TrySendError::Disconnected(_)) => self.blocks = None,
        }
    }

    /// Nothing more is recorded; what waits is still written.
    fn stop(&mut self, reason: Ended) {
        let _ = self.shared.reason.set(reason);
        self.blocks = None;
        self.shared.metrics.own.set_recording(false);
    }
}

/// What waits is written, and the file ends as it should; also when the engine's thread ends by a panic, but then without an end.
impl Drop for Recording {
    fn drop(&mut self) {
        self.hand_over();
        if self.blocks.is_some() && !std::thread::panicking() {
            self.stop(Ended::Stopped);
        }
        self.blocks = None;
        if self.written.recv_timeout(LAST_WAIT) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("The end of the recording may be missing: the disk does not answer");
        }
    }
}

/// The thread that writes.
struct Disk {
    path: PathBuf,
    file: File,
    n_bytes: u64,
    bytes_max: u64,
    shared: Arc<Shared>,
}

impl Disk {
    fn run(mut self, blocks: &Receiver<Vec<u8>>) {
        let ended = self.write_all(blocks);
        let path = self.path.display();
        if let Err(error) = ended {
            tracing::error!(file = %path, "The recording ends: {error}; scheduling goes on");
        }
        self.shared.metrics.own.set_recording(false);
        tracing::info!(file = %path, bytes = self.n_bytes, "The recording has ended");
    }

    fn write_all(&mut self, blocks: &Receiver<Vec<u8>>) -> io::Result<()> {
        let full = end(Ended::Full);
        for content in blocks {
            let block = seal(&content);
            let n_bytes = self.n_bytes + (block.len() + full.len()) as u64;
            if self.bytes_max > 0 && n_bytes > self.bytes_max {
                tracing::warn!(
                    file = %self.path.display(),
                    bytes_max = self.bytes_max,
                    "The recording ends: it is as large as --record-max-size allows; scheduling goes on"
                );
                self.write(&full)?;
                return self.file.sync_data();
            }
            self.write(&block)?;
        }
        if let Some(reason) = self.shared.reason.get() {
            self.write(&end(*reason))?;
        }
        self.file.sync_data()
    }

    fn write(&mut self, block: &[u8]) -> io::Result<()> {
        self.file.write_all(block)?;
        self.n_bytes += block.len() as u64;
        self.shared.metrics.own.recorded(block.len());
        Ok(())
    }
}

fn end(reason: Ended) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.end(reason);
    seal(&writer.take())
}
