//! Where lines go.
#![expect(
    clippy::disallowed_types,
    reason = "lines of several threads must not mix: a shell may lock"
)]

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::LogSettings;

type Sink = Box<dyn Write + Send>;

/// One stream for all, or one for information and one for problems.
pub(super) struct Output {
    information: Mutex<Sink>,
    problems: Option<Mutex<Sink>>,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

impl Output {
    /// Standard error; with split streams, standard output for information.
    pub fn standard(settings: &LogSettings) -> Output {
        if settings.has_split_stream {
            let buffered = BufWriter::with_capacity(settings.info_buffer_bytes, io::stdout());
            Output::new(Box::new(buffered), Some(Box::new(io::stderr())))
        } else {
            Output::new(Box::new(io::stderr()), None)
        }
    }

    pub fn new(information: Sink, problems: Option<Sink>) -> Output {
        Output { information: Mutex::new(information), problems: problems.map(Mutex::new) }
    }

    /// Writes a line. If nobody takes it, nobody needs to know.
    pub fn write(&self, is_problem: bool, line: &str) {
        let sink = match &self.problems {
            Some(problems) if is_problem => problems,
            _ => &self.information,
        };
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = sink.write_all(line.as_bytes());
    }

    pub fn flush(&self) {
        for sink in [Some(&self.information), self.problems.as_ref()].into_iter().flatten() {
            let _ = sink.lock().unwrap_or_else(PoisonError::into_inner).flush();
        }
    }
}

/// Flushes from time to time, as long as the output is there.
#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own: what is held back must come out when all else hangs"
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
