//! The name and version that a scheduler shows on its command line.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::{COMMAND_NAME, KUBERNETES_VERSION};

/// A scheduler's program: what it shows in help, in usage errors and for `--version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The name in the usage line and in errors.
    pub name: String,
    /// The line that `--version` prints, without its line break.
    pub version: String,
    /// Text at the end of `--help`; may be empty.
    pub after_help: String,
}

impl Program {
    /// kube-scheduler's name and version.
    pub fn kube_scheduler() -> Program {
        Program {
            name: COMMAND_NAME.to_owned(),
            version: format!("Kubernetes {KUBERNETES_VERSION}"),
            after_help: String::new(),
        }
    }
}

/// The name of a program in a command line: the file name without its extension.
pub fn program_name(program: &OsStr) -> Option<&OsStr> {
    Path::new(program).file_stem()
}

/// Whether a program of this name is run as kube-scheduler, so that its arguments are kube-scheduler's flags.
pub fn is_kube_scheduler(program: &OsStr) -> bool {
    program_name(program).is_some_and(|name| name == COMMAND_NAME)
}

/// Whether these arguments, which may begin with the name of the program, call kube-scheduler as a command of hyperkube, the binary with all
/// components up to 1.18; returns the flags. `hyperkube scheduler` and `hyperkube kube-scheduler` are the same.
pub fn hyperkube_scheduler_flags(args: &[OsString]) -> Option<&[OsString]> {
    let hyperkube = args
        .iter()
        .take(2)
        .position(|arg| program_name(arg).is_some_and(|it| it == "hyperkube"))?;
    match args.get(hyperkube + 1)?.to_str()? {
        "scheduler" | "kube-scheduler" => Some(&args[hyperkube + 2..]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyperkube_runs_as_kube_scheduler() {
        for (args, want) in [
            ("hyperkube scheduler --v=3", Some(1)),
            ("/hyperkube kube-scheduler", Some(0)),
            ("loadmaster hyperkube scheduler --v=3 --port=0", Some(2)),
            ("hyperkube kubelet", None),
            ("hyperkube", None),
            ("loadmaster scheduler", None),
        ] {
            let list: Vec<OsString> = args.split(' ').map(OsString::from).collect();
            assert_eq!(hyperkube_scheduler_flags(&list).map(<[_]>::len), want, "{args}");
        }
    }

    #[test]
    fn program_names_that_run_as_kube_scheduler() {
        for (program, want) in [
            ("kube-scheduler", true),
            ("/usr/local/bin/kube-scheduler", true),
            ("kube-scheduler.exe", true),
            ("loadmaster", false),
            ("/kube-scheduler/loadmaster", false),
            ("", false),
        ] {
            assert_eq!(is_kube_scheduler(OsStr::new(program)), want, "{program}");
        }
    }
}
