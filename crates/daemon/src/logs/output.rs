//! The output streams of the log.
#![expect(clippy::disallowed_types, reason = "lines of several threads must not be mixed")]

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::LogSettings;

type Sink = Box<dyn Write + Send>;

/// One stream for all messages, or one for info messages and one for warnings and errors.
pub(super) struct Output {
    info: Mutex<Sink>,
    errors: Option<Mutex<Sink>>,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

impl Output {
    /// Standard error; with split streams, standard output for info messages.
    pub fn standard(settings: &LogSettings) -> Output {
        if settings.has_split_stream {
            let buffered = BufWriter::with_capacity(settings.info_buffer_bytes, io::stdout());
            Output::new(Box::new(buffered), Some(Box::new(io::stderr())))
        } else {
            Output::new(Box::new(io::stderr()), None)
        }
    }

    pub fn new(info: Sink, errors: Option<Sink>) -> Output {
        Output { info: Mutex::new(info), errors: errors.map(Mutex::new) }
    }

    /// Writes a line. Errors are ignored.
    pub fn write(&self, is_warning_or_error: bool, line: &str) {
        let sink = match &self.errors {
            Some(errors) if is_warning_or_error => errors,
            _ => &self.info,
        };
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = sink.write_all(line.as_bytes());
    }

    pub fn flush(&self) {
        for sink in [Some(&self.info), self.errors.as_ref()].into_iter().flatten() {
            let _ = sink.lock().unwrap_or_else(PoisonError::into_inner).flush();
        }
    }
}

/// Flushes periodically, until the output is dropped.
#[expect(
    clippy::disallowed_methods,
    reason = "a separate thread, so that buffered messages are written even if everything else is blocked"
)]
pub(super) fn flush_every(period: Duration, output: &Arc<Output>) {
    let output = Arc::downgrade(output);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(period);
            match output.upgrade() {
                Some(output) => output.flush(),
                None => return,
            }
        }
    });
}
