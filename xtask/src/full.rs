//! `cargo xtask full`: the long versions of the checks of `.ci/run`, and those that take too long for every change.
//!
//! Every step is a process of its own, so that one that fails, or is killed, does not stop the others. The last result of every step is a row of a
//! page of the documentation, written with `--write` when the step ends: a run that is interrupted, or of some steps only, loses nothing.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::oracle::process::Stopwatch;

const PAGE: &str = "docs/src/reference/full-checks.md";

/// A step: arguments of cargo, or of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Cargo(&'static str),
    Xtask(&'static str),
}

use Step::{Cargo, Xtask};

/// Most of them are in `.ci/run`, too, with less work.
const STEPS: &[Step] = &[
    Cargo("build --release --workspace --bins"),
    Xtask("scenarios check"),
    Xtask("oracle --cases 20000"),
    Xtask("oracle --preemption 5000"),
    Xtask("oracle --claims 20000"),
    Xtask("oracle --scheduler-plugins 5000"),
    Xtask("oracle --old-configurations 2000"),
    Xtask("oracle --old-decisions 1000"),
    Xtask("oracle --apply 5000"),
    Xtask("twin --steps 400000"),
    Xtask("twin --preemption 5000"),
    Xtask("twin --cross-node-preemption 5000"),
    Xtask("twin --counterfactual 2000"),
    Xtask("simulate --runs 10000"),
    Xtask("simulate --runs 2000 --reload-runs 1"),
    Xtask("e2e build"),
    Xtask("e2e kubernetes-tests"),
    Xtask("e2e controllers"),
    Xtask("e2e kill-writes --rounds 500"),
    Xtask("e2e churn --changes 100000"),
    Xtask("e2e guests --nodes 2000 --pods 20000"),
    Xtask("e2e drain basic 5000 10000"),
    Xtask("e2e drain mixed 1000 2000"),
    Xtask("e2e drain mixed 5000 3000 --running 100000 --idle-seconds 60"),
    Xtask("e2e latency basic 5000 10000 --scheduler loadmaster --check"),
    Xtask("e2e drain basic 5000 10000 --form both --rounds 5 --scheduler loadmaster --check"),
    Xtask("e2e drain basic 2000 4000 --claims prebound --check"),
    // kube-scheduler takes an hour for as many static volumes.
    Xtask(
        "e2e drain basic 2000 4000 --claims static --null-scheduler --scheduler loadmaster --rounds 3 --check",
    ),
    Xtask("e2e drain basic 500 1000 --claims static --check"),
    Xtask("e2e record mixed 1000 5000 --scheduler loadmaster"),
    Xtask("e2e replicas --scheduler loadmaster --times 20"),
    Xtask("e2e beside --pods 5000"),
    Xtask("e2e volumes"),
    Xtask("e2e gangs --rounds 7 --check"),
    Xtask("e2e manifests"),
    Xtask("e2e deployments"),
    Xtask("e2e reload"),
    Xtask("e2e faults"),
    Xtask("e2e shadow"),
    Xtask("image --check"),
    Xtask("image --check-reproducible"),
    Xtask("build-cost"),
];

/// Arguments of `full`.
#[derive(clap::Args)]
pub struct Args {
    /// Run only steps whose command contains one of these words.
    words: Vec<String>,
    /// Print the commands and run nothing.
    #[arg(long)]
    list: bool,
    /// Write the results to docs/src/reference/full-checks.md; steps that are not run keep theirs.
    #[arg(long, conflicts_with = "list")]
    write: bool,
}

/// The result of a step.
struct StepResult {
    step: Step,
    /// The exit code; an error if the process did not exit by itself.
    outcome: Result<i32, String>,
    seconds: f64,
}

/// Where and when the steps were run.
struct Environment {
    /// In UTC: `2026-01-31`.
    date: String,
    /// The commit, and whether there were changes.
    commit: String,
    /// The cores, and the processor's name if the system has it.
    machine: String,
}

/// Runs the steps; returns whether all have passed.
pub fn run(args: &Args) -> Result<bool> {
    let is_chosen = |command: &str| {
        args.words.is_empty() || args.words.iter().any(|word| command.contains(word.as_str()))
    };
    let steps: Vec<Step> =
        STEPS.iter().filter(|step| is_chosen(&step.command())).copied().collect();
    ensure!(!steps.is_empty(), "no step contains one of these words; --list lists the steps");
    if args.list {
        steps.iter().for_each(|step| println!("{}", step.command()));
        return Ok(true);
    }
    // The state at the beginning: a run takes hours.
    let environment = Environment::read()?;
    let path = crate::root()?.join(PAGE);
    let mut results = Vec::new();
    for step in steps {
        let result = run_step(step);
        if args.write {
            let read = std::fs::read_to_string(&path);
            let old = read.with_context(|| format!("reading {}", path.display()))?;
            let row = result.row(&environment);
            std::fs::write(&path, page(&old, &result.step.command(), &row))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        results.push(result);
    }
    println!("\n{}", summary(&results));
    Ok(results.iter().all(StepResult::has_passed))
}

fn run_step(step: Step) -> StepResult {
    println!("\n== {}", step.command());
    let stopwatch = Stopwatch::start();
    let status = step.process().and_then(|mut process| Ok(process.status()?));
    let outcome = match status {
        Ok(status) => status.code().ok_or_else(|| status.to_string()),
        Err(error) => Err(format!("{error:#}")),
    };
    StepResult { step, outcome, seconds: stopwatch.seconds() }
}

impl Step {
    /// The command as it is typed.
    fn command(self) -> String {
        match self {
            Cargo(args) => format!("cargo {args}"),
            Xtask(args) => format!("cargo xtask {args}"),
        }
    }

    fn process(self) -> Result<Command> {
        let (mut process, args) = match self {
            Cargo(args) => (crate::command("cargo"), args),
            // Optimized, whatever the profile of this process is.
            Xtask(args) => {
                let mut cargo = crate::command("cargo");
                cargo.args(["run", "--release", "--quiet", "--package", "xtask", "--"]);
                (cargo, args)
            }
        };
        process.args(args.split(' ')).current_dir(crate::root()?);
        Ok(process)
    }
}

impl StepResult {
    fn has_passed(&self) -> bool {
        self.outcome == Ok(0)
    }

    /// The step's row of the page.
    fn row(&self, environment: &Environment) -> String {
        let Environment { date, commit, machine } = environment;
        let (step, seconds) = (self.step.command(), self.seconds);
        format!("| `{step}` | {} | {seconds:.0} | {date} | {commit} | {machine} |", self.text())
    }

    fn text(&self) -> String {
        match &self.outcome {
            Ok(0) => "passed".to_owned(),
            Ok(code) => format!("failed, exit code {code}"),
            Err(error) => format!("failed, {}", error.replace(['|', '\n'], " ")),
        }
    }
}

impl Environment {
    fn read() -> Result<Environment> {
        let cores = std::thread::available_parallelism().context("reading the number of cores")?;
        // The page itself is changed by each step.
        let changes =
            crate::git(&["status", "--porcelain", "--", ":/", &format!(":(top,exclude){PAGE}")])?;
        let with_changes = if changes.is_empty() { "" } else { ", with changes" };
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processor_name(&info).map_or(String::new(), |name| format!(", {name}"));
        Ok(Environment {
            date,
            commit: crate::git(&["rev-parse", "--short=12", "HEAD"])? + with_changes,
            machine: format!("{cores} cores{processor}"),
        })
    }
}

fn processor_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"))?;
    let name = line.trim_start_matches([' ', '\t', ':']).trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The results, a line each, and how many failed.
fn summary(results: &[StepResult]) -> String {
    let mut text = String::new();
    for result in results {
        let _ = writeln!(
            text,
            "{:>6.0} s  {}: {}",
            result.seconds,
            result.step.command(),
            result.text()
        );
    }
    let n_failed = results.iter().filter(|result| !result.has_passed()).count();
    let _ = writeln!(text, "{} steps, {n_failed} failed", results.len());
    text
}

/// The page with a row for each step, in order: the given one, the old page's, or that the step was not run.
fn page(old: &str, command: &str, row: &str) -> String {
    let mut text = format!("# Full checks\n\n{INTRODUCTION}\n{HEADER}");
    for step in STEPS.iter().map(|step| step.command()) {
        let begin = format!("| `{step}` |");
        let of_step = if step == command {
            Some(row)
        } else {
            old.lines().find(|line| line.starts_with(&begin))
        };
        match of_step {
            Some(row) => text += row,
            None => {
                let _ = write!(text, "{begin} not run | | | | |");
            }
        }
        text.push('\n');
    }
    text
}

const HEADER: &str = "\
| step | last result | seconds | date | commit | machine |
| --- | --- | --- | --- | --- | --- |
";

const INTRODUCTION: &str = "\
*Reference.* The long versions of the checks that every change has to pass. `cargo xtask full` runs them, which takes hours, and continues after
a step that fails; `cargo xtask full --write` writes each result to this page when the step ends. `cargo xtask full WORD...` runs the steps that
contain one of the words. `cargo xtask full --list` lists the commands, which can also be run alone. Random cases have new seeds in every run, except for `twin` and `simulate`, which begin with the same seed.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn result(step: Step, outcome: Result<i32, String>, seconds: f64) -> StepResult {
        StepResult { step, outcome, seconds }
    }

    fn environment() -> Environment {
        Environment {
            date: "2026-01-31".to_owned(),
            commit: "0123456789ab, with changes".to_owned(),
            machine: "2 cores, Example 9000".to_owned(),
        }
    }

    #[test]
    fn the_page_has_the_last_result_of_every_step() {
        let write = |old: &str, result: &StepResult| {
            page(old, &result.step.command(), &result.row(&environment()))
        };
        let page = write("", &result(STEPS[1], Ok(1), 61.5));
        let page = write(&page, &result(STEPS[0], Err("signal: 9 (SIGKILL)".to_owned()), 0.4));
        let page = write(&page, &result(STEPS[1], Ok(0), 3600.0));
        let (introduction, rows) = page.split_at(page.find("| step").unwrap());
        assert_eq!(introduction, format!("# Full checks\n\n{INTRODUCTION}\n"));
        let want = "\
| step | last result | seconds | date | commit | machine |
| --- | --- | --- | --- | --- | --- |
| `cargo build --release --workspace --bins` | failed, signal: 9 (SIGKILL) | 0 | 2026-01-31 | 0123456789ab, with changes | 2 cores, Example 9000 |
| `cargo xtask scenarios check` | passed | 3600 | 2026-01-31 | 0123456789ab, with changes | 2 cores, Example 9000 |
| `cargo xtask oracle --cases 20000` | not run | | | | |
";
        assert!(rows.starts_with(want), "{rows}");
        assert_eq!(rows.lines().count(), 2 + STEPS.len());
    }

    #[test]
    fn the_summary_counts_failed_steps() {
        let results = [result(STEPS[0], Ok(0), 0.4), result(STEPS[1], Ok(1), 61.5)];
        let want = "     0 s  cargo build --release --workspace --bins: passed
    62 s  cargo xtask scenarios check: failed, exit code 1
2 steps, 1 failed
";
        assert_eq!(summary(&results), want);
    }

    /// Every step is a command of this program.
    #[test]
    fn the_steps_are_commands() {
        for step in STEPS {
            let Xtask(args) = step else { continue };
            let line = ["xtask"].into_iter().chain(args.split(' '));
            let parsed = <crate::Cli as clap::Parser>::try_parse_from(line);
            assert!(parsed.is_ok(), "{args}: {}", parsed.err().unwrap());
        }
    }

    #[test]
    fn the_name_of_the_processor() {
        let info = "processor\t: 0\nmodel name\t: Example 9000\nflags\t: x\n";
        assert_eq!(processor_name(info).as_deref(), Some("Example 9000"));
        assert_eq!(processor_name("processor\t: 0\n"), None);
    }

    #[test]
    fn a_step_that_fails_is_a_result() {
        assert!(run_step(Cargo("--version")).has_passed());
        let failed = run_step(Cargo("no-such-command-of-cargo"));
        assert_eq!(failed.text(), "failed, exit code 101");
    }
}
