//! Attacks on the files that commands write.

use std::fmt::Write as _;
use std::fs::{Permissions, set_permissions, symlink_metadata};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::check_page;
use crate::process::{Folder, Running, free_port, wait_until};

/// The kind and mode of a file.
fn shown(folder: &Folder, name: &str) -> String {
    let metadata = symlink_metadata(folder.path(name)).unwrap();
    let kind = match metadata.file_type() {
        kind if kind.is_symlink() => "link",
        kind if kind.is_dir() => "directory",
        _ => "file",
    };
    format!("{kind} {:04o}", metadata.permissions().mode() & 0o7777)
}

/// Makes a symbolic link to a file that must not be changed, as somebody does who guesses where a command writes.
fn link(folder: &Folder, name: &str) {
    symlink(folder.path("target"), folder.path(name)).unwrap();
}

/// `rejected` and the last words of the error.
#[track_caller]
fn rejected(folder: &Folder, args: &[&str]) -> String {
    let text = folder.run(args);
    assert!(!text.ends_with("exit 0\n"), "{text}");
    let line = text.lines().rfind(|line| line.starts_with("2> ")).expect(&text);
    let reason = line.rsplit(": ").next().unwrap();
    format!("rejected: {}", reason.split(" (os error").next().unwrap())
}

fn start(folder: &Folder, args: &[&str]) -> Running {
    let server = folder.start(args, "api.log");
    wait_until("the API server", || folder.read("api.log").contains("try:").then_some(()));
    server
}

/// The kinds and modes of all files in the data directory, each once.
fn shown_data(folder: &Folder) -> String {
    let mut modes: Vec<String> = std::fs::read_dir(folder.path("data"))
        .unwrap()
        .map(|entry| shown(folder, &format!("data/{}", entry.unwrap().file_name().display())))
        .collect();
    modes.sort();
    modes.dedup();
    format!("{}, in it only {}", shown(folder, "data"), modes.join(", "))
}

#[test]
fn attacks_on_files() {
    let folder = Folder::new().with("target", "untouched");
    let mut table = "| file | attack | result |\n| --- | --- | --- |\n".to_owned();
    let mut row = |file: &str, attack: &str, got: String| {
        assert_eq!(folder.read("target"), "untouched", "{file}: {attack}");
        writeln!(table, "| {file} | {attack} | {got} |").unwrap();
    };
    let linked = "a symbolic link is there";

    std::fs::create_dir(folder.path("tmp")).unwrap();
    let port = free_port().to_string();
    let temporary = format!("tmp/loadmaster-{port}.kubeconfig");
    link(&folder, &temporary);
    let audit = ["--audit-log-path", "audit.log"];
    let server = start(&folder, &[&["apiserver", "--port", &port][..], &audit].concat());
    row("temporary kubeconfig", linked, format!("replaced: {}", shown(&folder, &temporary)));
    row("`--audit-log-path`", "none", shown(&folder, "audit.log"));

    link(&folder, "linked.log");
    let kubeconfig = format!("--kubeconfig={temporary}");
    let run = ["run", &kubeconfig, "--leader-elect=false", "--secure-port=0"];
    let got = rejected(&folder, &[&run[..], &["--record=linked.log"]].concat());
    row("`run --record`", linked, got);
    let scheduler = folder.start(&[&run[..], &["--record=run.log"]].concat(), "run.out");
    wait_until("the recording", || folder.path("run.log").exists().then_some(()));
    row("`run --record`", "none", shown(&folder, "run.log"));
    drop((scheduler, server));

    link(&folder, "linked-audit.log");
    let args = ["apiserver", "--audit-log-path", "linked-audit.log"];
    row("`--audit-log-path`", linked, rejected(&folder, &args));

    let server = start(&folder, &["apiserver", "--kubeconfig", "new", "--data-dir", "data"]);
    row("`--kubeconfig`", "none", shown(&folder, "new"));
    row("`--data-dir`", "none", shown_data(&folder));
    drop(server);
    link(&folder, "new.lock");
    let got = rejected(&folder, &["apiserver", "--kubeconfig", "new"]);
    row("lock file of `--kubeconfig`", linked, got);
    std::fs::remove_file(folder.path("data/lock")).unwrap();
    link(&folder, "data/lock");
    row(
        "lock file of `--data-dir`",
        linked,
        rejected(&folder, &["apiserver", "--data-dir", "data"]),
    );
    set_permissions(folder.path("data"), Permissions::from_mode(0o777)).unwrap();
    let got = rejected(&folder, &["apiserver", "--data-dir", "data"]);
    row("`--data-dir`", "a directory to which others can write", got);
    check_page(&table);
}
