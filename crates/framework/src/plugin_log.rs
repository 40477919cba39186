//! Log lines of plugins, with klog's levels.
//!
//! ```
//! # use loadmaster_framework::*;
//! # struct Plugin { log: PluginLogger }
//! # impl Plugin {
//! fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
//!     self.log.pod(pod).info(3, format_args!("{} nodes in the cluster", cx.world.nodes().len()));
//!     // I1121 12:17:30.491594   21575 main.rs:64] "5 nodes in the cluster" plugin="Quota" pod="ns/web"
//!     Ok(PreFilterResult::All)
//! }
//! # }
//! ```
//!
//! A line is an output of the engine, like an Event: the scheduler's process writes it after the call, and a replay, the simulator and
//! `explain` drop it. No result can depend on whether lines are shown. A line that is not shown costs one comparison: its message is
//! not formatted.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;

use crate::pod_info::PodInfo;

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSeverity {
    /// Shown if the level is at most `--v` (or `--vmodule` of the source file).
    Info,
    /// Always shown.
    Warning,
    /// Always shown.
    Error,
}

/// A log line of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginLogLine {
    /// The plugin's name.
    pub plugin: &'static str,
    /// The severity.
    pub severity: LogSeverity,
    /// klog's level (`V`); 0 for warnings and errors.
    pub level: u32,
    /// `namespace/name` of the pod that the line is about; empty if there is none.
    pub pod: String,
    /// The message; truncated to 4,096 bytes.
    pub message: String,
    /// The line of source code that logged it.
    pub location: &'static Location<'static>,
}

/// The log lines of a plugin, from [`ExtensionPoints::logger`](crate::ExtensionPoints::logger). Lines of one call to the engine beyond
/// the 256th are dropped, and counted in a warning. Do not log secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct PluginLogger {
    plugin: &'static str,
}

/// A logger whose lines are about one pod.
#[derive(Clone, Copy)]
pub struct PodLogger<'a> {
    plugin: &'static str,
    pod: Option<&'a PodInfo>,
}

impl PluginLogger {
    pub(crate) fn new(plugin: &'static str) -> Self {
        PluginLogger { plugin }
    }

    /// Adds the namespace and the name of a pod to the lines.
    pub fn pod(self, pod: &PodInfo) -> PodLogger<'_> {
        PodLogger { plugin: self.plugin, pod: Some(pod) }
    }

    /// Logs a line that is shown with `--v` of at least `level`. Upstream's plugins use 3 for rejections of pods, 4 and 5 for details, 10
    /// for lines per node.
    #[track_caller]
    pub fn info(self, level: u32, message: fmt::Arguments<'_>) {
        self.without_pod().info(level, message);
    }

    /// Logs a warning.
    #[track_caller]
    pub fn warn(self, message: fmt::Arguments<'_>) {
        self.without_pod().warn(message);
    }

    /// Logs an error that is not the result of the extension point.
    #[track_caller]
    pub fn error(self, message: fmt::Arguments<'_>) {
        self.without_pod().error(message);
    }

    fn without_pod(self) -> PodLogger<'static> {
        PodLogger { plugin: self.plugin, pod: None }
    }
}

impl PodLogger<'_> {
    /// As [`PluginLogger::info`].
    #[track_caller]
    pub fn info(self, level: u32, message: fmt::Arguments<'_>) {
        if VERBOSITY.get().is_some_and(|verbosity| level <= verbosity) {
            self.push(LogSeverity::Info, level, message);
        }
    }

    /// As [`PluginLogger::warn`].
    #[track_caller]
    pub fn warn(self, message: fmt::Arguments<'_>) {
        if VERBOSITY.get().is_some() {
            self.push(LogSeverity::Warning, 0, message);
        }
    }

    /// As [`PluginLogger::error`].
    #[track_caller]
    pub fn error(self, message: fmt::Arguments<'_>) {
        if VERBOSITY.get().is_some() {
            self.push(LogSeverity::Error, 0, message);
        }
    }

    #[cold]
    #[track_caller]
    fn push(self, severity: LogSeverity, level: u32, message: fmt::Arguments<'_>) {
        let location = Location::caller();
        let line = || {
            let pod = self.pod.map(|pod| format!("{}/{}", pod.template.namespace, pod.name));
            let mut message = message.to_string();
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            let (plugin, pod) = (self.plugin, pod.unwrap_or_default());
            PluginLogLine { plugin, severity, level, pod, message, location }
        };
        if LINES.with_borrow(|lines| lines.len()) < N_LINES_MAX {
            // A `Display` of the message may itself log, so that the buffer is not borrowed meanwhile.
            let line = line();
            LINES.with_borrow_mut(|lines| lines.push(line));
        } else {
            N_DROPPED.set(N_DROPPED.get() + 1);
        }
    }
}

const N_LINES_MAX: usize = 256;
const MESSAGE_BYTES_MAX: usize = 4096;

thread_local! {
    /// The highest level that is shown; `None` outside of [`collect_log_lines`].
    static VERBOSITY: Cell<Option<u32>> = const { Cell::new(None) };
    static LINES: RefCell<Vec<PluginLogLine>> = const { RefCell::new(Vec::new()) };
    static N_DROPPED: Cell<u64> = const { Cell::new(0) };
}

/// Runs work that calls plugins, and returns the lines up to this level that they logged in this thread. Elsewhere nothing is logged.
pub fn collect_log_lines<R>(verbosity: u32, work: impl FnOnce() -> R) -> (R, Vec<PluginLogLine>) {
    let outer = VERBOSITY.replace(Some(verbosity));
    let done = work();
    VERBOSITY.set(outer);
    let mut lines = LINES.take();
    let n_dropped = N_DROPPED.take();
    if let (Some(last), 1..) = (lines.last(), n_dropped) {
        let message = format!("{n_dropped} more log lines of plugins were dropped");
        let severity = LogSeverity::Warning;
        lines.push(PluginLogLine {
            severity,
            level: 0,
            pod: String::new(),
            message,
            ..last.clone()
        });
    }
    (done, lines)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testkit::PluginTestBench;

    /// `Display` that panics: the message of a line that is not shown must not be formatted.
    struct Unformatted;

    impl fmt::Display for Unformatted {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("formatted")
        }
    }

    fn texts(lines: &[PluginLogLine]) -> Vec<String> {
        let text = |line: &PluginLogLine| {
            let PluginLogLine { plugin, severity, level, pod, message, .. } = line;
            format!("{severity:?} {level} {plugin} {pod} {message}")
        };
        lines.iter().map(text).collect()
    }

    #[test]
    fn lines_up_to_the_level_are_collected() {
        let log = PluginLogger::new("Quota");
        let def = crate::PluginDef { name: "Quota", build: |_, _| Ok(()), args: None };
        let mut bench = PluginTestBench::new(&def, Value::Null).unwrap();
        let pod = bench.parse_pod(crate::testkit::pod("web")).unwrap();
        #[track_caller]
        fn check(verbosity: u32, log: PluginLogger, pod: &PodInfo, want: &[&str]) {
            let ((), lines) = collect_log_lines(verbosity, || {
                log.pod(pod).info(3, format_args!("three {}", 3));
                log.info(5, format_args!("five"));
                log.warn(format_args!("warning"));
                log.pod(pod).error(format_args!("error"));
            });
            assert_eq!(texts(&lines), want);
            assert!(lines.iter().all(|line| line.location.file().ends_with("plugin_log.rs")));
        }
        let always = ["Warning 0 Quota  warning", "Error 0 Quota default/web error"];
        check(2, log, &pod, &always);
        let three = "Info 3 Quota default/web three 3";
        check(3, log, &pod, &[three, always[0], always[1]]);
        check(9, log, &pod, &[three, "Info 5 Quota  five", always[0], always[1]]);
    }

    #[test]
    fn a_line_that_is_not_shown_is_not_formatted() {
        let log = PluginLogger::new("Quota");
        // Outside of a call of the engine: a unit test of a plugin, a service.
        log.error(format_args!("{Unformatted}"));
        let ((), lines) = collect_log_lines(4, || log.info(5, format_args!("{Unformatted}")));
        assert!(lines.is_empty());
    }

    #[test]
    fn number_and_size_of_lines_are_limited() {
        let log = PluginLogger::new("Quota");
        let ((), lines) = collect_log_lines(0, || {
            for _ in 0..N_LINES_MAX + 7 {
                log.warn(format_args!("{}", "ä".repeat(MESSAGE_BYTES_MAX)));
            }
        });
        assert_eq!(lines.len(), N_LINES_MAX + 1);
        assert_eq!(lines[0].message.len(), MESSAGE_BYTES_MAX);
        assert_eq!(lines[N_LINES_MAX].message, "7 more log lines of plugins were dropped");
        // The next call begins anew.
        assert_eq!(collect_log_lines(0, || ()).1, []);
    }
}
