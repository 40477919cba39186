//! `cargo xtask full`: the long versions of the checks of `.ci/run`, and those that take too long for every change.
//!
//! Every step is a process of its own, so that one that fails, or is killed, does not stop the others. The last result is a page of the
//! documentation, written with `--write`.

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
    Xtask("oracle --apply 5000"),
    Xtask("twin --steps 400000"),
    Xtask("twin --preemption 5000"),
    Xtask("simulate --runs 10000"),
    Xtask("e2e build"),
    Xtask("e2e controllers"),
    Xtask("e2e kill-writes --rounds 500"),
    Xtask("e2e churn --changes 100000"),
    Xtask("e2e guests --nodes 2000 --pods 20000"),
    Xtask("e2e drain basic 5000 10000"),
    Xtask("e2e drain mixed 1000 2000"),
    Xtask("e2e drain basic 5000 10000 --form both --rounds 5 --scheduler loadmaster --check"),
    Xtask("e2e record mixed 1000 5000 --scheduler loadmaster"),
    Xtask("e2e replicas --scheduler loadmaster --times 20"),
    Xtask("e2e beside --pods 5000"),
];

/// Arguments of `full`.
#[derive(clap::Args)]
pub struct Args {
    /// Run only steps whose command contains one of these words.
    #[arg(conflicts_with = "write")]
    words: Vec<String>,
    /// Print the commands and run nothing.
    #[arg(long)]
    list: bool,
    /// Write the results to docs/src/reference/full-checks.md.
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
    n_cores: usize,
    /// The processor's name, if the system has it.
    processor: Option<String>,
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
    let results: Vec<StepResult> = steps.into_iter().map(run_step).collect();
    println!("\n{}", table(&results));
    if args.write {
        let path = crate::root()?.join(PAGE);
        std::fs::write(&path, page(&environment, &results))
            .with_context(|| format!("writing {}", path.display()))?;
        println!("written to {PAGE}");
    }
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

    fn text(&self) -> String {
        match &self.outcome {
            Ok(0) => "passed".to_owned(),
            Ok(code) => format!("failed, exit code {code}"),
            Err(error) => format!("failed, {error}"),
        }
    }
}

impl Environment {
    fn read() -> Result<Environment> {
        let cores = std::thread::available_parallelism().context("reading the number of cores")?;
        let changes = git(&["status", "--porcelain"])?;
        let with_changes = if changes.is_empty() { "" } else { ", with changes" };
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Ok(Environment {
            date,
            commit: git(&["rev-parse", "--short=12", "HEAD"])? + with_changes,
            n_cores: cores.get(),
            processor: processor_name(&info),
        })
    }
}

fn processor_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"))?;
    let name = line.trim_start_matches([' ', '\t', ':']).trim();
    (!name.is_empty()).then(|| name.to_owned())
}

fn git(args: &[&str]) -> Result<String> {
    let output = Command::new("git").args(args).current_dir(crate::root()?).output();
    let output = output.context("running git")?;
    ensure!(output.status.success(), "git {} failed", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The results as a table in Markdown.
fn table(results: &[StepResult]) -> String {
    let mut text = "| step | result | seconds |\n| --- | --- | --- |\n".to_owned();
    for result in results {
        let (step, shown) = (result.step.command(), result.text().replace('|', "\\|"));
        let _ = writeln!(text, "| `{step}` | {shown} | {:.0} |", result.seconds);
    }
    let n_failed = results.iter().filter(|result| !result.has_passed()).count();
    let seconds: f64 = results.iter().map(|result| result.seconds).sum();
    let _ = writeln!(text, "| {} steps | {n_failed} failed | {seconds:.0} |", results.len());
    text
}

fn page(environment: &Environment, results: &[StepResult]) -> String {
    let Environment { date, commit, n_cores, processor } = environment;
    let processor = processor.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    format!(
        "# Full checks\n\n{INTRODUCTION}\nLast run: {date}, commit {commit}, {n_cores} cores{processor}.\n\n{}",
        table(results)
    )
}

const INTRODUCTION: &str = "\
*Reference.* The long versions of the checks that every change has to pass. `cargo xtask full` runs them, which takes hours, and continues after
a step that fails; `cargo xtask full --write` writes its results to this page. `cargo xtask full --list` lists the commands, which can also be run
alone. Random cases have new seeds in every run, except for `twin` and `simulate`, which begin with the same seed.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Vec<StepResult> {
        let outcomes = [Ok(0), Ok(1), Err("signal: 9 (SIGKILL)".to_owned())];
        let steps = [STEPS[0], Xtask("a b"), Xtask("c")];
        let all = steps.into_iter().zip(outcomes).zip([0.4, 61.5, 3600.0]);
        all.map(|((step, outcome), seconds)| StepResult { step, outcome, seconds }).collect()
    }

    #[test]
    fn the_page_has_every_result() {
        let environment = Environment {
            date: "2026-01-31".to_owned(),
            commit: "0123456789ab, with changes".to_owned(),
            n_cores: 2,
            processor: Some("Example 9000".to_owned()),
        };
        let page = page(&environment, &results());
        let (introduction, rest) = page.split_at(page.find("Last run").unwrap());
        assert_eq!(introduction, format!("# Full checks\n\n{INTRODUCTION}\n"));
        let want = "\
Last run: 2026-01-31, commit 0123456789ab, with changes, 2 cores (Example 9000).

| step | result | seconds |
| --- | --- | --- |
| `cargo build --release --workspace --bins` | passed | 0 |
| `cargo xtask a b` | failed, exit code 1 | 62 |
| `cargo xtask c` | failed, signal: 9 (SIGKILL) | 3600 |
| 3 steps | 2 failed | 3662 |
";
        assert_eq!(rest, want);
        assert_eq!(results().iter().filter(|result| result.has_passed()).count(), 1);
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
