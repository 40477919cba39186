//! Child processes: output in a log file, killed on drop, with their resource usage.

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

/// The resource usage of a process since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system CPU time of all threads.
    pub cpu_seconds: f64,
    /// The resident set size.
    pub rss_bytes: u64,
    /// The peak resident set size.
    pub rss_peak_bytes: u64,
}

impl Usage {
    /// The usage of the current process.
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
    /// Starts `command` with stdout and stderr redirected to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Process> {
        let output = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("opening {}", log.display()))?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let program = command.get_program().display();
        let child = child.with_context(|| format!("starting {program}"))?;
        Ok(Process { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, if the process has exited.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("waiting for {}", self.name))
    }

    /// An error with the last lines of its log if it is not running any more.
    pub fn check_running(&mut self) -> Result<()> {
        match self.exit_status()? {
            None => Ok(()),
            Some(status) => {
                bail!(
                    "{} exited ({status}); the end of its log:\n{}",
                    self.name,
                    self.last_log_lines()
                )
            }
        }
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The last lines of its log.
    fn last_log_lines(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Its resource usage. Only while it is running.
    pub fn usage(&self) -> Result<Usage> {
        let folder = PathBuf::from(format!("/proc/{}", self.id()));
        usage_of(&folder).with_context(|| format!("reading the resource usage of {}", self.name))
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) -> Result<()> {
        self.send(Signal::TERM)
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) -> Result<()> {
        self.send(Signal::HUP)
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} has no process id", self.name))?;
        kill_process(pid, signal).with_context(|| format!("sending {signal:?} to {}", self.name))
    }

    /// Kills it.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("killing {}", self.name))?;
        self.child.wait().with_context(|| format!("waiting for {}", self.name))?;
        Ok(())
    }

    /// Waits until it has exited.
    pub async fn wait(&mut self, at_most: Duration) -> Result<ExitStatus> {
        const PAUSE: Duration = Duration::from_millis(20);
        for _ in 0..at_most.as_millis().div_ceil(PAUSE.as_millis()) {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            tokio::time::sleep(PAUSE).await;
        }
        bail!("{} did not exit within {} s", self.name, at_most.as_secs())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have exited already; errors are ignored.
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
        .with_context(|| format!("parsing the resource usage in {}", folder.display()))
}

/// Where `/proc/PID/stat` has the times of the process, and those of its children that have ended: fields after the name.
const OWN_TIMES: usize = 11;
pub const TIMES_OF_CHILDREN: usize = 13;

/// User and system time in ticks, from the text of `/proc/PID/stat`: the name in parentheses may contain anything.
pub fn cpu_ticks(stat: &str, first_field: usize) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut times = after_name.split_whitespace().skip(first_field).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// From the texts of `/proc/PID/stat` and `/proc/PID/status` (sizes in KiB).
fn parse_usage(stat: &str, status: &str, ticks_per_second: u64) -> Option<Usage> {
    let ticks = cpu_ticks(stat, OWN_TIMES)?;
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

    /// The process name may contain spaces and parentheses.
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
