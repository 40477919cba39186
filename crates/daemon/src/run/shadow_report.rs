//! `--shadow-report`: what a shadow has found, as a file, and as text at the end.

use std::io::{self, Write as _};
use std::path::PathBuf;

use loadmaster_engine::Now;
use loadmaster_engine::engine::{ShadowComparison, ShadowSummary};
use loadmaster_serving::private_file;

/// How often the file is written.
const PERIOD_NANOS: u64 = 30_000_000_000;

/// The comparisons so far, and the file that shows them.
#[derive(Default)]
pub(super) struct ShadowReport {
    summary: ShadowSummary,
    path: Option<PathBuf>,
    written_at: Option<u64>,
    is_changed: bool,
}

impl ShadowReport {
    /// An empty report. Without a path no file is written.
    pub fn new(path: &str) -> ShadowReport {
        let path = (!path.is_empty()).then(|| path.into());
        ShadowReport { path, ..ShadowReport::default() }
    }

    /// Adds a comparison; `entry` is the number of the recording's entry with the call that made it.
    pub fn add(&mut self, comparison: &ShadowComparison, entry: Option<u64>) {
        self.summary.add(comparison, entry);
        self.is_changed = true;
    }

    /// Writes the file if there is something new and the last time was long ago.
    pub fn write_if_due(&mut self, now: Now) {
        let is_due = |then| now.mono.0.saturating_sub(then) >= PERIOD_NANOS;
        if self.is_changed && self.written_at.is_none_or(is_due) {
            self.written_at = Some(now.mono.0);
            self.write();
        }
    }

    /// Writes the file for the last time, and the summary to standard output.
    pub fn finish(&mut self) {
        if self.summary.n_compared() == 0 {
            return;
        }
        self.write();
        if let Err(error) = writeln!(io::stdout(), "{}", self.summary) {
            tracing::warn!(%error, "Failed to print the summary of the shadow");
        }
    }

    fn write(&mut self) {
        let Some(path) = &self.path else { return };
        self.is_changed = false;
        let text = format!("{:#}\n", self.summary.to_json());
        if let Err(error) = private_file::replace_public(path, text) {
            tracing::error!(%error, file = %path.display(), "Failed to write the report of the shadow");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use loadmaster_api::Timestamp;
    use loadmaster_engine::MonoTime;
    use loadmaster_engine::engine::ShadowResult;
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_file_is_replaced_now_and_then() {
        let folder = std::env::temp_dir().join(format!("loadmaster-shadow-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("report.json");
        let mut report = ShadowReport::new(path.to_str().unwrap());
        let read = || -> Value { serde_json::from_slice(&fs::read(&path).unwrap()).unwrap() };
        let at = |seconds: u64| Now { mono: MonoTime(seconds * 1_000_000_000), wall: Timestamp(0) };
        let comparison = ShadowComparison {
            pod: "default/web".to_owned(),
            profile: "default-scheduler".into(),
            node: "a".into(),
            result: ShadowResult::SameChoicePossible { n_best: 2, n_bindings: 0 },
            evidence: Vec::new(),
            n_evidence: 0,
        };
        report.write_if_due(at(1));
        assert!(!path.exists());
        for (seconds, want) in [(2, 1), (3, 1), (31, 1), (32, 4)] {
            report.add(&comparison, None);
            report.write_if_due(at(seconds));
            assert_eq!(read()["comparedPods"], want, "after {seconds} s");
        }
        report.add(&comparison, Some(7));
        report.finish();
        assert_eq!(read()["results"]["same_choice_possible"]["pods"], 5);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
