//! Verbosity: which events are logged.

use std::sync::atomic::{AtomicU32, Ordering};

use tracing::{Level, Metadata};

/// The verbosity of the process and of single files.
#[derive(Debug)]
pub(super) struct Levels {
    verbosity: AtomicU32,
    files: Vec<(String, u32)>,
}

impl Levels {
    pub fn new(verbosity: u32, files: Vec<(String, u32)>) -> Levels {
        Levels { verbosity: AtomicU32::new(verbosity), files }
    }

    pub fn set(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
    }

    /// The highest verbosity of any file.
    pub fn highest(&self) -> u32 {
        let of_files = self.files.iter().map(|(_, level)| *level).max().unwrap_or(0);
        of_files.max(self.verbosity.load(Ordering::Relaxed))
    }

    /// The verbosity at the source of an event.
    pub fn verbosity_at(&self, metadata: &Metadata<'_>) -> u32 {
        self.verbosity_of_file(metadata.file().unwrap_or_default())
    }

    /// The verbosity of a source file: the first pattern that matches its name decides.
    pub fn verbosity_of_file(&self, file: &str) -> u32 {
        let everywhere = self.verbosity.load(Ordering::Relaxed);
        if self.files.is_empty() {
            return everywhere;
        }
        let name = file.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(".rs").unwrap_or(name);
        let of_file = self.files.iter().find(|(pattern, _)| matches(pattern, name));
        of_file.map_or(everywhere, |(_, level)| everywhere.max(*level))
    }
}

/// Network libraries that log every frame.
const WIRE_CRATES: [&str; 8] =
    ["h2", "hyper", "hyper_util", "kube_client", "mio", "rustls", "tokio_rustls", "tower"];

/// Its warnings contain whole response bodies, such as Secrets that could not be decoded; its callers get the error itself.
const KUBE_REQUESTS: &str = "kube_client::client";

/// The verbosity of an event without a field `v`. Network libraries need a high verbosity, and their trace
/// events are never logged, because they may contain secrets.
pub(super) fn default_verbosity(metadata: &Metadata<'_>) -> u32 {
    if metadata.target() == KUBE_REQUESTS {
        return u32::MAX;
    }
    let of_library = metadata.target().split("::").next().unwrap_or_default();
    let is_wire = WIRE_CRATES.contains(&of_library);
    match *metadata.level() {
        Level::ERROR | Level::WARN => 0,
        Level::INFO => 4 * u32::from(is_wire),
        Level::DEBUG if is_wire => 8,
        Level::DEBUG => 4,
        Level::TRACE if is_wire => u32::MAX,
        Level::TRACE => 6,
    }
}

/// Whether an event is logged at any verbosity.
pub(super) fn is_warning_or_error(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::WARN && metadata.target() != KUBE_REQUESTS
}

/// Whether a name matches a pattern: `*` matches any text, `?` one character.
fn matches(pattern: &str, name: &str) -> bool {
    let (mut rest, mut name) = (pattern.chars(), name.chars());
    // The pattern after the last star, and the position in the name where it was last tried.
    let mut star: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let here = name.clone();
        match (rest.next(), name.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                star = Some((rest.clone(), here.clone()));
                name = here;
            }
            (Some('?'), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            _ => {
                let Some((after, from)) = &mut star else { return false };
                if from.next().is_none() {
                    return false;
                }
                (rest, name) = (after.clone(), from.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, want) in [
            ("queue", "queue", true),
            ("queue", "queues", false),
            ("que*", "queue", true),
            ("*ue", "queue", true),
            ("q*e", "queue", true),
            ("q*u", "queue", false),
            ("*", "", true),
            ("q?eue", "queue", true),
            ("?", "", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(matches(pattern, name), want, "{pattern} {name}");
        }
    }
}
