//! `cargo xtask counts`: counts the allocations and instructions of a few small workloads and compares them with `perf/counts.json`.
//!
//! Unlike times, counts are the same on a busy machine: the workloads have fixed seeds, and valgrind, which counts the instructions, shows
//! every program a processor without AVX-512, so that the same vector code is chosen everywhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{command, root};

/// Where the counts are recorded, below the workspace.
const FILE: &str = "perf/counts.json";

/// A count that differs by more than this share of the recorded one fails.
const SHARE_MAX: f64 = 0.1;
/// And at least by this much, for workloads that hardly allocate.
const DIFFERENCE_MIN: u64 = 20;

/// What to do about a difference.
const ADVICE: &str = "If the change is meant to cost or save that, record the counts with `cargo xtask counts --record`, commit \
                      perf/counts.json, and say why in the commit. Else find the difference with `valgrind --tool=callgrind`, before \
                      and after the change.";

/// Count allocations and instructions of small workloads, and fail if they differ by more than 10 % from perf/counts.json.
#[derive(clap::Args)]
pub struct Args {
    /// Write the counts to perf/counts.json instead of comparing.
    #[arg(long)]
    record: bool,
    /// Count allocations only, without valgrind.
    #[arg(long, conflicts_with = "record")]
    allocations_only: bool,
}

/// The counts of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    decisions: u64,
    allocations: u64,
    /// `None` if valgrind was not to be used.
    instructions: Option<u64>,
}

/// Counts by the name of the workload.
type AllCounts = BTreeMap<String, Counts>;

/// Runs all workloads; returns whether their counts are as recorded.
pub fn run(args: &Args) -> Result<bool> {
    let file = root()?.join(FILE);
    let program = build()?;
    let recorded = match (args.record, std::fs::read_to_string(&file)) {
        (true, _) => AllCounts::new(),
        (false, text) => parse(&text.with_context(|| format!("reading {FILE}"))?)?,
    };
    println!("| workload | decisions | allocations per decision | instructions per decision |");
    println!("| --- | --- | --- | --- |");
    let names = text_of(Command::new(&program).output(), "the list of workloads")?.0;
    let mut counted = AllCounts::new();
    for name in names.lines() {
        let counts = count(&program, name, !args.allocations_only)?;
        let per_decision = |n: u64| n as f64 / counts.decisions as f64;
        let instructions =
            counts.instructions.map_or("-".to_owned(), |n| format!("{:.0}", per_decision(n)));
        println!(
            "| {name} | {} | {:.2} | {instructions} |",
            counts.decisions,
            per_decision(counts.allocations)
        );
        counted.insert(name.to_owned(), counts);
    }
    if args.record {
        std::fs::write(&file, to_text(&counted)?).with_context(|| format!("writing {FILE}"))?;
        println!("written to {FILE}");
        return Ok(true);
    }
    let differences = differences(&recorded, &counted);
    for difference in &differences {
        println!("{difference}");
    }
    if !differences.is_empty() {
        println!("{ADVICE}");
    }
    Ok(differences.is_empty())
}

/// Builds the program that is counted, and returns its path.
fn build() -> Result<std::path::PathBuf> {
    let mut cargo = command("cargo");
    cargo.args(["build", "--release", "--quiet", "--package", "loadmaster-perf"]);
    cargo.args(["--bin", "loadmaster-counts", "--message-format=json"]);
    let (messages, _) = text_of(cargo.current_dir(root()?).output(), "cargo build")?;
    let executable = messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(Into::into)
    });
    executable.context("cargo names no program")
}

/// Runs a workload.
fn count(program: &Path, name: &str, with_instructions: bool) -> Result<Counts> {
    let (line, instructions) = if with_instructions {
        let (_, first) = run_in_valgrind(program, &[name, "--only-first"])?;
        let (line, all) = run_in_valgrind(program, &[name])?;
        (line, Some(all.checked_sub(first).context("fewer instructions for more decisions")?))
    } else {
        (text_of(Command::new(program).arg(name).output(), name)?.0, None)
    };
    let numbers = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>();
    match numbers.as_deref() {
        Ok([decisions, allocations]) => {
            Ok(Counts { decisions: *decisions, allocations: *allocations, instructions })
        }
        _ => bail!("{name}: {line:?} are not two numbers"),
    }
}

/// Standard output and the number of instructions.
fn run_in_valgrind(program: &Path, args: &[&str]) -> Result<(String, u64)> {
    let mut valgrind = Command::new("valgrind");
    // Newer versions need no `--cache-sim=no`, and older ones write their results to a file unless it is named.
    valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    let output = valgrind.arg(program).args(args).output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow::anyhow!(
            "valgrind is not installed (package valgrind); --allocations-only does without it"
        ),
        _ => error.into(),
    });
    let (stdout, stderr) = text_of(output, &format!("valgrind {}", args.join(" ")))?;
    let n = instructions(&stderr).with_context(|| format!("valgrind counts nothing: {stderr}"))?;
    Ok((stdout, n))
}

/// Standard output and standard error of a program that must succeed.
fn text_of(
    output: Result<Output, impl Into<anyhow::Error>>,
    what: &str,
) -> Result<(String, String)> {
    let output = output.map_err(Into::into).with_context(|| format!("running {what}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{what}: {}: {stderr}", output.status);
    Ok((stdout, stderr))
}

/// The number in cachegrind's line `I refs:        1,234`.
fn instructions(stderr: &str) -> Option<u64> {
    let line = stderr.lines().find(|line| line.contains("I ") && line.contains("refs:"))?;
    line.rsplit(':').next()?.trim().replace(',', "").parse().ok()
}

fn parse(text: &str) -> Result<AllCounts> {
    let value: Value = serde_json::from_str(text).with_context(|| format!("reading {FILE}"))?;
    let rows = value.as_object().with_context(|| format!("{FILE} is not an object"))?;
    let counts = rows.iter().map(|(name, row)| {
        let number = |key: &str| {
            row[key].as_u64().with_context(|| format!("{FILE}: {name}: {key} is not a number"))
        };
        let counts = Counts {
            decisions: number("decisions")?,
            allocations: number("allocations")?,
            instructions: Some(number("instructions")?),
        };
        Ok((name.clone(), counts))
    });
    counts.collect()
}

fn to_text(counts: &AllCounts) -> Result<String> {
    let row = |it: &Counts| json!({"decisions": it.decisions, "allocations": it.allocations, "instructions": it.instructions});
    let rows: BTreeMap<&String, Value> = counts.iter().map(|(name, it)| (name, row(it))).collect();
    Ok(serde_json::to_string_pretty(&rows)? + "\n")
}

/// A line for each count that is too far from the recorded one, and for each workload that only one side has.
fn differences(recorded: &AllCounts, counted: &AllCounts) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, now) in counted {
        let Some(before) = recorded.get(name).filter(|it| it.decisions == now.decisions) else {
            lines.push(format!("{name}: {} decisions are not recorded", now.decisions));
            continue;
        };
        let pairs = [
            ("allocations", Some(before.allocations), Some(now.allocations)),
            ("instructions", before.instructions, now.instructions),
        ];
        for (what, before, now) in pairs {
            let (Some(before), Some(now)) = (before, now) else { continue };
            let allowed = (before as f64 * SHARE_MAX).max(DIFFERENCE_MIN as f64);
            if now.abs_diff(before) as f64 > allowed {
                let percent = (now as f64 / before as f64 - 1.0) * 100.0;
                lines
                    .push(format!("{name}: {before} {what} recorded, {now} now ({percent:+.1} %)"));
            }
        }
    }
    let gone = recorded.keys().filter(|name| !counted.contains_key(*name));
    lines.extend(gone.map(|name| format!("{name}: recorded, but no such workload")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(allocations: u64, instructions: u64) -> AllCounts {
        let instructions = Some(instructions);
        let counts = Counts { decisions: 100, allocations, instructions };
        AllCounts::from([("basic".to_owned(), counts)])
    }

    #[test]
    fn differences_of_more_than_a_tenth_are_found() {
        let recorded = all(1_000, 50_000);
        let cases: &[(AllCounts, &[&str])] = &[
            (all(1_100, 45_000), &[]),
            (all(1_101, 50_000), &["basic: 1000 allocations recorded, 1101 now (+10.1 %)"]),
            (all(1_000, 44_999), &["basic: 50000 instructions recorded, 44999 now (-10.0 %)"]),
            (AllCounts::new(), &["basic: recorded, but no such workload"]),
        ];
        for (counted, expected) in cases {
            assert_eq!(differences(&recorded, counted), *expected, "{counted:?}");
        }
        assert_eq!(
            differences(&AllCounts::new(), &recorded),
            ["basic: 100 decisions are not recorded"]
        );
        assert!(differences(&all(0, 50_000), &all(20, 50_000)).is_empty());
        assert_eq!(differences(&all(0, 50_000), &all(21, 50_000)).len(), 1);
    }

    #[test]
    fn what_is_recorded_is_read_again() {
        let counts = all(12, 34);
        assert_eq!(parse(&to_text(&counts).unwrap()).unwrap(), counts);
        assert!(parse("{\"basic\": {\"decisions\": 1}}").is_err());
    }

    #[test]
    fn instructions_are_found_in_the_output_of_valgrind() {
        let stderr = "==7== Cachegrind\n==7== \n==7== I   refs:      1,234,567\n";
        assert_eq!(instructions(stderr), Some(1_234_567));
        assert_eq!(instructions("==7== I refs:        89\n"), Some(89));
        assert_eq!(instructions("valgrind: fatal error"), None);
    }
}
