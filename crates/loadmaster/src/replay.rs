//! `loadmaster replay`: the decisions of a recorded run, made again.

#![expect(clippy::disallowed_types, reason = "how long it took is printed")]

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use loadmaster_api::document::Document;
use loadmaster_config::Gates;
use loadmaster_engine::engine::{Engine, Options};
use loadmaster_engine::log::{
    Difference, Ended, Header, LogError, Piece, Reader, Replay, Report, Tail, bind_of,
};
use loadmaster_engine::{Effect, Now};
use loadmaster_framework::Registry;
use loadmaster_stdx::Chain;
use serde_json::{Value, json};

use crate::exit::{Answer, Exit, Failure};
use crate::text::counted;

/// Make the decisions of a recorded run again, and compare each.
///
/// `loadmaster run --record FILE` writes down how the scheduler was set up, everything it saw, and everything it decided. Here the same
/// scheduler sees the same again, as fast as it can, without a cluster. It ends with 0 when it wants the same, effect by effect; with 1
/// at the first difference; with 2 when the file is no recording, or was damaged. A recording that was cut off by a crash is replayed as far as it goes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster replay run.log
  loadmaster replay run.log --decisions | grep shop/web
  loadmaster replay run.log --check
  loadmaster replay run.log -o json")]
pub(crate) struct Args {
    /// What `loadmaster run --record` wrote.
    file: PathBuf,
    /// Print a line for each bind: time, pod, node.
    #[arg(long)]
    decisions: bool,
    /// Also ask every plugin about every node before each decision, and hold the decision against that.
    #[arg(long)]
    check: bool,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Bytes of the file that are read at a time.
const PIECE_LEN: usize = 1 << 20;

/// What became of a replay.
struct Outcome {
    header: Header,
    report: Report,
    tail: Tail,
    difference: Option<Box<Difference>>,
    /// Decisions that asking every plugin did not bear out, with `--check`.
    wrong: Vec<String>,
    took: Duration,
    /// With `-o json --decisions`.
    decisions: Vec<Value>,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> Answer<Exit> {
    let outcome = replay(args, registry, out)?;
    match args.output {
        Output::Text => print(&outcome, out)?,
        Output::Json => {
            let text = serde_json::to_string_pretty(&as_json(args, &outcome));
            writeln!(out, "{}", text.map_err(|error| Failure::input(Chain(&error)))?)?;
        }
    }
    let is_same = outcome.difference.is_none() && outcome.wrong.is_empty();
    Ok(if is_same { Exit::Done } else { Exit::Finding })
}

fn replay(args: &Args, registry: &Registry, out: &mut dyn Write) -> Answer<Outcome> {
    let path = &*args.file;
    let bad = |error: &LogError| Failure::input(format!("{}: {}", path.display(), Chain(error)));
    let mut source = Source::open(path)?;
    let header = match source.next()? {
        Some(Piece::Header(header)) => *header,
        // Neither can be: the first piece is the header.
        Some(Piece::Entry(_)) | None => return Err(bad(&LogError::NoLog)),
    };
    let mut replay = Replay::new(build(args, &header, registry)?);
    source.reader.keep(replay.engine().needs());
    let mut decisions = Vec::new();
    let mut printed = Ok(());
    let started = Instant::now();
    let mut show = |now: Now, effect: &Effect| {
        if let (true, Some(bind)) = (args.decisions, bind_of(effect)) {
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
        let Piece::Entry(entry) = piece else { continue };
        if let Err(first) = replay.take(entry, &mut show) {
            difference = Some(first);
            break;
        }
    }
    let took = started.elapsed();
    printed?;
    let tail = if difference.is_none() { source.reader.tail() } else { Ok(Tail::Open) };
    let tail = tail.map_err(|error| bad(&error))?;
    let wrong = replay.engine().disagreements().cloned().collect();
    let mut report = replay.report();
    if difference.is_none() {
        match replay.finish(tail) {
            Ok(all) => report = all,
            Err(last) => difference = Some(last),
        }
    }
    Ok(Outcome { header, report, tail, difference, wrong, took, decisions })
}

/// A file, piece by piece.
struct Source<'a> {
    path: &'a Path,
    file: File,
    reader: Reader,
    bytes: Vec<u8>,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Answer<Source<'a>> {
        let file = File::open(path);
        let file =
            file.map_err(|error| Failure::input(format!("reading {}: {error}", path.display())))?;
        Ok(Source { path, file, reader: Reader::new(), bytes: vec![0; PIECE_LEN] })
    }

    /// `None` at the end of the file.
    fn next(&mut self) -> Answer<Option<Piece>> {
        let name = self.path.display();
        loop {
            let piece = self.reader.read();
            let piece =
                piece.map_err(|error| Failure::input(format!("{name}: {}", Chain(&error))))?;
            if piece.is_some() {
                return Ok(piece);
            }
            let n_read = self.file.read(&mut self.bytes);
            match n_read.map_err(|error| Failure::input(format!("reading {name}: {error}")))? {
                0 => return Ok(None),
                n => self.reader.push(&self.bytes[..n]),
            }
        }
    }
}

/// The engine that was recorded, as `run` builds it.
fn build(args: &Args, header: &Header, registry: &Registry) -> Answer<Engine> {
    let missing = header.plugins.iter().map(String::as_str);
    let missing: Vec<&str> = missing.filter(|name| registry.get(name).is_none()).collect();
    let name = args.file.display();
    if !missing.is_empty() {
        return Err(Failure::input(format!(
            "{name} was recorded by a program with the plugins {}, which this one does not have: replay it with that one",
            missing.join(", ")
        )));
    }
    let within = |text: &dyn std::fmt::Display| Failure::input(format!("{name}: {text}"));
    let gates = Gates::parse(header.feature_gates.iter().map(String::as_str))
        .map_err(|errors| Failure::inputs(errors.iter().map(|it| format!("{name}: {it}"))))?;
    let document = Document::new(format!("{name}: configuration.yaml"), &*header.configuration);
    let checked = loadmaster_config::check(&document, registry, &gates).map_err(Failure::inputs)?;
    let options = Options { check_every: u64::from(args.check), ..header.options() };
    let engine = loadmaster_daemon::run::engine(&checked.profiles, &gates, registry, options);
    engine.map_err(|error| within(&Chain(&error)))
}

fn wall(now: Now) -> String {
    let time = Timestamp::from_nanosecond(i128::from(now.wall.0));
    time.map_or_else(|_| now.wall.0.to_string(), |time| format!("{time:.6}"))
}

fn print(outcome: &Outcome, out: &mut dyn Write) -> Answer<()> {
    let Outcome { header, report, tail, difference, wrong, took, .. } = outcome;
    let seconds = took.as_secs_f64();
    let from = report.first.map(wall).unwrap_or_default();
    writeln!(
        out,
        "recorded by Loadmaster {}{}: {} from {from}",
        header.version,
        if header.shadow { ", as a shadow" } else { "" },
        spanned(report.spanned()),
    )?;
    writeln!(
        out,
        "{} entries: {} changes of objects, {} decided, {}, {} effects compared",
        report.n_entries,
        report.n_objects,
        counted(report.n_attempts as usize, "pod"),
        counted(report.n_binds as usize, "bind"),
        report.n_effects,
    )?;
    let rate = report.n_attempts as f64 / seconds.max(1e-9);
    writeln!(out, "replayed in {seconds:.3} s: {rate:.0} decisions a second")?;
    for line in wrong {
        writeln!(out, "a decision that plugins do not bear out: {line}")?;
    }
    if let Some(difference) = difference {
        let Difference { entry, now, what, pod, recorded, replayed } = &**difference;
        let since = report.first.map(|first| now.mono.since(first.mono)).unwrap_or_default();
        let pod = pod.as_ref().map(|pod| format!(": {pod}")).unwrap_or_default();
        writeln!(out, "entry {entry}, {what} at {} (+{}){pod}", wall(*now), spanned(since))?;
        writeln!(out, "  recorded: {recorded}\n  now:      {replayed}")?;
        return Ok(());
    }
    writeln!(out, "{}", ending(*tail))?;
    writeln!(out, "every decision is the same")?;
    Ok(())
}

fn ending(tail: Tail) -> String {
    match tail {
        Tail::Whole(Ended::Stopped) => "the recording is whole".to_owned(),
        Tail::Whole(Ended::Full) => {
            "the recording ended at --record-max-size; the scheduler went on".to_owned()
        }
        Tail::Whole(Ended::Behind) => {
            "the recording ended because the disk did not keep up; the scheduler went on".to_owned()
        }
        Tail::Whole(_) => {
            "the recording ended at something that could not be recorded; the scheduler went on"
                .to_owned()
        }
        Tail::Open => "the recording has no end: the scheduler was killed".to_owned(),
        Tail::Torn { n_bytes } => format!(
            "the recording has no end: the scheduler was killed in the middle of a block, of which {n_bytes} bytes were left out"
        ),
    }
}

fn spanned(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn as_json(args: &Args, outcome: &Outcome) -> Value {
    let Outcome { header, report, tail, difference, wrong, took, decisions } = outcome;
    let difference = difference.as_ref().map(|it| {
        json!({
            "entry": it.entry,
            "call": it.what,
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
        "objects": report.n_objects,
        "podsDecided": report.n_attempts,
        "binds": report.n_binds,
        "effects": report.n_effects,
        "from": report.first.map(wall),
        "to": report.last.map(wall),
        "spannedSeconds": report.spanned().as_secs_f64(),
        "replaySeconds": took.as_secs_f64(),
        "isWhole": matches!(tail, Tail::Whole(_)),
        "ending": if difference.is_none() { ending(*tail) } else { String::new() },
        "isSame": difference.is_none(),
        "difference": difference,
        "wrong": wrong,
    });
    if args.decisions {
        all["decisions"] = Value::Array(decisions.clone());
    }
    all
}
