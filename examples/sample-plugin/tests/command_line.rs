//! The command lines with which kube-scheduler and schedulers made of it are started, literally.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "it waits for processes")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The arguments of `sample-scheduler-framework --config=... --v=3` in a Deployment, which repeat the name of the program.
const NAME: &str = "sample-scheduler-framework";

/// A folder for one test with the scheduler under the name of the program, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = folder.join(format!("sample-plugin-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        // A link, because a copy may still be open for writing in a process that another test starts.
        std::fs::hard_link(env!("CARGO_BIN_EXE_sample-plugin"), folder.join(NAME)).unwrap();
        let config = include_str!("../scheduler.yaml");
        std::fs::write(folder.join("scheduler.yaml"), config).unwrap();
        Folder(folder)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let program = match program {
            NAME => self.0.join(NAME),
            _ => PathBuf::from(program),
        };
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.0).env_remove("KUBECONFIG").env("HOME", &self.0);
        command.env_remove("KUBERNETES_SERVICE_HOST").env("NO_COLOR", "1").stdin(Stdio::null());
        command
    }

    /// Output, errors and exit code as one text.
    fn run(&self, program: &str, args: &[&str]) -> String {
        let output = self.command(program, args).output().unwrap();
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        text.push_str(&format!("exit {}\n", output.status.code().unwrap()));
        text
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SAMPLE_PLUGIN: &str = env!("CARGO_BIN_EXE_sample-plugin");

#[test]
fn the_program_answers_under_its_own_name() {
    let folder = Folder::new("names");
    let version = env!("CARGO_PKG_VERSION");
    let version = format!("{NAME} {version} (Loadmaster {version}, Kubernetes 1.36)\nexit 0\n");
    for args in
        [&["--version"][..], &[NAME, "--version"], &["run", "--version"], &["up", "--version"]]
    {
        assert_eq!(folder.run(NAME, args), version, "{args:?}");
        assert_eq!(folder.run(SAMPLE_PLUGIN, args), version, "{args:?}");
    }
    for args in [&["--help"][..], &["-h"], &[NAME, "--help"], &["run", "--help"]] {
        let help = folder.run(NAME, args);
        for want in [&format!("Usage: {NAME} [OPTIONS]\n"), "--config <string>", "\n  explain "] {
            assert!(help.contains(want), "{args:?} does not show {want:?}: {help}");
        }
        assert!(!help.contains("loadmaster ") && help.ends_with("exit 0\n"), "{help}");
    }
    for args in [&["help"][..], &["help", "explain"], &["up", "--help"], &["replay", "--help"]] {
        let help = folder.run(NAME, args);
        assert!(help.contains(&format!("\n  {NAME} ")), "{args:?}: {help}");
        assert!(!help.contains("loadmaster ") && help.ends_with("exit 0\n"), "{args:?}: {help}");
    }
    let script = folder.run(NAME, &["completion", "bash"]);
    let registered = format!("-F _clap_complete_{} {NAME}\n", NAME.replace('-', "_"));
    assert!(script.contains(&registered) && script.ends_with("exit 0\n"), "{script}");
}

#[test]
fn flags_are_accepted_with_and_without_run_and_name() {
    let folder = Folder::new("flags");
    let wanted = folder.run(NAME, &["config", "check", "scheduler.yaml"]);
    let wanted = wanted.strip_suffix("exit 0\n").unwrap();
    assert!(wanted.contains("node_label: example.com/pool/gold"), "{wanted}");
    for (n, args) in
        [&[][..], &["run"], &[NAME], &[NAME, "run"], &["kube-scheduler"]].iter().enumerate()
    {
        let file = format!("written-{n}.yaml");
        let write = format!("--write-config-to={file}");
        let args = [*args, &["--config=scheduler.yaml", "--v=3", &write]].concat();
        for program in [NAME, SAMPLE_PLUGIN] {
            assert_eq!(folder.run(program, &args), "exit 0\n", "{program} {args:?}");
            assert_eq!(folder.read(&file), wanted, "{args:?}");
            std::fs::remove_file(folder.0.join(&file)).unwrap();
        }
    }
}

#[test]
fn without_a_cluster_the_error_says_so() {
    let folder = Folder::new("no-cluster");
    for args in [&["--config=scheduler.yaml", "--v=3"][..], &[NAME, "--config=scheduler.yaml"], &[]]
    {
        let text = folder.run(NAME, args);
        assert!(text.contains("Starting Kubernetes Scheduler"), "{args:?}: {text}");
        assert!(text.contains("kubeconfig") && text.ends_with("exit 1\n"), "{args:?}: {text}");
    }
}

#[test]
fn wrong_flags_and_commands_are_usage_errors() {
    let folder = Folder::new("errors");
    for (args, want, code) in [
        (&["--nope"][..], "unexpected argument '--nope' found", 1),
        (&[NAME, "--nope"], "unexpected argument '--nope' found", 1),
        (&["run", "--nope"], "unexpected argument '--nope' found", 1),
        (
            &["--v=3", "nope"],
            "\"sample-scheduler-framework\" does not take any arguments, got [\"nope\"]",
            1,
        ),
        (&["--config=nope.yaml"], "nope.yaml: No such file", 1),
        (&["nope"], "unrecognized subcommand 'nope'", 2),
        (&["exlpain", "web"], "similar subcommands exist: 'help', 'explain'", 2),
        (&["explain", "--nope"], "unexpected argument '--nope' found", 2),
    ] {
        let text = folder.run(NAME, args);
        assert!(text.contains(want), "{args:?}: {text}");
        assert!(text.ends_with(&format!("exit {code}\n")), "{args:?}: {text}");
        assert!(!text.contains("loadmaster "), "{args:?}: {text}");
    }
    let usage = format!("Usage: {NAME} [FLAGS]\n       {NAME} <COMMAND>\n");
    let text = folder.run(NAME, &["nope"]);
    assert!(text.contains(&usage), "{text}");
}

/// The scheduler of a Deployment whose `args` begin with the name of the program, with an API server.
#[test]
fn a_scheduler_with_bare_flags_becomes_ready() {
    let folder = Folder::new("cluster");
    let start = |args: &[&str], log: &str| {
        let log = File::create(folder.0.join(log)).unwrap();
        let out = log.try_clone().unwrap();
        Running(folder.command(NAME, args).stdout(out).stderr(log).spawn().unwrap())
    };
    let _server = start(&["apiserver", "--kubeconfig=kubeconfig"], "server.log");
    wait_until("the kubeconfig", || Path::new(&folder.0.join("kubeconfig")).exists());
    let config = include_str!("../scheduler.yaml");
    let config = format!("{config}clientConnection: {{kubeconfig: kubeconfig}}\n");
    std::fs::write(folder.0.join("scheduler.yaml"), config).unwrap();
    let flags = [NAME, "--config=scheduler.yaml", "--v=3", "--secure-port=0"];
    let _scheduler = start(&flags, "scheduler.log");
    wait_until("the lease", || {
        folder.read("scheduler.log").contains("Successfully acquired lease")
    });
}

#[track_caller]
fn wait_until(what: &str, is_there: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(60), "timeout while waiting for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
