//! A container: its process, its probes, its restarts, and its part of the pod's status.

#![expect(clippy::disallowed_types, reason = "waiting for a process needs a clock")]

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::command;
use super::probe::{Finding, Probe};
use super::sandbox::{Sandbox, read_pid};
use crate::e2e::process::Process;

/// Before the second restart; doubled for each one after it.
const BACKOFF: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// When a container is started, and whether again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Before the next one, once.
    Init,
    /// Before the next one, and kept running: an init container with `restartPolicy: Always`.
    Sidecar,
    Main,
}

struct Running {
    process: Process,
    /// The container's own process.
    pid: u32,
    since: Timestamp,
    /// `None` if the container has no such probe.
    startup: Option<Probe>,
    liveness: Option<Probe>,
    readiness: Option<Probe>,
    is_started: bool,
    /// When it was told to end, and how long it may take.
    stopping: Option<(Instant, Duration)>,
}

enum State {
    Waiting {
        reason: &'static str,
        message: String,
    },
    Running(Running),
    /// The field `terminated` of its status.
    Terminated(Value),
}

pub struct Container {
    pub kind: Kind,
    spec: Value,
    /// For its root file system and its log.
    folder: PathBuf,
    state: State,
    n_starts: u32,
    last: Value,
    not_before: Instant,
}

impl Container {
    pub fn new(spec: &Value, kind: Kind, folder: &Path) -> Container {
        Container {
            kind,
            spec: spec.clone(),
            folder: folder.join(spec["name"].as_str().unwrap_or_default()),
            state: State::Waiting { reason: "ContainerCreating", message: String::new() },
            n_starts: 0,
            last: json!({}),
            not_before: Instant::now(),
        }
    }

    pub fn spec(&self) -> &Value {
        &self.spec
    }

    /// For its next start.
    pub fn next_folder(&self) -> PathBuf {
        self.folder.join(self.n_starts.to_string())
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Whether it has ended well.
    pub fn has_succeeded(&self) -> bool {
        matches!(&self.state, State::Terminated(it) if it["exitCode"] == 0)
    }

    /// Whether it has ended and is not started again under this restart policy.
    pub fn is_finished(&self, policy: &str) -> bool {
        matches!(&self.state, State::Terminated(_)) && !self.restarts(policy)
    }

    fn restarts(&self, policy: &str) -> bool {
        match self.kind {
            Kind::Sidecar => true,
            // With the policy Always, too, an init container ends when it succeeds.
            Kind::Init => policy != "Never" && !self.has_succeeded(),
            Kind::Main => policy == "Always" || policy == "OnFailure" && !self.has_succeeded(),
        }
    }

    /// Whether it is to be started now.
    pub fn is_due(&self, policy: &str) -> bool {
        let is_wanted = match &self.state {
            State::Waiting { .. } => true,
            State::Running(_) => false,
            State::Terminated(_) => self.restarts(policy),
        };
        is_wanted && Instant::now() >= self.not_before
    }

    /// Whether the next container may be started.
    pub fn is_started(&self) -> bool {
        match &self.state {
            State::Running(running) => self.kind != Kind::Init && running.is_started,
            _ => self.kind == Kind::Init && self.has_succeeded(),
        }
    }

    pub fn is_ready(&self) -> bool {
        let State::Running(running) = &self.state else {
            return self.kind == Kind::Init && self.has_succeeded();
        };
        let is_well = |probe: &Option<Probe>| {
            probe.as_ref().is_none_or(|probe| probe.finding() == Finding::Success)
        };
        running.is_started && is_well(&running.readiness)
    }

    /// It cannot be started.
    pub fn fail(&mut self, reason: &'static str, error: &anyhow::Error) {
        self.state = State::Waiting { reason, message: format!("{error:#}") };
        self.not_before = Instant::now() + Duration::from_secs(1);
    }

    /// Starts it.
    pub async fn start(&mut self, context: &command::Context<'_>, sandbox: &Sandbox) -> Result<()> {
        let folder = self.next_folder();
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        let pid_file = folder.join("pid");
        let mut command = context.command(&pid_file)?;
        let name = self.spec["name"].as_str().unwrap_or_default();
        let mut process = Process::start(name, &mut command, &folder.join("log"))?;
        let pid = read_pid(&pid_file, &mut process).await?;
        let startup = Probe::start(&self.spec, "startupProbe", sandbox)?;
        // For those who look for the running process.
        std::fs::write(self.folder.join("pid"), pid.to_string())?;
        self.n_starts += 1;
        let mut running = Running {
            process,
            pid,
            since: Timestamp::now(),
            is_started: false,
            startup,
            liveness: None,
            readiness: None,
            stopping: None,
        };
        if running.startup.is_none() {
            running.begin(&self.spec, sandbox)?;
        }
        self.state = State::Running(running);
        Ok(())
    }

    /// Looks at the process and its probes.
    pub fn poll(&mut self, sandbox: &Sandbox, grace: Duration) -> Result<()> {
        let State::Running(running) = &mut self.state else { return Ok(()) };
        if let Some(status) = running.process.exit_status()? {
            let terminated = terminated(status, running.since, &running.process.log());
            self.last = json!({"terminated": &terminated});
            self.state = State::Terminated(terminated);
            let n_restarts = self.n_starts.saturating_sub(1);
            let wait = match n_restarts {
                0 => Duration::ZERO,
                n => BACKOFF_MAX.min(BACKOFF * 2_u32.saturating_pow(n - 1)),
            };
            self.not_before = Instant::now() + wait;
            return Ok(());
        }
        let found = |probe: &Option<Probe>| probe.as_ref().map(Probe::finding);
        if !running.is_started && found(&running.startup) == Some(Finding::Success) {
            running.begin(&self.spec, sandbox)?;
        }
        let has_failed = [found(&running.startup), found(&running.liveness)];
        if has_failed.contains(&Some(Finding::Failure)) {
            running.stop(grace)?;
        }
        running.kill_if_late()
    }

    /// Tells it to end, and kills it if it takes too long.
    pub fn stop(&mut self, grace: Duration) -> Result<()> {
        match &mut self.state {
            State::Running(running) => running.stop(grace),
            _ => Ok(()),
        }
    }

    /// Its part of the pod's status.
    pub fn status(&self) -> Value {
        let state = match &self.state {
            State::Waiting { reason, message } => {
                json!({"waiting": {"reason": reason, "message": message}})
            }
            State::Running(running) => json!({"running": {"startedAt": second(running.since)}}),
            State::Terminated(terminated) => json!({"terminated": terminated}),
        };
        let last =
            if matches!(self.state, State::Terminated(_)) { json!({}) } else { self.last.clone() };
        let is_started = match &self.state {
            State::Running(running) => running.is_started,
            _ => false,
        };
        json!({"name": self.spec["name"], "image": self.spec["image"], "imageID": self.spec["image"],
            "ready": self.is_ready(), "started": is_started, "state": state, "lastState": last,
            "restartCount": self.n_starts.saturating_sub(1)})
    }
}

impl Running {
    /// The startup probe is done.
    fn begin(&mut self, spec: &Value, sandbox: &Sandbox) -> Result<()> {
        self.is_started = true;
        self.startup = None;
        self.liveness = Probe::start(spec, "livenessProbe", sandbox)?;
        self.readiness = Probe::start(spec, "readinessProbe", sandbox)?;
        Ok(())
    }

    fn stop(&mut self, grace: Duration) -> Result<()> {
        if self.stopping.is_some() {
            return Ok(());
        }
        self.stopping = Some((Instant::now(), grace));
        // Upstream's order: not ready any more, and not probed.
        (self.startup, self.liveness) = (None, None);
        self.signal(Signal::TERM)
    }

    fn kill_if_late(&mut self) -> Result<()> {
        match self.stopping {
            Some((since, grace)) if since.elapsed() > grace => self.signal(Signal::KILL),
            _ => Ok(()),
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        // It may have ended, which is seen the next time.
        let _ = kill_process(pid.context("a process without an id")?, signal);
        Ok(())
    }
}

/// The API's times have whole seconds.
pub fn second(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// How it ended, with the end of its log as the message, as with `terminationMessagePolicy: FallbackToLogsOnError`: a manifest need not say so to
/// have a test name the cause.
fn terminated(status: ExitStatus, since: Timestamp, log: &str) -> Value {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    let mut terminated = json!({"exitCode": code, "startedAt": second(since),
        "finishedAt": second(Timestamp::now()), "reason": if code == 0 { "Completed" } else { "Error" }});
    if code != 0 {
        let lines: Vec<&str> = log.lines().collect();
        let message = lines[lines.len().saturating_sub(5)..].join("\n");
        terminated["message"] = json!(message.chars().take(2048).collect::<String>());
    }
    if let Some(signal) = status.signal() {
        terminated["signal"] = json!(signal);
    }
    terminated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(kind: Kind, exit_code: Option<i32>) -> Container {
        let mut container = Container::new(&json!({"name": "a"}), kind, Path::new("/none"));
        if let Some(code) = exit_code {
            container.state = State::Terminated(json!({"exitCode": code}));
        }
        container
    }

    #[test]
    fn restart_policies() {
        let check = |kind: Kind, exit_code: Option<i32>, policy: &str, want: bool| {
            let container = container(kind, exit_code);
            assert_eq!(container.is_due(policy), want, "{kind:?} {exit_code:?} {policy}");
            assert_eq!(container.is_finished(policy), exit_code.is_some() && !want);
        };
        check(Kind::Main, None, "Never", true);
        check(Kind::Main, Some(0), "Always", true);
        check(Kind::Main, Some(0), "OnFailure", false);
        check(Kind::Main, Some(1), "OnFailure", true);
        check(Kind::Main, Some(1), "Never", false);
        check(Kind::Init, Some(0), "Always", false);
        check(Kind::Init, Some(1), "Always", true);
        check(Kind::Init, Some(1), "Never", false);
        check(Kind::Sidecar, Some(0), "Never", true);
    }

    #[test]
    fn ends_are_reported() {
        let reported = |raw: i32, log: &str| {
            let terminated = terminated(ExitStatus::from_raw(raw), Timestamp::UNIX_EPOCH, log);
            let part = |field: &str| terminated[field].to_string();
            (part("exitCode"), part("reason"), part("signal"), part("message"))
        };
        let texts = |code: &str, reason: &str, signal: &str, message: &str| {
            (code.to_owned(), reason.to_owned(), signal.to_owned(), message.to_owned())
        };
        assert_eq!(reported(0, "x"), texts("0", "\"Completed\"", "null", "null"));
        assert_eq!(
            reported(1 << 8, "1\n2\n3\n4\n5\n6"),
            texts("1", "\"Error\"", "null", r#""2\n3\n4\n5\n6""#)
        );
        assert_eq!(reported(9, ""), texts("137", "\"Error\"", "9", "\"\""));
    }
}
