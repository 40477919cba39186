//! Running the binary, and talking to the API server that it is.

#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "it waits for processes")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use loadmaster_client::lane::LaneLimits;
use loadmaster_client::{Cluster, ClusterOptions, Lane, Method, Request};
use serde_json::Value;
use tokio::runtime::Runtime;

/// A folder for one test, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NTH: AtomicU32 = AtomicU32::new(0);
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("loadmaster-it-{}-{nth}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Writes a file; answers the folder, for more.
    pub fn with(self, name: &str, text: &str) -> Folder {
        std::fs::write(self.0.join(name), text).unwrap();
        self
    }

    /// Runs the binary in the folder. What it prints, and its exit code, as one text.
    pub fn run(&self, args: &[&str]) -> String {
        self.run_with_stdin(args, "")
    }

    /// Where a file of the folder is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What a file says by now; empty if it is not there.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The binary, in the folder and with nothing of the user's; temporary files go into the folder's own, if it has one.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadmaster"));
        command.args(args).current_dir(&self.0).env_remove("KUBECONFIG").env("HOME", &self.0);
        if self.path("tmp").is_dir() {
            command.env("TMPDIR", self.path("tmp"));
        }
        command
    }

    /// Starts the binary in the folder; what it prints goes to a file.
    pub fn start(&self, args: &[&str], log: &str) -> Running {
        let log = std::fs::File::create(self.path(log)).unwrap();
        let child = self
            .command(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Running(child.unwrap())
    }

    pub fn run_with_stdin(&self, args: &[&str], stdin: &str) -> String {
        let mut child = self
            .command(args)
            .env("NO_COLOR", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        // A command that does not read its input may be gone before all of it is written.
        let _ = pipe.write_all(stdin.as_bytes());
        drop(pipe);
        describe(&child.wait_with_output().unwrap())
    }
}

/// The cluster of a kubeconfig.
pub async fn cluster(kubeconfig: PathBuf, user_agent: &str) -> Cluster {
    let options = ClusterOptions {
        kubeconfig: Some(kubeconfig),
        context: None,
        master: None,
        user_agent: user_agent.to_owned(),
    };
    Cluster::find(&options).await.unwrap()
}

pub fn lane(cluster: &Cluster) -> Lane {
    cluster.lane("test", LaneLimits { http2_connections_max: 2, http1_connections_max: 2 })
}

/// Status and answer of a request; null is no body.
pub async fn ask(lane: &Lane, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply = lane.call(&Request::with(method, path, body)).await.unwrap();
    (reply.status, serde_json::from_slice(&reply.body).unwrap_or(Value::Null))
}

/// Whoever waits for each answer.
pub struct Client {
    lane: Lane,
    runtime: Runtime,
}

impl Client {
    pub fn new(kubeconfig: PathBuf) -> Client {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let lane = runtime.block_on(async { lane(&cluster(kubeconfig, "tester").await) });
        Client { lane, runtime }
    }

    pub fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        self.runtime.block_on(ask(&self.lane, method, path, body))
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        self.ask(Method::GET, path, &Value::Null)
    }

    pub fn delete(&self, path: &str) -> u16 {
        self.ask(Method::DELETE, path, &Value::Null).0
    }

    /// Creates an object; what the API server made of it.
    #[track_caller]
    pub fn create(&self, path: &str, object: &Value) -> Value {
        let (status, made) = self.ask(Method::POST, path, object);
        assert_eq!(status, 201, "{path}: {made}");
        made
    }
}

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until it is there.
#[track_caller]
pub fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what} does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process that ends with the test.
pub struct Running(Child);

impl Running {
    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Asks it to end, and waits until it has: its exit code.
    pub fn terminate(mut self) -> Option<i32> {
        self.signal("TERM");
        self.0.wait().unwrap().code()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn describe(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        text.push_str(&format!("2> {line}\n"));
    }
    match output.status.code() {
        Some(code) => text.push_str(&format!("exit {code}\n")),
        None => text.push_str("killed\n"),
    }
    text
}

#[test]
fn help_and_version() {
    let folder = Folder::new();
    let help = folder.run(&["--help"]);
    assert!(help.contains("loadmaster up") && help.ends_with("exit 0\n"), "{help}");
    let version = folder.run(&["--version"]);
    assert_eq!(
        version,
        format!("loadmaster {} (Kubernetes 1.36)\nexit 0\n", env!("CARGO_PKG_VERSION"))
    );
    for command in [&["up", "--help"][..], &["explain", "--help"], &["config", "check", "--help"]] {
        let help = folder.run(command);
        assert!(help.contains("Examples:") && help.ends_with("exit 0\n"), "{help}");
    }
    let usage = folder.run(&["explain"]);
    assert!(usage.contains("[NAMESPACE/]POD") && usage.ends_with("exit 2\n"), "{usage}");
}

#[test]
fn completion() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = folder.run(&["completion", shell]);
        assert!(script.contains("explain") && script.ends_with("exit 0\n"), "{shell}");
    }
}
