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

/// Runs a command and turns its end, even a panic, into an exit code.
pub(crate) fn guard(command: impl FnOnce() -> Answer<Exit>) -> ExitCode {
    set_hook(Box::new(remember));
    let ended = catch_unwind(AssertUnwindSafe(command));
    match ended {
        Ok(Ok(Exit::Done)) => ExitCode::SUCCESS,
        Ok(Ok(Exit::Finding)) => ExitCode::from(1),
        Ok(Ok(Exit::Bug)) => ExitCode::from(BUG),
        Ok(Err(Failure::Output(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Ok(Err(Failure::Output(error))) => {
            complain(&format!("error: writing output: {error}"));
            ExitCode::from(USAGE)
        }
        Ok(Err(Failure::Input(lines))) => {
            lines.iter().for_each(|line| complain(&format!("error: {line}")));
            ExitCode::from(USAGE)
        }
        Err(_) => {
            let what = PANIC.get().map_or("it stopped in the middle", String::as_str);
            complain(&format!("loadmaster: this is a bug: {what}"));
            let issues = concat!(env!("CARGO_PKG_REPOSITORY"), "/issues");
            complain(&format!(
                "Please report it, with the command line and what it read: {issues}"
            ));
            ExitCode::from(BUG)
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

    fn code(command: impl FnOnce() -> Answer<Exit>) -> String {
        format!("{:?}", guard(command))
    }

    #[test]
    fn codes() {
        let number = |n: u8| format!("{:?}", ExitCode::from(n));
        assert_eq!(code(|| Ok(Exit::Done)), number(0));
        assert_eq!(code(|| Ok(Exit::Finding)), number(1));
        assert_eq!(code(|| Err(Failure::input("bad"))), number(2));
        assert_eq!(code(|| Err(io::Error::from(io::ErrorKind::BrokenPipe).into())), number(0));
        assert_eq!(code(|| Err(io::Error::from(io::ErrorKind::StorageFull).into())), number(2));
        assert_eq!(code(|| panic!("on purpose")), number(70));
    }
}
