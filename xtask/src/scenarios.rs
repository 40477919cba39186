//! `cargo xtask scenarios`: record what kube-scheduler says, check that it still says so, and find what no file shows.

mod declared;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use loadmaster_api::document::Document;
use loadmaster_sim::cases::answer::Answerer;
use loadmaster_sim::scenario::{self, Question, Recorded, Scenario};
use loadmaster_stdx::Chain;

use crate::oracle;
use crate::oracle::process::{self, Oracle};

/// The behaviours in `scenarios/`.
#[derive(Parser)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Ask kube-scheduler and write its answers into the files (all, or those whose path contains one of the words).
    Record { words: Vec<String> },
    /// Ask kube-scheduler and compare with what the files say.
    Check { words: Vec<String> },
    /// List reasons and hints that no file shows.
    Missing,
}

/// Answers whether all is well.
pub fn run(args: &Args) -> Result<bool> {
    match &args.what {
        What::Record { words } => record(words),
        What::Check { words } => check(words),
        What::Missing => declared::missing(),
    }
}

/// A file as it is, and as it is understood.
struct File {
    path: PathBuf,
    /// The plugin that its folder is about.
    plugin: String,
    text: String,
    scenario: Scenario,
}

impl File {
    /// Path below the workspace.
    fn name(&self) -> String {
        let root = crate::root().unwrap_or_default();
        self.path.strip_prefix(root).unwrap_or(&self.path).display().to_string()
    }

    fn questions(&self) -> Result<Vec<Question>> {
        self.scenario
            .questions(&self.plugin)
            .map_err(|error| anyhow::anyhow!("{}: {}", self.name(), Chain(&error)))
    }
}

/// All files whose path contains one of the words (all when there is no word), in order.
fn files(words: &[String]) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for path in scenario::paths(&crate::root()?.join("scenarios")).context("listing scenarios")? {
        let name = path.display().to_string();
        if !words.is_empty() && !words.iter().any(|word| name.contains(word)) {
            continue;
        }
        let (text, scenario) =
            scenario::read(&path).map_err(|error| anyhow::anyhow!("{}", Chain(&error)))?;
        files.push(File { plugin: scenario::plugin_of(&path), path, text, scenario });
    }
    Ok(files)
}

/// The scores that files of a folder show: those of the folder's plugin, or all in folders that are about none.
fn scorers(ours: &Answerer, plugin: &str) -> Option<Vec<String>> {
    scenario::scorers(ours.registry(), ours.default_profiles(), plugin)
}

fn record(words: &[String]) -> Result<bool> {
    let ours = Answerer::new(loadmaster_plugins::in_tree())?;
    let mut oracle = oracle::start()?;
    let (mut n_written, mut n_files) = (0, 0);
    for file in files(words)? {
        let text = recorded(&mut oracle, &ours, &file)?;
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

/// The file's text with what kube-scheduler says now.
fn recorded(oracle: &mut Oracle, ours: &Answerer, file: &File) -> Result<String> {
    let scorers = scorers(ours, &file.plugin);
    let mut answers: Vec<(Question, Recorded)> = Vec::new();
    for question in file.questions()? {
        let answer = oracle.ask(&question.case.question())?;
        if answer["error"].is_string() && answer.get("hint").is_none() {
            bail!("{}: steps[{}]: {}", file.name(), question.step, answer["error"]);
        }
        let found = file.scenario.narrow(&question, question.found(&answer, scorers.as_deref()));
        answers.push((question, found));
    }
    Ok(scenario::record(&file.text, &process::version()?, &answers))
}

/// Writes a scenario that was found by chance into `scenarios/found`, with kube-scheduler's answers; answers where. One that
/// is there already stays.
pub fn write_found(
    oracle: &mut Oracle,
    ours: &Answerer,
    kind: &str,
    text: String,
) -> Result<String> {
    let folder = crate::root()?.join("scenarios/found");
    std::fs::create_dir_all(&folder).context("making scenarios/found")?;
    // FNV-1a: the same kind of difference has the same name in every run.
    let hash = kind.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let path = folder.join(format!("{hash:016x}.yaml"));
    if path.exists() {
        return Ok(format!("{} (left as it was)", path.display()));
    }
    let document = Document::new(path.display().to_string(), text.as_str());
    let scenario =
        Scenario::read(&document).map_err(|error| anyhow::anyhow!("{}", Chain(&error)))?;
    let file = File { plugin: scenario::plugin_of(&path), path, text, scenario };
    // A question that kube-scheduler refuses cannot be recorded; the case is worth keeping all the same.
    let text = recorded(oracle, ours, &file).unwrap_or_else(|_| file.text.clone());
    std::fs::write(&file.path, text).with_context(|| format!("writing {}", file.name()))?;
    Ok(file.name())
}

fn check(words: &[String]) -> Result<bool> {
    let ours = Answerer::new(loadmaster_plugins::in_tree())?;
    let mut oracle = oracle::start()?;
    let (mut n_wrong, mut n_questions) = (0, 0);
    for file in files(words)? {
        let scorers = scorers(&ours, &file.plugin);
        for question in file.questions()? {
            let answer = oracle.ask(&question.case.question())?;
            let found = question.found(&answer, scorers.as_deref());
            let lines = match file.scenario.recorded(&question) {
                Some(recorded) => recorded.differences(&found),
                None => vec!["not recorded yet".to_owned()],
            };
            for line in &lines {
                println!("{}: steps[{}]: {line}", file.name(), question.step);
            }
            n_wrong += usize::from(!lines.is_empty());
            n_questions += 1;
        }
    }
    println!("{n_questions} answers, {n_wrong} differ from what is recorded");
    Ok(n_wrong == 0)
}

/// Everything recorded in all files, with the path of its file.
fn all_recorded() -> Result<Vec<(Question, Recorded)>> {
    let mut all = Vec::new();
    for file in files(&[])? {
        for question in file.questions()? {
            if let Some(recorded) = file.scenario.recorded(&question) {
                all.push((question, recorded));
            }
        }
    }
    Ok(all)
}
