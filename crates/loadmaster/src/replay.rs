//! `loadmaster replay`: replays a recorded run and compares its decisions.

#![expect(clippy::disallowed_types, reason = "the duration is printed")]

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use loadmaster_api::document::Document;
use loadmaster_config::AllFeatureGates;
use loadmaster_engine::engine::{Engine, EngineOptions};
use loadmaster_engine::recording::{
    BuildConfiguration, RecordingEnd, RecordingEndReason, RecordingError, RecordingHeader,
    RecordingItem, RecordingReader, Replay, ReplayDifference, ReplayReport, bind_request_of_effect,
};
use loadmaster_engine::{Effect, Now};
use loadmaster_framework::Registry;
use loadmaster_stdx::ErrorChain;
use serde_json::{Value, json};

use crate::exit::{CommandResult, Exit, Failure};
use crate::text::counted;

/// Replay a recorded run and compare every decision.
///
/// `loadmaster run --record FILE` records the configuration of the scheduler, all events it received and all its decisions. `replay` passes
/// the same events to the same scheduler, as fast as possible and without a cluster. The exit code is 0 if all effects are identical, 1 at
/// the first difference, 2 if the file is not a recording or is corrupted. A recording that was truncated by a crash is replayed up to its
/// end.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster replay run.log
  loadmaster replay run.log --decisions | grep shop/web
  loadmaster replay run.log --check
  loadmaster replay run.log -o json")]
pub(crate) struct Args {
    /// Recording written by `loadmaster run --record`.
    file: PathBuf,
    /// Print one line per bind: time, pod, node.
    #[arg(long)]
    decisions: bool,
    /// Also verify every decision against per-node evaluation of all plugins.
    #[arg(long)]
    check: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Number of bytes that are read from the file at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The result of a replay.
struct ReplayOutcome {
    header: RecordingHeader,
    report: ReplayReport,
    tail: RecordingEnd,
    difference: Option<Box<ReplayDifference>>,
    /// Decisions that differ from per-node evaluation, with `--check`.
    wrong: Vec<String>,
    took: Duration,
    /// The binds, with `-o json --decisions`.
    decisions: Vec<Value>,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<Exit> {
    let outcome = replay(args, registry, out)?;
    match args.output {
        Output::Text => print(&outcome, out)?,
        Output::Json => {
            let text = serde_json::to_string_pretty(&as_json(args, &outcome));
            writeln!(out, "{}", text.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?)?;
        }
    }
    let is_same = outcome.difference.is_none() && outcome.wrong.is_empty();
    Ok(if is_same { Exit::Done } else { Exit::Finding })
}

fn replay(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<ReplayOutcome> {
    let path = &*args.file;
    let bad = |error: &RecordingError| {
        Failure::invalid_input(format!("{}: {}", path.display(), ErrorChain(error)))
    };
    let mut source = Source::open(path)?;
    let header = match source.next()? {
        Some(RecordingItem::Header(header)) => *header,
        // Cannot happen: the first item is the header.
        Some(RecordingItem::Entry(_)) | None => return Err(bad(&RecordingError::NotARecording)),
    };
    let mut replay =
        Replay::new(build(args, &header, registry)?, build_configuration(&header, registry)?);
    source.reader.set_extra_fields(replay.engine().extra_fields());
    let mut decisions = Vec::new();
    let mut printed = Ok(());
    let started = Instant::now();
    let mut show = |now: Now, effect: &Effect| {
        if let (true, Some(bind)) = (args.decisions, bind_request_of_effect(effect)) {
            let (at, pod) = (wall(now), format!("{}/{}", bind.namespace, bind.pod));
            match args.output {
                Output::Json => decisions
                    .push(json!({"time": at, "pod": pod, "uid": bind.uid, "node": bind.node})),
                Output::Text if printed.is_ok() => {
                    printed = writeln!(out, "{at}  {pod}  {}", bind.node);
                }
                Output::Text => {}
            }
        }
    };
    let mut difference = None;
    while let Some(piece) = source.next()? {
        let RecordingItem::Entry(entry) = piece else { continue };
        if let Err(first) = replay.replay_entry(entry, &mut show) {
            difference = Some(first);
            break;
        }
    }
    let took = started.elapsed();
    printed?;
    let tail = if difference.is_none() {
        source.reader.recording_end()
    } else {
        Ok(RecordingEnd::Unfinished)
    };
    let tail = tail.map_err(|error| bad(&error))?;
    let wrong = replay.engine().decision_mismatches().cloned().collect();
    let mut report = replay.report();
    if difference.is_none() {
        match replay.finish(tail) {
            Ok(all) => report = all,
            Err(last) => difference = Some(last),
        }
    }
    Ok(ReplayOutcome { header, report, tail, difference, wrong, took, decisions })
}

/// Reads the items of a recording from a file.
struct Source<'a> {
    path: &'a Path,
    file: File,
    reader: RecordingReader,
    bytes: Vec<u8>,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> CommandResult<Source<'a>> {
        let file = File::open(path);
        let file = file.map_err(|error| {
            Failure::invalid_input(format!("reading {}: {error}", path.display()))
        })?;
        Ok(Source { path, file, reader: RecordingReader::new(), bytes: vec![0; CHUNK_BYTES] })
    }

    /// The next item; `None` at the end of the file.
    fn next(&mut self) -> CommandResult<Option<RecordingItem>> {
        let name = self.path.display();
        loop {
            let piece = self.reader.read_item();
            let piece = piece.map_err(|error| {
                Failure::invalid_input(format!("{name}: {}", ErrorChain(&error)))
            })?;
            if piece.is_some() {
                return Ok(piece);
            }
            let n_read = self.file.read(&mut self.bytes);
            match n_read
                .map_err(|error| Failure::invalid_input(format!("reading {name}: {error}")))?
            {
                0 => return Ok(None),
                n => self.reader.push_bytes(&self.bytes[..n]),
            }
        }
    }
}

/// Builds the recorded engine, as `run` does.
fn build(args: &Args, header: &RecordingHeader, registry: &Registry) -> CommandResult<Engine> {
    let missing = header.plugins.iter().map(String::as_str);
    let missing: Vec<&str> = missing.filter(|name| registry.get(name).is_none()).collect();
    let name = args.file.display();
    if !missing.is_empty() {
        return Err(Failure::invalid_input(format!(
            "{name} was recorded with the plugins {}, which this binary does not have: replay it with the binary that recorded it",
            missing.join(", ")
        )));
    }
    let gates = recorded_gates(header).map_err(|errors| {
        Failure::invalid_inputs(errors.into_iter().map(|it| format!("{name}: {it}")))
    })?;
    let document = Document::new(format!("{name}: configuration.yaml"), &*header.configuration);
    let checked = loadmaster_config::check_configuration(&document, registry, &gates)
        .map_err(Failure::invalid_inputs)?;
    let options = EngineOptions { verify_every: u64::from(args.check), ..header.engine_options() };
    Ok(loadmaster_daemon::run::build_engine(&checked.profiles, &gates, options))
}

/// Builds the configurations that replaced the one of the header while it was recorded.
fn build_configuration(
    header: &RecordingHeader,
    registry: &Registry,
) -> CommandResult<BuildConfiguration> {
    let gates = recorded_gates(header).map_err(Failure::invalid_inputs)?;
    let registry = registry.clone();
    Ok(Box::new(move |yaml| {
        let document = Document::new("the recorded configuration", yaml);
        let checked = loadmaster_config::check_configuration(&document, &registry, &gates);
        let checked = checked.map_err(|errors| {
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        })?;
        let (config, profiles) = (&checked.config, &checked.profiles);
        loadmaster_daemon::run::build_configuration(config, profiles, &gates)
            .map_err(|error| ErrorChain(&error).to_string())
    }))
}

fn recorded_gates(header: &RecordingHeader) -> Result<AllFeatureGates, Vec<String>> {
    let gates = AllFeatureGates::parse(header.feature_gates.iter().map(String::as_str));
    gates.map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn wall(now: Now) -> String {
    let time = Timestamp::from_nanosecond(i128::from(now.wall.0));
    time.map_or_else(|_| now.wall.0.to_string(), |time| format!("{time:.6}"))
}

fn print(outcome: &ReplayOutcome, out: &mut dyn Write) -> CommandResult<()> {
    let ReplayOutcome { header, report, tail, difference, wrong, took, .. } = outcome;
    let seconds = took.as_secs_f64();
    let from = report.first.map(wall).unwrap_or_default();
    writeln!(
        out,
        "recorded by Loadmaster {}{}: {} from {from}",
        header.version,
        if header.shadow { " with --shadow" } else { "" },
        seconds_text(report.duration()),
    )?;
    writeln!(
        out,
        "{} entries: {} object changes, {}, {}, {} effects compared",
        report.n_entries,
        report.n_objects,
        counted(report.n_attempts as usize, "scheduling attempt"),
        counted(report.n_binds as usize, "bind"),
        report.n_effects,
    )?;
    let rate = report.n_attempts as f64 / seconds.max(1e-9);
    writeln!(out, "replayed in {seconds:.3} s: {rate:.0} decisions per second")?;
    for line in wrong {
        writeln!(out, "decision differs from per-node evaluation: {line}")?;
    }
    if let Some(difference) = difference {
        let ReplayDifference { entry, now, call, pod, recorded, replayed } = &**difference;
        let since = report.first.map(|first| now.mono.since(first.mono)).unwrap_or_default();
        let pod = pod.as_ref().map(|pod| format!(": {pod}")).unwrap_or_default();
        writeln!(out, "entry {entry}, {call} at {} (+{}){pod}", wall(*now), seconds_text(since))?;
        writeln!(out, "  recorded: {recorded}\n  replayed: {replayed}")?;
        return Ok(());
    }
    writeln!(out, "{}", end_reason(*tail))?;
    writeln!(out, "all decisions are identical")?;
    Ok(())
}

fn end_reason(tail: RecordingEnd) -> String {
    match tail {
        RecordingEnd::Complete(RecordingEndReason::Stopped) => {
            "the recording is complete".to_owned()
        }
        RecordingEnd::Complete(RecordingEndReason::Full) => {
            "the recording ended at --record-max-size; the scheduler continued".to_owned()
        }
        RecordingEnd::Complete(RecordingEndReason::DiskTooSlow) => {
            "the recording ended because the disk was too slow; the scheduler continued".to_owned()
        }
        RecordingEnd::Complete(_) => {
            "the recording ended because an item could not be recorded; the scheduler continued"
                .to_owned()
        }
        RecordingEnd::Unfinished => {
            "the recording is truncated: the scheduler was killed".to_owned()
        }
        RecordingEnd::Truncated { n_bytes } => format!(
            "the recording is truncated: the scheduler was killed while writing a block, and {n_bytes} bytes of it were ignored"
        ),
    }
}

fn seconds_text(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn as_json(args: &Args, outcome: &ReplayOutcome) -> Value {
    let ReplayOutcome { header, report, tail, difference, wrong, took, decisions } = outcome;
    let difference = difference.as_ref().map(|it| {
        json!({
            "entry": it.entry,
            "call": it.call,
            "time": wall(it.now),
            "pod": it.pod,
            "recorded": it.recorded,
            "replayed": it.replayed,
        })
    });
    let mut all = json!({
        "file": args.file,
        "version": header.version,
        "shadow": header.shadow,
        "entries": report.n_entries,
        "objectChanges": report.n_objects,
        "schedulingAttempts": report.n_attempts,
        "binds": report.n_binds,
        "effects": report.n_effects,
        "from": report.first.map(wall),
        "to": report.last.map(wall),
        "durationSeconds": report.duration().as_secs_f64(),
        "replaySeconds": took.as_secs_f64(),
        "isComplete": matches!(tail, RecordingEnd::Complete(_)),
        "endReason": if difference.is_none() { end_reason(*tail) } else { String::new() },
        "isIdentical": difference.is_none(),
        "difference": difference,
        "mismatches": wrong,
    });
    if args.decisions {
        all["decisions"] = Value::Array(decisions.clone());
    }
    all
}
