//! Tests of log lines.
#![expect(clippy::disallowed_types, reason = "a buffer shared with the output")]

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::flags::{ParsedCommandLine, parse_command_line};

#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SharedBuffer {
    /// The output without time, process id and line number.
    fn text(&self) -> String {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| tidy(line) + "\n").collect()
    }
}

fn tidy(line: &str) -> String {
    if let Some((head, rest)) = line.split_once("] ")
        && head.contains("tests.rs:")
    {
        return format!("{}…] {rest}", &head[..1]);
    }
    match line.split_once(",\"msg\"") {
        Some((_, rest)) => format!("{{…,\"msg\"{rest}"),
        None => line.to_owned(),
    }
}

fn settings(args: &[&str]) -> Result<LogSettings, Vec<String>> {
    let ParsedCommandLine::Run(options) = parse_command_line(["x"].iter().chain(args)).unwrap()
    else {
        panic!("not parsed")
    };
    let gates = options.features.feature_gates.iter().map(String::as_str);
    LogSettings::from_flags(&options.logs, &AllFeatureGates::parse(gates).unwrap())
}

/// The output of these events on each stream.
fn written(args: &[&str], log: impl FnOnce(&Logs)) -> (String, String) {
    let (information, problems) = (SharedBuffer::default(), SharedBuffer::default());
    let settings = settings(args).unwrap();
    let error: Option<Box<dyn Write + Send>> =
        if settings.has_split_stream { Some(Box::new(problems.clone())) } else { None };
    let output = Output::new(Box::new(information.clone()), error);
    let (layer, logs) = layer(&settings, output, TimeZone::UTC);
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::with_default(subscriber, || log(&logs));
    (information.text(), problems.text())
}

fn events() {
    let _span = tracing::info_span!("cycle", pod = "ns/web").entered();
    tracing::info!(node = "a", n = 3, ok = true, share = 0.5, "Bound");
    tracing::info!(v = 2, "Detail");
    tracing::debug!(list = ?["x"], "Debug");
    tracing::trace!("Trace");
    tracing::warn!(token = "abc", "Odd \"thing\"");
    tracing::error!(err = "two\nlines", "Failed");
}

#[test]
fn text() {
    let (got, _) = written(&[], |_| events());
    expect_test::expect![[r#"
        I…] "Bound" pod="ns/web" node="a" n=3 ok=true share=0.5
        W…] "Odd \"thing\"" pod="ns/web" token="<redacted>"
        E…] "Failed" pod="ns/web" err=<
        	two
        	lines
         >
    "#]]
    .assert_eq(&got);
}

#[test]
fn json() {
    let (got, _) = written(&["--logging-format=json", "-v=2"], |_| events());
    for line in got.lines() {
        serde_json::from_str::<serde_json::Value>(&line.replace("{…,", "{")).unwrap();
    }
    expect_test::expect![[r#"
        {…,"msg":"Bound","v":0,"pod":"ns/web","node":"a","n":3,"ok":true,"share":0.5}
        {…,"msg":"Detail","v":2,"pod":"ns/web"}
        {…,"msg":"Odd \"thing\"","v":0,"pod":"ns/web","token":"<redacted>"}
        {…,"msg":"Failed","pod":"ns/web","err":"two\nlines"}
    "#]]
    .assert_eq(&got);
}

#[test]
fn klog_header() {
    let paper = SharedBuffer::default();
    let settings = settings(&[]).unwrap();
    let (layer, _logs) =
        layer(&settings, Output::new(Box::new(paper.clone()), None), TimeZone::UTC);
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::with_default(subscriber, || tracing::info!("x"));
    let line = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    let head: Vec<&str> = line.split_whitespace().collect();
    let form = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "0");
    assert_eq!((form(head[0]).as_str(), form(head[1]).as_str()), ("I0000", "00:00:00.000000"));
    assert_eq!(head[2], std::process::id().to_string());
    assert_eq!(form(head[3]).trim_end_matches(['0', ']']), "tests.rs:");
}

#[test]
fn verbosity_changes_while_running() {
    let names = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| Some(line.split('"').nth(1)?.to_owned())).collect()
    };
    let quiet = |names: &[String]| names.iter().any(|name| name == "Detail" || name == "Debug");
    let (got, _) = written(&[], |logs| {
        events();
        logs.set_verbosity(4);
        events();
    });
    let names = names(&got);
    assert!(!quiet(&names[..3]), "{names:?}");
    assert!(quiet(&names[3..]) && !names.contains(&"Trace".to_owned()), "{names:?}");
    let of_file = written(&["--vmodule=te?t*=6"], |_| events()).0;
    assert!(of_file.contains("\"Trace\""), "{of_file}");
    let of_other = written(&["--vmodule=other=6"], |_| events()).0;
    assert!(!of_other.contains("\"Detail\""), "{of_other}");
}

#[test]
fn events_of_wire_crates_need_verbosity_8() {
    let frames = |args: &[&str]| {
        let (got, _) = written(args, |_| {
            tracing::debug!(target: "h2::codec", "frame");
            tracing::trace!(target: "h2::codec", "header value");
        });
        got.lines().count()
    };
    assert_eq!((frames(&["-v=7"]), frames(&["-v=8"]), frames(&["-v=2147483647"])), (0, 1, 1));
}

#[test]
fn split_streams() {
    let flags = ["--feature-gates=LoggingAlphaOptions=true", "--log-text-split-stream"];
    let (information, problems) = written(&flags, |_| events());
    assert!(information.contains("Bound") && !information.contains("Failed"), "{information}");
    assert!(problems.contains("Failed") && !problems.contains("Bound"), "{problems}");
}

#[test]
fn invalid_log_flags_are_rejected() {
    #[track_caller]
    fn check(args: &[&str], want: &str) {
        assert_eq!(settings(args).unwrap_err(), [want]);
    }
    check(&["--logging-format=xml"], "format: Invalid value: \"xml\": Unsupported log format");
    check(
        &["--log-flush-frequency=0"],
        "flushFrequency: Invalid value: \"0s\": Must be greater than zero",
    );
    check(
        &["--log-text-split-stream"],
        "options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled",
    );
    check(
        &["--log-json-info-buffer-size=1Ki"],
        "options.json.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled",
    );
    check(
        &["--logging-format=json", "--vmodule=a=1"],
        "vmodule: Forbidden: Only supported for text log format",
    );
    check(
        &["--logging-format=json", "--feature-gates=LoggingBetaOptions=false"],
        "format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature",
    );
}

#[test]
fn lines_of_plugins_have_the_place_in_their_source_code() {
    let log = |logs: &Logs| {
        for (severity, level, pod, message) in [
            (LogSeverity::Info, 3, "ns/web", "three"),
            (LogSeverity::Info, 5, "", "five"),
            (LogSeverity::Warning, 0, "", "a warning"),
            (LogSeverity::Error, 0, "ns/web", "an error"),
        ] {
            let (pod, message) = (pod.to_owned(), message.to_owned());
            let location = std::panic::Location::caller();
            let line = PluginLogLine { plugin: "Quota", severity, level, pod, message, location };
            logs.write_plugin_line(&line);
        }
    };
    let always =
        "W…] \"a warning\" plugin=\"Quota\"\nE…] \"an error\" plugin=\"Quota\" pod=\"ns/web\"\n";
    assert_eq!(written(&["--v=2"], log).0, always);
    let three = "I…] \"three\" plugin=\"Quota\" pod=\"ns/web\"\n";
    assert_eq!(written(&["--v=3"], log).0, format!("{three}{always}"));
    let five = "I…] \"five\" plugin=\"Quota\"\n";
    assert_eq!(written(&["--vmodule=te*=5"], log).0, format!("{three}{five}{always}"));
    assert_eq!(written(&["--vmodule=main=5"], log).0, always);
    let json = written(&["--v=3", "--logging-format=json"], log).0;
    let first = json.lines().next().unwrap();
    assert_eq!(first, r#"{…,"msg":"three","v":3,"plugin":"Quota","pod":"ns/web"}"#);
}

#[test]
fn response_bodies_are_never_logged() {
    let (text, _) = written(&["--v=10"], |_| {
        tracing::warn!(target: "kube_client::client", "{{\"data\": \"secret\"}}, Error");
        tracing::warn!(target: "kube_client::client::tls", "Server cert bypassed");
    });
    assert_eq!(text, "W…] \"Server cert bypassed\"\n");
}

#[test]
fn spans_of_libraries_are_made_for_their_verbosity_only() {
    #[track_caller]
    fn check(args: &[&str], is_enabled: [bool; 4]) {
        let (_, _) = written(args, |_| {
            let spans = [
                tracing::error_span!("service"),
                tracing::debug_span!("cycle"),
                tracing::debug_span!(target: "kube_client::builder", "request"),
                tracing::trace_span!(target: "h2::codec", "frame"),
            ];
            assert_eq!(spans.map(|span| !span.is_disabled()), is_enabled, "{args:?}");
        });
    }
    check(&[], [true, false, false, false]);
    check(&["--v=4"], [true, true, false, false]);
    check(&["--v=10"], [true, true, true, false]);
}
