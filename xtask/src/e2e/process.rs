//! Processes that are ours: output in a file, ended with us, and their account with the kernel.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A child process. Dropping it kills it.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// What a process has used since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time of all its threads.
    pub cpu_seconds: f64,
    /// Its resident set.
    pub rss_bytes: u64,
    /// Its resident set when that was largest.
    pub rss_peak_bytes: u64,
}

impl Usage {
    /// What this process has used so far.
    pub fn of_this_process() -> Result<Usage> {
        usage_of(Path::new("/proc/self"))
    }
}

impl std::ops::Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage {
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
            rss_bytes: self.rss_bytes + other.rss_bytes,
            rss_peak_bytes: self.rss_peak_bytes + other.rss_peak_bytes,
        }
    }
}

impl Process {
    /// Starts `command` with both its outputs in `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Process> {
        let output = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("opening {}", log.display()))?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let program = command.get_program().display();
        let child = child.with_context(|| format!("starting {program}"))?;
        Ok(Process { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("waiting for {}", self.name))
    }

    /// An error with the last words of its log when it is not running any more.
    pub fn check_running(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => {
                bail!("{} ended ({status}); its last words:\n{}", self.name, self.last_words())
            }
        }
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The last lines of its log.
    fn last_words(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// What it has used so far. Only while it runs.
    pub fn usage(&self) -> Result<Usage> {
        let folder = PathBuf::from(format!("/proc/{}", self.id()));
        usage_of(&folder).with_context(|| format!("reading the account of {}", self.name))
    }

    /// Asks it to end.
    pub fn terminate(&self) -> Result<()> {
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} has no process id", self.name))?;
        kill_process(pid, Signal::TERM).with_context(|| format!("terminating {}", self.name))
    }

    /// Ends it at once.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("killing {}", self.name))?;
        self.child.wait().with_context(|| format!("waiting for {}", self.name))?;
        Ok(())
    }

    /// Waits until it has ended by itself.
    pub async fn wait(&mut self, at_most: Duration) -> Result<ExitStatus> {
        const PAUSE: Duration = Duration::from_millis(20);
        for _ in 0..at_most.as_millis().div_ceil(PAUSE.as_millis()) {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            tokio::time::sleep(PAUSE).await;
        }
        bail!("{} did not end within {} s", self.name, at_most.as_secs())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; there is nobody left to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// From a process' folder in `/proc`.
fn usage_of(folder: &Path) -> Result<Usage> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    parse_usage(&read("stat")?, &read("status")?, rustix::param::clock_ticks_per_second())
        .with_context(|| format!("an account in {} that cannot be read", folder.display()))
}

/// From the texts of `/proc/PID/stat` (times in ticks, after the name in parentheses) and `/proc/PID/status` (sizes in KiB).
fn parse_usage(stat: &str, status: &str, ticks_per_second: u64) -> Option<Usage> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut times = after_name.split_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    let bytes = |name: &str| -> Option<u64> {
        let size = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    let cpu_seconds = ticks as f64 / ticks_per_second as f64;
    Some(Usage { cpu_seconds, rss_bytes: bytes("VmRSS:")?, rss_peak_bytes: bytes("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process may be called anything, also like the fields that follow.
    #[test]
    fn usage_is_found_after_any_name() {
        let status =
            "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t  512 kB\nVmRSS:\t  256 kB\nThreads:\t3\n";
        let check = |stat: &str, want: Option<f64>| {
            let usage = parse_usage(stat, status, 100);
            assert_eq!(usage.map(|usage| usage.cpu_seconds), want, "{stat}");
        };
        check("7 (etcd) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 9 0 12 9 9", Some(2.0));
        check("7 (a) 1 (b) R 1 7 7 0 -1 4194304 100 0 0 0 7 0 0 0 20 0 9 0 12 9 9", Some(0.07));
        check("7 (etcd) S 1 7 7 0", None);
        check("", None);
        let usage = parse_usage("7 (e) S 1 7 7 0 -1 4 1 0 0 0 1 1 0", status, 100);
        let sizes = usage.map(|usage| (usage.rss_bytes, usage.rss_peak_bytes));
        assert_eq!(sizes, Some((256 << 10, 512 << 10)));
        assert_eq!(parse_usage("7 (e) S 1 7 7 0 -1 4 1 0 0 0 1 1 0", "Name: x\n", 100), None);
    }
}
