//! Runs the binary, and calls its API server.

#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "it waits for processes")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use loadmaster_client::api_client::ConnectionLimits;
use loadmaster_client::{ApiClient, Cluster, ClusterOptions, Method, Request};
use serde_json::Value;
use tokio::runtime::Runtime;

/// A free port on loopback for a server that takes no listener, another one for each call.
pub fn free_port() -> u16 {
    loadmaster_stdx::free_port().unwrap()
}

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

    /// Writes a file; returns the folder.
    pub fn with(self, name: &str, text: &str) -> Folder {
        std::fs::write(self.0.join(name), text).unwrap();
        self
    }

    /// Calls the binary as a plugin of kubectl from now on.
    pub fn with_kubectl_plugin(self) -> Folder {
        let binary = env!("CARGO_BIN_EXE_loadmaster");
        std::os::unix::fs::symlink(binary, self.path("kubectl-loadmaster")).unwrap();
        self
    }

    /// Runs the binary in the folder; returns its output and exit code as one text.
    pub fn run(&self, args: &[&str]) -> String {
        self.run_with_stdin(args, "")
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The current text of a file; empty if it does not exist.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The command, in the folder and without the user's environment. Temporary files are written to `tmp` in the folder, if it exists.
    fn command(&self, args: &[&str]) -> Command {
        // A test may have put the binary there by another name.
        let renamed = self.path("kubectl-loadmaster");
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_loadmaster"));
        let mut command = Command::new(if renamed.exists() { renamed } else { binary });
        command.args(args).current_dir(&self.0).env_remove("KUBECONFIG").env("HOME", &self.0);
        if self.path("tmp").is_dir() {
            command.env("TMPDIR", self.path("tmp"));
        }
        command
    }

    /// Starts the binary in the folder; its output is written to a file.
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

    /// The candidates that bash shows for the last of these words.
    pub fn complete(&self, words: &[&str]) -> String {
        let mut command = self.command(&[&["--", "loadmaster"], words].concat());
        let index = words.len().to_string();
        command.env("LOADMASTER_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", index);
        let output = command.env("_CLAP_IFS", " ").output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", describe(&output));
        String::from_utf8(output.stdout).unwrap()
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
        // A command that does not read its input may exit before all of it is written.
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
    Cluster::from_options(&options).await.unwrap()
}

pub fn client(cluster: &Cluster) -> ApiClient {
    cluster.client("test", ConnectionLimits { http2_connections_max: 2, http1_connections_max: 2 })
}

/// Sends a request; returns status and response. Null means no body.
pub async fn send(client: &ApiClient, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply = client.call(&Request::with_body(method, path, body)).await.unwrap();
    (reply.status, serde_json::from_slice(&reply.body).unwrap_or(Value::Null))
}

/// A blocking client.
pub struct Client {
    client: ApiClient,
    runtime: Runtime,
}

impl Client {
    pub fn new(kubeconfig: PathBuf) -> Client {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async { client(&cluster(kubeconfig, "tester").await) });
        Client { client, runtime }
    }

    pub fn send(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        self.runtime.block_on(send(&self.client, method, path, body))
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, &Value::Null)
    }

    pub fn delete(&self, path: &str) -> u16 {
        self.send(Method::DELETE, path, &Value::Null).0
    }

    /// Creates an object; returns the created object.
    #[track_caller]
    pub fn create(&self, path: &str, object: &Value) -> Value {
        let (status, made) = self.send(Method::POST, path, object);
        assert_eq!(status, 201, "{path}: {made}");
        made
    }
}

/// Timeout of all waits.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until `look` returns a value.
#[track_caller]
pub fn wait_until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < TIMEOUT, "timeout while waiting for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process that ends with the test.
pub struct Running(Child);

impl Running {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Sends SIGTERM and waits for the end; returns the exit code.
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
fn the_scheduler_needs_a_command_or_the_name_kube_scheduler() {
    let folder = Folder::new();
    let kubernetes =
        format!("Kubernetes v1.36.3+loadmaster.{}\nexit 0\n", env!("CARGO_PKG_VERSION"));
    for args in [&["run", "--version"][..], &["kube-scheduler", "--version"]] {
        assert_eq!(folder.run(args), kubernetes, "{args:?}");
    }
    let help = folder.run(&["kube-scheduler", "--help"]);
    assert!(help.contains("Usage: kube-scheduler [OPTIONS]\n"), "{help}");
    let write = ["kube-scheduler", "--write-config-to=written.yaml", "--v=3"];
    assert_eq!(folder.run(&write), "exit 0\n");
    assert!(folder.read("written.yaml").contains("kind: KubeSchedulerConfiguration"));
    for (args, want) in [
        (&[][..], "Usage: loadmaster <COMMAND>"),
        (&["--config=scheduler.yaml"], "unexpected argument '--config' found"),
        (&["nope"], "unrecognized subcommand 'nope'"),
    ] {
        let text = folder.run(args);
        assert!(text.contains(want) && text.ends_with("exit 2\n"), "{args:?}: {text}");
    }
}

#[test]
fn every_shell_has_a_completion_script() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = folder.run(&["completion", shell]);
        assert!(script.contains("LOADMASTER_COMPLETE") && script.ends_with("exit 0\n"), "{shell}");
    }
}
