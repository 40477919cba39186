//! How commands end: exit codes, errors of the user, and bugs of ours.

use std::fmt::Display;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::process::ExitCode;
use std::sync::OnceLock;

/// What a command that did its work found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Done,
    /// Something to look at: pods that fit nowhere.
    Finding,
    /// We contradicted ourselves.
    Bug,
}

/// Why a command did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line, a file or a cluster is not as it should be; one line each.
    Input(Vec<String>),
    /// Nobody takes what we print.
    Output(io::Error),
}

pub(crate) type Answer<T> = Result<T, Failure>;

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl Failure {
    /// Bad input, in one line.
    pub fn input(text: impl Display) -> Failure {
        Failure::Input(vec![text.to_string()])
    }

    /// Bad input, one line an error.
    pub fn inputs<E: Display>(errors: impl IntoIterator<Item = E>) -> Failure {
        Failure::Input(errors.into_iter().map(|error| error.to_string()).collect())
    }
}

const USAGE: u8 = 2;
const BUG: u8 = 70;

/// Runs a command, tells what was wrong, and turns its end, even a panic, into an exit code.
pub(crate) fn guard(command: impl FnOnce() -> Answer<Exit>) -> ExitCode {
    let (code, lines) = end_of(command);
    lines.iter().for_each(|line| complain(line));
    ExitCode::from(code)
}

/// How a command ended: its exit code, and what is to be told.
fn end_of(command: impl FnOnce() -> Answer<Exit>) -> (u8, Vec<String>) {
    set_hook(Box::new(remember));
    match catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(Exit::Done)) => (0, Vec::new()),
        Ok(Ok(Exit::Finding)) => (1, Vec::new()),
        Ok(Ok(Exit::Bug)) => (BUG, Vec::new()),
        Ok(Err(Failure::Output(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
            (0, Vec::new())
        }
        Ok(Err(Failure::Output(error))) => (USAGE, vec![format!("error: writing output: {error}")]),
        Ok(Err(Failure::Input(lines))) => {
            (USAGE, lines.iter().map(|line| format!("error: {line}")).collect())
        }
        Err(_) => {
            let what = PANIC.get().map_or("it stopped in the middle", String::as_str);
            let issues = concat!(env!("CARGO_PKG_REPOSITORY"), "/issues");
            let ask = "Please report it, with the command line and what it read";
            (BUG, vec![format!("loadmaster: this is a bug: {what}"), format!("{ask}: {issues}")])
        }
    }
}

/// Prints to standard error; if nobody listens there, nobody needs to know.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The first panic, told once the terminal is itself again.
static PANIC: OnceLock<String> = OnceLock::new();

fn remember(panic: &PanicHookInfo<'_>) {
    let _ = PANIC.set(panic.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_what_is_told() {
        let check = |command: fn() -> Answer<Exit>, code: u8, lines: &[&str]| {
            assert_eq!(end_of(command), (code, lines.iter().map(|&it| it.to_owned()).collect()));
        };
        check(|| Ok(Exit::Done), 0, &[]);
        check(|| Ok(Exit::Finding), 1, &[]);
        check(|| Err(Failure::inputs(["bad", "worse"])), 2, &["error: bad", "error: worse"]);
        check(|| Err(io::Error::from(io::ErrorKind::BrokenPipe).into()), 0, &[]);
        let full = "error: writing output: no storage space";
        check(|| Err(io::Error::from(io::ErrorKind::StorageFull).into()), 2, &[full]);
        let (code, lines) = end_of(|| panic!("on purpose"));
        // Other tests tell of their panics as usual.
        drop(std::panic::take_hook());
        assert_eq!((code, lines.len()), (70, 2));
        assert!(lines[0].contains("exit.rs") && lines[0].ends_with("on purpose"), "{lines:?}");
    }
}
