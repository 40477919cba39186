//! `cargo xtask scenarios`: records kube-scheduler's answers, checks that they are still the same, and lists what no scenario
//! covers.

mod coverage;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use loadmaster_api::document::Document;
use loadmaster_sim::cases::local_oracle::LocalOracle;
use loadmaster_sim::scenario::{self, OracleQuestion, RecordedResult, Scenario};
use loadmaster_stdx::ErrorChain;

use crate::oracle;
use crate::oracle::process::{Oracle, OracleProgram};

/// Record or check the expected behavior in `scenarios/`.
#[derive(Parser)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run kube-scheduler and write its answers into the files (all, or those whose path contains one of the words).
    Record { words: Vec<String> },
    /// Run kube-scheduler and Loadmaster, and compare their answers with those in the files.
    Check { words: Vec<String> },
    /// List reasons, scores and hints that no file covers.
    Missing,
}

/// Returns whether there was no difference and nothing is missing.
pub fn run(args: &Args) -> Result<bool> {
    match &args.command {
        Command::Record { words } => record(words),
        Command::Check { words } => check(words),
        Command::Missing => coverage::missing(),
    }
}

/// A scenario file and its parsed contents.
struct File {
    path: PathBuf,
    /// The plugin that its directory is about.
    plugin: String,
    text: String,
    scenario: Scenario,
}

/// The directory of the scenarios that scheduler-plugins answers.
const SCHEDULER_PLUGINS: &str = "scenarios/scheduler_plugins";

/// The oracles, each started when it is asked first.
#[derive(Default)]
struct Oracles {
    kube_scheduler: Option<Oracle>,
    scheduler_plugins: Option<Oracle>,
}

impl Oracles {
    fn get(&mut self, program: OracleProgram) -> Result<&mut Oracle> {
        let started = match program {
            OracleProgram::KubeScheduler => &mut self.kube_scheduler,
            OracleProgram::SchedulerPlugins => &mut self.scheduler_plugins,
        };
        if started.is_none() {
            *started = Some(oracle::start(program)?);
        }
        started.as_mut().context("the oracle was not started")
    }
}

impl File {
    /// The program whose answers the file has.
    fn program(&self) -> OracleProgram {
        let is_theirs = self.path.parent().is_some_and(|it| it.ends_with(SCHEDULER_PLUGINS));
        if is_theirs { OracleProgram::SchedulerPlugins } else { OracleProgram::KubeScheduler }
    }

    fn read(path: PathBuf) -> Result<File> {
        let (text, scenario) = scenario::read_scenario_file(&path)
            .map_err(|error| anyhow::anyhow!("{}", ErrorChain(&error)))?;
        Ok(File { plugin: scenario::plugin_of_scenario_path(&path), path, text, scenario })
    }

    /// What kube-scheduler and Loadmaster answer differently than the file says, one difference per line.
    fn differences(&self, oracle: &mut Oracle, ours: &LocalOracle) -> Result<Vec<String>> {
        let scorers = scorers(ours, &self.plugin);
        let mut lines = Vec::new();
        for question in self.questions()? {
            let answer = oracle.ask(&question.case.question())?;
            let found = question.to_recorded_result(&answer, scorers.as_deref());
            let differences = match self.scenario.recorded_result(&question) {
                Some(recorded) => recorded.differences(&found),
                None => vec!["not recorded yet".to_owned()],
            };
            let shown = |line| format!("kube-scheduler: steps[{}]: {line}", question.step);
            lines.extend(differences.into_iter().map(shown));
        }
        let answer = |case: &_| ours.answer_case(case);
        let checked =
            scenario::check_scenario(&self.scenario, &self.plugin, scorers.as_deref(), answer);
        let checked =
            checked.map_err(|error| anyhow::anyhow!("{}: {}", self.name(), ErrorChain(&error)))?;
        lines.extend(checked.into_iter().map(|line| format!("Loadmaster: {line}")));
        Ok(lines)
    }

    /// The path relative to the workspace.
    fn name(&self) -> String {
        let root = crate::root().unwrap_or_default();
        self.path.strip_prefix(root).unwrap_or(&self.path).display().to_string()
    }

    fn questions(&self) -> Result<Vec<OracleQuestion>> {
        self.scenario
            .questions(&self.plugin)
            .map_err(|error| anyhow::anyhow!("{}: {}", self.name(), ErrorChain(&error)))
    }
}

/// The files whose path contains one of the words (all files without words), in order.
fn files(words: &[String]) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for path in
        scenario::scenario_paths(&crate::root()?.join("scenarios")).context("listing scenarios")?
    {
        let name = path.display().to_string();
        if !words.is_empty() && !words.iter().any(|word| name.contains(word)) {
            continue;
        }
        files.push(File::read(path)?);
    }
    Ok(files)
}

/// The plugins whose scores the files of a directory have: the directory's plugin, or all in directories that are not about a
/// plugin.
fn scorers(ours: &LocalOracle, plugin: &str) -> Option<Vec<String>> {
    scenario::recorded_score_plugins(ours.registry(), ours.default_profiles(), plugin)
}

fn record(words: &[String]) -> Result<bool> {
    let ours = oracle::local_oracle()?;
    let mut oracles = Oracles::default();
    let (mut n_written, mut n_files) = (0, 0);
    for file in files(words)? {
        let text = recorded(oracles.get(file.program())?, &ours, &file)?;
        if text != file.text {
            std::fs::write(&file.path, text).with_context(|| format!("writing {}", file.name()))?;
            println!("{}", file.name());
            n_written += 1;
        }
        n_files += 1;
    }
    println!("{n_files} files, {n_written} written");
    Ok(true)
}

/// The file's text with kube-scheduler's current answers.
fn recorded(oracle: &mut Oracle, ours: &LocalOracle, file: &File) -> Result<String> {
    let scorers = scorers(ours, &file.plugin);
    let mut answers: Vec<(OracleQuestion, RecordedResult)> = Vec::new();
    for question in file.questions()? {
        let answer = oracle.ask(&question.case.question())?;
        let has_failed = answer["error"].is_string() && answer.get("hint").is_none();
        // Where upstream has no such plugin, that is what is recorded.
        if has_failed && file.scenario.deviating_result(&question)?.is_none() {
            bail!("{}: steps[{}]: {}", file.name(), question.step, answer["error"]);
        }
        let found = file.scenario.keep_recorded_fragments(
            &question,
            question.to_recorded_result(&answer, scorers.as_deref()),
        );
        answers.push((question, found));
    }
    Ok(scenario::write_recorded_results(&file.text, &file.program().version()?, &answers))
}

/// Writes a scenario with the program's answers into `scenarios/found`, or into the directory of scheduler-plugins, and returns its path.
/// An existing file is not changed.
pub fn write_found(
    (program, oracle): (OracleProgram, &mut Oracle),
    ours: &LocalOracle,
    kind: &str,
    text: String,
) -> Result<String> {
    let folder = crate::root()?.join(match program {
        OracleProgram::KubeScheduler => "scenarios/found",
        OracleProgram::SchedulerPlugins => SCHEDULER_PLUGINS,
    });
    let shown = folder.display();
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {shown}"))?;
    // FNV-1a: the same kind of difference gets the same file name in every run.
    let hash = kind.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let path = folder.join(format!("{hash:016x}.yaml"));
    if path.exists() {
        return Ok(format!("{} (exists, not changed)", path.display()));
    }
    let document = Document::new(path.display().to_string(), text.as_str());
    let scenario =
        Scenario::read(&document).map_err(|error| anyhow::anyhow!("{}", ErrorChain(&error)))?;
    let file = File { plugin: scenario::plugin_of_scenario_path(&path), path, text, scenario };
    // A case on which kube-scheduler fails cannot be recorded; it is written without its answers.
    let text = recorded(oracle, ours, &file).unwrap_or_else(|_| file.text.clone());
    std::fs::write(&file.path, text).with_context(|| format!("writing {}", file.name()))?;
    Ok(file.name())
}

fn check(words: &[String]) -> Result<bool> {
    let ours = oracle::local_oracle()?;
    let mut oracles = Oracles::default();
    let (mut n_wrong, mut n_files) = (0, 0);
    for file in files(words)? {
        let lines = file.differences(oracles.get(file.program())?, &ours)?;
        for line in &lines {
            println!("{}: {line}", file.name());
        }
        n_wrong += usize::from(!lines.is_empty());
        n_files += 1;
    }
    println!("{n_files} files, {n_wrong} with differences");
    Ok(n_wrong == 0)
}

/// What kube-scheduler and Loadmaster answer to a file in `scenarios/` differently than it says.
pub fn differences(oracle: &mut Oracle, ours: &LocalOracle, path: &str) -> Result<Vec<String>> {
    File::read(crate::root()?.join("scenarios").join(path))?.differences(oracle, ours)
}

/// All recorded answers of all files.
fn all_recorded() -> Result<Vec<(OracleQuestion, RecordedResult)>> {
    let mut all = Vec::new();
    for file in files(&[])? {
        for question in file.questions()? {
            if let Some(recorded) = file.scenario.recorded_result(&question) {
                all.push((question, recorded));
            }
        }
    }
    Ok(all)
}
