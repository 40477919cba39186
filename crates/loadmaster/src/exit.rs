//! Exit codes and error messages of commands.

use std::fmt::Display;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::process::ExitCode;
use std::sync::OnceLock;

/// The result of a command that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Done,
    /// A negative result, such as unschedulable pods.
    Finding,
    /// An internal check failed.
    #[cfg(feature = "cluster")]
    Bug,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line, a file or a cluster is invalid; one line per error.
    Input(Vec<String>),
    /// Standard output cannot be written.
    Output(io::Error),
}

pub(crate) type CommandResult<T> = Result<T, Failure>;

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl Failure {
    /// Invalid input, one line.
    pub fn invalid_input(text: impl Display) -> Failure {
        Failure::Input(vec![text.to_string()])
    }

    /// Invalid input, one line per error.
    pub fn invalid_inputs<E: Display>(errors: impl IntoIterator<Item = E>) -> Failure {
        Failure::Input(errors.into_iter().map(|error| error.to_string()).collect())
    }
}

const USAGE: u8 = 2;
const BUG: u8 = 70;

/// Runs a command, prints its errors, and converts its result, or a panic, into an exit code.
pub(crate) fn run_command(command: impl FnOnce() -> CommandResult<Exit>) -> ExitCode {
    let (code, lines) = run_catching_panics(command);
    lines.iter().for_each(|line| print_to_stderr(line));
    ExitCode::from(code)
}

/// Runs a command; returns its exit code and the lines for standard error.
fn run_catching_panics(command: impl FnOnce() -> CommandResult<Exit>) -> (u8, Vec<String>) {
    set_hook(Box::new(store_panic));
    match catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(Exit::Done)) => (0, Vec::new()),
        Ok(Ok(Exit::Finding)) => (1, Vec::new()),
        #[cfg(feature = "cluster")]
        Ok(Ok(Exit::Bug)) => (BUG, Vec::new()),
        Ok(Err(Failure::Output(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
            (0, Vec::new())
        }
        Ok(Err(Failure::Output(error))) => (USAGE, vec![format!("error: writing output: {error}")]),
        Ok(Err(Failure::Input(lines))) => {
            (USAGE, lines.iter().map(|line| format!("error: {line}")).collect())
        }
        Err(_) => {
            let what = PANIC.get().map_or("unknown panic", String::as_str);
            let issues = concat!(env!("CARGO_PKG_REPOSITORY"), "/issues");
            let report = "Please report it, with the command line and the input files";
            (BUG, vec![format!("loadmaster: this is a bug: {what}"), format!("{report}: {issues}")])
        }
    }
}

/// Prints a line to standard error; errors are ignored.
pub(crate) fn print_to_stderr(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The first panic, which is printed after the terminal was restored.
static PANIC: OnceLock<String> = OnceLock::new();

fn store_panic(panic: &PanicHookInfo<'_>) {
    let _ = PANIC.set(panic.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_exit_codes_and_messages() {
        let check = |command: fn() -> CommandResult<Exit>, code: u8, lines: &[&str]| {
            assert_eq!(
                run_catching_panics(command),
                (code, lines.iter().map(|&it| it.to_owned()).collect())
            );
        };
        check(|| Ok(Exit::Done), 0, &[]);
        check(|| Ok(Exit::Finding), 1, &[]);
        check(
            || Err(Failure::invalid_inputs(["bad", "worse"])),
            2,
            &["error: bad", "error: worse"],
        );
        check(|| Err(io::Error::from(io::ErrorKind::BrokenPipe).into()), 0, &[]);
        let full = "error: writing output: no storage space";
        check(|| Err(io::Error::from(io::ErrorKind::StorageFull).into()), 2, &[full]);
        let (code, lines) = run_catching_panics(|| panic!("on purpose"));
        // Restores the default hook for other tests.
        drop(std::panic::take_hook());
        assert_eq!((code, lines.len()), (70, 2));
        assert!(lines[0].contains("exit.rs") && lines[0].ends_with("on purpose"), "{lines:?}");
    }
}
