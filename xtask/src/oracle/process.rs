//! The oracle process: built when it is missing or outdated; questions and answers are lines of JSON.

#![expect(clippy::disallowed_types, reason = "development tasks may read the clock")]

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// The programs that answer: kube-scheduler's code, or that of scheduler-plugins with an older kube-scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleProgram {
    KubeScheduler,
    SchedulerPlugins,
}

impl OracleProgram {
    fn program(self) -> GoProgram {
        let (module, package, name) = match self {
            OracleProgram::KubeScheduler => ("conformance", "./cmd/oracle", "oracle"),
            OracleProgram::SchedulerPlugins => {
                ("conformance/scheduler-plugins", ".", "scheduler-plugins-oracle")
            }
        };
        GoProgram { module, package, name }
    }

    /// The Go module whose version is recorded.
    fn recorded_module(self) -> &'static str {
        match self {
            OracleProgram::KubeScheduler => "k8s.io/kubernetes",
            OracleProgram::SchedulerPlugins => "sigs.k8s.io/scheduler-plugins",
        }
    }

    /// The binary, built by `go build` if it is missing or older than its sources.
    pub fn build(self) -> Result<PathBuf> {
        self.program().build()
    }

    /// The version that is recorded in scenarios: that of kube-scheduler, such as `v1.36.3`, or `scheduler-plugins v0.35.4-devel`.
    pub fn version(self) -> Result<String> {
        let module = self.program().module;
        let version = required_version(&crate::root()?.join(module), self.recorded_module())?;
        Ok(match self {
            OracleProgram::KubeScheduler => version,
            OracleProgram::SchedulerPlugins => format!("scheduler-plugins {version}"),
        })
    }
}

/// A Go program of the tests.
#[derive(Clone, Copy, Debug)]
pub struct GoProgram {
    /// The directory of its Go module.
    pub module: &'static str,
    /// The package, relative to the module.
    pub package: &'static str,
    /// The name of the binary.
    pub name: &'static str,
}

impl GoProgram {
    /// The binary, built by `go build` if it is missing or older than its sources.
    pub fn build(self) -> Result<PathBuf> {
        let GoProgram { module, package, name } = self;
        let root = crate::root()?;
        let module = root.join(module);
        let binary = root.join("conformance/bin").join(name);
        let mut sources = vec![module.join("go.mod"), module.join("go.sum")];
        let folder = module.join(package);
        let entries = std::fs::read_dir(&folder);
        for entry in entries.with_context(|| format!("listing {}", folder.display()))? {
            let path = entry.with_context(|| format!("listing {}", folder.display()))?.path();
            sources.extend(path.extension().is_some_and(|it| it == "go").then_some(path));
        }
        let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
        let built = changed(&binary);
        if built.is_some_and(|built| sources.iter().all(|source| changed(source) <= Some(built))) {
            return Ok(binary);
        }
        eprintln!("building {} (a few minutes the first time)", binary.display());
        let go = Command::new("go")
            .args(["build", "-o"])
            .args([binary.as_os_str(), package.as_ref()])
            .current_dir(&module)
            .status();
        match go {
            Ok(status) if status.success() => Ok(binary),
            Ok(_) => bail!("go build failed in {}", module.display()),
            // After a fresh checkout all sources look new; an existing oracle is used.
            Err(error) if error.kind() == ErrorKind::NotFound && built.is_some() => {
                eprintln!("Go is not installed: using the existing binary");
                Ok(binary)
            }
            Err(error) => Err(error).context("running go; the oracle needs Go 1.26 or newer"),
        }
    }
}

/// The version of the module `wanted` that the Go module in this folder requires.
pub fn required_version(module: &Path, wanted: &str) -> Result<String> {
    let path = module.join("go.mod");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let required = text.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        (words.next() == Some(wanted)).then(|| words.next()).flatten()
    });
    let version =
        required.with_context(|| format!("{} does not require {wanted}", path.display()))?;
    Ok(version.to_owned())
}

/// Starts an oracle; returns its standard input and output, too.
pub fn spawn(binary: &Path, workers: usize) -> Result<(Child, ChildStdin, ChildStdout)> {
    let mut child = Command::new(binary)
        .args(["-workers", &workers.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // It prints the stack of every panic in a plugin; the answer has the error.
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {}", binary.display()))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    Ok((child, stdin.context("no pipe to the oracle")?, stdout.context("no pipe from the oracle")?))
}

/// An oracle that answers one question after the other.
pub struct Oracle {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Oracle {
    /// Starts the oracle.
    pub fn start(binary: &Path) -> Result<Oracle> {
        let (child, stdin, stdout) = spawn(binary, 1)?;
        Ok(Oracle { child, stdin: Some(stdin), stdout: BufReader::new(stdout) })
    }

    /// Sends a question and waits for the answer.
    pub fn ask(&mut self, question: &Value) -> Result<Value> {
        let stdin = self.stdin.as_mut().context("the oracle has ended")?;
        writeln!(stdin, "{question}").context("sending a question to the oracle")?;
        stdin.flush().context("sending a question to the oracle")?;
        let mut line = String::new();
        if self.stdout.read_line(&mut line).context("reading the oracle's answer")? == 0 {
            bail!("the oracle ended before it answered {question}");
        }
        serde_json::from_str(&line).with_context(|| format!("reading the oracle's answer {line:?}"))
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        // The process exits at the end of its input.
        self.stdin = None;
        let _ = self.child.wait();
    }
}

/// Measures elapsed time.
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// A seed that differs in every run.
pub fn seed_from_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
